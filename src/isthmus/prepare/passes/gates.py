"""Activations that models express as products: x times a gate of x is Silu, HardSwish or Gelu.

Models apply constant factors in different positions (0.5 before or after, a sixth inside or outside). Both operands and
the product are therefore matched without their constant factors, which are multiplied together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.match import is_fusible, is_number, number
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

HARD_SIGMOID = 2
"""The number of this operation in ElementWiseNeuron."""

Gate = Callable[[Work, Step], "tuple[Tensor | None, float] | None"]
"""A function that returns, if a step ends a gate, the gate's input x and the ratio of the result to the true gate.

For example relu6(x + 3) is 6 times the gate of HardSwish. It returns None if the step does not end a gate.
"""


def recognize_gates(work: Work) -> None:
    """Replace products of a tensor and a gate of itself."""
    rewrite(work, table((("ElementWiseMultiply",), _gated), (("ElementWiseMultiply",), _hard_sigmoid)))


def _peel(work: Work, tensor: Tensor) -> tuple[Tensor, float]:
    """Return a tensor without its constant factors, and the product of these factors."""
    factor = 1.0
    while True:
        step = work.sole_producer(tensor)
        if step is None or step.op != "ElementWiseMultiply" or step.clamp is not None:
            return tensor, factor
        inner, scale = step.inputs[0], number(step.inputs[1])
        if inner is None or scale is None or inner.is_static or inner.dims != tensor.dims:
            return tensor, factor
        tensor, factor = inner, factor * scale


def _gated(work: Work, step: Step) -> bool:
    """Replace a product of x and a gate of x, in either order, by one operation."""
    first, second = step.inputs
    if first is None or second is None or first.is_static or second.is_static or step.clamp is not None:
        return False
    if not is_fusible(first) or first.dims != second.dims:
        return False
    for x, gate in ((first, second), (second, first)):
        inner, gate_factor = _peel(work, gate)
        last = work.producer(inner)
        if last is None or (entry := _GATES.get(last.op)) is None:
            continue
        op, match = entry
        matched = match(work, last)
        if matched is None:
            continue
        gate_input, ratio = matched
        bare, factor = (x, 1.0) if gate_input is x else _peel(work, x)
        if gate_input is bare:
            _write(work, step, op, bare, factor * gate_factor * ratio)
            return True
    return False


def _write(work: Work, step: Step, op: str, x: Tensor, factor: float) -> None:
    """Emit ``factor * op(x)``, merging the constant factor of the only reader, which often makes it 1."""
    reader = work.sole_consumer(step.outputs[0])
    if reader is not None and reader.op == "ElementWiseMultiply" and reader.outputs[0].dims == x.dims:
        scale = number(reader.inputs[1])
        if scale is not None:
            factor *= scale
            work.absorb(step, reader)
    if math.isclose(factor, 1.0, rel_tol=1e-5):
        work.replace(step, op, [x])
        return
    gated = work.insert(op, step, [x], x.dims, x)
    scale_by = work.floats(step.name, np.array([factor]), x.dtype)
    work.replace(step, "ElementWiseMultiply", [gated, scale_by])


def _sigmoid(work: Work, step: Step) -> tuple[Tensor | None, float] | None:
    """Match sigmoid(x), the gate of Silu."""
    return step.inputs[0], 1.0


def _hard_sigmoid_neuron(work: Work, step: Step) -> tuple[Tensor | None, float] | None:
    """Match a hard sigmoid x / 6 + 0.5, the gate of HardSwish."""
    params = step.params
    if params["operation"] != HARD_SIGMOID or not math.isclose(params["alpha"], 1 / 6, rel_tol=1e-5):
        return None
    return (step.inputs[0], 1.0) if math.isclose(params["beta"], 0.5, rel_tol=1e-5) else None


def _relu6_of_x_plus_3(work: Work, step: Step) -> tuple[Tensor | None, float] | None:
    """Match relu6(x + 3), which is 6 times the gate of HardSwish."""
    if step.op == "ReluMinMax" and (step.params["min_value"], step.params["max_value"]) != (0.0, 6.0):
        return None
    shift = work.producer(step.inputs[0])
    if shift is None or shift.op != "ElementWiseAdd" or not is_number(shift.inputs[1], 3.0):
        return None
    return shift.inputs[0], 6.0


def _one_plus_erf(work: Work, step: Step) -> tuple[Tensor | None, float] | None:
    """Match 1 + erf(x * sqrt(0.5)), which is twice the gate of Gelu."""
    erf = work.producer(step.inputs[0])
    if erf is None or erf.op != "Erf" or not is_number(step.inputs[1], 1.0):
        return None
    scaled = work.producer(erf.inputs[0])
    if scaled is None or not _is_by_root_of_two(scaled):
        return None
    return scaled.inputs[0], 2.0


def _is_by_root_of_two(step: Step) -> bool:
    """Return whether a step divides by the root of 2; a division of 16-bit floats is not replaced by a product."""
    if step.op == "ElementWiseDivide":
        return is_number(step.inputs[1], math.sqrt(2.0))
    return step.op == "ElementWiseMultiply" and is_number(step.inputs[1], math.sqrt(0.5))


_GATES: dict[str, tuple[str, Gate]] = {
    "Sigmoid": ("Silu", _sigmoid),
    "ElementWiseNeuron": ("HardSwish", _hard_sigmoid_neuron),
    "Relu6": ("HardSwish", _relu6_of_x_plus_3),
    "ReluMinMax": ("HardSwish", _relu6_of_x_plus_3),
    "ElementWiseAdd": ("Gelu", _one_plus_erf),
}
"""By the last operation of a gate: the activation that x times the gate is, and the function that matches the gate."""


def _hard_sigmoid(work: Work, step: Step) -> bool:
    """Replace relu6(x + 3) / 6 by a hard sigmoid; if x is another factor, the product then becomes a HardSwish."""
    gate = work.sole_producer(step.inputs[0])
    if gate is None or gate.op not in ("Relu6", "ReluMinMax") or step.clamp is not None:
        return False
    if not is_number(step.inputs[1], 1 / 6) or step.outputs[0].dims != gate.outputs[0].dims:
        return False
    matched = _relu6_of_x_plus_3(work, gate)
    if matched is None or matched[0] is None or not is_fusible(matched[0]):
        return False
    params = {
        "operation": HARD_SIGMOID,
        "alpha": 1 / 6,
        "beta": 0.5,
        "min_value": None,
        "max_value": None,
        "threshold": -1.0,
    }
    work.replace(step, "ElementWiseNeuron", [matched[0]], params)
    return True
