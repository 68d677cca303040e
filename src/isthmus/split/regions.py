"""A run of neighbouring steps as instructions on strips: rows cut from tensors, steps on rows, rows joined.

The last rows of a strip that the next one reads again are cut off and joined with its new rows, so nothing is computed
twice. What is read after the run is joined at its end. The instructions are what both formats write, and what counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from isthmus.split.network import Key, Network, Rows, Rule

_NEVER = 1 << 60


@dataclass(frozen=True, eq=False)
class Piece:
    """Memory of its own: a whole value, or some of its rows, or such rows made ready for a step."""

    value: Key
    rows: Rows
    bytes: int
    whole: bool = False


@dataclass(frozen=True)
class CopyRows:
    """Rows are copied out of a piece."""

    source: Piece
    result: Piece

    @property
    def reads(self) -> tuple[Piece, ...]:
        """What it reads."""
        return (self.source,)


@dataclass(frozen=True)
class Join:
    """Pieces are copied together, one below the other."""

    parts: tuple[Piece, ...]
    result: Piece

    @property
    def reads(self) -> tuple[Piece, ...]:
        """What it reads."""
        return self.parts


@dataclass(frozen=True)
class PrepareOperand:
    """An operand is made ready for rows of a step."""

    step: int
    rows: Rows
    source: Piece
    result: Piece

    @property
    def reads(self) -> tuple[Piece, ...]:
        """What it reads."""
        return (self.source,)


@dataclass(frozen=True)
class Compute:
    """Rows of a step's result are computed; `operands` are what it takes by rows, in the order of its rule."""

    step: int
    rows: Rows
    source: Rows
    operands: tuple[Piece, ...]
    whole_operands: tuple[Piece, ...]
    result: Piece

    @property
    def reads(self) -> tuple[Piece, ...]:
        """What it reads."""
        return (*self.operands, *self.whole_operands)


@dataclass(frozen=True)
class Whole:
    """A step is computed as it was."""

    step: int
    operands: tuple[Piece, ...]
    results: tuple[Piece, ...]

    @property
    def reads(self) -> tuple[Piece, ...]:
        """What it reads."""
        return self.operands


Instruction = CopyRows | Join | PrepareOperand | Compute | Whole


