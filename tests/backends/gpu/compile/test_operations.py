"""Every operation that the engine says it executes gives what the reference gives, on either kind of device."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from support.graph_cases import DECLARED, SHAPES
from support.suites import long, sampled

from backends.gpu.compile.checking import check, graph_of, run, traits
from isthmus.backends.gpu.compile.lower import prepare, refusal, supports, unsupported
from isthmus.backends.gpu.compile.serialization import from_bytes, to_bytes
from isthmus.backends.gpu.compile.traits import FloatStorage
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Quantization, Tensor, TensorType
from isthmus.graph.operation import Call, Operation
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.ops.elementwise import NUMBERED, numbered_function
from isthmus.prepare.schedule import Step

_generator = np.random.default_rng(3)
_STATIC = {"Conv": (1, 2), "DepthWise": (1, 2), "TransposeConv": (1, 2), "FullyConnected": (1, 2), "MatMul": (2,)}
LIMITS = {"min_value": -1, "max_value": 1}
ELEMENT_WISE = [
    (op, [(2, 3, 5)] * operation.inputs[0], LIMITS if op == "ReluMinMax" else {})
    for op, operation in OPERATIONS.items()
    if operation.traits.element_wise and operation.function is not None
]
CONVERSIONS = ("Quantize", "Dequantize", "Convert", "Cast")


def _operands(function: Operation, dims: list[tuple[int, ...]]) -> list[Any]:
    """Operands of these dimensions, of truth values or integers where the function takes no floats."""
    types = function.input_types.get(0, ())
    if not types or DataType.FLOAT_32 in types:
        return list(dims)
    if DataType.BOOL_8 not in types:
        return [(types[0], d) for d in dims]
    logical = 1 if function.name == "ElementWiseSelect" else len(dims)
    return [*((DataType.BOOL_8, d) for d in dims[:logical]), *dims[logical:]]


def _array(op: str, index: int, operand: Any) -> np.ndarray | None:
    if operand is None:
        return None
    dtype, dims = operand if operand and isinstance(operand[0], DataType) else (DataType.FLOAT_32, operand)
    if dtype is DataType.BOOL_8:
        return _generator.integers(0, 2, dims).astype(bool)
    if dtype is not DataType.FLOAT_32:
        return _generator.integers(0, 2, dims).astype(dtype.numpy)
    if op in ("ElementWiseLog", "ElementWiseSquareRoot", "ElementWiseRsqrt", "ElementWisePower", "Acosh"):
        return _generator.uniform(1.1, 4, dims).astype(np.float32)
    if op in ("ElementWiseAsin", "Acos", "Atanh"):
        return _generator.uniform(-0.9, 0.9, dims).astype(np.float32)
    return _generator.standard_normal(dims).astype(np.float32)


def _statics(op: str, count: int) -> tuple[int, ...]:
    if op in ("Lstm", "Gru"):
        return tuple(i for i in range(1, count) if i not in ((10, 11) if op == "Lstm" else (13,)))
    return next((s for name, s in _STATIC.items() if op.startswith(name)), ())


CASES = [
    *((op, operands, params, None) for op, operands, params, _ in SHAPES),
    *((op, operands, params, outputs) for op, operands, params, outputs in DECLARED),
]


@pytest.mark.parametrize("index", sampled(range(len(CASES)), 6), ids=lambda i: f"{i}-{CASES[i][0]}")
def test_an_operation_matches_the_reference(index: int) -> None:
    op, arrays, params, described = _case(index)
    graph = graph_of(op, arrays, params, **described)
    refused = unsupported(graph)
    if refused:
        assert refused[0].reason
        with pytest.raises(QnnError) as caught:
            prepare(graph, traits("cpu"))
        assert caught.value.code is Code.COMMON_NOT_SUPPORTED
        return
    check(op, arrays, params, **described)


EVERY: list[tuple[str, list, dict, list | None]] = [
    *CASES,
    *(
        (op, _operands(OPERATIONS[op], dims), params, None)
        for op, dims, params in ELEMENT_WISE
        if op not in CONVERSIONS
    ),
    *(
        (
            op,
            _operands(numbered_function(op, number), [(2, 3, 5)] * OPERATIONS[op].inputs[0]),
            {"operation": number, **(LIMITS if name == "ReluMinMax" else {})},
            None,
        )
        for op, names in NUMBERED.items()
        for number, name in enumerate(names)
    ),
    ("Cast", [(2, 3)], {}, [(DataType.FLOAT_32, (2, 3))]),
]
"""All operations of the engine but those that need a quantization, the numbered ones with every number."""


def _case(index: int) -> tuple[str, list[np.ndarray | None], dict, dict[str, Any]]:
    """An operation, arrays for its operands, its parameters, and what else `graph_of` is to know."""
    op, operands, params, outputs = EVERY[index]
    if sum(prod(_dims(operand)) for operand in operands if operand is not None) > 100_000:
        pytest.skip("too large to try here")
    arrays = [_array(op, i, operand) for i, operand in enumerate(operands)]
    declared = None if outputs is None else [(_dtype(op, o), _dims(o)) for o in outputs]
    if op == "OneHot":
        declared = [(DataType.FLOAT_32, SHAPES[index][3][0])]
    return op, arrays, params, {"statics": _statics(op, len(arrays)), "declared": declared}


@pytest.mark.parametrize("index", range(len(EVERY)), ids=lambda i: f"{i}-{EVERY[i][0]}")
def test_a_program_of_any_operation_is_restored_from_its_bytes(index: int) -> None:
    op, arrays, params, described = _case(index)
    graph = graph_of(op, arrays, params, **described)
    if unsupported(graph):
        pytest.skip("it is not executed")
    made = prepare(graph, traits("cpu"))
    back = from_bytes(to_bytes(made), traits("cpu"))
    assert (back.units, back.launches) == (made.units, made.launches)
    np.testing.assert_array_equal(back.constants, made.constants)
    for one, other in zip(made.schedule.steps, back.schedule.steps, strict=True):
        assert repr(one.params) == repr(other.params)


@pytest.mark.parametrize("index", range(len(EVERY)), ids=lambda i: f"{i}-{EVERY[i][0]}")
def test_types_without_kernels_are_refused_whatever_the_operation(index: int) -> None:
    op, arrays, params, described = _case(index)
    [node] = graph_of(op, arrays, params, **described).nodes

    def wide(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor.dtype is not DataType.FLOAT_32:
            return tensor
        data = None if tensor.data is None else tensor.data.astype(np.float64)
        return Tensor(tensor.name, tensor.type, DataType.FLOAT_64, tensor.dims, data=data)

    inputs, outputs = ([wide(tensor) for tensor in tensors] for tensors in (node.inputs, node.outputs))
    if any(t is not None and t.dtype is DataType.FLOAT_64 for t in (*inputs, *outputs)):
        assert refusal(Step(op, "wide", inputs, outputs, node.params))


def _dtype(op: str, operand: Any) -> DataType | None:
    """The declared type of an output, where the operation does not give it."""
    if operand and isinstance(operand[0], DataType):
        return operand[0]
    return DataType.FLOAT_32 if 0 in OPERATIONS[op].output_types and OPERATIONS[op].output_types[0] is None else None


def _dims(operand: Any) -> tuple[int, ...]:
    return operand[1] if operand and isinstance(operand[0], DataType) else operand


ON_A_GPU = (
    "PoolMax2d", "PoolAvg2d", "ReduceMean", "ReduceMax", "Softmax", "LayerNorm", "ResizeBilinear", "Resize", "Gather",
    "Transpose", "Pad", "Lstm", "Gru", "TransposeConv2d", "ElementWiseAdd", "TopK",
)  # fmt: skip


@pytest.mark.parametrize("op", sampled(ON_A_GPU, 4))
def test_kernels_for_gpus_match_the_reference(op: str) -> None:
    index = next(i for i, case in enumerate(CASES) if case[0] == op and all(0 not in _dims(o) for o in case[1] if o))
    _, operands, params, outputs = CASES[index]
    arrays = [_array(op, i, operand) for i, operand in enumerate(operands)]
    declared = None if outputs is None else [(_dtype(op, o), _dims(o)) for o in outputs]
    check(op, arrays, params, statics=_statics(op, len(arrays)), declared=declared, kinds=("tiles",))


@pytest.mark.parametrize(
    ("left", "right", "vectors"),
    [
        ((24,), (24,), "float4"), ((3, 8), (3, 1), "float4"), ((3, 6), (3, 1), "float4_u"),
        ((4, 3), (4, 1), None), ((5, 2), (5, 1), None),
    ],
)  # fmt: skip
def test_a_gpu_takes_four_elements_at_a_time_where_rows_have_them(
    left: tuple[int, ...], right: tuple[int, ...], vectors: str | None
) -> None:
    arrays = [np.random.default_rng(5).standard_normal(dims).astype(np.float32) for dims in (left, right)]
    check("ElementWiseAdd", arrays, kinds=("tiles",))
    source = "".join(unit.source for unit in prepare(graph_of("ElementWiseAdd", arrays), traits("tiles")).units)
    used = [name for name in ("float2", "float4", "float4_u", "float8") if f"(global {name} *)" in source]
    assert used == ([vectors] if vectors else [])


@pytest.mark.parametrize("case", sampled(ELEMENT_WISE, 5), ids=lambda case: case[0])
def test_a_function_of_elements_matches_the_reference(case: tuple[str, list, dict]) -> None:
    op, dims, params = case
    if op in CONVERSIONS:
        pytest.skip("tested with types of their own")
    arrays = [_array(op, i, operand) for i, operand in enumerate(_operands(OPERATIONS[op], dims))]
    if unsupported(graph_of(op, arrays, params)):
        pytest.skip("it is not executed")
    check(op, arrays, params)


def test_operands_are_broadcast() -> None:
    a, b = _array("", 0, (4, 1, 3, 5)), _array("", 1, (2, 1, 5))
    check("ElementWiseSubtract", [a, b])
    check("ElementWiseSubtract", [b, a])
    check("Prelu", [_array("", 0, (2, 7, 9)), _array("", 0, (9,))])


@pytest.mark.parametrize("dtype", [np.int32, long(np.uint8), long(np.int64)])
@pytest.mark.parametrize("op", sampled(("Divide", "Add", "Less", "Maximum"), 2))
def test_arithmetic_of_integers_matches_the_reference(op: str, dtype: type) -> None:
    a, b = (_generator.integers(1, 9, (3, 17)).astype(dtype) for _ in range(2))
    check(f"ElementWise{op}", [a, b])


@pytest.mark.parametrize("source", [np.float32, *map(long, (np.int32, np.int64, np.uint8, np.bool_))])
@pytest.mark.parametrize("goal", [np.float32, np.int32, np.bool_])
def test_casts_match_the_reference(source: type, goal: type) -> None:
    x = (_generator.uniform(0, 3, (5, 7))).astype(source)
    check("Cast", [x], declared=[(DataType.of(goal), x.shape)])


def test_quantization_and_dequantization_match_the_reference() -> None:
    x = _generator.uniform(-2, 2, (3, 41)).astype(np.float32)
    quantization = Quantization.per_tensor(0.02, 7)
    check("Quantize", [x], declared=[(DataType.SFIXED_POINT_8, x.shape)], results=[quantization], steps=1)
    stored = _generator.integers(-128, 128, (3, 41)).astype(np.int8)
    check("Dequantize", [stored], quantizations=[quantization], declared=[(DataType.FLOAT_32, stored.shape)])


def test_nan_stays_where_it_is() -> None:
    x = np.array([np.nan, -1, 2, np.inf, -np.inf, 0, 7, 8, 9], np.float32)
    check("Relu6", [x])
    check("ElementWiseMaximum", [x, x[::-1].copy()])


def test_what_is_not_executed_is_refused_with_a_reason() -> None:
    x = Tensor("x", TensorType.APP_WRITE, DataType.FLOAT_64, (4,))
    y = Tensor("y", TensorType.APP_READ, DataType.FLOAT_64, (4,))
    reason = supports(Call("gate", "Sigmoid", [x], {}, [y]))
    assert reason is not None
    assert "FLOAT_64" in reason
    x = Tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (4,))
    y = Tensor("y", TensorType.APP_READ, DataType.INT_32, (4, 1))
    assert supports(Call("places", "NonZero", [x], {}, [y])) == "the OpenCL engine does not execute this operation"


@pytest.mark.parametrize(
    ("dims", "pads"),
    [
        ((1, 4, 3), [[0, 0], [1, 2], [0, 0]]),
        long((1, 1, 4, 3), [[0, 0], [0, 0], [0, 1], [2, 0]]),
        long((2, 4, 3), [[0, 0], [1, 2], [0, 0]]),
        ((2, 3, 4), [[1, 0], [0, 0], [0, 2]]),
        long((1, 5, 4, 3), [[0, 0], [1, 1], [2, 0], [0, 0]]),
        long((1, 5), [[1, 0], [0, 2]]),
    ],
    ids=str,
)
def test_constants_are_put_around_axes_of_any_length(dims: tuple[int, ...], pads: list[list[int]]) -> None:
    x = np.arange(np.prod(dims), dtype=np.float32).reshape(dims)
    params = {"scheme": 0, "pad_amount": pads, "pad_constant_value": -1.5}
    check("Pad", [x], params, kinds=("cpu", "tiles"))


@pytest.mark.parametrize("from_end", [True, False])
def test_an_index_outside_its_axis_means_the_nearest_element(from_end: bool) -> None:
    x, places = np.arange(4, dtype=np.float32), np.array([4, -1, -9, 2], np.int32)
    nearest = [3, 3 if from_end else 0, 0, 2]
    for op, params, indices in (
        ("Gather", {"axis": 0}, places),
        ("GatherElements", {"axis": 0}, places),
        ("GatherNd", {}, places[:, None]),
    ):
        graph = graph_of(op, [x, indices], params | {"from_end": from_end})
        for kind in ("cpu", "tiles"):
            assert run(prepare(graph, traits(kind), FloatStorage.FP32), [x, indices])[0].tolist() == nearest
