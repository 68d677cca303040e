"""Signatures of the kernels in `kernels.matmul`. A panel holds `vectors` vectors of columns, with its bias in front."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Real, Signature, WorkSpace, Write

Variants = Mapping[str, Mapping[str, int]]
PRODUCT_KINDS = ("f32", "f16", "bf16")
"""The floats that products have forms of their own for; others are converted to float32 before a product."""


def halves(variants: Variants, kinds: Collection[str] = PRODUCT_KINDS[1:]) -> dict[str, dict[str, int]]:
    """Return the variants for floats of other kinds, with the kind after an underscore: ``8x3_f16``."""
    return {f"{name}_{kind}": {**numbers, "item": SIZES[kind]} for name, numbers in variants.items() for kind in kinds}


def _in_all_forms(variants: Variants) -> dict[str, Mapping[str, int]]:
    """Return the variants for floats, for elements of 16 bits, and for floats times 4-bit weights: ``8x3_nibbles``."""
    nibbles = {f"{name}_nibbles": {**numbers, "nibbles": 1} for name, numbers in variants.items()}
    return {**variants, **halves(variants), **nibbles}


TILES = _in_all_forms(
    {
        f"{height}x{vectors}": {"height": height, "vectors": vectors, "item": 4, "nibbles": 0}
        for height, vectors in ((8, 3), (10, 2), (10, 1), (6, 2), (6, 4), (8, 2), (4, 2), (8, 1))
    }
)
"""The tiles (rows by vectors) that have kernels, with the form of elements and weights."""
# The widths of panels, in vectors.
_PANELS = {str(vectors): {"vectors": vectors, "item": 4, "nibbles": 0} for vectors in (1, 2, 3, 4)}
BLOCK = Number("block", 8, 1 << 40)
"""The steps of the depth with one scale of 4-bit weights, in whole words of eight steps."""
PANEL_BYTES = {
    "steps": "ceil(depth, 8)",
    # 4-bit weights have words of eight steps of the depth, and a scale and a zero for each block of them.
    "weight_bytes": "ceil(steps, block // 8) * 5 + steps * 4 if nibbles else depth * item",
    "each_panel": "(4 + weight_bytes) * width",
}
"""The size of a panel of `width` columns and `depth` steps."""
_PRODUCT = (
    ReadOperand("a", "a_least, a_most + (rows - 1) * a_row + (depth - 1) * a_column + item"),
    ReadOperand("panels", "panels_least, panels_most + ceil(columns, width) * each_panel"),
    Write("c", "c_least, c_most + (rows - 1) * c_row + columns * item"),
    # For each batch, the byte offsets of a, its panels and c.
    OffsetTable("table", "batches", absent="batches == 1", columns=3),
    *Number.each("batches rows columns depth", 1),
    *Number.each("a_row a_column c_row"),
    *Number.each("tile_block depth_block", 1),
    # Left rows of a block of tiles, or a part of 4-bit weights, in float32.
    WorkSpace("work", "shares * work_bytes", absent="work_bytes == 0"),
    Number("work_bytes"),
    BLOCK,
    *Real.each("least most"),
)
_WHERE = {
    "width": "vectors * lanes",
    **PANEL_BYTES,
    "a_least, panels_least, c_least": "table.least if table else (0, 0, 0)",
    "a_most, panels_most, c_most": "table.most if table else (0, 0, 0)",
}

PACKED = Signature(
    "matmul:packed",
    _PRODUCT,
    variants=TILES,
    where={
        **_WHERE,
        "staged": "min(tile_block, ceil(rows, height)) * height * depth * 4 if item < 4 else 0",
        "unpacked": "(padded(min(depth_block, depth), 8) + 8) * width * 4 if nibbles else 0",
    },
    rules=(
        "c_row >= columns * item",
        # Partial sums cannot wait in a result of 16 bits.
        "item == 4 or depth_block >= depth",
        "block % 8 == 0",
        "work_bytes >= staged + unpacked",
    ),
)
VECTOR = Signature(
    "matmul:vector",
    _PRODUCT,
    variants=_in_all_forms(_PANELS),
    where=_WHERE,
    rules=("rows == 1", "item == 4 or work_bytes >= depth * 4", "block % 8 == 0"),
)
PACK = Signature(
    "matmul:pack",
    (
        ReadOperand("b", "table.least[0], table.most[0] + (depth - 1) * row + (columns - 1) * column + item"),
        ReadOperand("bias", "item * columns", absent="True"),
        Write("panels", "table.least[1], table.most[1] + ceil(columns, width) * (4 + depth * item) * width"),
        OffsetTable("table", "batches", columns=2),
        *Number.each("batches columns depth", 1),
        *Number.each("row column"),
    ),
    variants=_PANELS | halves(_PANELS),
    where={"width": "vectors * lanes"},
)
