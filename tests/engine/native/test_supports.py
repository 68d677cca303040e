"""What the engine says it supports it executes; what it refuses, preparation refuses in the same words."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.graph_cases import DECLARED, SHAPES
from support.plans import plan_graph
from support.suites import sampled

from engine.native.harness import run
from isthmus.engine.native import lower
from isthmus.engine.native.target import host
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare import Planner, PlanOptions
from isthmus.prepare.planner import rewritten

RNG = np.random.default_rng(0)
F32, F64, I32, BOOL = DataType.FLOAT_32, DataType.FLOAT_64, DataType.INT_32, DataType.BOOL_8
S8 = DataType.SFIXED_POINT_8
TYPES = [t for t in DataType if t is not DataType.UNDEFINED]

Case = tuple[str, list, dict[str, Any], list]
ELEMENT_WISE: list[Case] = [
    *(
        (op, [(2, 3)] * operation.inputs[0], {"min_value": -1, "max_value": 1} if op == "ReluMinMax" else {}, [(2, 3)])
        for op, operation in OPERATIONS.items()
        if operation.traits.element_wise and operation.function is not None
    ),
    ("BitCast", [(2, 3)], {}, [(2, 3)]),
    *(("ElementWiseUnary", [(2, 3)], {"operation": number}, [(2, 3)]) for number in (2, 5, 9, 10, 13)),
    *(("ElementWiseBinary", [(2, 3)] * 2, {"operation": number}, [(2, 3)]) for number in (0, 1, 3, 16)),
    *(("ElementWiseNeuron", [(2, 3)], {"operation": number}, [(2, 3)]) for number in (0, 2, 4)),
]
CASES = [*SHAPES, *DECLARED, *ELEMENT_WISE]


def quantization(dtype: DataType, scale: float = 0.5) -> Quantization | None:
    return Quantization.per_tensor(scale, 3) if dtype.is_fixed_point else None


def tensor(name: str, kind: TensorType, dtype: DataType, dims: tuple[int, ...], scale: float = 0.5) -> Tensor:
    data = np.ones(dims, dtype.numpy) if kind is TensorType.STATIC else None
    return Tensor(name, kind, dtype, dims, quantization(dtype, scale), data)


def calls(op: str, operands: list, params: dict[str, Any], shapes: list) -> Iterator[Call]:
    """A case in every data type: operands that follow in[0] constant or not, results of another scale and type too."""
    fixed = [isinstance(o[0], DataType) if o else False for o in operands]
    own = OPERATIONS[op].input_types
    for dtype in TYPES:
        for constant in (False, True) if len(operands) > 1 else (False,):
            inputs: list[Tensor | None] = []
            for index, operand in enumerate(operands):
                if operand is None:
                    inputs.append(None)
                    continue
                given, dims = operand if fixed[index] else (dtype, operand)
                # Where an operand cannot have the type of in[0], it has one that it can have.
                allowed = own.get(index, TYPES)
                expected = given if given in allowed or index == 0 else allowed[0]
                kind = TensorType.STATIC if constant and index else TensorType.APP_WRITE
                inputs.append(tensor(f"in{index}", kind, expected, dims))
            for result, scale in ((dtype, 0.5), (dtype, 0.25), (F32, 1.0), (S8, 0.1), (BOOL, 1.0), (I32, 1.0)):
                types = [result, *(further_type(op, index, dtype) for index in range(1, len(shapes)))]
                outputs = [
                    tensor(f"out{index}", TensorType.APP_READ, kind, dims, scale)
                    for index, (kind, dims) in enumerate(zip(types, shapes, strict=True))
                ]
                yield Call("node", op, inputs, dict(params), outputs)


def further_type(op: str, index: int, dtype: DataType) -> DataType:
    """The type of a result that follows the first: that of in[0] unless the operation has types of its own for it."""
    rule = OPERATIONS[op].output_types.get(index)
    if op == "TopK" or isinstance(rule, DataType):
        return I32
    return rule[0] if isinstance(rule, tuple) and dtype not in rule else dtype


def graph_of(call: Call) -> Graph:
    graph = Graph("one")
    given = [t and graph.add_tensor(replace(t)) for t in call.inputs]
    results = [graph.add_tensor(replace(t)) for t in call.declared or ()]
    graph.add_node("node", call.op, given, results, call.params)
    graph.finalize()
    return graph


def prepared(call: Call) -> str | None:
    """Return why a graph with the call cannot be lowered."""
    try:
        planned = plan_graph(graph_of(call), lambda step: lower.NativeEngine(host()).work_bytes(step, 1))
        lower.lower(planned, host(), 1)
    except QnnError as error:
        return error.rule
    return None


def test_the_cases_cover_every_operation() -> None:
    assert {op for op, *_ in CASES} == OPERATIONS.keys()


NUMBERS = [f"{number}-{case[0]}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize("case", sampled(CASES, 3), ids=NUMBERS)
def test_what_is_supported_lowers_and_what_is_refused_is_refused_in_the_same_words(case: Case) -> None:
    asked = set()
    for call in calls(*case):
        tensors = [t for t in (*call.inputs, *(call.declared or ())) if t is not None]
        types = tuple((t.dtype, t.type, t.quantization) for t in tensors)
        if types in asked:
            continue
        asked.add(types)
        answer = lower.supports(call)
        assert answer == prepared(call), [t.describe() for t in tensors]
        if answer is None:
            complete = replace(call, params=OPERATIONS[call.op].complete("node", call.params))
            OPERATIONS[call.op].verify(complete)
            assert lower.supports(complete) is None, "a call whose parameters its rule has resolved is the same call"


def contents(tensor: Tensor, index: int) -> np.ndarray:
    """Numbers within the reach of every operation; operands that follow in[0] may be indices, in which all are 1."""
    if tensor.data is not None:
        return tensor.data
    if tensor.dtype.is_float:
        return RNG.uniform(0.1, 0.9, tensor.dims).astype(tensor.dtype.numpy)
    if tensor.dtype is BOOL:
        return RNG.random(tensor.dims) > 0.5
    return (
        np.ones(tensor.dims, tensor.dtype.numpy)
        if index
        else RNG.integers(0, 5, tensor.dims).astype(tensor.dtype.numpy)
    )


def executed(graph: Graph, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The graph's outputs, each step after all passes run by its kernels."""
    work = rewritten(graph)
    values = dict(zip([t for t in graph.nodes[0].inputs if t is not None], arrays, strict=True))
    values |= {state: np.ascontiguousarray(state.initial()) for state in work.states}
    for step in work.ordered():
        operands = [None if t is None else t.data if t.is_static else values[t] for t in step.inputs]
        values |= dict(zip(step.outputs, run(step, operands), strict=True))
    return [values[t] for t in work.outputs]


