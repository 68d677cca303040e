"""The nodes of a graph that an engine cannot execute, by their names in the model, with the reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, Node
from isthmus.prepare.schedule import Step


class RefusedNode(NamedTuple):
    """A node that cannot be executed: its name, its operation, and the reason."""

    node: str
    op: str
    reason: str


def refused(graph: Graph, steps: Sequence[Step], refusal: Callable[[Step], str | None]) -> list[RefusedNode]:
    """Return the nodes whose steps an engine refuses, each node once.

    `refusal` returns why the engine cannot execute a step, or None if it can.
    """
    nodes = {node.name: node for node in graph.nodes}
    by_name: dict[str, RefusedNode] = {}
    for step in steps:
        reason = refusal(step)
        if reason is not None:
            node = _node_of(step, nodes)
            name, op = (step.name, step.op) if node is None else (node.name, node.op)
            by_name.setdefault(name, RefusedNode(name, op, reason))
    return list(by_name.values())


def check_executable(graph: Graph, steps: Sequence[Step], refusal: Callable[[Step], str | None]) -> None:
    """Raise an error that lists all nodes which an engine cannot execute, if there are any."""
    nodes = refused(graph, steps, refusal)
    if nodes:
        listed = "; ".join(f"node '{node}' ({op}): {reason}" for node, op, reason in nodes)
        are = "node is" if len(nodes) == 1 else "nodes are"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"graph '{graph.name}'", f"{len(nodes)} {are} not executed: {listed}")


def _node_of(step: Step, nodes: dict[str, Node]) -> Node | None:
    """Return the node that a step was made from; passes append numbers to the names of existing steps."""
    name = step.name
    while name not in nodes and "." in name:
        name = name.rpartition(".")[0]
    return nodes.get(name)
