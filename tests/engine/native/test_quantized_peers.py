"""Single 8-bit operators agree with LiteRT's default path, stored value by stored value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frontends.tflite.build import T, options, single
from support.suites import sampled

import isthmus

interpreter = pytest.importorskip("ai_edge_litert.interpreter")
KINDS = {"i8": np.int8, "u8": np.uint8, "f32": np.float32}
ACTIVATIONS = {"none": 0, "relu": 1, "relu6": 3}


@dataclass(frozen=True)
class Case:
    """One operator on random operands."""

    name: str
    code: str
    inputs: Sequence[T]
    output: T
    options: Any = None
    exact: bool = True
    values: dict[int, np.ndarray] = field(default_factory=dict)


def other(kind: str, zero: int) -> int:
    """A zero point for signed bytes, moved for unsigned ones."""
    return zero if kind == "i8" else zero + 128


def weights(kind: str, shape: Sequence[int], axis: int, per_channel: bool = True) -> T:
    rng = np.random.default_rng(3)
    stored = rng.integers(-127, 128, shape)
    scale: Any = rng.uniform(0.002, 0.02, shape[axis]) if per_channel else 0.01
    if kind == "u8":
        return T("u8", shape, stored + 128, 0.01, 128)
    return T("i8", shape, stored, scale, 0, axis)


def weighted(x: T, factors: T, size: int) -> list[T]:
    """Input, weights, and a bias in units of their product."""
    unit = np.float32(x.scale) * np.atleast_1d(factors.scale).astype(np.float32)
    return [x, factors, T("i32", [size], np.random.default_rng(4).integers(-2000, 2000, size), unit)]


def convolutions(kind: str) -> list[Case]:
    def x(*shape: int) -> T:
        return T(kind, shape, None, 0.05, other(kind, -4))

    def y(shape: Sequence[int], scale: float = 0.3) -> T:
        return T(kind, shape, None, scale, other(kind, 7))

    def plain(padding: int, stride: int, activation: str = "none", dilation: int = 1) -> Any:
        return options(
            "Conv2D", padding=padding, strideH=stride, strideW=stride, dilationHFactor=dilation,
            dilationWFactor=dilation, fusedActivationFunction=ACTIVATIONS[activation],
        )  # fmt: skip

    def depthwise(padding: int, stride: int, multiplier: int = 1) -> Any:
        return options(
            "DepthwiseConv2D", padding=padding, strideH=stride, strideW=stride, depthMultiplier=multiplier,
            dilationHFactor=1, dilationWFactor=1, fusedActivationFunction=1,
        )  # fmt: skip

    return [
        Case(
            "conv 1x1",
            "CONV_2D",
            weighted(x(1, 7, 9, 24), weights(kind, [40, 1, 1, 24], 0), 40),
            y([1, 7, 9, 40]),
            plain(0, 1),
        ),
        Case(
            "conv 3x3 stride 2",
            "CONV_2D",
            weighted(x(1, 15, 13, 3), weights(kind, [16, 3, 3, 3], 0), 16),
            y([1, 8, 7, 16], 0.1),
            plain(0, 2, "relu6"),
        ),
        Case(
            "conv 3x3 spread",
            "CONV_2D",
            weighted(x(1, 15, 13, 8), weights(kind, [16, 3, 3, 8], 0), 16),
            y([1, 11, 9, 16]),
            plain(1, 1, "relu", 2),
        ),
        Case(
            "depthwise 3x3",
            "DEPTHWISE_CONV_2D",
            weighted(x(1, 12, 11, 40), weights(kind, [1, 3, 3, 40], 3), 40),
            y([1, 12, 11, 40], 0.1),
            depthwise(0, 1),
        ),
        Case(
            "depthwise 5x5 stride 2",
            "DEPTHWISE_CONV_2D",
            weighted(x(1, 12, 11, 18), weights(kind, [1, 5, 5, 18], 3), 18),
            y([1, 6, 6, 18], 0.1),
            depthwise(0, 2),
        ),
        Case(
            "depthwise of one channel",
            "DEPTHWISE_CONV_2D",
            weighted(x(1, 12, 11, 1), weights(kind, [1, 3, 3, 8], 3), 8),
            y([1, 12, 11, 8], 0.1),
            depthwise(0, 1, 8),
        ),
        Case(
            "depthwise twice",
            "DEPTHWISE_CONV_2D",
            weighted(x(1, 12, 11, 3), weights(kind, [1, 3, 3, 6], 3), 6),
            y([1, 12, 11, 6], 0.1),
            depthwise(0, 1, 2),
        ),
        Case(
            "fully connected",
            "FULLY_CONNECTED",
            weighted(x(3, 65), weights(kind, [33, 65], 0, False), 33),
            y([3, 33]),
            options("FullyConnected", fusedActivationFunction=0),
        ),
    ]


def arithmetic(kind: str) -> list[Case]:
    def t(shape: Sequence[int], scale: float = 0.05, zero: int = -4, data: Any = None) -> T:
        return T(kind, shape, data, scale, other(kind, zero))

    a, b = t([1, 9, 10, 11]), t([1, 9, 10, 11], 0.031, 9)
    row, one = t([11], 0.031, 9), t([1], 0.031, 9)
    column = t([1, 9, 1, 1], 0.031, 9)
    y = t([1, 9, 10, 11], 0.07, 3)
    constant = t([11], 0.031, 9, np.arange(11) + other(kind, -5))
    cases = []
    for code, kind_of_options in (("ADD", "Add"), ("SUB", "Sub"), ("MUL", "Mul")):
        for name, left, right in (
            ("", a, b),
            (" row", a, row),
            (" one", a, one),
            (" column", a, column),
            (" reversed", row, a),
            (" constant", a, constant),
        ):
            cases.append(
                Case(code.lower() + name, code, [left, right], y, options(kind_of_options, fusedActivationFunction=0))
            )
        cases.append(
            Case(code.lower() + " relu6", code, [a, b], y, options(kind_of_options, fusedActivationFunction=3))
        )
    cases += [
        Case("maximum", "MAXIMUM", [a, a], a, options("MaximumMinimum")),
        Case("minimum", "MINIMUM", [a, a], a, options("MaximumMinimum")),
    ]
    return cases


def functions(kind: str) -> list[Case]:
    every = np.arange(256, dtype=np.uint8).view(KINDS[kind]).reshape(1, 16, 16)
    x = T(kind, [1, 16, 16], None, 0.05, other(kind, -4))
    unit = T(kind, [1, 16, 16], None, 1 / 256, other(kind, -128))
    double = T(kind, [1, 16, 16], None, 1 / 128, other(kind, 0))
    y = T(kind, [1, 16, 16], None, 0.06, other(kind, 3))
    same = T(kind, [1, 16, 16], None, 0.05, other(kind, -4))
    found = [
        Case("logistic", "LOGISTIC", [x], unit),
        Case("tanh", "TANH", [x], double),
        Case("hard swish", "HARD_SWISH", [x], y),
        Case("leaky relu", "LEAKY_RELU", [x], y, options("LeakyRelu", alpha=0.1)),
        Case("relu", "RELU", [x], y),
        Case("relu6", "RELU6", [x], y),
        Case("relu in the same scale", "RELU", [x], same),
        Case("requantize", "QUANTIZE", [x], y, exact=kind == "i8"),
        Case(
            "to the other sign",
            "QUANTIZE",
            [x],
            T("u8" if kind == "i8" else "i8", [1, 16, 16], None, 0.05, -4 + (128 if kind == "i8" else 0)),
        ),
        Case(
            "to another scale and sign", "QUANTIZE", [x], T("u8" if kind == "i8" else "i8", [1, 16, 16], None, 0.03, 3)
        ),
        Case(
            "quantize",
            "QUANTIZE",
            [T("f32", [1, 16, 16])],
            y,
            values={0: np.random.default_rng(2).uniform(-10, 10, (1, 16, 16)).astype(np.float32)},
        ),
        Case("dequantize", "DEQUANTIZE", [x], T("f32", [1, 16, 16])),
    ]
    if kind == "i8":
        found += [
            Case("elu", "ELU", [x], y),
            Case(
                "negative",
                "NEG",
                [T(kind, [1, 16, 16], None, 0.05, 0)],
                T(kind, [1, 16, 16], None, 0.05, 0),
                values={0: np.maximum(every, -127)},
            ),
            Case("absolute", "ABS", [x], y, options("Abs")),
            Case("reciprocal square root", "RSQRT", [T(kind, [1, 16, 16], None, 0.05, -128)], y),
            Case("gelu", "GELU", [x], y, options("Gelu", approximate=False)),
            Case("exponential", "EXP", [x], T(kind, [1, 16, 16], None, 1.0, -100), options("Exp")),
        ]
    return [Case(c.name, c.code, c.inputs, c.output, c.options, c.exact, c.values or {0: every}) for c in found]


def gathering(kind: str) -> list[Case]:
    def t(shape: Sequence[int], scale: float = 0.05, zero: int = -4) -> T:
        return T(kind, shape, None, scale, other(kind, zero))

    def pool(padding: int, stride: int, size: int, activation: str = "none") -> Any:
        return options(
            "Pool2D", padding=padding, strideH=stride, strideW=stride, filterHeight=size, filterWidth=size,
            fusedActivationFunction=ACTIVATIONS[activation],
        )  # fmt: skip

    axes = T("i32", [2], [1, 2])
    image = t([1, 12, 11, 19])
    return [
        Case("average pool", "AVERAGE_POOL_2D", [image], t([1, 6, 5, 19]), pool(1, 2, 2)),
        Case("average pool at the borders", "AVERAGE_POOL_2D", [image], t([1, 6, 6, 19]), pool(0, 2, 3, "relu")),
        Case("whole average pool", "AVERAGE_POOL_2D", [t([1, 7, 7, 70])], t([1, 1, 1, 70]), pool(1, 1, 7)),
        Case("max pool", "MAX_POOL_2D", [image], t([1, 6, 6, 19]), pool(0, 2, 3)),
        Case("mean", "MEAN", [image, axes], t([1, 19], 0.02, 5), options("Reducer", keepDims=False)),
        Case("mean in the same scale", "MEAN", [image, axes], t([1, 1, 1, 19]), options("Reducer", keepDims=True)),
        Case(
            "mean of channels",
            "MEAN",
            [image, T("i32", [1], [3])],
            t([1, 12, 11], 0.02, 5),
            options("Reducer", keepDims=False),
        ),
        Case("sum", "SUM", [image, axes], t([1, 19], 0.9, 5), options("Reducer", keepDims=False)),
        Case("largest", "REDUCE_MAX", [image, axes], t([1, 19]), options("Reducer", keepDims=False)),
        Case(
            "softmax",
            "SOFTMAX",
            [t([5, 37], 0.1)],
            T(kind, [5, 37], None, 1 / 256, other(kind, -128)),
            options("Softmax", beta=1.0),
        ),
        Case(
            "softmax of few",
            "SOFTMAX",
            [t([5, 3], 0.02)],
            T(kind, [5, 3], None, 1 / 256, other(kind, -128)),
            options("Softmax", beta=1.0),
        ),
        Case(
            "concatenation",
            "CONCATENATION",
            [t([1, 4, 5]), t([1, 4, 5])],
            t([1, 4, 10]),
            options("Concatenation", axis=2, fusedActivationFunction=0),
        ),
        Case(
            "concatenation of other scales",
            "CONCATENATION",
            [t([1, 4, 5]), t([1, 4, 7], 0.03, 10)],
            t([1, 4, 12], 0.06, 2),
            options("Concatenation", axis=2, fusedActivationFunction=0),
        ),
        Case("pad", "PAD", [image, T("i32", [4, 2], [[0, 0], [1, 2], [0, 3], [0, 0]])], t([1, 15, 14, 19])),
        Case(
            "resize to twice the size",
            "RESIZE_BILINEAR",
            [image, T("i32", [2], [24, 22])],
            t([1, 24, 22, 19]),
            options("ResizeBilinear", alignCorners=False, halfPixelCenters=True),
        ),
        Case(
            "resize",
            "RESIZE_BILINEAR",
            [image, T("i32", [2], [17, 5])],
            t([1, 17, 5, 19]),
            options("ResizeBilinear", alignCorners=False, halfPixelCenters=False),
        ),
        Case(
            "resize from corner to corner",
            "RESIZE_BILINEAR",
            [image, T("i32", [2], [17, 15])],
            t([1, 17, 15, 19]),
            options("ResizeBilinear", alignCorners=True, halfPixelCenters=False),
        ),
        Case(
            "resize to the nearest",
            "RESIZE_NEAREST_NEIGHBOR",
            [image, T("i32", [2], [24, 22])],
            t([1, 24, 22, 19]),
            options("ResizeNearestNeighbor", alignCorners=False, halfPixelCenters=False),
        ),
        Case("transpose", "TRANSPOSE", [image, T("i32", [4], [0, 2, 3, 1])], t([1, 11, 19, 12])),
    ]


CASES = [
    pytest.param(kind, case, id=f"{case.name} {kind}")
    for kind in ("i8", "u8")
    for make in (convolutions, arithmetic, functions, gathering)
    for case in make(kind)
]


@pytest.mark.parametrize(("kind", "case"), sampled(CASES, 3))
def test_an_operator_agrees_with_litert(kind: str, case: Case, tmp_path: Path) -> None:
    content = single(case.code, case.inputs, [case.output], case.options)
    path = tmp_path / "single.tflite"
    path.write_bytes(content)
    try:
        peer = interpreter.Interpreter(model_content=content, num_threads=1)
        peer.allocate_tensors()
    except (RuntimeError, ValueError) as problem:
        pytest.skip(f"LiteRT refuses it: {str(problem)[:80]}")
    rng = np.random.default_rng(1)
    feeds = {}
    for detail in peer.get_input_details():
        index = int(detail["name"][1:])
        array = case.values.get(index)
        if array is None:
            info = np.iinfo(detail["dtype"])
            array = rng.integers(info.min, info.max + 1, detail["shape"]).astype(detail["dtype"])
        peer.set_tensor(detail["index"], array)
        feeds[detail["name"]] = array
    peer.invoke()
    expected = peer.get_tensor(peer.get_output_details()[0]["index"])
    with isthmus.Session(path) as session:
        [got] = session.run(feeds).values()
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    distance = np.abs(got.astype(np.float64) - expected)
    message = f"{np.mean(distance > 0):.2%} differ, by up to {distance.max()}"
    if case.exact:
        assert not distance.any(), message
    assert distance.max() <= 1, message
