"""Long commands show a bar on a terminal, and nothing where standard error is a file."""

import os
import pty
import subprocess
import sys

import pytest
from support import tiny

from isthmus.tools import progress as module

# Each command with a delay of nothing, so that a short one shows what a long one would.
PROGRAM = """
import sys
from isthmus.tools import progress
progress._DELAY = progress._INTERVAL = 0
from isthmus.tools.cli import main
sys.exit(main(sys.argv[1:]))
"""


def shown(folder, arguments):
    """Return what a command writes to a terminal as its standard error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", PROGRAM, *arguments]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 1 << 12):
            text += piece
    except OSError:
        pass  # Linux reports the end of a terminal as an error.
    finally:
        os.close(ours)
    assert child.wait() == 0, text
    return text.decode()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "m.onnx", "--repeat", "3"], "3 of 3 runs"),
        (["fit", "m.onnx", "--rounds", "1"], "1 of 1 rounds of measurement"),
        (["warm", "m.onnx"], "1 of 1 models"),
    ],
)
def test_a_terminal_shows_a_bar_that_is_erased(tmp_path, arguments, words):
    tiny.convolution(tmp_path / "m.onnx")
    text = shown(tmp_path, arguments)
    assert f"] {words}" in text
    assert text.rpartition("\r\x1b[K")[2].strip() == "", "the bar is erased"


def test_a_file_gets_no_bar(capsys, monkeypatch):
    monkeypatch.setattr(module, "_DELAY", 0)
    with module.progress("runs", 2) as state:
        state.step()
        state.reach(2)
    assert state.described() == "2 of 2 runs"
    assert capsys.readouterr().err == ""
