"""A fused region of a file as instructions on tiles: copies of rows, steps on rows, and joins of rows.

The halo (the last rows of a tile, which the next one reads again) is copied and joined with the new rows, so that
nothing is computed twice. Values that are read after the region are joined at its end. Both formats write the same
instructions, and bytes are counted by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from isthmus.graph.rows import Rows
from isthmus.prepare.tiling.row_flow import RowFlow
from isthmus.split.network import Key, Network, TileRule


@dataclass(frozen=True, eq=False)
class Piece:
    """A separate piece of memory: a whole value, some of its rows, or such rows prepared for a step.

    - `value`, `rows`, `bytes`: the value that it belongs to, the range of its rows, and its size.
    - `whole`: whether it is the value as the file has it.
    """

    value: Key
    rows: Rows
    bytes: int
    whole: bool = False


@dataclass(frozen=True)
class TileInstruction:
    """One operation of a split file, with the memory that it reads and writes."""

    reads: tuple[Piece, ...]
    results: tuple[Piece, ...]

    @property
    def result(self) -> Piece:
        """The first result."""
        return self.results[0]


@dataclass(frozen=True)
class CopyRows(TileInstruction):
    """A copy of some rows of a piece."""


@dataclass(frozen=True)
class Join(TileInstruction):
    """A concatenation of pieces along the rows."""


@dataclass(frozen=True)
class StepInstruction(TileInstruction):
    """An instruction that belongs to a step."""

    step: int


@dataclass(frozen=True)
class ComputeWhole(StepInstruction):
    """The computation of an unchanged step."""


@dataclass(frozen=True)
class PrepareOperand(StepInstruction):
    """A copy of an operand with the padding that some rows of a step's result need."""

    rows: Rows


@dataclass(frozen=True)
class Compute(StepInstruction):
    """The computation of `rows` of a step's result from the rows `source` of its operands.

    Its first reads are the operands read by rows, in the order of the rule.
    """

    rows: Rows
    source: Rows


def whole_values(network: Network) -> dict[Key, Piece]:
    """Return the pieces that are whole values of a network."""
    return {key: Piece(key, (0, one.rows), network.size(key), True) for key, one in network.values.items()}


@dataclass(frozen=True)
class TilingEstimate:
    """The estimated maximum of live bytes in tiles, the bytes that are copied, and the number of instructions."""

    bytes: int
    copied: int
    instructions: int


