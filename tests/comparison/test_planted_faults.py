"""Faults planted in files and in kernels: the comparison names the operation, and the reduced model is small."""

from __future__ import annotations

import onnx
import pytest
from support.suites import sampled

import isthmus
from comparison import fault_models as faults
from isthmus.comparison.comparison import open_comparison
from isthmus.comparison.reduction import reduce_model
from isthmus.comparison.report import Verdict
from isthmus.frontends import ModelSource
from isthmus.graph import TensorType

MOST_NODES = 5

FILE_FAULTS = [
    # model, operation to be named, damage
    ("network", "conv1", faults.clipped("conv1.w")),
    ("network", "dw", faults.clipped("dw.w")),
    ("network", "conv2", faults.clipped("conv2.w")),
    ("network", "mm", faults.clipped("mm.w")),
    ("network", "norm", faults.clipped("norm.scale")),
    ("transformer", "f_proj", faults.clipped("f")),
    ("network", "turn", faults.attribute("turn", "perm", [0, 3, 2, 1])),
    ("network", "soft", faults.attribute("soft", "axis", 1)),
    ("network", "flip", faults.attribute("flip", "perm", [0, 1, 2])),
    ("network", "mean", faults.attribute("mean", "axes", [1])),
    ("network", "sub", faults.operands("sub", 1, 0)),
    ("network", "join", faults.operands("join", 1, 0)),
    ("transformer", "soft", faults.attribute("soft", "axis", 1)),
    ("quantized", "conv1.w/dequantize", faults.scaled("conv1.w", 1.5)),
    ("quantized", "mm.w/dequantize", faults.scaled("mm.w", 0.7)),
    ("quantized", "x/quantize", faults.scaled("x", 0.5)),
    ("quantized", "relu1.y/quantize", faults.scaled("relu1.y", 0.25)),
    ("quantized", "add.y/quantize", faults.scaled("add.y", 1.6)),
    ("quantized", "mm.y/quantize", faults.scaled("mm.y", 0.4)),
    ("quantized", "soft.y/quantize", faults.scaled("soft.y", 3.0)),
    ("quantized", "dw.y/quantize", faults.shifted("dw.y", 20)),
]
"""Faults in a file, which is compared with the file that it was made from."""

FLOAT_FAULTS = [
    ("relu1.y/quantize", faults.scaled("relu1.y", 0.25)),
    ("mm.y/quantize", faults.scaled("mm.y", 0.4)),
    ("conv1", faults.scaled("conv1.w", 1.5)),
    ("dw.y/quantize", faults.shifted("dw.y", 60)),
    ("conv2", faults.clipped("conv2.w/stored")),
]
"""Faults in a quantized file, which is compared with the float model."""

