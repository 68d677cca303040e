"""Signature of the kernel in `kernels.grouped_convolution`. Lists of three are depth, height and width."""

from __future__ import annotations

from isthmus.engine.native.words import Number, Numbers, ReadOperand, Real, Signature, WorkSpace, Write

_MAX = 1 << 31
ROWS = 10
"""The results of a tile, each a vector of some groups."""
CONVOLVE = Signature(
    "grouped_convolution:convolve",
    (
        ReadOperand("x", "batches * product(size) * channels * 4"),
        ReadOperand("panels", "ceil(channels, lanes) * (taps * group + 1) * lanes * 4"),
        Write("result", "batches * product(out) * channels * 4"),
        ReadOperand("zeros", "channels * 4"),
        # Lists of addresses.
        WorkSpace("work", "shares * work_bytes"),
        Number("work_bytes"),
        *Number.each("tile_block batches", 1),
        *Numbers.each("size out kernel stride dilation", 3, 1, _MAX),
        Numbers("pad", 3, -_MAX, _MAX),
        # Channels of the input, which has as many as the result, and of a group.
        *Number.each("channels group", 1, _MAX),
        *Real.each("least most"),
    ),
    where={"taps": "product(kernel)"},
    rules=(
        f"work_bytes >= tile_block * (taps + 1) * {8 * ROWS}",
        # A vector has whole groups, and the last one of a pixel is moved back into it.
        "lanes % group == 0",
        "channels % group == 0",
        "channels >= lanes",
    ),
)
