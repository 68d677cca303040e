"""Layer normalisation written out as (x - mean) / sqrt(variance + epsilon), then times a weight, plus a bias."""

from __future__ import annotations

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.match import is_fusible, number, per_channel, static
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def recognize_normalizations(work: Work) -> None:
    """Replace written-out layer normalisations over the last axes, and fold their weights and biases in."""
    rewrite(
        work,
        table(
            (("ElementWiseDivide", "ElementWiseMultiply"), _layer_norm),
            (("ElementWiseMultiply",), _weight),
            (("ElementWiseAdd",), _bias),
        ),
    )


def _layer_norm(work: Work, step: Step) -> bool:
    """Match a step that ends in ``d / sqrt(v + e)`` or ``d * rsqrt(v + e)``."""
    wanted = "ElementWiseSquareRoot" if step.op == "ElementWiseDivide" else "ElementWiseRsqrt"
    pairs = [(step.inputs[0], step.inputs[1])]
    if step.op == "ElementWiseMultiply":
        pairs.append((step.inputs[1], step.inputs[0]))
    for difference, deviation in pairs:
        root = work.producer(deviation)
        if root is not None and root.op == wanted and _rewrite_norm(work, step, difference, root):
            return True
    return False


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


def _weight(work: Work, step: Step) -> bool:
    """Make a constant factor the weight of the LayerNorm before it."""
    norm = _normalization_before(work, step)
    if norm is None or len(norm.inputs) > 1:
        return False
    weight = _parameter(work, step, norm)
    if weight is None:
        return False
    work.change(norm, inputs=[norm.inputs[0], weight])
    work.absorb(norm, step)
    return True


def _bias(work: Work, step: Step) -> bool:
    """Make a constant term the bias of the LayerNorm before it; a bias needs a weight, by default ones."""
    norm = _normalization_before(work, step)
    if norm is None or len(norm.inputs) > 2:
        return False
    bias = _parameter(work, step, norm)
    if bias is None:
        return False
    weight = norm.inputs[1] if len(norm.inputs) > 1 else None
    if weight is None:
        weight = work.floats(f"{norm.name}.weight", np.ones(bias.dims), bias.dtype)
    work.change(norm, inputs=[norm.inputs[0], weight, bias])
    work.absorb(norm, step)
    return True
