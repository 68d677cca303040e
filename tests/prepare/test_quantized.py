"""Dequantize, operation, Quantize become one quantized operation, at most one step away from the float result."""

from __future__ import annotations

import numpy as np
import pytest

from isthmus.graph import DataType, Quantization
from isthmus.prepare.passes.constants import fold_all_constants
from isthmus.prepare.passes.fusion import fuse_activations
from isthmus.prepare.passes.quantized import resolve_quantization
from isthmus.prepare.passes.redundant import remove_dead
from isthmus.prepare.work import Work
from prepare.interpreter import Builder, ops, random_inputs, rewritten, run_graph, run_work

RNG = np.random.default_rng(2)
S8, U8, F32 = DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8, DataType.FLOAT_32
IN = Quantization.per_tensor(0.05, 3)
OUT = Quantization.per_tensor(0.1, -4)
CONV = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


class QuantizedBuilder(Builder):
    def real(self, *dims, q=IN):
        return self.op("Dequantize", self.input(*dims, dtype=S8, q=q), dtype=F32)

    def weights(self, *dims, axis=None):
        value = RNG.integers(-127, 128, dims).astype(np.int8)
        count = 1 if axis is None else dims[axis]
        scales = RNG.uniform(0.01, 0.02, count)
        q = Quantization(tuple(float(np.float32(s)) for s in scales), (0,) * count, axis)
        return self.op("Dequantize", self.constant(value, q), dtype=F32)

    def stored(self, tensor, q=OUT):
        return self.op("Quantize", tensor, dtype=S8, q=q)


def resolved(graph, most=1):
    """The graph with its quantization resolved, after checking that results are at most so many steps away."""
    inputs = random_inputs(graph.inputs)
    expected = run_graph(graph, inputs)
    work = Work(graph)
    for one in (fuse_activations, resolve_quantization, remove_dead):
        one(work)
    found = run_work(work, inputs)
    for name, value in expected.items():
        assert np.abs(found[name].astype(int) - value.astype(int)).max() <= most
    return work


@pytest.mark.parametrize("axis", [None, 3])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("bias", [None, "float", "fixed"])
def test_a_convolution_is_computed_on_fixed_point_operands(axis, relu, bias) -> None:
    b = QuantizedBuilder()
    w = b.weights(3, 3, 4, 5, axis=axis)
    operands = [b.real(1, 6, 6, 4), w]
    if bias == "float":
        operands.append(RNG.normal(size=5).astype(np.float32))
    if bias == "fixed":
        weight_q = next(n for n in b.graph.nodes if n.outputs[0] is w).inputs[0].quantization
        scales = tuple(0.05 * s for s in weight_q.scales)
        q = Quantization(scales, (0,) * len(scales), None if axis is None else 0)
        whole = b.constant(RNG.integers(-900, 900, 5).astype(np.int32), q)
        operands.append(b.op("Dequantize", whole, dtype=F32))
    y = b.op("Conv2d", *operands, **CONV)
    work = resolved(b.finish(b.stored(b.op("Relu", y) if relu else y)))
    assert ops(work) == ["Conv2d"]
    step = work.ordered()[0]
    assert step.clamp == ((0.0, np.inf) if relu else None)
    assert all(t.dtype.is_fixed_point for t in (*step.inputs, *step.outputs))
    if bias:
        assert step.inputs[2].dtype is DataType.SFIXED_POINT_32


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("ElementWiseAdd", {}),
        ("ElementWiseSubtract", {}),
        ("ElementWiseMultiply", {}),
        ("Concat", {"axis": 1}),
    ],
)
def test_two_operands(op, params) -> None:
    b = QuantizedBuilder()
    y = b.op(op, b.real(4, 6), b.real(4, 6, q=Quantization.per_tensor(0.02, 0)), **params)
    work = resolved(b.finish(b.stored(y)))
    assert [o for o in ops(work) if o != "Convert"] == [op]
    assert ops(work).count("Convert") == (2 if op == "Concat" else 0)


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("Sigmoid", {}),
        ("Relu", {}),
        ("HardSwish", {}),
        ("Softmax", {"axis": 3}),
        ("ReduceMean", {"axes": [1, 2], "keep_dims": True}),
        ("PoolAvg2d", {"filter_size": [2, 2], "stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]}),
        ("Erf", {}),
        ("ElementWiseSin", {}),
        ("ElementWiseFloor", {}),
        ("ElementWiseAtan", {}),
        ("Sinh", {}),
    ],
)
def test_one_operand(op, params) -> None:
    b = QuantizedBuilder()
    work = resolved(b.finish(b.stored(b.op(op, b.real(1, 4, 4, 6), **params), Quantization.per_tensor(1 / 64, -10))))
    assert ops(work) == [op]


