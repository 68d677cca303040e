"""Signatures of the kernels in `kernels.matmul`. A panel holds `vectors` vectors of columns, with its bias in front."""

from __future__ import annotations

from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Real, Signature, Write

TILES = {
    f"{height}x{vectors}": {"height": height, "vectors": vectors}
    for height, vectors in ((8, 3), (10, 2), (10, 1), (6, 2), (6, 4), (8, 2), (4, 2), (8, 1))
}
"""The tiles (rows by vectors) that have kernels."""
PANELS = {str(vectors): {"vectors": vectors} for vectors in (1, 2, 3, 4)}
"""The widths of panels, in vectors."""
_WIDTH = {"width": "vectors * lanes", "panel_bytes": "ceil(columns, width) * (depth + 1) * width * 4"}

_PRODUCT = (
    ReadOperand("a", "a_least, a_most + (rows - 1) * a_row + (depth - 1) * a_column + 4"),
    ReadOperand("panels", "panels_least, panels_most + panel_bytes"),
    Write("c", "c_least, c_most + (rows - 1) * c_row + columns * 4"),
    # For each batch, the byte offsets of a, its panels and c.
    OffsetTable("table", "batches", absent="batches == 1", columns=3),
    Number("batches", 1),
    Number("rows", 1),
    Number("columns", 1),
    Number("depth", 1),
    Number("a_row"),
    Number("a_column"),
    Number("c_row"),
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
    rules=("c_row >= columns * 4",),
)
VECTOR = Signature(
    "matmul:vector",
    _PRODUCT,
    variants=PANELS,
    where={**_WIDTH, **_OFFSETS},
    rules=("rows == 1",),
)
PACK = Signature(
    "matmul:pack",
    (
        ReadOperand("b", "table.least[0], table.most[0] + (depth - 1) * row + (columns - 1) * column + 4"),
        ReadOperand("bias", "4 * columns", absent="True"),
        Write("panels", "table.least[1], table.most[1] + panel_bytes"),
        OffsetTable("table", "batches", columns=2),
        Number("batches", 1),
        Number("columns", 1),
        Number("depth", 1),
        Number("row"),
        Number("column"),
    ),
    variants=PANELS,
    where=_WIDTH,
)
SIGNATURES = (PACKED, VECTOR, PACK)
