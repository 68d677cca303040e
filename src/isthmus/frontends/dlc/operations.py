"""From the converter's names of operations to QNN's, and from the source model's names of tensors to QNN's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry, Scalar
from isthmus.graph import TensorType
from isthmus.graph.ops.elementwise import NUMBERED

FAMILIES: Mapping[str, str] = {
    "Arg": "arg_type",
    "Eltwise_Binary": "eltwise_type",
    "Eltwise_Ternary": "eltwise_type",
    "Eltwise_Unary": "eltwise_type",
    "Neuron": "neuron_type",
    "Pool": "pool_type",
    "Pool1d": "pool_type",
    "Pool3d": "pool_type",
    "Reduce": "reduce_type",
}
"""Families of operations, and the attribute that says which one of the family a node is, in QNN's own word."""

NAMES: Mapping[str, str] = {
    "Eltwise_Binary": "ElementWiseBinary",
    "Eltwise_Unary": "ElementWiseUnary",
    "Neuron": "ElementWiseNeuron",
}
"""QNN's names of families of which a number picks the function."""

_STRANGE = re.compile(r"[^A-Za-z0-9_]")


def cleaned(name: str) -> str:
    """A tensor's name as QNN's own reader gives it: letters, digits and ``_``, no digit in front.

    Examples
    --------
    >>> [cleaned(name) for name in ("conv/Relu:0", "34", "x")]
    ['conv_Relu_0', '_34', 'x']
    """
    name = _STRANGE.sub("_", name)
    return f"_{name}" if name[:1].isdigit() else name


def operation(node: NodeEntry) -> tuple[str, dict[str, Scalar | ComposedTensor]]:
    """QNN's name of a node's operation, and its parameters.

    Examples
    --------
    >>> operation(NodeEntry("p", "Pool", (), (), {}, {"pool_type": "PoolMax2d"}))
    ('PoolMax2d', {})
    >>> operation(NodeEntry("t", "Neuron", (), (), {}, {"neuron_type": "Tanh"}))
    ('ElementWiseNeuron', {'operation': 8})
    """
    params = dict(node.params)
    kind = node.extras.get(FAMILIES.get(node.type, ""))
    name = NAMES.get(node.type, node.type)
    if not isinstance(kind, str):
        return name, params
    functions = NUMBERED.get(name, ())
    if kind not in functions:
        return kind, params
    params.setdefault("operation", functions.index(kind))
    return name, params


def translated(graph: GraphEntry, clean_names: bool = False) -> GraphEntry:
    """A graph of a file in QNN's names.

    Parameters
    ----------
    clean_names
        Whether tensors get the names that QNN's own reader gives them; names that would be the same are numbered.
    """
    nodes = []
    names = _cleaned_names(graph) if clean_names else {}
    for node in graph.nodes:
        kind, params = operation(node)
        inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (node.inputs, node.outputs))
        nodes.append(replace(node, type=kind, params=params, inputs=inputs, outputs=outputs))
    tensors = [replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in graph.tensors]
    return replace(graph, nodes=tuple(nodes), tensors=tuple(tensors))


def _cleaned_names(graph: GraphEntry) -> dict[str, str]:
    """The clean name of each tensor. Inputs and outputs come first, so that others make way for them."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    for tensor in sorted(graph.tensors, key=lambda tensor: tensor.type > TensorType.APP_READ):
        wanted = name = cleaned(tensor.name)
        while name in taken:
            counts[wanted] = counts.get(wanted, 0) + 1
            name = f"{wanted}_{counts[wanted]}"
        taken.add(name)
        names.setdefault(tensor.name, name)
    return names
