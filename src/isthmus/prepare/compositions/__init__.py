"""Operations that engines compute by others: each is replaced by a composition before any other pass.

So one definition serves every engine, target and data type, and the planner shares the memory of all intermediate
results.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.prepare.compositions import (
    attention,
    casts,
    convolution,
    detection,
    elementwise,
    images,
    random,
    signal,
    sparse,
)
from isthmus.prepare.compositions.composer import Composition, StepComposer
from isthmus.prepare.rewrite import rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

COMPOSITIONS: Mapping[str, Composition] = {
    **attention.COMPOSITIONS,
    **casts.COMPOSITIONS,
    **convolution.COMPOSITIONS,
    **detection.COMPOSITIONS,
    **elementwise.COMPOSITIONS,
    **images.COMPOSITIONS,
    **random.COMPOSITIONS,
    **signal.COMPOSITIONS,
    **sparse.COMPOSITIONS,
}


def compose(work: Work) -> None:
    """Replace all operations that are composed of others."""
    rewrite(work, {op: [_replace] for op in COMPOSITIONS})


def _replace(work: Work, step: Step) -> bool:
    """Replace one step; return whether it was replaced."""
    composer = StepComposer(work, step)
    results = COMPOSITIONS[step.op](composer)
    if results is None:
        return False
    composer.finish(results)
    return True


__all__ = ["COMPOSITIONS", "compose"]
