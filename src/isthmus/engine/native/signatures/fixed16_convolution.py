"""Signatures of the kernels in `kernels.fixed16_convolution`."""

from __future__ import annotations

from isthmus.engine.native.signatures.quantized_convolution import CONVOLVE as CONVOLVE_BYTES
from isthmus.engine.native.signatures.quantized_convolution import TILES
from isthmus.engine.native.signatures.quantized_elementwise import RESULT, stored
from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Real, Signature, Word, WorkSpace, Write

_MAX = 1 << 31
DEPTHWISE_ROWS = 4
"""The results of a row that a depthwise tile computes."""
HEAD_BYTES = {"w8": 20, "w16": 24, "w8i": 20}
"""The bytes at the beginning of a panel for each column, by the form of weights: 8 or 16 bits with scales in float64,
or 8 bits with scales as integers and shifts.
"""
GROUP_BYTES = {"w8": 2, "w16": 4, "w8i": 2}
"""The bytes of a column's two weights."""

_Y = "(rows - 1) * out_row + (out_width - 1) * out_pixel + 2 * columns"
_CHANGED: dict[str, Word] = {"y": Write("y", _Y), "padding": Number("padding", 0, 0xFFFF)}
_DROPPED = ("input_zero", "flip")
_WORDS: tuple[Word, ...] = (
    *(_CHANGED.get(word.name, word) for word in CONVOLVE_BYTES.words if word.name not in _DROPPED),
    # Bytes between rows of results.
    Number("out_row", 1),
    # Taps whose products are summed in 32 bits, and how many such blocks there are.
    Number("block", 1),
    Number("blocks", 1),
)
_RULES = (
    *(rule for rule in CONVOLVE_BYTES.rules if not rule.startswith("rows * out_width * columns")),
    "2 * columns <= out_pixel",
    "out_row >= (out_width - 1) * out_pixel + 2 * columns or rows == 1",
    "staged <= 2",
    "blocks == ceil(taps, block)",
)


def _bytes(width: str) -> dict[str, int]:
    """Return the numbers of a panel's layout for a form of weights."""
    return {"head_bytes": HEAD_BYTES[width], "group_bytes": GROUP_BYTES[width]}


CONVOLVE = Signature(
    "fixed16_convolution:convolve",
    _WORDS,
    variants={f"{width}_{name}": {**tile, **_bytes(width)} for width in HEAD_BYTES for name, tile in TILES.items()},
    where={**CONVOLVE_BYTES.where, "column_bytes": "head_bytes + group_bytes * taps * groups"},
    rules=_RULES,
)
CONVOLVE_DEPTHWISE = Signature(
    "fixed16_convolution:convolve_depthwise",
    tuple(ReadOperand("weights", "panels * panel_bytes") if word.name == "weights" else word for word in _WORDS),
    variants={width: {"tile_rows": DEPTHWISE_ROWS, "vectors": 2, **_bytes(width)} for width in HEAD_BYTES},
    # Each tap here is one of a pair, and its weights are half a group.
    where={**CONVOLVE_BYTES.where, "column_bytes": "head_bytes + group_bytes * ceil(taps, 2)"},
    rules=(*_RULES, "staged", "groups == 1", "taps % 2 == 0", "block % 2 == 0",
           "work_bytes >= (padded(together, tile_rows) - 1) * distance + offsets.most + 2 * padded(columns, width)"),
)  # fmt: skip
MULTIPLY = Signature(
    "fixed16_convolution:multiply",
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
        *stored("left"),
        *stored("right"),
        # A packed panel of the right matrix, then rows of the left one.
        WorkSpace("work", "shares * work_bytes"),
        Number("work_bytes"),
        # The offset of each chunk of the depth in a row, and the pairs of numbers in it.
        OffsetTable("offsets", "chunks"),
        Number("chunks", 1, _MAX),
        Number("groups", 1, 64),
        Real("scale"),
        *RESULT,
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
SIGNATURES = (CONVOLVE, CONVOLVE_DEPTHWISE, MULTIPLY)
