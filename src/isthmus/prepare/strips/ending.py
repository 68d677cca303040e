"""How stretches grow: from the step that they end with, by one step more in front each time.

What a stretch needs is counted as it grows, so that all stretches with the same end cost little more than the longest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil, floor, lcm, prod

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.rows import Rate, RowMap
from isthmus.graph.traits import Product
from isthmus.prepare.storage import Block
from isthmus.prepare.strips.base import Base, aligned
from isthmus.prepare.strips.stretch import BYTES_A_NANOSECOND_NEARER, BYTES_A_RUN, Inner, Overlay, Stretch

_WORTH_OVERLAYING = 20
"""A result over an operand saves at least this part of the most bytes alive."""


@dataclass
class _Wanted:
    """What the readers in a stretch want of a tensor: rate, end and begin of the rows, along one axis of it."""

    axis: int
    rate: Rate
    end: int
    begin: int


@dataclass(frozen=True)
class _Copy:
    """Rows of a tensor that are copied out of it for a reader at a position: what it adds to the line there."""

    position: int
    line: np.ndarray
    copied: float
    copied_a_row: float


@dataclass(frozen=True)
class _Over:
    """A result that can lie over an operand, as things are with a stretch: what that takes, and the bytes it saves."""

    source: Block
    result: int
    wanted: _Wanted
    copies: tuple[_Copy, ...]
    saved: int


class Ending:
    """All stretches that end with a step, the shortest first: each has one step more in front than the one before.

    Positions of steps are counted from the last one. A tensor that is written before a stretch is whole; when the
    stretch grows to hold its writer, it becomes one that exists by strips.
    """

    def __init__(self, base: Base, last: int, mode: int, longest: int) -> None:
        self._base, self._last, self._mode = base, last, mode
        self._first = last + 1
        self._longest = longest
        self._ended = False
        self.cut_short = False
        """Whether a longer stretch was asked for than it may have."""
        self._wanted: dict[Block, _Wanted | None] = {}
        self._sources: dict[Block, None] = {}
        """What is read by rows, was made before, and is read by nobody afterwards."""
        self._copies: dict[Block, list[_Copy]] = {}
        self._maps: list[RowMap] = []
        self._inner: list[Inner] = []
        self._lines = np.zeros((3, longest))
        self._in_place: set[int] = set()
        self._whole_result = -1
        self._height = 0
        self._grain, self._regular = 1, True
        self._made = self._carried = self._instructions = 0
        self._copied = self._copied_a_row = self._ahead = self._won = 0.0
        self._loss: np.ndarray | None = None
        self._plain: dict[int, Stretch] = {}
        self._over: dict[int, _Over] = {}
        self._overlaid: dict[int, Stretch] = {}

    def stretches(self, first: int, limit: int) -> list[Stretch]:
        """The stretch that begins with a step, and the same with a result over an operand, below a limit."""
        while self._first > first and not self._ended and self._stays_below(limit):
            if len(self._inner) == self._longest:
                self.cut_short = True
                break
            self._ended = self._first == 0 or not self._grow(self._first - 1)
            if not self._ended:
                self._first -= 1
                self._plain[self._first] = self._snapshot()
                over = self._overlay()
                if over is not None:
                    self._over[self._first] = over
        return self._known(first, limit)

    def _stays_below(self, limit: int) -> bool:
        """Whether a longer stretch may have less alive all through it than a limit: one result lies over an operand."""
        return self._made + self._carried - self._whole_bytes() < limit

    def _known(self, first: int, limit: int) -> list[Stretch]:
        """The same, of those that have been looked at before."""
        plain, over = self._plain.get(first), self._over.get(first)
        found = [] if plain is None or plain.floor >= limit else [plain]
        if plain is not None and over is not None and plain.floor - over.saved < limit:
            if first not in self._overlaid:
                self._overlaid[first] = self._with(plain, over)
            found.append(self._overlaid[first])
        return found

    def _overlay(self) -> _Over | None:
        """The largest result over an operand that nobody reads any more, where that is worth it."""
        base, result = self._base, self._whole_result
        if result < 0 or self._whole_bytes() * _WORTH_OVERLAYING < base.peak:
            return None
        made, own = base.steps[result].outputs[0], self._inner[self._last - result]
        result_block = base.result[result]
        assert result_block is not None
        source, saved, most = None, 0, base.size[result_block]
        for block in self._sources:
            size = base.size[block]
            # One of the same size is simplest: any other block has an extent that changes in time.
            if min(size, most) > saved or (size == most == saved):
                source, saved = block, min(size, most)
        wanted = None if source is None else self._wanted[source]
        if source is None or wanted is None or saved * _WORTH_OVERLAYING < base.peak:
            return None
        tensor = base.made(source)
        (bytes_, run), (result_bytes, result_run) = base.shape(tensor, wanted.axis), base.shape(made, own.axis)
        if run and result_run:
            fits = own.ahead * result_bytes <= wanted.end * bytes_
        else:
            # Columns lie one below the other only where all rows are equally long.
            alike = tensor.dims[: wanted.axis + 1] == made.dims[: own.axis + 1] and bytes_ == result_bytes
            fits = alike and wanted.rate == own.rate and own.ahead <= wanted.end
        if not fits or tensor.dims[wanted.axis] < 2:
            return None
        return _Over(source, result, replace(wanted), tuple(self._copies.get(source, ())), saved)

    def _with(self, plain: Stretch, over: _Over) -> Stretch:
        """A stretch with a result over an operand."""
        base, source, wanted = self._base, over.source, over.wanted
        tensor = base.made(source)
        bytes_, run = base.shape(tensor, wanted.axis)
        kept = max(0, wanted.end - wanted.begin)
        a_row, keeps = float(wanted.rate) * bytes_, kept * bytes_
        line = np.array([keeps + base.alignment, a_row, wanted.end * bytes_ + base.alignment])
        lines = np.concatenate([plain.lines, line[:, None]], axis=1)
        lines[:, self._last - base.end[source] : -1] += line[:, None]
        copied, copied_a_row, instructions = plain.copied[0], plain.copied[1] + a_row, plain.instructions + 1
        for copy in over.copies:
            lines[:, copy.position] -= copy.line
            instructions -= 1
            copied -= copy.copied
            copied_a_row -= copy.copied_a_row
        if kept:
            instructions += 2 if run else 4
            copied += (2.0 if run else 3.0) * keeps
            if not run:
                copied += 3 * BYTES_A_RUN * prod(tensor.dims[: wanted.axis])
                lines[:2, -1] += base.alignment, a_row
                copied_a_row += a_row
        carried = plain.carried + aligned(keeps, base.alignment)
        return replace(
            plain,
            maps=(_fetching(tensor, wanted.axis), *plain.maps),
            inner=(Inner(wanted.axis, wanted.rate, wanted.end, kept, False), *plain.inner),
            floor=plain.floor - over.saved + aligned(keeps, base.alignment),
            carried=carried,
            lines=lines,
            instructions=instructions,
            copied=(copied, copied_a_row),
            ahead=max(plain.ahead, wanted.end / float(wanted.rate)),
            overlay=Overlay(base.writer[source], over.result),
        )

    def _snapshot(self) -> Stretch:
        count = len(self._inner)
        regular = self._regular and self._grain * 3 <= self._height
        return Stretch(
            first=self._first,
            last=self._last,
            mode=self._mode,
            maps=tuple(self._maps[::-1]),
            inner=tuple(self._inner[::-1]),
            height=self._height,
            grain=self._grain if regular else 1,
            regular=regular,
            floor=self._base.entering[self._first] + self._made + self._carried,
            carried=self._carried,
            lines=self._lines[:, :count].copy(),
            instructions=self._instructions,
            copied=(self._copied, self._copied_a_row),
            loss=self._loss,
            won=self._won,
            ahead=self._ahead,
            time=self._base.time[self._first : self._last + 1],
            together=self._base.together[self._first : self._last + 1],
            threads=self._base.engine.threads,
            sharing=self._base.engine.sharing,
        )

    def _grow(self, index: int) -> bool:
        """Take a step more; False where none can be taken."""
        base, position = self._base, self._last - index
        block, step = base.result[index], base.steps[index]
        if block is None:
            return False
        self._sources.pop(block, None)
        result = step.outputs[0]
        whole = base.end[block] > self._last
        if not whole and block not in base.simple:
            return False
        if block in self._wanted:
            wanted = self._wanted[block]
            if wanted is None:
                return False
            axis, rate, ahead, low = wanted.axis, wanted.rate, wanted.end, wanted.begin
            rows = base.map(index, axis)
            if rows is None or rows.reduces:
                return False
        else:
            sink = base.sink(index, self._mode)
            if sink is None or not whole:
                return False
            axis, rows = sink
            own_rows = rows.height if rows.reduces else result.dims[axis]
            self._height = self._height or own_rows
            rate, ahead = self._beside(index, rows) or (_ratio(own_rows, self._height), 0)
            low = ahead
        if rows.grain > 1:
            ahead = -(-ahead // rows.grain) * rows.grain
        own = Inner(axis, rate, ahead, 0 if whole else max(0, ahead - low), whole)
        self._maps.append(rows)
        self._inner.append(own)
        self._instructions += 1
        self._ahead = max(self._ahead, ahead / float(rate))
        self._regular = self._regular and rows.regular
        if not rate.__class__ is rows.rate.__class__ is int or rows.grain > 1:
            self._grain = _common(self._grain, rate, rate * rows.rate, Fraction(rate) / rows.grain)
        self._made += sum(base.size[b] for b in base.begun[index] if base.end[b] > self._last)
        if rows.reduces:
            if result.dtype.is_fixed_point:
                self._made += aligned(4 * result.elements, base.alignment)
        else:
            self._hold(index, block, result, own)
            if whole and block in base.simple and base.size[block] > self._whole_bytes():
                self._whole_result = index
            more = base.loss(index, axis, rate, self._height)
            if more is not None:
                # Snapshots keep what they have.
                self._loss = more if self._loss is None else self._loss + more
            self._won += base.beyond[index] / BYTES_A_NANOSECOND_NEARER / base.engine.threads
        space, a_row = base.space(index, axis)
        self._lines[:, position] += space, a_row * float(rate), space + a_row * max(ahead, 0)
        return self._ask(index, rows, own)

    def _whole_bytes(self) -> int:
        """The bytes of the largest whole result so far."""
        block = self._base.result[self._whole_result] if self._whole_result >= 0 else None
        return 0 if block is None else self._base.size[block]

    def _beside(self, index: int, rows: RowMap) -> tuple[Rate, int] | None:
        """Rate and lead of a result that is made of what another one is made of."""
        sliced = dict(rows.sliced)
        for position, tensor, source in self._base.operands[index]:
            known = self._wanted.get(source)
            if position not in sliced or known is None:
                continue
            if tensor.rank and known.rate and rows.rate:
                return _whole(Fraction(known.rate) / rows.rate), floor((known.end - rows.after) / rows.rate)
        return None

    def _hold(self, index: int, block: Block, result: Tensor, own: Inner) -> None:
        """Count the bytes of a result: whole ones are alive all the time, others from here to their last reader."""
        base, position = self._base, self._last - index
        bytes_, run = base.shape(result, own.axis)
        a_row = float(own.rate) * bytes_
        if own.whole:
            if not run:
                self._lines[:, position] += base.alignment, a_row, own.ahead * bytes_
                self._instructions += 1
                self._copied += BYTES_A_RUN * prod(result.dims[: own.axis])
                self._copied_a_row += a_row
            return
        for copy in self._copies.pop(block, ()):
            self._lines[:, copy.position] -= copy.line
            self._instructions -= 1
            self._copied -= copy.copied
            self._copied_a_row -= copy.copied_a_row
        keeps = own.kept * bytes_
        if own.kept:
            self._carried += aligned(keeps, base.alignment)
            self._instructions += 2 if run else 4
            self._copied += 2.0 * keeps
            if not run:
                # What is new is computed apart, and then put behind what was kept.
                self._lines[:, position] += base.alignment, a_row, 0
                self._copied += keeps + 3 * BYTES_A_RUN * prod(result.dims[: own.axis])
                self._copied_a_row += a_row
        end = self._last - base.end[block]
        line = np.array([keeps + base.alignment, a_row, own.ahead * bytes_ + base.alignment])
        self._lines[:, end : position + 1] += line[:, None]
        if not own.kept and end not in self._in_place and self._overwritten(base.end[block], own, bytes_):
            self._in_place.add(end)
            self._lines[:, end] -= line

    def _overwritten(self, reader: int, own: Inner, bytes_: int) -> bool:
        """Whether the last reader of a tensor writes its result over it."""
        step, result = self._base.steps[reader], self._inner[self._last - reader]
        if not OPERATIONS[step.op].traits.element_wise or result.whole or result.kept or result.rate != own.rate:
            return False
        return self._base.shape(step.outputs[0], result.axis)[0] == bytes_

    def _ask(self, index: int, rows: RowMap, own: Inner) -> bool:
        """Note what a step wants of its operands, whether or not they are made in the stretch."""
        base, position = self._base, self._last - index
        rate = _whole(own.rate * rows.rate)
        end, begin = ceil(rows.rate * own.ahead + rows.after), floor(rows.rate * own.ahead - rows.before)
        for read in base.reads(index, rows):
            source = read.source
            if read.by_rows:
                self._want(source, read.axis, rate, end, begin)
            else:
                if self._first <= read.writer <= self._last:
                    return False
                self._wanted[source] = None
                if OPERATIONS[base.steps[index].op].traits.product is Product.MATRIX:
                    # A right matrix that is computed is packed anew for every strip.
                    self._copied += 2.0 * read.tensor.nbytes
            if not read.run:
                around = float(max(0, rows.before + rows.after)) * read.bytes
                runs = BYTES_A_RUN * prod(read.tensor.dims[: own.axis])
                first = max(0.0, float(rows.rate * own.ahead + rows.after)) * read.bytes
                a_row = float(rate) * read.bytes
                line = np.array([around + base.alignment, a_row, first + base.alignment])
                self._lines[:, position] += line
                self._instructions += 1
                self._copied += around + runs
                self._copied_a_row += a_row
                self._copies.setdefault(source, []).append(_Copy(position, line, around + runs, a_row))
        return True

    def _want(self, source: Block, axis: int | None, rate: Rate, end: int, begin: int) -> None:
        if axis is None:
            self._wanted[source] = None
        elif source not in self._wanted:
            self._wanted[source] = _Wanted(axis, rate, end, begin)
            if self._base.end[source] <= self._last:
                self._sources[source] = None
        else:
            known = self._wanted[source]
            if known is not None and (known.axis, known.rate) == (axis, rate):
                known.end, known.begin = max(known.end, end), min(known.begin, begin)
            else:
                self._wanted[source] = None


def _fetching(tensor: Tensor, axis: int) -> RowMap:
    """The map of a step that copies a tensor."""
    return RowMap(((0, axis),), tensor.dims[axis], 1, 0, 0, lambda a, b: (a, b), lambda rows, source: {})


def _common(grain: int, *rates: Rate) -> int:
    """Rows with which all rates come to whole rows."""
    return lcm(grain, *(Fraction(rate).denominator for rate in rates))


def _ratio(rows: int, counted: int) -> Rate:
    return 1 if rows == counted else _whole(Fraction(rows, counted))


def _whole(rate: Rate) -> Rate:
    return rate if rate.__class__ is int or rate.denominator != 1 else int(rate)
