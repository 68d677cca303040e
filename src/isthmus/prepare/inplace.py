"""In-place results: a step may need no memory for its result if an operand is no longer needed.

That holds for element-wise steps and for updates of some elements. A client's input and output may be the same memory
under the same rule.

The extent of a block changes over time if a result overwrites an operand of another size. While both are alive, the
block takes the larger one's bytes; before that only the operand's, and afterwards only the result's. The planner treats
such a block as several adjacent ones at fixed offsets, each with its own lifetime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.schedule import Place, Pool, Schedule, Step
from isthmus.prepare.storage import Block, Life, Storage, same_encoding


def may_overwrite(step: Step, operand: Tensor | None) -> bool:
    """Return whether a step can overwrite an operand with its result, judged by shapes and operation only.

    An element-wise step reads each element before it writes the result to the same bytes. An update copies in[0] to its
    result first, and then reads only its other operands and the result.
    """
    result, traits = step.outputs[0], OPERATIONS[step.op].traits
    if operand is None or operand.is_static or (operand.dims, operand.itemsize) != (result.dims, result.itemsize):
        return False
    updated = traits.updates and step.inputs[0] is operand and step.inputs.count(operand) == 1
    return traits.element_wise or (updated and same_encoding(operand, result))


def write_in_place(
    steps: Sequence[Step], storage: Storage, life: Life, overlaid: Sequence[Overlaid] = ()
) -> int:  # fmt: skip
    """Write results over operands that are no longer needed; return the bytes saved.

    - `steps`, `storage`: the steps in order, and the blocks of their tensors, which are joined.
    - `life`: the lifetimes of blocks, which are extended.
    - `overlaid`: the results that overwrite an operand of another size; the extents of their blocks change over time.
    """
    saved = 0
    for index, step in enumerate(steps):
        for operand in step.inputs:
            if (
                operand is not None
                and may_overwrite(step, operand)
                and _free(step, operand, index, storage, life)
                and _as_large(operand, step.outputs[0], index, storage, overlaid)
            ):
                result = step.outputs[0]
                last = life.last(storage.block(result))
                first = life.first(storage.block(operand))
                storage.join(operand, result)
                life.set(storage.block(result), first, last)
                saved += result.nbytes
                break
    return saved


def _free(step: Step, operand: Tensor, index: int, storage: Storage, life: Life) -> bool:
    """Return whether a result may take over an operand's block."""
    # Nothing needs the block afterwards, and the step reads nothing in it that the result would overwrite too early.
    result = step.outputs[0]
    mine, low, high = storage.span(operand)
    theirs = storage.block(result)
    # The operand must be in scratch. The result may be there too, or be an output of the graph, but not a state.
    if mine is theirs or mine.pool is not None or (theirs.pool is not None and theirs.pool < Pool.IO):
        return False
    if life.last(mine) != index or life.first(theirs) != index:
        return False
    for other in step.inputs:
        if other is None or other.is_static or other is operand:
            continue
        block, start, end = storage.span(other)
        # A different part of the same block would be overwritten before it is read.
        if block is mine and (start, end) != (low, high) and start < high and low < end:
            return False
        if block is mine and (start, end) == (low, high) and not may_overwrite(step, other):
            return False
    return True


def _as_large(operand: Tensor, result: Tensor, index: int, storage: Storage, overlaid: Sequence[Overlaid]) -> bool:
    """Return whether the blocks of an operand and a result occupy the same bytes, so that they can be joined."""
    # A block whose extent changes over time occupies the bytes of each of its tensors while that tensor is needed. So
    # another tensor with the same bytes as one of them can be joined to it, before or after the fused region that
    # changes the extent, but not during it.
    (mine, low, _), (theirs, result_low, _) = storage.span(operand), storage.span(result)
    layers = [one for one in overlaid if storage.block(one.source) in (mine, theirs)]
    tensors = [tensor for one in layers for tensor in (one.source, one.result)]
    if all(storage.fills_block(tensor) for tensor in tensors):
        return mine.size == theirs.size and low - mine.low == result_low - theirs.low
    if any(one.first <= index <= one.last for one in layers):
        return False
    spans = [storage.span(tensor) for tensor in tensors]
    return all(storage.fills_block(tensor) or storage.span(tensor) in spans for tensor in (operand, result))


