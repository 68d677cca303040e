"""Graph preparation: passes, operation order, liveness and memory plan turn a graph into a schedule for any backend."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from isthmus.prepare.engine_model import EngineModel
    from isthmus.prepare.planner import Planner, PlanOptions
    from isthmus.prepare.schedule import Place, Plan, PlanRow, Pool, Schedule, Step

__all__ = ["EngineModel", "Place", "Plan", "PlanOptions", "PlanRow", "Planner", "Pool", "Schedule", "Step"]
# The module that defines each name, if it is not `schedule`.
_MODULES = {"EngineModel": "engine_model", "Planner": "planner", "PlanOptions": "planner"}


def __getattr__(name: str) -> object:
    """Import a name when it is first used: an accelerator needs schedules' types and no planner."""
    from importlib import import_module

    if name in __all__:
        return getattr(import_module(f"isthmus.prepare.{_MODULES.get(name, 'schedule')}"), name)
    raise AttributeError(f"module 'isthmus.prepare' has no attribute '{name}'")
