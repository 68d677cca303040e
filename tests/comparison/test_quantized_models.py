"""Quantized models, compared with their float originals and with their runtimes on default inputs: no false alarm."""

from __future__ import annotations

import numpy as np
import pytest
from support import quantized_models, stimuli, zoo
from support.suites import long

import isthmus
from comparison import fault_models as faults
from isthmus.comparison.comparison import input_arrays
from isthmus.comparison.report import Verdict
from isthmus.comparison.subject import open_model
from isthmus.frontends import ModelSource

STATIC = ("kws_fp32", "mixed_ops", "silero_vad_16k", "nsnet2", "ppocr_cls", "ppocr_rec")
"""Models that ONNX Runtime's quantizer converts to fixed point as a whole, without damage."""
HYBRID = ("dtln_1", "dtln_2", "hand_recrop", "iris_landmark", "face_detection_short_range", "face_landmark")
"""Models of floats to which dynamic-range quantization is applied."""
SHORT = {("kws_fp32", "QInt8"), ("mixed_ops", "QUInt16"), "dtln_1"}


def original(key):
    try:
        return zoo.path(key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


def compare(path, key, against):
    return isthmus.compare(path, against, shapes=zoo.MODELS[key].shapes or None)


@pytest.mark.parametrize(
    ("key", "activations"),
    [case if case in SHORT else long(*case) for case in ((k, a) for k in STATIC for a in ("QInt8", "QUInt16"))],
)
@pytest.mark.parametrize("reference", ["float", "runtime"])
def test_a_statically_quantized_model_raises_no_alarm(tmp_path, key, activations, reference) -> None:
    source = original(key)
    path = tmp_path / "quantized.onnx"
    quantized_models.every_operation_qdq(source, stimuli.stimuli(key), activations, path)
    report = compare(path, key, source if reference == "float" else None)
    assert report.agrees, report.text()
    assert len(report.compared) >= 10


@pytest.mark.parametrize("key", [key if key in SHORT else long(key) for key in HYBRID])
@pytest.mark.parametrize("reference", ["float", "runtime"])
def test_a_hybrid_model_raises_no_alarm(tmp_path, key, reference) -> None:
    source = original(key)
    path = quantized_models.dynamic_range(source, tmp_path / "hybrid.tflite")
    report = compare(path, key, source if reference == "float" else None)
    assert report.agrees, report.text()
    assert len(report.compared) >= 40


@pytest.mark.parametrize("key", [key if key in SHORT else long(key) for key in HYBRID])
@pytest.mark.parametrize("factor", [1.5, 0.7])
def test_wrong_scales_of_hybrid_weights_are_named(tmp_path, key, factor) -> None:
    source = original(key)
    path = quantized_models.dynamic_range(source, tmp_path / "hybrid.tflite", factor)
    first = next(each for each in open_model(ModelSource(path)).operations if each.hybrid is not None)
    report = compare(path, key, source)
    assert [row.operation for row in report.suspects] == [first], report.text()


def test_a_quantized_file_of_the_zoo_agrees_with_its_float_original_and_counts_values_that_saturate() -> None:
    source, path = original("kws_fp32"), original("kws_qdq")
    report = compare(path, "kws_qdq", source)
    assert report.agrees, report.text()
    assert report.random_inputs == ("serving_default_input:0",)
    row = report.saturated[0]
    assert row.verdict is Verdict.SATURATES
    assert 0 < row.saturation.count < row.saturation.elements
    assert row.saturation.span == max(each.saturation.span for each in report.saturated)
    data = report.as_data()
    assert data["saturated"] == len(report.saturated) == sum(each["saturation"] is not None for each in data["tensors"])
    assert f"{len(report.saturated)} operations saturate: no fault" in report.text()
    assert f"{row.saturation.count:,} of {row.saturation.elements:,} values exceed" in report.text()


@pytest.mark.parametrize(("low", "high"), [(0.0, 0.5), (-8.0, 4.0)])
def test_random_inputs_fill_the_range_of_the_quantizer_that_reads_them(tmp_path, low, high) -> None:
    path, source = faults.quantized_relu(tmp_path / "quantized.onnx", low, high)
    x = input_arrays(open_model(ModelSource(path)).compose().graph, {}, 0)["x"]
    step = (high - low) / 255
    assert x.min() == pytest.approx(low, abs=6 * step)
    assert x.max() == pytest.approx(high, abs=6 * step)
    report = isthmus.compare(path, source)
    assert report.agrees, report.text()
    assert not report.saturated


def test_given_inputs_beyond_the_range_make_a_quantizer_wrong_and_say_how_many(tmp_path) -> None:
    path, source = faults.quantized_relu(tmp_path / "quantized.onnx", 0.0, 0.5)
    x = np.full((1, 8, 64), 0.25, np.float32)
    x[0, 0, :3] = 1
    report = isthmus.compare(path, source, inputs={"x": x})
    assert (report.first.operation.name, report.first.verdict) == ("quantize", Verdict.SATURATES)
    assert "DIFFERS first at quantize (QuantizeLinear): saturates" in report.text()
    assert "3 of 512 values exceed the range of its quantizer, 0 to 0.5, by up to 0.5; within it" in report.text()
    # Operations that read the saturated values are no suspects.
    assert [row.operation.name for row in report.suspects] == ["quantize"]
