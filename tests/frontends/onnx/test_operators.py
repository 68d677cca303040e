"""Operators give ONNX Runtime's answers, in the forms that old and new operator sets write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from frontends.onnx.graphs import check, convert, expected, floats, interpret, model, node, operations
from isthmus import Session
from isthmus.errors import QnnError

RNG = np.random.default_rng(1)


def weights(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def single(
    op: str, dims: tuple[int, ...], opset: int, constants: dict[str, Any] | None = None, **attributes: Any
) -> ModelProto:
    """A model of one node: input x, then the constants; `-` keys are absent operands."""
    names = " ".join("-" if name.startswith("-") else name for name in constants or {})
    given = {name: value for name, value in (constants or {}).items() if not name.startswith("-")}
    return model([node(op, f"x {names}", "y", **attributes)], {"x": floats(*dims)}, "y", given, opset)


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


VERSIONS: dict[str, ModelProto] = {
    "Squeeze-11": single("Squeeze", (1, 3, 1), 11, axes=[0, 2]),
    "Squeeze-13": single("Squeeze", (1, 3, 1), 13, {"axes": i64(0, -1)}),
    "Squeeze-all": single("Squeeze", (1, 3, 1), 13),
    "Unsqueeze-11": single("Unsqueeze", (3, 4), 11, axes=[0, 3]),
    "Unsqueeze-13": single("Unsqueeze", (3, 4), 13, {"axes": i64(-1, 1)}),
    "Clip-6": single("Clip", (3, 4), 10, min=-0.5, max=0.5),
    "Clip-11": single("Clip", (3, 4), 12, {"low": np.float32(-0.5), "high": np.float32(0.25)}),
    "Clip-low": single("Clip", (3, 4), 13, {"low": np.float32(0.1)}),
    "Clip-high": single("Clip", (3, 4), 13, {"-": None, "high": np.float32(0.1)}),
    "Pad-2": single("Pad", (2, 3), 10, pads=[0, 1, 2, 0], value=1.5),
    "Pad-11": single("Pad", (2, 3), 11, {"pads": i64(0, 1, 2, 0), "value": np.float32(-2)}),
    "Pad-18": single("Pad", (2, 3), 18, {"pads": i64(1, 2), "value": np.float32(3), "axes": i64(-1)}),
    "Pad-edge": single("Pad", (2, 3), 13, {"pads": i64(1, 1, 1, 1)}, mode="edge"),
    "Pad-negative": single("Pad", (4, 5), 13, {"pads": i64(-1, 2, 0, -2)}),
    "Pad-wrap": single("Pad", (4, 5), 19, {"pads": i64(1, 2, 0, 3)}, mode="wrap"),
    "Slice-1": single("Slice", (4, 5), 9, axes=[1], starts=[-3], ends=[100]),
    "Slice-10": single("Slice", (4, 5), 10, {"s": i64(3, 4), "e": i64(-9, 0), "a": i64(0, 1), "t": i64(-1, -2)}),
    "Split-11": model(
        [node("Split", "x", "y z", axis=1, split=[2, 3])], {"x": floats(2, 5)}, "y z", opset=11
    ),
    "Split-13": model(
        [node("Split", "x parts", "y z", axis=-1)], {"x": floats(2, 5)}, "y z", {"parts": i64(1, 4)}, 13
    ),
    "Split-18": model([node("Split", "x", "y z w", num_outputs=3)], {"x": floats(5, 2)}, "y z w", opset=18),
    "ReduceSum-11": single("ReduceSum", (2, 3, 4), 11, axes=[1], keepdims=0),
    "ReduceSum-13": single("ReduceSum", (2, 3, 4), 13, {"axes": i64(-1, 0)}, keepdims=0),
    "ReduceSum-noop": single("ReduceSum", (2, 3), 13, noop_with_empty_axes=1),
    "ReduceMean-18": single("ReduceMean", (2, 3, 4), 18, {"axes": i64(1)}),
    "ReduceL2": single("ReduceL2", (2, 3, 4), 13, axes=[1, 2]),
    "ReduceLogSumExp": single("ReduceLogSumExp", (2, 3, 4), 13, axes=[1], keepdims=0),
    "Dropout-7": single("Dropout", (3, 4), 7, ratio=0.5),
    "Dropout-13": single("Dropout", (3, 4), 13, {"ratio": np.float32(0.5)}),
    "TopK-9": model([node("TopK", "x", "y z", k=2, axis=1)], {"x": floats(3, 5)}, "y z", opset=9),
    "TopK-11": model(
        [node("TopK", "x k", "y z", axis=0, largest=0)], {"x": floats(5, 3)}, "y z", {"k": i64(3)}, 11
    ),
    "MaxPool-indices": model(
        [node("MaxPool", "x", "y z", kernel_shape=[3, 2], pads=[1, 1, 1, 0], strides=[2, 1])],
        {"x": floats(2, 3, 6, 5)}, "y z", opset=12,
    ),
    "MaxPool-indices-by-column": model(
        [node("MaxPool", "x", "y z", kernel_shape=[2, 2], dilations=[1, 2], storage_order=1)],
        {"x": floats(1, 2, 5, 6)}, "y z", opset=12,
    ),
    "MaxPool-indices-one-axis": model(
        [node("MaxPool", "x", "y z", kernel_shape=[3], pads=[2, 2])], {"x": floats(2, 3, 7)}, "y z", opset=12
    ),
    "Softmax-11": single("Softmax", (2, 3, 4), 11, axis=1),
    "Softmax-13": single("Softmax", (2, 3, 4), 13, axis=1),
    "LogSoftmax-11": single("LogSoftmax", (2, 3, 4), 11),
    "Hardmax-11": single("Hardmax", (2, 3, 4), 11),
    "Hardmax-13": single("Hardmax", (2, 3, 4), 13, axis=1),
    "Upsample-7": single("Upsample", (1, 2, 3, 4), 7, scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"),
    "Upsample-9": single("Upsample", (1, 2, 3, 4), 9, {"scales": np.float32([1, 1, 2, 2])}, mode="linear"),
    "Resize-10": single("Resize", (1, 2, 4, 4), 10, {"scales": np.float32([1, 1, 1.5, 0.5])}, mode="nearest"),
    "Resize-sizes": single(
        "Resize", (1, 2, 4, 4), 13, {"-r": None, "-s": None, "sizes": i64(1, 2, 7, 3)}, mode="linear"
    ),
    "Resize-fractional": single(
        "Resize", (1, 2, 5, 5), 13, {"-r": None, "scales": np.float32([1, 1, 0.7, 1.3])}, mode="cubic"
    ),
    "Resize-one-axis": single(
        "Resize", (2, 3, 4), 18, {"-r": None, "scales": np.float32([2.0])}, mode="linear", axes=[2]
    ),
    "BatchNormalization-7": single(
        "BatchNormalization", (2, 3, 4), 7, {n: np.abs(weights(3)) for n in "abcd"}, epsilon=1e-3
    ),
    "Gelu-tanh": single("Gelu", (3, 4), 20, approximate="tanh"),
    "Gelu": single("Gelu", (3, 4), 20),
    "Pow-2": single("Pow", (3, 4), 13, {"e": np.float32(2)}),
    "Pow-int": single("Pow", (3, 4), 13, {"e": np.int64(3)}),
    "ThresholdedRelu": single("ThresholdedRelu", (3, 4), 13, alpha=0.3),
    "Celu": single("Celu", (3, 4), 13, alpha=0.7),
    "Selu": single("Selu", (3, 4), 13),
    "Mish": single("Mish", (3, 4), 18),
    "HardSigmoid": single("HardSigmoid", (3, 4), 13, alpha=0.3),
    "Shrink": single("Shrink", (3, 4), 13, bias=0.1, lambd=0.4),
    "Swish": single("Swish", (3, 4), 24, alpha=0.5),
    "Swish-one": single("Swish", (3, 4), 24),
    "Flatten": single("Flatten", (2, 3, 4), 13, axis=-1),
    "Trilu": single("Trilu", (2, 4, 5), 14, {"k": i64(1).reshape(())}, upper=0),
    "CumSum": single("CumSum", (3, 4), 14, {"axis": np.int64(1)}, exclusive=1, reverse=1),
    "ArgMax-last": single("ArgMax", (3, 4), 13, axis=1, select_last_index=1, keepdims=0),
    "LayerNormalization": model(
        [node("LayerNormalization", "x s b", "y m i", axis=1)], {"x": floats(2, 3, 4)}, "y m i",
        {"s": weights(3, 4), "b": weights(3, 4)},
    ),
    "LayerNormalization-leading-ones": model(
        [node("LayerNormalization", "x s b", "y")], {"x": floats(2, 3, 4)}, "y",
        {"s": weights(1, 1, 4), "b": weights(1, 1, 4)},
    ),
    "LayerNormalization-stretched": model(
        [node("LayerNormalization", "x s b", "y", axis=1)], {"x": floats(2, 3, 4)}, "y",
        {"s": weights(1, 3, 1), "b": weights(4)},
    ),
    "GroupNormalization-18": single(
        "GroupNormalization", (2, 6, 3, 4), 18, {"s": weights(2), "b": weights(2)}, num_groups=2
    ),
    "GroupNormalization-21": single(
        "GroupNormalization", (2, 6, 3, 4), 21, {"s": weights(6), "b": weights(6)}, num_groups=2
    ),
    "GroupNormalization-21-single": single(
        "GroupNormalization", (2, 6, 3, 4), 21, {"s": weights(6), "b": weights(6)}, num_groups=1
    ),
    "InstanceNormalization": single("InstanceNormalization", (2, 3, 4, 4), 13, {"s": weights(3), "b": weights(3)}),
    "LpNormalization": single("LpNormalization", (3, 4), 13, axis=0, p=1),
    "LRN": single("LRN", (1, 6, 3, 3), 13, size=5, alpha=0.5, beta=0.6, bias=2.0),
    "DepthToSpace-CRD": single("DepthToSpace", (1, 8, 2, 3), 13, blocksize=2, mode="CRD"),
    "SpaceToDepth": single("SpaceToDepth", (1, 2, 4, 6), 13, blocksize=2),
    "GatherElements": single("GatherElements", (3, 4), 13, {"i": i64(-1, 0, 2, 1).reshape(2, 2)}, axis=1),
    "GatherND": single("GatherND", (3, 4, 2), 13, {"i": i64(0, -1, 2, 1).reshape(2, 2)}),
    "ScatterElements": single(
        "ScatterElements", (3, 4), 16, {"i": i64(1, 3).reshape(1, 2), "u": weights(1, 2)}, axis=1, reduction="add"
    ),
    "ScatterND": single("ScatterND", (3, 4), 13, {"i": i64(2, 0).reshape(2, 1), "u": weights(2, 4)}),
    "Tile": single("Tile", (2, 3), 13, {"r": i64(2, 3)}),
    "Expand": single("Expand", (3, 1), 13, {"s": i64(2, 1, 4)}),
    "Compress": single("Compress", (3, 4), 13, {"c": np.array([True, False, True])}, axis=0),
    "Compress-flat": single("Compress", (3, 4), 13, {"c": np.array([True, False, True, False, False, True])}),
}  # fmt: skip


@pytest.mark.parametrize("name", VERSIONS)
def test_operator(name: str) -> None:
    check(VERSIONS[name], 1e-4)


def of(
    kind: int, op: str, dims: tuple[int, ...], opset: int, constants: dict | None = None, **attributes: Any
) -> ModelProto:
    """`single` of another element type."""
    made = single(op, dims, opset, constants, **attributes)
    made.graph.input[0].type.tensor_type.elem_type = kind
    return made


I32, U8, BOOL = TensorProto.INT32, TensorProto.UINT8, TensorProto.BOOL
BYTES = RNG.integers(0, 255, (4, 3, 3, 3)).astype(np.uint8)
LARGER = {"-roi": None, "scales": np.float32([1, 1, 2.5, 0.5])}

RARE: dict[str, ModelProto] = {
    "Clip of integers": of(I32, "Clip", (3, 4), 13, {"low": np.int32(1), "high": np.int32(5)}),
    "Clip from above and below": single("Clip", (3, 4), 13, {"low": np.float32(0.5), "high": np.float32(-0.5)}),
    "Clip to one side by an attribute": single("Clip", (3, 4), 10, max=0.25),
    "Clip to nothing": single("Clip", (3, 4), 10),
    "Clip at zero": single("Clip", (3, 4), 13, {"low": np.float32(0)}),
    "Clip by limits known at run time": model(
        [node("Clip", "x low high", "y")], {"x": floats(3, 4), "low": floats(), "high": floats()}, "y"
    ),
    "Relu of integers": of(I32, "Relu", (3, 4), 14),
    "Softsign": single("Softsign", (3, 4), 13),
    "Celu": single("Celu", (3, 4), 13, alpha=0.7),
    "ThresholdedRelu": single("ThresholdedRelu", (3, 4), 13, alpha=0.3),
    "IsInf of one sign": single("IsInf", (3, 4), 13, detect_negative=0),
    "Dropout with its mask": model([node("Dropout", "x", "y m")], {"x": floats(3, 4)}, "y m", opset=13),
    "Mean of three": model([node("Mean", "x z w", "y")], {n: floats(3, 4) for n in "xzw"}, "y"),
    "Pow to a root": single("Pow", (3, 4), 13, {"p": np.float32(2)}),
    "Pow of a higher rank": single("Pow", (4,), 13, {"p": np.float32([[2]])}),
    "ReduceL2 of integers": of(I32, "ReduceL2", (3, 4), 13, axes=[1]),
    "ReduceMax of bools": of(BOOL, "ReduceMax", (3, 4), 20, {"a": i64(1)}),
    "ReduceLogSumExp of nothing": single("ReduceLogSumExp", (3, 4), 18, noop_with_empty_axes=1),
    "ReduceLogSumExp kept": single("ReduceLogSumExp", (2, 3, 4), 18, {"a": i64(0, 2)}),
    "ArgMax of the last": of(I32, "ArgMax", (3, 8), 13, axis=1, select_last_index=1),
    "ArgMin of the last, dropped": of(I32, "ArgMin", (3, 8), 13, axis=0, keepdims=0, select_last_index=1),
    "BatchNormalization of a vector of batches": single(
        "BatchNormalization", (5, 3), 15, {n: np.abs(weights(3)) for n in "abcd"}
    ),
    "LayerNormalization without a bias": single("LayerNormalization", (2, 3, 4), 17, {"s": weights(4)}),
    "LayerNormalization with its mean": model(
        [node("LayerNormalization", "x s", "y m")], {"x": floats(2, 3, 4)}, "y m", {"s": weights(4)}
    ),
    "MeanVarianceNormalization": single("MeanVarianceNormalization", (2, 3, 4, 4), 13),
    "ReverseSequence": single("ReverseSequence", (4, 3, 2), 13, {"n": i64(1, 4, 2)}),
    "ReverseSequence by batch": single(
        "ReverseSequence", (3, 4, 2), 13, {"n": i64(1, 4, 2)}, batch_axis=0, time_axis=1
    ),
    "Pad of integers": of(U8, "Pad", (2, 3), 13, {"p": i64(0, 1, 2, 0), "v": np.uint8(7)}),
    "Pad of a single side": single("Pad", (2, 3), 13, {"p": i64(0, 0, 0, 2)}),
    "Pad by nothing": single("Pad", (2, 3), 13, {"p": i64(0, 0, 0, 0)}),
    "Concat with nothing in it": model(
        [node("Concat", "x z", "y", axis=1)], {"x": floats(2, 3), "z": floats(2, 0)}, "y"
    ),
    "Tile once": single("Tile", (2, 3), 13, {"r": i64(1, 1)}),
    "Reshape with zeros": single("Reshape", (2, 3, 4), 13, {"s": i64(0, -1)}),
    "Reshape of nothing": single("Reshape", (0, 3), 14, {"s": i64(3, 0)}, allowzero=1),
    "GatherND of negative places": single("GatherND", (4, 5), 13, {"i": i64(-1, 0, 3, -5).reshape(2, 2)}),
    "GatherND of batches": single("GatherND", (2, 4, 5), 13, {"i": i64(1, -4).reshape(2, 1)}, batch_dims=1),
    "Gather of a run": single("Gather", (4, 5), 13, {"i": i64(1, 2, 3)}, axis=1),
    "Gather of one": single("Gather", (4, 5), 13, {"i": np.int64(-1)}, axis=1),
    "Gather out of order": single("Gather", (4, 5), 13, {"i": i64(2, 1, 3).reshape(3, 1)}, axis=0),
    "ScatterElements by sum": single(
        "ScatterElements", (3, 4), 18, {"i": i64(1, -1, 0, 0).reshape(1, 4), "u": weights(1, 4)}, reduction="add"
    ),
    "ScatterND by the largest": single(
        "ScatterND", (4, 3), 18, {"i": i64(1, -1).reshape(2, 1), "u": weights(2, 3)}, reduction="max"
    ),
    "ConvInteger": of(U8, "ConvInteger", (1, 3, 6, 6), 13, {"w": BYTES, "p": np.uint8(3), "q": np.uint8(9)}),
    "ConvInteger without zero points": of(U8, "ConvInteger", (1, 3, 6, 6), 13, {"w": BYTES}),
    "DFT padded": single("DFT", (2, 6, 1), 17, {"n": np.int64(9)}, axis=1),
    "DFT cut": single("DFT", (2, 6, 2), 17, {"n": np.int64(4)}, axis=1),
    "DFT of the last but one axis": single("DFT", (2, 5, 6, 1), 20, {"-n": None, "a": np.int64(-2)}),
    "STFT without a window": single("STFT", (1, 40, 1), 17, {"step": np.int64(4), "-w": None, "n": np.int64(8)}),
    "STFT by its window alone": single("STFT", (1, 40, 1), 17, {"step": np.int64(4), "w": np.hanning(8).astype("f")}),
    "MaxPool of dilated windows": single(
        "MaxPool", (1, 2, 9, 9), 12, kernel_shape=[3, 3], dilations=[2, 2], strides=[2, 1]
    ),
    "MaxPool with places, padded": model(
        [node("MaxPool", "x", "y z", kernel_shape=[2, 2], pads=[1, 1, 0, 0])], {"x": floats(1, 2, 3, 3)}, "y z",
        opset=12,
    ),
    "MaxPool of wide windows": single(
        "MaxPool", (1, 2, 40, 37), 12, kernel_shape=[17, 18], dilations=[2, 1], strides=[3, 2], pads=[4, 0, 1, 3]
    ),
    "MaxPool of bytes": of(U8, "MaxPool", (1, 2, 6, 6), 12, kernel_shape=[3, 3], dilations=[2, 2], pads=[1, 1, 1, 1]),
    "AveragePool of one axis": single("AveragePool", (1, 2, 9), 11, kernel_shape=[3], strides=[2], pads=[1, 0]),
    "AveragePool of volumes with pads": single(
        "AveragePool", (1, 2, 4, 5, 6), 19, kernel_shape=[2, 2, 2], pads=[1, 0, 1, 0, 1, 0], count_include_pad=1,
        ceil_mode=1, strides=[2, 2, 2], dilations=[1, 1, 2],
    ),
    "AveragePool without pads": single("AveragePool", (1, 2, 6, 6), 11, kernel_shape=[2, 2], auto_pad="VALID"),
    "LpPool of dilated windows": single("LpPool", (1, 2, 7, 7), 18, kernel_shape=[2, 2], dilations=[2, 2], p=3),
    "LpPool of one axis": single("LpPool", (1, 2, 9), 18, kernel_shape=[3], p=2, pads=[1, 1]),
    "GlobalLpPool of cubes": single("GlobalLpPool", (1, 2, 4, 4), 13, p=3),
    "Resize to the nearest": single("Resize", (1, 2, 4, 6), 13, LARGER, mode="nearest", nearest_mode="ceil"),
    "Resize of another rank": single(
        "Resize", (4, 6), 13, {"-roi": None, "scales": np.float32([2.5, 0.5])}, mode="linear"
    ),
    "Resize by corners": single(
        "Resize", (1, 2, 4, 6), 13, LARGER, mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "Resize as of old": single("Resize", (1, 2, 4, 6), 10, {"scales": np.float32([1, 1, 2, 2])}, mode="nearest"),
    "Resize by cubes": single(
        "Resize", (1, 2, 5, 6), 13, {"-roi": None, "scales": np.float32([1, 1, 1.7, 0.6])}, mode="cubic",
        cubic_coeff_a=-0.5, exclude_outside=1,
    ),
    "Resize to sizes": single(
        "Resize", (1, 2, 4, 6), 13, {"-r": None, "-s": None, "sizes": i64(1, 2, 7, 3)}, mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    "Resize to a single pixel": single(
        "Resize", (1, 2, 4, 6), 13, {"-r": None, "-s": None, "sizes": i64(1, 2, 1, 1)}, mode="linear",
        coordinate_transformation_mode="pytorch_half_pixel",
    ),
    "Resize of a region": single(
        "Resize", (1, 2, 6, 6), 13,
        {"roi": np.float32([0, 0, 0.2, -0.2, 1, 1, 0.8, 1.2]), "-s": None, "sizes": i64(1, 2, 4, 5)}, mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize", extrapolation_value=3.0,
    ),
    "Upsample": single("Upsample", (1, 2, 3, 3), 9, {"scales": np.float32([1, 1, 2, 3])}),
    "GridSample": single(
        "GridSample", (1, 2, 4, 5), 16, {"g": weights(1, 3, 3, 2)}, padding_mode="reflection", mode="nearest"
    ),
    "GridSample at corners": single(
        "GridSample", (1, 2, 4, 5), 16, {"g": weights(1, 3, 3, 2)}, align_corners=1, padding_mode="border"
    ),
    "DepthToSpace by columns": single("DepthToSpace", (1, 8, 2, 3), 13, blocksize=2, mode="CRD"),
    "SpaceToDepth": single("SpaceToDepth", (1, 2, 4, 6), 13, blocksize=2),
    "EyeLike": of(I32, "EyeLike", (3, 4), 9, k=1),
    "EyeLike of another type": of(I32, "EyeLike", (3, 4), 9, k=-1, dtype=TensorProto.FLOAT),
    "NonZero of a constant": model(
        [node("NonZero", "c", "i"), node("Add", "x i", "y")], {"x": (TensorProto.INT64, (1,))}, "y",
        {"c": np.float32([[0, 1], [2, 0]])},
    ),
    "Range of negative steps": model(
        [node("Range", "a b c", "r"), node("Add", "x r", "y")], {"x": floats(1)}, "y",
        {"a": np.float32(5), "b": np.float32(-1), "c": np.float32(-1.5)},
    ),
    "Range of nothing": model(
        [node("Range", "a b c", "r"), node("Concat", "x r", "y", axis=0)], {"x": floats(2)}, "y",
        {"a": np.float32(5), "b": np.float32(1), "c": np.float32(1)},
    ),
    "HannWindow of a symmetric kind": model(
        [node("HannWindow", "n", "w", periodic=0), node("Add", "x w", "y")], {"x": floats(1)}, "y", {"n": np.int64(7)}
    ),
    "BlackmanWindow": model(
        [node("BlackmanWindow", "n", "w"), node("Add", "x w", "y")], {"x": floats(1)}, "y", {"n": np.int64(7)}
    ),
    "HammingWindow": model(
        [node("HammingWindow", "n", "w"), node("Add", "x w", "y")], {"x": floats(1)}, "y", {"n": np.int64(7)}
    ),
    "Shape of some axes": model(
        [node("Shape", "x", "s", start=1, end=-1), node("Add", "z s", "y")],
        {"x": floats(2, 3, 4, 5), "z": (TensorProto.INT64, (1,))}, "y",
    ),
    "DequantizeLinear by blocks": of(
        U8, "DequantizeLinear", (4, 6), 21, {"s": np.abs(weights(2, 6)), "p": BYTES.reshape(-1, 6)[:2]}, axis=0,
        block_size=2,
    ),
    "DequantizeLinear by blocks of a short end": of(
        U8, "DequantizeLinear", (2, 5), 21, {"s": np.abs(weights(2, 3))}, axis=1, block_size=2
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RARE)
def test_a_rare_form_of_an_operator(name: str) -> None:
    check(RARE[name], 1e-4)


def test_limits_in_the_wrong_order_are_applied_one_after_the_other() -> None:
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    for made in (
        single("Clip", (3, 4), 10, min=0.5, max=-0.5),
        single("Clip", (3, 4), 13, {"low": np.float32(0.5), "high": np.float32(-0.5)}),
    ):
        np.testing.assert_array_equal(interpret(convert(made), {"x": x})["y"], np.full((3, 4), -0.5))


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_a_vector_is_resized_like_a_matrix_of_one_row(mode: str) -> None:
    vector = single("Resize", (6,), 13, {"-roi": None, "scales": np.float32([1.5])}, mode=mode)
    matrix = single("Resize", (1, 6), 13, {"-roi": None, "scales": np.float32([1, 1.5])}, mode=mode)
    x = weights(6)
    row = interpret(convert(matrix), {"x": x[None]})["y"]
    np.testing.assert_array_equal(interpret(convert(vector), {"x": x})["y"], row[0])


@pytest.mark.parametrize("transformation", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "nearest", "nearest_mode": "ceil"}, {"mode": "linear"}, {"mode": "cubic", "exclude_outside": 1},
        {"mode": "cubic", "cubic_coeff_a": -0.5},
    ],
    ids=lambda given: "-".join(map(str, given.values())),
)  # fmt: skip
def test_an_image_is_resized_by_one_operation(attributes: dict[str, Any], transformation: str) -> None:
    sizes = {"-r": None, "-s": None, "sizes": i64(1, 2, 7, 3)}
    graph = check(
        single("Resize", (1, 2, 4, 6), 13, sizes, coordinate_transformation_mode=transformation, **attributes), 1e-4
    )
    assert operations(graph)["Resize"] == 1
    assert set(operations(graph)) <= {"Resize", "Transpose"}


@pytest.mark.parametrize("transformation", ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_matrix_is_resized_to_any_number_of_rows(rows: int, transformation: str) -> None:
    sizes = {"-r": None, "-s": None, "sizes": i64(rows, 4)}
    check(single("Resize", (4, 6), 13, sizes, mode="linear", coordinate_transformation_mode=transformation), 1e-5)


CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any], str]] = {
    "plain": ((1, 3, 8, 9), (4, 3, 3, 3), {}, "Conv2d"),
    "strided": ((2, 3, 8, 9), (4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}, "Conv2d"),
    "dilated": ((1, 3, 9, 9), (4, 3, 3, 3), {"dilations": [2, 1], "pads": [2, 1, 2, 1]}, "Conv2d"),
    "same upper": ((1, 3, 8, 9), (4, 3, 3, 4), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, "Conv2d"),
    "same lower": ((1, 3, 8, 9), (4, 3, 3, 4), {"auto_pad": "SAME_LOWER"}, "Conv2d"),
    "grouped": ((1, 4, 6, 6), (6, 2, 3, 3), {"group": 2}, "Conv2d"),
    "depth-wise": ((1, 4, 6, 6), (4, 1, 3, 3), {"group": 4}, "DepthWiseConv2d"),
    "multiplied": ((1, 4, 6, 6), (8, 1, 3, 3), {"group": 4}, "DepthWiseConv2d"),
    "one axis": ((2, 3, 10), (4, 3, 3), {"strides": [2], "pads": [1, 1]}, "Conv1d"),
    "one axis depth-wise": ((1, 3, 10), (3, 1, 3), {"group": 3}, "DepthWiseConv1d"),
    "three axes": ((1, 2, 5, 5, 5), (3, 2, 2, 3, 2), {"pads": [1, 0, 0, 0, 1, 1]}, "Conv3d"),
}


@pytest.mark.parametrize("form", CONVOLUTIONS)
@pytest.mark.parametrize("bias", [False, True])
def test_convolution(form: str, bias: bool) -> None:
    dims, filters, attributes, op = CONVOLUTIONS[form]
    constants = {"w": weights(*filters)} | ({"b": weights(filters[0])} if bias else {})
    graph = check(single("Conv", dims, 13, constants, **attributes), 1e-4)
    assert operations(graph)[op] == 1


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((1, 3, 4, 5), (3, 2, 3, 3), {}),
    "strided": ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2]}),
    "to a shape": ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [3, 2], "output_shape": [11, 10]}),
    "same": ((1, 3, 4, 5), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "dilated": ((1, 3, 4, 5), (3, 2, 3, 2), {"dilations": [2, 2]}),
    "grouped": ((1, 4, 4, 5), (4, 3, 3, 3), {"group": 2, "strides": [2, 2]}),
    "one axis": ((1, 3, 6), (3, 2, 3), {"strides": [2]}),
    "three axes": ((1, 2, 3, 3, 3), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}),
}


@pytest.mark.parametrize("form", TRANSPOSED)
def test_transposed_convolution(form: str) -> None:
    dims, filters, attributes = TRANSPOSED[form]
    constants = {"w": weights(*filters), "b": weights(filters[1] * attributes.get("group", 1))}
    check(single("ConvTranspose", dims, 11, constants, **attributes), 1e-4)


POOLS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "max": ("MaxPool", (1, 3, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "max ceil": ("MaxPool", (1, 3, 7, 8), {"kernel_shape": [2, 3], "strides": [2, 2], "ceil_mode": 1}),
    "max dilated": ("MaxPool", (1, 3, 8, 8), {"kernel_shape": [2, 3], "dilations": [2, 2], "pads": [1, 1, 0, 1]}),
    "max one axis": ("MaxPool", (1, 3, 9), {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
    "max three axes": ("MaxPool", (1, 2, 4, 4, 4), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    "average": ("AveragePool", (1, 3, 7, 8), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    "average with pads": (
        "AveragePool", (1, 3, 7, 8), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1},
    ),
    "average same": ("AveragePool", (1, 3, 7, 8), {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}),
    "average ceil": ("AveragePool", (1, 3, 6, 7), {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    "average dilated": ("AveragePool", (1, 3, 7, 8), {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    "norm": ("LpPool", (1, 3, 7, 8), {"kernel_shape": [2, 2], "p": 2}),
    "global max": ("GlobalMaxPool", (2, 3, 4, 5), {}),
    "global norm": ("GlobalLpPool", (2, 3, 4, 5), {"p": 2}),
}  # fmt: skip


@pytest.mark.parametrize("form", POOLS)
def test_pool(form: str) -> None:
    op, dims, attributes = POOLS[form]
    check(single(op, dims, 19, **attributes), 1e-4)


@pytest.mark.parametrize(
    ("a", "b"),
    [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,))],
)
@pytest.mark.parametrize("constant", [False, True])
def test_matrix_product(a: tuple[int, ...], b: tuple[int, ...], constant: bool) -> None:
    inputs = {"a": floats(*a)} | ({} if constant else {"b": floats(*b)})
    check(model([node("MatMul", "a b", "y")], inputs, "y", {"b": weights(*b)} if constant else None))


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("c", [None, (5,), (1, 5), (3, 1), (3, 5), ()])
def test_gemm(transposed: tuple[int, int], constant: bool, c: tuple[int, ...] | None) -> None:
    a, b = ((4, 3) if transposed[0] else (3, 4)), ((5, 4) if transposed[1] else (4, 5))
    attributes = {"transA": transposed[0], "transB": transposed[1], "alpha": 0.5, "beta": 2.0}
    constants = ({"b": weights(*b)} if constant else {}) | ({} if c is None else {"c": weights(*c)})
    inputs = {"a": floats(*a)} | ({} if constant else {"b": floats(*b)})
    made = model([node("Gemm", "a b" + (" c" if c is not None else ""), "y", **attributes)], inputs, "y", constants)
    graph = check(made)
    assert operations(graph)["FullyConnected"] == constant


@pytest.mark.parametrize(
    ("equation", "dims"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij,bkj->bik", [(2, 3, 4), (2, 5, 4)]),
        ("bhid,bhjd->bhij", [(1, 2, 3, 4), (1, 2, 5, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("ij->ji", [(3, 4)]),
        ("ij->j", [(3, 4)]),
        ("ii->i", [(4, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("abc,cd,de->abe", [(2, 3, 4), (4, 5), (5, 2)]),
        ("ij,ij", [(2, 3), (2, 3)]),
    ],
)
def test_einsum(equation: str, dims: list[tuple[int, ...]]) -> None:
    inputs = {f"x{index}": floats(*d) for index, d in enumerate(dims)}
    check(model([node("Einsum", " ".join(inputs), "y", equation=equation)], inputs, "y"))


@pytest.mark.parametrize("onesided", [0, 1])
def test_short_fourier_transform_is_a_convolution(onesided: int) -> None:
    window = np.hanning(8).astype(np.float32)
    constants = {"step": np.int64(4), "w": window, "n": np.int64(8)}
    made = model([node("STFT", "x step w n", "y", onesided=onesided)], {"x": floats(2, 40, 1)}, "y", constants)
    assert operations(check(made, 1e-4))["Conv1d"] == 1


@pytest.mark.parametrize(
    "attributes", [{"axis": 1}, {"axis": 1, "onesided": 1}, {"axis": 1, "inverse": 1}, {"axis": 2}]
)
def test_fourier_transform(attributes: dict[str, int]) -> None:
    parts = 2 if "inverse" in attributes else 1
    check(model([node("DFT", "x", "y", **attributes)], {"x": floats(2, 6, 5, parts)}, "y"), 1e-4)


def test_integers_divide_towards_zero_and_wrap_by_the_divisor() -> None:
    inputs = {"a": (TensorProto.INT32, (4,)), "b": (TensorProto.INT32, (4,))}
    nodes = [node("Div", "a b", "q"), node("Mod", "a b", "m"), node("Mod", "a b", "f", fmod=1)]
    made = model(nodes, inputs, "q m f")
    feeds = {"a": np.int32([7, -7, 7, -7]), "b": np.int32([2, 2, -2, -2])}
    answers = interpret(convert(made), feeds)
    for name, reference in expected(made, feeds).items():
        np.testing.assert_array_equal(answers[name], reference)


def test_one_hot_counts_negative_indices_from_the_end() -> None:
    made = model(
        [node("OneHot", "x depth values", "y", axis=1)], {"x": (TensorProto.INT64, (2, 3))}, "y",
        {"depth": np.int64(4), "values": np.float32([-1, 2])},
    )  # fmt: skip
    feeds = {"x": np.int64([[0, -1, 3], [2, 7, -4]])}
    np.testing.assert_array_equal(interpret(convert(made), feeds)["y"], expected(made, feeds)["y"])


@pytest.mark.parametrize(
    "made",
    [
        single("Reshape", (2, 3), 13, {"s": i64(4, 2)}),
        single("Squeeze", (2, 3), 13, {"axes": i64(0)}),
        single("Slice", (4,), 13, {"s": i64(0), "e": i64(2), "a": i64(3)}),
        single("Gather", (4,), 13, {"i": i64(9)}),
        single("Conv", (1, 3, 4, 4), 13, {"w": np.zeros((2, 3, 9, 9), np.float32)}),
        single("Split", (4,), 13, {"s": i64(9)}),
        single("Transpose", (2, 3), 13, perm=[0, 0]),
        single("Expand", (2, 3), 13, {"s": i64(4, 3)}),
    ],
    ids=lambda made: made.graph.node[0].op_type,
)
def test_ill_formed_operands_are_refused_by_the_name_of_the_node(made: ModelProto) -> None:
    made.graph.node[0].name = "culprit"
    with pytest.raises(QnnError, match="culprit"):
        convert(made)


@pytest.mark.parametrize("p", [1, 2])
def test_numbers_too_small_to_have_a_square_are_not_made_large_by_their_norm(p: int) -> None:
    graph = convert(model([node("LpNormalization", "x", "y", axis=1, p=p)], {"x": floats(5, 2)}, "y"))
    x = np.float32([[1e-30, -1e-30], [1e-38, 0], [1e-23, 1e-22], [0, 0], [3, 4]])
    [y] = interpret(graph, {"x": x}).values()
    assert np.abs(y).max() < 1.1
    np.testing.assert_allclose(y[4], [3 / 7, 4 / 7] if p == 1 else [0.6, 0.8], rtol=1e-6)


def test_a_log_of_summed_exponentials_of_infinities_is_an_infinity() -> None:
    made = single("ReduceLogSumExp", (6, 3), 13, axes=[1])
    inf, nan = np.inf, np.nan
    x = np.float32([[-inf, -inf, -inf], [1, inf, 2], [-inf, inf, 0], [-inf, 1, 2], [100, 100, 100], [nan, inf, 0]])
    answers = interpret(convert(made), {"x": x})["y"]
    np.testing.assert_allclose(answers, expected(made, {"x": x})["y"], rtol=1e-6)
    assert answers[:3, 0].tolist() == [-inf, inf, inf]


@pytest.mark.parametrize("pads", [(5, 0), (0, 5)])
def test_wrapping_around_more_than_once_is_refused_at_either_end(pads) -> None:
    made = single("Pad", (4,), 19, {"pads": i64(*pads)}, mode="wrap")
    with pytest.raises(QnnError, match="more than once"):
        convert(made)


def test_a_norm_of_no_elements_takes_a_scale_that_has_none_either() -> None:
    made = model(
        [node("LayerNormalization", "x s", "y", axis=1)], {"x": floats(2, 3, 0)}, "y",
        {"s": np.zeros((1, 0), np.float32)},
    )  # fmt: skip
    [result] = convert(made).outputs
    assert result.dims == (2, 3, 0)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("mean", [1, 4, 16])
@pytest.mark.parametrize("rank", [2, 4])
def test_batch_normalization_of_16_bit_floats_is_rounded_once(kind: str, mean: int, rank: int, tmp_path: Path) -> None:
    dtype = np.dtype(kind if kind == "float16" else pytest.importorskip("ml_dtypes").bfloat16)
    rng = np.random.default_rng(mean)
    numbers = [rng.standard_normal(8), rng.standard_normal(8), rng.standard_normal(8) * 0.1 + mean, rng.random(8) + 1.0]
    parameters = [array.astype(dtype) for array in numbers]
    x = (rng.standard_normal((2, 8, 5, 3)[:rank]) + mean).astype(dtype)
    made = model(
        [node("BatchNormalization", "x a b m v", "y")], {"x": (getattr(TensorProto, kind.upper()), x.shape)}, "y",
        dict(zip("abmv", parameters, strict=True)), 15,
    )  # fmt: skip
    (tmp_path / "norm.onnx").write_bytes(made.SerializeToString())
    with Session(tmp_path / "norm.onnx") as session:
        y = session.run({"x": x if kind == "float16" else x.view(np.uint16)})["y"].view(dtype)
    a, b, m, v = (p.astype(np.float64).reshape(-1, *[1] * (rank - 2)) for p in parameters)
    exact = (x.astype(np.float64) - m) / np.sqrt(v + 1e-5) * a + b
    unit = np.abs(np.spacing(y)).astype(np.float64)
    # Float32 has an error of its own, in proportion to the numbers that cancel.
    assert (np.abs(y.astype(np.float64) - exact) <= 0.5 * unit + 1e-6 * mean).all()
