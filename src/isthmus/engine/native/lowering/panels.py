"""The blocking of matrices for the micro-kernels: the choice of a tile, and the packing of right matrices.

A tile is a number of rows by a number of vectors of columns; it must fit the registers of the target. A right matrix is
packed into panels of a tile's width, each with its bias in front. Elements have 32 or 16 bits, the bias has 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.target import Target

# Bytes of the caches for a small packed matrix, for the rows that are multiplied by it, for a part of a panel, and for
# the rows that are multiplied by a large packed matrix.
_L1_SHARE = 24 << 10
_L1_ROWS = 8 << 10
_L1_PANEL = 40 << 10
_L2_SHARE = 512 << 10
_STAGED_BYTES = 16 << 10
# The largest size of a thread's left rows that are converted from 16 bits, for packed matrices up to the L2 cache's
# share and for larger ones, which should not be read too often.
_STAGED_BYTES_FOR_LARGE = 64 << 10
# The cycles until a product can be added to; a tile with fewer products waits for them.
_LATENCY = 4


@dataclass(frozen=True)
class PanelTile:
    """The rows and vectors of columns that a micro-kernel holds in registers."""

    rows: int
    vectors: int

    @property
    def variant(self) -> str:
        """The tile's name in kernel variants."""
        return f"{self.rows}x{self.vectors}"

    def width(self, target: Target) -> int:
        """Return the number of columns of a panel."""
        return self.vectors * target.lanes

    def panels(self, columns: int, target: Target) -> int:
        """Return the number of panels for this many columns."""
        return -(-columns // self.width(target))

    def matrix_bytes(self, depth: int, columns: int, target: Target, size: int = 4) -> int:
        """Return the bytes of a packed matrix whose elements have `size` bytes."""
        return self.panels(columns, target) * (4 + depth * size) * self.width(target)

    def staged_block(self, rows: int, depth: int, columns: int, target: Target) -> int:
        """Return for how many tiles the left rows are converted from 16 bits at a time."""
        large = self.matrix_bytes(depth, columns, target, 2) > _L2_SHARE // 2
        budget = _STAGED_BYTES_FOR_LARGE if large else _STAGED_BYTES
        return min(max(1, budget // (self.rows * depth * 4)), -(-rows // self.rows))

    def block(self, depth: int, columns: int, row_bytes: int, target: Target) -> int:
        """Return how many tiles to multiply by one panel before the next panel.

        If all panels fit the L1 cache, it is few enough that the rows fit too; else as many as fit the L2 cache.
        `row_bytes` is the size of a row of the left matrix.
        """
        few = self.matrix_bytes(depth, columns, target) <= _L1_SHARE
        return max(1, (_L1_ROWS if few else _L2_SHARE) // max(1, self.rows * row_bytes))

    def depth_block(self, depth: int, piece: int, target: Target) -> int:
        """Return how many pieces of the depth to sum at a time, so that this part of a panel stays in the L1 cache.

        `piece` is the depth that cannot be divided: 1, or the channels of a tap.
        """
        pieces = -(-depth // piece)
        fitting = max(1, _L1_PANEL // (piece * self.width(target) * 4))
        # Even parts: storing and loading the sums of a short last part costs as much as for a full one.
        return -(-pieces // -(-pieces // fitting))

    def effort(self, rows: np.ndarray) -> np.ndarray:
        """Return how many rows are computed for this many rows: the last ones take half a tile or a whole one."""
        half = max(1, self.rows // 2)
        last = rows % self.rows
        return rows - last + np.where(last > half, self.rows, np.where(last > 0, half, 0))


# Tiles by the size of a vector register in bytes, preferred ones first.
_TILES: dict[int, tuple[PanelTile, ...]] = {
    64: (PanelTile(8, 3), PanelTile(10, 2), PanelTile(10, 1)),
    32: (PanelTile(6, 2), PanelTile(10, 1)),
    16: (PanelTile(6, 4), PanelTile(8, 2), PanelTile(10, 1)),
}
# Tiles for x86 with 128-bit vectors, which has only 16 registers.
_FEW_REGISTERS = (PanelTile(4, 2), PanelTile(8, 1))
# The vectors of a panel for targets that pack all matrices alike; every table above has a tile with so many.
_UNIFORM_VECTORS = 2


def choose_tile(rows: int, columns: int, target: Target) -> PanelTile:
    """Return the fastest tile for a product of this many rows and columns."""
    few = target.vector_bytes == 16 and target.triple.startswith("x86")
    tiles = _FEW_REGISTERS if few else _TILES[target.vector_bytes]
    if target.is_uniform:
        return next(tile for tile in tiles if tile.vectors == _UNIFORM_VECTORS)
    vectors = -(-columns // target.lanes)

    def cost(tile: PanelTile) -> float:
        """Return an estimate of the cycles for each unit of depth: two products or two loads per cycle.

        All rows but the last few are in full tiles; the last ones take half a tile or a full one.
        """
        full, last = divmod(rows, tile.rows)
        half = max(1, tile.rows // 2)
        heights = [tile.rows] * min(full, 1) + ([half if last <= half else tile.rows] if last else [])
        counts = [full] * min(full, 1) + ([1] if last else [])
        steps = 0.0
        for height, count in zip(heights, counts, strict=True):
            products, loads = height * tile.vectors, height + tile.vectors
            steps += count * max(products / 2, loads / 2, _LATENCY)
        return -(-vectors // tile.vectors) * (steps + 0.25 * sum(counts))

    return min(tiles, key=cost)


def row_vectors(columns: int, target: Target) -> int:
    """Return the number of vectors of a panel for products with a single row."""
    if target.is_uniform:
        return _UNIFORM_VECTORS
    return min(4 if target.vector_bytes == 64 else 2, -(-columns // target.lanes))


def split_panels(
    width: int, columns: int, lanes: int, heads: Sequence[np.ndarray], body: Callable[[slice, int], np.ndarray]
) -> np.ndarray:
    """Return panels of `columns` of the `width` columns; the last one may be narrower.

    A panel begins with its part of the heads, arrays with an element for each column, such as bias and scale. Then
    comes what `body` returns for its columns and for how many there are with padding.
    """
    packed, used = np.zeros(0, np.uint8), 0
    for start in range(0, width, columns):
        own = slice(start, min(start + columns, width))
        padded_width = -(-(own.stop - start) // lanes) * lanes
        parts = []
        for head in heads:
            padded = np.zeros(padded_width, head.dtype)
            padded[: own.stop - start] = head[own]
            parts.append(padded.view(np.uint8))
        parts.append(np.ascontiguousarray(body(own, padded_width)).view(np.uint8).reshape(-1))
        panel = np.concatenate(parts)
        if not used:
            # No panel is larger than the first. All of them together would stay in the heap after they are freed.
            packed = np.empty(-(-width // columns) * panel.size, np.uint8)
        packed[used : used + panel.size] = panel
        used += panel.size
    return packed[:used]


def pack_panels(right: np.ndarray, bias: np.ndarray | None, width: int) -> np.ndarray:
    """Pack a matrix [depth, columns] into panels: for each, the bias as float32, then the rows as they are stored."""
    depth, columns = right.shape

    def rows(own: slice, padded_width: int) -> np.ndarray:
        padded = np.zeros((depth, padded_width), right.dtype if right.itemsize < 4 else np.float32)
        padded[:, : own.stop - own.start] = right[:, own]
        return padded

    front = np.zeros(columns, np.float32) if bias is None else bias.astype(np.float32)
    return split_panels(columns, width, width, [front], rows)


def pack_matrices(matrices: np.ndarray, bias: np.ndarray | None, width: int) -> np.ndarray:
    """Pack matrices [count, depth, columns] into panels, those of each after those of the one before."""
    packed = [pack_panels(matrix, bias, width) for matrix in matrices]
    return packed[0] if len(packed) == 1 else np.concatenate(packed)


def pack_groups(matrix: np.ndarray, bias: np.ndarray | None, groups: int, width: int) -> np.ndarray:
    """Pack a matrix [depth, columns of all groups] into panels, those of each group after those of the one before."""
    columns = matrix.shape[1] // groups
    parts = [slice(first, first + columns) for first in range(0, columns * groups, columns)]
    packed = [pack_panels(matrix[:, part], None if bias is None else bias[part], width) for part in parts]
    return packed[0] if len(packed) == 1 else np.concatenate(packed)


def limits(clamp: tuple[float, float] | None) -> tuple[float, float]:
    """Return the range of results: the step's clamp, or infinite."""
    return (float(clamp[0]), float(clamp[1])) if clamp is not None else (-np.inf, np.inf)


def form_ending(kind: str, nibbles: bool = False) -> str:
    """Return the end of a variant: the form of elements and weights, unless both are float32."""
    return "_nibbles" if nibbles else "" if kind == "f32" else f"_{kind}"
