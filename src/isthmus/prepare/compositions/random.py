"""Random numbers of each execution: a state counts the executions."""

from __future__ import annotations

from isthmus.graph import Tensor
from isthmus.prepare.compositions.composer import FLOAT, INTEGER, Composition, StepComposer


def execution_number(c: StepComposer) -> Tensor:
    """Return the number of the execution, which a state keeps."""
    one = c.constant([1], INTEGER)
    number = c.work.add_state(f"{c.step.name}.executions", [1], one)
    c.work.updates[number] = c("ElementWiseAdd", number, one)
    return number


def _random(c: StepComposer) -> list[Tensor] | None:
    """Add the number of the execution as the last operand; the numbers are FLOAT_32."""
    if c.given(2) is not None and c.outputs[0].dtype is FLOAT:
        return None
    seed = None if c.given(1) is None else c.real(1)
    number = c.given(2) or execution_number(c)
    return [c(c.step.op, c.input(0), seed, number, dims=c.outputs[0].dims, dtype=FLOAT, **c.params)]


COMPOSITIONS: dict[str, Composition] = {"RandomNormalLike": _random, "RandomUniformLike": _random}
