"""A memory plan for TFLite Micro, computed for a TFLite file and embedded in it."""

from __future__ import annotations

from typing import Any

from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.offline_plan import ALIGNMENT, arena_tensors, embed
from isthmus.planning import PlannerBuffer, Problem, check, greedy_by_size, solve

EMBED_SECONDS = 2.0
"""How long the search for the smallest arena may take."""


def embed_plan(data: bytes, name: str) -> tuple[bytes, dict[str, Any]]:
    """Return the file with a plan of TFLite Micro's arena, and facts about the plan.

    The facts are the number of planned tensors, the bytes of the arena, the solver's status, and the bytes of the plan
    that a greedy algorithm finds.
    """
    file = ModelFile(data, name)
    tensors = arena_tensors(file)
    # A planner's buffer ends before the step that it names as its end.
    problem = Problem(
        tuple(
            PlannerBuffer(f"{t.index} {t.name}", t.first, t.last + 1, -(-t.bytes // ALIGNMENT) * ALIGNMENT, ALIGNMENT)
            for t in tensors
        )
    )
    solution = solve(problem, timeout=EMBED_SECONDS)
    offsets = solution.offsets or ()
    arena = check(problem, offsets)
    planned = embed(file, {t.index: offset for t, offset in zip(tensors, offsets, strict=True)})
    facts = {
        "planned": len(tensors),
        "arena_bytes": arena,
        "status": str(solution.status),
        "greedy_bytes": check(problem, greedy_by_size(problem)),
    }
    return planned, facts
