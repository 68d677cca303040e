"""The choice of nodes for a backend: each node is converted and the backend asked, then partitions are settled.

A walk over all nodes gives every tensor a value: a constant if it follows from constants and shapes alone, otherwise a
tensor of known type and shape. A node goes to the backend if it can be converted and the backend supports everything it
becomes. Results of nodes that stay are inputs of the rest. If such a result's shape is known only during execution (a
dynamic tensor), the nodes that read it stay in the interpreter.

Values that partitions cannot pass to each other are handled last: handles of variables, and complex numbers. All nodes
of a variable go to one partition, together with the CALL_ONCE that sets it, or all stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from isthmus.delegate import structures
from isthmus.delegate.structures import Allocation
from isthmus.delegate.view import Nodes, NodesModel, NodesSubgraph, is_plain
from isthmus.errors import QnnError
from isthmus.frontends.tflite.entries import OperatorEntry
from isthmus.frontends.tflite.operator_context import Complex, Resource, data_type, declared_quantization
from isthmus.frontends.tflite.variables import handle
from isthmus.frontends.tflite.walk import UNKNOWN, TfliteScope, Unknown, Value, Walk
from isthmus.graph import Graph, Tensor, TensorType
from isthmus.graph.operation import Call

CALLERS = frozenset(("IF", "WHILE", "STABLEHLO_COMPOSITE"))
"""Operators that run other subgraphs depending on data: they stay in the interpreter."""
Supports = Callable[[Call], "str | None"]
"""Returns why a backend does not execute a node of a graph; None if it does."""
Skipped = Callable[[OperatorEntry], str]
"""Returns why the client excludes an operator, or an empty string."""
Preview = Callable[[Sequence[int]], Sequence["NodeSet"]]
"""Returns the partitions that the interpreter would form from nodes."""


@dataclass(frozen=True)
class NodeSet:
    """A partition: the nodes that one node of a delegate replaces, and the tensors it reads and writes."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass
class Survey:
    """The findings about the nodes of a subgraph, at its tensors' current shapes.

    - `reasons`: Why a node stays, by node number; the others may go to the backend.
    """

    nodes: Nodes
    reasons: dict[int, str] = field(default_factory=dict)
    values: dict[int, Value] = field(default_factory=dict)

    @property
    def accepted_nodes(self) -> list[int]:
        """The nodes that may go to the backend."""
        return [operator.index for operator in self.nodes.operators if operator.index not in self.reasons]

    def constant_contents(self) -> dict[int, np.ndarray]:
        """Return the contents of tensors that nodes compute from constants and shapes alone."""
        return {
            index: value.data
            for index, value in self.values.items()
            if isinstance(value, Tensor) and value.is_static and value.data is not None
        }


def survey(nodes: Nodes, supports: Supports | None = None, skipped: Skipped | None = None) -> Survey:
    """Examine all nodes.

    - `supports`: If omitted, only values are computed.
    - `skipped`: If omitted, the client excludes nothing.
    """
    findings = Survey(nodes)
    variables = [index for index in _tensors(nodes) if nodes.tensor(index).is_variable]
    main = NodesSubgraph(nodes, nodes.operators, kept_variables=variables)
    graph = Graph("survey")
    graph.numerics = "litert"
    scope = TfliteScope(main, findings.values)
    walk = Walk(graph, NodesModel("survey", main))
    for index in _graph_inputs(nodes):
        findings.values[index] = _placeholder(graph, main, index)
    for operator in nodes.operators:
        reason = _staying(nodes, operator) or (skipped(operator) if skipped is not None else "")
        results: Sequence[Value] = ()
        if not reason:
            results, reason = _convert(walk, scope, operator, supports)
        if reason:
            findings.reasons[operator.index] = reason
            results = [_result(graph, main, index) for index in operator.outputs]
        for index, value in zip(operator.outputs, results, strict=True):
            if index >= 0:
                findings.values[index] = value
    return findings


def settle(findings: Survey, preview: Preview) -> list[NodeSet]:
    """Exclude nodes whose partitions cannot pass each other their values; return the remaining partitions.

    Each exclusion changes the partitions, so they are formed and checked again until none is needed.
    """
    while True:
        accepted = findings.accepted_nodes
        parts = list(preview(accepted)) if accepted else []
        refused = dict(_apart(findings, parts))
        if not refused:
            return parts
        findings.reasons.update(refused)


def _convert(
    walk: Walk, scope: TfliteScope, operator: OperatorEntry, supports: Supports | None
) -> tuple[Sequence[Value], str]:
    """Convert a node; return its results, and why it must stay (an empty string if it need not)."""
    graph = walk.graph
    before = len(graph.nodes)
    try:
        results = walk.attempt(scope, operator)
    except QnnError as refusal:
        return (), refusal.rule
    if len(results) != len(operator.outputs):
        return (), f"it has {len(operator.outputs)} outputs instead of {len(results)}"
    if any(isinstance(value, Unknown) for value in results):
        return (), "the shape of an input is known only when it runs"
    if supports is None:
        return results, ""
    for node in graph.nodes[before:]:
        reason = supports(Call(node.name, node.op, list(node.inputs), node.params, list(node.outputs)))
        if reason is not None:
            return (), reason
    return results, ""


