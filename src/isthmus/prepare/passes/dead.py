"""Dead code elimination: removes steps that neither a graph output nor a state depends on."""

from __future__ import annotations

from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def remove_dead(work: Work) -> None:
    """Remove every step whose results are not used."""
    needed = [*work.outputs, *work.updates.values()]
    alive: set[Step] = set()
    while needed:
        step = work.producer(needed.pop())
        if step is not None and step not in alive:
            alive.add(step)
            needed.extend(t for t in step.inputs if t is not None)
    for step in [s for s in work.steps if s not in alive]:
        work.remove(step)
