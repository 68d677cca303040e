"""Each pass makes of a graph what it promises, and the results stay the same."""

from __future__ import annotations

import math

import numpy as np
import pytest

from isthmus.graph import DataType, Quantization
from isthmus.prepare.passes.affine import fold_affine
from isthmus.prepare.passes.algebra import simplify_arithmetic
from isthmus.prepare.passes.canonical import canonicalize, flatten_products
from isthmus.prepare.passes.constants import fold_all_constants, fold_constants
from isthmus.prepare.passes.fusion import fuse_activations, fuse_padding
from isthmus.prepare.passes.idioms import recognize_gates, recognize_normalizations
from isthmus.prepare.passes.redundant import merge_duplicates, remove_dead, remove_identities
from prepare.interpreter import Builder, ops, rewritten

RNG = np.random.default_rng(1)
CONV = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
PADDED = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


def floats(*dims: int) -> np.ndarray:
    return RNG.normal(size=dims).astype(np.float32)


def test_steps_that_nothing_reads_are_dropped() -> None:
    b = Builder()
    x = b.input(2, 3)
    b.op("ElementWiseExp", b.op("Relu", x))
    work = rewritten(b.finish(b.op("ElementWiseAbs", x)), remove_dead)
    assert ops(work) == ["ElementWiseAbs"]


def test_a_state_keeps_the_step_that_computes_its_value() -> None:
    b = Builder()
    s = b.state(np.zeros(3, np.float32))
    y = b.op("ElementWiseAdd", s, b.input(3))
    b.graph.update_state(s, b.op("ElementWiseMultiply", y, 0.5))
    work = rewritten(b.finish(b.op("Relu", y)), remove_dead)
    assert sorted(ops(work)) == ["ElementWiseAdd", "ElementWiseMultiply", "Relu"]


def test_steps_on_constants_are_computed() -> None:
    b = Builder()
    two = b.op("ElementWiseAdd", np.float32([1]), np.float32([1]))
    work = rewritten(b.finish(b.op("ElementWiseMultiply", b.input(3), b.op("ElementWiseExp", two))), fold_constants)
    assert ops(work) == ["ElementWiseMultiply"]
    assert work.ordered()[0].inputs[1].data == pytest.approx(math.exp(2))


def test_a_constant_graph_output_is_copied_from_the_constant() -> None:
    b = Builder()
    x = b.input(2)
    work = rewritten(
        b.finish(b.op("ElementWiseAdd", floats(2), floats(2)), b.op("Relu", x)), fold_constants, fold_all_constants
    )
    assert sorted(ops(work)) == ["Relu", "Reshape"]


def test_dequantized_constants_wait_for_quantized_operations() -> None:
    b = Builder()
    w = b.constant(np.arange(4, dtype=np.int8), Quantization.per_tensor(0.5, 1))
    real = b.op("Dequantize", w, dtype=DataType.FLOAT_32)
    graph = b.finish(b.op("ElementWiseAdd", b.input(4), real))
    assert ops(rewritten(graph, fold_constants)) == ["Dequantize", "ElementWiseAdd"]
    assert ops(rewritten(graph, fold_constants, fold_all_constants)) == ["ElementWiseAdd"]


def test_equal_steps_become_one() -> None:
    b = Builder()
    x = b.input(2, 3)
    a, c = b.op("ElementWiseAdd", x, np.float32([2])), b.op("ElementWiseAdd", x, np.float32([2]))
    work = rewritten(b.finish(b.op("ElementWiseMultiply", a, c)), merge_duplicates)
    assert ops(work) == ["ElementWiseAdd", "ElementWiseMultiply"]


@pytest.mark.parametrize(
    ("op", "params", "name"),
    [
        ("ElementWiseUnary", {"operation": 12}, "ElementWiseRsqrt"),
        ("ElementWiseUnary", {"operation": 10}, "ElementWiseUnary"),
        ("ElementWiseNeuron", {"operation": 0, "alpha": 0.5}, "Elu"),
        ("ElementWiseNeuron", {"operation": 2, "alpha": 0.2, "beta": 0.5}, "ElementWiseNeuron"),
        ("ElementWiseNeuron", {"operation": 5, "min_value": 0, "max_value": 2}, "ReluMinMax"),
        ("ElementWiseNeuron", {"operation": 7}, "ElementWiseSoftplus"),
    ],
)
def test_numbered_functions_get_their_names(op, params, name) -> None:
    b = Builder()
    x = b.op("ElementWiseAbs", b.input(2, 3))
    assert ops(rewritten(b.finish(b.op(op, x, **params)), canonicalize)) == ["ElementWiseAbs", name]


