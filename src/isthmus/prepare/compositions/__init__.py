"""Operations that engines compute by others: each is replaced by a composition before any other pass.

So one definition serves every engine, target and data type, and the planner shares the memory of all intermediate
results.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.prepare.compositions import attention, convolution, detection, elementwise, images, signal, sparse
from isthmus.prepare.compositions.composer import Composition, StepComposer
from isthmus.prepare.rewrite import rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_FAMILIES = (attention, convolution, detection, elementwise, images, signal, sparse)
COMPOSITIONS: Mapping[str, Composition] = {op: each for family in _FAMILIES for op, each in family.COMPOSITIONS.items()}


def compose(work: Work) -> None:
    """Replace all operations that are composed of others."""
    rewrite(work, (COMPOSITIONS, _replace))


def _replace(work: Work, step: Step) -> None:
    """Replace one step by its composition, unless an engine executes the step as it is."""
    composer = StepComposer(work, step)
    results = COMPOSITIONS[step.op](composer)
    if results is None:
        return
    composer.finish(results)


__all__ = ["COMPOSITIONS", "compose"]
