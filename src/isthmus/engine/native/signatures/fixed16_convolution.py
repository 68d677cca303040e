"""Signatures of the kernels in `kernels.fixed16_convolution`."""

from __future__ import annotations

from isthmus.engine.native.signatures.quantized_convolution import CONVOLVE as CONVOLVE_BYTES
from isthmus.engine.native.signatures.quantized_convolution import TILES
from isthmus.engine.native.words import Number, ReadOperand, Signature, Word, Write

DEPTHWISE_ROWS = 4
"""The results of a row that a depthwise tile computes."""
HEAD_BYTES = {"w8": 20, "w16": 24}
"""The bytes at the beginning of a panel for each column, by the width of weights."""
GROUP_BYTES = {"w8": 2, "w16": 4}
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
    """Return the numbers of a panel's layout for weights of a width, ``w8`` or ``w16``."""
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
SIGNATURES = (CONVOLVE, CONVOLVE_DEPTHWISE)