def test_movements_between_quantized_operations_move_bytes() -> None:
    b = QuantizedBuilder()
    x = b.op("Transpose", b.real(1, 4, 4, 6), perm=[0, 2, 1, 3])
    x = b.op("PoolMax2d", x, filter_size=[2, 2], stride=[2, 2], pad_amount=[[0, 0], [0, 0]])
    x = b.op("Reshape", x, dims=[4, 6])
    y = b.op("MatMul", x, b.weights(6, 3))
    y = b.op("Reshape", y, dims=[12])
    work = resolved(b.finish(b.stored(y)))
    assert ops(work) == ["Transpose", "PoolMax2d", "Reshape", "MatMul", "Reshape"]
    assert all(t.dtype is S8 for s in work.ordered() for t in s.outputs)


@pytest.mark.parametrize(
    ("op", "dims", "indices", "params"),
    [
        ("GatherElements", (2, 6), np.int32([[1, 0, 1, 0, 0, 1]]), {"axis": 0}),
        ("GatherNd", (2, 6), np.int32([[1, 2], [0, 0]]), {}),
        ("ReverseSequence", (2, 6), np.int32([1, 3]), {"batch_axis": 0, "time_axis": 1}),
        ("PoolMax3d", (1, 4, 4, 4, 6), None, {"filter_size": [2] * 3, "stride": [2] * 3, "pad_amount": [[0, 0]] * 3}),
    ],
)
def test_what_picks_elements_of_one_tensor_picks_bytes(op, dims, indices, params) -> None:
    b = QuantizedBuilder()
    operands = [b.real(*dims)] if indices is None else [b.real(*dims), indices]
    work = resolved(b.finish(b.stored(b.op(op, *operands, **params), IN)), most=0)
    assert ops(work) == [op]


def test_splits_of_dequantized_tensors_split_bytes() -> None:
    b = QuantizedBuilder()
    first, second = b.op("Split", b.real(2, 6), axis=1, split_index=[2])
    work = resolved(b.finish(b.stored(first, IN), b.stored(second, IN)), most=0)
    assert ops(work)[0] == "Split"
    assert "Dequantize" not in ops(work)


def test_weights_transposed_after_dequantizing_are_transposed_bytes() -> None:
    b = QuantizedBuilder()
    w = b.op("Transpose", b.weights(3, 6, axis=0), perm=[1, 0])
    work = resolved(b.finish(b.stored(b.op("MatMul", b.real(4, 6), w))))
    assert ops(work) == ["MatMul"]
    assert work.ordered()[0].inputs[1].quantization.axis == 1


def test_weights_with_scales_along_an_axis_are_not_reshaped_as_bytes() -> None:
    b = QuantizedBuilder()
    w = b.op("Reshape", b.weights(3, 6, axis=0), dims=(6, 3))
    work = resolved(b.finish(b.stored(b.op("MatMul", b.real(4, 6), w))))
    [reshaped] = [step for step in work.ordered() if step.op == "Reshape"]
    assert reshaped.inputs[0].dtype is F32


def test_dequantize_and_quantize_cancel_or_convert() -> None:
    for q, expected in ((IN, ["Relu"]), (OUT, ["Relu", "Convert"])):
        b = QuantizedBuilder()
        x = b.op("Relu", b.input(4, 5, dtype=S8, q=IN), q=IN)
        y = b.stored(b.op("Dequantize", x, dtype=F32), q)
        assert ops(resolved(b.finish(y))) == expected


def test_an_operation_with_a_float_operand_stays_float() -> None:
    b = QuantizedBuilder()
    y = b.op("ElementWiseAdd", b.real(4), b.input(4, name="f"))
    graph = b.finish(b.stored(y))
    assert "Dequantize" in ops(resolved(graph))


def test_weights_that_no_quantized_operation_took_become_floats() -> None:
    b = QuantizedBuilder()
    y = b.op("MatMul", b.input(2, 6), b.weights(6, 3))
    work = Work(b.finish(y))
    for one in (resolve_quantization, fold_all_constants):
        one(work)
    assert ops(work) == ["MatMul"]
    assert work.ordered()[0].inputs[1].dtype is F32


S16, S32 = DataType.SFIXED_POINT_16, DataType.SFIXED_POINT_32
WIDE = Quantization.per_tensor(0.001, 0)
TINY = Quantization.per_tensor(1e-30, 0)
ROWS = Quantization.per_channel(np.linspace(0.02, 0.05, 4), np.zeros(4, int), 0)


def wide(b, *dims):
    """Real values that 16 bits hold."""
    return b.op("Dequantize", b.input(*dims, dtype=S16, q=WIDE), dtype=F32)


