"""What a converter does not take is refused by a sentence of its own, and what is one step inside is taken.

Each line is an operator that is one step outside of what its converter takes, with a part of the sentence.
"""

import struct

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from frontends.tflite.build import Op, Subgraph, T, model, options, single
from frontends.tflite.cases import f, ints, q
from frontends.tflite.runners import GraphRunner
from isthmus.errors import QnnError
from isthmus.frontends.tflite import load, operator_context, walk

X = (2, 3, 4, 5)


def zeros(*shape: int) -> T:
    return T("f32", shape, np.zeros(shape))


def slicing(begin: list, end: list, strides: list, **masks: int) -> bytes:
    made = options("StridedSlice", **masks)
    return single("STRIDED_SLICE", [f(*X), ints(begin), ints(end), ints(strides)], [f(*X)], made)


def conv(x: T, weights: T, *bias: T, out: T | None = None, **changed: int) -> bytes:
    made = options("Conv2D", **{"strideH": 1, "strideW": 1, **changed})
    return single("CONV_2D", [x, weights, *bias], [out or f(1, 5, 5, 6)], made)


def byte_conv(bias: T) -> bytes:
    """Return a convolution of bytes with a bias."""
    weights = T("i8", (6, 3, 3, 4), np.zeros((6, 3, 3, 4)), 0.1)
    return conv(q(1, 5, 5, 4), weights, bias, out=q(1, 5, 5, 6))


def pool(x: T, **changed: int) -> bytes:
    made = options("Pool2D", **{"strideH": 1, "strideW": 1, "filterHeight": 2, "filterWidth": 2, **changed})
    return single("MAX_POOL_2D", [x], [f(1, 4, 4, 3)], made)


def transposing(size: list, **changed: int) -> bytes:
    made = options("TransposeConv", **{"padding": 1, "strideH": 2, "strideW": 2, **changed})
    return single("TRANSPOSE_CONV", [ints(size), zeros(6, 3, 3, 4), f(1, 5, 5, 4)], [f(1, 11, 11, 6)], made)


def custom(options_: bytes) -> bytes:
    tensors = [f(1, 5, 5, 4), zeros(6, 3, 3, 4), zeros(6), f(1, 10, 10, 6)]
    op = Op("CUSTOM:Convolution2DTransposeBias", [0, 1, 2], [3], custom=options_)
    return model(Subgraph(tensors, [op], [0], [3]))


def blocks(block: list, edges: list) -> bytes:
    return single("SPACE_TO_BATCH_ND", [f(1, 4, 6, 8), ints(block), T("i32", np.shape(edges), edges)], [f(4, 2, 4, 8)])


def lstm(x: T, **changed: int) -> list:
    """All operands of an LSTM of 2 units over 3 features, states last but for layer normalisation."""
    gates = [zeros(2, 3)] * 4 + [zeros(2, 2)] * 4 + [zeros(2)] * 3 + [zeros(2)] * 4 + [zeros(2, 2), zeros(2)]
    states = [T("f32", (1, 2), variable=True), T("f32", (1, 2), variable=True)]
    return [x, *gates, *states]


def lstm_model(x: T, layer_norm: bool = False, **changed) -> bytes:
    operands = [*lstm(x), *([zeros(2)] * 4 if layer_norm else [])]
    made = options("UnidirectionalSequenceLSTM", **{"fusedActivationFunction": 4, "timeMajor": True, **changed})
    tensors = [*operands, f(5, 1, 2)]
    # Peepholes and projection are left out.
    absent = (9, 10, 11, 16, 17)
    inputs = [-1 if i in absent else i for i in range(len(operands))]
    return model(Subgraph(tensors, [Op("UNIDIRECTIONAL_SEQUENCE_LSTM", inputs, [len(operands)], made)], [0],
                          [len(operands)]))  # fmt: skip