def test_numbered_binary_functions_get_their_names_and_constants_go_last() -> None:
    b = Builder()
    work = rewritten(b.finish(b.op("ElementWiseBinary", 3.0, b.input(4), operation=13)), canonicalize)
    assert ops(work) == ["ElementWiseMultiply"]
    assert work.ordered()[0].inputs[1].is_static


def test_the_constant_of_a_squared_difference_goes_last() -> None:
    b = Builder()
    work = rewritten(b.finish(b.op("ElementWiseSquaredDifference", floats(4), b.input(3, 4))), canonicalize)
    assert work.ordered()[0].inputs[1].is_static


def test_pack_and_unpack_become_joins_and_splits_of_reshapes() -> None:
    b = Builder()
    rows = b.op("UnPack", b.input(3, 4), axis=0)
    work = rewritten(b.finish(b.op("Pack", *rows, axis=1)), canonicalize)
    assert set(ops(work)) == {"Split", "Reshape", "Concat"}


def test_a_slice_that_drops_axes_and_a_gather_of_neighbours_become_plain_slices() -> None:
    b = Builder()
    x = b.input(3, 4, 5)
    a = b.op("StridedSlice", x, ranges=[[1, 2, 1], [0, 4, 2], [0, 5, 1]], shrink_axes=1)
    c = b.op("Gather", x, np.int32(-2), axis=1)
    d = b.op("Gather", x, np.int32([1, 2]), axis=2)
    work = rewritten(b.finish(a, c, d), canonicalize)
    assert set(ops(work)) == {"StridedSlice", "Reshape"}
    assert all(s.params["shrink_axes"] == 0 for s in work.ordered() if s.op == "StridedSlice")


def test_a_gather_of_scattered_indices_stays() -> None:
    b = Builder()
    assert ops(rewritten(b.finish(b.op("Gather", b.input(4), np.int32([2, 0]), axis=0)), canonicalize)) == ["Gather"]


@pytest.mark.parametrize("op", ["Conv1d", "DepthWiseConv1d", "TransposeConv1d"])
def test_one_dimensional_convolutions_become_two_dimensional(op) -> None:
    b = Builder()
    x = b.input(2, 9, 4)
    weights = floats(3, 1 if op.startswith("Depth") else 4, 4)
    y = b.op(op, x, weights, floats(4), stride=2, pad_amount=[1, 0])
    work = rewritten(b.finish(b.op("ElementWiseAbs", y)), flatten_products)
    assert ops(work) == ["Reshape", op.replace("1d", "2d"), "Reshape", "ElementWiseAbs"]


@pytest.mark.parametrize(
    ("op", "weights", "params"),
    [
        ("MatMul", (6, 5), {}),
        ("MatMul", (5, 6), {"transpose_in1": True}),
        ("FullyConnected", (5, 6), {"keep_dims": True}),
    ],
)
def test_products_of_batches_with_one_matrix_become_products_of_two_dimensions(op, weights, params) -> None:
    b = Builder()
    y = b.op(op, b.input(4, 1, 3, 6), floats(*weights), floats(5), **params)
    work = rewritten(b.finish(b.op("ElementWiseAbs", y)), flatten_products)
    assert ops(work) == ["Reshape", op, "Reshape", "ElementWiseAbs"]
    assert work.ordered()[1].outputs[0].dims == (12, 5)


POOL_3D = {"filter_size": [2] * 3, "stride": [2] * 3, "pad_amount": [[0, 0]] * 3}


@pytest.mark.parametrize(
    ("op", "dims", "indices", "params"),
    [
        ("Transpose", (2, 3), (), {"perm": [1, 0]}),
        ("Reverse", (2, 3), (), {"axes": [1]}),
        ("GatherElements", (2, 3), (np.int32([[1, 0, 1]]),), {"axis": 0}),
        ("GatherNd", (2, 3), (np.int32([[1, 2], [0, 0]]),), {}),
        ("ReverseSequence", (2, 3), (np.int32([1, 3]),), {"batch_axis": 0, "time_axis": 1}),
        ("ReduceMax", (2, 3), (), {"axes": [1]}),
        ("PoolMax3d", (1, 4, 4, 4, 3), (), POOL_3D),
    ],
)
def test_a_movement_into_another_quantization_is_a_movement_and_a_convert(op, dims, indices, params) -> None:
    b = Builder()
    x = b.input(*dims, dtype=DataType.UFIXED_POINT_8, q=Quantization.per_tensor(0.5, 3))
    y = b.op(op, x, *indices, q=Quantization.per_tensor(0.25, 7), **params)
    assert ops(rewritten(b.finish(y), canonicalize)) == [op, "Convert"]


