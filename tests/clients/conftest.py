"""Clients of QNN, unmodified, on our libraries: what `make test-clients` runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients_report import Results

from isthmus.capi import installation

HERE = Path(__file__).parent
collect_ignore = [
    "executorch_group.py", "executorch_models.py", "genai_decoder.py", "provider_model.py", "qnn_executor_runner.py",
    "run_genai.py",
]  # fmt: skip
"""Programs and modules that need packages of clients; they have no doctests."""
ASKED = "runs by `make test-clients`, which installs the clients"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is here, and skip it unless clients are asked for."""
    asked = "clients" in config.option.markexpr or any(Path(arg.split("::")[0]).resolve().is_relative_to(HERE)
                                                       for arg in config.args)  # fmt: skip
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.clients)
            if not asked:
                item.add_marker(pytest.mark.skip(reason=ASKED))


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of our libraries in the layout of an SDK."""
    folder = tmp_path_factory.mktemp("sdk")
    installation.install_sdk(folder)
    return folder


@pytest.fixture(scope="session")
def libraries(sdk: Path) -> Path:
    """The folder with our libraries themselves."""
    return sdk / "lib" / "x86_64-linux-clang"


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> Results:
    """The results of a module's client, kept for the report."""
    return Results(request.module.CLIENT)
