"""Sequences: lists of values that exist only while a model is converted. A loop that fills one unrolls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import join, parts_of, split_parts, stack_values
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.stage import PENDING, Choices

MAX_ITEMS = 4096
"""The most items of a sequence."""


@dataclass(frozen=True)
class OnnxSequence(OnnxValue):
    """A list of values, which is no tensor itself."""

    items: tuple[OnnxValue, ...] = ()


def _sequence(node: OnnxNode, items: Sequence[OnnxValue]) -> OnnxSequence:
    """Return a sequence of these items."""
    if len(items) > MAX_ITEMS:
        node.unsupported(f"a sequence of more than {MAX_ITEMS} items")
    return OnnxSequence(PENDING.tensor, (), tuple(items))


def _items(node: OnnxNode) -> list[OnnxValue]:
    """Return the items of the sequence that is the first operand."""
    value = node.value(0)
    if not isinstance(value, OnnxSequence):
        node.refuse("input 0 is not a sequence")
    return list(value.items)


def _position(node: OnnxNode, index: int, items: Sequence[OnnxValue], count: int, default: int) -> int:
    """Return a position in a sequence; negative ones count from the end, of `count` places."""
    # If it is known only at run time, all positions are planned where the items differ in shape.
    differ = len({item.dims for item in items}) > 1
    position = int(node.number(index, default, greatest=Choices(range(count)) if differ else 0))
    if not -count <= position < count:
        node.refuse(f"position {position} is outside a sequence of {count} places")
    return position % count


def _at(node: OnnxNode) -> OnnxValue:
    items = _items(node)
    return items[_position(node, 1, items, len(items), 0)]


def _insert(node: OnnxNode) -> OnnxValue:
    items = _items(node)
    items.insert(_position(node, 2, [*items, node.value(1)], len(items) + 1, len(items)), node.value(1))
    return _sequence(node, items)


def _erase(node: OnnxNode) -> OnnxValue:
    items = _items(node)
    del items[_position(node, 1, items, len(items), len(items) - 1)]
    return _sequence(node, items)


def _split(node: OnnxNode) -> OnnxValue:
    """Split an axis into parts of given sizes, or into its elements, which lose the axis without keepdims."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 0)))
    size = x.dims[axis]
    if node.optional(1) is None:
        parts = [1] * size
    elif node.value(1).rank == 0:
        # With these steps, and no other, an item at some position is as large as it can be.
        step = int(node.number(1, greatest=Choices(sorted({size // count for count in range(1, size + 1)}))))
        if step < 1:
            node.refuse(f"parts of {step} elements")
        parts = [min(step, size - first) for first in range(0, size, step)]
    else:
        parts = split_parts(node, size, node.value(1).dims[0]) or []
    if sum(parts) != size or any(part < 0 for part in parts):
        node.refuse(f"parts {parts[:8]} do not make up the {size} elements of axis {axis}")
    items = parts_of(node, x, axis, parts)
    if node.optional(1) is None and not node.attr("keepdims", 1):
        items = [node.reshape_to(item, [d for a, d in enumerate(x.dims) if a != axis]) for item in items]
    return _sequence(node, items)


def _concat(node: OnnxNode) -> OnnxValue:
    """Join the items along an axis, which is a new one if new_axis is set."""
    items, new = _items(node), int(node.attr("new_axis", 0))
    if not items:
        node.refuse("an empty sequence cannot be joined")
    axis = node.axis(int(node.attr("axis", 0)), items[0].rank + new)
    return stack_values(node, items, axis) if new else join(node, items, axis)


CONVERTERS: dict[str, Converter] = {
    "SequenceEmpty": lambda node: _sequence(node, []),
    "SequenceConstruct": lambda node: _sequence(node, [node.value(index) for index in range(len(node.inputs))]),
    "SequenceAt": _at,
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceLength": lambda node: node.literal(np.array(len(_items(node)), np.int64)),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
}
