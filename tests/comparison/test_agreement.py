"""Correct models agree with their own runtime, with other backends and with other float types: no false alarm."""

from __future__ import annotations

import numpy as np
import pytest
from support import zoo
from support.suites import MODELS, long, only

import isthmus
from comparison import fault_models as faults

REFUSED_BY_LITERT = {"selfie_segmentation", "selfie_segmentation_landscape"}
"""Models with operators that LiteRT leaves to another library."""


@pytest.mark.parametrize("key", only(MODELS, [key for key in zoo.MODELS if key not in REFUSED_BY_LITERT]))
def test_a_correct_model_agrees_with_its_own_runtime(key) -> None:
    try:
        path = zoo.path(key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    model = zoo.MODELS[key]
    constants = {name: np.array(value) for name, value in model.constants.items()}
    report = isthmus.compare(path, shapes=model.shapes or None, constants=constants or None)
    assert report.agrees, report.text()
    assert len(report.compared) >= len(report.rows) // 4


@pytest.mark.parametrize(
    ("kind", "against"),
    [("network", "htp"), ("network", "fp16"), long("network", "bf16"), ("quantized", "htp"), long("network", "lpai"),
     long("network", "gpu"), long("quantized", "lpai"), long("quantized", "gpu"), long("quantized", "fp32")],
)  # fmt: skip
def test_a_correct_model_agrees_with_other_backends_and_types(tmp_path, kind, against) -> None:
    path = faults.network(tmp_path / "network.onnx")
    if kind == "quantized":
        path = faults.quantized_network(tmp_path / "quantized.onnx", path)
    try:
        report = isthmus.compare(path, against)
    except isthmus.QnnError as error:
        if against != "gpu":
            raise
        pytest.skip(str(error))
    assert report.agrees, report.text()


@pytest.mark.parametrize("kind", ["network", "quantized"])
def test_a_correct_model_agrees_with_the_vendors_library(tmp_path, kind) -> None:
    pytest.importorskip("onnxruntime_qnn")
    path = faults.network(tmp_path / "network.onnx")
    if kind == "quantized":
        path = faults.quantized_network(tmp_path / "quantized.onnx", path)
    report = isthmus.compare(path, "qnn-htp")
    assert report.agrees, report.text()
