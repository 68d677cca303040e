"""Compositions of elementwise operations."""

from __future__ import annotations

from isthmus.graph import Tensor
from isthmus.prepare.compositions.composer import INTEGER, Composition, StepComposer


def _multiplex(c: StepComposer) -> list[Tensor]:
    """Choose between operands one by one, from the last to the first; a number without an operand takes the nearest."""
    selector, last = c.whole(0), len(c.step.inputs) - 1
    chosen = c.input(last)
    for index in range(last - 1, 0, -1):
        condition = c("ElementWiseLessEqual", selector, c.constant([index - 1], INTEGER))
        chosen = c("ElementWiseSelect", condition, c.input(index), chosen)
    if chosen.dims != c.outputs[0].dims:
        # The selector, or a choice that no number can name, has more elements.
        always = c("ElementWiseEqual", selector, selector)
        chosen = c("ElementWiseSelect", always, chosen, c.zeros([1] * len(c.outputs[0].dims), chosen))
    return [chosen]


def _logit(c: StepComposer) -> list[Tensor]:
    """Compute log(x / (1 - x)), with x kept at a distance from 0 and 1 if there is one."""
    x, one = c.real(0), c.constant([1.0])
    if c.given(1) is not None:
        epsilon = c.reshape(c.real(1), 1)
        x = c("ElementWiseMaximum", x, epsilon)
        x = c("ElementWiseMinimum", x, c("ElementWiseSubtract", one, epsilon))
    return [c("ElementWiseLog", c("ElementWiseDivide", x, c("ElementWiseSubtract", one, x)))]


COMPOSITIONS: dict[str, Composition] = {"ElementWiseMux": _multiplex, "Logit": _logit}
