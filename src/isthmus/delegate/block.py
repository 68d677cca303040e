"""The block of words behind one node of a delegate: what native code runs the node's program by, or calls Python with.

The interpreter keeps the block's address and hands it back with each call; the function it calls is compiled
(`isthmus.engine.native.kernels.callback`) and the same for all nodes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.backends.driver import NativeCall
from isthmus.delegate import structures
from isthmus.engine.native import callback, loader
from isthmus.engine.native.target import host


def invoke_address() -> int:
    """The compiled function that an interpreter calls to invoke a node."""
    kernel = f"callback:invoke.{structures.Node.user_data.offset}"
    return loader.addresses([kernel], host())[kernel]


@dataclass(frozen=True)
class Operand:
    """An input or output of a node: the interpreter's tensor, its bytes, and memory to use in place of the tensor's."""

    tensor: int
    nbytes: int
    instead: int = 0


class Block:
    """A block, at an address that does not change. Until it is pointed at a program every call goes to `otherwise`."""

    def __init__(self, otherwise: int) -> None:
        self._words = np.zeros(callback.BLOCK_BYTES // 8, np.int64)
        self._kept: tuple[object, ...] = ()
        self._set(callback.OTHERWISE, otherwise)
        self._set(callback.TENSORS, structures.Context.tensors.offset)

    @property
    def address(self) -> int:
        """What the interpreter knows the node by."""
        return int(self._words.ctypes.data)

    @property
    def runs(self) -> int:
        """How often the program ran without Python."""
        return int(self._words[callback.RUNS // 8])

    def point(self, call: NativeCall, operands: Sequence[Operand]) -> None:
        """Have calls run a program on these inputs, then outputs; what lies elsewhere is copied to its tensor after."""
        self.stop()
        rows, copies = _rows(operands), _rows([operand for operand in operands if operand.instead])
        for place, value in (
            (callback.RUN, call.run),
            (callback.CONTROL, call.control),
            (callback.THREADS, call.threads),
            (callback.IO, call.io),
            (callback.ROWS, rows.ctypes.data),
            (callback.ROW_COUNT, len(rows)),
            (callback.COPIES, copies.ctypes.data),
            (callback.COPY_COUNT, len(copies)),
        ):
            self._set(place, value)
        self._kept = (call.keeps, rows, copies)
        self._set(callback.READY, 1)

    def stop(self) -> None:
        """Have every call go to Python from now on."""
        self._set(callback.READY, 0)

    def _set(self, place: int, value: int) -> None:
        self._words[place // 8] = value


def _rows(operands: Sequence[Operand]) -> np.ndarray:
    rows = np.zeros((len(operands), callback.ROW_LENGTH // 8), np.int64)
    size = ctypes.sizeof(structures.Tensor)
    for row, operand in zip(rows, operands, strict=True):
        row[callback.ROW_DATA // 8] = operand.tensor * size + structures.Tensor.data.offset
        row[callback.ROW_SIZE // 8] = operand.tensor * size + structures.Tensor.bytes.offset
        row[callback.ROW_BYTES // 8] = operand.nbytes
        row[callback.ROW_SOURCE // 8] = operand.instead
    return rows
