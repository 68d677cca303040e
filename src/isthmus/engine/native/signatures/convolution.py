"""Signatures of the kernels in `kernels.convolution`. Lists of three are depth, height and width."""

from __future__ import annotations

from isthmus.engine.native.signatures.matmul import BLOCK, PANEL_BYTES, TILES
from isthmus.engine.native.words import Number, Numbers, ReadOperand, Real, Signature, WorkSpace, Write, flag

_MAX = 1 << 31


def _crossing(size: int, out: int, kernel: int, stride: int, dilation: int, pad: int) -> int:
    """Return how many window positions along an axis are partly or wholly outside the input."""
    first = max(0, -(-pad // stride))
    last = (size - 1 - (kernel - 1) * dilation + pad) // stride
    return out - max(0, min(last, out - 1) - first + 1)


INDIRECT = Signature(
    "convolution:indirect",
    (
        ReadOperand("x", "reach([batches, *size, groups], [*x_strides, x_group], channels * item)"),
        ReadOperand("panels", "(groups - 1) * panel_group + ceil(columns, width) * each_panel"),
        Write("result", "goal"),
        ReadOperand("zeros", "run * item"),
        # Lists of addresses, then copies of windows that cross an edge, then windows converted from 16 bits.
        WorkSpace("work", "shares * work_bytes"),
        Number("work_bytes"),
        *Number.each("tile_block batches", 1),
        *Numbers.each("size out kernel stride dilation", 3, 1, _MAX),
        Numbers("pad", 3, -_MAX, _MAX),
        Number("pixel"),
        *Number.each("channels groups", 1),
        *Number.each("x_group panel_group y_group"),
        Number("columns", 1),
        Numbers("y_strides", 4),
        flag("whole_rows"),
        Number("tap_block", 1),
        BLOCK,
        # Where the lists, copies and windows end in the work space of a thread, and 4-bit weights as floats begin.
        Number("floats"),
        *Real.each("least most"),
    ),
    variants=TILES,
    where={
        "width": "vectors * lanes",
        "x_strides": "[product(size) * pixel, size[1] * size[2] * pixel, size[2] * pixel, pixel]",
        "goal": "reach([batches, *out, groups], [*y_strides, y_group], columns * item)",
        "taps": "kernel[0] * kernel[1] * (1 if whole_rows else kernel[2])",
        "run": "channels * (kernel[2] if whole_rows else 1)",
        "block_pixels": "tile_block * height",
        "crossed": "crossing(size[2], out[2], kernel[2], stride[2], dilation[2], pad[2]) if whole_rows else 0",
        "staged": "block_pixels * (taps * run * 4 + 8) + 64 if item < 4 else 0",
        "copies": "min(block_pixels, crossed * (max(block_pixels - 2, 0) // out[2] + 2))",
        "lists_bytes": "tile_block * (taps + 1) * height * 8 + copies * taps * run * item + staged",
        "depth": "taps * run",
        **PANEL_BYTES,
        "unpacked": "(padded(min(tap_block, taps) * run, 8) + 8) * width * 4 if nibbles else 0",
    },
    rules=(
        "floats >= lists_bytes",
        "work_bytes >= floats + unpacked",
        "block % 8 == 0",
        # Partial sums cannot wait in a result of 16 bits.
        "item == 4 or tap_block >= taps",
        # A run of memory is a row of the kernel only if its pixels are adjacent.
        "not whole_rows or (groups == 1 and dilation[2] == 1 and pixel == channels * item)",
        "goal[1] >= batches * product(out) * groups * columns * item",
    ),
    functions={"crossing": _crossing},
)