REFUSED: list[tuple[str, bytes, str]] = [
    # Shapes.
    ("no new shape", single("RESHAPE", [f(2, 6)], [f(3, 4)]), "the new shape is missing"),
    ("two open", single("RESHAPE", [f(2, 6), ints([-1, -1])], [f(3, 4)]), r"cannot take the shape \[-1, -1\]"),
    ("other size", single("RESHAPE", [f(2, 6), ints([3, 5])], [f(3, 4)]), r"cannot take the shape \[3, 5\]"),
    ("no divisor", single("RESHAPE", [f(2, 6), ints([5, -1])], [f(3, 4)]), r"12 elements cannot take .* \[5, -1\]"),
    ("open beside 0", single("RESHAPE", [f(2, 6), ints([0, -1])], [f(3, 4)]), "12 elements cannot take"),
    ("negative", single("RESHAPE", [f(2, 6), ints([-2, -6])], [f(3, 4)]), r"cannot take the shape \[-2, -6\]"),
    ("axis", single("EXPAND_DIMS", [f(2, 6), ints(3)], [f(2, 6, 1)]), "axis 3 is outside rank 3"),
    ("axis below", single("EXPAND_DIMS", [f(2, 6), ints(-4)], [f(2, 6, 1)]), "axis -4 is outside rank 3"),
    ("two axes", single("EXPAND_DIMS", [f(2, 6), ints([0, 1])], [f(2, 6, 1)]), "must have one element, has 2"),
    ("axis of reals", single("EXPAND_DIMS", [f(2, 6), zeros()], [f(2, 6, 1)]), "must hold integers, holds float32"),
    ("axis at run time", single("EXPAND_DIMS", [f(2, 6), T("i32", ())], [f(2, 6, 1)]), "must be a constant"),
    ("squeezed", single("SQUEEZE", [f(1, 6)], [f(6)], options("Squeeze", squeezeDims=[1])), "not all of size 1"),
    # Slices.
    ("short begin", single("SLICE", [f(2, 6), ints([0]), ints([1, 1])], [f(1, 1)]), "must have 2 elements"),
    ("short size", single("SLICE", [f(2, 6), ints([0, 0]), ints([1])], [f(1, 1)]), "must have 2 elements"),
    ("too long", single("SLICE", [f(2, 6), ints([0, 3]), ints([1, 4])], [f(1, 1)]), "are not in"),
    ("begin below", single("SLICE", [f(2, 6), ints([0, -1]), ints([1, 1])], [f(1, 1)]), "are not in"),
    ("negative size", single("SLICE", [f(2, 6), ints([0, 3]), ints([1, -2])], [f(1, 1)]), "are not in"),
    ("uneven lists", slicing([0, 0], [1], [1, 1]), "must have the same number of elements"),
    ("uneven strides", slicing([0, 0], [1, 1], [1]), "must have the same number of elements"),
    ("five axes", slicing([0] * 5, [1] * 5, [1] * 5), "slices 5 axes, its input has rank 4"),
    ("index above", slicing([2], [3], [1], shrinkAxisMask=1), "index 2 is outside axis 0"),
    ("index below", slicing([-3], [3], [1], shrinkAxisMask=1), "index -3 is outside axis 0"),
    ("stride of 0", slicing([0], [1], [0]), "a stride of 0"),
    # Joins and parts.
    ("outputs", single("UNPACK", [f(2, 3)], [f(2)] * 2, options("Unpack", axis=1, num=2)), "2 outputs for 3 elements"),
    (
        "no parts",
        model(Subgraph([ints(1), f(2, 5), f(2, 5)], [Op("SPLIT", [0, 1], []), Op("RELU", [1], [2])], [1], [2])),
        "into 0 equal parts",
    ),
    ("unequal parts", single("SPLIT", [ints(1), f(2, 5)], [f(2, 2)] * 2, options("Split", numSplits=2)), "equal parts"),
    (
        "parts",
        single("SPLIT_V", [f(2, 6), ints([1, 4]), ints(1)], [f(2, 1), f(2, 4)], options("SplitV", numSplits=2)),
        "cannot be split into",
    ),
    (
        "part below 0",
        single("SPLIT_V", [f(2, 6), ints([8, -2]), ints(1)], [f(2, 1), f(2, 4)], options("SplitV", numSplits=2)),
        "cannot be split into",
    ),
    (
        "part without output",
        single("SPLIT_V", [f(2, 6), ints([1, 4, 1]), ints(1)], [f(2, 1), f(2, 4)], options("SplitV", numSplits=2)),
        "cannot be split into",
    ),
    # Indices.
    ("place", single("GATHER", [f(*X), ints(4)], [f(2, 3, 5)], options("Gather", axis=2)), "index 4 is outside axis 2"),
    (
        "place below",
        single("GATHER", [f(*X), ints(-1)], [f(2, 3, 5)], options("Gather", axis=2)),
        "index -1 is outside",
    ),
    (
        "batches",
        single("GATHER", [f(2, 3, 4), T("i32", (2, 2))], [f(2, 2, 4)], options("Gather", axis=2, batchDims=1)),
        "batch_dims that are not all axes",
    ),
    (
        "more batches than indices",
        single("GATHER", [f(2, 2, 3, 4), T("i32", (2,))], [f(2, 2, 4)], options("Gather", axis=2, batchDims=2)),
        "batch_dims that are not all axes",
    ),
    (
        "scattered",
        single("SCATTER_ND", [T("i32", (1, 1), [[1]]), q(1, 2), ints([5, 2])], [q(5, 2)]),
        "scattering quantized",
    ),
    (
        "update of other rank",
        single("DYNAMIC_UPDATE_SLICE", [f(4, 5), f(2), ints([1, 1])], [f(4, 5)]),
        "does not fit",
    ),
    ("update", single("DYNAMIC_UPDATE_SLICE", [f(4, 5), f(2, 6), ints([1, 1])], [f(4, 5)]), "does not fit"),
    ("place of update", single("DYNAMIC_UPDATE_SLICE", [f(4, 5), f(2, 2), ints([1])], [f(4, 5)]), "does not fit"),
    (
        "on",
        single("ONE_HOT", [T("i32", (3,)), ints(4), zeros(2), zeros()], [f(3, 4)], options("OneHot", axis=-1)),
        "one value for on",
    ),
    (
        "off",
        single("ONE_HOT", [T("i32", (3,)), ints(4), zeros(), zeros(2)], [f(3, 4)], options("OneHot", axis=-1)),
        "one value for on",
    ),
    (
        "depth",
        single("ONE_HOT", [T("i32", (3,)), ints(-1), zeros(), zeros()], [f(3, 4)], options("OneHot", axis=-1)),
        "one value for on",
    ),
    # Padding and filling.
    ("pads", single("PAD", [f(2, 3), T("i32", (1, 2), [[0, 1]])], [f(3, 6)]), "must be 2 pairs"),
    ("pad below 0", single("PAD", [f(2, 3), T("i32", (2, 2), [[0, 1], [-1, 0]])], [f(3, 6)]), "not negative"),
    (
        "value",
        single("PADV2", [f(2, 3), T("i32", (2, 2), [[0, 1], [1, 0]]), zeros(2)], [f(3, 6)]),
        "must be one number, has 2",
    ),
    (
        "mode",
        single("MIRROR_PAD", [f(2, 3), T("i32", (2, 2), [[0, 1], [1, 0]])], [f(3, 6)], options("MirrorPad", mode=2)),
        "mode 2 is unknown",
    ),
    ("stretch", single("BROADCAST_TO", [f(3, 2), ints([2, 3, 4])], [f(2, 3, 4)]), "does not broadcast"),
    ("stretch to less", single("BROADCAST_TO", [f(3, 2), ints([2])], [f(2)]), "does not broadcast"),
    ("fill", single("FILL", [ints([2, 3]), f(2)], [f(2, 3)]), r"must be one number, is \[2\]"),
    ("shapes", single("BROADCAST_ARGS", [ints([2, 3]), ints([4, 3])], [T("i32", (2,))]), "do not broadcast"),
    ("no step", single("RANGE", [ints(0), ints(4), ints(0)], [T("i32", (4,))], options("Range")), "must not be 0"),
    (
        "two starts",
        single("RANGE", [ints([0, 1]), ints(4), ints(1)], [T("i32", (4,))], options("Range")),
        "needs one finite",
    ),
    (
        "endless",
        single("RANGE", [zeros(), T("f32", (), np.inf), T("f32", (), 1.0)], [f(4)], options("Range")),
        "needs one finite",
    ),
    # Windows.
    ("channels", conv(f(1, 5, 5, 4), zeros(6, 3, 3, 3)), "4 input channels cannot be grouped by the filter's 3"),
    ("filter of rank 3", conv(f(1, 5, 5, 4), zeros(6, 3, 4)), "must have rank 4, has rank 3"),
    ("image of rank 3", conv(f(5, 5, 4), zeros(6, 3, 3, 4)), "input 0 must have rank 4, has rank 3"),
    ("bias", conv(f(1, 5, 5, 4), zeros(6, 3, 3, 4), zeros(5)), "has 5 elements for 6 channels"),
    (
        "bias of bytes",
        byte_conv(T("i16", (6,), np.zeros(6), 0.005)),
        "must hold 32 or 64-bit integers",
    ),
    (
        "large bias",
        byte_conv(T("i64", (6,), [1 << 31] * 6, 0.005)),
        "does not fit 32 bits",
    ),
    (
        "large negative bias",
        byte_conv(T("i64", (6,), [-(1 << 31) - 1] * 6, 0.005)),
        "does not fit 32 bits",
    ),
    ("stride", conv(f(1, 5, 5, 4), zeros(6, 3, 3, 4), strideH=0), "stride_h must be at least 1, is 0"),
    ("dilation", conv(f(1, 5, 5, 4), zeros(6, 3, 3, 4), dilationWFactor=0), "dilation_w must be at least 1"),
    ("padding", conv(f(1, 5, 5, 4), zeros(6, 3, 3, 4), padding=2), "padding 2 is unknown"),
    ("activation", conv(f(1, 5, 5, 4), zeros(6, 3, 3, 4), fusedActivationFunction=5), "function 5 is not supported"),
    ("pooled stride", pool(f(1, 5, 5, 3), strideW=0), "stride_w must be at least 1"),
    ("pooled filter", pool(f(1, 5, 5, 3), filterHeight=0), "filter_h must be at least 1"),
    ("sizes", transposing([11, 11, 6]), "must have 4 elements, has 3"),
    ("size below", transposing([1, 10, 11, 6]), "an output of 10 does not follow"),
    ("size above", transposing([1, 11, 13, 6]), "an output of 13 does not follow"),
    ("custom options", custom(b"\0" * 11), "must hold padding and strides"),
    ("custom padding", custom(struct.pack("<iii", 0, 2, 2)), "padding 0 and strides 2, 2"),
    ("custom padding above", custom(struct.pack("<iii", 3, 2, 2)), "padding 3 and strides 2, 2"),
    ("custom stride", custom(struct.pack("<iii", 1, 2, 0)), "strides 0, 2 make no sense"),
    (
        "shuffled",
        single("FULLY_CONNECTED", [f(2, 4), zeros(3, 4)], [f(2, 3)], options("FullyConnected", weightsFormat=1)),
        "shuffled weights",
    ),
    ("weights", single("FULLY_CONNECTED", [f(2, 4), zeros(1, 3, 4)], [f(2, 3)], options("FullyConnected")), "rank 2"),
    (
        "radius",
        single(
            "LOCAL_RESPONSE_NORMALIZATION",
            [f(1, 2, 3, 8)],
            [f(1, 2, 3, 8)],
            options("LocalResponseNormalization", radius=-1, bias=1.0, alpha=0.5, beta=0.75),
        ),
        "must not be negative, is -1",
    ),
    # Elements.
    (
        "slope",
        single("LEAKY_RELU", [q(2, 5, type="u8")], [q(2, 5, type="u8")], options("LeakyRelu", alpha=-0.1)),
        "negative slope on an unsigned",
    ),
    ("bent", single("GELU", [q(2, 5)], [q(2, 5)], options("Gelu", approximate=True)), "for float32 only"),
    ("cast", single("CAST", [q(3, 5)], [f(3, 5)]), "reads or writes quantized"),
    ("cast to", single("CAST", [f(3, 5)], [q(3, 5)]), "reads or writes quantized"),
    ("quantized", single("QUANTIZE", [T("i32", (3,))], [q(3)]), "quantizing INT_32 to INT8"),
    ("quantized to", single("QUANTIZE", [f(3)], [T("i32", (3,))]), "quantizing FLOAT_32 to INT32"),
    ("dequantized", single("DEQUANTIZE", [T("i32", (3,))], [f(3)]), "dequantizing INT_32"),
    # Axes and blocks.
    (
        "bools",
        single("REDUCE_ANY", [T("i32", (3, 2)), ints([1])], [T("bool", (3,))], options("Reducer")),
        "must be BOOL_8",
    ),
    ("k", single("TOPK_V2", [f(3, 9), ints(-1)], [f(3, 4), T("i32", (3, 4))]), "k must not be negative"),
    (
        "size",
        single("RESIZE_BILINEAR", [f(1, 2, 2, 1), ints([4])], [f(1, 4, 4, 1)], options("ResizeBilinear")),
        "new size",
    ),
    (
        "size of 0",
        single("RESIZE_BILINEAR", [f(1, 2, 2, 1), ints([4, 0])], [f(1, 4, 4, 1)], options("ResizeBilinear")),
        "new size",
    ),
    (
        "block",
        single("SPACE_TO_DEPTH", [f(1, 4, 6, 8)], [f(1, 2, 3, 32)], options("SpaceToDepth")),
        "block_size must be",
    ),
    ("blocks", blocks([2], [[0, 0], [1, 1]]), "do not fit 2 spatial axes"),
    ("edges", blocks([2, 2], [[0, 0]]), "do not fit 2 spatial axes"),
    ("block of 0", blocks([2, 0], [[0, 0], [1, 1]]), "do not fit 2 spatial axes"),
    ("edge below 0", blocks([2, 2], [[0, 0], [-1, 1]]), "do not fit 2 spatial axes"),
    # Spectra.
    ("length", single("RFFT2D", [f(3, 1, 16), ints([1, 0])], [T("c64", (3, 1, 1))]), "does not fit"),
    ("lengths", single("RFFT2D", [f(3, 1, 16), ints([16])], [T("c64", (3, 1, 9))]), "does not fit"),
    ("long", single("RFFT2D", [f(3, 1, 16), ints([1, 8193])], [T("c64", (3, 1, 9))]), "at most 8192"),
    ("one axis", single("RFFT2D", [f(16), ints([1, 16])], [T("c64", (9,))]), "does not fit"),
    ("integers", single("RFFT2D", [T("i32", (1, 16)), ints([1, 16])], [T("c64", (1, 9))]), "must be FLOAT_32"),
    ("real", single("COMPLEX_ABS", [f(3)], [f(3)]), "must be complex"),
    # Layers.
    ("lstm of bytes", lstm_model(T("i8", (5, 1, 3), None, 0.1)), "an LSTM of SFIXED_POINT_8"),
    ("lstm of rank 2", lstm_model(f(5, 3)), "input 0 must have rank 3"),
    ("lstm activation", lstm_model(f(5, 1, 3), fusedActivationFunction=1), "another activation than TANH"),
    ("lstm diagonal", lstm_model(f(5, 1, 3), diagonalRecurrentTensors=True), "diagonal weights"),
    ("lstm norm", lstm_model(f(5, 1, 3), layer_norm=True), "layer normalisation"),
    # Results.
    (
        "per channel",
        single("ADD", [q(2, 3), q(2, 3)], [T("i8", (2, 3), None, [0.1, 0.2, 0.3], [0, 0, 0], axis=1)], options("Add")),
        "results quantized per channel",
    ),
]


