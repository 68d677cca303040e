"""How a product is cut into tiles, for processors with vectors (`tiles_cpu`) and for GPUs (`tiles_gpu`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isthmus.backends.gpu.compile.traits import DeviceTraits

if TYPE_CHECKING:
    from isthmus.backends.gpu.compile.lowering.chains import Epilogue
    from isthmus.backends.gpu.compile.lowering.product import ResultTarget

CPU_WIDTH = 8
"""Floats that a CPU's kernels compute with at a time."""
_CPU_WORTH = 40_000
"""Products that a work-item should have at least."""
ENOUGH_ITEMS = 16
"""Work-items that a launch should have at least."""


@dataclass(frozen=True)
class ClTile:
    """How a product is cut.

    Parameters
    ----------
    rows, columns
        Of a work-group's tile; on a CPU a work-group is one work-item.
    item_rows, item_columns
        Of a work-item's part.
    depth
        How much of a sum is in local memory at a time; 0 without local memory.
    slices
        Work-items that share a sum, each with a part of its depth.
    panel
        Columns of a panel of the right matrix.
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
        """Whether it does without local memory."""
        return not self.cpu and self.depth == 0

    @property
    def group(self) -> tuple[int, int, int]:
        """The size of a work-group."""
        if self.cpu:
            return 1, 1, 1
        if self.thin:
            return self.columns, self.slices, 1
        return self.rows // self.item_rows * (self.columns // self.item_columns) * self.slices, 1, 1

    def with_rows(self, rows: int) -> ClTile:
        """A tile of a CPU with so many rows."""
        return replace(self, rows=rows, item_rows=rows)

    def strips(self, rows: int, columns: int, batches: int, depth: int) -> int:
        """How many tiles below one another a work-item of a CPU computes: enough to be worth its start."""
        down, across = -(-rows // self.rows), -(-columns // self.columns) * batches
        worth = max(1, _CPU_WORTH // (self.rows * self.columns * max(depth, 1)))
        return max(1, min(worth, down * across // ENOUGH_ITEMS, down))

    def items(self, rows: int, columns: int, batches: int, depth: int) -> tuple[int, int, int]:
        """Work-items of a launch: rows vary first, then columns, then batches."""
        across, down = -(-columns // self.columns), -(-rows // self.rows)
        group = self.group
        if self.cpu:
            return -(-down // self.strips(rows, columns, batches, depth)), across, batches
        if self.thin:
            return across * group[0], down * group[1], batches
        return down * group[0], across, batches


def product_tile(traits: DeviceTraits, rows: int, columns: int, batches: int, depth: int = 0) -> ClTile:
    """The tile for a product of so many rows and columns."""
    if traits.kind == "cpu":
        return _cpu_tile(rows, columns)
    panel = -(-columns // 4) * 4

    def groups(tile: GpuTile) -> int:
        return -(-rows // tile.rows) * -(-columns // tile.columns) * batches

    fitting = [tile for tile in GPU_TILES if groups(tile) * 2 >= traits.compute_units]
    if fitting:
        # Work-groups come in rounds, as many at a time as the device has units.
        best = min(fitting, key=lambda t: -(-groups(t) // traits.compute_units) * t.rows * t.columns / t.speed)
        return ClTile(False, best.rows, best.columns, best.item_rows, best.item_columns, best.depth, best.slices, panel)
    height = 1 if rows == 1 else 2
    return ClTile(False, height, 32, height, 1, 0, 8 if depth < 256 else 16, panel)


@dataclass(frozen=True)
class GpuTile:
    """A tile of a GPU's work-group, and how fast it is per element beside the fastest, as measured on an H200."""

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
    if columns <= CPU_WIDTH:
        vectors = 1
    elif rows <= 2:
        vectors = 4
    else:
        vectors = 3 if -(-columns // 24) * 24 < -(-columns // 16) * 16 else 2
    # Eight or nine sums hide how long a product takes. For more, and what chains and limits need besides, 16 registers
    # are too few: sums would go to memory and back in the innermost loop.
    heights = {1: (1, 2, 4, 8), 2: (4,), 3: (3,), 4: (1, 2)}[vectors]
    # Low tiles are less busy than high ones, but may leave fewer rows idle.
    height = min(heights, key=lambda h: -(-rows // h) * (h + 0.6))
    return ClTile(True, height, vectors * CPU_WIDTH, height, vectors * CPU_WIDTH, 0, 1, vectors * CPU_WIDTH)


def batch_lines(batched: bool) -> list[str]:
    """Statements that find the operands and the results of a batch."""
    if not batched:
        return ["  const int y_first = y_start, channel = 0;"]
    return [
        "  int z = get_global_id(2);",
        "  x += table[4 * z]; w += table[4 * z + 1];",
        "  const int y_first = y_start + table[4 * z + 2], channel = table[4 * z + 3];",
    ]


def split_row(name: str, suffix: str = "") -> str:
    """Statements that take row `name` apart into batch, plane, line and pixel."""
    return (
        f"int ox{suffix} = {name} % OW, oy{suffix} = {name} / OW % OH, oz{suffix} = {name} / (OW * OH) % OD, "
        f"ob{suffix} = {name} / (OW * OH * OD);"
    )


def result_row(target: ResultTarget, m: str) -> list[str]:
    """Statements that give ``y_at``, the first element of a row of results."""
    if target.pixels is None:
        return [f"int y_at = y_first + {m} * y_step;"]
    return [
        split_row(m, "_y"),
        "int y_at = y_first + ob_y * y_batch + oz_y * y_plane + oy_y * y_row + ox_y * y_pixel;",
    ]


def result_tile(tile: ClTile, target: ResultTarget, tail: Epilogue, vector: str, single: str) -> list[str]:
    """Statements of a CPU that make results of a tile's sums, by the text that gives a vector or one of them."""
    columns = tile.columns

    def results(width: int) -> list[str]:
        real, text = (f"float{width}", vector) if width > 1 else ("float", single)
        value = text.format(f"r * {columns} + j")
        stored = tail.lines(width, "y_at + n_tile + j", "channel + n_tile + j")
        return [f"        {real} v = {value};", *(f"        {line}" for line in stored)]

    return [
        "  for (int r = 0; r < rows; ++r) {",
        *(f"    {line}" for line in result_row(target, "(m_tile + r)")),
        f"    if (n_tile + {columns} <= N) {{",
        f"      for (int j = 0; j < {columns}; j += {CPU_WIDTH}) {{",
        *results(CPU_WIDTH),
        "      }",
        "    } else {",
        "      int j = 0;",
        f"      for (; j + {CPU_WIDTH} <= N - n_tile; j += {CPU_WIDTH}) {{",
        *results(CPU_WIDTH),
        "      }",
        "      for (; j < N - n_tile; ++j) {",
        *results(1),
        "      }",
        "    }",
        "  }",
    ]
