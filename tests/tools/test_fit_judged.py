"""``isthmus fit --judge htp``: only what Qualcomm's compiler confirms is advised. It needs the vendor's package."""

from __future__ import annotations

import json

import pytest
from onnx import helper
from support import dlc_graphs, dlc_write, tiny, zoo
from support.suites import LONG

from isthmus.backends.vendor.library import is_installed
from isthmus.split.network import Network
from isthmus.split.onnx import OnnxFile
from isthmus.split.search import neighbours, splits
from isthmus.tools.cli import main

needs_package = pytest.mark.skipif(not is_installed(), reason="needs the package onnxruntime-qnn")
JUDGED = ["--judge", "htp", "--soc", "SM8750", "--level", "3"]


def chain(path, size: int):
    """Save a chain of convolutions and return its path."""
    import numpy as np

    rng = np.random.default_rng(0)
    constants = {f"w{n}": (rng.standard_normal((32, 32, 3, 3)) / 17).astype(np.float32) for n in range(4)}
    names = ["x", "a", "b", "c", "y"]
    nodes = [
        helper.make_node("Conv", [names[n], f"w{n}"], [names[n + 1]], pads=[1, 1, 1, 1], name=f"conv{n}")
        for n in range(4)
    ]
    dims = (1, 32, size, size)
    return tiny.save(path, nodes, {"x": dims}, {"y": dims}, constants)


def test_splits_differ_and_their_neighbours_differ_in_one_region(tmp_path) -> None:
    path = chain(tmp_path / "chain.onnx", 64)
    network: Network = OnnxFile(path.read_bytes(), path.name, tmp_path, {}).network
    found = list(splits(network, [network.peak * percent // 100 for percent in (90, 80, 70, 60)]))
    assert found
    assert len({each.regions for each in found}) == len(found)
    for near in neighbours(network, found[0]):
        assert len(set(found[0].regions) - set(near.regions)) == 1
        assert len(near.regions) - len(found[0].regions) in (-1, 0)


@needs_package
def test_a_model_that_spills_nothing_is_left_alone(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx")
    assert main(["fit", str(model), *JUDGED, "--out", str(tmp_path / "out.onnx")]) == 0
    assert "advised: the model as it is, at level 3; it spills nothing" in capsys.readouterr().out
    assert not (tmp_path / "out.onnx").exists()


@LONG
@needs_package
def test_the_file_that_is_advised_needs_what_the_judge_says(tmp_path, capsys) -> None:
    try:
        model, out = zoo.path("pose_detection"), tmp_path / "out.tflite"
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    capsys.readouterr()
    assert main(["fit", str(model), *JUDGED, "--vtcm", "2", "--json", "--out", str(out)]) == 0
    report = json.loads(capsys.readouterr().out)
    before, after = report["unsplit"], report["advised"]
    assert after["spill_fill"] < before["spill_fill"] * 3 // 4
    assert after["total_ram"] <= before["total_ram"]
    assert main(["device", str(out), "--soc", "SM8750", "--vtcm", "2", "--level", "3", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["spill_fill"], row["total_ram"]) == (after["spill_fill"], after["total_ram"])


@needs_package
def test_a_dlc_cannot_be_split(tmp_path, capsys) -> None:
    (tmp_path / "model.dlc").write_bytes(dlc_write.dlc([dlc_graphs.convolution("first")]))
    assert main(["fit", str(tmp_path / "model.dlc"), *JUDGED]) == 2
    assert "only .onnx and .tflite files can be split" in capsys.readouterr().err


@needs_package
def test_one_chip_is_judged_at_a_time(tmp_path, capsys) -> None:
    model = tiny.convolution(tmp_path / "conv.onnx")
    assert main(["fit", str(model), "--judge", "htp", "--soc", "SM8750,SM8650"]) == 2
    assert "one chip and one VTCM size at a time" in capsys.readouterr().err
