"""16-bit models that ONNX Runtime's QNN provider moves to another layout: the same outcome as on the vendor's library.

The provider turns some nodes to NHWC before it asks the library for them. If the library then does not take them, the
session ends in an error, since nothing else can run them. Ours takes and refuses what the vendor's does.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alone import alone
from support.suites import LONG

pytest.importorskip("onnxruntime_qnn", reason="needs the package onnxruntime-qnn")
pytest.importorskip("onnx")

TYPES = ("uint16", "int16")
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "depthwise": ("Conv", {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise with a stride": ("Conv", {"group": 4, "strides": [2, 2]}),
    "average pool": ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "global average pool": ("GlobalAveragePool", {}),
    "largest of a window": ("MaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "resize to the nearest": (
        "Resize",
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    "linear resize": ("Resize", {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
}
CASES = [f"{name}, {dtype}" for name in OPERATORS for dtype in TYPES]
NHWC = "moved to NHWC and not taken"
STEP = 4 / 65535
"""The scale of the results."""


def saved(case: str, file: Path) -> Path:
    """Write the model of a case: one operator on activations of 16 bits, between quantizers."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    name, _, dtype = case.rpartition(", ")
    op, attributes = OPERATORS[name]
    zero = np.array(32768 if dtype == "uint16" else 0, dtype)
    constants = {"scale": np.float32(STEP), "zero": zero}
    operands = {"Conv": ["w"], "Resize": ["", "sizes"]}.get(op, [])
    if op == "Resize":
        constants["sizes"] = np.float32([1, 1, 2, 2])
    nodes = []
    if op == "Conv":
        weights = np.random.default_rng(5).integers(-127, 128, (4, 1, 3, 3))
        constants |= {"wq": weights.astype(np.int8), "ws": np.float32(1 / 900), "wz": np.int8(0)}
        nodes.append(helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"]))
    nodes += [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "scale", "zero"], ["xd"]),
        helper.make_node(op, ["xd", *operands], ["yd"], **attributes),
        helper.make_node("QuantizeLinear", ["yd", "scale", "zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "scale", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 4, 8, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), key) for key, value in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(onnx.shape_inference.infer_shapes(made), file)
    return file


def outcomes(library: str) -> dict[str, list[Any]]:
    """Run all cases on a library; return for each what came of it and, if it ran, how far results are from the CPU's.

    Called in a process of its own.
    """
    from support import oracles

    from capi import ort_provider

    feeds = {"x": np.random.default_rng(3).uniform(-1.9, 1.9, (1, 4, 8, 8)).astype(np.float32)}
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            model = saved(case, Path(folder, "model.onnx"))
            expected = oracles.onnx_answers(model, feeds, fuse=False)["y"]
            try:
                session = ort_provider.session(model, library)
                mine, total = ort_provider.assigned(session)
                [result] = session.run(["y"], feeds)
            except Exception as problem:
                text = str(problem)
                found[case] = [NHWC if "inserted using the NHWC format" in text else text[-300:], None]
            else:
                found[case] = [f"{mine} of {total} nodes", float(np.abs(result - expected).max())]
    return found


@functools.cache
def outcomes_of(library: Path) -> dict[str, list[Any]]:
    """Ask once for each library."""
    answer: dict[str, list[Any]] = alone(__file__, "outcomes", str(library), seconds=600)
    return answer


@LONG
@pytest.mark.parametrize("case", CASES)
def test_a_16_bit_model_that_is_moved_to_nhwc_has_the_outcome_of_the_vendors_library(
    case: str, libraries: Path
) -> None:
    from capi import ort_provider

    ours, distance = outcomes_of(libraries / "libQnnHtp.so")[case]
    theirs, _ = outcomes_of(ort_provider.vendor_library("QnnHtp"))[case]
    assert ours == theirs
    if distance is not None:
        assert distance <= 2.5 * STEP


@LONG
def test_both_outcomes_are_among_the_cases(libraries: Path) -> None:
    found = {case: outcome for case, (outcome, _) in outcomes_of(libraries / "libQnnHtp.so").items()}
    assert NHWC in found.values()
    assert all(found[f"{name}, uint16"] != NHWC for name in OPERATORS)