@pytest.mark.parametrize(("data", "sentence"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_the_first_value_beyond_a_limit_is_refused_with_its_own_message(data: bytes, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence):
        load(data, "g")


TAKEN = {
    "a shape of one number for a scalar": single("RESHAPE", [f(1, 1), ints([0])], [f()]),
    "a slice of nothing": single("SLICE", [f(2, 6), ints([2, 6]), ints([0, 0])], [f(0, 0)]),
    "the last element": single("GATHER", [f(*X), ints(3)], [f(2, 3, 5)], options("Gather", axis=2)),
    "batches counted from the end": single(
        "GATHER",
        [f(2, 3, 4), T("i32", (2, 2), [[2, 0], [1, 1]])],
        [f(2, 2, 4)],
        options("Gather", axis=1, batchDims=-1),
    ),
    "an update as large as what it updates": single(
        "DYNAMIC_UPDATE_SLICE", [f(4, 5), f(4, 5), ints([0, 0])], [f(4, 5)]
    ),
    "no classes": single("ONE_HOT", [T("i32", (3,)), ints(0), zeros(), zeros()], [f(3, 0)], options("OneHot", axis=-1)),
    "a radius of 0": single(
        "LOCAL_RESPONSE_NORMALIZATION",
        [f(1, 2, 3, 8)],
        [f(1, 2, 3, 8)],
        options("LocalResponseNormalization", radius=0, bias=1.0, alpha=0.5, beta=0.75),
    ),
    "no largest": single("TOPK_V2", [f(3, 9), ints(0)], [f(3, 0), T("i32", (3, 0))]),
    "a bias of 32 bits in 64": conv(
        q(1, 5, 5, 4),
        T("i8", (6, 3, 3, 4), np.zeros((6, 3, 3, 4)), 0.1),
        T("i64", (6,), [(1 << 31) - 1, -(1 << 31), 0, 0, 0, 0], 0.005),
        out=q(1, 5, 5, 6),
    ),
    "one sample": model(
        Subgraph(
            [f(3, 1, 1), ints([1, 1]), T("c64", (3, 1, 1)), f(3, 1, 1)],
            [Op("RFFT2D", [0, 1], [2]), Op("REAL", [2], [3])],
            [0],
            [3],
        )
    ),
    "an output of stride times the input": transposing([1, 11, 12, 6]),
    "an LSTM": lstm_model(f(5, 1, 3)),
}


@pytest.mark.parametrize("name", TAKEN)
def test_the_last_value_within_a_limit_is_accepted(name: str) -> None:
    assert load(TAKEN[name], "g").finalized


def test_ends_of_a_slice_may_be_offsets_from_its_begins() -> None:
    plain = slicing([1, 1], [2, 3], [1, 1])
    counted = slicing([1, 1], [1, 2], [1, 1], offset=True)
    x = np.random.default_rng(1).standard_normal(X).astype(np.float32)
    results = [GraphRunner(load(data, "g"))(x)[0] for data in (plain, counted)]
    np.testing.assert_array_equal(results[0], x[1:2, 1:3])
    np.testing.assert_array_equal(results[1], results[0])


def test_a_sum_of_one_operand_is_that_operand() -> None:
    x = np.float32([[1, 2, 3]])
    graph = load(single("ADD_N", [f(1, 3)], [f(1, 3)]), "g")
    np.testing.assert_array_equal(GraphRunner(graph)(x)[0], x)


@pytest.mark.parametrize(("count", "taken"), [(6, True), (7, False)])
def test_operators_that_run_are_counted(monkeypatch, count: int, taken: bool) -> None:
    monkeypatch.setattr(walk, "MAX_STEPS", 6)
    tensors = [f(2) for _ in range(count + 1)]
    data = model(Subgraph(tensors, [Op("NEG", [i], [i + 1]) for i in range(count)], [0], [count]))
    if taken:
        assert len(load(data, "g").nodes) == count
    else:
        with pytest.raises(QnnError, match="runs more than 6 operators"):
            load(data, "g")


@pytest.mark.parametrize(("depth", "taken"), [(3, True), (4, False)])
def test_calls_within_calls_are_counted_from_the_main_graph(monkeypatch, depth: int, taken: bool) -> None:
    monkeypatch.setattr(walk, "MAX_DEPTH", 3)
    decided = T("bool", (), True)

    def calling(level: int) -> Subgraph:
        made = options("If", thenSubgraphIndex=level + 1, elseSubgraphIndex=level + 1)
        return Subgraph([f(2), decided, f(2)], [Op("IF", [1, 0], [2], made)], [0], [2])

    innermost = Subgraph([f(2), f(2)], [Op("NEG", [0], [1])], [0], [1])
    data = model(*(calling(level) for level in range(depth)), innermost)
    if taken:
        assert load(data, "g").nodes[0].op == "ElementWiseNeg"
    else:
        with pytest.raises(QnnError, match="more than 3 deep"):
            load(data, "g")


def test_the_limits_are_those_that_are_written_down() -> None:
    assert (walk.MAX_DEPTH, walk.MAX_ITERATIONS, walk.MAX_STEPS) == (16, 1000, 50_000)
    assert (walk.MAX_FOLDED_BYTES, operator_context.MAX_CONSTANT_BYTES) == (1 << 30, 1 << 30)
    assert (operator_context.MAX_FOLDED_PRODUCTS, operator_context.MAX_FOLDED_ELEMENTS) == (1 << 31, 1 << 14)


SPARSE, DENSE = 1, 0


def sparse(
    order=(0, 1), blocks=(), dims=((DENSE, 2), (SPARSE, [0, 1, 3], [1, 0, 2])), values=(5, 6, 7), shape=(2, 3),
    vectors=schema.SparseIndexVector.Int32Vector,
):  # fmt: skip
    """A constant of 2 x 3 floats by rows, [[0, 5, 0], [6, 0, 7]], or the same with something wrong."""
    data = model(Subgraph([f(*shape), T("f32", shape, np.zeros(shape)), f(*shape)], [Op("ADD", [0, 1], [2],
                 options("Add"))], [0], [2]))  # fmt: skip
    unpacked = schema.ModelT.InitFromPackedBuf(data, 0)
    tensor = unpacked.subgraphs[0].tensors[1]
    unpacked.buffers[tensor.buffer].data = np.frombuffer(np.asarray(values, np.float32).tobytes(), np.uint8)
    tensor.sparsity = schema.SparsityParametersT()
    tensor.sparsity.traversalOrder, tensor.sparsity.blockMap = list(order), list(blocks)
    tensor.sparsity.dimMetadata = []
    for kind, *rest in dims:
        made = schema.DimensionMetadataT()
        made.format = kind
        if kind == DENSE:
            made.denseSize = rest[0]
        else:
            for name, numbers in zip(("Segments", "Indices"), rest, strict=True):
                if numbers is not None:
                    vector = schema.Int32VectorT()
                    vector.values = list(numbers)
                    setattr(made, f"array{name}", vector)
                setattr(made, f"array{name}Type", vectors)
        tensor.sparsity.dimMetadata.append(made)
    builder = flatbuffers.Builder(1024)
    builder.Finish(unpacked.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def test_a_sparse_constant_is_written_out_row_by_row() -> None:
    graph = load(sparse(), "g")
    [constant] = [t.data for t in graph.tensors.values() if t.data is not None]
    np.testing.assert_array_equal(constant, [[0, 5, 0], [6, 0, 7]])


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"order": (0, 0)}, "do not fit its rank 2"),
        ({"order": (0, 1, 2)}, "do not fit its rank 2"),
        ({"dims": ((DENSE, 2),)}, "do not fit its rank 2"),
        ({"order": (0, 1, 2), "blocks": (2,), "dims": ((DENSE, 2), (DENSE, 1), (DENSE, 1))}, "block map"),
        ({"order": (0, 1, 2, 3), "blocks": (0, 0), "dims": ((DENSE, 1),) * 4}, "block map"),
        ({"dims": ((DENSE, 4), (SPARSE, [0, 1, 3], [1, 0, 2]))}, "reaches more elements than are stored"),
        ({"dims": ((DENSE, -1), (SPARSE, [0, 1, 3], [1, 0, 2]))}, "reaches more elements than are stored"),
        ({"dims": ((DENSE, 2), (SPARSE, [0, 1], [1, 0, 2]))}, "segments of sparse dimension 1"),
        ({"dims": ((DENSE, 2), (SPARSE, [1, 1, 3], [1, 0, 2]))}, "segments of sparse dimension 1"),
        ({"dims": ((DENSE, 2), (SPARSE, [0, 1, 2], [1, 0, 2]))}, "segments of sparse dimension 1"),
        ({"dims": ((DENSE, 2), (SPARSE, [0, 4, 3], [1, 0, 2]))}, "segments of sparse dimension 1"),
        ({"dims": ((DENSE, 2), (2, [0, 1, 3], [1, 0, 2]))}, "unknown format"),
        ({"dims": ((DENSE, 2), (SPARSE, None, [1, 0, 2]))}, "lacks an index vector"),
        ({"vectors": 9}, "lacks an index vector"),
        ({"vectors": schema.SparseIndexVector.NONE}, "lacks an index vector"),
        ({"values": (5, 6, 7, 8)}, "4 values are stored, its sparse dimensions reach 3"),
        ({"dims": ((DENSE, 2), (SPARSE, [0, 1, 3], [1, 0, 3]))}, "outside dimension 1 of size 3"),
        ({"dims": ((DENSE, 2), (SPARSE, [0, 1, 3], [-1, 0, 2]))}, "outside dimension 1 of size 3"),
    ],
)
def test_a_sparse_constant_that_does_not_fit_is_refused(changed: dict, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence):
        load(sparse(**changed), "g")


