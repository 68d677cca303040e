"""ONNX Runtime's provider runs many models on our library in every way: plain, cached, in one context, in bound memory.

No model fails here that works with the vendor's library: where ours fails, that one is asked too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clients_report import Results, needs
from support import stimuli, zoo

CLIENT = "ONNX Runtime QNN provider"
TESTS = Path(__file__).parents[1]
ZOO = [model.key for model in zoo.MODELS.values() if model.kind == "onnx"]
QUANTIZED = {
    f"{key} {activations} {weights}": (key, activations, weights)
    for key in ("kws_fp32", "mixed_ops", "silero_vad_16k", "nsnet2", "ppocr_cls")
    for activations, weights in (("QUInt8", "QUInt8"), ("QUInt16", "QInt8"))
}
"""Models that ONNX Runtime's own tools quantize for QNN."""
DECODERS = ("ar32_cl512", "ar1_cl512")
MODELS = [*ZOO, *QUANTIZED, *DECODERS]
WAYS = ("plain", "embedded cache", "separate cache", "shared context", "bound, shared memory")
TOLERANCE = {"fp32": 1e-3, "quantized": 0.1}
"""Quantized models are compared with a CPU that computes them in floats, as the provider's tests do."""

pytestmark = needs("onnxruntime_qnn", "onnx")


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Path, Path]]:
    """Makes a model and the file of its inputs."""
    from capi import ort_provider, ort_quantizer

    def make(name: str) -> tuple[Path, Path]:
        if name in DECODERS:
            monkeypatch.syspath_prepend(TESTS.parent / "examples" / "decoder")
            from model import Decoder, Shape

            file = Decoder(tmp_path, Shape()).write(int(name.split("_")[0][2:]), 512)
            feeds = {value.name: _elements(value) for value in _inputs(file)}
        else:
            key = QUANTIZED[name][0] if name in QUANTIZED else name
            try:
                file = ort_provider.fixed(key, tmp_path)
            except zoo.Unavailable as problem:
                pytest.skip(str(problem))
            if name in QUANTIZED:
                file = ort_quantizer.quantized(key, tmp_path, *QUANTIZED[name][1:])
            names = {value.name for value in _inputs(file)}
            feeds = {n: value for n, value in stimuli.stimuli(key)[0].items() if n in names}
        np.savez(tmp_path / "feed.npz", **feeds)
        return file, tmp_path / "feed.npz"

    return make


def _inputs(file: Path) -> Any:
    import onnx

    return onnx.load(str(file), load_external_data=False).graph.input


def _elements(value: Any) -> np.ndarray:
    """Random elements of an input: tokens, or stored numbers."""
    import onnx

    kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
    dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    return np.random.default_rng(0).integers(0, min(96, np.iinfo(kind).max), dims).astype(kind)


def outcomes(backend: Path, model: Path, feeds: Path) -> dict[str, Any]:
    """Return what `provider_model.py` says of each way to run a model; a way that ends the process has that outcome."""
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    found: dict[str, Any] = {}
    while left := [way for way in WAYS if way not in found]:
        done = subprocess.run(
            [sys.executable, Path(__file__).with_name("provider_model.py"), backend, model, feeds, *left],
            env={**os.environ, "PYTHONPATH": path, "LD_LIBRARY_PATH": str(backend.parent)},
            capture_output=True, text=True, timeout=1200,
        )  # fmt: skip
        # QNN's libraries print lines of their own.
        for line in done.stdout.splitlines():
            with suppress(ValueError):
                found |= json.loads(line)
        if done.returncode:
            found.setdefault(next((way for way in left if way not in found), left[-1]), f"ended with {done.returncode}")
    return found


def failed(ways: dict[str, Any], limit: float) -> dict[str, str]:
    """The ways that failed or gave other results, with the reason."""
    bad = {way: what for way, what in ways.items() if not isinstance(what, float) or not what <= limit}
    return {way: f"differs by {what:.2g}" if isinstance(what, float) else what for way, what in bad.items()}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_in_every_way_in_which_it_runs_on_the_vendors_library(
    name: str, ready: Callable[[str], tuple[Path, Path]], libraries: Path, results: Results
) -> None:
    from capi.ort_provider import vendor_library

    results.used("onnxruntime", "onnxruntime-qnn")
    model, feeds = ready(name)
    quantized = name in QUANTIZED or name in DECODERS or zoo.MODELS[name].numerics == "int8"
    limit = TOLERANCE["quantized" if quantized else "fp32"]
    ours = outcomes(libraries / "libQnnHtp.so", model, feeds)
    wrong = failed(ours, limit)
    if not wrong:
        results.row(name, ways=len(ours))
        return
    theirs = failed(outcomes(vendor_library("QnnHtp"), model, feeds), limit)
    alike = theirs.keys() >= wrong.keys()
    where = "with the vendor's library too" if alike else "only here"
    ways: dict[str, list[str]] = {}
    for way, what in wrong.items():
        ways.setdefault(what.partition(". ")[0], []).append(way)
    # Where all ways fail alike, the message alone says it.
    messages = (what if len(each) == len(WAYS) else f"{what} ({', '.join(each)})" for what, each in ways.items())
    results.row(name, f"{where}: {'; '.join(messages)}")
    assert alike, (wrong, theirs)