@pytest.mark.parametrize(("fill", "expected"), [(1.0, ["Pad", "Convert"]), (-1.0, ["Pad"]), (0.3, ["Pad"])])
def test_a_pad_goes_before_a_convert_only_with_a_value_that_its_input_can_say(fill, expected) -> None:
    b = Builder()
    x = b.input(2, 3, dtype=DataType.UFIXED_POINT_8, q=Quantization.per_tensor(0.5, 0))
    wider = Quantization.per_tensor(0.1, 128)
    y = b.op("Pad", x, scheme=0, pad_amount=[[1, 0], [0, 2]], pad_constant_value=fill, q=wider)
    assert ops(rewritten(b.finish(y), canonicalize)) == expected


def test_identities_vanish() -> None:
    b = Builder()
    x = b.op("Relu", b.input(2, 3))
    x = b.op("Cast", x, dtype=DataType.FLOAT_32)
    x = b.op("Pad", x, scheme=0, pad_amount=[[0, 0], [0, 0]])
    x = b.op("Tile", x, multiples=[1, 1])
    x = b.op("StridedSlice", x, ranges=[[0, 2, 1], [0, 3, 1]])
    x = b.op("Transpose", b.op("Transpose", x, perm=[1, 0]), perm=[1, 0])
    x = b.op("Reshape", b.op("Reshape", x, dims=[6]), dims=[2, 3])
    assert ops(rewritten(b.finish(b.op("Concat", x, axis=0)), remove_identities)) == ["Relu"]


def test_an_identity_from_input_to_output_stays_a_copy() -> None:
    b = Builder()
    work = rewritten(b.finish(b.op("Cast", b.input(2, 3), dtype=DataType.FLOAT_32)), remove_identities)
    assert ops(work) == ["Reshape"]


def test_a_reversing_slice_is_no_identity() -> None:
    b = Builder()
    y = b.op("StridedSlice", b.input(3), ranges=[[2, -1, -1]])
    assert ops(rewritten(b.finish(y), remove_identities)) == ["StridedSlice"]


def test_a_transpose_of_single_elements_is_a_reshape() -> None:
    b = Builder()
    x = b.op("Relu", b.input(1, 5, 1, 7))
    y = b.op("Transpose", x, perm=[0, 2, 1, 3])
    assert ops(rewritten(b.finish(b.op("ElementWiseAbs", y)), remove_identities)) == [
        "Relu",
        "Reshape",
        "ElementWiseAbs",
    ]


def test_arithmetic_gets_cheaper() -> None:
    b = Builder()
    x = b.op("ElementWiseDivide", b.input(2, 3), floats(3))
    x = b.op("ElementWiseSubtract", x, 2.0)
    x = b.op("ElementWisePower", x, 2.0)
    x = b.op("ElementWisePower", x, 0.5)
    x = b.op("ElementWiseMultiply", b.op("ElementWiseMultiply", x, 3.0), 2.0)
    x = b.op("ElementWiseAdd", x, 0.0)
    work = rewritten(b.finish(x), simplify_arithmetic)
    assert ops(work) == [
        "ElementWiseMultiply",
        "ElementWiseAdd",
        "ElementWiseMultiply",
        "ElementWiseSquareRoot",
        "ElementWiseMultiply",
    ]


@pytest.mark.parametrize("reader", ["ElementWiseFloor", "ElementWiseCeil", "Cast"])
def test_a_quotient_that_is_rounded_stays_a_quotient(reader) -> None:
    b = Builder()
    more = {"dtype": DataType.INT_32} if reader == "Cast" else {}
    y = b.op(reader, b.op("ElementWiseDivide", b.input(64, name="x"), np.float32(41)), **more)
    assert ops(rewritten(b.finish(y), simplify_arithmetic)) == ["ElementWiseDivide", reader]


