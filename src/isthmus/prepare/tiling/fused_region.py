"""A fused region: neighbouring steps computed by tiles, with what it needs and costs by the rows of a tile.

Tiles move down all tensors of a region together. When a tile ends at row ``e`` of the tensor that counts, it ends at
row ``rate * e + ahead`` of each other one: ahead by what the windows in between look forward. What a tensor keeps for
the next tile is the same number of rows every time. So the bytes alive at each step are a line over the rows of a
tile, and the most rows that fit a limit follow without trying.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor

import numpy as np

from isthmus.graph.rows import Rate, RowMap

NANOSECONDS_A_STEP = 15.0
"""The time of an instruction by itself."""
BYTES_A_NANOSECOND = 57.0
BYTES_A_RUN = 250
"""The time that each separate run of memory adds to a copy, as that of so many bytes."""
BYTES_A_NANOSECOND_FROM_OTHERS = 14.0
"""The rate at which a thread reads what another has written."""
BEHIND = 3
"""By how many instructions a turn is behind the one before where that keeps a halo for it."""
BYTES_A_NANOSECOND_NEARER = 200.0
"""Whole tensors that do not fit a cache come from one further away. Tiles do not, and win so much."""
MOST_WON = 0.5
"""The part of their cost that tiles win back at most, since the caches are not known."""
BYTES_A_STEP = 90
"""The size of an instruction in a program."""
_NO_SLOPE = 1e-9
"""The divisor instead of zero bytes for each row: less than any step has for a row."""
MOST_UNROLLED = 12
"""The most tiles of a region that cannot be repeated because no two are alike."""


@dataclass(frozen=True, slots=True)
class Inner:
    """The result of a step in a region.

    Parameters
    ----------
    axis
        The axis of its rows.
    rate, ahead
        Where the end of a tile is in it.
    kept
        Rows that the next tile reads again.
    whole
        Whether it exists whole: it is read outside.
    """

    axis: int
    rate: Rate
    ahead: int
    kept: int
    whole: bool


@dataclass(frozen=True)
class Overlay:
    """A result that is written over an operand: rows of the operand are fetched once, before their bytes are needed.

    Parameters
    ----------
    source, output
        The step that has written the operand, and which of its results that is. No step reads it after the region.
    result
        The step whose whole result takes the operand's bytes. A larger one ends where the operand ends, a smaller one
        begins where it begins: so rows that are written never catch up with those to be fetched.
    """

    source: int
    output: int
    result: int


@dataclass(frozen=True)
class FusedRegion:
    """Steps `first` to `last`, to be computed by tiles.

    Parameters
    ----------
    overlay
        A result that is written over an operand. Fetching the operand is then a step of its own, before the others.
    maps, inner
        The row map of each step, and its result, in order.
    height
        Rows of the tensor that counts.
    grain
        What the rows of a tile should be a multiple of.
    regular
        Whether tiles are alike.
    floor
        Bytes alive all through it, with what is kept between tiles.
    carried
        Bytes kept between tiles.
    lines
        For each step the bytes alive there besides: in any case, for each row of a tile, and in the first tile.
    instructions, copied
        For each tile: instructions, and bytes that are copied besides, fixed and for each row.
    loss
        The nanoseconds that a tile takes more than its share of the whole steps, by its rows; None for nothing.
    won
        The nanoseconds that whole steps take more because their tensors do not fit a cache.
    ahead
        How far the tiles of some tensor are ahead, in rows of the tensor that counts.
    time, together, threads, sharing
        How long each step takes on one thread, on all that share it as a whole, how many there are, and how long it
        takes to share a step besides.
    """

    first: int
    last: int
    maps: tuple[RowMap, ...]
    inner: tuple[Inner, ...]
    height: int
    grain: int
    regular: bool
    floor: int
    carried: int
    lines: np.ndarray
    instructions: int
    copied: tuple[float, float]
    loss: np.ndarray | None
    won: float
    ahead: float
    time: np.ndarray
    together: np.ndarray
    threads: int
    sharing: float
    overlay: Overlay | None = None

    @cached_property
    def least(self) -> float:
        """The bytes that are alive with the fewest rows that a tile may have."""
        return self.floor + float((self.lines[0] + self.lines[1] * self.grain).max())

    @cached_property
    def _slopes(self) -> np.ndarray:
        """The bytes for each row, as divisors."""
        return np.maximum(self.lines[1], _NO_SLOPE)

    @cached_property
    def _first_tile(self) -> tuple[np.ndarray, np.ndarray]:
        """The bytes for each row of steps that have any, and what they have alive besides in the first tile."""
        steep = self.lines[1] > 0
        return self.lines[1, steep], self.lines[2, steep]

    def rows(self, limit: int, lanes: int = 1) -> int:
        """Compute the most rows of tiles, `lanes` at once, with which at most `limit` bytes are alive; 0 for none."""
        if limit < self.least:
            return 0
        most = max(0, (((limit - self.floor) // lanes - self.lines[0]) / self._slopes).min())
        return int(min(most, self.height)) // self.grain * self.grain

    def even_rows(self, most: int, fewest: int) -> list[int]:
        """List rows of tiles up to a number: even among the fewest tiles, and such that no tile is shorter."""
        grain, count = self.grain, -(-self.height // max(most, 1))
        balanced = -(-self.height // max(count, 2) // grain) * grain
        found = [max(min(balanced, most), fewest)]
        if self.height % found[0] == 0:
            return found
        fewest = max(fewest, -(-found[0] // 2))
        exact = next((rows for rows in range(found[0], fewest - 1, -grain) if self.height % rows == 0), None)
        return found if exact is None else [*found, exact]

    def start(self, limit: int, rows: int) -> int:
        """Compute where the first tile ends: maybe before the first row, so that it needs no more than others."""
        slopes, besides = self._first_tile
        most = (((limit - self.floor + self.carried) - besides) / slopes).min(initial=rows)
        lowest = -ceil(self.ahead / max(rows, 1)) * rows
        return max(floor(most), lowest)

    def tile_count(self, rows: int, start: int) -> int:
        """Count the tiles."""
        return 1 + max(0, ceil((self.height - start) / rows))

    def instruction_count(self, rows: int, start: int) -> int:
        """Count the instructions in a program, where equal tiles are repeated."""
        tiles = self.tile_count(rows, start)
        if not self.regular:
            return tiles * self.instructions
        return min(tiles, 1 + self.ramps(rows, start)) * self.instructions

    def ramps(self, rows: int, start: int) -> int:
        """Count the tiles that differ from the others: the first, until all steps have begun, and a short last one."""
        short = self.height % rows != 0
        if not self.carried and not self.ahead:
            return int(short)
        return 1 + ceil(max(0.0, self.ahead - max(start, 0)) / rows) + short

    def nanoseconds(self, rows: int, start: int, lanes: int = 1) -> float:
        """Estimate the time that it takes more than whole steps do."""
        tiles = self.tile_count(rows, start)
        moved = (tiles - 1) * self.copied[0] + self.copied[1] * self.height
        more = tiles * self.instructions - (self.last - self.first + 1)
        uneven = 0.0 if self.loss is None else max(0.0, tiles * float(self.loss[rows]))
        cost = more * NANOSECONDS_A_STEP + moved / BYTES_A_NANOSECOND + uneven
        cost = max(cost - self.won, (1 - MOST_WON) * cost)
        if self.threads > 1:
            # A tile of a step is shared where that is faster, which it is less often than the whole step.
            shared = min(tiles, self.ramps(rows, start)) if lanes > 1 else tiles
            part = shared / tiles
            of_tiles = np.minimum(part * self.time, part * self.time / self.threads + shared * self.sharing)
            a_turn = (cost + float(self.time.sum())) / tiles + self.carried / BYTES_A_NANOSECOND_FROM_OTHERS
            cost = cost * part + float(of_tiles.sum() - self.together.sum())
            cost += a_turn * self._one_after_the_other(tiles - shared, lanes)
        return cost

    def _one_after_the_other(self, turns: int, lanes: int) -> float:
        """Compute how many turns in a row take as long as so many that threads take at once."""
        if not turns:
            return 0.0
        # A turn is behind the one before until that has kept what is to be kept, and some threads have one turn more.
        behind = BEHIND / self.instructions if self.carried else 0.0
        return max(ceil(turns / lanes), 1 + (turns - 1) * behind)
