"""Staging: memory that a device cannot see is copied through memory that it can."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from isthmus.backends.seam.driver import TensorCopy, TensorMemory, Traffic
from isthmus.errors import Code, QnnError
from isthmus.graph import TensorInfo

_ALIGNMENT = 64
Copy = tuple[int, int, int]
"""A copy: destination, source, number of bytes."""


def pack(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Place blocks of these sizes one after the other, aligned; return their offsets and the total size.

    Examples
    --------
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


def traffic(tensors: Sequence[TensorInfo], inputs: int, kinds: Iterable[str | None]) -> Traffic:
    """Sum up an execution's traffic.

    Parameters
    ----------
    tensors, inputs
        The inputs, then the outputs, and the number of inputs.
    kinds
        For each tensor the kind of memory in which it is used in place; None if it is copied.
    """
    copied, in_place, copies = [0, 0], dict[str, int](), list[TensorCopy]()
    for index, (info, kind) in enumerate(zip(tensors, kinds, strict=True)):
        if kind is None:
            copied[index >= inputs] += info.nbytes
            copies.append(TensorCopy(info.name, info.nbytes))
        else:
            in_place[kind] = in_place.get(kind, 0) + info.nbytes
    return Traffic(copied[0], copied[1], in_place, tuple(copies))