@pytest.mark.parametrize("case", sampled(CASES, 12), ids=NUMBERS)
def test_what_is_supported_computes_what_the_reference_says(case: Case) -> None:
    supported = [call for call in calls(*case) if lower.supports(call) is None]
    by_type = {call.inputs[0].dtype: call for call in reversed(supported) if call.inputs[0] is not None}
    for call in [by_type[dtype] for dtype in (F32, S8) if dtype in by_type]:
        graph = graph_of(call)
        node = graph.nodes[0]
        given = [t and contents(t, index) for index, t in enumerate(node.inputs)]
        arrays = [array for array in given if array is not None]
        expected = evaluate(node.op, node.inputs, given, node.params, node.outputs)
        for ours, theirs, result in zip(executed(graph, arrays), expected, node.outputs, strict=True):
            steps = 1 if result.dtype.is_fixed_point else 0
            np.testing.assert_allclose(ours.astype(float), theirs.astype(float), rtol=1e-4, atol=max(steps, 1e-5))


@pytest.mark.parametrize("op", sorted(OPERATIONS))
def test_every_operation_is_executed_in_some_type(op: str) -> None:
    assert any(lower.supports(call) is None for case in CASES if case[0] == op for call in calls(*case))


def large_convolution() -> Call:
    """With more weights than anyone would want to look at, and without their data."""
    weights = Tensor("w", TensorType.APP_WRITE, F32, (3, 3, 4096, 8192))
    weights.type = TensorType.STATIC
    x = tensor("x", TensorType.APP_WRITE, F32, (1, 8, 8, 4096))
    y = tensor("y", TensorType.APP_READ, F32, (1, 6, 6, 8192))
    return Call("conv", "Conv2d", [x, weights], {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}, [y])


def test_constants_may_come_without_their_data() -> None:
    tracemalloc.start()
    assert lower.supports(large_convolution()) is None
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_asking_what_is_supported_emits_no_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower, "Emitter", None)
    for case in CASES:
        for call in itertools.islice(calls(*case), 3):
            lower.supports(call)


def test_a_call_that_breaks_its_own_rule_is_refused_with_that_rule() -> None:
    x, y = tensor("x", TensorType.APP_WRITE, F32, (2, 3)), tensor("y", TensorType.APP_READ, F32, (3, 3))
    assert "must have dimensions [2, 3]" in (lower.supports(Call("n", "Relu", [x], {}, [y])) or "")
    assert "there is no such operation" in (lower.supports(Call("n", "Nonsense", [x], {}, [y])) or "")


def three_nodes() -> Graph:
    """Two nodes that are not executed around one that is."""
    graph = Graph("three")
    x = graph.create_tensor("x", TensorType.APP_WRITE, F64, (2, 3))
    gate = graph.emit("Gelu", [x], name="first")
    [moved] = graph.emit("Transpose", gate, {"perm": [1, 0]}, name="second")
    y = graph.create_tensor("y", TensorType.APP_READ, F64, (3, 2))
    graph.add_node("third", "Softmax", [moved], [y])
    graph.finalize()
    return graph


def test_all_nodes_of_a_graph_that_are_not_executed_are_listed_by_name() -> None:
    assert [(node, op) for node, op, _ in lower.unsupported(three_nodes())] == [
        ("first", "Gelu"),
        ("third", "Softmax"),
    ]


def test_a_graph_is_refused_before_scheduling_with_all_reasons() -> None:
    with pytest.raises(QnnError) as refused:
        Planner(three_nodes(), PlanOptions(), lower.NativeEngine(host())).schedule()
    assert refused.value.code is Code.COMMON_NOT_SUPPORTED
    for part in ("2 nodes are not executed", "node 'first' (Gelu)", "FLOAT_64", "node 'third' (Softmax)"):
        assert part in refused.value.rule
