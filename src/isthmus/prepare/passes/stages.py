"""Division of operations that HTP computes in two rounded steps, if the graph is rounded as HTP does."""

from __future__ import annotations

from isthmus.graph.rounding import HTP, is_staged, stages_of
from isthmus.prepare.match import operand
from isthmus.prepare.work import Work


def divide_stages(work: Work) -> None:
    """Replace each such step by two."""
    if work.numerics != HTP:
        return
    for step in work.ordered():
        if not is_staged(step.op, step.inputs, step.params):
            continue
        x = operand(step, 0)
        assert x is not None
        dims, params = stages_of(x, step.params)
        between = work.insert(step.op, step, [x], dims, x, params)
        work.change(step, inputs=[between], params=params)
