"""Shared memory that tensors of an interpreter lie in: allocated, given to tensors, freed when no interpreter has it.

This is what TfLiteQnnDelegateAllocCustomMem hands out. It is rpcmem's, so an accelerator can see it. Which tensors use
which part of it is on record: QNN's own listing frees memory while its interpreter lives, so what is freed ends when no
interpreter has it any more. Memory that no client and no interpreter has ends by itself.
"""

from __future__ import annotations

import mmap
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.delegate.structures import DEFAULT_TENSOR_ALIGNMENT
from isthmus.errors import Code, QnnError
from isthmus.memory import rpcmem
from isthmus.memory.integers import is_int
from isthmus.system.interrupts import Finalizer
from isthmus.system.lock import Lock


@dataclass(frozen=True)
class Use:
    """A tensor that lies in custom memory, for as long as its interpreter lives and keeps it there."""

    memory: CustomMemory
    context: int
    tensor: int
    address: int
    nbytes: int


class CustomMemory:
    """Shared memory for tensors. Made by `QnnDelegate.alloc_custom_mem`, ended by `free_custom_mem`.

    Examples
    --------
    >>> import numpy as np
    >>> memory = allocate(1024)
    >>> memory.nbytes, memory.address % 64, memory.view(np.float32, (16, 16)).sum()
    (1024, 0, np.float32(0.0))
    >>> free(memory)
    """

    def __init__(self, buffer: rpcmem.RpcBuffer) -> None:
        self.buffer = buffer
        """The shared memory itself, with its file descriptor."""
        self.nbytes = buffer.nbytes
        self.address = buffer.address
        self.is_freed = False
        """Whether its client has freed it; it is there still while an interpreter has a tensor in it."""

    def __index__(self) -> int:
        return self.address

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """The memory as an array: what a tensor that lies there holds."""
        return self.buffer.view(dtype, shape, offset)

    def __repr__(self) -> str:
        return f"CustomMemory({self.nbytes} bytes at {self.address:#x})"


_lock = Lock()
_memories: weakref.WeakValueDictionary[int, CustomMemory] = weakref.WeakValueDictionary()
_uses: weakref.WeakKeyDictionary[Any, tuple[Use, ...]] = weakref.WeakKeyDictionary()
"""What tensors of an interpreter use, by the native object inside it, which may outlive Python's."""
_freed: weakref.WeakSet[CustomMemory] = weakref.WeakSet()
"""What was freed and has not ended yet."""


def allocate(num_bytes: int, alignment: int = DEFAULT_TENSOR_ALIGNMENT) -> CustomMemory | None:
    """New memory, or None: for a size that is no positive number or more than there is, or an alignment beyond a page.

    Parameters
    ----------
    num_bytes
        The bytes of a tensor, or more.
    alignment
        A power of two; TFLite asks for 64.
    """
    if not is_int(num_bytes) or not is_int(alignment) or num_bytes < 1:
        return None
    if not 1 <= alignment <= mmap.PAGESIZE or alignment & (alignment - 1):
        return None
    end_freed()
    try:
        memory = CustomMemory(rpcmem.share(int(num_bytes)))
    except QnnError:
        return None
    with _lock:
        _memories[memory.address] = memory
    return memory


def free(memory: Any) -> None:
    """Free memory: it ends at once, or when no interpreter has a tensor there any more. Null is ignored, as in C.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT for what is no custom memory, or was freed before.
    """
    if memory is None or (is_int(memory) and memory == 0):
        return
    address = memory.address if isinstance(memory, CustomMemory) else memory
    what = f"custom memory at {address:#x}" if is_int(address) else f"custom memory {memory!r}"
    with _lock:
        known = _memories.get(int(address)) if is_int(address) else None
        if known is None or (isinstance(memory, CustomMemory) and known is not memory):
            hint = "Free each once, by what alloc_custom_mem has answered."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it is not allocated", hint)
        if known.is_freed:
            rule, hint = "it has been freed", "It ends with the interpreter that has a tensor there."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)
        _freed.add(known)
    end_freed()
    # Last: a client that is interrupted before can free it again.
    known.is_freed = True


def end_freed() -> None:
    """End what was freed and no interpreter has any more; safe to call again, in any thread.

    The garbage collector calls it too, when an interpreter is gone. So no lock is held while a buffer is closed, which
    takes another: the collector may come to a thread that has that one.
    """
    if not len(_freed) or _lock._is_owned():  # type: ignore[attr-defined]
        return
    with _lock:
        used = {id(use.memory) for use in _all_uses()}
        unused = [memory for memory in _freed if id(memory) not in used]
    for memory in unused:
        try:
            memory.buffer.close()
        except QnnError:
            # A node of a delegate has it registered, whose interpreter a program in C++ has set up.
            continue
        with _lock:
            _freed.discard(memory)
            if _memories.get(memory.address) is memory:
                del _memories[memory.address]


def find(address: int) -> CustomMemory | None:
    """Find the memory that an address is in, freed or not, unless it has ended."""
    with _lock:
        for memory in _memories.values():
            if memory.address <= address < memory.address + memory.nbytes and not memory.buffer.is_closed:
                return memory
    return None


def use(interpreter: Any, wanted: Use) -> None:
    """Record that a tensor is to lie there; where it lay before stays on record until `settle`.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT where the memory has been freed meanwhile.
    """
    if interpreter not in _uses:
        # Before the entry, so that it is called after the entry has gone. Not in the lock: it runs other endings.
        Finalizer(interpreter, end_freed)
    with _lock:
        if wanted.memory in _freed or wanted.memory.buffer.is_closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"custom memory at {wanted.address:#x}", "it has been freed")
        _uses[interpreter] = (*_uses.get(interpreter, ()), wanted)


def settle(interpreter: Any, wanted: Use, lies_there: bool) -> None:
    """Record that a tensor lies there now and nowhere else, or that it does not."""
    with _lock:
        place = wanted.context, wanted.tensor
        before = (known for known in _uses.get(interpreter, ()) if known is not wanted)
        if lies_there:
            _uses[interpreter] = (*(known for known in before if (known.context, known.tensor) != place), wanted)
        else:
            _uses[interpreter] = tuple(before)
    end_freed()


def uses_of(context: int) -> list[Use]:
    """The tensors of a subgraph that lie in custom memory."""
    with _lock:
        return [use for use in _all_uses() if use.context == context]


def _all_uses() -> list[Use]:
    """List the uses of all living interpreters.

    Not by `_uses.values()`: an interrupt in its midst would leave the dictionary thinking that it is iterated over, and
    it would keep the memory of every interpreter that ends from then on.
    """
    interpreters = [reference() for reference in _uses.keyrefs()]
    return [use for interpreter in interpreters if interpreter is not None for use in _uses.get(interpreter, ())]
