"""The tiling of a product; `product_kernels` has the source of the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from isthmus.backends.gpu.compile.traits import DeviceTraits

if TYPE_CHECKING:
    from isthmus.backends.gpu.compile.lowering.product import ResultTarget

CPU_WIDTH = 8
"""Floats that the kernels for a CPU compute with at a time."""


@dataclass(frozen=True)
class ClTile:
    """The tiling of a product.

    - `rows`, `columns`: The size of a work-group's tile; on a CPU a work-group is one work-item.
    - `item_rows`, `item_columns`: The size of a work-item's part.
    - `depth`: How many elements of a sum are in local memory at a time; 0 without local memory.
    - `slices`: The number of work-items that share a sum, each with a part of its depth.
    - `panel`: Columns of the packed right matrix, with padding.
    """

    cpu: bool
    rows: int
    columns: int
    item_rows: int
    item_columns: int
    depth: int
    slices: int
    panel: int

    @property
    def thin(self) -> bool:
        """Whether it is a GPU's tile without local memory."""
        return not self.cpu and self.depth == 0

    @property
    def group(self) -> tuple[int, int, int]:
        """The size of a work-group."""
        if self.cpu:
            return 1, 1, 1
        if self.thin:
            return self.columns, self.slices, 1
        return self.rows // self.item_rows * (self.columns // self.item_columns) * self.slices, 1, 1

    def items(self, rows: int, columns: int, batches: int) -> tuple[int, int, int]:
        """Return the global size of a launch: rows, columns, batches; of thin tiles columns come first."""
        across, down = -(-columns // self.columns), -(-rows // self.rows)
        group = self.group
        if self.cpu:
            return down, across, batches
        if self.thin:
            return across * group[0], down * group[1], batches
        return down * group[0], across, batches


def product_tile(traits: DeviceTraits, rows: int, columns: int, batches: int, depth: int = 0) -> ClTile:
    """Return the tile for a product with this many rows and columns, in this many batches.

    `depth` is the length of a sum; it matters only for thin tiles, whose work-items share it.
    """
    if traits.kind == "cpu":
        return _cpu_tile(rows, columns)
    panel = max(-(-columns // 4), 1) * 4

    def groups(tile: GpuTile) -> int:
        """Return the number of work-groups with this tile."""
        return -(-rows // tile.rows) * -(-columns // tile.columns) * batches

    # Tiles whose work-groups keep at least half of the device busy.
    fitting = [tile for tile in GPU_TILES if groups(tile) * 2 >= traits.compute_units]
    if fitting:
        # Work-groups run in rounds, as many at a time as the device has compute units.
        best = min(fitting, key=lambda t: -(-groups(t) // traits.compute_units) * t.rows * t.columns / t.speed)
        return ClTile(False, best.rows, best.columns, best.item_rows, best.item_columns, best.depth, best.slices, panel)
    # Too few results to keep the device busy: a thin tile of one or two rows, whose work-items share each sum.
    height, slices = 1 if rows == 1 else 2, 8 if depth < 256 else 16
    return ClTile(False, height, 32, item_rows=height, item_columns=1, depth=0, slices=slices, panel=panel)


@dataclass(frozen=True)
class GpuTile:
    """A tile of a GPU's work-group, and its speed per element relative to the fastest, as measured on an H200.

    The other fields are those of `ClTile`.
    """

    rows: int
    columns: int
    depth: int
    item_rows: int
    item_columns: int
    slices: int
    speed: float


GPU_TILES = (
    GpuTile(64, 64, 16, 8, 8, 2, 1.0),
    GpuTile(32, 64, 8, 8, 8, 4, 0.95),
    GpuTile(64, 32, 16, 8, 4, 2, 0.9),
    GpuTile(32, 32, 16, 4, 4, 4, 0.6),
)


def _cpu_tile(rows: int, columns: int) -> ClTile:
    """Return a tile whose eight vectors of sums stay in registers, together with their operands."""
    height, across = min(rows, 4), CPU_WIDTH if columns <= CPU_WIDTH else 2 * CPU_WIDTH
    return ClTile(True, height, across, height, across, 0, 1, max(-(-columns // across), 1) * across)


def batch_lines(batched: bool) -> list[str]:
    """Return statements that locate the operands and the results of a batch.

    An entry of the table is the first element of the left operand, of the right one and of the result, and the first
    channel.
    """
    if not batched:
        return ["  const int y_first = y_start, channel = 0;"]
    return [
        "  int z = get_global_id(2);",
        "  x += table[4 * z]; w += table[4 * z + 1];",
        "  const int y_first = y_start + table[4 * z + 2], channel = table[4 * z + 3];",
    ]


def result_row(target: ResultTarget, m: str) -> list[str]:
    """Return statements that compute ``y_at``, the first element of a row of results."""
    if target.pixels is None:
        return [f"int y_at = y_first + {m} * y_step;"]
    return [
        f"int ox_y = {m} % OW, oy_y = {m} / OW % OH, oz_y = {m} / (OW * OH) % OD, ob_y = {m} / (OW * OH * OD);",
        "int y_at = y_first + ob_y * y_batch + oz_y * y_plane + oy_y * y_row + ox_y * y_pixel;",
    ]
