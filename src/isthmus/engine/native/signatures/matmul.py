"""Signatures of the kernels in `kernels.matmul`. A panel holds `vectors` vectors of columns, with its bias in front."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Real, Signature, WorkSpace, Write

TILES = {
    f"{height}x{vectors}": {"height": height, "vectors": vectors, "item": 4}
    for height, vectors in ((8, 3), (10, 2), (10, 1), (6, 2), (6, 4), (8, 2), (4, 2), (8, 1))
}
"""The tiles (rows by vectors) that have kernels."""
PANELS = {str(vectors): {"vectors": vectors, "item": 4} for vectors in (1, 2, 3, 4)}
"""The widths of panels, in vectors."""


def halves(variants: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return the variants for elements of 16 bits, with the kind after an underscore: ``8x3_f16``."""
    return {f"{name}_{kind}": {**numbers, "item": 2} for name, numbers in variants.items() for kind in ("f16", "bf16")}


_WIDTH = {"width": "vectors * lanes", "panel_bytes": "ceil(columns, width) * (4 + depth * item) * width"}

_PRODUCT = (
    ReadOperand("a", "a_least, a_most + (rows - 1) * a_row + (depth - 1) * a_column + item"),
    ReadOperand("panels", "panels_least, panels_most + panel_bytes"),
    Write("c", "c_least, c_most + (rows - 1) * c_row + columns * item"),
    # For each batch, the byte offsets of a, its panels and c.
    OffsetTable("table", "batches", absent="batches == 1", columns=3),
    *Number.each("batches rows columns depth", 1),
    *Number.each("a_row a_column c_row"),
    Number("tile_block", 1),
    Number("depth_block", 1),
    Real("least"),
    Real("most"),
)
_OFFSETS = {
    "a_least, panels_least, c_least": "table.least if table else (0, 0, 0)",
    "a_most, panels_most, c_most": "table.most if table else (0, 0, 0)",
}

PACKED = Signature(
    "matmul:packed",
    _PRODUCT,
    variants=TILES,
    where={**_WIDTH, **_OFFSETS},
    rules=("c_row >= columns * item",),
)
VECTOR = Signature(
    "matmul:vector",
    _PRODUCT,
    variants=PANELS,
    where={**_WIDTH, **_OFFSETS},
    rules=("rows == 1",),
)
# Left rows of a block of tiles, or a part of 4-bit weights, in float32.
_WORK = (WorkSpace("work", "shares * work_bytes"), Number("work_bytes"))
PACKED_HALF = Signature(
    "matmul:packed_half",
    (*_PRODUCT, *_WORK),
    variants=halves(TILES),
    where={**_WIDTH, **_OFFSETS},
    rules=(
        "c_row >= columns * item",
        # Partial sums cannot wait in a result of 16 bits.
        "depth_block >= depth",
        "work_bytes >= min(tile_block, ceil(rows, height)) * height * depth * 4",
    ),
)
VECTOR_HALF = Signature(
    "matmul:vector_half",
    (*_PRODUCT, *_WORK),
    variants=halves(PANELS),
    where={**_WIDTH, **_OFFSETS},
    rules=("rows == 1", "work_bytes >= depth * 4"),
)
# 4-bit weights have words of eight steps of the depth, and a scale and a zero for each block of them.
NIBBLES = {
    "steps": "ceil(depth, 8)",
    "nibble_bytes": "width * (4 + ceil(steps, block // 8) * 5 + steps * 4)",
}
"""The size of a panel of 4-bit weights."""
BLOCK = Number("block", 8, 1 << 40)
_NIBBLE_PANELS = {"width": "vectors * lanes", **NIBBLES, "panel_bytes": "ceil(columns, width) * nibble_bytes"}
PACKED_NIBBLES = Signature(
    "matmul:packed_nibbles",
    (*_PRODUCT, *_WORK, BLOCK),
    variants=TILES,
    where={**_NIBBLE_PANELS, **_OFFSETS},
    rules=(
        "c_row >= columns * item",
        "block % 8 == 0",
        "work_bytes >= (padded(min(depth_block, depth), 8) + 8) * width * 4",
    ),
)
VECTOR_NIBBLES = Signature(
    "matmul:vector_nibbles",
    (*_PRODUCT, BLOCK),
    variants=PANELS,
    where={**_NIBBLE_PANELS, **_OFFSETS},
    rules=("rows == 1", "block % 8 == 0"),
)
PACK = Signature(
    "matmul:pack",
    (
        ReadOperand("b", "table.least[0], table.most[0] + (depth - 1) * row + (columns - 1) * column + item"),
        ReadOperand("bias", "item * columns", absent="True"),
        Write("panels", "table.least[1], table.most[1] + panel_bytes"),
        OffsetTable("table", "batches", columns=2),
        *Number.each("batches columns depth", 1),
        Number("row"),
        Number("column"),
    ),
    variants=PANELS | halves(PANELS),
    where=_WIDTH,
)
SIGNATURES = (PACKED, VECTOR, PACK, PACKED_HALF, VECTOR_HALF, PACKED_NIBBLES, VECTOR_NIBBLES)
