"""Blocks whose extent changes in time: a result that lies over an operand of another size.

While both are there, the larger one's bytes are taken; before that the operand's alone, and afterwards the result's. To
a planner such a block is several, side by side at fixed places, each with a life of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from isthmus.graph import Tensor
from isthmus.prepare.liveness import Life
from isthmus.prepare.storage import Block, Storage


@dataclass(frozen=True)
class Overlaid:
    """An operand, the result that is written over it, and the steps in which both are there (both included)."""

    source: Tensor
    result: Tensor
    first: int
    last: int


@dataclass(frozen=True)
class Layer:
    """Bytes ``[low, high)`` of a block, counted from its lowest, in use from one step to another (both included)."""

    low: int
    high: int
    first: int
    last: int


@dataclass(frozen=True)
class Layered:
    """A block in layers, and where it lies in scratch."""

    block: Block
    offset: int
    layers: tuple[Layer, ...]


def layered(storage: Storage, life: Life, overlaid: Sequence[Overlaid], alignment: int) -> list[Layered]:
    """The blocks whose extent changes, each as low in scratch as those before it leave room."""
    chains: dict[Block, list[Overlaid]] = {}
    for one in sorted(overlaid, key=lambda one: one.first):
        chains.setdefault(storage.block(one.source), []).append(one)
    found: list[Layered] = []
    for block, chain in chains.items():
        layers = _layers(storage, life, block, chain, alignment)
        if len(layers) > 1:
            found.append(Layered(block, _lowest(layers, found, alignment), tuple(layers)))
    return found


def _layers(storage: Storage, life: Life, block: Block, chain: list[Overlaid], alignment: int) -> list[Layer]:
    tensors = [chain[0].source, *(one.result for one in chain)]
    begins = [life.first(block), *(one.first for one in chain)]
    ends = [*(one.last for one in chain), life.last(block)]
    spans = [(low - block.low, high - block.low) for _, low, high in map(storage.span, tensors)]
    edges = sorted({-(-edge // alignment) * alignment for span in spans for edge in span})
    layers: list[Layer] = []
    for low, high in pairwise(edges):
        users = [k for k, span in enumerate(spans) if span[0] < high and low < span[1]]
        if not users:
            continue
        layer = Layer(low, high, min(begins[k] for k in users), max(ends[k] for k in users))
        if layers and (layers[-1].first, layers[-1].last, layers[-1].high) == (layer.first, layer.last, low):
            layer = Layer(layers.pop().low, high, layer.first, layer.last)
        layers.append(layer)
    return layers


def _lowest(layers: list[Layer], placed: list[Layered], alignment: int) -> int:
    """The lowest place at which layers meet none of those placed before."""
    offset = 0
    for other in placed:
        for mine in layers:
            for theirs in other.layers:
                if mine.first <= theirs.last and theirs.first <= mine.last:
                    offset = max(offset, other.offset + theirs.high - mine.low)
    return -(-offset // alignment) * alignment
