"""Division of operations that Hexagon chips compute in several rounded steps, for graphs that round like them."""

from __future__ import annotations

from isthmus.graph.rounding import HEXAGON, is_staged, stages_of
from isthmus.prepare.match import operand
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def divide_stages(work: Work) -> None:
    """Replace each such step by two, until there is none."""
    if work.numerics == HEXAGON:
        rewrite(work, table((("PoolAvg2d",), _divide)))


def _divide(work: Work, step: Step) -> bool:
    """Replace a step by two."""
    if not is_staged(step.op, step.inputs, step.params):
        return False
    x = operand(step, 0)
    assert x is not None
    dims, first, second = stages_of(x, step.params)
    between = work.insert(step.op, step, [x], dims, x, first)
    work.change(step, inputs=[between], params=second)
    return True
