"""The list of behaviours is true to the tests: every row names tests, and every test that is named exists."""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows():
    """The rows of all tables in the document: statement, where it is made, tests."""
    for line in (ROOT / "docs" / "behaviour.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if line.startswith("|") and not line.startswith(("|---", "| statement")):
            yield cells


@lru_cache
def functions(path):
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("cells", list(rows()), ids=lambda cells: cells[0][:40])
def test_every_statement_stands_beside_tests_that_exist(cells):
    assert len(cells) == 3, cells
    statement, _, proofs = cells
    named = NAMED.findall(proofs)
    assert statement
    assert named, f"no test is named beside: {statement}"
    for path, function in named:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        assert function in functions(path), f"{path} has no {function}"


def test_both_lpai_documents_are_covered():
    sources = {cells[1] for cells in rows()}
    assert {"management", "allocations", "both"} <= sources
