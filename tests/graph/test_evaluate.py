"""The reference computations agree with ONNX Runtime, operation by operation, and with arithmetic done by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.onnx_node import last, ort
from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.folding import emit
from isthmus.graph.ops import OPERATIONS

RNG = np.random.default_rng(7)
F32 = DataType.FLOAT_32


def rand(*dims: int) -> np.ndarray:
    return RNG.standard_normal(dims).astype(np.float32)


def compute(
    op: str, arrays: list, params: dict | None = None, dims: tuple | None = None, **more: Any
) -> list[np.ndarray]:
    """The results of one operation on constants, by folding it."""
    graph = Graph("g")
    inputs = [None if a is None else graph.constant(f"in{i}", np.asarray(a)) for i, a in enumerate(arrays)]
    more.setdefault("outputs", OPERATIONS[op].outputs[1] or 1)
    results = emit(graph, op, inputs, params, dims=None if dims is None else [dims], **more)
    return [r.data for r in results if r.data is not None]


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


CONVOLUTIONS = [
    (1, (9,), (3,), 1, [2], [1], [1, 0]),
    (2, (8, 9), (3, 2), 1, [1, 2], [1, 1], [1, 0, 0, 1]),
    (2, (8, 9), (3, 3), 2, [2, 2], [2, 1], [2, 1, 1, 1]),
    (2, (5, 5), (3, 3), 4, [1, 1], [1, 1], [1, 1, 1, 1]),
    (3, (4, 5, 4), (2, 3, 2), 1, [1, 2, 1], [1, 1, 2], [0, 1, 1, 0, 0, 1]),
]


def spatial(values: list) -> Any:
    """A parameter with one number per axis: one-dimensional operations take a scalar."""
    return values[0] if len(values) == 1 else values


def pad_pairs(pads: list[int]) -> list:
    half = len(pads) // 2
    pairs = [[pads[i], pads[half + i]] for i in range(half)]
    return pairs[0] if half == 1 else pairs


@pytest.mark.parametrize(("rank", "sizes", "kernel", "group", "stride", "dilation", "pads"), CONVOLUTIONS)
def test_convolutions(
    rank: int, sizes: tuple, kernel: tuple, group: int, stride: list, dilation: list, pads: list
) -> None:
    x, w, b = rand(2, 4, *sizes), rand(8, 4 // group, *kernel), rand(8)
    theirs = ort("Conv", [x, w, b], group=group, strides=stride, dilations=dilation, pads=pads)[0]
    weights = np.moveaxis(w, (0, 1), (-1, -2))
    params = {"stride": spatial(stride), "dilation": spatial(dilation), "pad_amount": pad_pairs(pads)}
    close(compute(f"Conv{rank}d", [last(x), weights, b], params | {"group": group})[0], last(theirs))
    if group == 4 and rank < 3:
        close(compute(f"DepthWiseConv{rank}d", [last(x), weights, b], params)[0], last(theirs))


@pytest.mark.parametrize("op", ["Conv2d", "TransposeConv2d"])
@pytest.mark.parametrize("group", [1, 2])
def test_a_convolution_over_no_channels_is_its_bias(op: str, group: int) -> None:
    bias, filters = rand(8), 8 // group if op.startswith("Transpose") else 8
    params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]], "group": group}
    [result] = compute(op, [rand(1, 5, 4, 0), rand(3, 3, 0, filters), bias], params)
    np.testing.assert_array_equal(result, np.broadcast_to(bias, (1, 5, 4, 8)))


@pytest.mark.parametrize(
    ("rank", "sizes", "kernel", "group", "stride", "extra", "pads"),
    [
        (1, (5,), (3,), 1, [2], [1], [1, 0]),
        (2, (4, 5), (3, 2), 2, [2, 3], [1, 0], [1, 0, 2, 1]),
        (2, (4, 5), (2, 2), 1, [2, 2], [0, 0], [0, 0, 0, 0]),
        (3, (3, 2, 3), (2, 2, 3), 1, [1, 2, 2], [0, 1, 0], [0, 0, 1, 0, 0, 1]),
    ],
)
def test_transposed_convolutions(
    rank: int, sizes: tuple, kernel: tuple, group: int, stride: list, extra: list, pads: list
) -> None:
    x, w, b = rand(2, 4, *sizes), rand(4, 3, *kernel), rand(3 * group)
    theirs = ort("ConvTranspose", [x, w, b], group=group, strides=stride, output_padding=extra, pads=pads)[0]
    params = {"stride": spatial(stride), "pad_amount": pad_pairs(pads), "output_padding": spatial(extra)}
    weights = np.moveaxis(w, (0, 1), (-2, -1))
    close(compute(f"TransposeConv{rank}d", [last(x), weights, b], params | {"group": group})[0], last(theirs))


@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("edges", [0, 1])
def test_pooling(ceil: int, edges: int) -> None:
    x = rand(1, 2, 7, 8)
    window = {"filter_size": [3, 3], "stride": [2, 3], "pad_amount": [[1, 1], [0, 1]], "rounding_mode": ceil}
    shared = {"kernel_shape": [3, 3], "strides": [2, 3], "pads": [1, 0, 1, 1], "ceil_mode": ceil}
    theirs = ort("AveragePool", [x], count_include_pad=edges, opset=19, **shared)[0]
    close(compute("PoolAvg2d", [last(x)], window | {"count_pad_for_edges": edges})[0], last(theirs))
    close(compute("PoolMax2d", [last(x)], window)[0], last(ort("MaxPool", [x], **shared)[0]))


def test_l2_pooling_is_the_root_of_the_mean_square() -> None:
    x = rand(1, 4, 4, 2)
    (ours,) = compute("L2Pool2d", [x], {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]})
    blocks = x.reshape(1, 2, 2, 2, 2, 2)
    close(ours, np.sqrt(np.square(blocks).mean((2, 4))))


def test_matrix_products() -> None:
    a, b, bias = rand(3, 1, 4, 5), rand(2, 5, 6), rand(6)
    close(compute("MatMul", [a, b, bias])[0], ort("MatMul", [a, b])[0] + bias)
    transposed = compute("MatMul", [a.swapaxes(2, 3), b.swapaxes(1, 2)], {"transpose_in0": True, "transpose_in1": True})
    close(transposed[0], ort("MatMul", [a, b])[0])
    weights = rand(6, 5)
    close(compute("FullyConnected", [a, weights, bias], {"keep_dims": True})[0], a @ weights.T + bias)
    close(compute("FullyConnected", [a, weights])[0], (a @ weights.T).reshape(-1, 6))
    integers = [RNG.integers(0, 255, d, np.uint8) for d in ((4, 5), (5, 6))]
    points = [np.uint8(7), RNG.integers(0, 255, 6, np.uint8)]
    close(compute("MatMulInteger", [*integers, *points])[0], ort("MatMulInteger", [*integers, *points])[0])


UNARY = {
    "ElementWiseAbs": "Abs",
    "ElementWiseAsin": "Asin",
    "ElementWiseAtan": "Atan",
    "ElementWiseCeil": "Ceil",
    "ElementWiseCos": "Cos",
    "ElementWiseExp": "Exp",
    "ElementWiseFloor": "Floor",
    "ElementWiseNeg": "Neg",
    "ElementWiseRound": "Round",
    "ElementWiseSign": "Sign",
    "ElementWiseSin": "Sin",
    "ElementWiseSoftplus": "Softplus",
    "Elu": "Elu",
    "HardSwish": "HardSwish",
    "Relu": "Relu",
    "Sigmoid": "Sigmoid",
    "Tanh": "Tanh",
    "Erf": "Erf",
    "Tan": "Tan",
    "Acos": "Acos",
    "Sinh": "Sinh",
    "Cosh": "Cosh",
    "Asinh": "Asinh",
    "Atanh": "Atanh",
}


@pytest.mark.parametrize(("ours", "theirs"), UNARY.items())
def test_unary_functions(ours: str, theirs: str) -> None:
    x = np.clip(rand(64) / 3, -0.99, 0.99)
    close(compute(ours, [x])[0], ort(theirs, [x])[0])


def test_unary_functions_of_positive_numbers() -> None:
    x = np.abs(rand(64)) + 1
    for ours, theirs in (("ElementWiseLog", "Log"), ("ElementWiseSquareRoot", "Sqrt"), ("Acosh", "Acosh")):
        close(compute(ours, [x])[0], ort(theirs, [x])[0])
    close(compute("ElementWiseRsqrt", [x])[0], 1 / np.sqrt(x))
    close(compute("ElementWiseUnary", [x], {"operation": 10})[0], ort("Reciprocal", [x])[0])
    close(compute("Gelu", [x])[0], ort("Gelu", [x], opset=20)[0])
    close(compute("Silu", [x])[0], x * ort("Sigmoid", [x])[0])
    hard = compute("ElementWiseNeuron", [x], {"operation": 2, "alpha": 0.3, "beta": 0.1})[0]
    close(hard, ort("HardSigmoid", [x], alpha=0.3, beta=0.1)[0])
    (clipped,) = compute("ReluMinMax", [x], {"min_value": 1.1, "max_value": 1.9})
    close(clipped, np.clip(x, np.float32(1.1), np.float32(1.9)))


BINARY = {
    "ElementWiseAdd": "Add",
    "ElementWiseSubtract": "Sub",
    "ElementWiseMultiply": "Mul",
    "ElementWiseDivide": "Div",
    "ElementWiseEqual": "Equal",
    "ElementWiseGreater": "Greater",
    "ElementWiseGreaterEqual": "GreaterOrEqual",
    "ElementWiseLess": "Less",
    "ElementWiseLessEqual": "LessOrEqual",
    "ElementWiseMaximum": "Max",
    "ElementWiseMinimum": "Min",
}


@pytest.mark.parametrize(("ours", "theirs"), BINARY.items())
def test_binary_functions_on_floats_and_integers(ours: str, theirs: str) -> None:
    a, b = rand(4, 1, 3), rand(5, 1)
    close(compute(ours, [a, b])[0], ort(theirs, [a, b])[0])
    i, j = RNG.integers(-9, 9, (4, 1, 3), np.int32), np.int32([[3], [-2], [7]])
    np.testing.assert_array_equal(compute(ours, [i, j])[0], ort(theirs, [i, j])[0])


def test_division_with_remainder_follows_each_operations_sign() -> None:
    a, b = np.int32([7, -7, 7, -7]), np.int32([3, 3, -3, -3])
    assert compute("ElementWiseDivide", [a, b])[0].tolist() == [2, -2, -2, 2]
    assert compute("ElementWiseFloorDiv", [a, b])[0].tolist() == [2, -3, -3, 2]
    assert compute("ElementWiseMod", [a, b])[0].tolist() == [1, 2, -2, -1]
    assert compute("ElementWiseFmod", [a, b])[0].tolist() == [1, -1, 1, -1]
    assert compute("ElementWiseDivide", [a, np.int32([0])])[0].tolist() == [0, 0, 0, 0]
    assert compute("ElementWisePower", [np.int32([2]), np.int32([-1])])[0].tolist() == [0]


def test_selection_slopes_and_logic() -> None:
    condition, x = RNG.random((4, 1)) > 0.5, rand(4, 3)
    close(compute("ElementWiseSelect", [condition, x, np.float32(0)])[0], np.where(condition, x, np.float32(0)))
    close(compute("Prelu", [x, np.float32([0.1, 0.2, 0.3])])[0], ort("PRelu", [x, np.float32([0.1, 0.2, 0.3])])[0])
    other = ~condition
    assert compute("ElementWiseXor", [condition, other])[0].all()
    assert not compute("ElementWiseBinary", [condition, other], {"operation": 1})[0].any()


def test_special_values_are_distinguished() -> None:
    x = np.float32([np.nan, np.inf, -np.inf, 1])
    assert compute("IsNaN", [x])[0].tolist() == [True, False, False, False]
    assert compute("IsInf", [x])[0].tolist() == [False, True, True, False]
    assert compute("IsInf", [x], {"detect_negative": 0})[0].tolist() == [False, True, False, False]


def test_movement() -> None:
    x = rand(2, 3, 4)
    (ours,) = compute("StridedSlice", [x], {"ranges": [[1, -1, -1], [0, 3, 2], [3, 0, -2]]})
    np.testing.assert_array_equal(ours, x[::-1, ::2, 3:0:-2])
    np.testing.assert_array_equal(compute("Concat", [x], {"axis": 1})[0], x)
    np.testing.assert_array_equal(compute("Pack", [x], {"axis": 1})[0], x[:, None])
    np.testing.assert_array_equal(compute("Pack", [x, x], {"axis": 1})[0], np.stack([x, x], 1))
    np.testing.assert_array_equal(compute("UnPack", [x], {"axis": 1})[1], x[:, 1])
    np.testing.assert_array_equal(compute("Split", [x], {"axis": 2, "split_index": [1]})[1], x[:, :, 1:])
    np.testing.assert_array_equal(compute("Tile", [x], {"multiples": [1, 2, 1]})[0], np.tile(x, (1, 2, 1)))
    np.testing.assert_array_equal(compute("Reverse", [x], {"axes": [0, 2]})[0], x[::-1, :, ::-1])
    for scheme, mode in enumerate(("constant", "symmetric", "reflect", "edge")):
        ours = compute("Pad", [x], {"scheme": scheme, "pad_amount": [[1, 0], [0, 2], [0, 0]]})[0]
        np.testing.assert_array_equal(ours, np.pad(x, [(1, 0), (0, 2), (0, 0)], mode))
    assert compute("Shape", [x], {"start": 1})[0].tolist() == [3, 4]
    assert compute("ConstantOfShape", [np.int64([2, 1])], {"value": 3}, dtypes=[F32])[0].tolist() == [[3.0], [3.0]]
    shuffled = compute("ChannelShuffle", [np.arange(6)], {"num_groups": 2})[0]
    assert shuffled.tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize(
    ("given", "python"),
    [
        ([-1, -1, -1], slice(0, 0)),
        ([-1, 2, -1], slice(0, 0)),
        ([5, 5, 1], slice(0, 0)),
        ([0, 0, -1], slice(0, 0)),
        ([4, -1, -(2**31)], slice(4, None, -5)),
        ([4, -1, -(2**30) - 1], slice(4, None, -5)),
        ([0, 5, 2**31 - 1], slice(0, 1)),
    ],
)
def test_a_slice_may_be_empty_and_its_stride_any_integer(given: list[int], python: slice) -> None:
    x = rand(5, 2)
    (ours,) = compute("StridedSlice", [x], {"ranges": [given, [0, 2, 1]]})
    np.testing.assert_array_equal(ours, x[python])


def test_gathers_and_scatters() -> None:
    x = rand(4, 5)
    rows = np.int64([[0, -1], [2, 1]])
    close(compute("Gather", [x, rows], {"axis": 1})[0], ort("Gather", [x, rows], axis=1)[0])
    places = RNG.integers(0, 4, (3, 5))
    close(compute("GatherElements", [x, places])[0], ort("GatherElements", [x, places], axis=0)[0])
    pairs = np.int64([[[1, 2]], [[3, 0]]])
    close(compute("GatherNd", [x, pairs])[0], ort("GatherND", [x, pairs])[0])
    batched = np.int64([[1], [0], [4], [2]])
    close(compute("GatherNd", [x, batched], {"batch_dims": 1})[0], ort("GatherND", [x, batched], batch_dims=1)[0])
    updates, rows = rand(3, 5), rand(2, 5)
    unique = np.stack([RNG.permutation(4)[:3] for _ in range(5)], 1)
    for number, reduction in enumerate(("none", "add", "mul", "max", "min")):
        indices = unique if reduction == "none" else places
        theirs = ort("ScatterElements", [x, indices, updates], axis=0, reduction=reduction, opset=18)[0]
        close(compute("ScatterElements", [x, indices, updates], {"reduction": number})[0], theirs)
        theirs = ort("ScatterND", [x, np.int64([[1], [3]]), rows], reduction=reduction, opset=18)[0]
        close(compute("ScatterNd", [x, np.int64([[1], [3]]), rows], {"reduction": number})[0], theirs)


def test_an_index_outside_is_refused() -> None:
    graph = Graph("outside")
    x, places = (
        graph.create_tensor(name, TensorType.APP_WRITE, dtype, (1,) if name == "k" else (4,))
        for name, dtype in (("x", DataType.FLOAT_32), ("k", DataType.INT_32))
    )
    graph.emit("Gather", [x, places], {"axis": 0})
    [node] = graph.nodes
    with pytest.raises(QnnError, match="must be within 4"):
        evaluate("Gather", node.inputs, [rand(4), np.int32([4])], node.params, node.outputs)


@pytest.mark.parametrize(("number", "mode"), [(0, "DCR"), (1, "CRD")])
def test_depth_to_space(number: int, mode: str) -> None:
    x = rand(1, 8, 2, 3)
    theirs = ort("DepthToSpace", [x], blocksize=2, mode=mode)[0]
    ours = compute("DepthToSpace", [last(x)], {"block_size": [2, 2], "mode": number})[0]
    close(ours, last(theirs))
    close(compute("SpaceToDepth", [ours], {"block_size": [2, 2], "mode": number})[0], last(x))


def test_space_to_batch_and_back() -> None:
    x = rand(2, 3, 4, 2)
    pads = [[1, 2], [0, 2]]
    (batches,) = compute("SpaceToBatch", [x], {"block_size": [2, 3], "pad_amount": pads})
    padded = np.pad(x, [(0, 0), *pads, (0, 0)])
    close(batches[2:4], padded[:, 0::2, 1::3])
    close(compute("BatchToSpace", [batches], {"block_size": [2, 3], "crops": pads})[0], x)


TRANSFORMATIONS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
INTERPOLATIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(({"mode": "nearest", "nearest_mode": mode}, {"nearest_mode": i}) for i, mode in enumerate(ROUNDINGS)),
    ({"mode": "linear"}, {"interpolation_mode": 1}),
    ({"mode": "cubic"}, {"interpolation_mode": 2}),
    ({"mode": "cubic", "exclude_outside": 1}, {"interpolation_mode": 2, "exclude_outside": True}),
    ({"mode": "cubic", "cubic_coeff_a": -0.5}, {"interpolation_mode": 2, "cubic_coeff": -0.5}),
]
"""How ONNX says it, and how QNN does."""


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize(("attributes", "params"), INTERPOLATIONS, ids=lambda said: "-".join(map(str, said.values())))
@pytest.mark.parametrize("size", [(9, 3), (2, 1)])
def test_resizing(
    transformation: str, attributes: dict[str, Any], params: dict[str, Any], size: tuple[int, int]
) -> None:
    x = rand(1, 2, 4, 5)
    sizes = np.int64([1, 2, *size])
    theirs = ort(
        "Resize", [x, None, None, sizes], coordinate_transformation_mode=transformation, opset=18, **attributes
    )[0]
    chosen = {"transformation_mode": TRANSFORMATIONS.index(transformation), **params}
    close(compute("Resize", [last(x)], chosen, (1, *size, 2))[0], last(theirs))


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("sizes", [(5, 4), (5, 4, 6)], ids=["image", "volume"])
def test_grid_sampling(align: int, padding: str, mode: str, sizes: tuple[int, ...]) -> None:
    x, grid = rand(2, 3, *sizes), rand(2, *range(3, 3 + len(sizes)), len(sizes))
    theirs = ort("GridSample", [x, grid], align_corners=align, padding_mode=padding, mode=mode, opset=20)[0]
    params = {
        "align_corners": align,
        "mode": ("linear", "nearest").index(mode),
        "padding_mode": ("zeros", "border", "reflection").index(padding),
    }
    close(compute("GridSample", [last(x), grid], params)[0], last(theirs))


@pytest.mark.parametrize("name", ["Sum", "Mean", "Max", "Min", "Prod"])
def test_reductions(name: str) -> None:
    x = rand(2, 3, 4)
    (theirs,) = ort(f"Reduce{name}", [x], axes=[0, 2], keepdims=0, opset=11)
    close(compute(f"Reduce{name}", [x], {"axes": [2, 0]})[0], theirs)


def test_arguments_sorting_and_running_sums() -> None:
    x = np.float32(RNG.integers(0, 4, (3, 7)))
    for ours, theirs in (("Argmax", "ArgMax"), ("Argmin", "ArgMin")):
        (result,) = compute(ours, [x], {"axis": 1}, dtypes=[DataType.INT_64])
        close(result, ort(theirs, [x], axis=1, keepdims=0)[0])
    for largest in (0, 1):
        ours = compute("TopK", [x], {"k": 5, "largest": largest}, dtypes=[F32, DataType.INT_64])
        theirs = ort("TopK", [x, np.int64([5])], 2, largest=largest)
        close(ours[0], theirs[0])
        close(ours[1], theirs[1])
    for exclusive in (0, 1):
        for reverse in (0, 1):
            ours = compute("CumulativeSum", [x], {"axis": 1, "exclusive": exclusive, "reverse": reverse})
            close(ours[0], ort("CumSum", [x, np.int64(1)], exclusive=exclusive, reverse=reverse)[0])


def test_softmax_and_its_logarithm() -> None:
    x = rand(2, 3, 4) * 50
    close(compute("Softmax", [x], {"axis": 1})[0], ort("Softmax", [x], axis=1)[0])
    close(compute("LogSoftmax", [x], {"axis": 1})[0], ort("LogSoftmax", [x], axis=1)[0])
    close(compute("Softmax", [x], {"beta": 0.5})[0], ort("Softmax", [x / 2], axis=-1)[0])


def test_normalisations() -> None:
    x, w, b = rand(2, 6, 3, 4), rand(6), rand(6)
    theirs = ort("InstanceNormalization", [x, w, b], epsilon=1e-5)[0]
    close(compute("InstanceNorm", [last(x), w, b], {"epsilon": 1e-5})[0], last(theirs))
    theirs = ort("GroupNormalization", [x, w, b], num_groups=3, epsilon=1e-5, opset=21)[0]
    close(compute("GroupNorm", [last(x), w, b], {"epsilon": 1e-5, "group": 3})[0], last(theirs))
    close(compute("Batchnorm", [last(x), w, b])[0], last(x) * w + b)
    scale, shift = rand(3, 4), rand(3, 4)
    theirs = ort("LayerNormalization", [x, scale, shift], axis=2, epsilon=1e-5)[0]
    close(compute("LayerNorm", [x, scale, shift], {"axes": [2, 3], "epsilon": 1e-5})[0], theirs)
    theirs = ort("LRN", [x], size=5, alpha=0.5, beta=0.75, bias=2.0)[0]
    params = {"radius": 2, "alpha": 0.1, "beta": 0.75, "bias": 2.0}
    close(compute("Lrn", [last(x)], params)[0], last(theirs))
    close(compute("L2Norm", [x], {"axis": 1})[0], ort("LpNormalization", [x], axis=1, p=2)[0])
    gain = rand(4)
    rms = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + np.float32(1e-5)) * gain
    close(compute("RmsNorm", [x, gain], {"axes": [3], "epsilon": 1e-5})[0], rms)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("peephole", [False, True])
def test_lstm(direction: int, peephole: bool) -> None:
    x, w, r, b = rand(5, 2, 3), rand(1, 16, 3), rand(1, 16, 4), rand(1, 32)
    hidden, cell = rand(1, 2, 4), rand(1, 2, 4)
    holes = rand(1, 12) if peephole else None
    theirs = ort(
        "LSTM", [x, w, r, b, None, hidden, cell, holes], 3, hidden_size=4, direction=("forward", "reverse")[direction]
    )
    wi, wo, wf, wc = np.split(w[0], 4)
    ri, ro, rf, rc = np.split(r[0], 4)
    bi, bo, bf, bc = np.split(b[0, :16] + b[0, 16:], 4)
    pi, po, pf = np.split(holes[0], 3) if holes is not None else (None, None, None)
    ours = compute(
        "Lstm",
        [
            x,
            wf,
            wc,
            wo,
            rf,
            rc,
            ro,
            bf,
            bc,
            bo,
            hidden[0],
            cell[0],
            None,
            None,
            None,
            None,
            wi,
            ri,
            pi,
            pf,
            po,
            bi,
        ],
        {"direction": direction},
    )
    close(ours[0], theirs[0][:, 0])
    close(ours[1], theirs[2][0])
    close(ours[2], theirs[1][0])


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("linear", [0, 1])
def test_gru(direction: int, linear: int) -> None:
    x, w, r, b, hidden = rand(5, 2, 3), rand(1, 12, 3), rand(1, 12, 4), rand(1, 24), rand(1, 2, 4)
    theirs = ort(
        "GRU",
        [x, w, r, b, None, hidden],
        2,
        hidden_size=4,
        linear_before_reset=linear,
        direction=("forward", "reverse")[direction],
    )
    operands = [x, *np.split(w[0], 3), *np.split(r[0], 3), *np.split(b[0], 6), hidden]
    ours = compute("Gru", operands, {"direction": direction, "linear_before_reset": linear})
    close(ours[0], theirs[0][:, 0])
    close(ours[1], theirs[1])


def test_non_max_suppression() -> None:
    corners = np.abs(rand(2, 8, 4))
    boxes = np.concatenate([corners[..., :2], corners[..., :2] + corners[..., 2:]], -1)
    scores = RNG.random((2, 3, 8)).astype(np.float32)
    (theirs,) = ort("NonMaxSuppression", [boxes, scores, np.int64(4), np.float32(0.3), np.float32(0.2)])
    params = {"iou_threshold": 0.3, "score_threshold": 0.2, "max_boxes_selected": 4}
    graph = Graph("g")
    inputs = [graph.constant("boxes", boxes), graph.constant("scores", scores)]
    rows, count = emit(graph, "NonMaxSuppression", inputs, params, dims=[(24, 3), (1,)])
    found = int(count.data[0])
    np.testing.assert_array_equal(rows.data[:found], theirs)
    assert (rows.data[found:] == -1).all()


def test_positions_of_what_is_not_zero() -> None:
    x = np.int32([[1, 0, 2], [0, 0, 3]])
    assert compute("NonZero", [x])[0].tolist() == [[0, 0], [0, 2], [1, 2]]
    (hot,) = compute("OneHot", [np.int32([1, -1])], {"depth": 3, "on_value": 5}, dtypes=[F32])
    assert hot.tolist() == [[0, 5, 0], [0, 0, 5]]
    lengths = np.int64([1, 3])
    sequences = rand(3, 2)
    theirs = ort("ReverseSequence", [sequences, lengths], batch_axis=1, time_axis=0)[0]
    close(compute("ReverseSequence", [sequences, lengths], {"batch_axis": 1, "time_axis": 0})[0], theirs)


def test_casts() -> None:
    x = np.float32([-1.7, 0.0, 2.9])
    assert compute("Cast", [x], dtypes=[DataType.INT_32])[0].tolist() == [-1, 0, 2]
    assert compute("Cast", [x], dtypes=[DataType.BOOL_8])[0].tolist() == [True, False, True]
    assert compute("Cast", [np.float16([0.1])], dtypes=[F32])[0].tolist() == [float(np.float16(0.1))]


def test_crops_of_the_whole_image_are_the_image() -> None:
    x = rand(2, 4, 5, 3)
    boxes = np.float32([[0, 0, 1, 1], [1, 1, 0, 0], [2, 2, 3, 3]])
    params = {"resize_dims": [4, 5], "extrapolation_value": 9}
    (ours,) = compute("CropAndResize", [x, boxes, np.int32([0, 1, 0])], params)
    close(ours[0], x[0])
    close(ours[1], x[1, ::-1, ::-1])
    assert (ours[2] == 9).all()


def test_grey_pixels_stay_grey() -> None:
    frame = np.concatenate([np.full((1, 8), 126, np.uint8), np.full((1, 4), 128, np.uint8)], 1)
    for name in ("Nv12ToRgb", "Nv21ToRgb"):
        assert (compute(name, [frame], {"output_order": 0}, (1, 2, 4, 3))[0] == 128).all()


def test_a_red_pixel_is_red_in_both_orders_of_chroma_and_of_planes() -> None:
    luma, u, v = [81] * 8, 90, 240
    for name, chroma in (("Nv12ToRgb", [u, v] * 2), ("Nv21ToRgb", [v, u] * 2)):
        frame = np.uint8([luma + chroma])
        for order, colour in ((0, [254, 0, 0]), (1, [0, 0, 254])):
            assert (compute(name, [frame], {"output_order": order}, (1, 2, 4, 3))[0] == colour).all()


def test_an_unknown_operation_is_refused() -> None:
    x = Graph("g").constant("x", np.float32([1]))
    with pytest.raises(QnnError, match="no such operation"):
        evaluate("Nothing", [x], [x.data], {}, [x])
