"""Whatever a command is given to read, a pipe or a device is refused with a sentence: nothing waits, nothing grows.

The commands run in a child with a time limit, since those that do not refuse would never end.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from support import tiny
from support.suites import only

from isthmus.errors import QnnError
from isthmus.tools import run

SCRIPT = """
import contextlib, io, json, os, resource, sys
from isthmus.tools.cli import main
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
os.chdir(sys.argv[2])
answers = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as told, contextlib.redirect_stdout(io.StringIO()):
        status = main(arguments)
    answers.append((status, told.getvalue()))
print(json.dumps(answers))
"""
RUN, NET_RUN = ("run", "MODEL"), ("net-run", "--model", "MODEL", "--backend", "libQnnCpu.so")
COMMANDS = {
    "model to run": ("run", "ODD"),
    "model to plan": ("plan", "ODD"),
    "model to plan for TFLite Micro": ("plan", "ODD", "--embed", "out.tflite"),
    "problem": ("pack", "ODD"),
    "arrays": (*RUN, "--inputs", "ODD"),
    "input list": (*NET_RUN, "--input_list", "ODD"),
    "input file": (*NET_RUN, "--input_list", "list.txt"),
    "model of net-run": ("net-run", "--model", "ODD", "--backend", "cpu", "--input_list", "list.txt"),
    "binary to run": ("net-run", "--retrieve_context", "ODD", "--backend", "htp", "--input_list", "list.txt"),
    "binary to inspect": ("inspect", "ODD"),
    "model to keep": ("context-binary-generator", "--model", "ODD", "--backend", "libQnnHtp.so"),
}
CONFIGURATIONS = {
    "configuration of a run": (*RUN, "--backend", "htp", "--config", "ODD"),
    "configuration of a plan": ("plan", "MODEL", "--backend", "lpai", "--config", "ODD"),
    "configuration of net-run": ("net-run", "--model", "MODEL", "--backend", "libQnnLpai.so", "--input_list",
                                 "list.txt", "--config_file", "ODD"),
}  # fmt: skip


def answers(folder, commands, odd):
    """The status and the messages of each command, with the odd file in its place."""
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    (folder / "list.txt").write_text(f"{odd}\n")
    model = tiny.convolution(folder / "model.onnx")
    names = {"ODD": odd, "MODEL": str(model)}
    lines = json.dumps([[names.get(word, word) for word in command] for command in commands.values()])
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, lines, folder], capture_output=True, text=True, timeout=600, check=True
    )
    return dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("odd", only(("pipe",), ("/dev/zero", "pipe", "folder")))
@pytest.mark.parametrize("commands", [COMMANDS, CONFIGURATIONS], ids=["files", "configurations"])
def test_what_is_no_file_is_refused_with_a_sentence(tmp_path, odd, commands) -> None:
    for what, (status, reported) in answers(tmp_path, commands, odd).items():
        assert status == 2, what
        # Kernels may have to be compiled first, which is said.
        assert len([line for line in reported.splitlines() if "compiling" not in line]) == 1, what
        assert odd in reported, what
        assert "Traceback" not in reported, what


def test_arrays_that_unpack_to_more_than_any_input_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run, "MAX_INPUT_BYTES", 1 << 16)
    np.savez_compressed(tmp_path / "small.npz", x=np.zeros(1 << 17, np.uint8))
    assert (tmp_path / "small.npz").stat().st_size < 1 << 10
    with pytest.raises(QnnError, match="larger than 65,536 bytes"):
        run.read_arrays(tmp_path / "small.npz")
