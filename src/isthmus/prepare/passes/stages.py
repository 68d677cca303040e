"""The intermediate roundings of Hexagon chips, for graphs that round like them.

The chips compute some operations in several rounded steps, and cut biases off to the unit of the sum that they are
added to.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import Quantization
from isthmus.graph.evaluation.convolution import PRODUCTS
from isthmus.graph.rounding import HEXAGON, is_staged, stages_of
from isthmus.prepare.match import operand
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def divide_stages(work: Work) -> None:
    """Replace each step of several stages by two, until there is none."""
    if work.numerics == HEXAGON:
        rewrite(work, table((("PoolAvg2d",), _divide)))


def cut_biases(work: Work) -> None:
    """Write constant biases in units of the sum that they are added to."""
    if work.numerics == HEXAGON:
        rewrite(work, table((tuple(PRODUCTS), _cut_bias)))


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


def _cut_bias(work: Work, step: Step) -> bool:
    """Replace a constant bias by one in units of the sum of products, without the rest."""
    x, weights, bias = step.inputs[0], step.inputs[1], step.inputs[2] if len(step.inputs) > 2 else None
    if x is None or weights is None or bias is None or bias.data is None:
        return False
    if x.quantization is None or weights.quantization is None or bias.quantization is None:
        return False
    units = x.quantization.scale * np.array(weights.quantization.scales)
    if len(units) not in (1, *bias.dims) or np.allclose(bias.quantization.scales, units, rtol=1e-5, atol=0):
        return False
    stored = bias.data + np.array(bias.quantization.offsets, np.int64)
    # In single precision, a bias that is a whole number of units stays one.
    sums = np.trunc(stored.astype(np.float32) * (np.array(bias.quantization.scales) / units).astype(np.float32))
    limits = np.iinfo(np.int32)
    axis = None if weights.quantization.axis is None else len(bias.dims) - 1
    per_unit = Quantization(tuple(units.tolist()), (0,) * len(units), axis)
    cut = work.constant(bias.name, np.clip(sums, limits.min, limits.max).astype(np.int32), per_unit)
    work.change(step, inputs=[x, weights, cut, *step.inputs[3:]])
    return True