def _staying(nodes: Nodes, operator: OperatorEntry) -> str:
    """Return why a node stays whatever it computes, or an empty string."""
    if operator.index in nodes.delegated:
        return "a delegate has it already"
    if operator.code in CALLERS:
        return "it runs other subgraphs"
    if operator.code == "VAR_HANDLE" and tuple(operator.options.values()) in nodes.elsewhere:
        return "other subgraphs use its variable"
    for index in (*operator.inputs, *operator.outputs):
        if index >= 0 and is_plain(nodes, index) and nodes.tensor(index).allocation_type == Allocation.DYNAMIC:
            return f"tensor {index} is dynamic"
    return ""


def _tensors(nodes: Nodes) -> list[int]:
    """Return the tensors that nodes read or write."""
    return sorted(
        {index for operator in nodes.operators for index in (*operator.inputs, *operator.outputs) if index >= 0}
    )


def _graph_inputs(nodes: Nodes) -> list[int]:
    """Return the tensors that nodes read but none writes, except constants: inputs and variables."""
    written = {index for operator in nodes.operators for index in operator.outputs}
    return [index for index in _tensors(nodes) if index not in written and not nodes.is_constant(index)]


def _placeholder(graph: Graph, subgraph: NodesSubgraph, index: int) -> Value:
    """Create a tensor of which only type and shape are known; return UNKNOWN if no graph can have such a tensor."""
    try:
        entry = subgraph.tensor(index)
        return graph.create_tensor(
            graph.fresh(entry.name), TensorType.APP_WRITE, data_type(entry), entry.shape, declared_quantization(entry)
        )
    except QnnError:
        return UNKNOWN


def _result(graph: Graph, subgraph: NodesSubgraph, index: int) -> Value:
    """Return the result of a node that stays, as seen by other nodes."""
    if index < 0:
        return None
    tensor = subgraph.nodes.tensor(index)
    # A signature has -1 for each dimension that may change.
    has_open_dimension = -1 in structures.integers(tensor.dims_signature)
    if has_open_dimension or tensor.allocation_type == Allocation.DYNAMIC:
        return UNKNOWN
    return _placeholder(graph, subgraph, index)


# -- values that partitions cannot pass to each other ------------------------------------------------------------------


def _apart(findings: Survey, parts: Sequence[NodeSet]) -> Iterable[tuple[int, str]]:
    """Yield nodes that must stay because their partition cannot pass on or receive a value, each with the reason."""
    by_number = {operator.index: operator for operator in findings.nodes.operators}
    for part in parts:
        operators = [by_number[number] for number in part.nodes]
        if not part.outputs and not any(_stores(findings.nodes, operator) for operator in operators):
            yield from ((operator.index, "its results are not used") for operator in operators)
        for index in part.inputs:
            if index < 0 or findings.nodes.is_constant(index):
                continue
            if not isinstance(findings.values.get(index), Tensor):
                yield from ((o.index, _unpassable(findings, index)) for o in operators if index in o.inputs)
        for index in part.outputs:
            if not isinstance(findings.values.get(index), Tensor):
                yield from ((o.index, _unpassable(findings, index)) for o in operators if index in o.outputs)
    yield from _find_scattered(findings, parts, by_number)


def _stores(nodes: Nodes, operator: OperatorEntry) -> bool:
    """Return whether a node has an effect besides its results: it assigns a variable."""
    read = (index for index in operator.inputs if index >= 0)
    return operator.code == "ASSIGN_VARIABLE" or any(nodes.tensor(index).is_variable for index in read)


def _unpassable(findings: Survey, index: int) -> str:
    """Return the reason that a tensor cannot be an input or output of a partition."""
    value = findings.values.get(index)
    kind = "complex" if isinstance(value, Complex) else "a handle" if isinstance(value, Resource) else "dynamic"
    return f"tensor {index} is {kind}, which a partition neither takes nor gives"


def _find_scattered(
    findings: Survey, parts: Sequence[NodeSet], by_number: dict[int, OperatorEntry]
) -> Iterable[tuple[int, str]]:
    """Yield nodes that use or initialise variables and are not all in one partition, each with the reason."""
    # The partition of each node, by position.
    home = {number: position for position, part in enumerate(parts) for number in part.nodes}
    users: dict[Resource, set[int]] = {}
    for operator in findings.nodes.operators:
        for resource in _resources(findings, operator):
            users.setdefault(resource, set()).add(operator.index)
    # Variables that one CALL_ONCE sets stay or go together with it, and therefore with each other.
    # A group has its variables and their nodes.
    groups: list[tuple[set[Resource], set[int]]] = []
    for resource, numbers in users.items():
        joined = [group for group in groups if group[1] & numbers]
        resources, members = {resource}, set(numbers)
        for group in joined:
            groups.remove(group)
            resources |= group[0]
            members |= group[1]
        groups.append((resources, members))
    for _, members in groups:
        if len({home.get(number, -1) for number in members}) > 1:
            rule = "its variables are used by nodes of several partitions, or by some that stay"
            yield from ((number, rule) for number in members if number in home)


def _resources(findings: Survey, operator: OperatorEntry) -> set[Resource]:
    """Return the variables for which a node creates a handle, or which it reads, assigns or initialises."""
    if operator.code == "VAR_HANDLE":
        return {handle(operator.options)}
    if operator.code == "CALL_ONCE":
        called = findings.nodes.called.get(operator.options["init_subgraph"])
        return {handle(o.options) for o in called.operators if o.code == "VAR_HANDLE"} if called else set()
    operands = (findings.values.get(index) for index in operator.inputs)
    return {value for value in operands if isinstance(value, Resource)}