def altered(change) -> bytes:
    """A sum of two inputs of 2 x 3, with something in the file changed."""
    unpacked = schema.ModelT.InitFromPackedBuf(single("ADD", [f(2, 3), f(2, 3)], [f(2, 3)], options("Add")), 0)
    change(unpacked, unpacked.subgraphs[0], unpacked.subgraphs[0].tensors[0], unpacked.subgraphs[0].operators[0])
    builder = flatbuffers.Builder(1024)
    builder.Finish(unpacked.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def change(target: int, **fields):
    """A change of the model (0), its subgraph (1), its first tensor (2) or its operator (3)."""

    def make(*parts) -> None:
        for name, value in fields.items():
            assert hasattr(parts[target], name)
            setattr(parts[target], name, value)

    return make


def scales(count: int):
    def make(file, subgraph, tensor, operator) -> None:
        tensor.type = schema.TensorType.INT8
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale, tensor.quantization.zeroPoint = [1.0] * count, [0] * count
        tensor.quantization.quantizedDimension = 0

    return make


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (change(0, version=2), "the schema version is 2, expected 3"),
        (change(0, version=4), "the schema version is 4, expected 3"),
        (change(0, subgraphs=[]), "it has no subgraph"),
        (change(1, inputs=[0, 3]), "name tensor 3, subgraph 0 has 3"),
        (change(1, inputs=[0, -2]), "name tensor -2"),
        (change(1, inputs=[0, -1]), "the inputs name tensor -1 which is not a tensor"),
        (change(1, inputs=[0, 0]), "more than once"),
        (change(2, shape=[1] * 9), "has rank 9, above 8"),
        (change(2, shape=[2, -2]), "has the dimension -2"),
        (change(2, shapeSignature=[2]), "a shape of rank 2 and a signature of rank 1"),
        (change(2, type=99), "unknown type 99"),
        (change(2, externalBuffer=1), "keeps its data in another file"),
        (change(2, type=schema.TensorType.STRING), "STRING"),
        (change(3, inputs=[0] * 4097), "4097 inputs, more than 4096"),
        (scales((1 << 16) + 1), "65537 scales, more than 65536"),
        (change(3, opcodeIndex=1), "operator code"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(make, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence):
        load(altered(make), "g")


def test_a_rank_of_8_and_open_dimensions_are_taken() -> None:
    assert load(altered(change(2, shape=[1] * 6 + [2, 3])), "g").inputs[0].rank == 8
    assert load(altered(change(2, shape=[-1, 3])), "g").inputs[0].dims == (1, 3)
    assert load(altered(lambda *parts: None), "g").inputs[0].dims == (2, 3)


HANDLE = Op("VAR_HANDLE", [], [1], options("VarHandle", container="", sharedName="v"))


def handled(*operators: Op, out: int = 2, more: list[T] = []) -> bytes:  # noqa: B006
    """Tensors 0 (an input of 2 floats), 1 (a handle), 2 and 3 (floats), then more."""
    tensors = [f(2), T("resource", (1,)), f(2), f(2), *more]
    return model(Subgraph(tensors, [HANDLE, *operators], [0], [out]))


def branching(condition: T, given: list[int]) -> bytes:
    made = options("If", thenSubgraphIndex=1, elseSubgraphIndex=1)
    main = Subgraph([condition, f(2), f(2)], [Op("IF", given, [2], made)], [1], [2])
    return model(main, Subgraph([f(2), f(2)], [Op("NEG", [0], [1])], [0], [1]))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (handled(Op("ADD", [0, 1], [2], options("Add"))), "a resource handle is not a value"),
        (handled(Op("READ_VARIABLE", [0], [2])), "must be a resource handle"),
        (handled(Op("READ_VARIABLE", [], [2])), "must be a resource handle"),
        (handled(Op("READ_VARIABLE", [1], []), Op("NEG", [0], [2])), "its output is missing"),
        (handled(Op("ASSIGN_VARIABLE", [1], []), Op("NEG", [0], [2])), "needs a value to assign"),
        (handled(Op("ASSIGN_VARIABLE", [1, 1], []), Op("NEG", [0], [2])), "needs a value to assign"),
        (
            handled(Op("ASSIGN_VARIABLE", [1, 0], []), Op("READ_VARIABLE", [1], [4]), out=4, more=[T("i32", (2,))]),
            "is read as INT32",
        ),
        (handled(Op("NEG", [0], [2]), out=1), "not a tensor of real numbers"),
        (branching(T("bool", (), True), [0, 1, 1]), "gives 2 values to subgraph 'main', which takes 1"),
        (branching(T("bool", (2,), [True, True]), [0, 1]), "must be one value"),
        (branching(T("bool", (), True), []), "must be one value"),
    ],
)
def test_handles_and_calls_that_make_no_sense_are_refused(data: bytes, sentence: str) -> None:
    with pytest.raises(QnnError, match=sentence):
        load(data, "g")


