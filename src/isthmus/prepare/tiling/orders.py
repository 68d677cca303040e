"""Step orders that bring producers and readers together, so that fused regions contain both.

The order with the fewest live bytes is not always the best for tiling. An order that follows each branch to its end
leaves more bytes alive between steps, but fewer once the steps are tiled.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import ProductKind
from isthmus.prepare.order import Flow
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import post_order

SEARCHED, FIRST_OPERAND, LAST_OPERAND = "searched", "depth first", "depth first, last operand first"
WHOLE_FIRST = "what is read as a whole first"
ORDERS = (SEARCHED, FIRST_OPERAND, LAST_OPERAND, WHOLE_FIRST)
"""The kinds of order. SEARCHED is the order with the fewest live bytes, of `prepare.order`."""
MAX_STEPS = 1500
"""Graphs with more steps use only the searched order."""


def depth_first(graph: Flow, kind: str, whole: Sequence[set[int]]) -> list[int]:
    """Return an order in which each step comes right after the steps that it reads from.

    One of a step's operands is computed first: the first, the last, or one that it does not read by rows (`whole` has
    the writers of these for each step). In the last case the other operands can be tiled together with the step.
    """
    roots = [step for step, waiting in enumerate(graph.before) if not waiting]
    if kind == WHOLE_FIRST:
        return post_order(roots, lambda step: sorted(graph.after[step], key=lambda n: (n not in whole[step], n)))
    return late(graph, post_order(roots, lambda step: sorted(graph.after[step], reverse=kind == LAST_OPERAND)))


def whole_operands(steps: Sequence[Step], graph: Flow) -> list[set[int]]:
    """List for each step the step that computes the right matrix of a product, which every tile needs whole."""
    writers: dict[Tensor, int] = {tensor: index for index, step in enumerate(steps) for tensor in step.outputs}
    whole: list[set[int]] = []
    for step, after in zip(steps, graph.after, strict=True):
        right = step.inputs[1] if OPERATIONS[step.op].traits.product is ProductKind.MATRIX else None
        writer = writers.get(right) if right is not None else None
        whole.append(set() if writer is None else {writer} & after)
    return whole


def late(graph: Flow, order: list[int]) -> list[int]:
    """Move each step that allocates more than it frees to just before its first reader."""
    # The steps that read or write each block.
    users: dict[int, list[int]] = {}
    for step, touched in enumerate(graph.touches):
        for block, _ in touched:
            users.setdefault(block, []).append(step)
    result = list(order)
    place = {step: position for position, step in enumerate(result)}
    for step in reversed(order):
        readers = graph.before[step]
        if not readers:
            continue
        goal, position_now = min(place[reader] for reader in readers), place[step]
        if goal == position_now + 1:
            continue
        allocated = sum(graph.sizes[block] for block in graph.writes[step])
        freed = sum(
            graph.sizes[block]
            for block in graph.reads[step]
            if block not in graph.held and max(place[user] for user in users[block]) <= position_now
        )
        if allocated > freed:
            result.insert(goal, step)
            result.pop(position_now)
            for position in range(position_now, goal):
                place[result[position]] = position
    return result
