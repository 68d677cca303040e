"""Idioms of models: layer normalisation that is written out, and activations that are expressed as products.

A normalisation is (x - mean) / sqrt(variance + epsilon), then times a weight, plus a bias. x times a gate of x is Silu,
HardSwish or Gelu. Models apply constant factors in different positions (0.5 before or after, a sixth inside or
outside). Both operands and the product are therefore matched without their constant factors, which are multiplied
together.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.rewrite import is_fusible, is_number, number, per_channel, rewrite, static
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

HARD_SIGMOID = 2
"""QNN's number of HardSigmoid, for ElementWiseNeuron's parameter ``operation``."""

Gate = Callable[[Work, Step], "tuple[Tensor | None, float] | None"]
"""A function that returns, if a step ends a gate, the gate's input x and the ratio of the result to the true gate.

For example relu6(x + 3) is 6 times the gate of HardSwish. It returns None if the step does not end a gate.
"""


def recognize_normalizations(work: Work) -> None:
    """Replace written-out layer normalisations over the last axes, and fold their weights and biases in."""
    rewrite(
        work,
        (("ElementWiseDivide", "ElementWiseMultiply"), _layer_norm),
        (("ElementWiseMultiply",), _weight),
        (("ElementWiseAdd",), _bias),
    )


def _layer_norm(work: Work, step: Step) -> None:
    """Match a step that ends in ``d / sqrt(v + e)`` or ``d * rsqrt(v + e)``."""
    root_op = "ElementWiseSquareRoot" if step.op == "ElementWiseDivide" else "ElementWiseRsqrt"
    pairs = [(step.inputs[0], step.inputs[1])]
    if step.op == "ElementWiseMultiply":
        pairs.append((step.inputs[1], step.inputs[0]))
    for difference, deviation in pairs:
        root = work.producer(deviation)
        if root is not None and root.op == root_op and _rewrite_norm(work, step, difference, root):
            return


def _rewrite_norm(work: Work, step: Step, difference: Tensor | None, root: Step) -> bool:
    """Replace a step by a LayerNorm if `difference` is x - mean(x), and `root` the root of variance(x) + epsilon."""
    shifted = work.producer(root.inputs[0])
    if shifted is None or shifted.op != "ElementWiseAdd" or shifted.clamp is not None or step.clamp is not None:
        return False
    epsilon = number(shifted.inputs[1])
    variance = work.producer(shifted.inputs[0])
    subtract = work.producer(difference)
    if epsilon is None or variance is None or subtract is None or subtract.op != "ElementWiseSubtract":
        return False
    if subtract.clamp is not None:
        return False
    x, mean_of_x = subtract.inputs[0], subtract.inputs[1]
    mean = work.producer(mean_of_x)
    if x is None or mean is None or mean.inputs[0] is not x or not is_fusible(x):
        return False
    axes = _last_axes(mean, x.rank)
    if axes is None or _last_axes(variance, x.rank) != axes:
        return False
    if not _squares(work.producer(variance.inputs[0]), difference, x, mean_of_x):
        return False
    params = {"epsilon": epsilon, "axes": np.array(axes, np.int64)}
    work.replace(step, "LayerNorm", [x], params)
    return True


def _last_axes(step: Step, rank: int) -> list[int] | None:
    """Return the axes of a mean that keeps its dimensions, if they are the last ones; None for any other step."""
    if step.op != "ReduceMean" or not step.params["keep_dims"] or step.clamp is not None:
        return None
    axes = [int(a) for a in np.asarray(step.params["axes"]).reshape(-1)]
    return axes if axes == list(range(rank - len(axes), rank)) and axes else None


def _squares(step: Step | None, difference: Tensor | None, x: Tensor, mean: Tensor | None) -> bool:
    """Return whether a step squares x - mean, either from this difference or from x and the mean."""
    if step is None or step.clamp is not None:
        return False
    if step.op == "ElementWiseMultiply":
        return step.inputs[0] is difference and step.inputs[1] is difference
    return step.op == "ElementWiseSquaredDifference" and {step.inputs[0], step.inputs[1]} == {x, mean}


def _normalization_before(work: Work, step: Step) -> Step | None:
    """Return the LayerNorm whose result only this step reads, if there is one."""
    norm = work.sole_producer(step.inputs[0])
    if norm is None or norm.op != "LayerNorm" or norm.clamp is not None or step.clamp is not None:
        return None
    return norm


def _parameter(work: Work, step: Step, norm: Step) -> Tensor | None:
    """Return the constant operand of a step in the shape of the normalised axes; None if it does not have it."""
    result, constant = norm.outputs[0], step.inputs[1]
    data = static(constant)
    if constant is None or data is None or step.outputs[0].dims != result.dims:
        return None
    axes = np.asarray(norm.params["axes"]).reshape(-1)
    dims = tuple(result.dims[int(a)] for a in axes)
    if len(dims) == 1:
        values = per_channel(constant, result)
        return None if values is None else work.floats(constant.name, values, constant.dtype)
    if tuple(d for d in constant.dims[constant.rank - len(dims) :]) != dims or data.size != np.prod(dims):
        return None
    return work.constant(constant.name, data.reshape(dims), dtype=constant.dtype)


def _weight(work: Work, step: Step) -> None:
    """Make a constant factor the weight of the LayerNorm before it."""
    norm = _normalization_before(work, step)
    if norm is None or len(norm.inputs) > 1:
        return
    weight = _parameter(work, step, norm)
    if weight is None:
        return
    work.change(norm, inputs=[norm.inputs[0], weight])
    work.absorb(norm, step)


def _bias(work: Work, step: Step) -> None:
    """Make a constant term the bias of the LayerNorm before it; a bias needs a weight, by default ones."""
    norm = _normalization_before(work, step)
    if norm is None or len(norm.inputs) > 2:
        return
    bias = _parameter(work, step, norm)
    if bias is None:
        return
    weight = norm.inputs[1] if len(norm.inputs) > 1 else None
    if weight is None:
        weight = work.floats(f"{norm.name}.weight", np.ones(bias.dims), bias.dtype)
    work.change(norm, inputs=[norm.inputs[0], weight, bias])
    work.absorb(norm, step)


def recognize_gates(work: Work) -> None:
    """Replace products of a tensor and a gate of itself."""
    rewrite(work, (("ElementWiseMultiply",), _replace_gate), (("ElementWiseMultiply",), _hard_sigmoid))


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


def _replace_gate(work: Work, step: Step) -> None:
    """Replace a product of x and a gate of x, in either order, by one operation."""
    first, second = step.inputs
    if first is None or second is None or first.is_static or second.is_static or step.clamp is not None:
        return
    if not is_fusible(first) or first.dims != second.dims:
        return
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
            return


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


def _sigmoid(_work: Work, step: Step) -> tuple[Tensor | None, float] | None:
    """Match sigmoid(x), the gate of Silu."""
    return step.inputs[0], 1.0


def _hard_sigmoid_neuron(_work: Work, step: Step) -> tuple[Tensor | None, float] | None:
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


# By the last operation of a gate: the activation that x times the gate is, and the function that matches the gate.
_GATES: dict[str, tuple[str, Gate]] = {
    "Sigmoid": ("Silu", _sigmoid),
    "ElementWiseNeuron": ("HardSwish", _hard_sigmoid_neuron),
    "Relu6": ("HardSwish", _relu6_of_x_plus_3),
    "ReluMinMax": ("HardSwish", _relu6_of_x_plus_3),
    "ElementWiseAdd": ("Gelu", _one_plus_erf),
}


def _hard_sigmoid(work: Work, step: Step) -> None:
    """Replace relu6(x + 3) / 6 by a hard sigmoid; if x is another factor, the product then becomes a HardSwish."""
    gate = work.sole_producer(step.inputs[0])
    if gate is None or gate.op not in ("Relu6", "ReluMinMax") or step.clamp is not None:
        return
    if not is_number(step.inputs[1], 1 / 6) or step.outputs[0].dims != gate.outputs[0].dims:
        return
    matched = _relu6_of_x_plus_3(work, gate)
    if matched is None or matched[0] is None or not is_fusible(matched[0]):
        return
    numbers = {"operation": HARD_SIGMOID, "alpha": 1 / 6, "beta": 0.5, "threshold": -1.0}
    params = {**numbers, "min_value": None, "max_value": None}
    work.replace(step, "ElementWiseNeuron", [matched[0]], params)
