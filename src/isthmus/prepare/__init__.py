"""Preparation: passes, operation order, liveness and plan. A graph in, a schedule out; the same for every backend."""

from isthmus.prepare.planner import schedule
from isthmus.prepare.schedule import Place, Plan, PlanRow, Pool, Schedule, Step

__all__ = ["Place", "Plan", "PlanRow", "Pool", "Schedule", "Step", "schedule"]
