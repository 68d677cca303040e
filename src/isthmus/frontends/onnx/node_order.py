"""The order of a graph's nodes. ONNX asks for one in which data flows forwards; some tools write another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any


def read_names(node: Any) -> Iterator[str]:
    """Return the names that a node and its subgraphs read, including names that a subgraph defines itself."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from read_names(inner)
            yield from (value.name for value in graph.output)


def value_names(model: Any) -> Iterator[str]:
    """Return the names of all values of a model, in its graph, subgraphs and functions."""
    graphs = [model.graph, *model.functions]
    while graphs:
        graph = graphs.pop()
        if hasattr(graph, "initializer"):
            yield from (value.name for value in (*graph.input, *graph.initializer))
        else:
            # A function declares its inputs by name only, without types.
            yield from graph.input
        for node in graph.node:
            yield from node.output
            graphs += (inner for attribute in node.attribute for inner in (attribute.g, *attribute.graphs))


def in_order(nodes: Sequence[Any]) -> Iterable[tuple[int, Any]]:
    """Return nodes with their indices in the file, each after the nodes whose results it reads.

    Nodes that are already in such an order keep it; others move as little as possible. The nodes of a cycle stay where
    they are.
    """
    writers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    needs = [sorted({writers[name] for name in read_names(node) if name in writers}) for node in nodes]
    if all(need < index for index, needed in enumerate(needs) for need in needed):
        return list(enumerate(nodes))
    order: list[int] = []
    begun: set[int] = set()
    for first in range(len(nodes)):
        # Nodes to write, each with an iterator over those that must come before it.
        stack = [(first, iter(needs[first]))] if first not in begun else []
        begun.add(first)
        while stack:
            index, pending = stack[-1]
            need = next((n for n in pending if n not in begun), None)
            if need is None:
                order.append(index)
                stack.pop()
            else:
                begun.add(need)
                stack.append((need, iter(needs[need])))
    return [(index, nodes[index]) for index in order]