def test_a_quotient_by_a_power_of_two_is_exact_and_becomes_a_product() -> None:
    b = Builder()
    y = b.op("ElementWiseFloor", b.op("ElementWiseDivide", b.input(64), np.float32([-8])))
    assert ops(rewritten(b.finish(y), simplify_arithmetic)) == ["ElementWiseMultiply", "ElementWiseFloor"]


def test_division_of_integers_stays() -> None:
    b = Builder()
    y = b.op("ElementWiseDivide", b.input(4, dtype=DataType.INT_32), np.int32([3]))
    assert ops(rewritten(b.finish(y), simplify_arithmetic)) == ["ElementWiseDivide"]


def _silu(b, x):
    return b.op("ElementWiseMultiply", x, b.op("Sigmoid", x))


def _hard_swish_of_hard_sigmoid(b, x):
    gate = b.op("ElementWiseNeuron", x, operation=2, alpha=0.16666670143604279, beta=0.5)
    return b.op("ElementWiseMultiply", gate, x)


def _hard_swish_spelled_out(b, x):
    gate = b.op("ReluMinMax", b.op("ElementWiseAdd", x, 3.0), min_value=0, max_value=6)
    return b.op("ElementWiseDivide", b.op("ElementWiseMultiply", x, gate), 6.0)


def _hard_swish_sixth_inside(b, x):
    gate = b.op("ElementWiseMultiply", b.op("Relu6", b.op("ElementWiseAdd", 3.0, x)), 1 / 6)
    return b.op("ElementWiseMultiply", x, gate)


def _gelu_half_last(b, x):
    gate = b.op("ElementWiseAdd", b.op("Erf", b.op("ElementWiseDivide", x, math.sqrt(2))), 1.0)
    return b.op("ElementWiseMultiply", b.op("ElementWiseMultiply", x, gate), 0.5)


def _gelu_half_first(b, x):
    gate = b.op("ElementWiseAdd", b.op("Erf", b.op("ElementWiseMultiply", x, math.sqrt(0.5))), 1.0)
    return b.op("ElementWiseMultiply", b.op("ElementWiseMultiply", x, 0.5), gate)


@pytest.mark.parametrize(
    ("spell", "name"),
    [
        (_silu, "Silu"),
        (_hard_swish_of_hard_sigmoid, "HardSwish"),
        (_hard_swish_spelled_out, "HardSwish"),
        (_hard_swish_sixth_inside, "HardSwish"),
        (_gelu_half_last, "Gelu"),
        (_gelu_half_first, "Gelu"),
    ],
)
def test_activations_spelled_out_are_recognized(spell, name) -> None:
    b = Builder()
    x = b.op("ElementWiseAbs", b.op("ElementWiseSin", b.input(3, 40)))
    x = b.op("ElementWiseMultiply", x, floats(40))
    work = rewritten(b.finish(spell(b, x)), canonicalize, simplify_arithmetic, recognize_gates, remove_dead)
    assert ops(work) == ["ElementWiseSin", "ElementWiseAbs", "ElementWiseMultiply", name]


def _one_plus(op, factor, one=1.0):
    return lambda b, x: b.op("ElementWiseAdd", b.op(op, b.op("ElementWiseMultiply", x, factor)), one)


@pytest.mark.parametrize(
    ("gate", "kept"),
    [
        (lambda b, x: b.op("ElementWiseAdd", x, 1.0), []),
        (_one_plus("Tanh", math.sqrt(0.5)), ["Tanh"]),
        (_one_plus("Erf", math.sqrt(0.5), 2.0), ["Erf"]),
        (_one_plus("Erf", 0.5), ["Erf"]),
        (lambda b, x: b.op("Relu6", b.op("ElementWiseAdd", x, 2.0)), ["Relu6"]),
        (lambda b, x: b.op("Relu6", x), ["Relu6"]),
    ],
)
def test_what_only_resembles_an_activation_stays(gate, kept) -> None:
    b = Builder()
    x = b.input(3, 40)
    y = b.op("ElementWiseMultiply", b.op("ElementWiseMultiply", x, gate(b, x)), 0.5)
    work = rewritten(b.finish(y), recognize_gates, remove_dead)
    assert not {"Gelu", "HardSwish", "Silu"} & set(ops(work))
    assert set(kept) <= set(ops(work))


def test_a_hard_sigmoid_without_its_product_is_recognized() -> None:
    b = Builder()
    gate = b.op("Relu6", b.op("ElementWiseAdd", b.input(2, 40), 3.0))
    work = rewritten(b.finish(b.op("ElementWiseMultiply", gate, 1 / 6)), recognize_gates, remove_dead)
    assert ops(work) == ["ElementWiseNeuron"]


