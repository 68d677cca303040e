"""What an engine does not execute of a graph: every such node by its name in the model, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, Node
from isthmus.prepare.schedule import Step


class RefusedNode(NamedTuple):
    """A node that is not executed."""

    node: str
    op: str
    reason: str


def refused(graph: Graph, steps: Sequence[Step], refusal: Callable[[Step], str | None]) -> list[RefusedNode]:
    """The nodes that steps were made of which an engine refuses, each node once."""
    nodes = {node.name: node for node in graph.nodes}
    found: dict[str, RefusedNode] = {}
    for step in steps:
        reason = refusal(step)
        if reason is not None:
            node = _node_of(step, nodes)
            name, op = (step.name, step.op) if node is None else (node.name, node.op)
            found.setdefault(name, RefusedNode(name, op, reason))
    return list(found.values())


def check_executable(graph: Graph, steps: Sequence[Step], refusal: Callable[[Step], str | None]) -> None:
    """Refuse a graph of which an engine refuses steps, naming all of them."""
    found = refused(graph, steps, refusal)
    if found:
        listed = "; ".join(f"node '{node}' ({op}): {reason}" for node, op, reason in found)
        are = "node is" if len(found) == 1 else "nodes are"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"graph '{graph.name}'", f"{len(found)} {are} not executed: {listed}")


def _node_of(step: Step, nodes: dict[str, Node]) -> Node | None:
    """The node that a step was made of: passes name a step after the one that it helps, and count."""
    name = step.name
    while name not in nodes and "." in name:
        name = name.rpartition(".")[0]
    return nodes.get(name)
