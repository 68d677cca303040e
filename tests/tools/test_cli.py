"""The command line explains itself, and loads only what a command needs."""

import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper
from support import tiny
from support.suites import long

from isthmus.tools.cli import main
from isthmus.tools.commands import COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_every_option_is_explained(capsys, command) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: isthmus {command} ")
    assert f"{COMMANDS[command][1:]}." in " ".join(text.split())
    lines = text[text.index("options:") :].partition("\n\n")[0].splitlines()[1:]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("  -"):
            explained = "  " in line.strip() or following.startswith("      ")
            assert explained, f"{line.strip()} is not explained"


def test_the_commands_are_listed(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command} " in text


LOADED = "import json, sys; from isthmus.tools.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"


def loaded(*arguments):
    """The modules that a command loads."""
    script = f"{LOADED}print(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_version_is_printed_without_loading_anything() -> None:
    assert not {"numpy", "logging", "isthmus.graph", "isthmus.backends", "isthmus.qnn"} & loaded("--version")


def test_a_plan_loads_neither_the_api_nor_what_only_running_needs(tmp_path) -> None:
    model = tiny.gate(tmp_path / "gate.onnx", 4)
    unwanted = {"isthmus.qnn", "isthmus.session", "asyncio", "numba", "llvmlite", "isthmus.frontends.tflite"}
    assert not unwanted & loaded("plan", str(model))


@pytest.mark.parametrize("streams", [long(">&-"), long("<&- >&-"), "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["plan", "run --backend htp"])
def test_closed_standard_streams_are_no_error(tmp_path, command, streams) -> None:
    model = tiny.gate(tmp_path / "gate.onnx", 4)
    # Kernels that are compiled are a line on standard error.
    assert main([*command.split(), str(model)]) == 0
    line = f'"{sys.executable}" -m isthmus {command} "{model}" {streams}'
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert (done.returncode, without_times(done.stderr)) == (0, "")


def without_times(errors):
    """Return what a command printed on standard error, without the line that says how long a plan took."""
    return re.sub(r"^  planned in .*\n", "", errors)


@pytest.mark.parametrize("module", ["argparse", "isthmus.errors", "isthmus.tools.plan", "numpy"])
def test_an_interrupt_while_modules_are_loaded_is_one_line(module) -> None:
    script = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from isthmus.tools.cli import main\n"
        "sys.exit(main(['plan', 'model.onnx']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "isthmus: interrupted\n")


def test_an_interrupt_is_not_lost_to_an_extension_module_that_is_being_loaded() -> None:
    # As numpy does it: whatever happens while it is loaded is an ImportError.
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'numpy':\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "                sum(range(1000))\n"
        "            except KeyboardInterrupt:\n"
        "                raise ImportError('numpy could not be loaded') from None\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from isthmus.tools.cli import main\n"
        "sys.exit(main(['run', 'model.onnx']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "isthmus: interrupted\n")


def test_an_interrupt_that_python_drops_in_a_callback_comes_again() -> None:
    script = (
        "import sys, time, weakref\n"
        "class Dropped: pass\n"
        "def interrupt(reference): raise KeyboardInterrupt\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'isthmus.tools.examples':\n"
        "            dropped = Dropped()\n"
        "            reference = weakref.ref(dropped, interrupt)\n"
        "            del dropped\n"
        "            time.sleep(600)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from isthmus.tools.cli import main\n"
        "sys.exit(main(['plan', 'model.onnx']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (130, "isthmus: interrupted\n")


def test_names_that_are_too_long_are_one_line_that_ends_with_the_reason(tmp_path, capsys) -> None:
    model = str(tiny.gate(tmp_path / "gate.onnx", 4))
    assert main(["run", model, "--outputs", "x" * 300]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith("File name too long (300 bytes)")
    assert len(line) < 220


def test_numbers_of_a_model_that_overflow_are_no_warning(tmp_path) -> None:
    """The weights of a convolution are multiplied with the scales behind it: beyond what a float holds, here."""
    model = tiny.save(
        tmp_path / "large.onnx",
        [
            helper.make_node("Conv", ["x", "w"], ["c"]),
            helper.make_node("Mul", ["c", "s"], ["y"]),
        ],
        {"x": [1, 1, 4, 4]}, {"y": [1, 1, 4, 4]},
        {"w": np.full((1, 1, 1, 1), 3e38, np.float32), "s": np.full((1, 1, 1, 1), 3e38, np.float32)},
    )  # fmt: skip
    command = [sys.executable, "-W", "error", "-m", "isthmus", "plan", str(model)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, without_times(done.stderr)) == (0, "")


def test_a_reader_that_closes_the_output_ends_a_command_like_its_signal() -> None:
    """Not with status 1, by which commands answer no."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "isthmus", "completion", "bash"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_an_error_of_the_system_names_the_fault_that_caused_it(tmp_path) -> None:
    path = tiny.save(tmp_path / "relu.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, {"y": [4]})
    command = [sys.executable, "-m", "isthmus", "run", str(path)]
    done = subprocess.run(command, env={**os.environ, "ISTHMUS_FAULTS": "fds@1"}, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Too many open files (fault 'fds@1' was injected)" in done.stderr
    assert len(done.stderr.splitlines()) == 1
