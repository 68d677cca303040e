"""Signatures of the kernels in `kernels.quantized_convolution`."""

from __future__ import annotations

from isthmus.engine.native.signatures.quantized_binary import RESULT
from isthmus.engine.native.signatures.rounding import UP, with_ties
from isthmus.engine.native.words import (
    Number,
    OffsetTable,
    ReadOperand,
    Real,
    Signature,
    Word,
    WorkSpace,
    Write,
    flag,
    signed,
)

_MAX = 1 << 31
TILES = {
    f"{rows}x{vectors}": {"tile_rows": rows, "vectors": vectors}
    for rows, vectors in ((1, 4), (8, 3), (7, 3), (14, 2), (5, 2), (10, 1))
}
"""The tiles (rows by vectors of results) that have kernels."""
NIBBLE_TILES = {
    f"{rows}x{vectors}_{name}{'_factors' if factors else ''}": {
        "tile_rows": rows, "vectors": vectors, "word_groups": groups, "factor_bytes": factors
    }
    for rows, vectors in ((1, 4), (8, 3), (7, 3), (14, 2), (5, 2), (10, 1))
    for name, groups in (("bytes", 2), ("pairs", 4))
    for factors in (0, 1)
}  # fmt: skip
"""The tiles for 4-bit weights, with the form of the weights: groups in a word, and bytes of factors for each tap."""


def _words(size: int) -> tuple[Word, ...]:
    """Return the words from the input to the padding, for results of `size` bytes."""
    return (
        ReadOperand("x", "staged_input if staged else input_in_place"),
        Write("y", f"(rows * out_width - 1) * out_pixel + columns * {size}"),
        ReadOperand(
            "weights", "(panels - 1) * panel_bytes + padded(columns - (panels - 1) * width, lanes) * column_bytes"
        ),
        # The offset of each tap, in bytes from the first.
        OffsetTable("offsets", "taps"),
        # Input rows, converted to the form that is multiplied.
        WorkSpace("work", "shares * work_bytes if staged else 0"),
        Number("work_bytes"),
        # Image rows of results, over all images.
        Number("rows", 1),
        Number("height", 1, _MAX),
        Number("width_in", 1, _MAX),
        # Bytes between neighbouring pixels, and channels of this group.
        *Number.each("pixel channels out_height out_width out_pixel columns kernel_h", 1, _MAX),
        # Input columns under a result.
        *Number.each("span stride_h stride_w dilation_h", 1, _MAX),
        signed("top", _MAX),
        signed("left", _MAX),
        # Taps, and groups of four bytes in each.
        *Number.each("taps groups panel_bytes", 1),
        # Results computed together.
        Number("segment", 1, _MAX),
        # 0 to read in place, else how rows are copied: 1 unchanged, 2 with the sign bit flipped, 3 and 4 widened from
        # signed and unsigned bytes minus `input_zero`.
        Number("staged", 0, 4),
        # Bytes between copied rows, and between the taps of neighbouring results.
        Number("pitch"),
        Number("distance"),
    )


_BYTES, _NIBBLES = "4 * taps * groups", "taps * (4 * groups // word_groups + factor_bytes)"
"""The bytes of weights in each column of a panel."""


def _where(head: int, weights: str = _BYTES) -> dict[str, str]:
    """Return the expressions that extents and rules of these signatures use by name (see `Signature.where`).

    `head` is the number of bytes before the weights of each column of a panel: its bias, its scale and what else the
    kernel needs for a column. `weights` is the expression for the bytes of weights in a column.
    """
    return {
        # The columns of a panel, the number of panels, and the bytes of a column.
        "width": "vectors * lanes",
        "panels": "ceil(columns, width)",
        "column_bytes": f"{head} + {weights}",
        "images": "ceil(rows, out_height)",
        # The bytes of the input, if rows are copied before use.
        "staged_input": "(images * height * width_in - 1) * pixel + channels",
        # The range of input bytes that the first taps of all windows cover.
        "windows": "reach([images, out_height, out_width], [height * width_in * pixel, stride_h * width_in * pixel,"
        " distance], groups * 4)",
        # The bytes from the first pixel back to the first window, which begins in the padding.
        "origin": "(top * width_in + left) * pixel",
        # The range of input bytes, relative to the first pixel, if the input is read in place.
        "input_in_place": "min(0, offsets.least - origin), windows[1] + offsets.most - origin",
        # The results of a segment, and the bytes of input in a copied row under them.
        "together": "min(segment, out_width)",
        "row_bytes": "((together - 1) * stride_w + span) * channels * (2 if staged >= 3 else 1)",
    }


_RULES = (
    "panel_bytes == width * column_bytes",
    "rows * out_width * columns <= (rows * out_width - 1) * out_pixel + columns",
    "not staged or (pitch >= row_bytes and work_bytes >= (kernel_h - 1) * pitch + row_bytes)",
    "not staged or work_bytes >= (padded(together, tile_rows) - 1) * distance + offsets.most + groups * 4",
    "not staged or offsets.least >= 0",
    "staged or distance == stride_w * pixel",
    # Without work space, the last tile of a segment is moved back into the row.
    "staged or (segment >= tile_rows and out_width >= tile_rows)",
)

_TO_BYTES = (
    *_words(1),
    # The byte that means 0, and the zero point of the input.
    Number("padding", 0, 255),
    signed("input_zero", _MAX),
    *RESULT,
    # Whether threads should divide columns.
    flag("few_rows"),
)
_TO_FLOATS = (
    *_words(4),
    # Whether there is padding.
    flag("padding"),
    signed("input_zero", _MAX),
    Number("zero", 0, 0),
    Real("least"),
    Real("most"),
    Number("flip", 0, 0),
    flag("few_rows"),
    # Scale (f32) and origin (i32) of the quantized input, and the bytes between those of neighbouring images and of
    # neighbouring results.
    ReadOperand("scaling", "reach([images, out_width], [image_step, result_step], 8)"),
    Number("image_step", 0, _MAX),
    Number("result_step", 0, _MAX),
)
_WORDS_ARE_FULL = "groups % word_groups == 0"
CONVOLVE = Signature(
    "quantized_convolution:convolve", _TO_BYTES, variants=with_ties(TILES, UP), where=_where(8), rules=_RULES
)
CONVOLVE_TO_FLOAT = Signature(
    "quantized_convolution:convolve_to_float", _TO_FLOATS, variants=TILES, where=_where(12), rules=_RULES
)
CONVOLVE_NIBBLES = Signature(
    "quantized_convolution:convolve_nibbles", _TO_BYTES, variants=with_ties(NIBBLE_TILES, UP),
    where=_where(8, _NIBBLES), rules=(*_RULES, _WORDS_ARE_FULL),
)  # fmt: skip
CONVOLVE_NIBBLES_TO_FLOAT = Signature(
    "quantized_convolution:convolve_nibbles_to_float", _TO_FLOATS, variants=NIBBLE_TILES, where=_where(12, _NIBBLES),
    rules=(*_RULES, _WORDS_ARE_FULL),
)  # fmt: skip
SIGNATURES = (CONVOLVE, CONVOLVE_TO_FLOAT, CONVOLVE_NIBBLES, CONVOLVE_NIBBLES_TO_FLOAT)
