"""What a converter does not take is refused or listed as unsupported by a sentence of its own, and only that is.

Each line is a node that is one step outside of what its converter takes, with a part of the sentence; where the step
is a number, the number inside converts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto

from frontends.onnx.graphs import convert, floats, model, node, subgraph
from isthmus.errors import QnnError
from isthmus.frontends.onnx import spectral, windows

I8, U8, I32, I64 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64


def i64(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def zeros(*dims: int) -> np.ndarray:
    return np.zeros(dims, np.float32)


def one(op: str, x: Any, more: dict[str, Any] | None = None, opset: int = 17, outputs: str = "y", **attributes: Any):
    """A model of one node with input x (dimensions of floats, or (type, dimensions)) and constants; `-` is absent."""
    given = {name: value for name, value in (more or {}).items() if not name.startswith("-")}
    names = " ".join(["x", *("-" if name.startswith("-") else name for name in more or {})])
    inputs = {"x": x if len(x) == 2 and isinstance(x[1], tuple) else floats(*x)}
    made = node(op, names, outputs, **attributes)
    return model([made], inputs, outputs.replace("-", ""), given, opset, domains=["com.microsoft"])


def microsoft(op: str, x: Any, more: dict[str, Any], **attributes: Any) -> ModelProto:
    made = one(op, x, more, **attributes)
    made.graph.node[0].domain = "com.microsoft"
    return made


IMAGE = (1, 4, 6, 6)
WEIGHTS = {"w": zeros(2, 4, 3, 3)}
TRANSPOSED = {"w": zeros(4, 2, 3, 3)}
SCALE, POINT = np.float32(0.1), np.uint8(3)
Q = {"s": SCALE, "p": POINT}
RECURRENT = {"w": zeros(1, 8, 3), "r": zeros(1, 8, 2)}

REFUSED: list[tuple[ModelProto, str]] = [
    # Windows.
    (one("Conv", IMAGE, WEIGHTS, strides=[0, 1]), r"strides \[0, 1\] must be 2 numbers from 1"),
    (one("Conv", IMAGE, WEIGHTS, strides=[1]), "strides .* must be 2 numbers"),
    (one("Conv", IMAGE, WEIGHTS, strides=[1 << 24, 1]), "strides .* must be 2 numbers"),
    (one("Conv", IMAGE, WEIGHTS, dilations=[1, 0]), "dilations .* must be 2 numbers"),
    (one("Conv", IMAGE, WEIGHTS, pads=[0, 0, 0]), "pads .* must be 4 numbers"),
    (one("Conv", IMAGE, WEIGHTS, pads=[0, 0, 0, 1 << 24]), "pads .* must be 4 numbers"),
    (one("Conv", IMAGE, WEIGHTS, pads=[0, 0, 0, -1]), "negative pads"),
    (one("Conv", IMAGE, WEIGHTS, pads=[0, -1, 0, 0]), "negative pads"),
    (one("Conv", IMAGE, WEIGHTS, auto_pad="SAME"), "auto_pad 'SAME' is unknown"),
    (one("Conv", IMAGE, WEIGHTS, kernel_shape=[3, 2]), "is not that of the weights"),
    (one("Conv", IMAGE, WEIGHTS, kernel_shape=[3]), "does not fit 2 spatial axes"),
    (one("Conv", (1, 4), {"w": zeros(2, 4)}), "operands of rank 2 and 2"),
    (one("Conv", IMAGE, {"w": zeros(2, 4, 3)}), "operands of rank 4 and 3"),
    (one("Conv", (1, 1, 1, 1, 1, 1), {"w": zeros(1, 1, 1, 1, 1, 1)}), "operands of rank 6 and 6"),
    (one("ConvTranspose", (1, 4), {"w": zeros(4, 2)}), "operands of rank 2 and 2"),
    (one("ConvTranspose", IMAGE, {"w": zeros(4, 2, 3)}), "operands of rank 4 and 3"),
    (one("ConvTranspose", IMAGE, TRANSPOSED, output_shape=[9]), "output_shape .* does not fit 2"),
    (one("ConvTranspose", IMAGE, TRANSPOSED, output_shape=[1, 9, 9]), "output_shape .* does not fit 2"),
    (one("ConvTranspose", IMAGE, TRANSPOSED, output_shape=[1, 1, 9, 9]), "output_shape .* does not fit 2"),
    (one("ConvTranspose", IMAGE, TRANSPOSED, output_shape=[0, 9]), "output_shape .* does not fit 2"),
    (one("ConvTranspose", IMAGE, TRANSPOSED, output_shape=[1 << 24, 9]), "output_shape .* does not fit 2"),
    (one("ConvTranspose", IMAGE, TRANSPOSED, output_padding=[-1, 0]), "output_padding .* must be 2 numbers from 0"),
    (
        model(
            [node("ConvTranspose", "x w", "y", dilations=[2, 1])], {"x": floats(*IMAGE), "w": floats(4, 2, 3, 3)}, "y"
        ),
        "dilated filters that are not constant",
    ),
    (one("MaxPool", (1, 4), kernel_shape=[2]), "an operand of rank 2"),
    (one("MaxPool", (1, 1, 1, 1, 1, 1), kernel_shape=[1] * 4), "an operand of rank 6"),
    (one("MaxPool", IMAGE, kernel_shape=[0, 2]), "kernel .* does not fit"),
    (one("MaxPool", IMAGE, kernel_shape=[4, 2], dilations=[2, 1]), r"windows of reach \[7, 2\] do not fit"),
    (one("MaxPool", (1, 1, 20, 20), kernel_shape=[17, 16], outputs="y z"), "more than 256 taps"),
    (
        microsoft(
            "QLinearAveragePool", (U8, IMAGE), {**Q, "t": SCALE, "q": POINT}, kernel_shape=[2, 2], channels_last=1
        ),
        "channels_last",
    ),
    # Matrix products.
    (one("MatMul", (), {"b": zeros(2)}), "must not be scalars"),
    (one("MatMul", (2,), {"b": zeros().reshape(())}), "must not be scalars"),
    (one("Gemm", (2, 3, 4), {"b": zeros(4, 5)}), "operands of rank 3 and 2"),
    (one("Gemm", (2, 3), {"b": zeros(3)}), "operands of rank 2 and 1"),
    (
        model([node("Gemm", "x b", "y", alpha=2.0)], {"x": (I32, (2, 3)), "b": (I32, (3, 4))}, "y"),
        "alpha or beta with integer operands",
    ),
    (
        model([node("Gemm", "x b", "y", beta=2.0)], {"x": (I32, (2, 3)), "b": (I32, (3, 4))}, "y"),
        "alpha or beta with integer operands",
    ),
    (one("MatMulInteger", (U8, (3,)), {"b": np.zeros((3, 2), np.uint8)}), "operands of rank 1"),
    (one("MatMulInteger", (U8, (2, 3)), {"b": np.zeros(3, np.uint8)}), "operands of rank 1"),
    (
        one("MatMulInteger", (U8, (2, 3)), {"b": np.zeros((3, 4), np.uint8), "p": np.zeros(3, np.uint8)}),
        "zero points per matrix",
    ),
    (
        one("MatMulInteger", (U8, (2, 3)), {"b": np.zeros((3, 4), np.uint8), "-": 0, "p": np.zeros(2, np.uint8)}),
        "zero points per matrix",
    ),
    (one("Einsum", (2, 3), equation="ij,jk->ik"), "names 2 operands, 1 are given"),
    (one("Einsum", (2, 3), equation="ij->ik"), "names output axes that no input has"),
    (one("Einsum", (2, 3), equation="ijk->i"), "does not fit an operand of rank 2"),
    (one("Einsum", (2, 3), equation="i1->i"), "does not fit an operand of rank 2"),
    (one("Einsum", (2, 3), equation="...ijk->i"), "does not fit its operands"),
    (one("Einsum", (2, 3), {"b": zeros(1, 4)}, equation="ij,jk->ik"), "broadcasting an axis of size 1"),
    # Elements.
    (one("Dropout", (2,), {"r": SCALE, "t": np.array(True)}), "training mode"),
    (one("PRelu", (I32, (2, 3)), {"s": np.zeros(3, np.int32)}), "integer operands"),
    # Movement.
    (one("Reshape", (2, 3), {"s": i64(-1, -1)}), "leaves dimensions open"),
    (one("Reshape", (2, 3), {"s": i64(-2, 3)}), "leaves dimensions open"),
    (model([node("Concat", "x z", "y", axis=0)], {"x": floats(2, 3), "z": floats(2)}, "y"), "differ in rank"),
    (one("Split", (4,), {"p": i64(5, -1)}, outputs="y z"), "do not make up the 4 elements"),
    (one("Split", (4,), {"p": i64(1, 2)}, outputs="y z"), "do not make up the 4 elements"),
    (one("Split", (4,), {"p": i64(1, 2, 1)}, outputs="y z"), "do not make up the 4 elements"),
    (one("Slice", (4,), {"s": i64(0), "e": i64(2), "a": i64(0), "t": i64(0)}), "no step 0"),
    (one("Slice", (4,), {"s": i64(0), "e": i64(2, 3)}), "must be as many"),
    (one("Slice", (4, 4), {"s": i64(0), "e": i64(2), "a": i64(0, 1)}), "must be as many"),
    (one("Slice", (4, 4), {"s": i64(0), "e": i64(2), "a": i64(0), "t": i64(1, 1)}), "must be as many"),
    (one("Pad", (2, 3), {"p": i64(1, 1, 1)}), "3 pads for 2 axes"),
    (one("Pad", (2, 3), {"p": i64(0, -2, 0, -2)}), "cut more than there is"),
    (one("Pad", (2, 3), {"p": i64(0, 0, 0, 1)}, mode="zeros"), "mode 'zeros'"),
    (one("Tile", (2, 3), {"r": i64(2)}), "repeats .* do not fit rank 2"),
    (one("Tile", (2, 3), {"r": i64(2, -1)}), "repeats .* do not fit rank 2"),
    (one("Tile", (2, 3), {"r": i64(2, 1 << 31)}), "repeats .* do not fit rank 2"),
    (one("Expand", (1,), {"s": i64(-1)}), "must not be negative"),
    (one("Expand", (1,), {"s": i64(1 << 31)}), "must not be negative"),
    (one("Expand", (2, 3), {"s": i64(2, 2)}), "does not stretch"),
    (one("Trilu", (3,), opset=14), "is not a matrix"),
    (one("ReduceSum", (2, 3), {"a": i64(0, -2)}), "name one axis twice"),
    (one("Squeeze", (1, 3), {"a": i64(0, 0)}), "name one axis twice"),
    (one("ReduceSum", (2, 3), {"a": i64(2)}), "axis 2 is outside rank 2"),
    (one("ReduceSum", (2, 3), {"a": i64(-3)}), "axis -3 is outside rank 2"),
    (one("CumSum", (2, 3), {"a": i64(0, 1)}), "must have one element, has 2"),
    (model([node("Tile", "x r", "y")], {"x": floats(2), "r": (I64, (1,))}, "y"), "input 1 is not a constant"),
    (one("Add", (2, 3)), "input 1 is missing"),
    # Indices.
    (one("Gather", (4,), {"i": i64(4)}), "indices 4 to 4 are not within 4"),
    (one("Gather", (4,), {"i": i64(-5, 3)}), "indices -5 to 3 are not within 4"),
    (one("GatherND", (4, 5), {"i": i64(4, 0).reshape(1, 2)}), "outside dimensions"),
    (one("GatherND", (4, 5), {"i": i64(3, -6).reshape(1, 2)}), "outside dimensions"),
    (one("ScatterND", (4,), {"i": i64(0).reshape(1, 1), "u": zeros(1)}, 18, reduction="mean"), "reduction 'mean'"),
    (
        model([node("OneHot", "x d v", "y")], {"x": (I64, (3,))}, "y", {"d": np.int64(0), "v": zeros(2)}),
        "make no code",
    ),
    (
        model([node("OneHot", "x d v", "y")], {"x": (I64, (3,))}, "y", {"d": np.int64(1 << 24), "v": zeros(2)}),
        "make no code",
    ),
    (
        model([node("OneHot", "x d v", "y")], {"x": (I64, (3,))}, "y", {"d": np.int64(4), "v": zeros(3)}),
        "make no code",
    ),
    (one("Compress", (2, 3), {"c": np.array([False, False, True])}, axis=0), "condition is longer"),
    # Constants.
    (one("EyeLike", (3,)), "is not a matrix"),
    (
        model([node("Range", "a b c", "y")], {}, "y", {"a": np.int64(0), "b": np.int64(4), "c": np.int64(0)}),
        "never ends",
    ),
    (model([node("ConstantOfShape", "s", "y")], {}, "y", {"s": i64(2, -1)}), "must not be negative"),
    (model([node("Constant", "", "y", value_string="a")], {}, "y"), "a constant given as value_string"),
    # Norms.
    (one("BatchNormalization", IMAGE, {n: zeros(4) for n in "abcd"}, 9, outputs="y m"), "training mode"),
    (one("BatchNormalization", IMAGE, {n: zeros(4) for n in "abcd"}, 7, outputs="y - - - v"), "training mode"),
    (one("BatchNormalization", IMAGE, {n: zeros(4) for n in "abcd"}, 7, spatial=0), "statistics per element"),
    (one("GroupNormalization", IMAGE, {"s": zeros(4), "b": zeros(4)}, 21, num_groups=3), "must divide 4 channels"),
    (one("GroupNormalization", IMAGE, {"s": zeros(4), "b": zeros(4)}, 21, num_groups=0), "must divide 4 channels"),
    (one("LayerNormalization", (2, 4), {"s": zeros(2, 2, 4)}), r"a scale or bias of dimensions \[2, 2, 4\]"),
    (one("LayerNormalization", (2, 4), {"s": zeros(2)}), r"a scale or bias of dimensions \[2\]"),
    (one("LpNormalization", (2, 4), p=3), "p = 3"),
    (one("LRN", IMAGE, size=2), "size 2 over rank 4"),
    (one("LRN", IMAGE, size=-1), "size -1 over rank 4"),
    (one("LRN", (1, 4, 6), size=3), "size 3 over rank 3"),
    # Quantization.
    (
        one("QLinearConv", (U8, IMAGE), {**Q, "w": np.zeros((2, 4, 3, 3), np.uint8), "a": SCALE, "b": POINT, "c": SCALE,
                                         "d": POINT, "e": zeros(2)}),
        "a bias that is not int32",
    ),
    (
        microsoft("QGemm", (U8, (2, 3)), {**Q, "w": np.zeros((3, 4), np.uint8), "a": SCALE, "b": POINT}),
        "transA, alpha, or a float result",
    ),
    (
        microsoft(
            "QGemm", (U8, (3, 2)),
            {**Q, "w": np.zeros((3, 4), np.uint8), "a": SCALE, "b": POINT, "-": 0, "c": SCALE, "d": POINT}, transA=1,
        ),
        "transA, alpha, or a float result",
    ),
    (
        microsoft(
            "QGemm", (U8, (2, 3)),
            {**Q, "w": np.zeros((3, 4), np.uint8), "a": SCALE, "b": POINT, "-": 0, "c": SCALE, "d": POINT}, alpha=2.0,
        ),
        "transA, alpha, or a float result",
    ),
    (
        one("DequantizeLinear", (U8, (2, 6)), {"s": zeros(2, 2) + 1}, 21, block_size=2, axis=1),
        r"blocks of 2 with scales \[2, 2\] do not cover",
    ),
    (
        one("DequantizeLinear", (U8, (2, 6)), {"s": zeros(2) + 1}, 21, block_size=3, axis=1),
        r"blocks of 3 with scales \[2\] do not cover",
    ),
    (
        one("DequantizeLinear", (U8, (2, 6)), {"s": zeros(2, 1) + 1}, 21, block_size=7, axis=1),
        r"blocks of 7 with scales \[2, 1\] do not cover",
    ),
    # Recurrent layers.
    (one("LSTM", (5, 1, 3), RECURRENT, direction="backward"), "direction 'backward' is unknown"),
    (one("LSTM", (5, 3), RECURRENT), "must have rank 3, has rank 2"),
    (
        one("LSTM", (5, 1, 3), {**RECURRENT, "-": 0, "l": np.int32([4])}),
        "sequences of different lengths",
    ),
    (one("RNN", (513, 1, 3), {"w": zeros(1, 2, 3), "r": zeros(1, 2, 2)}), "more than 512 steps"),
    # Control.
    (
        model(
            [node("If", "c", "y", then_branch=subgraph([node("Relu", "x", "a")], (), "a"),
                  else_branch=subgraph([node("Flatten", "x", "b", axis=0)], (), "b"))],
            {"x": floats(2, 3), "c": (TensorProto.BOOL, ())}, "y",
        ),
        "differ in shape or type",
    ),
    # Spectra.
    (one("DFT", (2, 6, 3), axis=1), "is not an axis of samples"),
    (one("DFT", (2, 6, 1), axis=2), "is not an axis of samples"),
    (one("DFT", (2, 6, 1), axis=1, inverse=1, onesided=1), "must have real and imaginary parts"),
    (one("DFT", (2, 6, 1), {"n": np.int64(0)}, axis=1), "a transform of 0 samples"),
    (one("STFT", (1, 40, 3), {"s": np.int64(4), "-": 0, "n": np.int64(8)}), "cannot be cut"),
    (one("STFT", (1, 40, 1, 1), {"s": np.int64(4), "-": 0, "n": np.int64(8)}), "cannot be cut"),
    (one("STFT", (1, 40, 1), {"s": np.int64(0), "-": 0, "n": np.int64(8)}), "cannot be cut"),
    (one("STFT", (1, 40, 1), {"s": np.int64(4), "-": 0, "n": np.int64(0)}), "cannot be cut"),
    (one("STFT", (1, 40, 1), {"s": np.int64(4), "w": zeros(9), "n": np.int64(8)}), "a window of 9 does not fit"),
    # Resizing.
    (one("Resize", IMAGE, {"-": 0, "s": np.float32([1, 1, 2])}), "do not fit 4 axes"),
    (one("Resize", IMAGE, {"-": 0, "s": np.float32([1, 1, 0, 2])}), "do not fit 4 axes"),
    (one("Resize", IMAGE, {"-": 0, "s": np.float32([1, 1, 2, 2])}, mode="area"), "mode 'area'"),
    (one("Resize", IMAGE, {"-": 0, "s": np.float32([1, 1, 2, 2])}, nearest_mode="up"), "nearest_mode 'up'"),
    (one("Resize", (4, 4), {"-": 0, "s": np.float32([2, 2])}, nearest_mode="up"), "nearest_mode 'up'"),
    (
        one("Resize", IMAGE, {"-": 0, "s": np.float32([1, 1, 2, 2])}, coordinate_transformation_mode="odd"),
        "coordinate_transformation_mode 'odd'",
    ),
    (
        one("Resize", IMAGE, {"-": 0, "-2": 0, "s": i64(1, 4, 9, 9)}, 18, keep_aspect_ratio_policy="fit"),
        "keep_aspect_ratio_policy 'fit'",
    ),
    (one("GridSample", (1, 4, 6), {"g": zeros(1, 4, 2)}), "does not fit"),
    (one("GridSample", IMAGE, {"g": zeros(1, 4, 4, 2)}, mode="quartic"), "mode 'quartic'"),
    (one("GridSample", IMAGE, {"g": zeros(1, 4, 4, 2)}, padding_mode="wrap"), "padding_mode 'wrap'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "sentence"), REFUSED, ids=[f"{i}-{made.graph.node[0].op_type}" for i, (made, _) in enumerate(REFUSED)]
)
def test_the_first_value_beyond_a_limit_is_refused_with_its_own_message(made: ModelProto, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence):
        convert(made)


TAKEN: dict[str, ModelProto] = {
    "a window of 256 taps": one("MaxPool", (1, 1, 16, 16), kernel_shape=[16, 16], outputs="y z"),
    "the last element": one("Gather", (4,), {"i": i64(-4, 3)}),
    "a code of one class": model(
        [node("OneHot", "x d v", "y")], {"x": (I64, (3,))}, "y", {"d": np.int64(1), "v": zeros(2)}
    ),
    "cutting everything": one("Pad", (2, 3), {"p": i64(0, -1, 0, -2)}),
    "a transform of one sample": one("DFT", (2, 1, 1), axis=1),
    "frames of one sample": one("STFT", (1, 4, 1), {"s": np.int64(1), "-": 0, "n": np.int64(1)}),
    "a norm over a single channel": one("LRN", IMAGE, size=1),
    "as many scales as blocks": one("DequantizeLinear", (U8, (2, 6)), {"s": zeros(2, 1) + 1}, 21, block_size=6, axis=1),
}


def test_an_output_that_is_an_input_or_that_nothing_computes_is_refused_by_name() -> None:
    relu = node("Relu", "x", "y")
    with pytest.raises(QnnError, match=r"output 'x' of model .*: it is an input"):
        convert(model([relu], {"x": floats(2)}, "x y", {}, 17))
    with pytest.raises(QnnError, match=r"output 'z' of model .*: no earlier node computes 'z'"):
        convert(model([relu], {"x": floats(2)}, "z", {}, 17))


@pytest.mark.parametrize("name", TAKEN)
def test_the_last_value_within_a_limit_is_accepted(name: str) -> None:
    assert convert(TAKEN[name]).outputs


def test_limits_are_the_documented_ones() -> None:
    assert windows.MAX_EXTENT == 1 << 24
    assert spectral.MAX_MATRIX == 1 << 24


@pytest.mark.parametrize(("length", "taken"), [(4, True), (5, False)])
def test_a_transform_is_limited_by_the_elements_of_its_matrix(
    monkeypatch: pytest.MonkeyPatch, length: int, taken: bool
) -> None:
    # length samples of 1 part to length bins of 2 parts each.
    monkeypatch.setattr(spectral, "MAX_MATRIX", 4 * 1 * 4 * 2)
    made = one("DFT", (1, length, 1), axis=1)
    if taken:
        convert(made)
    else:
        with pytest.raises(QnnError, match=f"a transform of {length} samples"):
            convert(made)
    framed = one("STFT", (1, 40, 1), {"s": np.int64(4), "-": 0, "n": np.int64(length)}, onesided=0)
    if taken:
        convert(framed)
    else:
        with pytest.raises(QnnError, match=f"frames of {length} samples"):
            convert(framed)