@pytest.mark.parametrize("square", ["power", "multiply", "difference"])
@pytest.mark.parametrize("root", ["divide", "rsqrt"])
def test_layer_normalization_spelled_out_is_recognized(square, root) -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(2, 5, 8))
    mean = b.op("ReduceMean", x, axes=[2], keep_dims=True)
    d = b.op("ElementWiseSubtract", x, mean)
    squares = {
        "power": lambda: b.op("ElementWisePower", d, 2.0),
        "multiply": lambda: b.op("ElementWiseMultiply", d, d),
        "difference": lambda: b.op("ElementWiseSquaredDifference", x, mean),
    }[square]()
    variance = b.op("ElementWiseAdd", b.op("ReduceMean", squares, axes=[2], keep_dims=True), 1e-5)
    if root == "divide":
        y = b.op("ElementWiseDivide", d, b.op("ElementWiseSquareRoot", variance))
    else:
        y = b.op("ElementWiseMultiply", b.op("ElementWiseRsqrt", variance), d)
    y = b.op("ElementWiseAdd", b.op("ElementWiseMultiply", y, floats(8)), floats(8))
    work = rewritten(b.finish(y), simplify_arithmetic, recognize_normalizations, remove_dead)
    assert ops(work) == ["ElementWiseSin", "LayerNorm"]


@pytest.mark.parametrize("clamped", ["difference", "variance"])
def test_a_pattern_with_a_clamp_inside_is_no_layer_normalization(clamped) -> None:
    b = Builder()
    x = b.op("ElementWiseSin", b.input(2, 5, 8))
    d = b.op("ElementWiseSubtract", x, b.op("ReduceMean", x, axes=[2], keep_dims=True))
    d = b.op("Relu", d) if clamped == "difference" else d
    squares = b.op("ReduceMean", b.op("ElementWiseMultiply", d, d), axes=[2], keep_dims=True)
    variance = b.op("ElementWiseAdd", squares, 1e-5)
    variance = b.op("ElementWiseMaximum", variance, 0.5) if clamped == "variance" else variance
    y = b.op("ElementWiseDivide", d, b.op("ElementWiseSquareRoot", variance))
    work = rewritten(b.finish(y), fuse_activations, recognize_normalizations)
    assert "LayerNorm" not in ops(work)


def test_batch_normalization_and_bias_go_into_a_convolution() -> None:
    b = Builder()
    x = b.op("Conv2d", b.input(1, 6, 6, 3), floats(3, 3, 3, 8), **PADDED)
    x = b.op("Batchnorm", x, floats(8), floats(8))
    x = b.op("ElementWiseMultiply", x, 2.0)
    x = b.op("ElementWiseAdd", x, floats(1, 1, 1, 8))
    work = rewritten(b.finish(x), fold_affine)
    assert ops(work) == ["Conv2d"]
    assert len(work.ordered()[0].inputs) == 3


@pytest.mark.parametrize(
    ("op", "dims", "weights", "params"),
    [
        ("Conv1d", (1, 6, 4), (3, 4, 8), {"stride": 1, "pad_amount": [1, 1]}),
        ("DepthWiseConv2d", (1, 6, 6, 4), (3, 3, 1, 8), PADDED),
        ("TransposeConv2d", (1, 6, 6, 4), (3, 3, 4, 8), CONV),
        ("FullyConnected", (3, 4), (8, 4), {}),
        ("MatMul", (2, 3, 4), (4, 8), {}),
        ("MatMul", (2, 3, 4), (8, 4), {"transpose_in1": True}),
    ],
)
def test_factors_and_terms_after_a_linear_step_go_into_it(op, dims, weights, params) -> None:
    b = Builder()
    y = b.op(op, b.input(*dims), floats(*weights), floats(8), **params)
    y = b.op("ElementWiseAdd", b.op("ElementWiseMultiply", y, floats(8)), floats(8))
    assert ops(rewritten(b.finish(y), fold_affine)) == [op]