KERNEL_FAULTS = [
    ("network", "soft", "Softmax", faults.parameter(beta=0.5), False),
    ("network", "norm", "LayerNorm", faults.parameter(epsilon=0.5), False),
    ("network", "conv1", "Conv2d", faults.without_bias, False),
    ("network", "dw", "DepthWiseConv2d", faults.without_bias, False),
    ("network", "mix", "MatMul", faults.turned, False),
    ("network", "sub", "ElementWiseSubtract", faults.swap, False),
    ("network", "pool1", "PoolMax2d", faults.clamped, False),
    ("transformer", "scale", "ElementWiseMultiply", faults.clamped, False),
    ("transformer", "residual", "ElementWiseAdd", faults.clamped, False),
    ("quantized", "conv1", "Conv2d", faults.without_bias, True),
    ("quantized", "add", "ElementWiseAdd", faults.clamped, True),
    ("quantized", "pool2", "PoolAvg2d", faults.clamped, True),
]
"""Kernels that are wrong here, so that the model differs from its own runtime."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    network = faults.network(folder / "network.onnx")
    return {
        "network": network,
        "quantized": faults.quantized_network(folder / "quantized.onnx", network),
        "transformer": faults.transformer(folder / "transformer.onnx"),
    }


def check(path, against, expected):
    """The comparison names the operation, lists few that it is fused with, and the reduced model is small."""
    comparison = open_comparison(ModelSource(path), against, "cpu")
    report = comparison.run({}, seed=1)
    assert not report.agrees
    assert report.first.operation.name == expected, report.text()
    assert len(report.first.fused) < MOST_NODES
    reduction = reduce_model(comparison, report)
    assert expected in {each.name for each in reduction.operations}
    assert len(onnx.load_from_string(reduction.model).graph.node) == len(reduction.operations) <= MOST_NODES
    assert not reduction.report.agrees


@pytest.mark.parametrize(
    ("model", "expected", "damage"),
    sampled([pytest.param(*fault, id=f"{fault[0]}-{fault[1]}") for fault in FILE_FAULTS], 4),
)
def test_a_fault_in_a_file_is_found_by_comparing_with_the_original(models, tmp_path, model, expected, damage) -> None:
    broken = faults.damaged(tmp_path / "broken.onnx", models[model], damage)
    check(broken, models[model], expected)


@pytest.mark.parametrize(("expected", "damage"), FLOAT_FAULTS, ids=[fault[0] for fault in FLOAT_FAULTS])
def test_a_fault_in_a_quantized_file_is_found_by_comparing_with_the_float_model(
    models, tmp_path, expected, damage
) -> None:
    broken = faults.damaged(tmp_path / "broken.onnx", models["quantized"], damage)
    report = isthmus.compare(broken, models["network"], inputs=faults.calibration())
    assert expected in {report.first.operation.name, *(each.name for each in report.first.fused)}, report.text()


@pytest.mark.parametrize(("expected", "damage"), FLOAT_FAULTS, ids=[fault[0] for fault in FLOAT_FAULTS])
def test_on_random_inputs_a_fault_is_named_or_the_quantizer_that_saturates_most(
    models, tmp_path, expected, damage
) -> None:
    broken = faults.damaged(tmp_path / "broken.onnx", models["quantized"], damage)
    report = isthmus.compare(broken, models["network"], seed=5)
    named = report.first or report.saturated[0]
    assert expected in {named.operation.name, *(each.name for each in named.fused)}, report.text()
    assert f"{named.operation.name} ({named.operation.kind}): " in report.text()


@pytest.mark.parametrize("inputs", [None, faults.calibration()], ids=["random", "calibration"])
def test_a_quantized_model_agrees_with_the_float_model(models, inputs) -> None:
    report = isthmus.compare(models["quantized"], models["network"], inputs=inputs)
    assert report.agrees, report.text()
    assert len(report.compared) >= 20


@pytest.mark.parametrize(
    ("model", "expected", "op", "change", "in_8_bits"),
    sampled([pytest.param(*fault, id=f"{fault[0]}-{fault[2]}") for fault in KERNEL_FAULTS], 4),
)
def test_a_wrong_kernel_is_found_by_comparing_with_the_runtime(models, model, expected, op, change, in_8_bits) -> None:
    with faults.wrong_kernel(op, change, in_8_bits):
        check(models[model], None, expected)


@pytest.mark.parametrize("model", ["network", "quantized", "transformer"])
def test_without_a_fault_the_same_models_agree(models, model) -> None:
    report = open_comparison(ModelSource(models[model]), None, "cpu").run({}, seed=1)
    assert report.agrees, report.text()


def test_an_operation_that_is_wrong_only_in_the_model_is_named(models) -> None:
    # Alone it reads inputs of the graph; in the model it reads a tensor that is kept, which is an output.
    def wrong(step):
        return faults.clamped(step) if step.inputs[0].type is TensorType.APP_READ else {}

    with faults.wrong_kernel("ElementWiseSubtract", wrong):
        report = open_comparison(ModelSource(models["network"]), None, "cpu").run({}, seed=1)
    assert (report.first.operation.name, report.first.verdict) == ("sub", Verdict.IN_CONTEXT)


def test_an_operation_that_is_wrong_only_if_its_result_is_not_kept_is_named(models) -> None:
    def wrong(step):
        return faults.clamped(step) if step.outputs[0].type is TensorType.NATIVE else {}

    with faults.wrong_kernel("ElementWiseAdd", wrong):
        report = open_comparison(ModelSource(models["network"]), None, "cpu").run({}, seed=1)
    assert (report.first.operation.name, report.first.verdict) == ("add", Verdict.IN_CONTEXT)
