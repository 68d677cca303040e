"""The tiles of a fused region: the rows that each computes of every step, and those that it keeps for the next.

The steps from which tiles are cut include the fetch of an operand that a result overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import ceil

from isthmus.graph import Tensor
from isthmus.graph.rows import Rows
from isthmus.prepare.schedule import Step, StepRows
from isthmus.prepare.storage import Block
from isthmus.prepare.tiling.row_flow import RowFlow
from isthmus.prepare.tiling.search import RegionChoice
from isthmus.prepare.tiling.step_table import StepTable, align

MAX_TIMES = 4096
"""The maximum number of tiles in one repeat."""
Native = Callable[..., Tensor]
"""A function that creates a tensor from its name, dimensions, data type and quantization."""


@dataclass(frozen=True)
class RegionSteps:
    """The steps of a region.

    - `choice`: the region and the rows of its tiles.
    - `steps`: the whole steps. If an operand is overwritten, the first is a Reshape that fetches it.
    - `results`: for each block, the index of the step that writes it.
    - `operands`: for each step, the block of each operand by its position.
    - `overlaid`: an operand and the result that is written over it.
    """

    choice: RegionChoice
    steps: list[Step]
    results: dict[Block, int]
    operands: list[dict[int, Block]]
    overlaid: tuple[Tensor, Tensor] | None = None

    def result(self, number: int) -> Tensor:
        """Return the result of a step."""
        return self.steps[number].outputs[0]

    def readers(self) -> list[list[int]]:
        """List for each step the steps that read its result by rows."""
        readers: list[list[int]] = [[] for _ in self.steps]
        for reader, rows in enumerate(self.choice.region.maps):
            for position, _ in rows.sliced:
                writer = self.results.get(self.operands[reader][position])
                if writer is not None and reader not in readers[writer]:
                    readers[writer].append(reader)
        return readers


def region_steps(base: StepTable, choice: RegionChoice, native: Native) -> RegionSteps:
    """Return the steps of a choice; a result that is written over an operand shares its block from now on."""
    region = choice.region
    numbers = range(region.first, region.last + 1)
    steps = [base.steps[index] for index in numbers]
    blocks = [base.result[index] for index in numbers]
    operands = [{position: block for position, _, block in base.operands[index]} for index in numbers]
    overlay = region.overlay
    overlaid = None
    if overlay is not None:
        source, storage = base.steps[overlay.source].outputs[overlay.output], base.storage
        # The operand's block; its present one in `storage` may already be shared by an earlier region.
        source_block = base.results[overlay.source][overlay.output]
        fetched = native(source.name, source.dims, source.dtype, source.quantization)
        block = storage.block(fetched)
        # Steps of the region read the fetched rows, in the same views of its bytes as before.
        replaced: dict[Tensor, Tensor] = {source: fetched}
        for number, step in enumerate(steps):
            positions = [position for position, read in operands[number].items() if read is source_block]
            if not positions:
                continue
            inputs = list(step.inputs)
            for position in positions:
                tensor = inputs[position]
                assert tensor is not None
                if tensor not in replaced:
                    replaced[tensor] = native(tensor.name, tensor.dims, tensor.dtype, tensor.quantization)
                    storage.join(fetched, replaced[tensor])
                inputs[position] = replaced[tensor]
                operands[number][position] = block
            steps[number] = Step(step.op, step.name, inputs, step.outputs, step.params, step.clamp)
        steps.insert(0, Step("Reshape", source.name, [source], [fetched]))
        blocks.insert(0, block)
        operands.insert(0, {0: source_block})
        # A larger result ends where the operand ends, so it begins before it.
        result = base.steps[overlay.result].outputs[0]
        storage.join(source, result, -align(max(0, result.nbytes - source.nbytes), base.alignment))
        overlaid = source, result
    results = {block: number for number, block in enumerate(blocks) if block is not None}
    return RegionSteps(choice, steps, results, operands, overlaid)


@dataclass(frozen=True)
class Tile:
    """One tile.

    - `entries`: the rows of each step, in execution order.
    - `halo`: for each step whose result is not whole, the rows that later tiles read again.
    """

    entries: tuple[StepRows, ...]
    halo: dict[int, Rows]


def cut(whole: RegionSteps) -> list[Tile] | None:
    """Cut a region into tiles.

    Return None if a step in a tile would have nothing to read, or would overwrite rows of an operand that are still to
    be fetched.
    """
    choice, region = whole.choice, whole.choice.region
    heights = [
        rows.height if rows.reduces else step.outputs[0].dims[inner.axis]
        for step, rows, inner in zip(whole.steps, region.maps, region.inner, strict=True)
    ]
    flow = RowFlow(region.maps, heights, whole.readers(), [False] * len(heights))
    done = [0] * len(heights)
    tiles: list[Tile] = []
    end = choice.start
    while True:
        last = end >= region.height
        ends = heights if last else [ceil(inner.rate * end) + inner.ahead for inner in region.inner]
        entries = [StepRows(k, rows, region.maps[k].need(*rows)) for k, rows in flow.tile(done, ends).items()]
        if any(entry.source[0] >= entry.source[1] for entry in entries):
            return None
        for entry in entries:
            done[entry.step] = entry.rows[1]
        lowest = flow.halo(done, heights)
        held = [k for k, inner in enumerate(region.inner) if not inner.whole and lowest[k] < done[k]]
        tiles.append(Tile(tuple(entries), {k: (lowest[k], done[k]) for k in held}))
        if not _is_fetched(whole, done, heights):
            return None
        if last:
            return tiles
        end += choice.rows


def _is_fetched(whole: RegionSteps, done: list[int], heights: list[int]) -> bool:
    """Return whether step 0 has fetched all bytes that are overwritten once step k has computed `done[k]` rows."""
    region = whole.choice.region
    if region.overlay is None or done[0] == heights[0]:
        return True
    number = region.overlay.result - region.first + 1
    source, result = whole.result(0), whole.result(number)
    shift = max(0, result.nbytes - source.nbytes)
    return done[number] * (result.nbytes // heights[number]) <= shift + done[0] * (source.nbytes // heights[0])


def longest_run(choice: RegionChoice, tiles: list[Tile]) -> tuple[int, int]:
    """Find the longest run of tiles that differ only in position; return its first tile and its length.

    Each tile is a constant number of rows after the previous one.
    """
    keys = [_key(choice, tiles, number) for number in range(len(tiles))]
    places = [[(e.rows[0], e.source[0]) for e in tile.entries] for tile in tiles]
    best, first = (0, 0), 0
    while first < len(tiles) - 1:
        last = first + 1
        if keys[last] == keys[first]:
            moved = _shift(places[first], places[last])
            while last + 1 < min(len(tiles), first + MAX_TIMES) and keys[last + 1] == keys[first]:
                if _shift(places[last], places[last + 1]) != moved:
                    break
                last += 1
            if last - first + 1 > best[1]:
                best = first, last - first + 1
        first = last
    return best


def _shift(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return for each step how many rows further the second tile is than the first: in its result, in its operands."""
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]


def _key(choice: RegionChoice, tiles: list[Tile], number: int) -> Hashable:
    """Return a key that describes everything about a tile except its position."""
    tile, before = tiles[number], tiles[number - 1].halo if number else {}
    # The first available row of each result. Kept rows are available even if no rows are added to them.
    at_hand = {k: rows[0] for k, rows in before.items()}
    entries = []
    for entry in tile.entries:
        rows = choice.region.maps[entry.step]
        a, b = entry.rows
        first = at_hand.setdefault(entry.step, a)
        state = (a == 0, b == rows.height) if rows.reduces else rows.form(entry.rows, entry.source)
        entries.append((entry.step, b - a, a - first, entry.source[1] - entry.source[0], state))
    halo = tuple((k, high - low) for k, (low, high) in tile.halo.items())
    held = tuple((k, high - low) for k, (low, high) in before.items())
    # How far into the available rows each step reads.
    computed = (entry.step for entry in tile.entries if entry.step in tile.halo)
    return tuple(entries), halo, held, tuple((k, tile.halo[k][0] - at_hand[k]) for k in computed)
