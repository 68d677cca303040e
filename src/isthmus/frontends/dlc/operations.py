"""Translation of the converter's operation names and the source model's tensor names to QNN's."""

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
"""Families of operations, with the attribute that holds QNN's name for the one operation that a node is."""

NAMES: Mapping[str, str] = {
    "Eltwise_Binary": "ElementWiseBinary",
    "Eltwise_Unary": "ElementWiseUnary",
    "Neuron": "ElementWiseNeuron",
}
"""QNN's names for the families whose function is selected by a number."""

# A character that a clean name may not contain.
_STRANGE = re.compile(r"[^A-Za-z0-9_]")


def clean_name(name: str) -> str:
    """Return the name that QNN's own reader gives a tensor: letters, digits and ``_``, no leading digit.

    >>> [clean_name(name) for name in ("conv/Relu:0", "34", "x")]
    ['conv_Relu_0', '_34', 'x']
    """
    name = _STRANGE.sub("_", name)
    return f"_{name}" if name[:1].isdigit() else name


def operation(node: NodeEntry) -> tuple[str, dict[str, Scalar | ComposedTensor]]:
    """Return QNN's name of a node's operation, and its parameters.

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


def translate(graph: GraphEntry, clean_names: bool = False) -> GraphEntry:
    """Translate a graph of a file to QNN's names.

    - `clean_names`: whether tensors get the names that QNN's own reader gives them; a number is appended to duplicate
      names.
    """
    nodes = []
    names = _clean_names(graph) if clean_names else {}
    for node in graph.nodes:
        kind, params = operation(node)
        inputs, outputs = (tuple(names.get(name, name) for name in side) for side in (node.inputs, node.outputs))
        nodes.append(replace(node, type=kind, params=params, inputs=inputs, outputs=outputs))
    tensors = [replace(tensor, name=names.get(tensor.name, tensor.name)) for tensor in graph.tensors]
    return replace(graph, nodes=tuple(nodes), tensors=tuple(tensors))


def _clean_names(graph: GraphEntry) -> dict[str, str]:
    """Return the clean name of each tensor. Inputs and outputs get theirs first, others are numbered on a clash."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    counts: dict[str, int] = {}
    # APP_WRITE and APP_READ, the types of inputs and outputs, are the smallest numbers.
    for tensor in sorted(graph.tensors, key=lambda tensor: tensor.type > TensorType.APP_READ):
        clean = name = clean_name(tensor.name)
        while name in taken:
            counts[clean] = counts.get(clean, 0) + 1
            name = f"{clean}_{counts[clean]}"
        taken.add(name)
        names.setdefault(tensor.name, name)
    return names
