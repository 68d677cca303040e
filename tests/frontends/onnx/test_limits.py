"""Small files that ask for any amount of work or memory while they are loaded are refused, and soon."""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper

from frontends.onnx.graphs import convert, floats, model, node, subgraph
from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx import builder, constants, control, importer
from isthmus.graph.folding import held_bytes

SECONDS = 30
"""Far more than a refusal takes on any machine, far less than the work that is refused."""


@pytest.fixture(autouse=True)
def _ends_soon() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


def refusal(made: ModelProto) -> QnnError:
    assert len(made.SerializeToString()) < 4096
    with pytest.raises(QnnError) as refused:
        convert(made)
    return refused.value


def doubling_functions(depth: int, innermost: NodeProto, *opening: NodeProto) -> ModelProto:
    """Functions that each call the next one twice."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    functions = [helper.make_function("d", "f0", ["x"], ["y"], [innermost], opsets)]
    for level in range(1, depth):
        calls = [node(f"f{level - 1}", "x", "t", domain="d"), node(f"f{level - 1}", "t", "y", domain="d")]
        functions.append(helper.make_function("d", f"f{level}", ["x"], ["y"], calls, opsets))
    nodes = [*opening, node(f"f{depth - 1}", "c" if opening else "x", "t", domain="d"), node("Add", "x t", "y")]
    return model(nodes, {"x": floats(4)}, "y", functions=functions, domains=["d"])


def loop_body(level: int, nodes: Sequence[NodeProto], carried: str) -> GraphProto:
    """A body that goes on for ever and carries one value."""
    kinds = {f"i{level}": TensorProto.INT64, f"go{level}": TensorProto.BOOL, f"c{level}": TensorProto.FLOAT}
    inputs = [helper.make_tensor_value_info(name, kind, None) for name, kind in kinds.items()]
    return subgraph(nodes, inputs, f"go{level} {carried}")


def nested_loops(innermost: Sequence[NodeProto], carried: str, turns: int = 1000, depth: int = 2) -> ModelProto:
    """Loops in loops over constants: no iteration adds a node to the graph."""
    body = loop_body(0, innermost, carried)
    for level in range(1, depth):
        body = loop_body(level, [node("Loop", f"n t c{level}", f"d{level}", body=body)], f"d{level}")
    constants = {"n": np.int64(turns), "t": np.array(True), "zero": np.float32([0]), "size": np.int64([1 << 24])}
    nodes = [node("Loop", "n t zero", "out", body=body), node("Add", "x out", "y")]
    return model(nodes, {"x": floats(1)}, "y", constants)


@pytest.mark.parametrize(
    "made",
    [
        doubling_functions(23, node("Identity", "x", "y")),
        doubling_functions(23, node("Neg", "x", "y"), node("Constant", "", "c", value_floats=[1.0])),
        nested_loops([node("Add", "c0 c0", "d0")], "d0"),
        nested_loops([], "c0", depth=4),
    ],
    ids=["functions", "folding functions", "loops", "loops around nothing"],
)
def test_work_that_adds_no_node_is_limited(made: ModelProto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importer, "MAX_STEPS", 3000)
    error = refusal(made)
    assert error.code is Code.GRAPH_CREATE_FAILED
    assert f"over {importer.MAX_STEPS} nodes" in error.rule


def test_the_limit_on_nodes_holds_inside_branches_that_are_chosen_at_run_time() -> None:
    """An If that is decided at run time turns what its branches refuse into a note; the walk must end all the same."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    functions = [helper.make_function("d", "f0", ["x", "go"], ["y"], [node("Identity", "x", "y")], opsets)]
    for level in range(1, 12):
        call = [node(f"f{level - 1}", "x go", "a", domain="d"), node(f"f{level - 1}", "a go", "p", domain="d")]
        both = {f"{name}_branch": subgraph(call, outputs="p") for name in ("then", "else")}
        body = [node("If", "go", "y", **both)]
        functions.append(helper.make_function("d", f"f{level}", ["x", "go"], ["y"], body, opsets))
    inputs = {"x": floats(1), "go": (TensorProto.BOOL, ())}
    error = refusal(model([node("f11", "x go", "y", domain="d")], inputs, "y", functions=functions, domains=["d"]))
    assert f"over {importer.MAX_STEPS} nodes" in str(error)


def test_folded_operations_within_a_node_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_NODES", 100)
    error = refusal(nested_loops([node("Add", "c0 c0", "d0")], "d0", depth=1))
    assert "more than 100 operations" in error.rule


def test_constants_that_grow_in_each_iteration_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_FOLDED_BYTES", 1 << 26)
    sizable = [node("ConstantOfShape", "size", "big"), node("ReduceMax", "big", "least"), node("Add", "c0 least", "d0")]
    error = refusal(nested_loops(sizable, "d0"))
    assert error.code is Code.COMMON_MEM_ALLOC
    assert "the constants that the model computes" in error.rule


