"""Wrong and unusual sequences of calls about graphs, nodes, tensors and executions."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_uint8
from typing import Any

import numpy as np

from differential.calls import BYTES, F32, I32, NATIVE, READ, STATIC, U32, UNKNOWN, WRITE, Calls
from differential.client import Encoding, Node, Param, TensorValue
from isthmus.cabi import objects, types

SMALL = (1, 4, 4, 32)


def finalize(q: Calls, graph: int | None) -> int:
    """Finalize a graph and return the code."""
    return q.code("graphFinalize", graph, None, None)


def retrieve(q: Calls, name: bytes | None) -> int:
    """Retrieve a graph of the context and return the code."""
    return q.making("graphRetrieve", q.context, name)


def late_producer(q: Calls) -> list[int]:
    """Add a node before the one that produces its input."""
    middle = q.value("m")
    graph = q.started(middle)
    codes = [q.add(graph, Node("Relu", [middle], [q.y], name="second"))]
    codes.append(q.add(graph, Node("Relu", [q.x], [middle], name="first")))
    return [*codes, finalize(q, graph)]


def chain(q: Calls) -> list[int]:
    """Add two nodes in order, finalize and execute."""
    middle = q.value("m")
    graph = q.compose([Node("Relu", [q.x], [middle], name="first"), Node("Relu", [middle], [q.y], name="second")])
    return [finalize(q, graph), q.run(graph, [q.x], [q.y])]


def unused(q: Calls, type: int) -> int:
    """Finalize a graph with one more tensor that no node uses."""
    graph = q.built()
    q.create(graph, q.value("z", type))
    return finalize(q, graph)


def other_graph(q: Calls) -> int:
    """Add a node on a tensor of another graph."""
    q.started()
    graph = q.make("graphCreate", q.context, b"other", None)
    return q.add(graph, q.relu())


def two_outputs(q: Calls) -> list[int]:
    """Execute a graph with two outputs, then with one of them missing."""
    z = q.value("z", READ)
    graph = q.compose([q.relu(), Node("Relu", [q.x], [z], name="other")])
    return [finalize(q, graph), *(q.run(graph, [q.x], outputs) for outputs in ([q.y, z], [q.y], [z, q.y]))]


def two_inputs(q: Calls) -> list[int]:
    """Execute a graph with two inputs, then with one missing, in the other order, and with one too many."""
    z = q.value("z", WRITE)
    graph = q.compose([Node("ElementWiseAdd", [q.x, z], [q.y])])
    return [finalize(q, graph), q.run(graph, [q.x, z], [q.y]), q.run(graph, [q.x], [q.y]),
            q.run(graph, [z, q.x], [q.y]), q.run(graph, [q.x, z, q.x], [q.y])]  # fmt: skip


def executed_between(q: Calls) -> list[int]:
    """Execute a graph, add another to its context, and execute the first again."""
    graph = q.ready()
    codes = [q.run(graph, [q.x], [q.y])]
    first = q.x, q.y
    q.x, q.y = q.value("x", WRITE), q.value("y", READ)
    other = q.ready("other")
    codes.append(q.run(other, [q.x], [q.y]))
    return [*codes, q.run(graph, [first[0]], [first[1]])]


def in_output(q: Calls, size: int) -> int:
    """Execute with an output of this size."""
    return q.run(q.ready(), [q.x], q.with_memory([q.y], size))


def in_input(q: Calls, node: Node) -> list[Any]:
    """Execute with the output in memory of its own, then in that of the input; tell whether the results are equal."""
    graph = q.compose([node])
    codes, contents = [finalize(q, graph)], np.arange(BYTES, dtype=np.uint8)
    results = []
    for apart in (True, False):
        inputs, outputs = q.with_memory([q.x]), q.with_memory([q.y])
        room = q.keep(contents.copy()), q.keep(np.zeros(BYTES, np.uint8))
        inputs[0].v1.clientBuf.data = room[0].ctypes.data
        outputs[0].v1.clientBuf.data = room[apart].ctypes.data
        codes.append(q.run(graph, inputs, outputs))
        results.append(room[apart].tobytes())
    return [*codes, results[0] == results[1], results[0] != contents.tobytes()]


def set_field(name: str, value: Any) -> Callable[[types.Tensor], None]:
    """Return a function that sets a field of a tensor."""
    return lambda tensor: setattr(tensor.v1, name, value)


def set_version(number: int) -> Callable[[types.Tensor], None]:
    """Return a function that sets a tensor's version."""
    return lambda tensor: setattr(tensor, "version", number)


