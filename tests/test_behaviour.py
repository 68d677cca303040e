"""The list of behaviours is true to the tests, and to the documents where copies of them are at hand.

Every row names tests, and every test that is named exists. Every line of a document that states something is covered by
a row, and the words of a row occur in the lines that it names.
"""

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest
from support.documents import COPIES

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
def test_every_statement_names_tests_that_exist(cells) -> None:
    assert len(cells) == 3, cells
    statement, _, proofs = cells
    named = NAMED.findall(proofs)
    assert statement
    assert named, f"no test is named beside: {statement}"
    for path, function in named:
        assert (ROOT / path).is_file(), f"{path} does not exist"
        assert function in functions(path), f"{path} has no {function}"


# -- the documents themselves ------------------------------------------------------------------------------------------

TITLES = {
    "management": "QNN LPAI Memory Management",
    "allocations": "QNN LPAI Memory Allocations",
    "qmem": "QNN HTP Qmem Graph",
    "shared memory": "Running Inference Using Shared Memory",
    "gpu": "QNN GPU QnnMem API Tutorial",
}
CITED = re.compile(rf"({'|'.join(TITLES)}) (\d+(?:-\d+)?(?:, \d+(?:-\d+)?)*)")
OTHERS = {"ours", "observed", "shared buffers", "contexts", "restart", "gpu backend", "QNN's tools"}
"""What rows may name without lines: rules of this project, what was seen, and documents without a copy."""
NO_STATEMENT = re.compile(
    r"#|!\[|- \[|\[Previous|Tutorial - |GPU\]|QNN GPU Tuning|Asynchronous graph|Multi-SoC|Copy to clipboard|Note$"
    r"|Last Published|.*¶$|Please refer to|Key characteristics:|\*\*\w+\*\*$|\*\*Mis-matching|\| Preparation"
)
"""Lines that state nothing: headings, links, navigation, and what only leads to the next line."""
COMMON = frozenset(re.findall(
    r"\w+",
    "all an and any are as at be before but by can each for from has have if in is it its may must no not of on one or "
    "other such than that the their them then there these they this those to up use used user when which will with",
))  # fmt: skip


@lru_cache
def documents() -> dict[str, list[str]]:
    """The lines of the copies, by the names that rows have for them."""
    found = {}
    for path in sorted(COPIES.glob("*.txt")) if COPIES is not None else ():
        lines = path.read_text().splitlines()
        found |= {name: lines for name, title in TITLES.items() if title in lines[0]}
    if found.keys() != TITLES.keys():
        pytest.skip("copies of QNN's documents are not at hand")
    return found


def cited(source: str) -> list[tuple[str, list[int]]]:
    """The documents and the numbers of lines that a row names."""
    found = []
    for name, places in CITED.findall(source):
        spans = [[int(number) for number in place.split("-")] for place in places.split(", ")]
        found.append((name, [line for span in spans for line in range(span[0], span[-1] + 1)]))
    return found


def stems(text: str) -> set[str]:
    """The words of a text that say something, cut to what inflections share."""
    words = re.findall(r"[a-z0-9]{2,}", text.replace("_", " ").lower())
    return {word[:5] for word in words if word not in COMMON}


CITING = [cells for cells in rows() if cells[1] not in OTHERS]


def test_the_words_of_a_row_occur_in_the_lines_that_it_names() -> None:
    lines, wrong = documents(), []
    for statement, source, _ in CITING:
        places = cited(source)
        text = " ".join(lines[name][number - 1] for name, numbers in places for number in numbers)
        if CITED.sub("", source).strip("; ") or len(stems(statement) & stems(text)) < 2:
            wrong.append((statement, source, text[:200]))
    assert not wrong


@pytest.mark.parametrize("name", TITLES)
def test_every_line_of_a_document_is_covered_by_a_row(name) -> None:
    lines = documents()[name]
    covered = {number for cells in CITING for known, numbers in cited(cells[1]) if known == name for number in numbers}
    open_ = {
        number: line
        for number, line in enumerate(lines, 1)
        if number not in covered and re.search("[A-Za-z]{2}", line) and not NO_STATEMENT.match(line.strip())
    }
    assert not open_