def test_the_constants_of_a_subgraph_count_in_each_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_FOLDED_BYTES", 1 << 10)
    made = nested_loops([node("Add", "c0 weight", "d0")], "d0", depth=1)
    weight = helper.make_tensor("weight", TensorProto.FLOAT, [100], [0.0] * 100)
    made.graph.node[0].attribute[0].g.initializer.append(weight)
    assert refusal(made).code is Code.COMMON_MEM_ALLOC


def test_weights_of_any_size_may_be_rearranged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "MAX_FOLDED_BYTES", 0)
    weights = np.ones((64, 3, 3, 3), np.float32)
    made = model([node("Conv", "x w", "y")], {"x": floats(1, 3, 8, 8)}, "y", {"w": weights})
    assert len(convert(made).nodes) > 0


def chain(length: int) -> ModelProto:
    """A model of this many nodes one after another."""
    names = ["x", *(f"v{i}" for i in range(length - 1)), "y"]
    return model([node("Neg", a, b) for a, b in itertools.pairwise(names)], {"x": floats(2)}, "y")


def turning(turns: int) -> ModelProto:
    """A model with a loop of this many iterations."""
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", 9, []),
        helper.make_tensor_value_info("v", 1, None),
    ]  # fmt: skip
    body = subgraph([node("Identity", "c", "d"), node("Neg", "v", "w")], inputs, "d w")
    return model([node("Loop", "n - x", "y", body=body)], {"x": floats(2)}, "y", {"n": np.int64(turns)})


def nesting(depth: int) -> ModelProto:
    """Branches within branches, `depth` levels of them."""
    inner = [node("Neg", "x", "o0")]
    for level in range(depth):
        branch = subgraph(inner, (), f"o{level}")
        inner = [node("If", "yes", f"o{level + 1}", then_branch=branch, else_branch=branch)]
    inner[-1].output[0] = "y"
    return model(inner, {"x": floats(2)}, "y", {"yes": np.array(True)})


def counting(count: int) -> ModelProto:
    """A model whose output is 0, 1, 2 and so on."""
    numbers = {"from": np.int64(0), "to": np.int64(count), "by": np.int64(1)}
    return model([node("Range", "from to by", "y")], {"x": floats(2)}, "y", numbers)


@pytest.mark.parametrize(
    ("module", "name", "limit", "made", "sentence"),
    [
        (importer, "MAX_STEPS", 6, chain, "over 6 nodes"),
        (builder, "MAX_NODES", 6, chain, "more than 6 operations"),
        (control, "MAX_TURNS", 6, turning, "more than 6 turns"),
        (importer, "MAX_DEPTH", 3, nesting, "nests deeper than 3"),
    ],
)
def test_a_limit_itself_is_accepted_and_one_more_is_refused(monkeypatch, module, name, limit, made, sentence) -> None:
    monkeypatch.setattr(module, name, limit)
    assert convert(made(limit)).outputs
    with pytest.raises(QnnError, match=sentence):
        convert(made(limit + 1))


def test_a_constant_that_a_node_makes_is_limited_in_its_bytes(monkeypatch) -> None:
    monkeypatch.setattr(builder, "MAX_CONSTANT_BYTES", 64)
    monkeypatch.setattr(constants, "MAX_CONSTANT_BYTES", 1 << 20)
    assert convert(counting(8)).outputs
    with pytest.raises(QnnError, match="a constant of 72 bytes is too large"):
        convert(counting(9))
    monkeypatch.setattr(constants, "MAX_CONSTANT_BYTES", 64)
    assert convert(counting(8)).outputs
    with pytest.raises(QnnError, match="a constant of 9 elements is too large"):
        convert(counting(9))


def test_a_repeated_element_is_stored_once() -> None:
    dims = [25088, 4096]
    nodes = [node("ConstantOfShape", "shape", "w"), node("Gemm", "x w", "y")]
    tracemalloc.start()
    try:
        graph = convert(model(nodes, {"x": floats(1, dims[0])}, "y", {"shape": np.int64(dims)}))
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
    finally:
        tracemalloc.stop()
    (weights,) = (t for t in graph.tensors.values() if t.is_static)
    assert weights.data is not None
    assert weights.nbytes == 4 * dims[0] * dims[1]
    assert held_bytes(weights.data) == 4


def test_computed_constants_are_limited_by_what_the_model_brings(monkeypatch) -> None:
    made = builder.OnnxBuilder("b", given_bytes=10)
    monkeypatch.setattr(builder, "MAX_FOLDED_BYTES", 100)
    made.count_folded(180)
    with pytest.raises(QnnError, match="take 181 bytes so far"):
        made.count_folded(1)


def test_the_limits_are_those_that_are_written_down() -> None:
    assert (importer.OLDEST_OPSET, importer.MAX_DEPTH, importer.MAX_STEPS, control.MAX_TURNS) == (7, 24, 50_000, 1024)
    assert (builder.MAX_CONSTANT_BYTES, builder.MAX_NODES, builder.MAX_FOLDED_BYTES) == (1 << 28, 100_000, 1 << 30)
