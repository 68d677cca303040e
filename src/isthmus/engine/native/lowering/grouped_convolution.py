"""Convolutions of floats in groups of which a vector holds several (see `kernels.grouped_convolution`)."""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.lowering.panels import limits
from isthmus.engine.native.signatures.grouped_convolution import ROWS
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.windows import ConvWindow, window_of
from isthmus.prepare.schedule import Step

# The bytes of input under a block of tiles that stay in the L1 cache while they are multiplied by a panel.
_L1_ROWS = 16 << 10
# The largest size of a thread's lists of addresses.
_LIST_BYTES = 32 << 10


def suits_groups(window: ConvWindow, target: Target) -> bool:
    """Return whether a vector holds several groups, each with as many filters as channels, and can be permuted."""
    group = window.channels // window.groups
    fills = window.groups > 1 and window.channels == window.filters >= target.lanes
    return fills and 1 < group < target.lanes and target.lanes % group == 0 and target.vector_bytes >= 32


def _block(window: ConvWindow, target: Target) -> int:
    """Return for how many tiles addresses are listed at a time."""
    row_bytes, taps = target.vector_bytes * prod(window.stride), prod(window.kernel)
    fitting = min(_L1_ROWS // (ROWS * row_bytes), _LIST_BYTES // ((taps + 1) * ROWS * 8))
    return min(max(1, fitting), -(-window.pixels // ROWS))


def grouped_work(window: ConvWindow, target: Target) -> int:
    """Return a thread's work space."""
    return -(-_block(window, target) * (prod(window.kernel) + 1) * ROWS * 8 // 64) * 64


def emit_grouped(step: Step, e: Emitter, bias: np.ndarray | None) -> None:
    """Emit the convolution that a step computes."""
    window, weights = window_of(step), operand(step, 1).data
    assert weights is not None
    lanes, channels = e.target.lanes, window.channels
    flat = weights.reshape(-1, channels).astype(np.float32)
    front = np.zeros(channels, np.float32) if bias is None else bias.astype(np.float32)
    rows = np.concatenate([front[None], flat])
    firsts = [min(first, channels - lanes) for first in range(0, channels, lanes)]
    least, most = limits(step.clamp)
    e.emit(
        "grouped_convolution:convolve", x=e.at(step.inputs[0]),
        panels=e.constant(np.stack([rows[:, first : first + lanes] for first in firsts])), result=e.at(step.outputs[0]),
        zeros=e.constant(np.zeros(channels, np.float32)), work=e.work(), work_bytes=grouped_work(window, e.target),
        tile_block=_block(window, e.target), batches=window.batches, size=window.size, out=window.out,
        kernel=window.kernel, stride=window.stride, dilation=window.dilation, pad=window.pad, channels=channels,
        group=channels // window.groups, least=least, most=most,
    )  # fmt: skip
