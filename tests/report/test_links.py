"""The links of steps: a step follows those that compute what it reads, and names the blocks that it uses."""

import json

import numpy as np
import pytest
from onnx import helper
from support import tiny

from isthmus.tools.cli import main
from isthmus.tools.sample_models import networks


def described(capsys, *command):
    """Return the plan of a model as JSON prints it."""
    assert main(["plan", *map(str, command), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def branches(tmp_path):
    """Two branches of x that are joined along the outermost axis, and a sum that reads both and x."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], name="a"),
        helper.make_node("Softmax", ["x"], ["b"], name="b", axis=0),
        helper.make_node("Concat", ["a", "b"], ["ab"], name="ab", axis=0),
        helper.make_node("MatMul", ["ab", "w"], ["m"], name="m"),
        helper.make_node("Softmax", ["m"], ["y"], name="y"),
        helper.make_node("Softmax", ["m"], ["z"], name="z", axis=0),
    ]
    constants = {"w": np.ones((8, 8), np.float32)}
    return tiny.save(tmp_path / "branches.onnx", nodes, {"x": [4, 8]}, {"y": [8, 8], "z": [8, 8]}, constants)


@pytest.mark.parametrize("backend", ["cpu", "htp", "lpai"])
def test_steps_follow_those_that_compute_what_they_read(branches, capsys, backend) -> None:
    report = described(capsys, branches, "--backend", backend)
    order = report["order"]
    joins = [number for number, step in enumerate(order) if {"x"} == set(step["inputs"])]
    assert len(joins) == 2
    # The concatenation is no step: its operands are computed where it has them.
    [reader] = [number for number, step in enumerate(order) if set(joins) <= set(step["after"])]
    last = [step for step in order if step["outputs"]]
    assert sorted(name for step in last for name in step["outputs"]) == ["y", "z"]
    assert all(step["after"] == [reader] for step in last)


@pytest.mark.parametrize("limit", [(), ("--scratch-limit", "least")], ids=["whole", "tiles"])
@pytest.mark.parametrize("backend", ["cpu", "lpai"])
@pytest.mark.parametrize("network", ["camera_onnx", "wake_word_tflite"])
def test_every_block_is_written_before_it_is_read(tmp_path, capsys, network, backend, limit) -> None:
    path = tmp_path / f"model.{network.rpartition('_')[2]}"
    path.write_bytes(getattr(networks, network)())
    report = described(capsys, path, "--backend", backend, *limit)
    written = {number for number, each in enumerate(report["tensors"]) if each["first"] < 0}
    for number, step in enumerate(report["order"]):
        assert step["after"] or step["inputs"]
        assert all(other < number for other in step["after"])
        for kind in ("reads", "writes"):
            for row in (report["tensors"][each] for each in step[kind]):
                assert row["first"] <= number <= row["last"]
        assert written.issuperset(step["reads"])
        written.update(step["writes"])
    # Work space and tensors alike belong to a step.
    assert len(written) == len(report["tensors"])


def test_an_input_inside_scratch_is_read_from_its_block(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "model.onnx")
    report = described(capsys, model, "--backend", "lpai")
    first = report["order"][0]
    assert first["inputs"] == ["x"]
    assert any(report["tensors"][each]["first"] < 0 for each in first["reads"])
