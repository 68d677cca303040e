"""Cheaper arithmetic: divisions by constants and small powers are replaced, successive constants are merged.

Division by a constant and multiplication by its reciprocal may differ in the last bit. The division is therefore kept
if a reader amplifies that difference: 41 / 41 must not be rounded down to 0.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.rewrite import floats, is_fusible, number, rewrite, static
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

RECIPROCAL = 10
"""QNN's number of Reciprocal, for ElementWiseUnary's parameter ``operation``."""


def simplify_arithmetic(work: Work) -> None:
    """Replace operations by cheaper ones, and merge successive constants."""
    rewrite(
        work,
        (("ElementWiseDivide",), _multiply_instead),
        (("ElementWiseDivide",), _reciprocal),
        (("ElementWiseSubtract",), _add_instead),
        (("ElementWisePower",), _small_power),
        (("ElementWiseAdd", "ElementWiseMultiply"), _neutral),
        (("ElementWiseAdd", "ElementWiseMultiply"), _merge_constants),
    )


def _constant_operand(step: Step) -> np.ndarray | None:
    """Return the second operand, if it is a float constant and the first is not a constant."""
    first = step.inputs[0]
    return floats(step.inputs[1]) if first is not None and not first.is_static else None


def _derive(work: Work, of: Tensor | None, value: np.ndarray) -> Tensor:
    """Return a new constant with the name and type of another one, from which its value was computed."""
    assert of is not None
    return work.floats(of.name, value, of.dtype)


# Operations whose results may jump when their operands change slightly.
_STEPS = frozenset((
    "Argmax", "Argmin", "Cast", "ElementWiseCeil", "ElementWiseEqual", "ElementWiseFloor", "ElementWiseFloorDiv",
    "ElementWiseFmod", "ElementWiseGreater", "ElementWiseGreaterEqual", "ElementWiseLess", "ElementWiseLessEqual",
    "ElementWiseMod", "ElementWiseNotEqual", "ElementWiseRound", "ElementWiseSign",
))  # fmt: skip


def _multiply_instead(work: Work, step: Step) -> None:
    """Replace a division by a constant by a multiplication, unless a reader amplifies the difference."""
    divisor = _constant_operand(step)
    if divisor is None or not (np.abs(divisor) > 1e-30).all():
        return
    # The reciprocal of a power of two is exact.
    exact = (np.frexp(divisor)[0] == np.copysign(0.5, divisor)).all()
    divisor_type = step.inputs[1].dtype if step.inputs[1] is not None else None
    # A reciprocal that is rounded to 16 bits would change the result by as much as the rounding of the result itself.
    if not exact and divisor_type is not None and divisor_type.is_half:
        return
    if not exact and any(reader.op in _STEPS for reader in work.consumers(step.outputs[0])):
        return
    work.change(step, op="ElementWiseMultiply", inputs=[step.inputs[0], _derive(work, step.inputs[1], 1.0 / divisor)])


def _reciprocal(work: Work, step: Step) -> None:
    """Replace 1 / x by the reciprocal of x."""
    dividend, divisor = step.inputs[0], step.inputs[1]
    if divisor is None or divisor.dims != step.outputs[0].dims or not is_fusible(divisor):
        return
    if number(dividend) != 1.0 or step.clamp is not None:
        return
    work.replace(step, "ElementWiseUnary", [divisor], {"operation": RECIPROCAL})


def _add_instead(work: Work, step: Step) -> None:
    """Replace x - c by x + (-c) for a constant."""
    subtrahend = _constant_operand(step)
    if subtrahend is None:
        return
    work.change(step, op="ElementWiseAdd", inputs=[step.inputs[0], _derive(work, step.inputs[1], -subtrahend)])


def _small_power(work: Work, step: Step) -> None:
    """Replace a power with the exponent 1, 2, 0.5, -0.5 or -1."""
    base, exponent = step.inputs[0], step.inputs[1]
    power = number(exponent)
    if base is None or power is None or base.dims != step.outputs[0].dims or not is_fusible(base):
        return
    if power == 1.0:
        work.bypass(step)
        return
    if power == 2.0:
        work.replace(step, "ElementWiseMultiply", [base, base])
    elif power == 0.5:
        work.replace(step, "ElementWiseSquareRoot", [base])
    elif power == -0.5:
        work.replace(step, "ElementWiseRsqrt", [base])
    elif power == -1.0:
        work.replace(step, "ElementWiseUnary", [base], {"operation": RECIPROCAL})
    else:
        return


_NEUTRAL = {"ElementWiseAdd": 0, "ElementWiseMultiply": 1}


def _neutral(work: Work, step: Step) -> None:
    """Remove additions of 0 and multiplications by 1, of floats and plain integers."""
    first, second = step.inputs[0], step.inputs[1]
    data = static(second)
    if first is None or second is None or data is None or first.is_static or second.dtype.is_fixed_point:
        return
    data = second.dtype.decode(data)
    if step.clamp is not None or first.dims != step.outputs[0].dims or not (data == _NEUTRAL[step.op]).all():
        return
    work.bypass(step)


_COMBINE: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "ElementWiseAdd": np.add,
    "ElementWiseMultiply": np.multiply,
}


def _merge_constants(work: Work, step: Step) -> None:
    """Replace (x + a) + b by x + (a + b), and likewise for products."""
    outer = _constant_operand(step)
    inner_step = work.sole_producer(step.inputs[0])
    if outer is None or inner_step is None or inner_step.op != step.op or inner_step.clamp is not None:
        return
    inner = _constant_operand(inner_step)
    if inner is None:
        return
    merged = _COMBINE[step.op](inner, outer)
    # Two small constants may broadcast to a large one.
    if merged.size > max(inner.size, outer.size):
        return
    source = inner_step.inputs[0]
    work.remove(inner_step)
    work.change(step, inputs=[source, _derive(work, step.inputs[1], merged)])