def test_as_many_operators_as_a_model_can_have_are_taken(monkeypatch) -> None:
    monkeypatch.setattr("isthmus.frontends.tflite.model.MAX_OPERATORS", 1)
    assert load(single("NEG", [f(2)], [f(2)]), "g").nodes


@pytest.mark.parametrize(("limit", "folded"), [(2 * 3 * 5, True), (2 * 3 * 5 - 1, False)])
def test_products_of_constants_are_counted_by_their_multiplications(monkeypatch, limit: int, folded: bool) -> None:
    monkeypatch.setattr(operator_context, "MAX_FOLDED_PRODUCTS", limit)
    tensors = [zeros(2, 3), zeros(3, 5), f(2, 5), f(2, 5), f(2, 5)]
    operators = [Op("BATCH_MATMUL", [0, 1], [2], options("BatchMatMul")), Op("ADD", [2, 3], [4], options("Add"))]
    graph = load(model(Subgraph(tensors, operators, [3], [4])), "g")
    assert [node.op for node in graph.nodes] == [*([] if folded else ["MatMul"]), "ElementWiseAdd"]


@pytest.mark.parametrize(("limit", "folded"), [(32, True), (31, False)])
def test_windows_over_constants_are_counted_by_their_elements(monkeypatch, limit: int, folded: bool) -> None:
    monkeypatch.setattr(operator_context, "MAX_FOLDED_ELEMENTS", limit)
    made = options("Pool2D", padding=1, strideH=2, strideW=2, filterHeight=2, filterWidth=2)
    tensors = [zeros(1, 4, 4, 2), f(1, 2, 2, 2), f(1, 2, 2, 2), f(1, 2, 2, 2)]
    operators = [Op("MAX_POOL_2D", [0], [1], made), Op("ADD", [1, 2], [3], options("Add"))]
    graph = load(model(Subgraph(tensors, operators, [2], [3])), "g")
    assert [node.op for node in graph.nodes] == [*([] if folded else ["PoolMax2d"]), "ElementWiseAdd"]


