"""How long a step takes on one thread, roughly: enough to tell what is worth sharing between threads."""

from __future__ import annotations

import math

from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import Product
from isthmus.prepare.schedule import Step

WORTH_SHARING = 8_000.0
"""Nanoseconds below which handing out shares costs more than it saves."""

_PRODUCTS_PER_NANOSECOND = 25.0
_BYTES_PER_NANOSECOND = 8.0


_FLOATS = 55.0, 50.0
_FIXED_POINT = 150.0, 20.0
"""Products and bytes in a nanosecond on a machine with wide vectors, for what is compared with the time of a model."""
_A_STEP = 60.0


def products(step: Step) -> int:
    """How many products a step forms; 0 where it is not linear."""
    if len(step.inputs) < 2 or step.inputs[0] is None or step.inputs[1] is None:
        return 0
    x, weights, result = step.inputs[0], step.inputs[1], step.outputs[0]
    traits = OPERATIONS[step.op].traits
    if traits.product in (Product.CONVOLUTION, Product.DEPTH_WISE):
        return result.elements * math.prod(weights.dims[:-1])
    if traits.product is Product.TRANSPOSED:
        return x.elements * weights.elements // max(weights.dims[-2], 1)
    if traits.product is Product.ROWS:
        return result.elements * weights.dims[-1]
    if traits.product in (Product.MATRIX, Product.INTEGERS):
        return result.elements * x.dims[-2 if step.params.get("transpose_in0") else -1]
    if traits.gates:
        hidden = weights.dims[0]
        return traits.gates * math.prod(x.dims[:-1]) * hidden * (hidden + x.dims[-1])
    return 0


def nanoseconds(step: Step) -> float:
    """The estimated time of a step."""
    nbytes = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None)
    return products(step) / _PRODUCTS_PER_NANOSECOND + nbytes / _BYTES_PER_NANOSECOND


def pieces(step: Step) -> float:
    """Into how many equal pieces a step may be cut that are each worth sharing between threads."""
    return nanoseconds(step) / WORTH_SHARING


def estimated(step: Step) -> float:
    """The time of a step in nanoseconds, near enough to weigh what strips cost against it."""
    source = step.inputs[0] if step.inputs else None
    multiplied, moved = _FIXED_POINT if source is not None and source.dtype.is_fixed_point else _FLOATS
    nbytes = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None)
    return products(step) / multiplied + nbytes / moved + _A_STEP
