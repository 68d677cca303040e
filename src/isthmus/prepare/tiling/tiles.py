"""The strips of a stretch, row by row: what each computes of every step, and what it keeps for the next."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import ceil

from isthmus.graph.rows import Rows
from isthmus.prepare.tiling.material import Material
from isthmus.prepare.tiling.row_flow import RowFlow
from isthmus.prepare.tiling.search import RegionChoice

MOST_TIMES = 4096
"""Strips that one repetition holds."""


@dataclass(frozen=True)
class Entry:
    """What a strip takes of a step: rows of its result, and the rows of its operands under them."""

    step: int
    rows: Rows
    source: Rows


@dataclass(frozen=True)
class Tile:
    """One strip.

    Parameters
    ----------
    entries
        In the order of execution.
    kept
        For each step whose result is held for a strip only, the rows of it that later strips read again.
    """

    entries: tuple[Entry, ...]
    kept: dict[int, Rows]


@dataclass(frozen=True)
class RepeatedTiles:
    """Strips that are the same but for their place, each a constant number of rows after the one before."""

    first: int
    times: int


def cut(material: Material) -> list[Tile] | None:
    """The strips; None where one would have a step with nothing to read."""
    choice, stretch = material.choice, material.choice.stretch
    heights = [
        rows.height if rows.reduces else step.outputs[0].dims[inner.axis]
        for step, rows, inner in zip(material.steps, stretch.maps, stretch.inner, strict=True)
    ]
    flow = RowFlow(stretch.maps, heights, material.readers(), [False] * len(heights))
    done = [0] * len(heights)
    strips: list[Tile] = []
    end = choice.start
    while True:
        last = end >= stretch.height
        wanted = heights if last else [ceil(inner.rate * end) + inner.ahead for inner in stretch.inner]
        entries = []
        for k, rows in flow.tile(done, wanted).items():
            source = stretch.maps[k].need(*rows)
            if source[0] >= source[1]:
                return None
            entries.append(Entry(k, rows, source))
            done[k] = rows[1]
        lowest = flow.halo(done, heights)
        kept = {
            k: (lowest[k], done[k])
            for k, inner in enumerate(stretch.inner)
            if not inner.whole and lowest[k] < done[k]
        }
        strips.append(Tile(tuple(entries), kept))
        if not _ahead(material, done, heights):
            return None
        if last:
            return strips
        end += choice.rows


def _ahead(material: Material, done: list[int], heights: list[int]) -> bool:
    """Whether no more bytes of an operand are written over than have been fetched."""
    overlay = material.choice.stretch.overlay
    if overlay is None or done[0] == heights[0]:
        return True
    result = overlay.result - material.choice.stretch.first + 1
    source, made = material.made(0), material.made(result)
    shift = max(0, made.nbytes - source.nbytes)
    return done[result] * (made.nbytes // heights[result]) <= shift + done[0] * (source.nbytes // heights[0])


def longest_run(choice: RegionChoice, strips: list[Tile]) -> RepeatedTiles:
    """The longest run of strips that are alike."""
    keys = [_key(choice, strips, k) for k in range(len(strips))]
    places = [[(e.rows[0], e.source[0]) for e in strip.entries] for strip in strips]
    best, first = RepeatedTiles(0, 0), 0
    while first < len(strips) - 1:
        last = first + 1
        if keys[last] == keys[first]:
            moved = _moved(places[first], places[last])
            while last + 1 < min(len(strips), first + MOST_TIMES) and keys[last + 1] == keys[first]:
                if _moved(places[last], places[last + 1]) != moved:
                    break
                last += 1
            if last - first + 1 > best.times:
                best = RepeatedTiles(first, last - first + 1)
            first = last
        else:
            first += 1
    return best


def _moved(before: list[tuple[int, int]], after: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, after, strict=True)]


def _key(choice: RegionChoice, strips: list[Tile], number: int) -> Hashable:
    """All of a strip but its place."""
    strip, before = strips[number], strips[number - 1].kept if number else {}
    # Rows that are kept are at hand even when none are added to them.
    at_hand = {k: rows[0] for k, rows in before.items()}
    entries = []
    for entry in strip.entries:
        rows = choice.stretch.maps[entry.step]
        a, b = entry.rows
        first = at_hand.setdefault(entry.step, a)
        state = (a == 0, b == rows.height) if rows.reduces else rows.form(entry.rows, entry.source)
        entries.append((entry.step, b - a, a - first, entry.source[1] - entry.source[0], state))
    kept = tuple((k, high - low) for k, (low, high) in strip.kept.items())
    held = tuple((k, high - low) for k, (low, high) in before.items())
    return tuple(entries), kept, held, _distances(choice, strip, at_hand)


def _distances(choice: RegionChoice, strip: Tile, at_hand: dict[int, int]) -> Hashable:
    """How far into the rows at hand each step reads."""
    done = {entry.step: entry.rows[1] for entry in strip.entries}
    return tuple((k, strip.kept[k][0] - at_hand[k]) for k in done if k in strip.kept and k in at_hand)
