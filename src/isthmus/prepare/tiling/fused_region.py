"""A fused region: consecutive steps computed in tiles, with memory and cost as functions of the rows of a tile.

Tiles advance through all tensors of a region together. When a tile ends at row ``e`` of the reference tensor, it ends
at row ``rate * e + ahead`` of each other one; `ahead` comes from the windows in between, which read later rows. The
number of rows that a tensor keeps for the next tile is always the same. So the live bytes at each step are a linear
function of the rows of a tile, and the maximum number of rows within a limit can be computed directly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, floor, prod

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.rows import Rate, RowMap, same_rows
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.step_table import StepTable, align

NANOSECONDS_A_STEP = 15.0
"""The overhead of one instruction."""
BYTES_A_NANOSECOND = 57.0
"""The rate of a copy."""
BYTES_A_RUN = 250
"""The overhead of each separate run of memory in a copy, as the number of bytes that could be copied in that time."""
BYTES_A_NANOSECOND_FROM_OTHERS = 14.0
"""The rate at which a thread reads data that another thread has written."""
BEHIND = 3
"""The number of instructions by which an iteration lags behind the previous one if that keeps a halo for it."""
BYTES_A_NANOSECOND_NEARER = 200.0
"""The rate for the time that tiles save: whole tensors that do not fit a cache come from a farther one, tiles do
not.
"""
MAX_WON = 0.5
"""The maximum fraction of their cost that tiles save through caches; it is limited because the caches are not known."""
BYTES_A_STEP = 90
"""The size of an instruction in a program."""
# The divisor for steps with zero bytes per row; smaller than the bytes per row of any step.
_NO_SLOPE = 1e-9
MAX_UNROLLED = 12
"""The maximum number of tiles in a region whose tiles all differ, so that none can be repeated."""


@dataclass(frozen=True, slots=True)
class Inner:
    """The result of a step in a fused region.

    - `axis`: the axis of its rows.
    - `rate`, `ahead`: a tile ends at row ``rate * e + ahead`` of this tensor, where ``e`` is its end in the reference
      tensor.
    - `halo`: rows that the next tile reads again.
    - `whole`: whether it exists as a whole, because steps outside the region read it.
    """

    axis: int
    rate: Rate
    ahead: int
    halo: int
    whole: bool


@dataclass(frozen=True)
class Overlay:
    """A result that is written over an operand: rows of the operand are fetched once, before they are overwritten.

    - `source`, `output`: the step that wrote the operand, and the index of that output. No step reads it after the
      region.
    - `result`: the step whose whole result takes the operand's bytes. A larger result ends where the operand ends; a
      smaller one begins where it begins. So the rows written never overtake the rows still to be fetched.
    """

    source: int
    output: int
    result: int


@dataclass(frozen=True)
class FusedRegion:
    """Steps `first` to `last`, to be computed in tiles.

    - `overlay`: a result that is written over an operand. Fetching the operand is then an additional step before the
      others.
    - `maps`, `inner`: the row map and the result of each step, in order.
    - `height`: the number of rows of the reference tensor.
    - `grain`: the rows of a tile should be a multiple of this.
    - `regular`: whether all tiles do the same work, so that they can be repeated.
    - `floor`: bytes alive throughout the region, including those kept between tiles.
    - `carried`: bytes kept between tiles.
    - `lines`: for each step, the other live bytes: fixed, per row of a tile, and in the first tile.
    - `instructions`, `copied`: for each tile, the number of instructions, and the additional bytes copied: fixed and
      per row.
    - `loss`: the nanoseconds that a tile takes beyond its share of the whole steps, by its rows; None for none.
    - `won`: the additional nanoseconds of whole steps whose tensors do not fit a cache.
    - `ahead`: the maximum lead of any tensor's tiles, in rows of the reference tensor.
    - `time`, `together`, `threads`, `sharing`: the time of each step on one thread and on all threads that share it,
      the number of threads, and the overhead of sharing a step.
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
        """The live bytes with the fewest rows that a tile may have."""
        return self.floor + float((self.lines[0] + self.lines[1] * self.grain).max())

    @cached_property
    def _slopes(self) -> np.ndarray:
        """The bytes per row, as divisors."""
        return np.maximum(self.lines[1], _NO_SLOPE)

    @cached_property
    def _first_tile(self) -> tuple[np.ndarray, np.ndarray]:
        """For steps with bytes per row: these bytes, and the other live bytes in the first tile."""
        steep = self.lines[1] > 0
        return self.lines[1, steep], self.lines[2, steep]

    def rows(self, limit: int, arenas: int = 1) -> int:
        """Return the most rows of a tile, with `arenas` tiles at once, that keep within `limit` live bytes; 0 if none
        do.

        Several threads compute one tile each, in an arena of its own.
        """
        if limit < self.least:
            return 0
        most = max(0, (((limit - self.floor) // arenas - self.lines[0]) / self._slopes).min())
        return int(min(most, self.height)) // self.grain * self.grain

    def even_rows(self, most: int, fewest: int) -> list[int]:
        """List one or two numbers of rows from `fewest` to `most`.

        The first divides the height evenly into the fewest tiles. If its last tile is short, the second is the largest
        one, at least half as large, that divides the height exactly.
        """
        grain, count = self.grain, -(-self.height // max(most, 1))
        balanced = -(-self.height // max(count, 2) // grain) * grain
        even = max(min(balanced, most), fewest)
        if self.height % even == 0:
            return [even]
        fewest = max(fewest, -(-even // 2))
        exact = next((rows for rows in range(even, fewest - 1, -grain) if self.height % rows == 0), None)
        return [even] if exact is None else [even, exact]

    def start(self, limit: int, rows: int) -> int:
        """Return the end of the first tile, possibly before the first row, so that it needs no more memory than
        others.

        The first tile must also compute the rows by which other tensors are ahead, so it ends earlier than the others.
        """
        slopes, other_bytes = self._first_tile
        most = (((limit - self.floor + self.carried) - other_bytes) / slopes).min(initial=rows)
        lowest = -ceil(self.ahead / max(rows, 1)) * rows
        return int(max(floor(most), lowest))

    def tile_count(self, rows: int, start: int) -> int:
        """Count the tiles: the first, which ends at `start`, and those of `rows` rows after it."""
        return 1 + max(0, ceil((self.height - start) / rows))

    def instruction_count(self, rows: int, start: int) -> int:
        """Count the instructions in a program, with equal tiles written once."""
        tiles = self.tile_count(rows, start)
        if not self.regular:
            return tiles * self.instructions
        return min(tiles, 1 + self.ramps(rows, start)) * self.instructions

    def ramps(self, rows: int, start: int) -> int:
        """Count the tiles unlike the others: the first ones, until all steps have begun, and a short last one."""
        short = self.height % rows != 0
        if not self.carried and not self.ahead:
            return int(short)
        return 1 + ceil(max(0.0, self.ahead - max(start, 0)) / rows) + short

    def nanoseconds(self, rows: int, start: int, arenas: int = 1) -> float:
        """Estimate the extra time compared with whole steps.

        With several arenas, equal tiles run on that many threads at once. All other tiles are executed one after
        another, and threads share their steps.
        """
        tiles = self.tile_count(rows, start)
        moved = (tiles - 1) * self.copied[0] + self.copied[1] * self.height
        more = tiles * self.instructions - (self.last - self.first + 1)
        uneven = 0.0 if self.loss is None else max(0.0, tiles * float(self.loss[rows]))
        cost = more * NANOSECONDS_A_STEP + moved / BYTES_A_NANOSECOND + uneven
        cost = max(cost - self.won, (1 - MAX_WON) * cost)
        if self.threads > 1:
            # Threads share a step on a tile if that is faster, which is less often the case than for the whole step.
            shared = min(tiles, self.ramps(rows, start)) if arenas > 1 else tiles
            part = shared / tiles
            of_tiles = np.minimum(part * self.time, part * self.time / self.threads + shared * self.sharing)
            an_iteration = (cost + float(self.time.sum())) / tiles + self.carried / BYTES_A_NANOSECOND_FROM_OTHERS
            cost = cost * part + float(of_tiles.sum() - self.together.sum())
            cost += an_iteration * self._one_after_the_other(tiles - shared, arenas)
        return cost

    def _one_after_the_other(self, iterations: int, arenas: int) -> float:
        """Return how many successive iterations take as long as `iterations` iterations on several threads."""
        if not iterations:
            return 0.0
        # An iteration waits until the previous one has kept its halo, and some threads execute one more iteration.
        behind = BEHIND / self.instructions if self.carried else 0.0
        return max(ceil(iterations / arenas), 1 + (iterations - 1) * behind)


@dataclass(slots=True)
class NeededRows:
    """The rows of a tensor that its readers in a region need, along one axis.

    If a tile ends at row ``e`` of the reference tensor, its readers need rows up to ``rate * e + end``, and those of
    the next tile need rows from ``rate * e + begin`` on.
    """

    axis: int
    rate: Rate
    end: int
    begin: int

    def copy(self) -> NeededRows:
        """Return a copy of the current values."""
        return NeededRows(self.axis, self.rate, self.end, self.begin)


@dataclass(frozen=True)
class RowCopy:
    """A copy of a tensor's rows for the reader at a position.

    - `position`, `line`: the position of the reader, and what the copy adds to `FusedRegion.lines` there.
    - `copied`, `copied_a_row`: the bytes that a tile copies: fixed and per row.
    """

    position: int
    line: np.ndarray
    copied: float
    copied_a_row: float


@dataclass(frozen=True)
class OverlayOption:
    """A result that can be written over an operand.

    - `source`, `result`: the block of the operand, and the step that computes the result.
    - `rows`, `copies`: the rows of the operand that the region reads, and the copies that are not needed if its rows
      are fetched.
    - `saved`: the bytes saved.
    """

    source: Block
    result: int
    rows: NeededRows
    copies: tuple[RowCopy, ...]
    saved: int


def with_overlay(base: StepTable, plain: FusedRegion, option: OverlayOption) -> FusedRegion:
    """Return a variant of a region with an overlay: a step before the others fetches the operand by rows.

    The fetched rows are counted like the rows of any other result in the region, see `RegionGrower`.
    """
    source, rows, writer = option.source, option.rows, base.writer[option.source]
    tensor = base.tensor_in(source)
    bytes_, run = base.shape(tensor, rows.axis)
    halo = max(0, rows.end - rows.begin)
    a_row, keeps = float(rows.rate) * bytes_, halo * bytes_
    line = np.array([keeps + base.alignment, a_row, rows.end * bytes_ + base.alignment])
    lines = np.concatenate([plain.lines, line[:, None]], axis=1)
    lines[:, plain.last - base.end[source] : -1] += line[:, None]
    copied, copied_a_row, instructions = plain.copied[0], plain.copied[1] + a_row, plain.instructions + 1
    for copy in option.copies:
        lines[:, copy.position] -= copy.line
        instructions -= 1
        copied -= copy.copied
        copied_a_row -= copy.copied_a_row
    if halo:
        instructions += 2 if run else 4
        copied += (2.0 if run else 3.0) * keeps
        if not run:
            copied += 3 * BYTES_A_RUN * prod(tensor.dims[: rows.axis])
            lines[:2, -1] += base.alignment, a_row
            copied_a_row += a_row
    carried = plain.carried + align(keeps, base.alignment)
    return replace(
        plain,
        maps=(_copying(tensor, rows.axis), *plain.maps),
        inner=(Inner(rows.axis, rows.rate, rows.end, halo, False), *plain.inner),
        floor=plain.floor - option.saved + align(keeps, base.alignment),
        carried=carried,
        lines=lines,
        instructions=instructions,
        copied=(copied, copied_a_row),
        ahead=max(plain.ahead, rows.end / float(rows.rate)),
        overlay=Overlay(writer, base.steps[writer].outputs.index(tensor), option.result),
    )


def _copying(tensor: Tensor, axis: int) -> RowMap:
    """Return the row map of a step that copies a tensor."""
    return RowMap(**vars(same_rows(tensor.dims[axis])), sliced=((0, axis),))
