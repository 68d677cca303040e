"""Blocks whose extent changes over time, because a result overwrites an operand of another size.

While both are alive, the block takes the larger one's bytes; before that only the operand's, and afterwards only the
result's. The planner treats such a block as several adjacent ones at fixed offsets, each with its own lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from isthmus.graph import Tensor
from isthmus.prepare.liveness import Life
from isthmus.prepare.storage import Block, Storage


@dataclass(frozen=True)
class Overlaid:
    """An operand, the result that is written over it, and the steps in which both are alive (inclusive)."""

    source: Tensor
    result: Tensor
    first: int
    last: int


@dataclass(frozen=True)
class OverlaySpan:
    """Bytes ``[low, high)`` of a block, relative to its lowest byte, and the steps in which they are in use
    (inclusive).
    """

    low: int
    high: int
    first: int
    last: int


@dataclass(frozen=True)
class OverlayBlock:
    """A block whose extent changes, its offset in scratch, and its spans with their own lifetimes, the lowest first."""

    block: Block
    offset: int
    layers: tuple[OverlaySpan, ...]


def layered(storage: Storage, life: Life, overlaid: Sequence[Overlaid], alignment: int) -> list[OverlayBlock]:
    """Return the blocks whose extent changes, each placed above those before it that are in use at the same time."""
    # A result that was written over an operand may itself be overwritten; these are all in one block.
    chains: dict[Block, list[Overlaid]] = {}
    for one in sorted(overlaid, key=lambda one: one.first):
        chains.setdefault(storage.block(one.source), []).append(one)
    placed: list[OverlayBlock] = []
    for block, chain in chains.items():
        layers = _layers(storage, life, block, chain, alignment)
        if len(layers) > 1:
            placed.append(OverlayBlock(block, _lowest(layers, placed, alignment), tuple(layers)))
    return placed


def place_from_top(standing: Sequence[OverlayBlock], ceiling: int) -> list[list[OverlayBlock]]:
    """Return alternative offsets of overlay blocks below a ceiling: of those that grow downwards only, then of all.

    The memory that such a block leaves free, before it grows and afterwards, is then contiguous. Alternatives in which
    blocks overlap are left out, and so are the offsets that the blocks of `standing` have.
    """
    alternatives: list[list[OverlayBlock]] = []
    for every in (False, True):
        placed: list[OverlayBlock] = []
        for one in standing:
            offset = one.offset
            if every or _grows(one.layers):
                others = [other for other in placed if every or _grows(other.layers)]
                below = (o.offset + theirs.low - mine.high for o in others for mine, theirs in _together(one, o))
                offset = min([ceiling - max(layer.high for layer in one.layers), *below])
            placed.append(OverlayBlock(one.block, offset, one.layers))
        if placed not in (list(standing), *alternatives) and not _meet(placed):
            alternatives.append(placed)
    return alternatives


def _grows(layers: Sequence[OverlaySpan]) -> bool:
    """Return whether the lowest bytes of a block come into use later than others."""
    return layers[0].first > min(layer.first for layer in layers)


def _together(one: OverlayBlock, other: OverlayBlock) -> list[tuple[OverlaySpan, OverlaySpan]]:
    """Return the pairs of spans of two blocks that are in use at the same time."""
    pairs = ((mine, theirs) for mine in one.layers for theirs in other.layers)
    return [(mine, theirs) for mine, theirs in pairs if mine.first <= theirs.last and theirs.first <= mine.last]


def _meet(placed: Sequence[OverlayBlock]) -> bool:
    """Return whether any blocks overlap in both memory and time, or start below offset 0."""
    return any(one.offset + one.layers[0].low < 0 for one in placed) or any(
        one.offset + mine.low < other.offset + theirs.high and other.offset + theirs.low < one.offset + mine.high
        for one, other in combinations(placed, 2)
        for mine, theirs in _together(one, other)
    )


def _layers(storage: Storage, life: Life, block: Block, chain: list[Overlaid], alignment: int) -> list[OverlaySpan]:
    """Divide a block into spans whose bytes are in use at the same time; `chain` has the results that overwrite one
    another in it.
    """
    # The tensors of the block in order of time, with the first and last step of each.
    tensors = [chain[0].source, *(one.result for one in chain)]
    begins = [life.first(block), *(one.first for one in chain)]
    ends = [*(one.last for one in chain), life.last(block)]
    spans = [(low - block.low, high - block.low) for _, low, high in map(storage.span, tensors)]
    edges = sorted({-(-edge // alignment) * alignment for span in spans for edge in span})
    layers: list[OverlaySpan] = []
    for low, high in pairwise(edges):
        users = [k for k, span in enumerate(spans) if span[0] < high and low < span[1]]
        if not users:
            continue
        layer = OverlaySpan(low, high, min(begins[k] for k in users), max(ends[k] for k in users))
        if layers and (layers[-1].first, layers[-1].last, layers[-1].high) == (layer.first, layer.last, low):
            layer = OverlaySpan(layers.pop().low, high, layer.first, layer.last)
        layers.append(layer)
    return layers


def _lowest(layers: list[OverlaySpan], placed: list[OverlayBlock], alignment: int) -> int:
    """Return the lowest offset at which a block lies above all blocks placed before that are in use at the same time.

    Each of its layers only has to be above those of the others' layers that are in use together with it.
    """
    offset = 0
    for other in placed:
        for mine in layers:
            for theirs in other.layers:
                if mine.first <= theirs.last and theirs.first <= mine.last:
                    offset = max(offset, other.offset + theirs.high - mine.low)
    return -(-offset // alignment) * alignment
