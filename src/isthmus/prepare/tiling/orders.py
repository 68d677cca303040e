"""Step orders that bring producers and readers together, so that fused regions contain both.

The order with the fewest live bytes is not always the best for tiling. An order that follows each branch to its end
leaves more bytes alive between steps, but fewer once the steps are tiled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import ProductKind
from isthmus.prepare.order import Flow
from isthmus.prepare.schedule import Step

SEARCHED, FIRST_OPERAND, LAST_OPERAND = "searched", "depth first", "depth first, last operand first"
WHOLE_FIRST = "what is read as a whole first"
ORDERS = (SEARCHED, FIRST_OPERAND, LAST_OPERAND, WHOLE_FIRST)
MAX_STEPS = 1500
"""Graphs with more steps use only the searched order."""


def depth_first(graph: Flow, kind: str, whole: Sequence[set[int]]) -> list[int]:
    """Return an order in which each step comes right after the steps that it reads from.

    One of a step's operands is computed first: the first, the last, or one that it does not read by rows (`whole` has
    the writers of these for each step). In the last case the other operands can be tiled together with the step.
    """
    roots = [step for step, waiting in enumerate(graph.before) if not waiting]
    if kind == WHOLE_FIRST:
        return post_order(roots, graph.after, lambda step, other: (other not in whole[step], other))
    return late(graph, post_order(roots, graph.after, lambda _, other: -other if kind == LAST_OPERAND else other))


def post_order(
    roots: Iterable[int], after: Sequence[Collection[int]], rank: Callable[[int, int], Any]
) -> list[int]:
    """Order steps depth first: each after those that it reads, which are visited by ascending rank."""
    done: set[int] = set()
    found: list[int] = []
    for root in roots:
        stack = [root]
        while stack:
            step = stack[-1]
            missing = () if step in done else sorted(set(after[step]) - done, key=lambda other: rank(step, other))
            stack.extend(reversed(missing))
            if not missing:
                stack.pop()
                if step not in done:
                    done.add(step)
                    found.append(step)
    return found


def whole_operands(steps: Sequence[Step], graph: Flow) -> list[set[int]]:
    """List for each step the step that computes the right matrix of a product, which every tile needs whole."""
    makers: dict[Tensor, int] = {tensor: index for index, step in enumerate(steps) for tensor in step.outputs}
    found: list[set[int]] = []
    for step, after in zip(steps, graph.after, strict=True):
        right = step.inputs[1] if OPERATIONS[step.op].traits.product is ProductKind.MATRIX else None
        maker = makers.get(right) if right is not None else None
        found.append(set() if maker is None else {maker} & after)
    return found


def late(graph: Flow, order: list[int]) -> list[int]:
    """Move each step that allocates more than it frees to just before its first reader."""
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
        goal, here = min(place[reader] for reader in readers), place[step]
        if goal == here + 1:
            continue
        made = sum(graph.sizes[block] for block in graph.writes[step])
        freed = sum(
            graph.sizes[block]
            for block in graph.reads[step]
            if block not in graph.held and max(place[user] for user in users[block]) <= here
        )
        if made > freed:
            result.insert(goal, step)
            result.pop(here)
            for position in range(here, goal):
                place[result[position]] = position
    return result
