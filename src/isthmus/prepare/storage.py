"""Memory shared by tensors: blocks of bytes, the offsets of tensors in them, and the lifetimes of blocks in steps.

Reshapes, contiguous slices and concatenations along the outermost axis need no step: their tensors are the same bytes.
Within a block every byte is written by only one step, so sharing is valid for any order of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

BEFORE = -1
"""The time before the first step, when a client writes the inputs."""


class Block:
    """A range of bytes ``[low, high)`` that holds tensors, in its own coordinates.

    Coordinate 0 is where its first tensor starts; joined tensors may start below it.

    - `tensor`: the first tensor.
    - `pool`, `base`: the pool to which the block is bound, and the offset of coordinate 0 in it; the pool is None for
      scratch.
    - `members`: the coordinate of each tensor's first byte.
    """

    __slots__ = ("base", "high", "low", "members", "pool")

    def __init__(self, tensor: Tensor, pool: int | None = None, base: int = 0) -> None:
        self.low, self.high = 0, tensor.nbytes
        self.members: dict[Tensor, int] = {tensor: 0}
        self.pool = pool
        self.base = base

    @property
    def size(self) -> int:
        """The number of bytes from the lowest to the highest."""
        return self.high - self.low


class Storage:
    """The blocks of all tensors."""

    def __init__(self) -> None:
        self._blocks: dict[Tensor, Block] = {}

    def bind(self, tensor: Tensor, pool: int, base: int = 0) -> None:
        """Bind a tensor to a block in a pool."""
        self._blocks[tensor] = Block(tensor, pool, base)

    def block(self, tensor: Tensor) -> Block:
        """Return the block of a tensor; create one if it has none."""
        block = self._blocks.get(tensor)
        if block is None:
            block = self._blocks[tensor] = Block(tensor)
        return block

    def span(self, tensor: Tensor) -> tuple[Block, int, int]:
        """Return the block of a tensor, and the range of bytes that the tensor occupies in it."""
        block = self.block(tensor)
        low = block.members[tensor]
        return block, low, low + tensor.nbytes

    def blocks(self) -> list[Block]:
        """Return all blocks, each once, in the order of their first tensors."""
        return list(dict.fromkeys(self._blocks.values()))

    def fills_block(self, tensor: Tensor) -> bool:
        """Return whether a tensor occupies a whole block of scratch."""
        block, low, high = self.span(tensor)
        return block.pool is None and (low, high) == (block.low, block.high)

    def join(self, host: Tensor, guest: Tensor, delta: int = 0) -> bool:
        """Place `guest` `delta` bytes after the start of `host`; return whether their blocks can be merged for that.

        Two blocks in pools cannot be merged, and one in a pool cannot grow.
        """
        a, b = self.block(host), self.block(guest)
        shift = a.members[host] + delta - b.members[guest]
        if a is b:
            return shift == 0
        if a.pool is not None and b.pool is not None:
            return False
        if b.pool is not None:
            a, b, shift = b, a, -shift
        if a.pool is not None and (b.low + shift < a.low or b.high + shift > a.high):
            return False
        # Block b is merged into block a; move the smaller one.
        if a.pool is None and len(a.members) < len(b.members):
            a, b, shift = b, a, -shift
        for tensor, low in b.members.items():
            a.members[tensor] = low + shift
            self._blocks[tensor] = a
        a.low, a.high = min(a.low, b.low + shift), max(a.high, b.high + shift)
        return True


def share(work: Work, steps: Iterable[Step], storage: Storage) -> list[Step]:
    """Share memory between operands and results of steps that only rename bytes; return the steps without these.

    Each rule returns the steps that are still needed: the step itself, copies of some parts, or none.
    """
    needed: list[Step] = []
    for step in steps:
        rule = _RULES.get(step.op)
        needed.extend([step] if rule is None else rule(work, step, storage))
    return needed


def names_anew(step: Step) -> bool:
    """Return whether a step may need no execution because its results are the bytes of its operands."""
    source = step.inputs[0] if step.op in _RULES else None
    if source is None:
        return False
    if step.op == "StridedSlice":
        return slice_offset(source, np.asarray(step.params["ranges"])) is not None
    if step.op in ("Split", "Concat"):
        return _outermost(step.outputs[0] if step.op == "Concat" else source, step.params["axis"])
    return True


def same_encoding(a: Tensor, b: Tensor) -> bool:
    """Return whether equal bytes mean equal values in both tensors."""
    if (a.dtype, a.itemsize) != (b.dtype, b.itemsize):
        return False
    first, second = a.quantization, b.quantization
    if not a.dtype.is_fixed_point or first is None or second is None:
        return True
    return (first.scales, first.offsets) == (second.scales, second.offsets)


def _share_reshape(work: Work, step: Step, storage: Storage) -> list[Step]:
    """Share memory across a reshape, unless the result has another encoding."""
    source, result = step.input(), step.outputs[0]
    if source.is_static or not same_encoding(source, result) or not storage.join(source, result):
        return [step]
    return []


def _share_cast(work: Work, step: Step, storage: Storage) -> list[Step]:
    """Share memory across a cast between a fixed-point type and the integers that store it, which keeps the bytes."""
    source, result = step.input(), step.outputs[0]
    if source.dtype is not result.dtype and (source.dtype.is_bits or result.dtype.is_bits):
        return [step]
    if source.is_static or source.dtype.numpy != result.dtype.numpy or source.itemsize != result.itemsize:
        return [step]
    if not storage.join(source, result):
        return [step]
    return []


def _share_slice(work: Work, step: Step, storage: Storage) -> list[Step]:
    """Share memory between a contiguous slice and its operand."""
    source, result = step.input(), step.outputs[0]
    offset = slice_offset(source, np.asarray(step.params["ranges"]))
    if offset is None or source.is_static or not same_encoding(source, result) or not result.elements:
        return [step]
    return [] if storage.join(source, result, offset) else [step]


def slice_offset(source: Tensor, ranges: np.ndarray) -> int | None:
    """Return the byte offset of a slice if its elements are contiguous; otherwise None.

    `ranges` has a row (begin, end, stride) for each axis. From the innermost axis outwards, the slice may take whole
    axes, then a part of one axis, then only single indices.
    """
    # `whole`: whether all axes so far are taken as a whole.
    offset, whole, stride_bytes = 0, True, source.itemsize
    for (begin, end, stride), size in zip(ranges[::-1].tolist(), source.dims[::-1], strict=True):
        count = max(0, -((begin - end) // stride))
        if count != 1 and not (whole and stride == 1):
            return None
        whole = whole and count == size
        offset += begin * stride_bytes
        stride_bytes *= size
    return offset


def _outermost(tensor: Tensor, axis: int) -> bool:
    """Return whether all axes before this one have size 1, so that parts along it are contiguous."""
    return math.prod(tensor.dims[:axis]) == 1


def _view(work: Work, name: str, like: Tensor) -> Tensor:
    """Return a new tensor, such as another one, that names a part of a larger tensor's bytes."""
    return work.alike(name, like)


