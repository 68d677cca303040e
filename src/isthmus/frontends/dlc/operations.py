"""From the converter's names of operations to QNN's, and from a file's attributes to QNN's parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from isthmus.frontends.dlc.contents import NodeEntry, Scalar, TensorEntry
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
    "IsNan": "IsNaN",
    "Neuron": "ElementWiseNeuron",
}
"""Converters' names whose operation QNN or this project names otherwise. Of the first, a number picks the function."""

NEUTRAL: Mapping[tuple[str, str], Scalar] = {
    ("Conv2d", "reuse_sparse_indices"): False,
    ("Conv3d", "reuse_sparse_indices"): False,
    ("Resize", "antialias"): False,
}
"""Parameters that the operations here do not have, with the value that asks for nothing."""

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


def operation(node: NodeEntry) -> tuple[str, dict[str, Scalar | TensorEntry]]:
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
        return NAMES.get(kind, kind), params
    params.setdefault("operation", functions.index(kind))
    return name, params


def without_neutral(op: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that ask for nothing."""
    return {name: value for name, value in params.items() if (op, name) not in NEUTRAL or value != NEUTRAL[op, name]}
