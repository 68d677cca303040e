"""In-place results: a step may need no memory for its result if an operand is no longer needed.

That holds for element-wise steps and for updates of some elements. A client's input and output may be the same memory
under the same rule.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.liveness import Life
from isthmus.prepare.overlays import Overlaid
from isthmus.prepare.schedule import Place, Pool, Schedule, Step
from isthmus.prepare.storage import Storage, same_encoding


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

    Parameters
    ----------
    steps, storage
        The steps in order, and the blocks of their tensors, which are joined.
    life
        The lifetimes of blocks, which are extended.
    overlaid
        The results that overwrite an operand of another size; the extents of their blocks change over time.
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
    """Return whether a result may take over an operand's block: nothing needs that afterwards, and the step itself
    reads nothing in it that the result would overwrite too early.
    """
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
    """Return whether the blocks of an operand and a result occupy the same bytes, so that they can be joined.

    A block whose extent changes over time occupies the bytes of each tensor while that tensor is needed. A tensor of
    the same size as one of these can therefore be joined to it, before or after the fused region that changes the
    extent, but not during it.
    """
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
        for tensor in step.inputs:
            if tensor is not None and not tensor.is_static:
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
    return all(
        places[t] == Place(source, 0) and may_overwrite(step, t)
        for t in step.inputs
        if t is not None and not t.is_static and places[t].pool == source
    )
