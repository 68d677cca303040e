"""Signatures of the kernels in `kernels.quantized_convolution`."""

from __future__ import annotations

from isthmus.engine.native.signatures.quantized_binary import RESULT
from isthmus.engine.native.signatures.quantized_elementwise import RESULT as WIDE_RESULT
from isthmus.engine.native.signatures.quantized_elementwise import zero_and_flip
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
    f"{rows}x{vectors}": {"tile_rows": rows, "vectors": vectors, "word_groups": 1, "factor_bytes": 0}
    for rows, vectors in ((1, 4), (8, 3), (7, 3), (14, 2), (5, 2), (10, 1))
}
"""The tiles (rows by vectors of results) that have kernels."""
# The tile of a single row for 8-bit weights that are widened to 16 bits in registers.
_NARROW = {"1x4_narrow": TILES["1x4"] | {"word_groups": 2}}
# Besides, those for 4-bit weights, with their form: groups in a word, and bytes of factors for each tap.
_ALL_TILES = (
    TILES
    | _NARROW
    | {
        f"{tile}_nibbles_{name}{'_factors' * factors}": {**numbers, "word_groups": groups, "factor_bytes": factors}
        for tile, numbers in TILES.items()
        for name, groups in (("bytes", 2), ("pairs", 4))
        for factors in (0, 1)
    }
)


def _words(size: int, out_row: str = "out_width * out_pixel") -> tuple[Word, ...]:
    """Return the words from the input to the padding, for results of `size` bytes in rows that are this far apart."""
    return (
        ReadOperand("x", "staged_input if staged else input_in_place"),
        Write("y", f"(rows - 1) * {out_row} + (out_width - 1) * out_pixel + columns * {size}"),
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
        *Number.each("top left", -_MAX, _MAX),
        # Taps, and groups of four bytes in each.
        *Number.each("taps groups panel_bytes", 1),
        # Results computed together.
        Number("segment", 1, _MAX),
        # 0 to read in place, else how rows are copied: 1 unchanged, 2 with the sign bit flipped, 3 and 4 widened from
        # signed and unsigned bytes minus `input_zero`.
        Number("staged", 0, 4),
        # Bytes between copied rows, and between the taps of neighbouring results.
        *Number.each("pitch distance"),
    )


def _where(head: str, weights: str = "taps * (4 * groups // word_groups + factor_bytes)") -> dict[str, str]:
    """Return the expressions that extents and rules of these signatures use by name (see `Signature.where`).

    `head` is the number of bytes before the weights of each column of a panel: its bias, its scale and what else the
    kernel needs for a column. `weights` is the number of bytes of weights in a column.
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
    "not staged or (pitch >= row_bytes and work_bytes >= (kernel_h - 1) * pitch + row_bytes)",
    "not staged or work_bytes >= (padded(together, tile_rows) - 1) * distance + offsets.most + groups * 4",
    "not staged or offsets.least >= 0",
    "staged or distance == stride_w * pixel",
    # Without work space, the last tile of a segment is moved back into the row.
    "staged or (segment >= tile_rows and out_width >= tile_rows)",
)
_BYTE_RULES = (
    *_RULES,
    "rows * out_width * columns <= (rows * out_width - 1) * out_pixel + columns",
    "groups % word_groups == 0",
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
    *Real.each("least most"),
    Number("flip", 0, 0),
    flag("few_rows"),
    # Scale (f32) and origin (i32) of the quantized input, and the bytes between those of neighbouring images and of
    # neighbouring results.
    ReadOperand("scaling", "reach([images, out_width], [image_step, result_step], 8)"),
    *Number.each("image_step result_step", 0, _MAX),
)
CONVOLVE = Signature(
    "quantized_convolution:convolve",
    _TO_BYTES,
    variants=with_ties(_ALL_TILES, UP),
    where=_where("8"),
    rules=_BYTE_RULES,
)
GROUP_TILES = ("14x2", "10x1", "5x2")
"""The tiles for panels of several groups."""
CONVOLVE_GROUPS = Signature(
    "quantized_convolution:convolve_groups",
    (
        *_TO_BYTES,
        # Columns of a panel, which are those of some groups, and the bytes from the input of a panel to the next one's.
        *Number.each("panel_columns panel_input", 1, _MAX),
    ),
    variants=with_ties({tile: TILES[tile] for tile in GROUP_TILES}, UP),
    where={**_where("8"), "own": "padded(panel_columns, lanes)", "panels": "ceil(columns, panel_columns)"},
    rules=(
        *(rule for rule in _BYTE_RULES if not rule.startswith("panel_bytes")),
        "panel_bytes == own * column_bytes",
        "own <= width",
        "staged",
        "work_bytes >= (padded(together, tile_rows) - 1) * distance + offsets.most + groups * 4"
        " + (panels - 1) * panel_input",
    ),
)
BLOCK_ROWS, BLOCK_VECTORS = 32, 2
"""The results of a row and the vectors of columns of a block for matrix registers."""
CONVOLVE_BLOCKS = Signature(
    "quantized_convolution:convolve_blocks",
    (
        *_TO_BYTES,
        # Image rows whose results are computed as one row.
        Number("strip", 1, _MAX),
        # Bytes of a tap that are multiplied at a time.
        Number("depth", 4, 64),
    ),
    # The form of bytes, signed or unsigned.
    variants=with_ties(
        {
            form: {"tile_rows": BLOCK_ROWS, "vectors": BLOCK_VECTORS, "word_groups": 1, "factor_bytes": 0}
            for form in ("u8", "s8")
        },
        UP,
    ),
    where={
        **_where("8"),
        "in_strip": "min(strip, out_height)",
        "period": "pitch // max(distance, 1) if strip > 1 else together",
        # The results of a strip up to the last one that is stored.
        "in_row": "(in_strip - 1) * period + together",
    },
    rules=(
        *_BYTE_RULES,
        "depth % 4 == 0",
        "(4 * groups) % depth == 0",
        "strip == 1 or (staged and segment >= out_width and distance and pitch % distance == 0)",
        "period >= together",
        "not staged or work_bytes >= (kernel_h * strip - 1) * pitch + row_bytes",
        "not staged or work_bytes >= (padded(in_row, tile_rows) - 1) * distance + offsets.most + groups * 4",
    ),
)
CONVOLVE_TO_FLOAT = Signature(
    "quantized_convolution:convolve_to_float", _TO_FLOATS, variants=_ALL_TILES, where=_where("12"), rules=_BYTE_RULES
)

# -- 16 bits -----------------------------------------------------------------------------------------------------------

DEPTHWISE_ROWS = 4
"""The results of a row that a depthwise tile computes."""
HEAD_BYTES = {"w8": 20, "w16": 24, "w8i": 20}
"""The bytes at the beginning of a panel for each column, by the form of weights: 8 or 16 bits with scales in float64,
or 8 bits with scales as integers and shifts.
"""
GROUP_BYTES = {"w8": 2, "w16": 4, "w8i": 2}
"""The bytes of a column's two weights."""
_WIDE = (
    *_words(2, "out_row"),
    Number("padding", 0, 0xFFFF),
    *RESULT[:3],
    flag("few_rows"),
    # Bytes between rows of results.
    Number("out_row", 1),
    # Taps whose products are summed in 32 bits, and how many such blocks there are.
    *Number.each("block blocks", 1),
)
_WIDE_RULES = (
    *_RULES,
    "2 * columns <= out_pixel",
    "out_row >= (out_width - 1) * out_pixel + 2 * columns or rows == 1",
    "staged <= 2",
    "blocks == ceil(taps, block)",
)


