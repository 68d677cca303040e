"""The block of words behind one node of a delegate: native code uses it to run the node's program or to call Python.

The interpreter keeps the block's address and passes it with each call. The functions it calls are compiled
(`isthmus.engine.native.kernels.callback`) and the same for all nodes.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from isthmus.backends.seam.driver import NativeCall
from isthmus.delegate import ownership, structures
from isthmus.engine.native import callback, loader
from isthmus.engine.native.target import host


@dataclass(frozen=True)
class Functions:
    """Addresses of the compiled functions that an interpreter calls, for a delegate and for a node of one.

    `apply` makes a delegate take over nodes (TfLiteDelegate.Prepare), `begin` creates the block of one.
    """

    apply: int
    begin: int
    prepare: int
    invoke: int
    free: int


# Where a node has the address of its block, and a delegate that of its words: a part of the kernels' names.
_NODE, _DELEGATE = structures.Node.user_data.offset, structures.Delegate.data.offset
KERNELS = (
    f"callback:apply.{_DELEGATE}", f"callback:begin.{_DELEGATE}",
    f"callback:prepare.{_NODE}", f"callback:invoke.{_NODE}", "callback:free",
)  # fmt: skip
"""The kernels behind `Functions`, in its order."""


@lru_cache(maxsize=1)
def functions() -> Functions:
    """Return the compiled functions, for LiteRT's structures."""
    addresses = loader.addresses(KERNELS, host())
    return Functions(*(addresses[kernel] for kernel in KERNELS))


@dataclass(frozen=True)
class Answering:
    """Addresses of the Python functions behind the compiled ones of a node; the same for all nodes.

    - `fallback`: Runs a node that has no program.
    - `prepare`, `free`: Prepare a node, and end it; 0 only if they are never called.
    """

    fallback: int
    prepare: int = 0
    free: int = 0


@dataclass(frozen=True)
class BlockOperand:
    """An input or output of a node.

    - `instead`: The address of memory that the program uses instead of the tensor's; it is copied to the tensor after
      the run. 0 if the program uses the tensor's memory.
    """

    tensor: int
    nbytes: int
    instead: int = 0


# All blocks; a forked child stops them.
_blocks: weakref.WeakSet[NodeBlock] = weakref.WeakSet()


class NodeBlock:
    """A block at a fixed address. Until it is pointed at a program, every call goes to `fallback`.

    Its memory stays until `release`: an interpreter that outlives Python still frees its nodes.
    """

    def __init__(self, answering: Answering) -> None:
        self._words = np.zeros(callback.BLOCK_BYTES // 8, np.int64)
        # What the words refer to, and so must live as long.
        self._references: tuple[object, ...] = ()
        # Whether the interpreter's free call was answered.
        self.is_answered = False
        for offset, value in (
            (callback.FALLBACK, answering.fallback),
            (callback.PREPARE, answering.prepare),
            (callback.FREE, answering.free),
            (callback.OWN, ownership.OWN),
            (callback.TENSORS, structures.Context.tensors.offset),
        ):
            self._set(offset, value)
        _blocks.add(self)
        # One more reference, so that the memory is not freed with this object; `release` drops it.
        self._stays = False
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._words))
        self._stays = True

    @property
    def address(self) -> int:
        """The address by which the interpreter knows the node."""
        return int(self._words.ctypes.data)

    @property
    def runs(self) -> int:
        """How often the program has run without Python."""
        return int(self._words[callback.RUNS // 8])

    @property
    def is_ending(self) -> bool:
        """Whether the interpreter is freeing the node, or has freed it."""
        return bool(self._words[callback.ENDED // 8])

    @property
    def is_left(self) -> bool:
        """Whether the interpreter has freed the node and no longer uses the block."""
        return self.is_answered or bool(self._words[callback.ENDED // 8] == callback.UNANSWERED)

    def point(self, call: NativeCall, operands: Sequence[BlockOperand]) -> None:
        """Make calls run a program on these operands: all inputs, then all outputs.

        The block becomes ready last: until then, a call from another thread goes to Python.
        """
        self.stop()
        rows, copies = _rows(operands), _rows([operand for operand in operands if operand.instead])
        for offset, value in (
            (callback.RUN, call.run),
            (callback.CONTROL, call.control),
            (callback.THREADS, call.threads),
            (callback.IO, call.io),
            (callback.ROWS, rows.ctypes.data),
            (callback.ROW_COUNT, len(rows)),
            (callback.COPIES, copies.ctypes.data),
            (callback.COPY_COUNT, len(copies)),
        ):
            self._set(offset, value)
        self._references = (call.keeps, rows, copies)
        self._set(callback.READY, 1)

    def stop(self) -> None:
        """Make every call go to Python from now on."""
        self._set(callback.READY, 0)

    def release(self) -> None:
        """Drop the reference to its memory, which no interpreter uses any more. Safe to call again."""
        if self._stays:
            self._stays = False
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._words))

    def _set(self, offset: int, value: int) -> None:
        """Set the word at an offset in bytes."""
        self._words[offset // 8] = value


def _rows(operands: Sequence[BlockOperand]) -> np.ndarray:
    """Return a row per operand: where native code finds the tensor's address and size, and what they must be."""
    # Positions are offsets from the interpreter's first tensor, since its array of tensors may move.
    rows = np.zeros((len(operands), callback.ROW_LENGTH // 8), np.int64)
    size = ctypes.sizeof(structures.Tensor)
    for row, operand in zip(rows, operands, strict=True):
        row[callback.ROW_DATA // 8] = operand.tensor * size + structures.Tensor.data.offset
        row[callback.ROW_SIZE // 8] = operand.tensor * size + structures.Tensor.bytes.offset
        row[callback.ROW_BYTES // 8] = operand.nbytes
        row[callback.ROW_SOURCE // 8] = operand.instead
    return rows


def _after_fork() -> None:
    # The parent's programs have threads in the parent, and memory that they share with it.
    for block in list(_blocks):
        block.stop()


os.register_at_fork(after_in_child=_after_fork)
