"""The peers of bench/networks.py compute what ONNX Runtime does, and one that does not is left out of the race."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest

from support import oracles, tiny, zoo

BENCH = Path(__file__).parents[2] / "bench"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a program of the folder bench; tests have a package called networks too."""
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    spec.loader.exec_module(module)
    return module


class Wrong(oracles.OnnxRuntime):
    """A runtime whose results are wrong by a fiftieth."""

    def results(self) -> oracles.Feeds:
        return {name: value * np.float32(1.02) for name, value in super().results().items()}


class Crashing(oracles.OnnxRuntime):
    """A runtime that cannot be given inputs."""

    def prepare(self, feeds: Mapping[str, oracles.Array]) -> None:
        raise ValueError(f"cannot take {', '.join(feeds)}")


def test_peers_that_are_wrong_or_fail_are_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = load("networks", monkeypatch)
    path = tiny.convolution(tmp_path / "network.onnx")
    peers = {"ONNX Runtime": oracles.OnnxRuntime, "wrong": Wrong, "crashing": Crashing}
    monkeypatch.setattr(networks, "_peers", lambda: peers)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    field = networks.field_of(path, feeds, 1)
    try:
        assert [each.name for each in field.contestants] == ["Isthmus", "ONNX Runtime"]
        assert field.absent == {"wrong": "its results are wrong by 2e-02", "crashing": "cannot take x"}
        assert field.errors["wrong"] == pytest.approx(0.02, rel=1e-4)
        assert field.errors["Isthmus"] < 1e-5
    finally:
        field.contestants[0].close()


@pytest.mark.parametrize("peer", ["MNN", "ncnn"])
def test_a_mobile_runtime_agrees_with_onnx_runtime(peer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load("mobile_runtimes", monkeypatch).found()
    if peer not in found:
        pytest.skip(f"needs {peer} and its converter")
    path = tiny.convolution(tmp_path / "network.onnx")
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    results = found[peer](path).run(feeds)
    for name, value in oracles.onnx_answers(path, feeds).items():
        np.testing.assert_allclose(results[name], value, rtol=0, atol=1e-4)


@pytest.mark.parametrize("runtime", ["MNN", "NCNN"])
def test_a_mobile_runtime_refuses_other_numbers_than_float32(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mobile_runtimes = load("mobile_runtimes", monkeypatch)
    model = onnx.load(tiny.convolution(tmp_path / "network.onnx"))
    for constant in model.graph.initializer:
        narrow = onnx.numpy_helper.to_array(constant).astype(np.float16)
        constant.CopyFrom(onnx.numpy_helper.from_array(narrow, constant.name))
    path = tmp_path / "narrow.onnx"
    onnx.save(model, path)
    with pytest.raises(zoo.Unavailable, match="float32"):
        getattr(mobile_runtimes, runtime)(path)
