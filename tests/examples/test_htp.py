"""The HTP examples do what they say."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.domains import SearchResult, applied, profile, search
from isthmus.tools.context_files import contexts_of

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


SIX = [f"part-{number}.bin" for number in range(1, 7)]


def of_six_binaries(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Load the six binaries, which are written first."""
    command = [sys.executable, EXAMPLES / "six_binaries.py", folder, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def as_advised(folder: Path, *remedies: str) -> SearchResult:
    """Return what `isthmus fit --contexts` finds for them, with remedies."""
    contexts = list(contexts_of([folder / name for name in SIX]).contexts)
    for name in remedies:
        contexts = applied(name, contexts)
    return search(contexts, profile(folder / "board.json"))


def test_the_third_of_six_binaries_does_not_load_and_the_advice_makes_all_load(tmp_path: Path) -> None:
    done = of_six_binaries(tmp_path)
    assert done.returncode == 1
    *loaded, refusal = done.stdout.splitlines()
    assert [line.split()[0] for line in loaded] == SIX[:2]
    assert refusal.startswith("[1002 COMMON_MEM_ALLOC] context 'part-3': needs ")
    assert "Failed to find available PD for contextId 3 on deviceId 0 coreId 0with" in done.stderr
    found = as_advised(tmp_path)
    assert not found.order
    assert found.as_given is not None
    assert found.as_given.what == "context 'part-3.bin'"
    # With one spill-fill buffer they load in the order that is found, and take the bytes that are found.
    found = as_advised(tmp_path, "group")
    assert found.order == tuple(SIX)
    done = of_six_binaries(tmp_path, "--group")
    assert done.returncode == 0, done.stdout + done.stderr
    *loaded, result = done.stdout.splitlines()[1:]
    assert [line.split()[0] for line in loaded] == SIX
    assert re.findall(r"([\d,]+) of", loaded[-1]) == [f"{each.used:,}" for each in found.domains.domains]
    assert result.startswith("all 6 parts have run")
