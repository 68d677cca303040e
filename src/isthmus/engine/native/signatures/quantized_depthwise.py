"""Signatures of the kernels in `kernels.quantized_depthwise`."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.signatures.quantized_binary import RESULT
from isthmus.engine.native.signatures.rounding import UP, with_ties
from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Signature, WorkSpace, Write

_MAX = 1 << 31
# The largest number of results of a row that a tile computes.
_MAX_OUTPUTS = 4


def block_kinds(lanes: int) -> tuple[int, ...]:
    """Return the number of channels in a block of each kind, for vectors of this many lanes, the widest first.

    One more kind, with the next number, is for fewer channels than the narrowest has.
    """
    return tuple(4 * n for n in (16, 8, 4) if n <= lanes)


def _inside(blocks: Any, channels: int, lanes: int) -> bool:
    """Return whether the kind of each block exists and the block is within the channels.

    A row of `blocks` is the first channel, the kind and the offset of the weights.
    """
    widths = np.array([*block_kinds(lanes), 1])
    start, kind = blocks.entries[:, 0], blocks.entries[:, 1]
    if kind.min() < 0 or kind.max() >= len(widths) or start.min() < 0:
        return False
    return bool((start <= channels - widths[kind]).all())


def _widest(blocks: Any, lanes: int) -> int:
    """Return the number of channels in the widest block."""
    widths = block_kinds(lanes)
    return widths[min(int(blocks.entries[:, 1].min()), len(widths) - 1)]


def _weights(blocks: Any, steps: int, word_groups: int, lanes: int) -> tuple[int, int]:
    """Return the reach of the weights of blocks that have this many steps behind bias and scale.

    A step has four bytes for each channel; or part of a word, because words of 4-bit weights have several channels.
    """
    widths, channel_bytes = block_kinds(lanes), 8 + steps * 4 // word_groups
    kinds, offsets = blocks.entries[:, 1], blocks.entries[:, 2]
    used = set(kinds.tolist())
    ends = [int(offsets[kinds == kind].max()) + channel_bytes * (*widths, widths[-1])[kind] for kind in used]
    return min(0, blocks.least[2]), max(ends)


CONVOLVE = Signature(
    "quantized_depthwise:convolve",
    (
        ReadOperand("x", "batch * height * width * channels"),
        Write("y", "batch * out_height * out_width * channels"),
        # For each block: bias i32, scale f32, then for each of the rows together, for each step, four bytes per
        # channel.
        ReadOperand("weights", "weights_of(blocks, together * steps, word_groups, lanes)"),
        # For each block of channels: its first channel, its kind (see `block_kinds`), the offset of its weights.
        OffsetTable("blocks", "block_count", columns=3),
        # For each step, the column of its groups.
        OffsetTable("offsets", "steps"),
        # Bytes that mean 0.
        ReadOperand("blank", "4 * lanes"),
        # Groups: adjacent bytes of one channel and column from several rows.
        WorkSpace("work", "shares * work_bytes"),
        Number("work_bytes"),
        Number("batch", 1),
        *Number.each("height width channels out_height out_width", 1, _MAX),
        # Output rows that share groups, groups above each other, input rows under those output rows.
        *Number.each("together row_groups needed_rows stride_h stride_w dilation_h", 1, _MAX),
        *Number.each("top left", -_MAX, _MAX),
        # Input columns under a result.
        Number("span", 1, _MAX),
        # Results of a row computed together, columns of work space for a row of groups, dot products for a result.
        *Number.each("segment pitch", 1, _MAX),
        *Number.each("steps block_count", 1),
        # Flips the sign bit of input bytes if it is 128.
        Number("input_flip", 0, 128),
        *RESULT,
    ),
    # Words of 4-bit weights have several of the four vectors of channels that a step multiplies.
    variants=with_ties(
        {"": {"word_groups": 1}, "nibbles_bytes": {"word_groups": 2}, "nibbles_pairs": {"word_groups": 4}}, UP
    ),
    where={
        "segment_width": "min(segment, out_width)",
        "results": f"padded(segment_width, {_MAX_OUTPUTS}) if segment_width > 1 else 1",
        "column_bytes": "4 * widest(blocks, lanes)",
    },
    rules=(
        "inside(blocks, channels, lanes)",
        "offsets.least >= 0",
        "work_bytes >= ((row_groups - 1) * pitch + (segment_width - 1) * stride_w + span) * column_bytes",
        "work_bytes >= ((results - 1) * stride_w + offsets.most + 1) * column_bytes",
    ),
    functions={"inside": _inside, "weights_of": _weights, "widest": _widest},
)
