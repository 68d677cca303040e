"""Application of rewrite rules until none applies any more, revisiting only steps near the last change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

Rule = Callable[[Work, Step], bool]
"""A function that rewrites the graph around a step if it applies, and returns whether it did."""

Rules = Mapping[str, Sequence[Rule]]
"""The rules to try for a step, by its operation."""


def rewrite(work: Work, rules: Rules) -> None:
    """Apply rules everywhere. Each rule must simplify the graph, or this does not terminate."""
    queue = deque(step for step in work.ordered() if step.op in rules)
    waiting = set(queue)
    work.take_touched()  # forget the steps that earlier passes have touched
    while queue:
        step = queue.popleft()
        waiting.discard(step)
        if step not in work.steps or not any(rule(work, step) for rule in rules.get(step.op, ())):
            continue
        for near in work.take_touched():
            if near not in waiting and near.op in rules:
                waiting.add(near)
                queue.append(near)


def table(*entries: tuple[Collection[str], Rule]) -> dict[str, list[Rule]]:
    """Build a table of rules by operation from pairs of operations and a rule, tried in this order."""
    rules: dict[str, list[Rule]] = {}
    for ops, rule in entries:
        for op in sorted(ops):
            rules.setdefault(op, []).append(rule)
    return rules
