"""Padding fusion: zeros that a Pad adds around an image become the padding of the convolution or pooling after it."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.ops import having
from isthmus.graph.ops.movement import CONSTANT
from isthmus.graph.traits import ProductKind
from isthmus.prepare.passes.activation import limits
from isthmus.prepare.rewrite import rewrite, table
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_CONVOLUTIONS = having(lambda operation: operation.traits.product in (ProductKind.CONVOLUTION, ProductKind.DEPTH_WISE))


def fuse_padding(work: Work) -> None:
    """Fuse Pads into the steps after them if the result stays the same."""
    rewrite(
        work,
        table(
            (_CONVOLUTIONS, _into_convolution),
            (("PoolAvg2d",), _into_average),
            (("PoolMax2d",), _into_maximum),
        ),
    )


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
    """Return the Pad that produces a tensor with one reader, and its amounts on the spatial axes.

    None if there is no such Pad, or it pads other axes too.
    """
    pad = work.sole_producer(tensor)
    if pad is None or not pads_zero(pad) or pad.inputs[0] is None:
        return None
    amounts = np.asarray(pad.params["pad_amount"])
    if amounts[0].any() or amounts[-1].any() or pad.inputs[0].quantization != pad.outputs[0].quantization:
        return None
    return pad, amounts[1:-1]


def _take(work: Work, step: Step, pad: Step, amounts: np.ndarray, params: dict[str, Any]) -> None:
    """Remove a Pad, and add its amounts to the padding of the step after it, whose other parameters may change too."""
    source = pad.inputs[0]
    before = np.asarray(step.params["pad_amount"])
    params["pad_amount"] = before + amounts.reshape(before.shape)
    work.remove(pad)
    work.change(step, inputs=[source, *step.inputs[1:]], params={**step.params, **params})


def _into_convolution(work: Work, step: Step) -> bool:
    """Fuse a Pad into a convolution, whose padding is zeros too."""
    pad_and_amounts = _spatial_pad(work, step.inputs[0])
    if pad_and_amounts is None:
        return False
    _take(work, step, *pad_and_amounts, {})
    return True


def _pool_allows(step: Step, amounts: np.ndarray) -> bool:
    """Return whether a pool can have this additional padding: less than a window, and windows only within it."""
    total = np.asarray(step.params["pad_amount"]) + amounts
    return step.params["rounding_mode"] == 0 and bool((total < np.asarray(step.params["filter_size"])[:, None]).all())


def _into_average(work: Work, step: Step) -> bool:
    """Fuse a Pad into an average pool. Its zeros count in the averages, so the pool must count all its padding."""
    pad_and_amounts = _spatial_pad(work, step.inputs[0])
    if pad_and_amounts is None or not _pool_allows(step, pad_and_amounts[1]):
        return False
    if np.any(step.params["pad_amount"]) and not step.params["count_pad_for_edges"]:
        return False
    _take(work, step, *pad_and_amounts, {"count_pad_for_edges": True})
    return True


def _into_maximum(work: Work, step: Step) -> bool:
    """Fuse a Pad into a maximum pool. The pool's own padding never wins; zeros do not matter if nothing is negative."""
    pad_and_amounts = _spatial_pad(work, step.inputs[0])
    if pad_and_amounts is None or not _pool_allows(step, pad_and_amounts[1]):
        return False
    before = work.producer(pad_and_amounts[0].inputs[0])
    known = None if before is None else before.clamp or limits(before)
    if known is None or known[0] < 0:
        return False
    _take(work, step, *pad_and_amounts, {})
    return True
