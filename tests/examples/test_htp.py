"""The HTP examples do what they say."""

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Loads an example by name."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name):
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return load


def test_the_shared_buffer_example_copies_nothing_and_recovers_from_a_crash(example, capsys) -> None:
    example("htp_shared_buffer").main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(".")[0] for line in lines] == [str(number) for number in range(1, 9)]
    assert "0 bytes copied, results right" in lines[4]
    assert "COMMON_OPERATION_NOT_PERMITTED" in lines[5]
    assert "COMMON_SYSTEM_COMMUNICATION" in lines[6]
    assert "results right" in lines[7]


def test_the_table_example_measures_the_four_documented_rows(example, capsys) -> None:
    example("htp_qmem_table").main()
    rows = [line.split()[:8] for line in capsys.readouterr().out.splitlines()[3:]]
    assert [[row[n] for n in (0, 1, 2, 4, 6)] for row in rows] == [
        ["raw", "raw", "8", "0", "8"],
        ["raw", "memhandle", "8", "0", "0"],
        ["memhandle", "raw", "0", "8", "8"],
        ["memhandle", "memhandle", "0", "0", "0"],
    ]
