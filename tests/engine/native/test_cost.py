"""The time that a step is estimated to take counts its products and its bytes, whatever the operation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.graph_cases import DECLARED, NO_PADS, SHAPES

from isthmus.engine.native.cost import nanoseconds, products, step_nanoseconds
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import ProductKind
from isthmus.prepare.schedule import Step

PROJECTED_TO_NONE = [
    (5, 2, 3), *[(4, 3)] * 3, *[(4, 0)] * 3, *[(4,)] * 3, (2, 0), (2, 4), *[None] * 10, (0, 4),
]  # fmt: skip
CASES = [
    *SHAPES, *DECLARED, ("ElementWiseAdd", [(), ()], {}, [()]), ("ReduceSum", [(3,)], {"axes": [0]}, [()]),
    ("Lstm", PROJECTED_TO_NONE, {}, [(5, 2, 0), (2, 4), (2, 0)]),
]  # fmt: skip
LINEAR: list[tuple[str, list, dict, list]] = [
    ("Conv1d", [(2, 10, 3), (3, 3, 8)], {"stride": 2, "pad_amount": [0, 0]}, [(2, 4, 8)]),
    ("Conv3d", [(1, 4, 5, 6, 2), (2, 2, 2, 2, 7)], {"stride": [1] * 3, "pad_amount": [[0, 0]] * 3}, [(1, 3, 4, 5, 7)]),
    ("Conv2d", [(2, 9, 8, 4), (3, 3, 2, 6)], {"stride": [1, 1], "pad_amount": NO_PADS, "group": 2}, [(2, 7, 6, 6)]),
    ("DepthWiseConv2d", [(1, 7, 7, 4), (3, 2, 1, 8)], {"stride": [2, 1], "pad_amount": NO_PADS}, [(1, 3, 6, 8)]),
    ("TransposeConv2d", [(2, 4, 5, 6), (3, 2, 6, 3)], {"stride": [2, 3], "pad_amount": NO_PADS}, [(2, 9, 14, 3)]),
    ("TransposeConv1d", [(1, 5, 4), (3, 4, 2)], {"stride": 3, "pad_amount": [0, 0], "group": 2}, [(1, 15, 4)]),
    ("FullyConnected", [(2, 3, 4), (7, 12)], {}, [(2, 7)]),
    ("MatMul", [(5, 1, 2, 3), (4, 3, 6)], {}, [(5, 4, 2, 6)]),
    ("MatMul", [(3, 2), (6, 3)], {"transpose_in0": True, "transpose_in1": True}, [(2, 6)]),
    ("MatMulInteger", [(DataType.UINT_8, (2, 3)), (DataType.UINT_8, (3, 4))], {}, [(DataType.INT_32, (2, 4))]),
]
"""Products without padding: each number is multiplied by one."""


def step_of(op: str, operands: list, params: dict, outputs: list) -> Step:
    def tensor(name: str, given: tuple) -> Tensor:
        dtype, dims = given if given and isinstance(given[0], DataType) else (DataType.FLOAT_32, given)
        return Tensor(name, TensorType.NATIVE, dtype, dims)

    inputs = [None if given is None else tensor(f"in{i}", given) for i, given in enumerate(operands)]
    results = [tensor(f"out{i}", given) for i, given in enumerate(outputs)]
    complete = OPERATIONS[op].complete("node", params)
    OPERATIONS[op].derive(Call("node", op, inputs, complete, results))
    return Step(op, "node", inputs, results, complete)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_any_step_takes_a_time(case: tuple[str, list, dict, list]) -> None:
    step = step_of(*case)
    assert 0 < step_nanoseconds(step) < math.inf
    assert 0 <= nanoseconds(step) < math.inf


@pytest.mark.parametrize("case", LINEAR, ids=lambda case: f"{case[0]} {case[2]}")
def test_products_of_ones_add_up_to_their_number(case: tuple[str, list, dict, list]) -> None:
    step = step_of(*case)
    ones = [np.ones(t.dims, t.dtype.numpy) for t in step.inputs if t is not None]
    (result,) = evaluate(step.op, step.inputs, ones, step.params, step.outputs)
    assert products(step) == result.sum()


def test_every_kind_of_product_is_counted() -> None:
    kinds = {OPERATIONS[op].traits.product for op, *_ in LINEAR}
    assert kinds == {kind for kind in ProductKind if any(o.traits.product is kind for o in OPERATIONS.values())} - {
        None
    }


def test_results_that_do_not_fill_a_vector_take_as_long_as_those_that_do() -> None:
    def of_columns(count: int) -> float:
        return step_nanoseconds(step_of("FullyConnected", [(100, 500), (count, 500)], {}, [(100, count)]))

    assert of_columns(17) > 1.8 * of_columns(16)
    assert of_columns(32) < 1.1 * of_columns(17)