@pytest.mark.parametrize(
    ("op", "dims", "weights", "params"),
    [
        ("Conv2d", (1, 6, 6, 4), (3, 3, 4, 8), CONV),
        ("DepthWiseConv2d", (1, 6, 6, 4), (3, 3, 1, 8), CONV),
        ("FullyConnected", (3, 4), (8, 4), {}),
        ("MatMul", (2, 3, 4), (4, 8), {}),
    ],
)
def test_factors_and_terms_before_a_linear_step_go_into_it(op, dims, weights, params) -> None:
    b = Builder()
    x = b.op("Batchnorm", b.op("Relu", b.input(*dims)), floats(dims[-1]), floats(dims[-1]))
    y = b.op(op, x, floats(*weights), floats(8), **params)
    assert ops(rewritten(b.finish(y), fold_affine)) == ["Relu", op]


def test_a_term_before_padding_stays_and_takes_its_factor_along() -> None:
    b = Builder()
    x = b.op("ElementWiseAdd", b.op("ElementWiseMultiply", b.op("Relu", b.input(1, 6, 6, 4)), 2.0), 1.0)
    y = b.op("Conv2d", x, floats(3, 3, 4, 8), **PADDED)
    assert ops(rewritten(b.finish(y), fold_affine)) == ["Relu", "Batchnorm", "Conv2d"]


def test_the_scale_of_attention_goes_into_the_weights_of_the_query() -> None:
    b = Builder()
    x = b.op("Relu", b.input(2, 6, 8))
    q = b.op("Reshape", b.op("MatMul", x, floats(8, 8), floats(8)), dims=[2, 6, 2, 4])
    k = b.op("Reshape", b.op("MatMul", x, floats(8, 8)), dims=[2, 6, 2, 4])
    q, k = b.op("Transpose", q, perm=[0, 2, 1, 3]), b.op("Transpose", k, perm=[0, 2, 3, 1])
    y = b.op("Softmax", b.op("ElementWiseMultiply", b.op("MatMul", q, k), 0.5))
    work = rewritten(b.finish(y), fold_affine)
    assert "ElementWiseMultiply" not in ops(work)


def test_a_matrix_times_itself_keeps_its_factor() -> None:
    b = Builder()
    x = b.op("MatMul", b.input(4, 4), floats(4, 4))
    work = rewritten(b.finish(b.op("ElementWiseMultiply", b.op("MatMul", x, x), 0.5)), fold_affine)
    assert ops(work) == ["MatMul", "MatMul", "ElementWiseMultiply"]


def test_a_factor_behind_a_clamp_is_not_folded_into_the_product() -> None:
    b = Builder()
    x = b.op("Relu", b.op("Conv2d", b.input(1, 6, 6, 3), floats(1, 1, 3, 8), **CONV))
    work = rewritten(b.finish(b.op("Batchnorm", x, -np.abs(floats(8)), floats(8))), fuse_activations, fold_affine)
    assert ops(work) == ["Conv2d", "Batchnorm"]


def test_activations_become_clamps() -> None:
    b = Builder()
    x = b.op("Conv2d", b.input(1, 6, 6, 3), floats(1, 1, 3, 8), **CONV)
    x = b.op("ElementWiseMinimum", b.op("Relu", x), 1.5)
    x = b.op("Relu6", b.op("ElementWiseAdd", x, floats(8)))
    work = rewritten(b.finish(x), fuse_activations)
    assert [(s.op, s.clamp) for s in work.ordered()] == [("Conv2d", (0.0, 1.5)), ("ElementWiseAdd", (0.0, 6.0))]


@pytest.mark.parametrize("op", ["PoolMax3d", "PoolAvg3d"])
def test_activations_become_clamps_of_pools_of_volumes(op) -> None:
    b = Builder()
    work = rewritten(b.finish(b.op("Relu", b.op(op, b.input(1, 4, 4, 4, 3), **POOL_3D))), fuse_activations)
    assert [(s.op, s.clamp) for s in work.ordered()] == [(op, (0.0, math.inf))]


def test_an_activation_of_a_tensor_with_other_readers_stays() -> None:
    b = Builder()
    x = b.op("ElementWiseAdd", b.input(4), floats(4))
    work = rewritten(b.finish(b.op("ElementWiseMultiply", x, b.op("Relu", x))), fuse_activations)
    assert ops(work) == ["ElementWiseAdd", "Relu", "ElementWiseMultiply"]


def test_a_limit_that_holds_already_vanishes() -> None:
    b = Builder()
    x = b.op("Relu6", b.op("ElementWiseSin", b.input(4)))
    x = b.op("Relu", x)
    assert ops(rewritten(b.finish(b.op("ElementWiseExp", x)), fuse_activations)) == [
        "ElementWiseSin",
        "Relu6",
        "ElementWiseExp",
    ]