def dynamic(q: Calls, flag: int) -> int:
    """Create a tensor of version 2 with flags of dynamic dimensions."""
    flags = q.keep((c_uint8 * 4)(0, flag, 0, 0))

    def change(tensor: types.Tensor) -> None:
        tensor.version = 2
        tensor.v2.isDynamicDimensions = flags

    return q.creating(q.x, change)


def asynchronous(q: Calls) -> int:
    """Execute without waiting."""
    graph = q.ready()
    return q.code("graphExecuteAsync", graph, q.with_memory([q.x]), 1, q.with_memory([q.y]), 1, None, None, None, None)


def with_node(q: Calls, change: Callable[[types.OpConfig], Any], validate: bool = False) -> int:
    """Add or validate a node with a change to its C structure."""
    graph = q.started()
    config = q.operation(q.relu())
    change(config)
    return q.code("backendValidateOpConfig", q.backend, config) if validate else q.code("graphAddNode", graph, config)


def set_op(name: str, value: Any) -> Callable[[types.OpConfig], None]:
    """Return a function that sets a field of an operation."""
    return lambda config: setattr(config.v1, name, value)


def filled(nbytes: int) -> np.ndarray:
    """Return zeros in bytes."""
    return np.zeros(nbytes, np.uint8)


def static(q: Calls, data: np.ndarray | None, **more: Any) -> TensorValue:
    """Return a constant of 8 floats."""
    return q.value("c", STATIC, F32, (1, 8), data=data, **more)