def _bytes(width: str) -> dict[str, int]:
    """Return the numbers of a panel's layout for a form of weights."""
    return {"head_bytes": HEAD_BYTES[width], "group_bytes": GROUP_BYTES[width]}


CONVOLVE_WIDE = Signature(
    "quantized_convolution:convolve_wide",
    _WIDE,
    variants={f"{width}_{name}": {**tile, **_bytes(width)} for width in HEAD_BYTES for name, tile in TILES.items()},
    where=_where("head_bytes", "group_bytes * taps * groups"),
    rules=_WIDE_RULES,
)
CONVOLVE_WIDE_DEPTHWISE = Signature(
    "quantized_convolution:convolve_wide_depthwise",
    tuple(ReadOperand("weights", "panels * panel_bytes") if word.name == "weights" else word for word in _WIDE),
    variants={width: {"tile_rows": DEPTHWISE_ROWS, "vectors": 2, **_bytes(width)} for width in HEAD_BYTES},
    # Each tap here is one of a pair, and its weights are half a group.
    where=_where("head_bytes", "group_bytes * ceil(taps, 2)"),
    rules=(*_WIDE_RULES, "staged", "groups == 1", "taps % 2 == 0", "block % 2 == 0",
           "work_bytes >= (padded(together, tile_rows) - 1) * distance + offsets.most + 2 * padded(columns, width)"),
)  # fmt: skip
MULTIPLY_WIDE = Signature(
    "quantized_convolution:multiply_wide",
    (
        ReadOperand("left", "batches.least[0], batches.most[0] + left_bytes"),
        ReadOperand("right", "batches.least[1], batches.most[1] + right_bytes"),
        Write("y", "batch_count * rows * columns * 2"),
        # For each batch, the byte offsets of its matrices.
        OffsetTable("batches", "batch_count", columns=2),
        Number("batch_count", 1),
        *Number.each("rows depth columns", 1, _MAX),
        # Bytes from one row, and from one column, of a matrix to the next.
        *Number.each("left_row left_column right_row right_column", 0, _MAX),
        # Bytes of a number on the right.
        Number("right_size", 1, 2),
        # The bits to be flipped in stored numbers to make them signed, and the zero points of these.
        *zero_and_flip("left"),
        *zero_and_flip("right"),
        # A packed panel of the right matrix, then rows of the left one.
        WorkSpace("work", "shares * work_bytes"),
        Number("work_bytes"),
        # The offset of each chunk of the depth in a row, and the pairs of numbers in it.
        OffsetTable("offsets", "chunks"),
        Number("chunks", 1, _MAX),
        Number("groups", 1, 64),
        Real("scale"),
        *WIDE_RESULT,
    ),
    variants=TILES,
    where={
        "left_bytes": "(rows - 1) * left_row + (depth - 1) * left_column + 2",
        "right_bytes": "(depth - 1) * right_row + (columns - 1) * right_column + right_size",
        "width": "vectors * lanes",
        "pitch": "4 * chunks * groups",
        "panel": "width * (24 + pitch)",
    },
    rules=(
        "2 * chunks * groups >= depth",
        "max(batches.least) <= 0",
        "offsets.least >= 0",
        "offsets.most + 4 * groups <= pitch",
        "work_bytes >= panel + tile_rows * pitch",
    ),
)
