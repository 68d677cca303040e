"""Long commands show their progress on a terminal, and nothing where standard error is a file."""

import re

import pytest
from support import tiny
from support.terminals import shown

GENERATOR = ["context-binary-generator", "--model", "m.onnx", "--backend", "libQnnCpu.so", "--output_dir", "binaries"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "m.onnx", "--repeat", "3"], "] 3 of 3 runs"),
        (["fit", "m.onnx", "--rounds", "1"], "] 1 of 1 rounds of measurement"),
        (["warm", "m.onnx"], "] 1 of 1 models"),
        (["sweep", "m.onnx", "--mode", "plan", "--state", "state", "--jobs", "1"], "] 1 of 1 jobs: m.onnx"),
        (["split", "m.onnx", "--out", "tiles.onnx"], "] 1 of 3 stages: search for regions"),
        (["split", "m.onnx", "--out", "tiles.onnx", "--check"], " stages: compare both files"),
        (["pack", "problem.csv", "--timeout", "7"], "] 1 of 3 stages: search for at most 7 s"),
        (GENERATOR, "] 1 of 2 stages: prepare the graphs"),
    ],
)
def test_a_terminal_shows_a_bar_that_is_erased(tmp_path, arguments, words) -> None:
    tiny.wide(tmp_path / "m.onnx")
    (tmp_path / "problem.csv").write_text("id,lower,upper,size\na,0,2,3\nb,1,3,4\n")
    text = shown(tmp_path, arguments)
    assert words in re.sub(r", (about )?\d+ s( left)?", "", text)
    rest = text.rpartition("\r\x1b[K")[2].strip()
    assert rest == ("written: tiles.onnx" if "tiles.onnx" in arguments else ""), "the bar is erased"
