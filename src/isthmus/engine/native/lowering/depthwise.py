"""Depth-wise convolutions of floats with one filter for each channel: their kernel's operands and packed weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.lowering.emitter import Effort, Emitter
from isthmus.engine.native.lowering.panels import form_ending, limits
from isthmus.engine.native.program import Operand
from isthmus.engine.native.signatures.depthwise import SPECIAL, TILES
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.target import Target
from isthmus.prepare.geometry.windows import ConvWindow

TILE = TILES[0]
"""The number of neighbouring outputs computed together; they share the input columns under their windows."""

# The time of an output in a short tile and by itself, relative to an output in a whole tile.
_SHORT_TILE, _A_SINGLE_ONE = 1.5, 2.7


@dataclass(frozen=True)
class Axis:
    """One spatial axis of the window, with the words that the kernel has for it.

    Parameters
    ----------
    size, out, kernel
        The number of elements along it in the input, in the output and in the window.
    pad
        The number of zeros before the input.
    step, out_step, weight_step
        The bytes between neighbouring elements of the input, the output and the weights.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    step: int
    out_step: int
    weight_step: int


def is_depth_wise(window: ConvWindow) -> bool:
    """Return whether the kernel supports the window: one filter per channel, at most two axes."""
    planar = window.size[0] == window.out[0] == window.kernel[0] == 1 and window.pad[0] == 0
    return planar and window.channels > 1 and window.groups == window.channels == window.filters


def _axes(window: ConvWindow, target: Target, size: int = 4) -> tuple[Axis, Axis]:
    """Return the outer axis, and the inner one, along which a tile's outputs are neighbours (see `_is_upright`)."""
    # Elements of inputs, outputs and weights have `size` bytes.
    pixel, padded = window.channels * size, -(-window.channels // target.lanes) * target.lanes * size
    # For height and width: `step`, `out_step` and `weight_step`.
    steps = {1: (window.size[2] * pixel, window.out[2] * pixel, window.kernel[2] * padded), 2: (pixel, pixel, padded)}
    height, width = (
        Axis(
            window.size[i], window.out[i], window.kernel[i], window.stride[i], window.dilation[i], window.pad[i],
            *steps[i],
        )
        for i in (1, 2)
    )  # fmt: skip
    return (width, height) if _is_upright(window) else (height, width)


def _is_upright(window: ConvWindow) -> bool:
    """Return whether tiles run along the height: if rows are too short, or windows overlap only vertically."""
    _, rows, columns = window.whole or window.out
    return rows >= TILE and (columns < TILE or (window.kernel[2] == 1 and window.kernel[1] > 1))


def _variant(axis: Axis, part_of_image: bool) -> str:
    """Return the kernel's variant for the axis that tiles run along, with the largest tile that fits."""
    # Some kernel widths and strides have a variant of their own.
    special = axis.dilation == 1 and (axis.kernel, axis.stride) in SPECIAL
    # Short tiles are for narrow parts of large images. A whole image that is this narrow is small, so they do not pay.
    for tile in TILES if part_of_image else TILES[:1]:
        if special and axis.out >= tile:
            return f"{tile}x{axis.kernel}s{axis.stride}"
    return f"{TILE if axis.out >= TILE else 1}"


def _list_bytes(window: ConvWindow, target: Target) -> int:
    """Return the size of a thread's list of addresses: those of the inputs of a tile, for each kernel row."""
    outer, inner = _axes(window, target)
    return -(-outer.kernel * (inner.kernel * TILE + TILE) * 8 // 64) * 64


def depth_wise_work(window: ConvWindow, target: Target, threads: int) -> int:
    """Return the size of the work space in bytes."""
    return _list_bytes(window, target) * threads


def depth_wise_effort(window: ConvWindow, along_width: bool) -> Effort | None:
    """Return the cost of a fused region's tiles, which divide the width if `along_width`, else the height.

    It is None (in proportion to rows) unless the kernel's tiles run along that axis.
    """
    if _is_upright(window) == along_width:
        return None

    def effort(outs: np.ndarray) -> np.ndarray:
        short = np.where(outs < TILES[-1], _A_SINGLE_ONE * outs, _SHORT_TILE * (outs + outs % TILES[-1]))
        return np.where(outs < TILE, short, -(-outs // TILE) * TILE)

    return effort


def emit_depth_wise(
    e: Emitter, window: ConvWindow, weights: np.ndarray, bias: np.ndarray | None, source: Operand, result: Operand,
    clamp: tuple[float, float] | None, kind: str,
) -> None:  # fmt: skip
    """Emit the convolution of elements of a kind: f32, f16 or bf16.

    The bias, as float32, comes before the weights, and channels are padded to whole vectors.
    """
    channels, lanes, size = window.channels, e.target.lanes, SIZES[kind]
    padded = -(-channels // lanes) * lanes
    first_row = np.zeros(padded, np.float32)
    rows = np.zeros((window.kernel[1] * window.kernel[2], padded), weights.dtype)
    rows[:, :channels] = weights.reshape(-1, channels)
    if bias is not None:
        first_row[:channels] = bias
    outer, inner = _axes(window, e.target, size)
    least, most = limits(clamp)
    variant = _variant(inner, window.whole is not None)
    axes = {f"{axis}_{name}": n for axis, of in (("outer", outer), ("inner", inner)) for name, n in vars(of).items()}
    e.emit(
        f"depthwise:convolve.{variant}{form_ending(kind)}", x=source, result=result, work=e.work(),
        weights=e.constant(np.concatenate([part.reshape(-1).view(np.uint8) for part in (first_row, rows)])),
        zeros=e.constant(np.zeros(padded * size, np.uint8)), work_bytes=_list_bytes(window, e.target),
        batches=window.batches, channels=channels, x_batch=window.size[1] * window.size[2] * channels * size,
        y_batch=window.out[1] * window.out[2] * channels * size, least=least, most=most, **axes,
    )  # fmt: skip
