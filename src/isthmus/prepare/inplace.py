"""In-place results: an element-wise step needs no memory for its result if an operand is no longer needed."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.graph import Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.liveness import Life
from isthmus.prepare.overlays import Overlaid
from isthmus.prepare.schedule import Pool, Step
from isthmus.prepare.storage import Storage


def may_overwrite(step: Step, operand: Tensor | None) -> bool:
    """Return whether a step can overwrite an operand with its result, judged by shapes and operation only.

    An element-wise step reads each element before it writes the result to the same bytes.
    """
    result = step.outputs[0]
    return (
        OPERATIONS[step.op].traits.element_wise
        and operand is not None
        and not operand.is_static
        and operand.dims == result.dims
        and operand.itemsize == result.itemsize
    )


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
