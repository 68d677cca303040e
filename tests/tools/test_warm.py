"""``isthmus warm`` compiles what a model needs, so that a later run compiles nothing."""

import json
import os
import subprocess
import sys

import pytest
from onnx import helper
from support import tiny

from isthmus.tools.cli import main


@pytest.fixture
def model(tmp_path):
    return tiny.save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [2]}, {"y": [2]})


def test_a_run_after_warm_compiles_nothing(model, tmp_path) -> None:
    environment = {**os.environ, "ISTHMUS_CACHE_DIR": str(tmp_path / "cache")}

    def isthmus(command):
        arguments = [sys.executable, "-m", "isthmus", command, str(model)]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)

    warm = isthmus("warm")
    assert "compiling" in warm.stderr
    assert warm.stdout.startswith(f"{model} on cpu: ready after ")
    assert "compiling" not in isthmus("run").stderr


def test_models_and_backends_are_reported_as_json(model, capsys) -> None:
    assert main(["warm", str(model), "--backend", "cpu", "--backend", "lpai", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["models"]
    assert [(entry["model"], entry["backend"]) for entry in report] == [(str(model), "cpu"), (str(model), "lpai")]
    assert all(entry["seconds"] > 0 for entry in report)


def test_a_wrong_backend_is_refused_before_anything_is_compiled(model, capsys) -> None:
    assert main(["warm", str(model), "--backend", "cpu", "--backend", "cpv"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("isthmus warm: [")


def test_a_missing_model_is_one_line(tmp_path, capsys) -> None:
    assert main(["warm", str(tmp_path / "none.onnx")]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