class Wholes:
    """The pieces that are whole values of a network, one for each."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._pieces: dict[Key, Piece] = {}

    def __getitem__(self, key: Key) -> Piece:
        piece = self._pieces.get(key)
        if piece is None:
            rows = (0, self._network.values[key].rows)
            piece = self._pieces[key] = Piece(key, rows, self._network.size(key), True)
        return piece

    def compute(self, step: int) -> Whole:
        """A step as it was."""
        one = self._network.steps[step]
        return Whole(step, tuple(self[key] for key in one.inputs), tuple(self[key] for key in one.outputs))


@dataclass(frozen=True)
class Sketch:
    """About what strips have alive at most, what they copy, and their number of instructions."""

    bytes: int
    copied: int
    instructions: int


class SplitRegion:
    """The steps from `first` to `last` (both included), which all have rules, to be computed by strips."""

    def __init__(self, network: Network, first: int, last: int, wholes: Wholes) -> None:
        self.network, self.first, self.last = network, first, last
        self._wholes = wholes
        self._steps = network.steps[first : last + 1]
        self.rules: list[Rule] = [step.rule for step in self._steps if step.rule is not None]
        self._maker = {step.outputs[0]: k for k, step in enumerate(self._steps)}
        self._readers: list[list[int]] = [[] for _ in self._steps]
        for k, rule in enumerate(self.rules):
            for key in rule.sliced:
                if key in self._maker:
                    self._readers[self._maker[key]].append(k)
        self.outputs = [key for key in self._maker if network.end[key] > last]
        self._height = [network.values[step.outputs[0]].rows for step in self._steps]
        self.again = [
            rule.again and step.outputs[0] not in self.outputs
            for rule, step in zip(self.rules, self._steps, strict=True)
        ]
        self._idle = [0] * len(self._steps)

    @cached_property
    def _final(self) -> dict[int, Rows] | None:
        """The rows that each step computes where all is one strip."""
        return self._ends(self._idle, 1, 1)

    @property
    def possible(self) -> bool:
        """Whether every step has a rule, and none reads the whole of what another one makes."""
        return len(self.rules) == len(self._steps) and all(
            key in rule.sliced or key not in self._maker
            for rule, step in zip(self.rules, self._steps, strict=True)
            for key in step.inputs
        )

    @property
    def most(self) -> int:
        """The most strips."""
        return min((self.network.values[key].rows for key in self.outputs), default=0)

    def expand(self, count: int) -> list[Instruction] | None:
        """The instructions of so many strips; None where that cannot be."""
        done, final = list(self._idle), self._final
        if final is None:
            return None
        state = _Strips(self, self._wholes)
        for number in range(1, count + 1):
            spans = self._ends(done, number, count)
            if spans is None:
                return None
            for k, span in spans.items():
                if not self.again[k]:
                    done[k] = span[1]
            state.strip(spans, self._lowest(done, final))
        return state.finished()

    def sketch(self, count: int, ending: Sequence[Piece]) -> Sketch | None:
        """About what so many strips have alive and cost, from a few of them; `ending` is what nobody reads later."""
        idle, final = self._idle, self._final
        if final is None:
            return None
        most = copied = written = 0
        # Strips far from the edges are alike.
        for number in sorted({1, count // 2 + 1, count}):
            before = self._ends(idle, number - 1, count) if number > 1 else {}
            done = [0 if before is None else before.get(k, (0, 0))[1] for k in range(len(self._steps))]
            spans = self._ends(done, number, count)
            if spans is None or before is None:
                return None
            strips = _Strips(self, self._wholes)
            strips.resume(done, self._lowest(done, final))
            entering = [*strips.alive(), *ending]
            for k, span in spans.items():
                done[k] = span[1]
            strips.strip(spans, self._lowest(done, final))
            leaving = [*strips.alive(), *(ending if number < count else ())]
            most = max(most, most_alive(strips.instructions, entering, leaving)[0])
            times = 1 if number != count // 2 + 1 else max(count - 2, 1)
            written += times * len(strips.instructions)
            copies = (
                one.result.bytes for one in strips.instructions if isinstance(one, CopyRows | Join | PrepareOperand)
            )
            copied += times * sum(copies)
        joined = sum(self.network.values[key].bytes for key in self.outputs)
        most = max(most, joined + sum(self.network.size(key) for key in self.outputs))
        return Sketch(most, joined + copied, written)

    def _ends(self, done: Sequence[int], number: int, count: int) -> dict[int, Rows] | None:
        """The rows that each step computes in a strip; steps without any are left out."""
        spans: dict[int, Rows] = {}
        for k in range(len(self._steps) - 1, -1, -1):
            height, rule, key = self._height[k], self.rules[k], self._steps[k].outputs[0]
            low, high = _NEVER, 0
            if key in self.outputs:
                high = -(-height * number // count)
            for reader in self._readers[k]:
                if reader in spans:
                    needed = self.rules[reader].need(*spans[reader])
                    low, high = min(low, needed[0]), max(high, needed[1])
            start = low if self.again[k] else done[k]
            high = min(-(-high // rule.grain) * rule.grain, height)
            if high <= start:
                continue
            source = rule.need(start, high)
            if source[0] >= source[1] or high - start < min(rule.fewest, height):
                return None
            spans[k] = start, high
        return {k: spans[k] for k in sorted(spans)}

    def _lowest(self, done: Sequence[int], final: dict[int, Rows]) -> list[int]:
        """For each step the lowest row of its result that later strips read."""
        lowest = [_NEVER] * len(self._steps)
        for k in range(len(self._steps) - 1, -1, -1):
            for reader in self._readers[k]:
                row = lowest[reader] if self.again[reader] else done[reader]
                if row < final.get(reader, (0, 0))[1]:
                    grain = self.rules[reader].grain
                    row -= row % grain
                    lowest[k] = min(lowest[k], self.rules[reader].need(row, min(row + grain, self._height[reader]))[0])
        return lowest

    # What a strip's writer asks.

    def step(self, k: int) -> int:
        """The number of a step in the network."""
        return self.first + k

    def result(self, k: int) -> Key:
        """The value that a step makes."""
        return self._steps[k].outputs[0]

    def inputs(self, k: int) -> tuple[Key, ...]:
        """The values that a step reads."""
        return self._steps[k].inputs

    def maker(self, key: Key) -> int | None:
        """The step of the run that makes a value."""
        return self._maker.get(key)

    def is_read(self, k: int) -> bool:
        """Whether a step's result is read in the run."""
        return bool(self._readers[k])


