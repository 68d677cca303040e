"""Activation fusion: a Relu, or another limit to a range, becomes the clamp of the step before it."""

from __future__ import annotations

import math

import numpy as np

from isthmus.graph.ops import OPERATIONS, having
from isthmus.prepare.match import is_fusible, number
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

CLAMPED = having(lambda operation: operation.traits.takes_clamp)
"""Operations into which a limit can be fused."""
LIMITS = having(lambda operation: operation.traits.limits) | {"ReluMinMax", "ElementWiseMinimum", "ElementWiseMaximum"}
"""Operations that limit values to a range; for the last three the range is a parameter or an operand."""


def fuse_activations(work: Work) -> None:
    """Turn activations into clamps of the steps before them."""
    rewrite(work, table((LIMITS, _fuse), (LIMITS, _redundant)))


def limits(step: Step) -> tuple[float, float] | None:
    """Return the range to which a step limits its input, if it does nothing else."""
    fixed = OPERATIONS[step.op].traits.limits
    if fixed is not None:
        return fixed
    if step.op == "ReluMinMax":
        return float(step.params["min_value"]), float(step.params["max_value"])
    source = step.inputs[0]
    if step.op not in LIMITS or source is None or source.dims != step.outputs[0].dims:
        return None
    bound = number(step.inputs[1])
    if bound is None or math.isnan(bound):
        return None
    return (-math.inf, bound) if step.op == "ElementWiseMinimum" else (bound, math.inf)


def narrow(first: tuple[float, float] | None, then: tuple[float, float]) -> tuple[float, float]:
    """Return the range equivalent to limiting to `first` and then to `then`."""
    if first is None:
        return then
    low, high = np.clip(first, *then)
    return float(low), float(high)


def _fuse(work: Work, step: Step) -> bool:
    """Fuse a limit into the step before it, after the limit that is already fused there."""
    source, result = step.inputs[0], step.outputs[0]
    before = work.sole_producer(source)
    if source is None or before is None or before.op not in CLAMPED:
        return False
    # With a different quantization, the fused result would be rounded once instead of twice: more accurate, but not the
    # same.
    if source.dtype is not result.dtype or source.quantization != result.quantization:
        return False
    if not (is_fusible(source) or source.dtype.is_fixed_point):
        return False
    span = limits(step)
    if span is None:
        return False
    work.set_clamp(before, narrow(narrow(before.clamp, span), step.clamp or (-math.inf, math.inf)))
    work.absorb(before, step)
    return True


def _redundant(work: Work, step: Step) -> bool:
    """Remove a limit that the values satisfy already."""
    source, result = step.inputs[0], step.outputs[0]
    before = work.producer(source)
    span = limits(step)
    if source is None or before is None or span is None or step.clamp is not None:
        return False
    if source.dtype is not result.dtype or source.quantization != result.quantization:
        return False
    known = before.clamp or limits(before)
    if known is None or known[0] < span[0] or known[1] > span[1] or source.dims != result.dims:
        return False
    return work.bypass(step)
