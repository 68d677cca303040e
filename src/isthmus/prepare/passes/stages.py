"""The intermediate roundings of Hexagon chips, for graphs that round like them.

The chips compute some operations in several rounded steps, and cut biases off to the unit of the sum that they are
added to.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import Quantization
from isthmus.graph.evaluation.convolution import PRODUCTS
from isthmus.graph.rounding import HEXAGON, is_staged, stages_of
from isthmus.prepare.rewrite import operand, rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def divide_stages(work: Work) -> None:
    """Replace each step that chips compute in several stages by two steps, until every step has one stage."""
    if work.numerics == HEXAGON:
        rewrite(work, (("PoolAvg2d",), _divide))


def cut_biases(work: Work) -> None:
    """Truncate constant biases to units of the sums that they are added to."""
    if work.numerics == HEXAGON:
        rewrite(work, (tuple(PRODUCTS), _cut_bias))


def _divide(work: Work, step: Step) -> None:
    """Replace a step of several stages by its first stage and a step for the others."""
    if not is_staged(step.op, step.inputs, step.params):
        return
    x = operand(step, 0)
    assert x is not None
    dims, first, second = stages_of(x, step.params)
    between = work.insert(step.op, step, [x], dims, x, first)
    work.change(step, inputs=[between], params=second)


def _cut_bias(work: Work, step: Step) -> None:
    """Replace a constant bias by one that is truncated to whole units of the sum of products."""
    x, weights, bias = step.inputs[0], step.inputs[1], step.inputs[2] if len(step.inputs) > 2 else None
    if x is None or weights is None or bias is None or bias.data is None:
        return
    if x.quantization is None or weights.quantization is None or bias.quantization is None:
        return
    units = x.quantization.scale * np.array(weights.quantization.scales)
    if len(units) not in (1, *bias.dims) or np.allclose(bias.quantization.scales, units, rtol=1e-5, atol=0):
        return
    stored = bias.data + np.array(bias.quantization.offsets, np.int64)
    # In single precision, a bias that is a whole number of units stays one.
    sums = np.trunc(stored.astype(np.float32) * (np.array(bias.quantization.scales) / units).astype(np.float32))
    limits = np.iinfo(np.int32)
    axis = None if weights.quantization.axis is None else len(bias.dims) - 1
    per_unit = Quantization(tuple(units.tolist()), (0,) * len(units), axis)
    cut = work.constant(bias.name, np.clip(sums, limits.min, limits.max).astype(np.int32), per_unit)
    work.change(step, inputs=[x, weights, cut, *step.inputs[3:]])