class SplitRegion:
    """The steps from `first` to `last` (inclusive), to be computed in tiles.

    - `network`, `first`, `last`: the steps of the file, and the first and last one of the region.
    - `wholes`: the pieces that are whole values; see `whole_values`.
    - `steps`, `rules`: the steps of the region, numbered from 0, and the rules of those that have one.
    - `writer`: for each value that the region computes, the number of the step in the region.
    - `outputs`: those of these values that are read after the region.
    """

    def __init__(self, network: Network, first: int, last: int, wholes: Mapping[Key, Piece]) -> None:
        self.network, self.first, self.last = network, first, last
        self.wholes = wholes
        self.steps = network.steps[first : last + 1]
        self.rules: list[TileRule] = [step.rule for step in self.steps if step.rule is not None]
        self.writer = {step.outputs[0]: k for k, step in enumerate(self.steps)}
        self.outputs = [key for key in self.writer if network.end[key] > last]

    @property
    def possible(self) -> bool:
        """Whether every step has a rule, and none reads the whole result of another one."""
        return len(self.rules) == len(self.steps) and all(
            key in rule.sliced or key not in self.writer
            for rule, step in zip(self.rules, self.steps, strict=True)
            for key in step.inputs
        )

    @cached_property
    def flow(self) -> RowFlow:
        """The row dependencies between its steps."""
        readers: dict[Key, list[int]] = {key: [] for key in self.writer}
        for k, rule in enumerate(self.rules):
            for key in rule.sliced:
                if key in readers:
                    readers[key].append(k)
        return RowFlow(
            [rule.rows for rule in self.rules],
            [self.network.values[key].rows for key in self.writer],
            list(readers.values()),
            [rule.recomputed and key not in self.outputs for rule, key in zip(self.rules, self.writer, strict=True)],
        )

    @property
    def most(self) -> int:
        """The maximum number of tiles."""
        return min((self.network.values[key].rows for key in self.outputs), default=0)

    def _tile(self, done: Sequence[int], number: int, count: int) -> dict[int, Rows] | None:
        """Return the rows of each step in tile `number` (from 1) of `count`; None if that tiling is impossible."""
        # `done` is the number of rows of each step that earlier tiles have computed. After the tile, each output has
        # its share of rows, ``number / count``.
        heights = zip(self.writer, self.flow.heights, strict=True)
        ends = [-(-height * number // count) if key in self.outputs else 0 for key, height in heights]
        tile = self.flow.tile(done, ends)
        for k, (start, end) in tile.items():
            low, high = self.rules[k].rows.need(start, end)
            if low >= high or end - start < min(self.rules[k].fewest, self.flow.heights[k]):
                return None
        return tile

    @cached_property
    def _ends(self) -> list[int] | None:
        """The number of rows of each step that all tiles compute together; None if tiles are impossible."""
        only_tile = self._tile([0] * len(self.steps), 1, 1)
        return None if only_tile is None else [only_tile.get(k, (0, 0))[1] for k in range(len(self.steps))]

    def expand(self, count: int) -> list[TileInstruction] | None:
        """Write the instructions of `count` tiles; return None if that is impossible."""
        if self._ends is None:
            return None
        done = [0] * len(self.steps)
        tiles = _TileWriter(self)
        for number in range(1, count + 1):
            tile = self._tile(done, number, count)
            if tile is None:
                return None
            for k, rows in tile.items():
                if not self.flow.recomputed[k]:
                    done[k] = rows[1]
            tiles.write(tile, self.flow.halo(done, self._ends))
        return tiles.finish()

    def estimate(self, count: int, ending: Sequence[Piece]) -> TilingEstimate | None:
        """Estimate `count` tiles from the first, the last and a middle one, since tiles far from the edges are alike.

        `ending` contains the pieces that are read in the region and not after it.
        """
        if self._ends is None:
            return None
        most = copied = instructions = 0
        for number in sorted({1, count // 2 + 1, count}):
            before = self._tile([0] * len(self.steps), number - 1, count) if number > 1 else {}
            if before is None:
                return None
            done = [before.get(k, (0, 0))[1] for k in range(len(self.steps))]
            tile = self._tile(done, number, count)
            if tile is None:
                return None
            tiles = _TileWriter(self)
            tiles.resume(done, self.flow.halo(done, self._ends))
            entering = [*tiles.alive(), *ending]
            for k, rows in tile.items():
                done[k] = rows[1]
            tiles.write(tile, self.flow.halo(done, self._ends))
            leaving = [*tiles.alive(), *(ending if number < count else ())]
            most = max(most, most_alive(tiles.instructions, entering, leaving)[0])
            # The middle tile stands for all but the first and the last.
            times = 1 if number != count // 2 + 1 else max(count - 2, 1)
            instructions += times * len(tiles.instructions)
            copied += times * sum(one.result.bytes for one in tiles.instructions if not isinstance(one, Compute))
        # At the end the parts of each output are joined, while both the parts and the whole value are alive.
        joined = sum(self.network.values[key].bytes for key in self.outputs)
        most = max(most, joined + sum(self.network.size(key) for key in self.outputs))
        return TilingEstimate(most, joined + copied, instructions)


class _TileWriter:
    """The writer of the instructions of one region, tile by tile."""

    def __init__(self, region: SplitRegion) -> None:
        self._region = region
        self.instructions: list[TileInstruction] = []
        # For each step whose rows are still read: its halo, or its halo and the rows of the current tile.
        self._held: dict[int, Piece] = {}
        # The rows of each output so far, to be joined at the end.
        self._parts: dict[Key, list[Piece]] = {key: [] for key in region.outputs}

    def resume(self, done: Sequence[int], lowest: Sequence[int]) -> None:
        """Continue as if `done` rows of each step were already computed, of which those from `lowest` on are held."""
        for k, rows in enumerate(done):
            key = self._region.steps[k].outputs[0]
            if rows and key in self._parts:
                self._parts[key].append(self._piece(key, (0, rows)))
            if lowest[k] < rows and not self._region.flow.recomputed[k]:
                self._held[k] = self._piece(key, (lowest[k], rows))

    def alive(self) -> list[Piece]:
        """List the pieces that later tiles read, and the parts that are joined at the end."""
        return [*self._held.values(), *(part for parts in self._parts.values() for part in parts)]

    def write(self, tile: dict[int, Rows], lowest: Sequence[int]) -> None:
        """Write a tile of these rows of each step; `lowest` is the first row of each result that later tiles read."""
        region = self._region
        # The last step of this tile that reads each value, and the copies of rows, which steps of the tile share.
        last = {key: k for k in tile for key in region.rules[k].sliced}
        copies: dict[tuple[Key, Rows], Piece] = {}
        for k, rows in tile.items():
            rule, step, number = region.rules[k], region.steps[k], region.first + k
            source = rule.rows.need(*rows)
            operands = [self._rows_of(key, source, copies) for key in rule.sliced]
            size = rule.prepared(rows, source)
            if size:
                ready = Piece(operands[0].value, source, size)
                self.instructions.append(PrepareOperand((operands[0],), (ready,), number, rows))
                operands[0] = ready
            operands += [region.wholes[key] for key in step.inputs if key not in rule.sliced]
            result = self._piece(step.outputs[0], rows)
            self.instructions.append(Compute(tuple(operands), (result,), number, rows, source))
            if result.value in self._parts:
                self._parts[result.value].append(result)
            self._let_go(k, last, lowest)
            if region.flow.readers[k]:
                self._hold(k, result)

    def finish(self) -> list[TileInstruction]:
        """Join the parts of values that are read later, and return all instructions."""
        for key, parts in self._parts.items():
            self.instructions.append(Join(tuple(parts), (self._region.wholes[key],)))
        return self.instructions

    def _piece(self, key: Key, rows: Rows) -> Piece:
        """Return a new piece of memory for some rows of a value."""
        return Piece(key, rows, self._region.network.values[key].bytes_of(rows[1] - rows[0]))

    def _rows_of(self, key: Key, rows: Rows, copies: dict[tuple[Key, Rows], Piece]) -> Piece:
        """Return a piece of exactly these rows of a value; rows of a larger piece are copied."""
        writer = self._region.writer.get(key)
        piece = self._region.wholes[key] if writer is None else self._held[writer]
        if piece.rows == rows:
            return piece
        if (key, rows) not in copies:
            copies[key, rows] = self._copy(piece, rows)
        return copies[key, rows]

    def _copy(self, piece: Piece, rows: Rows) -> Piece:
        """Append a copy of some rows of a piece, and return the copy."""
        result = self._piece(piece.value, rows)
        self.instructions.append(CopyRows((piece,), (result,)))
        return result

    def _hold(self, k: int, result: Piece) -> None:
        """Keep the new rows of step k's result for its readers, joined with the halo of the previous tile."""
        before = self._held.get(k)
        if before is not None and before.rows[1] == result.rows[0]:
            both = self._piece(result.value, (before.rows[0], result.rows[1]))
            self.instructions.append(Join((before, result), (both,)))
            result = both
        self._held[k] = result

    def _let_go(self, k: int, last: dict[Key, int], lowest: Sequence[int]) -> None:
        """After the last reader of a result in this tile, keep only its halo."""
        for key in self._region.rules[k].sliced:
            writer = self._region.writer.get(key)
            if writer is None or writer not in self._held or last[key] != k:
                continue
            held = self._held[writer]
            low = max(lowest[writer], held.rows[0])
            if low >= held.rows[1] or self._region.flow.recomputed[writer]:
                del self._held[writer]
            elif low > held.rows[0]:
                self._held[writer] = self._copy(held, (low, held.rows[1]))


def most_alive(
    instructions: Sequence[TileInstruction], entering: Iterable[Piece], leaving: Iterable[Piece]
) -> tuple[int, int]:
    """Return the maximum of live bytes over these instructions, and the first instruction that reaches it.

    `entering` and `leaving` are the pieces that are alive before the first and after the last instruction.
    """
    last: dict[Piece, int] = {}
    for index, one in enumerate(instructions):
        last.update(dict.fromkeys((*one.reads, *one.results), index))
    last.update(dict.fromkeys(leaving, len(instructions)))
    alive = {piece for piece in entering if piece in last}
    now = sum(piece.bytes for piece in alive)
    most, where = 0, 0
    for index, one in enumerate(instructions):
        new = set(one.results) - alive
        alive |= new
        now += sum(piece.bytes for piece in new)
        if now > most:
            most, where = now, index
        dead = {piece for piece in (*one.reads, *one.results) if last[piece] == index} & alive
        alive -= dead
        now -= sum(piece.bytes for piece in dead)
    return most, where
