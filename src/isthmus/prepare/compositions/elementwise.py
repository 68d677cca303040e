"""Compositions of elementwise operations."""

from __future__ import annotations

from isthmus.graph import Tensor
from isthmus.graph.ops.elementwise import numbered
from isthmus.prepare.compositions.composer import FLOAT, INTEGER, Composition, StepComposer


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


def _power(c: StepComposer) -> list[Tensor] | None:
    """Compute a power in reals if the exponent has another type than the base."""
    base, exponent = c.input(0), c.input(1)
    return None if base.dtype is exponent.dtype else [c("ElementWisePower", c.real(0), c.real(1))]


def _binary(c: StepComposer) -> list[Tensor] | None:
    return _power(c) if numbered(c.step.op, int(c.params["operation"])).name == "ElementWisePower" else None


def _dequantize(c: StepComposer) -> list[Tensor] | None:
    """Compute other floats than FLOAT_32 from those."""
    return None if c.outputs[0].dtype is FLOAT else [c.real(0)]


def _quantize(c: StepComposer) -> list[Tensor] | None:
    """Store other floats than FLOAT_32 as those."""
    return None if c.input(0).dtype is FLOAT else [c.real(0)]


COMPOSITIONS: dict[str, Composition] = {
    "Dequantize": _dequantize, "ElementWiseBinary": _binary, "ElementWiseMux": _multiplex, "ElementWisePower": _power,
    "Logit": _logit, "Quantize": _quantize,
}  # fmt: skip