def shareable_io(schedule: Schedule) -> frozenset[tuple[int, int]]:
    """Return the pairs of an input and an output, by number, that a client may put into the same memory.

    The input must have been read completely before the output is written, or the step that does both must be able to
    overwrite it. Steps that are repeated count as one: an iteration may read what an earlier one has overwritten.
    """
    steps, places = schedule.steps, schedule.places
    # The first and last step that are executed together with each step.
    spans = [(index, index) for index in range(len(steps))]
    for repeat in schedule.repeats:
        spans[repeat.first : repeat.last + 1] = [(repeat.first, repeat.last)] * (repeat.last + 1 - repeat.first)
    last_read, first_write = dict[int, int](), dict[int, int]()
    for step, (first, last) in zip(steps, spans, strict=True):
        for tensor in step.operands:
            last_read[places[tensor].pool] = last
        for tensor in step.outputs:
            first_write.setdefault(places[tensor].pool, first)
    repeated = {index for repeat in schedule.repeats for index in range(repeat.first, repeat.last + 1)}

    def is_safe(source: int, goal: int) -> bool:
        """Return whether the input in one pool and the output in another may be the same memory."""
        read, written = last_read.get(source, -1), first_write.get(goal, len(steps))
        if read != written or read in repeated:
            return read < written
        return _overwrites_whole(schedule, steps[read], source, goal)

    first_output = Pool.IO + len(schedule.inputs)
    return frozenset(
        (i, o)
        for i, source in enumerate(schedule.inputs)
        for o, goal in enumerate(schedule.outputs)
        if source.nbytes == goal.nbytes and is_safe(Pool.IO + i, first_output + o)
    )


def _overwrites_whole(schedule: Schedule, step: Step, source: int, goal: int) -> bool:
    """Return whether a step may overwrite all of an input, in the pool `source`, with all of an output, in `goal`."""
    places = schedule.places
    whole = schedule.outputs[goal - Pool.IO - len(schedule.inputs)].nbytes
    result = step.outputs[0]
    if len(step.outputs) != 1 or step.part is not None or (places[result], result.nbytes) != (Place(goal, 0), whole):
        return False
    shared = [tensor for tensor in step.operands if places[tensor].pool == source]
    return all(places[tensor] == Place(source, 0) and may_overwrite(step, tensor) for tensor in shared)


@dataclass(frozen=True)
class Overlaid:
    """An operand, the result that is written over it, and the steps in which both are alive (inclusive)."""

    source: Tensor
    result: Tensor
    first: int
    last: int


@dataclass(frozen=True)
class OverlaySpan:
    """Bytes ``[low, high)`` of a block, from its lowest byte on, and the steps in which they are in use (inclusive)."""

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


def overlay_blocks(storage: Storage, life: Life, overlaid: Sequence[Overlaid], alignment: int) -> list[OverlayBlock]:
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


def place_from_top(blocks: Sequence[OverlayBlock], ceiling: int) -> list[list[OverlayBlock]]:
    """Return other placements of the overlay blocks, for the planner to try: pushed up against a ceiling.

    In the first, only blocks that grow downwards over time are moved; in the second, all are. Memory that a moved block
    does not use yet, or no longer uses, is then contiguous with what is free below it. Placements in which blocks
    overlap or begin below offset 0, or that equal `blocks`, are left out.
    """
    alternatives: list[list[OverlayBlock]] = []
    for moves_all in (False, True):
        placed: list[OverlayBlock] = []
        for one in blocks:
            offset = one.offset
            if moves_all or _grows(one.layers):
                others = [other for other in placed if moves_all or _grows(other.layers)]
                below = (o.offset + theirs.low - mine.high for o in others for mine, theirs in _together(one, o))
                offset = min([ceiling - max(layer.high for layer in one.layers), *below])
            placed.append(OverlayBlock(one.block, offset, one.layers))
        if placed not in (list(blocks), *alternatives) and not _meet(placed):
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
    """Divide a block into spans of bytes that are in use together; results of `chain` overwrite one another in it."""
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
    """Return the lowest offset at which each layer of a block is above the layers in use together with it."""
    offset = 0
    for other in placed:
        for mine in layers:
            for theirs in other.layers:
                if mine.first <= theirs.last and theirs.first <= mine.last:
                    offset = max(offset, other.offset + theirs.high - mine.low)
    return -(-offset // alignment) * alignment
