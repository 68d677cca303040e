"""The tiles of a fused region: the rows that each computes of every step, and those that it keeps for the next."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil

from isthmus.graph.rows import Rows
from isthmus.prepare.schedule import StepRows
from isthmus.prepare.tiling.region_steps import RegionSteps
from isthmus.prepare.tiling.row_flow import RowFlow
from isthmus.prepare.tiling.search import RegionChoice

MAX_TIMES = 4096
"""The maximum number of tiles in one repeat."""


@dataclass(frozen=True)
class Tile:
    """One tile.

    Parameters
    ----------
    entries
        The rows of each step, in execution order.
    kept
        The halo: for each step whose result is not whole, the rows that later tiles read again.
    """

    entries: tuple[StepRows, ...]
    kept: dict[int, Rows]


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
        wanted = heights if last else [ceil(inner.rate * end) + inner.ahead for inner in region.inner]
        entries = [StepRows(k, rows, region.maps[k].need(*rows)) for k, rows in flow.tile(done, wanted).items()]
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
    """Return whether the bytes of an operand that are overwritten have already been fetched.

    `done` and `heights` are the rows that each step has computed, and all its rows. Step 0 fetches the operand.
    """
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
            moved = _moved(places[first], places[last])
            while last + 1 < min(len(tiles), first + MAX_TIMES) and keys[last + 1] == keys[first]:
                if _moved(places[last], places[last + 1]) != moved:
                    break
                last += 1
            if last - first + 1 > best[1]:
                best = first, last - first + 1
        first = last
    return best


def _moved(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return by how many rows each step of a tile moves from one tile to the next: in its result, in its operands."""
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]


def _key(choice: RegionChoice, tiles: list[Tile], number: int) -> Hashable:
    """Return a key that describes everything about a tile except its position."""
    tile, before = tiles[number], tiles[number - 1].kept if number else {}
    # The first available row of each result. Kept rows are available even if no rows are added to them.
    at_hand = {k: rows[0] for k, rows in before.items()}
    entries = []
    for entry in tile.entries:
        rows = choice.region.maps[entry.step]
        a, b = entry.rows
        first = at_hand.setdefault(entry.step, a)
        state = (a == 0, b == rows.height) if rows.reduces else rows.form(entry.rows, entry.source)
        entries.append((entry.step, b - a, a - first, entry.source[1] - entry.source[0], state))
    kept = tuple((k, high - low) for k, (low, high) in tile.kept.items())
    held = tuple((k, high - low) for k, (low, high) in before.items())
    # How far into the available rows each step reads.
    computed = (entry.step for entry in tile.entries if entry.step in tile.kept)
    return tuple(entries), kept, held, tuple((k, tile.kept[k][0] - at_hand[k]) for k in computed)
