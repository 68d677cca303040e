"""Tests of kernels run on the best target of this machine, and in `make test-long` on others too."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
from support.suites import long

from engine.native import harness


@pytest.fixture(scope="module", params=[pytest.param(False, id="best"), long(True, id="all targets")])
def targets_to_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """Decides what `harness.targets` returns: only the best target of this machine, or others as well."""
    harness.all_targets = request.param
    yield
    harness.all_targets = False


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Generator[None, object, object]:
    """Leave a test that is long anyway to its run on all targets, which takes the best one too."""
    made = yield
    return [item for item in made if not _is_repeated(item)] if isinstance(made, list) else made


def _is_repeated(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    on_best = callspec is not None and callspec.params.get("targets_to_run") is False
    return on_best and item.get_closest_marker("long") is not None
