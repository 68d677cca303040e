"""Growth of fused regions: from their last step, by one preceding step at a time.

A region's needs are counted as it grows, so that all regions with the same end cost little more than the longest. The
counts never decrease, except for copies that turn out to be unnecessary. So a region that cannot meet a limit is
detected before it has grown to its first step, and grows no further for that limit. The blocks that enter and leave a
region give a lower bound even before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, inf, lcm, prod

import numpy as np

from isthmus.graph.ops import OPERATIONS
from isthmus.graph.rows import Rate, RowMap
from isthmus.graph.traits import ProductKind
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.fused_region import (
    BYTES_A_NANOSECOND_NEARER,
    BYTES_A_RUN,
    FusedRegion,
    Inner,
    NeededRows,
    OverlayOption,
    RowCopy,
    with_overlay,
)
from isthmus.prepare.tiling.step_table import StepTable, TiledStep, align

# An overlay must save at least 1 / this of the peak of live bytes.
_WORTH_OVERLAYING = 20


@dataclass(frozen=True)
class LowerBounds:
    """Bounds of the regions that end with a given step, the shortest region first.

    - `alive`: the bytes alive throughout each region, without the halo.
    - `saved`: the most of these bytes that an overlay may save.
    """

    alive: list[int]
    saved: list[int]

    def least(self, steps: int) -> int:
        """Return the minimum of the bytes alive throughout the region with `steps` steps."""
        return self.alive[steps - 1] - self.saved[steps - 1]


def lower_bounds(base: StepTable, reaches: Sequence[int]) -> list[LowerBounds]:
    """Compute for each step the bounds of all regions that end with it, up to its number of steps in `reaches`."""
    # For each step, the blocks that no later step reads, as the step that begins them and their size.
    ended: list[list[tuple[int, int]]] = [[] for _ in base.steps]
    for block in base.simple:
        if base.end[block] < len(ended):
            ended[base.end[block]].append((base.begin[block], base.size[block]))
    bounds = []
    # For each step, the largest block that existed before it and that no step after the current last one reads.
    operands = [0] * len(base.steps)
    longest = max(reaches, default=0)
    for last, reach in enumerate(reaches):
        for begin, size in ended[last]:
            for first in range(max(begin, last - longest) + 1, last + 1):
                operands[first] = max(operands[first], size)
        alive, saved = [], []
        # The bytes that the region leaves to later steps, and the largest block among them.
        leaving = largest = 0
        for first in range(last, last - reach, -1):
            for block in base.begun[first]:
                if base.end[block] > last:
                    leaving += base.size[block]
                    largest = max(largest, base.size[block])
            alive.append(base.entering[first] + leaving)
            saved.append(min(largest, operands[first]))
        bounds.append(LowerBounds(alive, saved))
    return bounds


@dataclass(slots=True)
class _Grown:
    """The counts of a region at one stage of its growth; the region itself is built when it is first needed.

    - `floor`, `carried`, `lines`, `instructions`, `loss`, `won`, `ahead`, `grain`, `regular`: the values of
      `FusedRegion`; `lines` has a row for each position.
    - `most`: the maximum over all steps of the other live bytes, with tiles of one row.
    - `copied`, `copied_a_row`: the additional bytes that a tile copies: fixed and per row.
    - `option`: an overlay that is possible and saves enough; None if there is none.
    - `plain`, `overlaid`: the region without the overlay and with it, once built.
    """

    floor: int
    most: float
    carried: int
    lines: np.ndarray
    instructions: int
    copied: float
    copied_a_row: float
    loss: np.ndarray | None
    won: float
    ahead: float
    grain: int
    regular: bool
    option: OverlayOption | None
    plain: FusedRegion | None = None
    overlaid: FusedRegion | None = None

    @property
    def least(self) -> float:
        """The bytes that the region needs, as far as is known."""
        needed = self.floor + self.most
        plain = needed if self.plain is None else self.plain.least
        if self.option is None:
            return plain
        return min(plain, needed - self.option.saved if self.overlaid is None else self.overlaid.least)


class RegionGrower:
    """All regions that end with a given step, the shortest first; each has one more preceding step than the one before.

    Positions of steps are counted from the last one. A tensor that is written before a region is whole. When the region
    grows to include its writer, the tensor exists only in tiles.

    - `base`, `last`: the steps, and the number of the last step of all these regions.
    - `mode`: the image axis along which tiles are cut: 1 or `WIDTH`.
    - `longest`: the maximum number of steps of a region.
    - `bounds`: the lower bounds of the regions that end with this step.
    """

    def __init__(self, base: StepTable, last: int, mode: int, longest: int, bounds: LowerBounds) -> None:
        self._base, self._last, self._mode = base, last, mode
        self._first = last + 1
        """The first step of the longest region so far."""
        self._longest, self._bounds = longest, bounds
        self._ended = False
        """Whether no longer region is possible."""
        self.cut_short = False
        """Whether a longer region than allowed was requested."""
        self._needs: dict[Block, NeededRows | None] = {}
        """The rows that the region's steps read of each block; None if they read all, or not along the same axis."""
        self._sources: dict[Block, None] = {}
        """The blocks that are read by rows, were written before the region, and are not read after it."""
        self._copies: dict[Block, list[RowCopy]] = {}
        """The copies of rows that are not contiguous in their block, as long as the block is whole."""
        self._maps: list[RowMap] = []
        self._inner: list[Inner] = []
        """The row map and the result of each step, by position."""
        self._lines = np.zeros((longest, 3))
        """For each position, the values of `FusedRegion.lines`, without copies."""
        self._one_row: list[float] = []
        self._most = 0.0
        """The maximum of `_one_row`, which holds for each position the bytes of tiles of one row."""
        self._in_place: set[int] = set()
        """The positions of steps that write their result over an operand."""
        self._whole_result, self._whole_bytes = -1, 0
        """The step with the largest whole result so far, and the size of that result."""
        # The following are counts so far; `FusedRegion` and `_Grown` explain them. `_sums` are the bytes of sums of
        # steps that reduce rows.
        self._height = 0
        self._grain, self._regular = 1, True
        self._sums = self._carried = self._instructions = 0
        self._copied = self._copied_a_row = self._ahead = self._won = 0.0
        self._loss: np.ndarray | None = None
        self._grown: dict[int, _Grown] = {}
        """The counts of each region, by its first step."""

    def regions(self, first: int, limit: int) -> list[FusedRegion]:
        """List the region that begins with a step, and its variant with an overlay, if they are within a limit.

        The region grows to that step, unless it is known before that it cannot be within the limit.
        """
        if self._first > first and not self._ended:
            # Everything counted so far is also alive in a longer region.
            room = limit - self._bounds.least(self._last - first + 1)
            while self._first > first and self._sums + self._carried + self._most <= room:
                if len(self._inner) == self._longest:
                    self.cut_short = True
                    break
                if not self._grow(self._first - 1):
                    self._ended = True
                    break
                self._first -= 1
                self._note()
        grown = self._grown.get(first)
        return [] if grown is None else self._variants(first, grown, limit)

    def _variants(self, first: int, grown: _Grown, limit: int) -> list[FusedRegion]:
        """List the regions already grown to this stage that are within a limit: without an overlay, and with one."""
        variants, needed = [], grown.floor + grown.most
        if needed <= limit:
            variants.append(self._plain(first, grown))
        if grown.option is not None and needed - grown.option.saved <= limit:
            if grown.overlaid is None:
                grown.overlaid = with_overlay(self._base, self._plain(first, grown), grown.option)
            variants.append(grown.overlaid)
        return [region for region in variants if region.least <= limit]

    def least(self, first: int) -> float:
        """Return the minimum of bytes that any region beginning with a step needs, as far as is known."""
        grown = self._grown.get(first)
        if grown is not None:
            return grown.least
        if first >= self._first or self._ended or self.cut_short:
            return inf
        return self._bounds.least(self._last - first + 1) + self._sums + self._carried + self._most

    def _overlay(self) -> OverlayOption | None:
        """Find the largest result that can overwrite an operand that is no longer read, if it saves enough."""
        base, result = self._base, self._whole_result
        if self._bounds.saved[self._last - self._first] * _WORTH_OVERLAYING < base.peak or result < 0:
            return None
        result_tensor, own = base.steps[result].outputs[0], self._inner[self._last - result]
        result_block = base.result[result]
        assert result_block is not None
        source, saved, most = None, 0, base.size[result_block]
        for block in self._sources:
            size = base.size[block]
            # A block of the same size is simplest, since the extent of any other changes over time.
            if min(size, most) > saved or (size == most == saved):
                source, saved = block, min(size, most)
        rows = None if source is None else self._needs[source]
        if source is None or rows is None or saved * _WORTH_OVERLAYING < base.peak:
            return None
        tensor = base.tensor_in(source)
        (bytes_, run), (result_bytes, result_run) = base.shape(tensor, rows.axis), base.shape(result_tensor, own.axis)
        # The rows of the result must not overtake the rows of the operand that are fetched.
        if run and result_run:
            fits = own.ahead * result_bytes <= rows.end * bytes_
        else:
            # Columns are aligned only if all rows have the same length.
            alike = tensor.dims[: rows.axis + 1] == result_tensor.dims[: own.axis + 1] and bytes_ == result_bytes
            fits = alike and rows.rate == own.rate and own.ahead <= rows.end
        if not fits or tensor.dims[rows.axis] < 2:
            return None
        return OverlayOption(source, result, rows.copy(), tuple(self._copies.get(source, ())), saved)

    def _note(self) -> None:
        """Store the counts, unless they exceed the peak of the untiled steps."""
        position = self._last - self._first
        floor = self._bounds.alive[position] + self._sums + self._carried
        if floor - self._bounds.saved[position] + self._most > self._base.peak:
            return
        lines = self._lines[: position + 1].copy()
        for copies in self._copies.values():
            for copy in copies:
                lines[copy.position] += copy.line
        regular = self._regular and self._grain * 3 <= self._height
        self._grown[self._first] = _Grown(
            floor, self._most, self._carried, lines, self._instructions, self._copied, self._copied_a_row, self._loss,
            self._won, self._ahead, self._grain if regular else 1, regular, self._overlay(),
        )  # fmt: skip

    def _plain(self, first: int, grown: _Grown) -> FusedRegion:
        """Return the region that begins with a step; its result does not overwrite an operand (`_overlay`)."""
        if grown.plain is None:
            base, steps, order = self._base, slice(first, self._last + 1), slice(self._last - first, None, -1)
            grown.plain = FusedRegion(
                first=first, last=self._last, maps=tuple(self._maps[order]), inner=tuple(self._inner[order]),
                height=self._height, grain=grown.grain, regular=grown.regular, floor=grown.floor,
                carried=grown.carried, lines=grown.lines.T, instructions=grown.instructions,
                copied=(grown.copied, grown.copied_a_row), loss=grown.loss, won=grown.won, ahead=grown.ahead,
                time=base.time[steps], together=base.together[steps], threads=base.engine.threads,
                sharing=base.engine.sharing,
            )  # fmt: skip
        return grown.plain

    def _grow(self, index: int) -> bool:
        """Add one preceding step; return False if that is impossible."""
        base = self._base
        block = base.result[index]
        if block is None:
            return False
        self._sources.pop(block, None)
        whole, simple = base.end[block] > self._last, block in base.simple
        if not whole and not simple:
            return False
        needed = self._needs.get(block)
        if needed is not None:
            # Steps of the region read the result by rows, so they determine which rows a tile computes.
            rate, ahead, low = needed.rate, needed.end, needed.begin
            along = base.along(index, needed.axis)
            if along is None:
                return False
        else:
            # No step of the region reads the result, so the step is one of those that end the region.
            along = base.last_along(index, self._mode)
            if along is None or not whole or block in self._needs:
                return False
            self._height = self._height or along.count
            rate, ahead = self._beside(index, along.rows) or (_ratio(along.count, self._height), 0)
            low = ahead
        rows = along.rows
        if rows.grain > 1:
            ahead = -(-ahead // rows.grain) * rows.grain
        own = Inner(along.axis, rate, ahead, 0 if whole else max(0, ahead - low), whole)
        self._maps.append(rows)
        self._inner.append(own)
        self._instructions += 1
        if ahead > 0:
            self._ahead = max(self._ahead, ahead / float(rate))
        self._regular = self._regular and rows.regular
        if not along.plain or rate.__class__ is not int:
            self._grain = _common(self._grain, rate, rate * rows.rate, Fraction(rate) / rows.grain)
        space, a_row = along.space, along.space_a_row
        if space or a_row:
            self._lines[self._last - index] = space, a_row * rate, space + a_row * max(ahead, 0)
        self._one_row.append(space + a_row * rate)
        if not rows.reduces:
            self._hold(index, block, along, own)
            if whole and simple and base.size[block] > self._whole_bytes:
                self._whole_result, self._whole_bytes = index, base.size[block]
            more = base.loss(index, along, rate, self._height)
            if more is not None:
                # Do not modify the array in place: stages stored earlier refer to it.
                self._loss = more if self._loss is None else self._loss + more
            self._won += base.beyond[index] / BYTES_A_NANOSECOND_NEARER / base.engine.threads
        self._sums += along.sums
        return self._ask(index, along, own)

    def _beside(self, index: int, rows: RowMap) -> tuple[Rate, int] | None:
        """Return `rate` and `ahead` (see `Inner`) of a result that reads a tensor which the region reads already."""
        sliced = dict(rows.sliced)
        for position, tensor, source in self._base.operands[index]:
            needed = self._needs.get(source)
            if position not in sliced or needed is None:
                continue
            if tensor.rank and needed.rate and rows.rate:
                return _whole(Fraction(needed.rate) / rows.rate), floor((needed.end - rows.after) / rows.rate)
        return None

    def _hold(self, index: int, block: Block, along: TiledStep, own: Inner) -> None:
        """Count the bytes of a result: whole results are alive throughout, others from here to their last reader."""
        base, position = self._base, self._last - index
        bytes_, run = along.bytes, along.run
        a_row = float(own.rate) * bytes_
        if own.whole:
            if not run:
                self._add(position, position, base.alignment, a_row, own.ahead * bytes_)
                self._instructions += 1
                self._copied += BYTES_A_RUN * along.runs
                self._copied_a_row += a_row
            return
        for copy in self._copies.pop(block, ()):
            self._instructions -= 1
            self._copied -= copy.copied
            self._copied_a_row -= copy.copied_a_row
        keeps = own.halo * bytes_
        if own.halo:
            self._carried += align(keeps, base.alignment)
            self._instructions += 2 if run else 4
            self._copied += 2.0 * keeps
            if not run:
                # The new rows are computed separately, and then appended to the kept rows.
                self._add(position, position, base.alignment, a_row, 0)
                self._copied += keeps + 3 * BYTES_A_RUN * along.runs
                self._copied_a_row += a_row
        end = self._last - base.end[block]
        if not own.halo and end not in self._in_place and self._overwritten(base.end[block], own, bytes_):
            self._in_place.add(end)
            end += 1
        self._add(end, position, keeps + base.alignment, a_row, own.ahead * bytes_ + base.alignment)

    def _add(self, end: int, position: int, fixed: float, a_row: float, at_first: float) -> None:
        """Count bytes as alive from the step at `position` to that at `end`: fixed, per row, and in the first tile."""
        self._lines[end : position + 1] += fixed, a_row, at_first
        one_row = self._one_row
        for touched in range(end, position + 1):
            one_row[touched] += fixed + a_row
        self._most = max(self._most, *one_row[end : position + 1])

    def _overwritten(self, reader: int, own: Inner, bytes_: int) -> bool:
        """Return whether the last reader of a tensor writes its result over it."""
        step, result = self._base.steps[reader], self._inner[self._last - reader]
        if not OPERATIONS[step.op].traits.element_wise or result.whole or result.halo or result.rate != own.rate:
            return False
        return self._base.shape(step.outputs[0], result.axis)[0] == bytes_

    def _ask(self, index: int, along: TiledStep, own: Inner) -> bool:
        """Record the rows that a step needs of its operands; return False if it needs all of a tensor of the region."""
        base, rows, last = self._base, along.rows, self._last
        rate = _whole(own.rate * rows.rate)
        end, begin = ceil(rows.rate * own.ahead + rows.after), floor(rows.rate * own.ahead - rows.before)
        for read in along.reads:
            source = read.source
            if read.by_rows:
                self._need(source, read.axis, rate, end, begin)
            else:
                if self._first <= read.writer <= last:
                    return False
                self._needs[source] = None
                if OPERATIONS[base.steps[index].op].traits.product is ProductKind.MATRIX:
                    # A computed right matrix is packed again for every tile.
                    self._copied += 2.0 * read.tensor.nbytes
            if not read.run:
                around = float(max(0, rows.before + rows.after)) * read.bytes
                runs = BYTES_A_RUN * prod(read.tensor.dims[: own.axis])
                first = max(0.0, float(rows.rate * own.ahead + rows.after)) * read.bytes
                a_row = float(rate) * read.bytes
                line = np.array([around + base.alignment, a_row, first + base.alignment])
                self._instructions += 1
                self._copied += around + runs
                self._copied_a_row += a_row
                self._copies.setdefault(source, []).append(RowCopy(last - index, line, around + runs, a_row))
        return True

    def _need(self, source: Block, axis: int | None, rate: Rate, end: int, begin: int) -> None:
        """Record that a step reads rows of a block; record None if its readers differ in the axis or rate of rows."""
        needed = self._needs.get(source)
        if needed is not None and needed.axis == axis and needed.rate == rate:
            if end > needed.end:
                needed.end = end
            if begin < needed.begin:
                needed.begin = begin
        elif axis is None or source in self._needs:
            self._needs[source] = None
        else:
            self._needs[source] = NeededRows(axis, rate, end, begin)
            if self._base.end[source] <= self._last:
                self._sources[source] = None


def _common(grain: int, *rates: Rate) -> int:
    """Return the number of rows for which all rates give integers."""
    return lcm(grain, *(Fraction(rate).denominator for rate in rates))


def _ratio(rows: int, counted: int) -> Rate:
    """Return the rows of a tensor for each row of the reference tensor, which has `counted` rows."""
    return 1 if rows == counted else _whole(Fraction(rows, counted))


def _whole(rate: Rate) -> Rate:
    """Return a rate as an integer if it is one; integers are much faster than fractions."""
    return rate if rate.__class__ is int or rate.denominator != 1 else int(rate)
