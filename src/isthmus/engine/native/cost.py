"""How long a step takes on one thread, roughly: enough to tell what is worth sharing between threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import ProductKind
from isthmus.prepare.schedule import Step

WORTH_SHARING = 8_000.0
"""Nanoseconds below which handing out shares costs more than it saves."""
WORTH_SHARING_OF_STRIPS = 50.0
"""Nanoseconds that several threads must save with an instruction of a strip. To hand it out takes more, but what comes
before it and after it is shared: one thread alone would have the other's bytes to fetch."""
SHARING = 1_200.0
"""Nanoseconds that an instruction of a strip loses when it is shared: its shares are handed out and the last is waited
for, what a thread has written lies in its cache, and the next instruction divides the bytes in another way."""

_PRODUCTS_PER_NANOSECOND = 25.0
_BYTES_PER_NANOSECOND = 8.0


@dataclass(frozen=True)
class _Rates:
    """What a kind of step does in a nanosecond on a machine with wide vectors."""

    products: float
    bytes: float


_FLOATS, _FIXED_POINT = (
    {"product": _Rates(55, 170), "depth-wise": _Rates(56, 90), "elements": _Rates(55, 120), "other": _Rates(55, 50),
     "rows": _Rates(55, 25)},
    {"product": _Rates(220, 23), "depth-wise": _Rates(72, 34), "elements": _Rates(220, 33), "other": _Rates(220, 33),
     "rows": _Rates(220, 10)},
)  # fmt: skip
"""Measured over the steps of some twenty models, for what is compared with the time of a model."""
_BY_ROWS = frozenset(
    ("Softmax", "LogSoftmax", "LayerNorm", "RmsNorm", "InstanceNorm", "GroupNorm", "Resize", "ResizeBilinear",
     "ResizeNearestNeighbor")
)  # fmt: skip
_LANES = 16
_A_STEP = 60.0


def products(step: Step) -> int:
    """How many products a step forms; 0 where it is not linear."""
    if len(step.inputs) < 2 or step.inputs[0] is None or step.inputs[1] is None:
        return 0
    x, weights, result = step.inputs[0], step.inputs[1], step.outputs[0]
    traits = OPERATIONS[step.op].traits
    if traits.product in (ProductKind.CONVOLUTION, ProductKind.DEPTH_WISE):
        return result.elements * math.prod(weights.dims[:-1])
    if traits.product is ProductKind.TRANSPOSED:
        return x.elements * weights.elements // max(weights.dims[-2], 1)
    if traits.product is ProductKind.ROWS:
        return result.elements * weights.dims[-1]
    if traits.product in (ProductKind.MATRIX, ProductKind.INTEGERS):
        return result.elements * x.dims[-2 if step.params.get("transpose_in0") else -1]
    if traits.gates:
        hidden = weights.dims[0]
        return traits.gates * math.prod(x.dims[:-1]) * hidden * (hidden + x.dims[-1])
    return 0


def nanoseconds(step: Step) -> float:
    """The estimated time of a step."""
    nbytes = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None)
    return products(step) / _PRODUCTS_PER_NANOSECOND + nbytes / _BYTES_PER_NANOSECOND


def is_shared(step: Step) -> bool:
    """Whether threads share a whole step."""
    return nanoseconds(step) > WORTH_SHARING


def is_worth_sharing(step: Step, threads: int) -> bool:
    """Whether threads share a step of a strip that they do not take by turns."""
    return estimated(step) * (1 - 1 / threads) > WORTH_SHARING_OF_STRIPS


def estimated(step: Step) -> float:
    """The time of a step in nanoseconds, near enough to weigh what strips cost against it."""
    source, traits = step.inputs[0] if step.inputs else None, OPERATIONS[step.op].traits
    rates = _FIXED_POINT if source is not None and source.dtype.is_fixed_point else _FLOATS
    formed = float(products(step))
    if formed:
        # Vectors hold results side by side; those of a last one that are not there take as long.
        columns = max(step.outputs[0].dims[-1], 1)
        formed *= -(-columns // _LANES) * _LANES / columns
    if traits.product is ProductKind.DEPTH_WISE:
        rate = rates["depth-wise"]
    elif formed:
        rate = rates["product"]
    elif traits.element_wise:
        rate = rates["elements"]
    else:
        rate = rates["rows" if step.op in _BY_ROWS else "other"]
    nbytes = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None)
    return formed / rate.products + nbytes / rate.bytes + _A_STEP
