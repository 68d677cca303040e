"""Shared memory for tensors of an interpreter: allocated, assigned to tensors, freed when no interpreter uses it.

TfLiteQnnDelegateAllocCustomMem returns this memory. It is rpcmem memory, so an accelerator can access it. The tensors
that use each part of it are recorded. QNN's own example frees memory while its interpreter lives, so freed memory is
released only when no interpreter uses it any more. Memory that no client and no interpreter refers to is released
automatically.
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
    """A tensor in custom memory, for as long as its interpreter lives and keeps it there.

    - `context`, `tensor`: The address of the subgraph's context, and the tensor's number in it.
    - `address`, `nbytes`: The part of the memory that it uses.
    """

    memory: CustomMemory
    context: int
    tensor: int
    address: int
    nbytes: int


class CustomMemory:
    """Shared memory for tensors. Created by `QnnDelegate.alloc_custom_mem`, freed by `free_custom_mem`.

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
        """Whether its client has freed it; it still exists while an interpreter has a tensor in it."""

    def __index__(self) -> int:
        return self.address

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """Return the memory as an array: the values of a tensor there."""
        return self.buffer.view(dtype, shape, offset)

    def __repr__(self) -> str:
        return f"CustomMemory({self.nbytes} bytes at {self.address:#x})"


_lock = Lock()
# All memory that is not released, by address.
_memories: weakref.WeakValueDictionary[int, CustomMemory] = weakref.WeakValueDictionary()
# The uses by an interpreter's tensors, keyed by its native object, which may outlive the Python object.
_uses: weakref.WeakKeyDictionary[Any, tuple[Use, ...]] = weakref.WeakKeyDictionary()
# Memory that was freed but is not released yet.
_freed: weakref.WeakSet[CustomMemory] = weakref.WeakSet()


def allocate(num_bytes: int, alignment: int = DEFAULT_TENSOR_ALIGNMENT) -> CustomMemory | None:
    """Allocate memory; return None if the size is not positive or too large, or the alignment is invalid.

    - `alignment`: A power of two, at most a page; TFLite requires 64.
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
    """Free memory, at once or when no interpreter has a tensor there any more. Null is ignored, as in C."""
    if memory is None or (is_int(memory) and memory == 0):
        return
    address = memory.address if isinstance(memory, CustomMemory) else memory
    what = f"custom memory at {address:#x}" if is_int(address) else f"custom memory {memory!r}"
    with _lock:
        owned = _memories.get(int(address)) if is_int(address) else None
        if owned is None or (isinstance(memory, CustomMemory) and owned is not memory):
            hint = "Free each once, by what alloc_custom_mem has returned."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it is not allocated", hint)
        if owned.is_freed:
            rule, hint = "it has been freed", "It ends with the interpreter that has a tensor there."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)
        _freed.add(owned)
    end_freed()
    # Last, so that a client that is interrupted before can free it again.
    owned.is_freed = True


def end_freed() -> None:
    """Release freed memory that no interpreter uses any more; safe to call again, in any thread.

    The garbage collector also calls it when an interpreter is gone. No lock is therefore held while a buffer is closed.
    Closing takes another lock, and the collector may run in a thread that holds that one.
    """
    # The collector may run while this very thread holds the lock; a later call then does the work.
    if not len(_freed) or _lock._is_owned():  # type: ignore[attr-defined]
        return
    with _lock:
        used = {id(use.memory) for use in _all_uses()}
        unused = [memory for memory in _freed if id(memory) not in used]
    for memory in unused:
        try:
            memory.buffer.close()
        except QnnError:
            # A delegate's node has it registered, in an interpreter set up by a C++ program.
            continue
        with _lock:
            _freed.discard(memory)
            if _memories.get(memory.address) is memory:
                del _memories[memory.address]


def find(address: int) -> CustomMemory | None:
    """Return the memory that contains an address, freed or not, unless it has been released."""
    with _lock:
        for memory in _memories.values():
            if memory.address <= address < memory.address + memory.nbytes and not memory.buffer.is_closed:
                return memory
    return None


def use(interpreter: Any, entry: Use) -> None:
    """Record that a tensor will use this memory; its earlier use stays on record until `settle`.

    `interpreter` is LiteRT's native object.
    """
    if interpreter not in _uses:
        # Before adding the entry, so that it runs after the entry is gone. Not under the lock: it may run other
        # finalizers.
        Finalizer(interpreter, end_freed)
    with _lock:
        if entry.memory in _freed or entry.memory.buffer.is_closed:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"custom memory at {entry.address:#x}", "it has been freed")
        _uses[interpreter] = (*_uses.get(interpreter, ()), entry)


def settle(interpreter: Any, entry: Use, in_use: bool) -> None:
    """Record that a tensor now uses this memory and no other, or that it does not use it."""
    with _lock:
        place = entry.context, entry.tensor
        before = (use for use in _uses.get(interpreter, ()) if use is not entry)
        if in_use:
            _uses[interpreter] = (*(use for use in before if (use.context, use.tensor) != place), entry)
        else:
            _uses[interpreter] = tuple(before)
    end_freed()


def uses_of(context: int) -> list[Use]:
    """Return the tensors of a subgraph that are in custom memory."""
    with _lock:
        return [use for use in _all_uses() if use.context == context]


def _all_uses() -> list[Use]:
    """Return the uses of all living interpreters."""
    # Do not use `_uses.values()`: an interrupt during the iteration would leave the dictionary in its iterating state,
    # and it would then keep the entries of every interpreter that ends later.
    interpreters = [reference() for reference in _uses.keyrefs()]
    return [use for interpreter in interpreters if interpreter is not None for use in _uses.get(interpreter, ())]
