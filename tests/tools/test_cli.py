"""The command line explains itself, and loads only what a command needs."""

import json
import subprocess
import sys

import pytest
import tiny

from isthmus.tools.cli import COMMANDS, main


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_every_option_is_explained(capsys, command):
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


def test_the_commands_are_listed(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command}" in text


LOADED = "import json, sys; from isthmus.tools.cli import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"


def loaded(*arguments):
    """The modules that a command loads."""
    script = f"{LOADED}print(); print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_the_version_is_told_without_loading_anything():
    assert not {"numpy", "logging", "isthmus.graph", "isthmus.backends", "isthmus.qnn"} & loaded("--version")


def test_a_plan_loads_neither_the_api_nor_what_only_running_needs(tmp_path):
    model = tiny.gate(tmp_path / "gate.onnx", 4)
    unwanted = {"isthmus.qnn", "isthmus.session", "asyncio", "numba", "llvmlite", "isthmus.frontends.tflite"}
    assert not unwanted & loaded("plan", str(model))
