"""Whatever numbers a file gives, an operation either has a result of the shape its rule says, or is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.graph_cases import SHAPES

from isthmus.errors import QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.folding import emit
from isthmus.graph.operation import Operation, Param
from isthmus.graph.ops import OPERATIONS

SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
TYPES = [d for d in DataType if d is not DataType.UNDEFINED]
COMMON_TYPES = [DataType.FLOAT_32, DataType.INT_32, DataType.BOOL_8, DataType.SFIXED_POINT_8]

small = st.integers(0, 4)
wild = st.sampled_from([0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**32 - 1, 2**32, 2**63 - 1, -1, -2, -(2**31)])
anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.floats(), max_size=2),
    st.just({}),
    st.just([[1], [2, 3]]),
    st.just(1j),
    st.binary(max_size=2),
)
shapes = st.lists(small, max_size=5).map(tuple)


def numbers(size: int) -> st.SearchStrategy:
    return st.lists(st.one_of(st.integers(0, 3), wild), min_size=size, max_size=size)


def value_of(param: Param, rank: int) -> st.SearchStrategy:
    """A value for a parameter: mostly of its kind and a likely shape, sometimes anything."""
    if param.kind.endswith("[]"):
        flat = st.one_of(st.permutations(range(rank)), *(numbers(n) for n in {1, 2, 3, rank}))
        pairs = st.sampled_from([1, 2, 3, rank]).flatmap(
            lambda n: st.sampled_from([2, 3]).flatmap(lambda m: st.lists(numbers(m), min_size=n, max_size=n))
        )
        return st.one_of(flat, pairs, anything)
    return st.one_of(st.integers(0, 5), wild, st.floats(-2, 2), anything)


@st.composite
def calls(draw: st.DrawFn, name: str) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    operation: Operation = OPERATIONS[name]
    fewest, most = operation.inputs
    count = draw(st.integers(fewest, min(fewest + 2, most if most is not None else fewest + 2)))
    shape = draw(shapes)
    dtype = draw(st.sampled_from(COMMON_TYPES))
    operands = []
    for index in range(count):
        allowed = operation.input_types.get(index, TYPES)
        kind = dtype if dtype in allowed and draw(st.integers(0, 9)) else draw(st.sampled_from(list(allowed)))
        operands.append((kind, shape if draw(st.booleans()) else draw(shapes)))
    params = {p.name: draw(value_of(p, len(shape))) for p in operation.params if p.required or draw(st.booleans())}
    more: dict[str, Any] = {}
    if draw(st.booleans()):
        more["dims"] = [draw(st.one_of(shapes, st.just(shape)))]
    if operation.output_types.get(0, 0) is None:
        more["dtypes"] = [draw(st.sampled_from(COMMON_TYPES))]
    more["quantizations"] = [Quantization.per_tensor(0.5, 3)] * 8 if draw(st.booleans()) else None
    return operands, params, more


def constant(graph: Graph, index: int, dtype: DataType, dims: tuple[int, ...]) -> Tensor:
    quantization = Quantization.per_tensor(0.25, 1) if dtype.is_fixed_point else None
    data = (np.arange(np.prod(dims, dtype=int)) % 5).astype(dtype.numpy).reshape(dims)
    return graph.create_tensor(f"c{index}", TensorType.STATIC, dtype, dims, quantization, data)


@pytest.mark.parametrize("chunk", range(8))
def test_hostile_calls_are_refused_or_give_what_their_rule_says(chunk: int) -> None:
    names = sorted(OPERATIONS)[chunk::8]

    @SETTINGS
    @given(st.sampled_from(names).flatmap(lambda name: st.tuples(st.just(name), calls(name))))
    def check(case: tuple) -> None:
        name, (operands, params, more) = case
        graph = Graph("g")
        inputs = [constant(graph, index, *operand) for index, operand in enumerate(operands)]
        try:
            results = emit(graph, name, inputs, params, **more)
        except QnnError:
            return
        if OPERATIONS[name].traits.varies:
            return
        for result in results:
            assert result.data is not None
            assert result.data.shape == result.dims
            assert result.data.flags.c_contiguous

    check()


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, list[Any], dict[str, Any]]:
    """A call that fits, with up to two of its numbers changed."""
    name, operands, params, _ = draw(st.sampled_from(SHAPES))
    operands = [o if o is None or (o[:1] and isinstance(o[0], DataType)) else (DataType.FLOAT_32, o) for o in operands]
    params = {key: np.array(value) for key, value in params.items()}
    for _ in range(draw(st.integers(0, 2))):
        index = draw(st.integers(0, len(operands) - 1))
        if params and draw(st.booleans()):
            key = draw(st.sampled_from(sorted(params)))
            if params[key].size:
                params[key] = params[key].astype(object)
                params[key].flat[draw(st.integers(0, params[key].size - 1))] = draw(st.one_of(st.integers(0, 5), wild))
                params[key] = np.array(params[key].tolist())
        elif operands[index] is not None and operands[index][1]:
            dtype, dims = operands[index]
            at = draw(st.integers(0, len(dims) - 1))
            operands[index] = dtype, (*dims[:at], draw(small), *dims[at + 1 :])
    return name, operands, params


@SETTINGS
@given(spoiled())
def test_calls_with_a_number_changed_are_refused_or_give_what_their_rule_says(case: tuple) -> None:
    name, operands, params = case
    graph = Graph("g")
    inputs = [None if o is None else constant(graph, index, *o) for index, o in enumerate(operands)]
    dtypes = [DataType.FLOAT_32] if name == "OneHot" else None
    try:
        results = emit(graph, name, inputs, params, dtypes=dtypes, outputs=OPERATIONS[name].outputs[1] or 1)
    except QnnError:
        return
    assert OPERATIONS[name].traits.varies or all(r.data is not None and r.data.shape == r.dims for r in results)


@SETTINGS
@given(st.data())
def test_huge_dimensions_are_refused_or_described_without_being_made(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(OPERATIONS)))
    operands, params, more = data.draw(calls(name))
    graph = Graph("g")
    inputs = []
    try:
        for index, (dtype, dims) in enumerate(operands):
            dims = tuple(data.draw(st.sampled_from([d, 2**16, 2**31 - 1])) for d in dims)
            quantization = Quantization.per_tensor(0.25) if dtype.is_fixed_point else None
            inputs.append(graph.create_tensor(f"x{index}", TensorType.APP_WRITE, dtype, dims, quantization))
        for result in graph.emit(name, inputs, params, **more):
            assert all(d >= 0 for d in result.dims)
    except QnnError:
        pass