def fixed(b, value, q, dtype=None):
    """The real values of a constant."""
    return b.op("Dequantize", b.graph.constant("c", np.asarray(value), q, dtype), dtype=F32)


MATRIX = RNG.integers(-9, 9, (6, 3)).astype(np.int8)
BETWEEN: list = [
    # (what, how it is made, operations that are left)
    ("a product of 16 bits to 8 bits", lambda b: b.op("MatMul", wide(b, 4, 6), b.weights(6, 3)),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("a function of 16 bits to 8 bits", lambda b: b.op("Sigmoid", wide(b, 4, 6)),
     ["Dequantize", "Sigmoid", "Quantize"]),
    ("a function of reals", lambda b: b.op("Sigmoid", b.input(4, 6)), ["Sigmoid", "Quantize"]),
    ("what is better done on reals", lambda b: b.op("ElementWiseSquaredDifference", b.real(4, 6), b.real(4, 6)),
     ["Dequantize", "Dequantize", "ElementWiseSquaredDifference", "Quantize"]),
    ("a product of reals", lambda b: b.op("MatMul", b.real(4, 6), b.input(6, 3)),
     ["Dequantize", "MatMul", "Quantize"]),
    ("a product with bytes known at run time", lambda b: b.op("MatMul", b.real(4, 6), b.real(6, 3)),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("weights of more bits than the data",
     lambda b: b.op("MatMul", b.real(4, 6), fixed(b, MATRIX.astype(np.int16), WIDE)),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("weights with scales along the inner axis", lambda b: b.op("MatMul", b.real(4, 6), b.weights(6, 3, axis=0)),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("weights with scales along the outer axis", lambda b: b.op("MatMul", b.real(4, 6), b.weights(6, 3, axis=1)),
     ["MatMul"]),
    ("a bias of reals known at run time",
     lambda b: b.op("MatMul", b.real(4, 6), b.weights(6, 3), b.input(3)),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("a bias of bytes",
     lambda b: b.op("MatMul", b.real(4, 6), b.weights(6, 3), fixed(b, np.int8([1, -2, 3]), OUT)), ["MatMul"]),
    ("a bias of another unit",
     lambda b: b.op("MatMul", b.real(4, 6), b.weights(6, 3), fixed(b, np.int32([100, -200, 300]), WIDE, S32)),
     ["MatMul"]),
    ("a bias that is too large in units of the product",
     lambda b: b.op("MatMul", b.real(4, 6), b.weights(6, 3), b.constant(np.float32([1e9, 1, 1]))),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("a product of scales that is no scale",
     lambda b: b.op("MatMul", b.real(4, 6, q=TINY), fixed(b, MATRIX, TINY), b.constant(np.float32([1, 1, 1]))),
     ["Dequantize", "Dequantize", "MatMul", "Quantize"]),
    ("groups of a transposed convolution",
     lambda b: b.op("TransposeConv2d", b.real(1, 4, 4, 4), b.weights(2, 2, 4, 3), group=2, **CONV),
     ["Dequantize", "Dequantize", "TransposeConv2d", "Quantize"]),
    ("a transposed convolution",
     lambda b: b.op("TransposeConv2d", b.real(1, 4, 4, 4), b.weights(2, 2, 4, 3), **CONV), ["TransposeConv2d"]),
    ("scales along an axis", lambda b: b.op("Sigmoid", b.real(4, 6, q=ROWS)), ["Dequantize", "Sigmoid", "Quantize"]),
    ("a movement of scales along an axis", lambda b: b.op("Transpose", b.real(4, 6, q=ROWS), perm=[1, 0]),
     ["Dequantize", "Quantize", "Transpose"]),
    ("a movement of reals", lambda b: b.op("Transpose", b.op("ElementWiseExp", b.input(4, 6)), perm=[1, 0]),
     ["ElementWiseExp", "Quantize", "Transpose"]),
    ("a movement of an input", lambda b: b.op("Transpose", b.input(4, 6), perm=[1, 0]), ["Transpose", "Quantize"]),
    ("a sum of signed and unsigned",
     lambda b: b.op("ElementWiseAdd", b.real(4), b.op("Dequantize", b.input(4, dtype=U8, q=IN), dtype=F32)),
     ["Dequantize", "Dequantize", "ElementWiseAdd", "Quantize"]),
    ("a sum of one with itself", lambda b: (lambda x: b.op("ElementWiseAdd", x, x))(b.real(4)), ["ElementWiseAdd"]),
]  # fmt: skip


@pytest.mark.parametrize(("build", "left"), [case[1:] for case in BETWEEN], ids=[case[0] for case in BETWEEN])
def test_only_what_all_operands_allow_is_done_on_bytes(build, left) -> None:
    b = QuantizedBuilder()
    work = resolved(b.finish(b.stored(build(b))))
    assert sorted(ops(work)) == sorted(left)


def test_a_result_of_other_bits_or_with_scales_along_an_axis_is_quantized_apart() -> None:
    for dtype, q, alone in ((S16, WIDE, ["Convert"]), (S8, ROWS, ["Convert"])):
        b = QuantizedBuilder()
        y = b.op("Quantize", b.op("Sigmoid", b.real(4, 6)), dtype=dtype, q=q)
        assert ops(resolved(b.finish(y))) == ["Dequantize", "Sigmoid", "Quantize"]
        b = QuantizedBuilder()
        y = b.op("Quantize", b.real(4, 6), dtype=dtype, q=q)
        assert ops(resolved(b.finish(y))) == alone


@pytest.mark.parametrize("kind", [np.int8, np.int16])
def test_a_product_of_16_bits_takes_weights_of_8_or_16(kind) -> None:
    b = QuantizedBuilder()
    y = b.op("MatMul", wide(b, 4, 6), fixed(b, MATRIX.astype(kind), WIDE))
    assert ops(resolved(b.finish(b.op("Quantize", y, dtype=S16, q=WIDE)))) == ["MatMul"]


def test_operations_on_16_bits_are_folded_as_those_on_8_are() -> None:
    b = QuantizedBuilder()
    x = wide(b, 4, 6)
    y = b.op(
        "Concat",
        b.op("Dequantize", b.op("Quantize", b.op("ElementWiseAdd", x, wide(b, 4, 6)), dtype=S16, q=WIDE), dtype=F32),
        b.real(4, 6),
        axis=0,
    )
    work = resolved(b.finish(b.op("Quantize", y, dtype=S16, q=WIDE)))
    assert sorted(ops(work)) == ["Concat", "Convert", "ElementWiseAdd"]


@pytest.mark.parametrize(
    ("kind", "zero", "factor", "kept"),
    [(np.int32, 0, 1, True), (np.int8, 0, 1, False), (np.int32, 1, 1, False), (np.int32, 0, 2, False)],
)
def test_a_bias_is_taken_as_it_is_stored_only_in_units_of_the_product(kind, zero, factor, kept) -> None:
    b = QuantizedBuilder()
    unit = float(np.float32(0.05)) * float(np.float32(0.01)) * factor
    weights = fixed(b, MATRIX, Quantization.per_tensor(np.float32(0.01)))
    bias = b.graph.constant("b", kind([1, -2, 3]), Quantization.per_tensor(unit, zero))
    y = b.op("MatMul", b.real(4, 6), weights, b.op("Dequantize", bias, dtype=F32))
    work = resolved(b.finish(b.stored(y)))
    [step] = work.ordered()
    assert (step.inputs[2] is bias) is kept
    assert step.inputs[2].dtype is S32
    np.testing.assert_array_equal(step.inputs[2].data, (np.int32([1, -2, 3]) - zero) * factor)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_bias_of_one_number_each_is_taken_where_the_weights_have_as_many_scales(axis) -> None:
    b = QuantizedBuilder()
    scales = Quantization((0.001, 0.002, 0.003), (0, 0, 0), 0)
    bias = b.graph.constant("b", np.int32([100, -200, 300]), scales)
    weights = b.weights(6, 3, axis=axis) if axis else b.weights(6, 3)
    work = resolved(b.finish(b.stored(b.op("MatMul", b.real(4, 6), weights, b.op("Dequantize", bias, dtype=F32)))))
    assert ops(work) == ["MatMul"]


def test_outputs_that_the_client_reads_as_floats_stay_floats() -> None:
    b = QuantizedBuilder()
    s = b.op("Sigmoid", b.real(4, 6))
    graph = b.finish(b.stored(s), s)
    assert ops(rewritten(graph, resolve_quantization)) == ["Dequantize", "Sigmoid", "Quantize"]


def test_a_dequantize_that_others_read_sinks_only_where_it_vanishes() -> None:
    for vanishes in (True, False):
        b = QuantizedBuilder()
        x = b.real(4, 6)
        moved = b.op("Transpose", x, perm=[1, 0])
        y = b.stored(moved, IN) if vanishes else b.op("ElementWiseExp", moved)
        work = rewritten(b.finish(y, b.op("ElementWiseAbs", x)), resolve_quantization, remove_dead)
        [transpose] = [step for step in work.ordered() if step.op == "Transpose"]
        assert transpose.inputs[0].dtype is (S8 if vanishes else F32)
        assert ops(work).count("Dequantize") == 1
