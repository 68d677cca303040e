"""Rough estimates of a step's time on one thread, for deciding which steps to share between threads."""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import ProductKind
from isthmus.prepare.schedule import Step

WORTH_SHARING = 8_000.0
"""The time in nanoseconds below which distributing shares costs more than it saves."""
WORTH_SHARING_OF_TILES = 50.0
"""The time in nanoseconds that several threads must save with an instruction of a tile. Distributing the instruction
costs more than that, but the instructions before and after it are shared: one thread alone would have to fetch the
bytes that others wrote.
"""
SHARING = 1_200.0
"""The time in nanoseconds that an instruction of a tile loses when it is shared: shares are distributed, the last one
is waited for, results are in the caches of the threads that wrote them, and the next instruction divides the bytes
differently.
"""

_PRODUCTS_PER_NANOSECOND = 25.0
# The rates of the rough estimate, `nanoseconds`, for all steps.
_BYTES_PER_NANOSECOND = 8.0


@dataclass(frozen=True)
class _Rates:
    """The products and bytes that a kind of step processes per nanosecond on a machine with wide vectors."""

    products: float
    bytes: float


# Rates measured over the steps of about twenty models, for estimates that are compared with a model's time.
_FLOATS, _FIXED_POINT = (
    {"product": _Rates(55, 170), "depth-wise": _Rates(56, 90), "elements": _Rates(55, 120), "other": _Rates(55, 50),
     "rows": _Rates(55, 25)},
    {"product": _Rates(220, 23), "depth-wise": _Rates(72, 34), "elements": _Rates(220, 33), "other": _Rates(220, 33),
     "rows": _Rates(220, 10)},
)  # fmt: skip
# Operations that have the rates of "rows": they take longest for each byte.
_BY_ROWS = frozenset(
    ("Softmax", "LogSoftmax", "LayerNorm", "RmsNorm", "InstanceNorm", "GroupNorm", "Resize", "ResizeBilinear",
     "ResizeNearestNeighbor")
)  # fmt: skip
# The number of 32-bit lanes of a vector on the machine where the rates were measured.
_LANES = 16
# The time of a step besides its products and bytes.
_STEP_NANOSECONDS = 60.0


def products(step: Step) -> int:
    """Return the number of multiplications of a step; 0 if it is not linear."""
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
        # Each gate of a recurrent layer multiplies the input and the hidden state of every step.
        hidden = weights.dims[0]
        return traits.gates * math.prod(x.dims[:-1]) * hidden * (hidden + x.dims[-1])
    return 0


def nanoseconds(step: Step) -> float:
    """Return a rough estimate of a step's time in nanoseconds, for deciding whether threads share a whole step."""
    nbytes = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None)
    return products(step) / _PRODUCTS_PER_NANOSECOND + nbytes / _BYTES_PER_NANOSECOND


def is_shared(step: Step) -> bool:
    """Return whether threads share a step that is computed whole."""
    return nanoseconds(step) > WORTH_SHARING


def is_worth_sharing(step: Step, threads: int) -> bool:
    """Return whether threads share a step of a tile when tiles are not pipelined."""
    return step_nanoseconds(step) * (1 - 1 / threads) > WORTH_SHARING_OF_TILES


def step_nanoseconds(step: Step) -> float:
    """Return a step's estimated time in nanoseconds, accurate enough for weighing the cost of tiling."""
    source, traits = step.inputs[0] if step.inputs else None, OPERATIONS[step.op].traits
    rates = _FIXED_POINT if source is not None and source.dtype.is_fixed_point else _FLOATS
    multiplications = float(products(step))
    if multiplications:
        # Vectors hold neighbouring results. The unused lanes of a last vector take as long as the others.
        columns = max(step.outputs[0].dims[-1], 1)
        multiplications *= -(-columns // _LANES) * _LANES / columns
    if traits.product is ProductKind.DEPTH_WISE:
        rate = rates["depth-wise"]
    elif multiplications:
        rate = rates["product"]
    elif traits.element_wise:
        rate = rates["elements"]
    else:
        rate = rates["rows" if step.op in _BY_ROWS else "other"]
    nbytes = sum(t.nbytes for t in (*step.inputs, *step.outputs) if t is not None)
    return multiplications / rate.products + nbytes / rate.bytes + _STEP_NANOSECONDS