def test_what_has_no_elements_is_left_out_of_a_join() -> None:
    made = options("Concatenation", axis=0)
    empty = T("f32", (0, 3), np.zeros((0, 3)))
    for operands, op in (([f(2, 3), empty], "Reshape"), ([f(2, 3), f(1, 3)], "Concat")):
        assert load(single("CONCATENATION", operands, [f(2, 3)], made), "g").nodes[0].op == op


@pytest.mark.parametrize("real", [True, False])
def test_rows_of_a_table_of_bytes_are_read_as_what_is_declared(real: bool) -> None:
    table = q(4, 3, scale=0.5, zero=1, data=np.arange(12))
    out = f(2, 3) if real else q(2, 3, scale=0.5, zero=1)
    index = T("i32", (2,))
    graph = load(single("GATHER", [table, index], [out], options("Gather")), "g")
    [rows] = GraphRunner(graph)(np.int32([3, 1]))
    stored = np.arange(12).reshape(4, 3)[[3, 1]]
    np.testing.assert_array_equal(rows, (stored - 1) * 0.5 if real else stored)


@pytest.mark.parametrize(("padding", "size"), [(1, (10, 15)), (2, (11, 15))])
def test_the_custom_transposed_convolution_is_the_builtin_one(padding: int, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    w, bias = rng.standard_normal((6, 3, 3, 4)), rng.standard_normal(6)
    out = f(1, *size, 6)
    tensors = [f(1, 5, 5, 4), T("f32", (6, 3, 3, 4), w), T("f32", (6,), bias), out]
    op = Op("CUSTOM:Convolution2DTransposeBias", [0, 1, 2], [3], custom=struct.pack("<iii", padding, 3, 2))
    made = options("TransposeConv", padding=padding - 1, strideH=2, strideW=3)
    plain = [ints([1, *size, 6]), T("f32", (6, 3, 3, 4), w), f(1, 5, 5, 4), T("f32", (6,), bias)]
    x = rng.standard_normal((1, 5, 5, 4)).astype(np.float32)
    found = GraphRunner(load(model(Subgraph(tensors, [op], [0], [3])), "g"))(x)[0]
    expected = GraphRunner(load(single("TRANSPOSE_CONV", plain, [out], made), "g"))(x)[0]
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("failure", "sentence"),
    [
        (
            TypeError("unsupported operand type(s) for +: 'NoneType' and 'int'"),
            "operands and options do not fit together",
        ),
        (MemoryError(), "it needs more memory than there is"),
    ],
)
def test_a_failure_inside_a_converter_is_reported_in_plain_words(
    monkeypatch, failure: Exception, sentence: str
) -> None:
    def fail(node: operator_context.OperatorContext) -> list:
        raise failure

    monkeypatch.setitem(walk.CONVERTERS, "NEG", fail)
    with pytest.raises(QnnError, match=sentence) as refused:
        load(single("NEG", [f(2)], [f(2)]), "g")
    assert refused.value.__cause__ is failure
    assert "TypeError" not in str(refused.value)
    assert "NoneType" not in str(refused.value)
