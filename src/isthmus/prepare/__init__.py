"""Graph preparation: passes, operation order, liveness and memory plan turn a graph into a schedule for any backend."""

from isthmus.prepare.engine_model import EngineModel
from isthmus.prepare.planner import Planner, PlanOptions
from isthmus.prepare.schedule import Place, Plan, PlanRow, Pool, Schedule, Step

__all__ = ["EngineModel", "Place", "Plan", "PlanOptions", "PlanRow", "Planner", "Pool", "Schedule", "Step"]