COLOUR = Param("colour", U32, 3)
SEQUENCES: dict[str, Callable[[Calls], Any]] = {
    # Graphs
    "graph: no name": lambda q: q.making("graphCreate", q.context, None, None),
    "graph: empty name": lambda q: q.making("graphCreate", q.context, b"", None),
    "graph: long name": lambda q: q.making("graphCreate", q.context, b"g" * 4000, None),
    "graph: the same name twice": lambda q: [q.making("graphCreate", q.context, b"g", None) for _ in range(2)],
    "graph: in an unknown context": lambda q: q.making("graphCreate", UNKNOWN, b"g", None),
    "graph: in null": lambda q: q.making("graphCreate", None, b"g", None),
    "graph: in a freed context": lambda q: [
        q.code("contextFree", q.context, None), q.making("graphCreate", q.context, b"g", None)],
    "graph: no place for the handle": lambda q: q.code("graphCreate", q.context, b"g", None, None),
    "graph: finalize an empty one": lambda q: finalize(q, q.open()),
    "graph: finalize one with tensors only": lambda q: finalize(q, q.started()),
    "graph: finalize twice": lambda q: finalize(q, q.ready()),
    "graph: finalize null": lambda q: finalize(q, None),
    "graph: finalize an unknown handle": lambda q: finalize(q, UNKNOWN),
    "graph: finalize with an unknown profile": lambda q: q.code("graphFinalize", q.built(), UNKNOWN, None),
    "graph: finalize with an unknown signal": lambda q: q.code("graphFinalize", q.built(), None, UNKNOWN),
    "graph: finalize in a freed context": lambda q: (lambda graph: [
        q.code("contextFree", q.context, None), finalize(q, graph)])(q.built()),
    "graph: an output that no node writes": lambda q: unused(q, READ),
    "graph: an input that no node reads": lambda q: unused(q, WRITE),
    "graph: a tensor inside that no node uses": lambda q: unused(q, NATIVE),
    "graph: retrieve one that is not there": lambda q: [q.ready(), retrieve(q, b"other")][1],
    "graph: retrieve null": lambda q: [q.ready(), retrieve(q, None)][1],
    "graph: retrieve without a place": lambda q: [q.ready(), q.code("graphRetrieve", q.context, b"g", None)][1],
    "graph: retrieve from an unknown context": lambda q: q.making("graphRetrieve", UNKNOWN, b"g"),
    "graph: retrieve its own": lambda q: [q.ready(), retrieve(q, b"g")][1],
    "graph: retrieve one that is not finalized": lambda q: [q.built(), retrieve(q, b"g")][1],
    "graph: a priority after finalize": lambda q: q.code(
        "graphSetConfig", q.ready(), q.configs(objects.GraphConfig, (3, "priority", 100))),
    "graph: a priority before finalize": lambda q: q.code(
        "graphSetConfig", q.built(), q.configs(objects.GraphConfig, (3, "priority", 100))),
    "graph: an unknown priority": lambda q: q.code(
        "graphSetConfig", q.built(), q.configs(objects.GraphConfig, (3, "priority", 7))),
    "graph: an unknown config": lambda q: q.code(
        "graphSetConfig", q.built(), q.configs(objects.GraphConfig, (77, "", 0))),
    "graph: no config": lambda q: q.code("graphSetConfig", q.built(), None),
    "graph: an unknown profile as config": lambda q: q.code(
        "graphSetConfig", q.ready(), q.configs(objects.GraphConfig, (4, "profileHandle", UNKNOWN))),
    "graph: subgraph": lambda q: q.making("graphCreateSubgraph", q.open(), b"s"),
    "graph: property without a place": lambda q: q.property("graphGetProperty", q.ready()),
    "graph: unknown property": lambda q: q.property("graphGetProperty", q.ready(), 77),
    "graph: two in one context": executed_between,
    "graph: one of two is not finalized": lambda q: [
        q.ready() > 0, q.open("other") > 0, q.sized()][2],
    # Nodes
    "node: after finalize": lambda q: q.add(q.ready(), q.relu("again")),
    "node: the same name twice": lambda q: (lambda graph, z: [
        q.create(graph, z), q.add(graph, Node("Relu", [q.x], [z]))][1])(q.built(), q.value("z", READ)),
    "node: unknown operation": lambda q: q.adding(Node("Nonsense", [q.x], [q.y])),
    "node: no operation": lambda q: with_node(q, set_op("typeName", None)),
    "node: no name": lambda q: with_node(q, set_op("name", None)),
    "node: empty name": lambda q: q.adding(q.relu("")),
    "node: no package": lambda q: with_node(q, set_op("packageName", None)),
    "node: unknown package": lambda q: q.adding(q.relu(package="my.package")),
    "node: missing parameter": lambda q: q.adding(Node("Transpose", [q.x], [q.y])),
    "node: unknown parameter": lambda q: q.adding(q.relu(params=[COLOUR])),
    "node: a parameter twice": lambda q: q.adding(
        Node("Softmax", [q.x], [q.y], [Param("axis", U32, 3), Param("axis", U32, 3)])),
    "node: wrong shape": lambda q: (lambda z: q.adding(Node("Relu", [q.x], [z]), z))(q.value("z", READ, dims=SMALL)),
    "node: wrong type": lambda q: (lambda z: q.adding(Node("Relu", [q.x], [z]), z))(q.value("z", READ, I32)),
    "node: tensors that were not created": lambda q: (lambda graph: [
        setattr(q.x, "id", 4711), setattr(q.y, "id", 4712), q.add(graph, q.relu())][2])(q.open()),
    "node: a tensor of another graph": other_graph,
    "node: no inputs": lambda q: q.adding(Node("Relu", [], [q.y])),
    "node: no outputs": lambda q: q.adding(Node("Relu", [q.x], [])),
    "node: one input too many": lambda q: q.adding(Node("Relu", [q.x, q.x], [q.y])),
    "node: an output that is written twice": lambda q: q.add(q.built(), q.relu("second")),
    "node: an input as output": lambda q: (lambda z: q.adding(Node("Relu", [q.x], [z]), z))(q.value("z", WRITE)),
    "node: its own output as input": lambda q: (lambda z: q.adding(Node("Relu", [z], [z]), z))(q.value("z")),
    "node: before the producer of its input": late_producer,
    "node: a chain": chain,
    "node: unknown graph": lambda q: q.add(UNKNOWN, q.relu()),
    "node: null graph": lambda q: q.code("graphAddNode", None, q.operation(q.relu())),
    "node: version 9": lambda q: with_node(q, lambda config: setattr(config, "version", 9)),
    # Validation
    "validation: unknown operation": lambda q: q.checking(Node("Nonsense", [q.x], [q.y])),
    "validation: unknown package": lambda q: q.checking(q.relu(package="my.package")),
    "validation: no package": lambda q: with_node(q, set_op("packageName", None), validate=True),
    "validation: no operation": lambda q: with_node(q, set_op("typeName", None), validate=True),
    "validation: no name": lambda q: with_node(q, set_op("name", None), validate=True),
    "validation: version 9": lambda q: with_node(q, lambda config: setattr(config, "version", 9), validate=True),
    "validation: wrong shape": lambda q: q.checking(Node("Relu", [q.x], [q.value("z", READ, dims=SMALL)])),
    "validation: no inputs": lambda q: q.checking(Node("Relu", [], [q.y])),
    "validation: no outputs": lambda q: q.checking(Node("Relu", [q.x], [])),
    "validation: one input too many": lambda q: q.checking(Node("Relu", [q.x, q.x], [q.y])),
    "validation: unknown backend": lambda q: q.checking(q.relu(), UNKNOWN),
    "validation: right": lambda q: q.checking(q.relu()),
    "validation: a tensor without a name": lambda q: q.checking(
        Node("Relu", [q.value("", WRITE)], [q.value("", READ)])),
    # Tensors
    "tensor: the same name twice": lambda q: (lambda graph: [
        q.create(graph, q.x), q.create(graph, q.value("x", READ))])(q.open()),
    "tensor: the same name in two graphs": lambda q: [
        q.create(q.open(), q.x), q.create(q.open("other"), q.value("x", WRITE))],
    "tensor: no quantization": lambda q: q.creating(q.value("z", WRITE, encoding=None)),
    "tensor: scale 0": lambda q: q.creating(q.value("z", WRITE, encoding=Encoding((0.0,)))),
    "tensor: negative scale": lambda q: q.creating(q.value("z", WRITE, encoding=Encoding((-0.1,)))),
    "tensor: scale that is not a number": lambda q: q.creating(q.value("z", WRITE, encoding=Encoding((float("nan"),)))),
    "tensor: a large offset": lambda q: q.creating(q.value("z", WRITE, encoding=Encoding((0.1,), (-5000,)))),
    "tensor: an encoding of floats": lambda q: q.creating(q.value("z", WRITE, F32, encoding=Encoding((0.1,)))),
    "tensor: an unknown encoding": lambda q: q.creating(
        q.x, lambda tensor: setattr(tensor.v1.quantizeParams, "quantizationEncoding", 99)),
    "tensor: rank 0": lambda q: q.creating(q.value("z", WRITE, F32, ())),
    "tensor: rank 8": lambda q: q.creating(q.value("z", WRITE, F32, (1,) * 8)),
    "tensor: rank 9": lambda q: q.creating(q.value("z", WRITE, F32, (1,) * 9)),
    "tensor: a dimension of 0": lambda q: q.creating(q.value("z", WRITE, F32, (1, 0, 8))),
    "tensor: huge dimensions": lambda q: q.creating(q.value("z", WRITE, F32, (1 << 31, 1 << 31, 1 << 31))),
    "tensor: no dimensions": lambda q: q.creating(q.x, set_field("dimensions", None)),
    "tensor: a constant": lambda q: q.creating(static(q, filled(32))),
    "tensor: a constant without data": lambda q: q.creating(static(q, None)),
    "tensor: a constant with too little data": lambda q: q.creating(static(q, filled(16))),
    "tensor: a constant with more data than it needs": lambda q: q.creating(static(q, filled(64))),
    "tensor: a constant in a memory handle": lambda q: q.creating(static(q, filled(32)), set_field("memType", 1)),
    "tensor: undefined data type": lambda q: q.creating(q.x, set_field("dataType", types.UNDEFINED)),
    "tensor: unknown data type": lambda q: q.creating(q.x, set_field("dataType", 0x999)),
    "tensor: undefined kind": lambda q: q.creating(q.x, set_field("type", types.UNDEFINED)),
    "tensor: unknown kind": lambda q: q.creating(q.x, set_field("type", 99)),
    "tensor: APP_READWRITE": lambda q: q.creating(q.value("z", 2)),
    "tensor: NULL": lambda q: q.creating(q.value("z", 5)),
    "tensor: an axis that is not there": lambda q: q.creating(
        q.value("z", WRITE, dims=(1, 8), encoding=Encoding((0.1,) * 8, axis=5))),
    "tensor: too few scales": lambda q: q.creating(
        q.value("z", WRITE, dims=(1, 8), encoding=Encoding((0.1,) * 3, axis=1))),
    "tensor: no scales": lambda q: q.creating(
        q.value("z", STATIC, dims=(1, 8), data=filled(8), encoding=Encoding((0.1,) * 8, axis=1)),
        lambda tensor: setattr(tensor.v1.quantizeParams.axisScaleOffsetEncoding, "scaleOffset", None)),
    "tensor: null": lambda q: q.code("tensorCreateGraphTensor", q.open(), None),
    "tensor: unknown graph": lambda q: q.create(UNKNOWN, q.x),
    "tensor: null graph": lambda q: q.code("tensorCreateGraphTensor", None, byref(q.tensor(q.x))),
    "tensor: after finalize": lambda q: q.create(q.ready(), q.value("z", WRITE)),
    "tensor: no name": lambda q: q.creating(q.x, set_field("name", None)),
    "tensor: empty name": lambda q: q.creating(q.value("", WRITE)),
    "tensor: version 0": lambda q: q.creating(q.x, set_version(0)),
    "tensor: version 2": lambda q: q.creating(q.x, set_version(2)),
    "tensor: version 9": lambda q: q.creating(q.x, set_version(9)),
    "tensor: a dynamic dimension": lambda q: dynamic(q, 1),
    "tensor: flags without a dynamic dimension": lambda q: dynamic(q, 0),
    "tensor: in a memory handle": lambda q: q.creating(q.x, set_field("memType", 1)),
    "tensor: unknown memory type": lambda q: q.creating(q.x, set_field("memType", 9)),
    "tensor: unknown data format": lambda q: q.creating(q.x, set_field("dataFormat", 99)),
    "tensor: of a context": lambda q: q.code("tensorCreateContextTensor", q.context, byref(q.tensor(q.x))),
    # Executions
    "execution: right": lambda q: q.run(q.ready(), [q.x], [q.y]),
    "execution: twice": lambda q: (lambda graph: [q.run(graph, [q.x], [q.y]) for _ in range(2)])(q.ready()),
    "execution: before finalize": lambda q: q.run(q.built(), [q.x], [q.y]),
    "execution: no inputs": lambda q: q.code("graphExecute", q.ready(), None, 0, q.with_memory([q.y]), 1, None, None),
    "execution: no outputs": lambda q: q.code("graphExecute", q.ready(), q.with_memory([q.x]), 1, None, 0, None, None),
    "execution: neither inputs nor outputs": lambda q: q.code("graphExecute", q.ready(), None, 0, None, 0, None, None),
    "execution: inputs that are null": lambda q: q.code(
        "graphExecute", q.ready(), None, 1, q.with_memory([q.y]), 1, None, None),
    "execution: outputs that are null": lambda q: q.code(
        "graphExecute", q.ready(), q.with_memory([q.x]), 1, None, 1, None, None),
    "execution: an input without memory": lambda q: q.run(q.ready(), q.with_memory([q.x], null=True), [q.y]),
    "execution: an output without memory": lambda q: q.run(q.ready(), [q.x], q.with_memory([q.y], null=True)),
    "execution: a small input": lambda q: q.run(q.ready(), q.with_memory([q.x], BYTES // 2), [q.y]),
    "execution: a large input": lambda q: q.run(q.ready(), q.with_memory([q.x], 2 * BYTES), [q.y]),
    "execution: an input of no size": lambda q: q.run(q.ready(), q.with_memory([q.x], 0), [q.y]),
    "execution: a small output": lambda q: in_output(q, BYTES // 2),
    "execution: a large output": lambda q: in_output(q, 2 * BYTES),
    "execution: an output of no size": lambda q: in_output(q, 0),
    "execution: an output in its input's memory, element by element": lambda q: in_input(q, q.relu()),
    "execution: an output in its input's memory, transposed": lambda q: in_input(
        q, Node("Transpose", [q.x], [q.y], [Param("perm", U32, [0, 2, 1, 3])])),
    "execution: unknown id": lambda q: q.running(set_field("id", 4711)),
    "execution: no id, the right name": lambda q: q.running(set_field("id", 0)),
    "execution: the right id, another name": lambda q: q.running(set_field("name", b"other")),
    "execution: the right id, no name": lambda q: q.running(set_field("name", None)),
    "execution: another kind of tensor": lambda q: q.running(set_field("type", READ)),
    "execution: other dimensions": lambda q: (lambda graph: [
        setattr(q.x, "dims", SMALL), q.run(graph, [q.x], [q.y])][1])(q.ready()),
    "execution: another rank": lambda q: q.running(set_field("rank", 3)),
    "execution: no dimensions": lambda q: q.running(set_field("dimensions", None)),
    "execution: another data type": lambda q: q.running(set_field("dataType", F32)),
    "execution: another quantization": lambda q: q.running(
        lambda tensor: setattr(tensor.v1.quantizeParams.scaleOffsetEncoding, "scale", 9.0)),
    "execution: version 2": lambda q: q.running(set_version(2)),
    "execution: version 9": lambda q: q.running(set_version(9)),
    "execution: input and output swapped": lambda q: q.run(q.ready(), [q.y], [q.x]),
    "execution: an input twice": lambda q: q.run(q.ready(), [q.x, q.x], [q.y]),
    "execution: an output twice": lambda q: q.run(q.ready(), [q.x], [q.y, q.y]),
    "execution: two inputs": two_inputs,
    "execution: two outputs": two_outputs,
    "execution: a memory handle that is null": lambda q: q.running(
        lambda tensor: [set_field("memType", 1)(tensor), set_field("memHandle", None)(tensor)]),
    "execution: an unknown memory handle": lambda q: q.running(
        lambda tensor: [set_field("memType", 1)(tensor), set_field("memHandle", UNKNOWN)(tensor)]),
    "execution: unknown memory type": lambda q: q.running(set_field("memType", 9)),
    "execution: in a freed context": lambda q: (lambda graph: [
        q.code("contextFree", q.context, None), q.run(graph, [q.x], [q.y])])(q.ready()),
    "execution: in a freed backend": lambda q: (lambda graph: [
        q.code("backendFree", q.backend), q.run(graph, [q.x], [q.y])])(q.ready()),
    "execution: unknown graph": lambda q: q.run(UNKNOWN, [q.x], [q.y]),
    "execution: null graph": lambda q: q.code(
        "graphExecute", None, q.with_memory([q.x]), 1, q.with_memory([q.y]), 1, None, None),
    "execution: unknown profile": lambda q: q.run(q.ready(), [q.x], [q.y], UNKNOWN),
    "execution: unknown signal": lambda q: q.run(q.ready(), [q.x], [q.y], None, UNKNOWN),
    "execution: asynchronous": asynchronous,
}  # fmt: skip
