"""Fusion of padding and activations with convolutions, poolings and other steps.

Zeros that a Pad adds around an image become the padding of the convolution or pooling after it. A Relu, or another
limit to a range, becomes the clamp of the step before it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS, having
from isthmus.graph.ops.movement import CONSTANT
from isthmus.graph.traits import ProductKind
from isthmus.prepare.rewrite import is_fusible, number, rewrite
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_CONVOLUTIONS = having(lambda operation: operation.traits.product in (ProductKind.CONVOLUTION, ProductKind.DEPTH_WISE))
CLAMPED = having(lambda operation: operation.traits.takes_clamp)
"""Operations into which a limit can be fused."""
LIMITS = having(lambda operation: operation.traits.limits) | {"ReluMinMax", "ElementWiseMinimum", "ElementWiseMaximum"}
"""Operations that limit values to a range; for the last three the range is a parameter or an operand."""


def fuse_padding(work: Work) -> None:
    """Fuse Pads into the steps after them if the result stays the same."""
    rewrite(work, (_CONVOLUTIONS, _into_convolution), (("PoolAvg2d",), _into_average), (("PoolMax2d",), _into_maximum))


def pads_zero(step: Step) -> bool:
    """Return whether a Pad adds real zeros to its input, and the input's type can represent 0."""
    source = step.inputs[0]
    if step.op != "Pad" or step.params["scheme"] != CONSTANT or source is None or step.params["pad_constant_value"]:
        return False
    if source.quantization is None or not source.dtype.is_fixed_point:
        return True
    info = np.iinfo(source.dtype.numpy)
    return info.min <= source.quantization.zero_point <= info.max


def _spatial_pad(work: Work, tensor: Tensor | None) -> tuple[Step, np.ndarray] | None:
    """Return the Pad of only spatial axes that produces a tensor with one reader, and its amounts; None without one."""
    pad = work.sole_producer(tensor)
    if pad is None or not pads_zero(pad) or pad.inputs[0] is None:
        return None
    amounts = np.asarray(pad.params["pad_amount"])
    if amounts[0].any() or amounts[-1].any() or pad.inputs[0].quantization != pad.outputs[0].quantization:
        return None
    return pad, amounts[1:-1]


def _absorb_pad(work: Work, step: Step, pad: Step, amounts: np.ndarray, params: dict[str, Any]) -> None:
    """Remove a Pad, and add its amounts to the padding of the step after it, whose other parameters may change too."""
    source = pad.inputs[0]
    before = np.asarray(step.params["pad_amount"])
    params["pad_amount"] = before + amounts.reshape(before.shape)
    work.remove(pad)
    work.change(step, inputs=[source, *step.inputs[1:]], params={**step.params, **params})


def _into_convolution(work: Work, step: Step) -> None:
    """Fuse a Pad into a convolution, whose padding is zeros too."""
    pad_and_amounts = _spatial_pad(work, step.inputs[0])
    if pad_and_amounts is None:
        return
    _absorb_pad(work, step, *pad_and_amounts, {})


def _pool_allows(step: Step, amounts: np.ndarray) -> bool:
    """Return whether a pool can have this additional padding: less than a window, and windows only within it."""
    total = np.asarray(step.params["pad_amount"]) + amounts
    # Rounding mode 0 rounds the number of windows down.
    return step.params["rounding_mode"] == 0 and bool((total < np.asarray(step.params["filter_size"])[:, None]).all())


def _into_average(work: Work, step: Step) -> None:
    """Fuse a Pad into an average pool. Its zeros count in the averages, so the pool must count all its padding."""
    pad_and_amounts = _spatial_pad(work, step.inputs[0])
    if pad_and_amounts is None or not _pool_allows(step, pad_and_amounts[1]):
        return
    if np.any(step.params["pad_amount"]) and not step.params["count_pad_for_edges"]:
        return
    _absorb_pad(work, step, *pad_and_amounts, {"count_pad_for_edges": True})


def _into_maximum(work: Work, step: Step) -> None:
    """Fuse a Pad into a maximum pool. The pool's own padding never wins; zeros do not matter if nothing is negative."""
    pad_and_amounts = _spatial_pad(work, step.inputs[0])
    if pad_and_amounts is None or not _pool_allows(step, pad_and_amounts[1]):
        return
    before = work.producer(pad_and_amounts[0].inputs[0])
    range_before = None if before is None else before.clamp or limits(before)
    if range_before is None or range_before[0] < 0:
        return
    _absorb_pad(work, step, *pad_and_amounts, {})


def fuse_activations(work: Work) -> None:
    """Turn activations into clamps of the steps before them."""
    rewrite(work, (LIMITS, _fuse), (LIMITS, _redundant))


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


def _fuse(work: Work, step: Step) -> None:
    """Fuse a limit into the step before it, after the limit that is already fused there."""
    source, result = step.inputs[0], step.outputs[0]
    before = work.sole_producer(source)
    if source is None or before is None or before.op not in CLAMPED:
        return
    # With a different quantization, the fused result would be rounded once instead of twice: more accurate, but not the
    # same.
    if source.dtype is not result.dtype or source.quantization != result.quantization:
        return
    if not (is_fusible(source) or source.dtype.is_fixed_point):
        return
    span = limits(step)
    if span is None:
        return
    work.set_clamp(before, narrow(narrow(before.clamp, span), step.clamp or (-math.inf, math.inf)))
    work.absorb(before, step)


def _redundant(work: Work, step: Step) -> None:
    """Remove a limit that the values satisfy already."""
    source, result = step.inputs[0], step.outputs[0]
    before = work.producer(source)
    span = limits(step)
    if source is None or before is None or span is None or step.clamp is not None:
        return
    if source.dtype is not result.dtype or source.quantization != result.quantization:
        return
    range_before = before.clamp or limits(before)
    if range_before is None or range_before[0] < span[0] or range_before[1] > span[1] or source.dims != result.dims:
        return
    work.bypass(step)