class _Strips:
    """Writes the instructions of one run, strip after strip."""

    def __init__(self, run: SplitRegion, wholes: Wholes) -> None:
        self._run, self._wholes = run, wholes
        self.instructions: list[Instruction] = []
        self._held: dict[int, Piece] = {}
        self._parts: dict[Key, list[Piece]] = {key: [] for key in run.outputs}

    def resume(self, done: Sequence[int], lowest: Sequence[int]) -> None:
        """Go on where so many rows of each step are done already."""
        for k, rows in enumerate(done):
            key = self._run.result(k)
            if rows and key in self._parts:
                self._parts[key].append(self._piece(key, (0, rows)))
            if lowest[k] < rows and not self._run.again[k]:
                self._held[k] = self._piece(key, (lowest[k], rows))

    def alive(self) -> list[Piece]:
        """What later strips read, and the parts of what is joined at the end."""
        return [*self._held.values(), *(part for parts in self._parts.values() for part in parts)]

    def strip(self, spans: dict[int, Rows], lowest: Sequence[int]) -> None:
        """One strip: the rows that each step computes, and the lowest that later strips read of each result."""
        run = self._run
        last = {key: k for k in spans for key in run.rules[k].sliced}
        cuts: dict[tuple[Key, Rows], Piece] = {}
        for k, rows in spans.items():
            rule = run.rules[k]
            source = rule.need(*rows)
            operands = tuple(self._rows_of(key, source, cuts) for key in rule.sliced)
            size = rule.prepared(rows, source)
            if size:
                ready = Piece(operands[0].value, source, size)
                self.instructions.append(PrepareOperand(run.step(k), rows, operands[0], ready))
                operands = (ready, *operands[1:])
            others = tuple(self._wholes[key] for key in run.inputs(k) if key not in rule.sliced)
            made = self._piece(run.result(k), rows)
            self.instructions.append(Compute(run.step(k), rows, source, operands, others, made))
            if run.result(k) in self._parts:
                self._parts[run.result(k)].append(made)
            self._let_go(k, last, lowest)
            if run.is_read(k):
                self._hold(k, made)

    def finished(self) -> list[Instruction]:
        """All instructions, with the parts of what is read later joined."""
        for key, parts in self._parts.items():
            self.instructions.append(Join(tuple(parts), self._wholes[key]))
        return self.instructions

    def _piece(self, key: Key, rows: Rows) -> Piece:
        return Piece(key, rows, self._run.network.values[key].bytes_of(rows[1] - rows[0]))

    def _rows_of(self, key: Key, rows: Rows, cuts: dict[tuple[Key, Rows], Piece]) -> Piece:
        maker = self._run.maker(key)
        piece = self._wholes[key] if maker is None else self._held[maker]
        if piece.rows == rows:
            return piece
        if (key, rows) not in cuts:
            cuts[key, rows] = self._cut(piece, rows)
        return cuts[key, rows]

    def _cut(self, piece: Piece, rows: Rows) -> Piece:
        result = self._piece(piece.value, rows)
        self.instructions.append(CopyRows(piece, result))
        return result

    def _hold(self, k: int, made: Piece) -> None:
        """Join new rows with those kept from the strip before."""
        before = self._held.get(k)
        if before is not None and before.rows[1] == made.rows[0]:
            both = self._piece(made.value, (before.rows[0], made.rows[1]))
            self.instructions.append(Join((before, made), both))
            made = both
        self._held[k] = made

    def _let_go(self, k: int, last: dict[Key, int], lowest: Sequence[int]) -> None:
        """Behind the last reader of a result in this strip only the rows for the next strips are kept."""
        for key in self._run.rules[k].sliced:
            maker = self._run.maker(key)
            if maker is None or maker not in self._held or last[key] != k:
                continue
            held = self._held[maker]
            low = max(lowest[maker], held.rows[0])
            if low >= held.rows[1] or self._run.again[maker]:
                del self._held[maker]
            elif low > held.rows[0]:
                self._held[maker] = self._cut(held, (low, held.rows[1]))


def most_alive(
    instructions: Sequence[Instruction], entering: Iterable[Piece], leaving: Iterable[Piece]
) -> tuple[int, int]:
    """The most bytes alive over these instructions, and the first of them that has so many."""
    last: dict[Piece, int] = {}
    for index, one in enumerate(instructions):
        for piece in (*one.reads, *_results(one)):
            last[piece] = index
    last.update(dict.fromkeys(leaving, len(instructions)))
    now = sum(piece.bytes for piece in set(entering) if piece in last)
    alive = {piece for piece in entering if piece in last}
    most, where = 0, 0
    for index, one in enumerate(instructions):
        for piece in _results(one):
            if piece not in alive:
                alive.add(piece)
                now += piece.bytes
        if now > most:
            most, where = now, index
        for piece in {*one.reads, *_results(one)}:
            if last[piece] == index and piece in alive:
                alive.remove(piece)
                now -= piece.bytes
    return most, where


def _results(one: Instruction) -> tuple[Piece, ...]:
    return one.results if isinstance(one, Whole) else (one.result,)
