"""What the operations' tables say of an operation is true of its reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.graph_cases import DECLARED, SHAPES

from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.operation import Operation
from isthmus.graph.ops import OPERATIONS, having
from isthmus.graph.ops.elementwise import FUNCTIONS
from isthmus.graph.traits import Picks

RNG = np.random.default_rng(5)
CALLS = {op: (operands, params, shapes) for op, operands, params, shapes in (*DECLARED, *SHAPES) if np.prod(shapes[0])}
"""For each operation a call that gives elements."""


def make(op: str) -> tuple[list[Tensor], list[np.ndarray], list[Tensor]]:
    """Tensors for a call, different numbers in all of them (indices are 0), and its outputs."""
    operands, params, shapes = CALLS[op]
    graph, tensors, arrays = Graph("traits"), [], []
    for number, operand in enumerate(operands):
        dtype, dims = operand if operand and isinstance(operand[0], DataType) else (DataType.FLOAT_32, operand)
        tensors.append(graph.create_tensor(f"in{number}", TensorType.APP_WRITE, dtype, dims))
        values = RNG.permutation(int(np.prod(dims))).reshape(dims) + 1 + 1000 * number
        arrays.append(np.zeros(dims, dtype.numpy) if dtype is DataType.INT_32 else values.astype(dtype.numpy))
    return tensors, arrays, graph.emit(op, tensors, params, dims=shapes)


def result(op: str, call: tuple[list[Tensor], list[np.ndarray], list[Tensor]], params: dict[str, Any]) -> np.ndarray:
    tensors, arrays, outputs = call
    return evaluate(op, tensors, arrays, params, outputs)[0]


@pytest.mark.parametrize("op", sorted(having(lambda o: o.traits.moves)))
def test_an_operation_that_moves_gives_elements_of_its_sources_or_what_it_fills_in(op: str) -> None:
    moves = OPERATIONS[op].traits.moves
    assert moves is not None
    call, params = make(op), CALLS[op][1]
    sources = moves.sources or range(len(call[1]))
    known = {float(v) for index in sources for v in call[1][index].reshape(-1)} | ({0.0} if moves.fills else set())
    assert {float(v) for v in result(op, call, params).reshape(-1)} <= known


@pytest.mark.parametrize("op", sorted(having(lambda o: o.traits.moves or o.traits.orders)))
def test_only_their_order_decides_which_elements_are_picked(op: str) -> None:
    operation = OPERATIONS[op]
    (tensors, arrays, outputs), params = make(op), CALLS[op][1]

    def grown(values: np.ndarray) -> np.ndarray:
        return values if values.dtype.kind != "f" else 2 * values

    before = result(op, (tensors, arrays, outputs), params)
    after = result(op, (tensors, [grown(a) for a in arrays], outputs), params)
    np.testing.assert_array_equal(after, before if operation.traits.orders else grown(before))
    if operation.traits.moves is not None and operation.traits.moves.picks is Picks.PLACE:
        turned = [-a if a.dtype.kind == "f" else a for a in arrays]
        np.testing.assert_array_equal(result(op, (tensors, turned, outputs), params), -before)


def operands_of(function: Operation, *dims: int) -> tuple[list[Tensor], list[np.ndarray]]:
    """Operands of random floats; of bools where the function takes those alone or chooses by them; else of bytes."""
    preferred = (DataType.FLOAT_32, DataType.BOOL_8, DataType.UINT_8)
    first = next(dtype for dtype in preferred if dtype in function.input_types[0])
    others = DataType.FLOAT_32 if function.name == "ElementWiseSelect" else first
    types = [first, *[others] * (function.inputs[0] - 1)]
    tensors = [Tensor(f"in{i}", TensorType.APP_WRITE, dtype, dims) for i, dtype in enumerate(types)]
    values = {
        DataType.FLOAT_32: lambda: RNG.random(dims).astype(np.float32), DataType.BOOL_8: lambda: RNG.random(dims) > 0.5,
        DataType.UINT_8: lambda: RNG.integers(0, 8, dims).astype(np.uint8),
    }  # fmt: skip
    arrays = [values[dtype]() for dtype in types]
    return tensors, arrays


def evaluated(name: str, tensors: list[Tensor], arrays: list[np.ndarray]) -> np.ndarray:
    params = {"min_value": 0.2, "max_value": 0.7} if name == "ReluMinMax" else {}
    graph = Graph("traits")
    outputs = graph.emit(name, [graph.add_tensor(t) for t in tensors], params)
    return evaluate(name, tensors, arrays, params, outputs)[0]


NAMED = sorted(FUNCTIONS.keys() & OPERATIONS.keys())


@pytest.mark.parametrize("op", NAMED)
def test_an_element_of_an_element_wise_result_depends_on_the_elements_at_its_place(op: str) -> None:
    function = OPERATIONS[op]
    assert function.traits.element_wise
    tensors, arrays = operands_of(function, 2, 8)
    whole = evaluated(op, tensors, arrays)
    for index in range(len(arrays)):
        changed = [a.copy() for a in arrays]
        changed[index][1, 3] = not changed[index][1, 3] if changed[index].dtype.kind == "b" else 0.25
        again = evaluated(op, tensors, changed)
        again[1, 3] = whole[1, 3]
        np.testing.assert_array_equal(again, whole)


@pytest.mark.parametrize("op", sorted(op for op in NAMED if OPERATIONS[op].inputs == (2, 2)))
def test_exactly_the_commutative_functions_give_the_same_for_operands_in_either_order(op: str) -> None:
    tensors, arrays = operands_of(OPERATIONS[op], 64)
    arrays[1][:8] = arrays[0][:8]
    turned = evaluated(op, tensors, arrays[::-1])
    assert np.array_equal(evaluated(op, tensors, arrays), turned) == OPERATIONS[op].traits.commutative


@pytest.mark.parametrize("op", sorted(having(lambda o: o.traits.limits)))
def test_an_operation_with_limits_limits_and_does_nothing_else(op: str) -> None:
    limits = OPERATIONS[op].traits.limits
    assert limits is not None
    x = np.linspace(-9, 9, 64, dtype=np.float32)
    tensors = [Tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (64,))]
    np.testing.assert_array_equal(evaluated(op, tensors, [x]), np.clip(x, *limits).astype(np.float32))


def test_what_is_element_wise_has_a_function_or_a_number_that_picks_one() -> None:
    numbered = {"ElementWiseUnary", "ElementWiseBinary", "ElementWiseNeuron"}
    without = having(lambda o: o.traits.element_wise and o.function is None)
    assert without == numbered | {"Batchnorm"}
