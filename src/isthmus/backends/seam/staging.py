"""Staging: memory that a device cannot see is copied through memory that it can, and an input that an output overwrites
too early is copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from isthmus.backends.seam.driver import TensorCopy, TensorMemory, Traffic
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo
from isthmus.memory import Buffer

_ALIGNMENT = 64
Copy = tuple[int, int, int]
"""A copy: destination, source, number of bytes."""


def pack(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Place blocks of these sizes one after the other, aligned; return their offsets and the total size.

    >>> pack([100, 64, 1])
    ([0, 128, 192], 256)
    """
    offsets, total = [], 0
    for nbytes in sizes:
        offsets.append(total)
        total += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return offsets, total


def require_memory(graph: str, info: TensorInfo, memory: TensorMemory | None, device: str) -> TensorMemory:
    """Return the client's memory for a tensor; refuse a tensor without memory, or with too little.

    `graph` and `device` are their names in messages.
    """
    what = f"tensor '{info.name}' of {graph}"
    if memory is None:
        rule = f"needs memory: {device} has none of its own"
        raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, "Pass a raw buffer or a memory handle.")
    if memory.window.nbytes < info.nbytes:
        rule = f"its buffer has {memory.window.nbytes} bytes, {info.nbytes} are needed"
        raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)
    return memory


def overwritten(pairs: Iterable[tuple[int, int]], shareable: Collection[tuple[int, int]]) -> frozenset[int]:
    """Return the inputs that must be copied before a run, because their memory is overwritten before they are read.

    - `pairs`: The pairs of an input and an output that are the same memory, from `check_overlaps`.
    - `shareable`: The pairs that the graph's steps allow to be the same memory.
    """
    return frozenset(source for source, goal in pairs if (source, goal) not in shareable)


class InputStaging:
    """Memory of one graph for copies of inputs that are overwritten too early. It is reserved once for each input.

    - `allocate`: Allocates memory for a tensor.
    """

    def __init__(self, allocate: Callable[[TensorInfo], Buffer]) -> None:
        self._allocate = allocate
        self._buffers: dict[int, Buffer] = {}

    def buffer(self, index: int, info: TensorInfo) -> Buffer:
        """Return the memory of an input; reserve it if there is none yet."""
        if index not in self._buffers:
            self._buffers[index] = self._allocate(info)
        return self._buffers[index]

    @property
    def nbytes(self) -> int:
        """Number of bytes reserved now."""
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def close(self) -> None:
        """Release all of it; safe to call again."""
        for buffer in self._buffers.values():
            buffer.close()
        self._buffers.clear()


def traffic(
    tensors: Sequence[TensorInfo], inputs: int, kinds: Iterable[str | None], overwritten: Collection[int] = ()
) -> Traffic:
    """Sum up an execution's traffic.

    - `tensors`, `inputs`: The inputs, then the outputs, and the number of inputs.
    - `kinds`: For each tensor the kind of memory in which it is used in place; None if it is copied.
    - `overwritten`: The tensors, by index, that are copied although the device can access them: an output overwrites
      them.
    """
    copied, in_place, copies = [0, 0], dict[str, int](), list[TensorCopy]()
    for index, (info, kind) in enumerate(zip(tensors, kinds, strict=True)):
        if kind is None or index in overwritten:
            copied[index >= inputs] += info.nbytes
            copies.append(TensorCopy(info.name, info.nbytes, index in overwritten))
        else:
            in_place[kind] = in_place.get(kind, 0) + info.nbytes
    return Traffic(copied[0], copied[1], in_place, tuple(copies))
