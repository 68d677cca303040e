"""Helpers for ONNX nodes: copies, attributes, names, and groups that a runtime fuses into one quantized operator."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from isthmus.frontends.onnx.schema import messages
from isthmus.frontends.onnx.tensors import attribute_value
from isthmus.split.onnx_rules import Attributes

_INTS, _TENSOR = 7, 4
"""ONNX's numbers of the attribute types INTS and TENSOR."""
_ACTIVATIONS = ("Relu", "Clip")
"""Nodes that a runtime fuses with a quantized operator before them."""


def units(nodes: list[Any], outputs: Collection[str], static: Collection[str]) -> list[list[Any]]:
    """Group nodes that a runtime may compute as one quantized operator; any other node is a group by itself.

    Such a group is a node that reads the result of a DequantizeLinear, that DequantizeLinear, and a QuantizeLinear that
    is the only reader of the node's result, possibly after an activation. Groups are in the order of their central
    nodes. No value of `outputs` is inside a group; `static` are the names of constants.
    """
    readers: dict[str, list[Any]] = {}
    for proto in nodes:
        for name in {*proto.input, *inner_names(proto)}:
            readers.setdefault(name, []).append(proto)

    def only_reader(proto: Any) -> Any:
        """Return the only node that reads the only result of a node; None if there are more, or none."""
        own = readers.get(proto.output[0], []) if len(proto.output) == 1 else []
        return own[0] if len(own) == 1 and proto.output[0] not in outputs else None

    def follows(proto: Any, *ops: str) -> bool:
        """Return whether a node is one of these operators, with constants as its other operands."""
        return proto is not None and is_standard(proto, *ops) and all(n in static for n in proto.input[1:] if n)

    floats = {proto.output[0]: proto for proto in nodes if is_standard(proto, "DequantizeLinear")}
    # For the id of a central node, the nodes before and behind it in its group.
    around: dict[int, tuple[list[Any], list[Any]]] = {}
    for proto in nodes:
        before = [floats[name] for name in dict.fromkeys(proto.input) if name in floats]
        before = [one for one in before if only_reader(one) is proto]
        if before:
            behind, following = [], only_reader(proto)
            if follows(following, *_ACTIVATIONS):
                behind, following = [following], only_reader(following)
            around[id(proto)] = before, [*behind, following] if follows(following, "QuantizeLinear") else []
    taken = {id(one) for before, behind in around.values() for one in (*before, *behind)}
    groups = ((proto, *around.get(id(proto), ([], []))) for proto in nodes if id(proto) not in taken)
    return [[*before, proto, *behind] for proto, before, behind in groups]


def copied(proto: Any) -> Any:
    """Copy a node."""
    copy = messages().NodeProto()
    copy.CopyFrom(proto)
    return copy


def plain_value(attribute: Any) -> Any:
    """Return the value of an attribute that a rule may need; text as bytes."""
    string_type = 3
    return bytes(attribute.s) if attribute.type == string_type else attribute_value(attribute, None)


def change_attributes(proto: Any, attributes: Attributes) -> None:
    """Set attributes of a node; None removes one."""
    for name, value in attributes.items():
        for old in [a for a in proto.attribute if a.name == name]:
            proto.attribute.remove(old)
        if value is not None:
            proto.attribute.add(name=name, type=_INTS, ints=value)


def constant_node(tensor: Any) -> Any:
    """Return a node that holds a constant."""
    node = messages().NodeProto(op_type="Constant", output=[tensor.name], name=tensor.name)
    node.attribute.add(name="value", type=_TENSOR, t=tensor)
    return node


def is_standard(proto: Any, *ops: str) -> bool:
    """Return whether a node is one of these operators in ONNX's own domain."""
    return proto.domain in ("", "ai.onnx") and proto.op_type in ops


def inner_names(proto: Any) -> list[str]:
    """Collect the names that the subgraphs of a node read, at any depth."""
    names: list[str] = []
    graphs = [a.g for a in proto.attribute if a.HasField("g")] + [g for a in proto.attribute for g in a.graphs]
    while graphs:
        graph = graphs.pop()
        names += [output.name for output in graph.output]
        for node in graph.node:
            names += node.input
            graphs += [a.g for a in node.attribute if a.HasField("g")] + [g for a in node.attribute for g in a.graphs]
    return names


def all_names(graph: Any) -> list[str]:
    """Collect all names that a graph uses."""
    names = [entry.name for part in (graph.input, graph.output, graph.initializer, graph.value_info) for entry in part]
    for node in graph.node:
        names += [*node.input, *node.output, *inner_names(node)]
    return names