def test_fixed_point_activations_fuse_only_within_one_quantization() -> None:
    fine, coarse = Quantization.per_tensor(0.05, 10), Quantization.per_tensor(0.1, 10)
    for after, expected in ((fine, ["ElementWiseAdd"]), (coarse, ["ElementWiseAdd", "Relu"])):
        b = Builder()
        x = b.input(50, dtype=DataType.UFIXED_POINT_8, q=fine)
        y = b.op("Relu", b.op("ElementWiseAdd", x, x, q=fine), q=after)
        assert ops(rewritten(b.finish(y), fuse_activations)) == expected


SPATIAL = {"scheme": 0, "pad_amount": [[0, 0], [1, 2], [0, 1], [0, 0]]}


@pytest.mark.parametrize("op", ["Conv2d", "DepthWiseConv2d"])
def test_padding_goes_into_convolutions(op) -> None:
    b = Builder()
    x = b.op("Pad", b.input(1, 5, 5, 4), **SPATIAL)
    y = b.op(op, x, floats(3, 3, 1 if op.startswith("Depth") else 4, 4), **PADDED)
    work = rewritten(b.finish(y), fuse_padding)
    assert ops(work) == [op]
    assert np.asarray(work.ordered()[0].params["pad_amount"]).tolist() == [[2, 3], [1, 2]]


def test_padding_with_another_value_or_of_channels_stays() -> None:
    for params in ({"pad_constant_value": 1.0}, {"pad_amount": [[0, 0], [0, 0], [0, 0], [0, 1]]}):
        b = Builder()
        x = b.op("Pad", b.input(1, 5, 5, 3), **(SPATIAL | params))
        y = b.op("Conv2d", x, floats(3, 3, x.dims[-1], 4), **CONV)
        assert ops(rewritten(b.finish(y), fuse_padding)) == ["Pad", "Conv2d"]


def test_padding_goes_into_averages_that_count_it() -> None:
    b = Builder()
    x = b.op("Pad", b.input(1, 5, 5, 4), **SPATIAL)
    y = b.op("PoolAvg2d", x, filter_size=[3, 3], stride=[1, 1], pad_amount=[[0, 0], [0, 0]])
    work = rewritten(b.finish(y), fuse_padding)
    assert ops(work) == ["PoolAvg2d"]
    assert work.ordered()[0].params["count_pad_for_edges"]


@pytest.mark.parametrize(
    ("before", "expected"), [("Relu", ["Relu", "PoolMax2d"]), ("Tanh", ["Tanh", "Pad", "PoolMax2d"])]
)
def test_padding_goes_into_maxima_of_what_is_not_negative(before, expected) -> None:
    b = Builder()
    x = b.op("Pad", b.op(before, b.input(1, 5, 5, 4)), **SPATIAL)
    y = b.op("PoolMax2d", x, filter_size=[3, 3], stride=[1, 1], pad_amount=[[0, 0], [0, 0]])
    assert ops(rewritten(b.finish(y), fuse_padding)) == expected


@pytest.mark.parametrize("dtype", [DataType.FLOAT_16, DataType.BFLOAT_16])
def test_casts_around_a_batchnorm_vanish_and_its_coefficients_stay_float32(dtype: DataType) -> None:
    b = Builder()
    wide = b.op("Cast", b.input(2, 3, dtype=dtype), dtype=DataType.FLOAT_32)
    graph = b.finish(b.op("Cast", b.op("Batchnorm", wide, floats(3), floats(3)), dtype=dtype))
    work = rewritten(graph, fold_affine)
    assert ops(work) == ["Batchnorm"]
    assert [t.dtype for t in work.ordered()[0].inputs] == [dtype, DataType.FLOAT_32, DataType.FLOAT_32]


def test_casts_around_a_batchnorm_stay_where_its_result_is_also_read_as_float32() -> None:
    b = Builder()
    wide = b.op("Cast", b.input(2, 3, dtype=DataType.FLOAT_16), dtype=DataType.FLOAT_32)
    norm = b.op("Batchnorm", wide, floats(3), floats(3))
    graph = b.finish(b.op("Cast", norm, dtype=DataType.FLOAT_16), b.op("ElementWiseExp", norm))
    assert sorted(ops(rewritten(graph, fold_affine))) == ["Batchnorm", "Cast", "Cast", "ElementWiseExp"]
