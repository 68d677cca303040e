"""One model per operator, or per way of using it: name, file, and how close its results must be to LiteRT's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frontends.tflite.build import Op, Subgraph, T, model, options, single

RNG = np.random.default_rng(7)


@dataclass(frozen=True)
class Case:
    """A model to compare; `steps` is the largest difference in stored integers, floats compare relatively."""

    name: str
    model: bytes
    steps: int = 0
    positive: bool = False
    """Whether inputs must be above zero."""


def reals(*shape: int) -> np.ndarray:
    """Random weights."""
    return RNG.standard_normal(shape).astype(np.float32)


def bytes8(*shape: int) -> np.ndarray:
    """Random 8-bit weights."""
    return RNG.integers(-127, 128, shape)


def f(*shape: int) -> T:
    """A float tensor."""
    return T("f32", shape)


def q(*shape: int, scale: float = 0.05, zero: int = 3, type: str = "i8", data=None) -> T:
    """A quantized tensor."""
    return T(type, shape, data, scale, zero)


def ints(*values) -> T:
    """A constant vector of indices, a scalar for a single number."""
    array = np.asarray(values[0] if len(values) == 1 else values)
    return T("i32", array.shape, array)


def _unary() -> list[Case]:
    names = "ABS CEIL COS EXP FLOOR NEG ROUND SIGN SIN SQUARE ELU HARD_SWISH LOGISTIC RELU RELU6 RELU_N1_TO_1 TANH"
    cases = [Case(n, single(n, [f(2, 5)], [f(2, 5)])) for n in names.split()]
    cases += [Case(n, single(n, [f(2, 5)], [f(2, 5)]), positive=True) for n in ("LOG", "SQRT", "RSQRT")]
    for n in ("RELU", "RELU6"):
        cases.append(Case(f"{n} int8", single(n, [q(2, 50)], [q(2, 50)]), 1))
    for n in ("LOGISTIC", "TANH"):
        # LiteRT fixes the scales of these results.
        out = q(2, 50, scale=1 / 256, zero=-128) if n == "LOGISTIC" else q(2, 50, scale=1 / 128, zero=0)
        cases.append(Case(f"{n} int8", single(n, [q(2, 50)], [out]), 1))
    cases += [
        Case("LOGICAL_NOT", single("LOGICAL_NOT", [T("bool", (4,))], [T("bool", (4,))])),
        Case("GELU", single("GELU", [f(2, 5)], [f(2, 5)], options("Gelu"))),
        Case("GELU approximate", single("GELU", [f(2, 5)], [f(2, 5)], options("Gelu", approximate=True))),
        Case("LEAKY_RELU", single("LEAKY_RELU", [f(2, 5)], [f(2, 5)], options("LeakyRelu", alpha=0.1))),
        Case("LEAKY_RELU int8", single("LEAKY_RELU", [q(2, 50)], [q(2, 50)], options("LeakyRelu", alpha=0.1)), 1),
        Case("SOFTMAX", single("SOFTMAX", [f(3, 5)], [f(3, 5)], options("Softmax", beta=0.7))),
        Case(
            "SOFTMAX int8",
            single("SOFTMAX", [q(3, 5)], [q(3, 5, scale=1 / 256, zero=-128)], options("Softmax", beta=1.0)),
            1,
        ),
        Case("LOG_SOFTMAX", single("LOG_SOFTMAX", [f(3, 5)], [f(3, 5)])),
        Case("L2_NORMALIZATION", single("L2_NORMALIZATION", [f(3, 5)], [f(3, 5)], options("L2Norm"))),
        Case("ZEROS_LIKE and its type", single("ZEROS_LIKE", [f(3, 5)], [f(3, 5)])),
        Case("CAST to int", single("CAST", [f(3, 5)], [T("i32", (3, 5))])),
        Case("CAST to bool", single("CAST", [T("i32", (3, 5))], [T("bool", (3, 5))])),
        Case("CAST from bool", single("CAST", [T("bool", (3, 5))], [f(3, 5)])),
        Case("QUANTIZE", single("QUANTIZE", [f(3, 5)], [q(3, 5)])),
        Case("QUANTIZE again", single("QUANTIZE", [q(3, 50)], [q(3, 50, scale=0.04, zero=100, type="u8")]), 1),
        Case("DEQUANTIZE", single("DEQUANTIZE", [q(3, 5)], [f(3, 5)])),
        Case(
            "LOCAL_RESPONSE_NORMALIZATION",
            single(
                "LOCAL_RESPONSE_NORMALIZATION",
                [f(1, 2, 3, 8)],
                [f(1, 2, 3, 8)],
                options("LocalResponseNormalization", radius=2, bias=1.0, alpha=0.5, beta=0.75),
            ),
        ),
    ]
    return cases


def _binary() -> list[Case]:
    kinds = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}
    cases = [
        Case(
            f"{n} with activation {a}",
            single(n, [f(2, 3, 4), f(3, 1)], [f(2, 3, 4)], options(k, fusedActivationFunction=a)),
        )
        for n, k in kinds.items()
        for a in (0, 1, 2, 3)
    ]
    for n in ("ADD", "SUB", "MUL"):
        for a in (0, 1, 3):
            made = options(kinds[n], fusedActivationFunction=a)
            out = q(2, 3, 40, scale=0.09, zero=-7)
            operands = [q(2, 3, 40), q(2, 3, 40, zero=-20)]
            cases.append(Case(f"{n} int8, activation {a}", single(n, operands, [out], made), 1))
        constant = q(40, scale=0.03, zero=5, data=bytes8(40))
        cases.append(Case(f"{n} int8 constant", single(n, [q(2, 3, 40), constant], [out], options(kinds[n])), 1))
    cases.append(
        Case(
            "ADD uint8",
            single(
                "ADD",
                [q(2, 40, type="u8"), q(2, 40, type="u8", zero=90)],
                [q(2, 40, type="u8", scale=0.1, zero=120)],
                options("Add"),
            ),
            1,
        )
    )
    for n in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE"):
        cases.append(Case(n, single(n, [f(2, 3), f(3)], [f(2, 3)])))
    for n in ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"):
        cases.append(Case(n, single(n, [T("i32", (40,)), T("i32", (40,))], [T("bool", (40,))])))
    for n in ("LOGICAL_AND", "LOGICAL_OR"):
        cases.append(Case(n, single(n, [T("bool", (9,)), T("bool", (9,))], [T("bool", (9,))])))
    three = T("i32", (1,), [3])
    for n in ("FLOOR_DIV", "FLOOR_MOD", "ADD", "SUB", "MUL", "DIV"):
        made = options(kinds[n]) if n in kinds else None
        cases.append(Case(f"{n} int32", single(n, [T("i32", (40,)), three], [T("i32", (40,))], made)))
    cases += [
        Case("POW", single("POW", [f(2, 3), T("f32", (1,), [1.5])], [f(2, 3)]), positive=True),
        Case("FLOOR_MOD float", single("FLOOR_MOD", [f(2, 9), T("f32", (1,), [0.7])], [f(2, 9)])),
        Case("PRELU", single("PRELU", [f(1, 2, 3, 4), T("f32", (1, 1, 4), reals(4))], [f(1, 2, 3, 4)])),
        Case("PRELU int8", single("PRELU", [q(1, 2, 3, 4), T("i8", (1, 1, 4), bytes8(4), 0.01)], [q(1, 2, 3, 4)]), 1),
        Case("ADD_N", single("ADD_N", [f(2, 3)] * 3, [f(2, 3)])),
        Case("SELECT by rows", single("SELECT", [T("bool", (3,)), f(3, 4), f(3, 4)], [f(3, 4)])),
        Case("SELECT_V2", single("SELECT_V2", [T("bool", (3, 1)), f(4), f(3, 4)], [f(3, 4)])),
    ]
    return cases


def _convolutions() -> list[Case]:
    cases = []
    for padding in (0, 1):
        for stride, dilation in ((1, 1), (2, 1), (1, 2)):
            made = options(
                "Conv2D",
                padding=padding,
                strideH=stride,
                strideW=stride,
                dilationHFactor=dilation,
                dilationWFactor=dilation,
                fusedActivationFunction=1,
            )
            size = 9 if padding == 0 else 9 - 2 * dilation
            size = -(-size // stride)
            x, y = (2, 9, 9, 4), (2, size, size, 6)
            what = f"padding {padding} stride {stride} dilation {dilation}"
            weights, bias = T("f32", (6, 3, 3, 4), reals(6, 3, 3, 4)), T("f32", (6,), reals(6))
            cases.append(Case(f"CONV_2D {what}", single("CONV_2D", [f(*x), weights, bias], [f(*y)], made)))
            weights = T("i8", (6, 3, 3, 4), bytes8(6, 3, 3, 4), np.linspace(0.002, 0.004, 6))
            bias = T("i32", (6,), RNG.integers(-999, 999, 6), np.linspace(0.002, 0.004, 6) * 0.05)
            out = q(*y, scale=0.08, zero=-100)
            cases.append(Case(f"CONV_2D int8 {what}", single("CONV_2D", [q(*x), weights, bias], [out], made), 1))
            made = options(
                "DepthwiseConv2D",
                padding=padding,
                strideH=stride,
                strideW=stride,
                depthMultiplier=2,
                dilationHFactor=dilation,
                dilationWFactor=dilation,
            )
            y = (2, size, size, 8)
            weights, bias = T("f32", (1, 3, 3, 8), reals(1, 3, 3, 8)), T("f32", (8,), reals(8))
            cases.append(
                Case(f"DEPTHWISE_CONV_2D {what}", single("DEPTHWISE_CONV_2D", [f(*x), weights, bias], [f(*y)], made))
            )
            scales = np.linspace(0.002, 0.004, 8)
            weights = T("i8", (1, 3, 3, 8), bytes8(1, 3, 3, 8), scales, axis=3)
            bias = T("i32", (8,), RNG.integers(-999, 999, 8), scales * 0.05)
            cases.append(
                Case(
                    f"DEPTHWISE_CONV_2D int8 {what}",
                    single("DEPTHWISE_CONV_2D", [q(*x), weights, bias], [q(*y)], made),
                    1,
                )
            )
    grouped = options("Conv2D", padding=0, strideH=1, strideW=1)
    weights = T("f32", (6, 3, 3, 2), reals(6, 3, 3, 2))
    cases.append(
        Case(
            "CONV_2D grouped",
            single("CONV_2D", [f(1, 5, 5, 4), weights, T("f32", (6,), reals(6))], [f(1, 5, 5, 6)], grouped),
        )
    )
    for padding, size in ((0, 10), (1, 11)):
        made = options("TransposeConv", padding=padding, strideH=2, strideW=2)
        weights = T("f32", (6, 3, 3, 4), reals(6, 3, 3, 4))
        cases.append(
            Case(
                f"TRANSPOSE_CONV padding {padding}",
                single(
                    "TRANSPOSE_CONV",
                    [ints(1, size, size, 6), weights, f(1, 5, 5, 4), T("f32", (6,), reals(6))],
                    [f(1, size, size, 6)],
                    made,
                ),
            )
        )
    made = options("Conv3D", padding=0, strideD=1, strideH=2, strideW=1)
    cases.append(
        Case(
            "CONV_3D",
            single(
                "CONV_3D", [f(1, 4, 5, 6, 3), T("f32", (2, 3, 3, 3, 5), reals(2, 3, 3, 3, 5))], [f(1, 4, 3, 6, 5)], made
            ),
        )
    )
    for n in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D"):
        for padding in (0, 1):
            made = options("Pool2D", padding=padding, strideH=2, strideW=2, filterHeight=3, filterWidth=3)
            y = (1, 4, 4, 3) if padding == 0 else (1, 3, 3, 3)
            cases.append(Case(f"{n} padding {padding}", single(n, [f(1, 8, 8, 3)], [f(*y)], made)))
            if n != "L2_POOL_2D":
                cases.append(Case(f"{n} int8 padding {padding}", single(n, [q(1, 8, 8, 3)], [q(*y)], made), 1))
    return cases


def _products() -> list[Case]:
    made = options("FullyConnected", fusedActivationFunction=1)
    keep = options("FullyConnected", keepNumDims=True)
    weights, bias = T("f32", (7, 12), reals(7, 12)), T("f32", (7,), reals(7))
    weights8, bias8 = T("i8", (7, 12), bytes8(7, 12), 0.01), T("i32", (7,), RNG.integers(-999, 999, 7), 0.0005)
    int4 = T("i4", (7, 12), RNG.integers(-7, 8, (7, 12)), np.linspace(0.1, 0.2, 7))
    # Generators of their own, so that the numbers of other cases stay.
    deep = np.random.default_rng(4).integers(-7, 8, (7, 64))
    deep4, deep4_of_one_scale = T("i4", (7, 64), deep, np.linspace(0.1, 0.2, 7)), T("i4", (7, 64), deep, 0.01)
    cases = [
        Case("FULLY_CONNECTED", single("FULLY_CONNECTED", [f(2, 3, 4), weights, bias], [f(2, 7)], made)),
        Case("FULLY_CONNECTED keeps axes", single("FULLY_CONNECTED", [f(2, 3, 12), weights, bias], [f(2, 3, 7)], keep)),
        Case("FULLY_CONNECTED int8", single("FULLY_CONNECTED", [q(2, 12), weights8, bias8], [q(2, 7)], made), 1),
        Case("FULLY_CONNECTED 4-bit weights", single("FULLY_CONNECTED", [f(2, 12), int4, bias], [f(2, 7)], made)),
        Case(
            "FULLY_CONNECTED packed 4-bit weights", single("FULLY_CONNECTED", [f(3, 64), deep4, bias], [f(3, 7)], made)
        ),
        Case(
            "FULLY_CONNECTED int8 packed 4-bit weights",
            single("FULLY_CONNECTED", [q(3, 64), deep4_of_one_scale, bias8], [q(3, 7)], made),
            1,
        ),
    ]
    for x, y in ((False, False), (True, False), (False, True), (True, True)):
        left, right = (2, 5, 4) if x else (2, 4, 5), (2, 3, 5) if y else (2, 5, 3)
        made = options("BatchMatMul", adjX=x, adjY=y)
        cases.append(Case(f"BATCH_MATMUL {x} {y}", single("BATCH_MATMUL", [f(*left), f(*right)], [f(2, 4, 3)], made)))
    right = T("i8", (2, 5, 3), bytes8(2, 5, 3), 0.02)
    cases.append(
        Case("BATCH_MATMUL hybrid", single("BATCH_MATMUL", [f(2, 4, 5), right], [f(2, 4, 3)], options("BatchMatMul")))
    )
    filters = T("i8", (6, 3, 3, 4), bytes8(6, 3, 3, 4), np.linspace(0.01, 0.02, 6))
    by_channel = T("i8", (1, 3, 3, 4), bytes8(1, 3, 3, 4), np.linspace(0.01, 0.02, 4), axis=3)
    once = {"strideH": 1, "strideW": 1}
    for what, x, factors, y, made in (
        ("CONV_2D", (2, 5, 5, 4), filters, (2, 5, 5, 6), options("Conv2D", **once)),
        ("DEPTHWISE_CONV_2D", (2, 5, 5, 4), by_channel, (2, 5, 5, 4), options("DepthwiseConv2D", **once)),
        ("FULLY_CONNECTED", (2, 12), weights8, (2, 7), options("FullyConnected", fusedActivationFunction=1)),
    ):
        operands = [f(*x), factors, T("f32", y[-1:], reals(y[-1]))]
        cases.append(Case(f"{what} hybrid", single(what, operands, [f(*y)], made)))
        # LiteRT has no hybrid convolution without bias.
        if what == "FULLY_CONNECTED":
            cases.append(Case(f"{what} hybrid without bias", single(what, operands[:2], [f(*y)], made)))
    return cases


def _movement() -> list[Case]:
    def slicing(name, x, begin, end, strides, y, **masks):
        made = options("StridedSlice", **masks)
        return Case(
            f"STRIDED_SLICE {name}",
            single("STRIDED_SLICE", [f(*x), ints(begin), ints(end), ints(strides)], [f(*y)], made),
        )

    x = (2, 3, 4, 5)
    pads = T("i32", (3, 2), [[0, 1], [2, 1], [0, 0]])
    return [
        slicing("plain", x, [0, 1, 0, 1], [2, 3, 4, 4], [1, 1, 2, 2], (2, 2, 2, 2)),
        slicing("masks", x, [1, 1, 1, 1], [1, 2, 3, 4], [1, 1, 1, 1], (2, 2, 3, 3), beginMask=1, endMask=3),
        slicing("backwards", x, [-1, -1, -1, -1], [0, -9, 0, 0], [-1, -1, -2, -1], (1, 3, 2, 4)),
        slicing("shrink", x, [1, 0, -1, 0], [2, 3, 0, 5], [1, 1, 1, 1], (3, 5), shrinkAxisMask=5),
        slicing("ellipsis", x, [0, 0, 1], [1, 0, 3], [1, 1, 1], (1, 3, 4, 2), ellipsisMask=2),
        slicing("new axis", x, [0, 0, 0], [2, 0, 2], [1, 1, 1], (2, 1, 2, 4, 5), newAxisMask=2),
        slicing("everything", x, [0, 0], [2, 3], [1, 1], x),
        Case("RESHAPE", single("RESHAPE", [f(2, 6), ints([3, -1])], [f(3, 4)])),
        Case("RESHAPE by option", single("RESHAPE", [f(2, 6)], [f(3, 4)], options("Reshape", newShape=[3, 4]))),
        Case("EXPAND_DIMS", single("EXPAND_DIMS", [f(2, 6), ints(-1)], [f(2, 6, 1)])),
        Case("SQUEEZE", single("SQUEEZE", [f(1, 6, 1)], [f(6, 1)], options("Squeeze", squeezeDims=[0]))),
        Case("TRANSPOSE", single("TRANSPOSE", [f(*x), ints([3, 0, 2, 1])], [f(5, 2, 4, 3)])),
        Case("SLICE", single("SLICE", [f(*x), ints([1, 0, 1, 2]), ints([1, -1, 2, 3])], [f(1, 3, 2, 3)])),
        Case(
            "CONCATENATION", single("CONCATENATION", [f(2, 3), f(2, 4)], [f(2, 7)], options("Concatenation", axis=-1))
        ),
        Case(
            "CONCATENATION int8",
            single("CONCATENATION", [q(2, 3), q(2, 4)], [q(2, 7)], options("Concatenation", axis=1)),
        ),
        Case("PACK", single("PACK", [f(2, 3)] * 2, [f(2, 3, 2)], options("Pack", axis=-1, valuesCount=2))),
        Case("UNPACK", single("UNPACK", [f(2, 3)], [f(2)] * 3, options("Unpack", axis=1, num=3))),
        Case("SPLIT", single("SPLIT", [ints(1), f(2, 6)], [f(2, 2)] * 3, options("Split", numSplits=3))),
        Case(
            "SPLIT_V",
            single(
                "SPLIT_V",
                [f(2, 6), ints([1, -1, 2]), ints(-1)],
                [f(2, 1), f(2, 3), f(2, 2)],
                options("SplitV", numSplits=3),
            ),
        ),
        Case("GATHER", single("GATHER", [f(*x), ints([3, 0])], [f(2, 3, 2, 5)], options("Gather", axis=2))),
        Case("GATHER one", single("GATHER", [f(*x), ints(2)], [f(2, 3, 5)], options("Gather", axis=2))),
        Case(
            "GATHER in batches",
            single(
                "GATHER",
                [f(2, 3, 4), T("i32", (2, 2), [[2, 0], [1, 1]])],
                [f(2, 2, 4)],
                options("Gather", axis=1, batchDims=1),
            ),
        ),
        Case("GATHER_ND", single("GATHER_ND", [f(2, 3, 4), T("i32", (2, 2), [[1, 0], [0, 2]])], [f(2, 4)])),
        Case("EMBEDDING_LOOKUP", single("EMBEDDING_LOOKUP", [ints([2, 0]), T("f32", (3, 4), reals(3, 4))], [f(2, 4)])),
        Case("SCATTER_ND", single("SCATTER_ND", [T("i32", (3, 1), [[1], [4], [1]]), f(3, 2), ints([5, 2])], [f(5, 2)])),
        Case("DYNAMIC_UPDATE_SLICE", single("DYNAMIC_UPDATE_SLICE", [f(4, 5), f(2, 2), ints([1, 9])], [f(4, 5)])),
        Case("PAD", single("PAD", [f(2, 3, 4), pads], [f(3, 6, 4)])),
        Case("PAD int8", single("PAD", [q(2, 3, 4), pads], [q(3, 6, 4)])),
        Case("PADV2", single("PADV2", [f(2, 3, 4), pads, T("f32", (), 1.5)], [f(3, 6, 4)])),
        Case("PADV2 int8", single("PADV2", [q(2, 3, 4), pads, q(data=17)], [q(3, 6, 4)])),
        *(
            Case(
                f"MIRROR_PAD {mode}",
                single("MIRROR_PAD", [f(2, 3, 4), pads], [f(3, 6, 4)], options("MirrorPad", mode=mode)),
            )
            for mode in (0, 1)
        ),
        Case("TILE", single("TILE", [f(2, 3), ints([2, 3])], [f(4, 9)])),
        Case("BROADCAST_TO", single("BROADCAST_TO", [f(3, 1), ints([2, 3, 4])], [f(2, 3, 4)])),
        Case("FILL with an input", single("FILL", [ints([2, 3]), f()], [f(2, 3)])),
        Case(
            "ONE_HOT",
            single(
                "ONE_HOT",
                [T("i32", (3,)), ints(20), T("f32", (), 2.0), T("f32", (), -1.0)],
                [f(3, 20)],
                options("OneHot", axis=-1),
            ),
        ),
        Case("REVERSE_V2", single("REVERSE_V2", [f(2, 3, 4), ints([1])], [f(2, 3, 4)])),
        Case(
            "REVERSE_SEQUENCE",
            single(
                "REVERSE_SEQUENCE",
                [f(2, 5, 3), ints([2, 4])],
                [f(2, 5, 3)],
                options("ReverseSequence", seqDim=1, batchDim=0),
            ),
        ),
    ]


def _reductions() -> list[Case]:
    cases = []
    for n in ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN"):
        cases += [
            Case(
                f"{n} keeps axes",
                single(n, [f(2, 3, 4), ints([-1, 0])], [f(1, 3, 1)], options("Reducer", keepDims=True)),
            ),
            Case(n, single(n, [f(2, 3, 4), ints([1])], [f(2, 4)], options("Reducer"))),
        ]
    image = (1, 4, 6, 8)
    cases += [
        Case("MEAN int8", single("MEAN", [q(*image), ints([1, 2])], [q(1, 8)], options("Reducer")), 1),
        Case("REDUCE_ANY", single("REDUCE_ANY", [T("bool", (3, 2)), ints([1])], [T("bool", (3,))], options("Reducer"))),
        Case("REDUCE_ALL", single("REDUCE_ALL", [T("bool", (3, 2)), ints([1])], [T("bool", (3,))], options("Reducer"))),
        Case("ARG_MAX", single("ARG_MAX", [f(3, 9), ints(-1)], [T("i64", (3,))], options("ArgMax", outputType=4))),
        Case("ARG_MIN", single("ARG_MIN", [f(3, 9), ints(1)], [T("i32", (3,))], options("ArgMin", outputType=2))),
        Case("TOPK_V2", single("TOPK_V2", [f(3, 9), ints(4)], [f(3, 4), T("i32", (3, 4))])),
        Case("CUMSUM", single("CUMSUM", [f(3, 9), ints(1)], [f(3, 9)], options("Cumsum", exclusive=True))),
        Case(
            "SPACE_TO_DEPTH",
            single("SPACE_TO_DEPTH", [f(*image)], [f(1, 2, 3, 32)], options("SpaceToDepth", blockSize=2)),
        ),
        Case(
            "DEPTH_TO_SPACE",
            single("DEPTH_TO_SPACE", [f(*image)], [f(1, 8, 12, 2)], options("DepthToSpace", blockSize=2)),
        ),
        Case(
            "SPACE_TO_BATCH_ND",
            single("SPACE_TO_BATCH_ND", [f(*image), ints([2, 2]), T("i32", (2, 2), [[0, 0], [1, 1]])], [f(4, 2, 4, 8)]),
        ),
        Case(
            "SPACE_TO_BATCH_ND int8",
            single("SPACE_TO_BATCH_ND", [q(*image), ints([2, 2]), T("i32", (2, 2), [[0, 0], [1, 1]])], [q(4, 2, 4, 8)]),
        ),
        Case(
            "SPACE_TO_BATCH_ND of a line",
            single("SPACE_TO_BATCH_ND", [f(1, 5, 3), ints([2]), T("i32", (1, 2), [[0, 1]])], [f(2, 3, 3)]),
        ),
        Case(
            "BATCH_TO_SPACE_ND",
            single(
                "BATCH_TO_SPACE_ND", [f(4, 2, 3, 5), ints([2, 2]), T("i32", (2, 2), [[0, 1], [1, 0]])], [f(1, 3, 5, 5)]
            ),
        ),
    ]
    for n, kind in (("RESIZE_BILINEAR", "ResizeBilinear"), ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor")):
        for align, half in ((False, False), (True, False), (False, True)):
            made = options(kind, alignCorners=align, halfPixelCenters=half)
            cases.append(Case(f"{n} {align} {half}", single(n, [f(*image), ints([7, 9])], [f(1, 7, 9, 8)], made)))
    return cases


def _spectra() -> list[Case]:
    """A transform, its result squeezed, and one of the ways to make it real."""
    cases = []
    for n in ("COMPLEX_ABS", "REAL", "IMAG", "CAST"):
        for x, lengths, z in (((3, 1, 16), [1, 16], (3, 1, 9)), ((3, 6, 20), [4, 32], (3, 4, 17))):
            tensors = [
                f(*x),
                ints(lengths),
                T("c64", z),
                T("i32", (2,), [3, -1]),
                T("c64", (3, z[1] * z[2])),
                f(3, z[1] * z[2]),
            ]
            operators = [Op("RFFT2D", [0, 1], [2]), Op("RESHAPE", [2, 3], [4]), Op(n, [4], [5])]
            cases.append(Case(f"RFFT2D {lengths} and {n}", model(Subgraph(tensors, operators, [0], [5]))))
    return cases


def _rare() -> list[Case]:
    """Forms that converters treat apart."""
    x = (2, 3, 4, 5)

    def joined(name: str, op: Op, tensors: list[T], last: T) -> Case:
        """An operator whose result is known when the file is read, added to an input."""
        at = len(tensors)
        operators = [op, Op("ADD", [0, op.outputs[0]], [at], options("Add"))]
        return Case(name, model(Subgraph([*tensors, last], operators, [0], [at])))

    empty = T("f32", (2, 0), np.zeros((2, 0)))
    table = q(3, 4, scale=0.1, zero=0, data=bytes8(3, 4))
    return [
        Case("PACK of one", single("PACK", [f(2, 3)], [f(2, 1, 3)], options("Pack", axis=1, valuesCount=1))),
        Case("UNPACK into one", single("UNPACK", [f(2, 1)], [f(2)], options("Unpack", axis=1, num=1))),
        Case("SPLIT into one", single("SPLIT", [ints(1), f(2, 6)], [f(2, 6)], options("Split", numSplits=1))),
        Case(
            "CONCATENATION with nothing in it",
            single("CONCATENATION", [f(2, 3), empty], [f(2, 3)], options("Concatenation", axis=1)),
        ),
        Case(
            "STRIDED_SLICE shrinks from the front",
            single(
                "STRIDED_SLICE",
                [f(*x), ints([1, -1]), ints([2, 3]), ints([1, 1])],
                [f(3, 4, 5)],
                options("StridedSlice", shrinkAxisMask=1, beginMask=3, endMask=2),
            ),
        ),
        Case("SQUEEZE of all", single("SQUEEZE", [f(1, 6, 1)], [f(6)], options("Squeeze"))),
        Case("EMBEDDING_LOOKUP of bytes", single("EMBEDDING_LOOKUP", [ints([2, 0]), table], [f(2, 4)])),
        Case("BROADCAST_TO the same", single("BROADCAST_TO", [f(2, 3), ints([2, 3])], [f(2, 3)])),
        Case(
            "MEAN of no axes",
            single("MEAN", [f(2, 3), T("i32", (0,), np.zeros(0))], [f(2, 3)], options("Reducer", keepDims=True)),
        ),
        Case("SELECT of whole operands", single("SELECT", [T("bool", (3, 4)), f(3, 4), f(3, 4)], [f(3, 4)])),
        Case(
            "LEAKY_RELU int8 of a negative slope",
            single("LEAKY_RELU", [q(2, 50)], [q(2, 50)], options("LeakyRelu", alpha=-0.3)),
            1,
        ),
        Case(
            "LEAKY_RELU uint8",
            single("LEAKY_RELU", [q(2, 50, type="u8")], [q(2, 50, type="u8")], options("LeakyRelu", alpha=0.3)),
            1,
        ),
        Case(
            "LOCAL_RESPONSE_NORMALIZATION of single elements",
            single(
                "LOCAL_RESPONSE_NORMALIZATION",
                [f(1, 2, 3, 8)],
                [f(1, 2, 3, 8)],
                options("LocalResponseNormalization", radius=0, bias=1.0, alpha=0.5, beta=0.75),
            ),
        ),
        Case("CUMSUM backwards", single("CUMSUM", [f(3, 9), ints(0)], [f(3, 9)], options("Cumsum", reverse=True))),
        Case(
            "BATCH_TO_SPACE_ND of a line",
            single("BATCH_TO_SPACE_ND", [f(2, 3, 3), ints([2]), T("i32", (1, 2), [[1, 0]])], [f(1, 5, 3)]),
        ),
        Case(
            "FULLY_CONNECTED of one row",
            single("FULLY_CONNECTED", [f(3, 4), T("f32", (7, 12), reals(7, 12))], [f(1, 7)], options("FullyConnected")),
        ),
        Case(
            "CONV_2D with another stride each way",
            single(
                "CONV_2D",
                [f(1, 9, 8, 2), T("f32", (3, 3, 2, 2), reals(3, 3, 2, 2)), T("f32", (3,), reals(3))],
                [f(1, 5, 3, 3)],
                options("Conv2D", padding=0, strideH=2, strideW=3, dilationHFactor=1, dilationWFactor=1),
            ),
        ),
        Case(
            "CONV_3D with a bias and other strides",
            single(
                "CONV_3D",
                [f(1, 4, 5, 6, 3), T("f32", (2, 3, 1, 3, 5), reals(2, 3, 1, 3, 5)), T("f32", (5,), reals(5))],
                [f(1, 3, 2, 2, 5)],
                options("Conv3D", padding=1, strideD=1, strideH=2, strideW=3),
            ),
        ),
        Case(
            "AVERAGE_POOL_2D with another window each way",
            single(
                "AVERAGE_POOL_2D",
                [f(1, 8, 9, 3)],
                [f(1, 8, 3, 3)],
                options("Pool2D", padding=0, strideH=1, strideW=3, filterHeight=3, filterWidth=2),
            ),
        ),
        joined(
            "RANGE",
            Op("RANGE", [1, 2, 3], [4], options("Range")),
            [T("i32", (1,)), ints(9), ints(0), ints(-2), T("i32", (5,))],
            T("i32", (5,)),
        ),
        joined(
            "RANGE of reals",
            Op("RANGE", [1, 2, 3], [4], options("Range")),
            [f(1), T("f32", (), 0.5), T("f32", (), 2.0), T("f32", (), 0.25), f(6)],
            f(6),
        ),
        joined("RANK", Op("RANK", [1], [2]), [T("i32", (1,)), T("f32", x, reals(*x)), T("i32", ())], T("i32", (1,))),
        joined(
            "BROADCAST_ARGS",
            Op("BROADCAST_ARGS", [1, 2], [3]),
            [T("i32", (1,)), ints([4, 1]), ints([2, 1, 3]), T("i32", (3,))],
            T("i32", (3,)),
        ),
    ]


CASES = [
    *_spectra(), *_unary(), *_binary(), *_convolutions(), *_products(), *_movement(), *_reductions(), *_rare(),
]  # fmt: skip
