"""Schedules for an engine of which only a few facts matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isthmus.graph import Graph
from isthmus.prepare import EngineModel, Planner, PlanOptions, Schedule, Step
from isthmus.prepare.work import Work


@dataclass
class PlainEngine(EngineModel):
    """An engine that executes every step on one thread, given its work spaces and how it stores tensors."""

    work: Callable[[Step], int]
    storing: Callable[[Work], None] | None = None
    alignment: int = 64

    def work_bytes(self, step: Step, threads: int) -> int:
        return self.work(step)

    def store(self, work: Work) -> None:
        if self.storing is not None:
            self.storing(work)


def plan_graph(
    graph: Graph,
    work: Callable[[Step], int] = lambda step: 0,
    store: Callable[[Work], None] | None = None,
    alignment: int = 64,
    **options: Any,
) -> Schedule:
    """Plan a graph for a plain engine."""
    return Planner(graph, PlanOptions(**options), PlainEngine(work, store, alignment)).schedule()