def _share_split(work: Work, step: Step, storage: Storage) -> list[Step]:
    """Share memory between the parts of a split and its operand; copy the parts that must be elsewhere."""
    source = step.input()
    if source.is_static or not _outermost(source, step.params["axis"]):
        return [step]
    if not all(same_encoding(source, t) for t in step.outputs):
        return [step]
    copies, offset = [], 0
    for result in step.outputs:
        if not storage.join(source, result, offset):
            part = _view(work, step.name, result)
            storage.join(source, part, offset)
            copies.append(Step("Reshape", part.name, [part], [result]))
        offset += result.nbytes
    return copies


def _share_concat(work: Work, step: Step, storage: Storage) -> list[Step]:
    """Compute parts of a Concat in place where possible and copy the others; keep the step if all would be copied."""
    result = step.outputs[0]
    parts = [t for t in step.inputs if t is not None]
    if not _outermost(result, step.params["axis"]) or not all(same_encoding(t, result) for t in parts):
        return [step]
    if not any(_movable(storage, t, result) for t in parts):
        return [step]
    copies, offset = [], 0
    for part in parts:
        if not (_movable(storage, part, result) and storage.join(result, part, offset)):
            inside = _view(work, step.name, part)
            storage.join(result, inside, offset)
            copies.append(Step("Reshape", inside.name, [part], [inside]))
        offset += part.nbytes
    return copies


def _movable(storage: Storage, part: Tensor, result: Tensor) -> bool:
    """Return whether an operand of a Concat can be computed inside the result: it has a block of scratch of its own."""
    return not part.is_static and storage.fills_block(part) and storage.block(part) is not storage.block(result)


_RULES = {
    "Cast": _share_cast,
    "Reshape": _share_reshape,
    "StridedSlice": _share_slice,
    "Split": _share_split,
    "Concat": _share_concat,
}


class Life:
    """The first and last step that use each block; -1 is the time before all steps, the number of steps the time after
    them.

    - `steps`, `storage`: the steps in order, and the blocks of their tensors.
    - `inputs`, `outputs`: the tensors that exist before the first step, and those that must exist after the last.
    - `ranges`: the first and the last of steps that are executed several times, or all at once. What they share with
      other steps must not change meanwhile, so it lives through all of them.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        storage: Storage,
        inputs: Iterable[Tensor] = (),
        outputs: Iterable[Tensor] = (),
        ranges: Iterable[tuple[int, int]] = (),
    ) -> None:
        self._spans: dict[Block, tuple[int, int]] = {}
        for tensor in inputs:
            self._touch(storage.block(tensor), BEFORE)
        for index, step in enumerate(steps):
            for tensor in (*step.operands, *step.outputs):
                self._touch(storage.block(tensor), index)
        for tensor in outputs:
            self._touch(storage.block(tensor), len(steps))
        for begin, end in ranges:
            self._last_through(begin, end, steps, storage)

    def _touch(self, block: Block, time: int) -> None:
        """Extend the lifetime of a block to a time at which it is used."""
        first, last = self._spans.get(block, (time, time))
        self._spans[block] = min(first, time), max(last, time)

    def _last_through(self, begin: int, end: int, steps: Sequence[Step], storage: Storage) -> None:
        """Extend blocks that a range of steps shares with other steps over the whole range."""
        for step in steps[begin : end + 1]:
            for block in map(storage.block, (*step.operands, *step.outputs)):
                first, last = self._spans[block]
                if first < begin or last > end:
                    self._spans[block] = min(first, begin), max(last, end)

    def __contains__(self, block: Block) -> bool:
        return block in self._spans

    def first(self, block: Block) -> int:
        """Return the step that first uses a block."""
        return self._spans[block][0]

    def last(self, block: Block) -> int:
        """Return the step that last uses a block."""
        return self._spans[block][1]

    def set(self, block: Block, first: int, last: int) -> None:
        """Set the lifetime of a block that took over another's bytes."""
        self._spans[block] = first, last
