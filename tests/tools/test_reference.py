"""The documents of error codes and options are what the declarations say, and say something about everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.backends.seam import registry
from isthmus.errors import Code
from isthmus.tools import reference

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", sorted(set(reference.DOCUMENTS) - {"operations.md"}))
def test_a_document_is_what_the_declarations_say(name: str) -> None:
    assert reference.DOCUMENTS[name]() == (DOCS / name).read_text(), "python -m isthmus.tools.reference docs"


def test_every_code_and_backend_is_there_and_no_cell_is_empty() -> None:
    errors, options = reference.errors(), reference.options()
    for code in Code:
        assert f"| {int(code)} | `{code.name}` |" in errors
    for name in registry.names():
        # Other tests of this process may have added backends of other packages.
        own = registry.entry(name).driver.__module__.startswith("isthmus.")
        assert (f"## `{name}`" in options) == own
    assert "|  |" not in errors + options


def test_the_folder_gets_all_documents(tmp_path: Path) -> None:
    reference.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"errors.md", "operations.md", "options.md"}
