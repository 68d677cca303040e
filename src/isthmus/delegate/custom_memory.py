"""Shared memory that tensors of an interpreter lie in: allocated, given to tensors, freed when no interpreter has it.

This is what TfLiteQnnDelegateAllocCustomMem hands out. It is rpcmem's, so an accelerator can see it; who uses which
part of it is on record, so that none is freed under an interpreter. Memory that nobody has any more, neither a client
nor an interpreter, ends by itself.
"""

from __future__ import annotations

import mmap
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.delegate.structures import DEFAULT_TENSOR_ALIGNMENT
from isthmus.errors import Code, QnnError
from isthmus.lock import Lock
from isthmus.memory import rpcmem
from isthmus.memory.whole import is_whole


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


def allocate(num_bytes: int, alignment: int = DEFAULT_TENSOR_ALIGNMENT) -> CustomMemory | None:
    """New memory, or None: for a size that is no positive number or more than there is, or an alignment beyond a page.

    Parameters
    ----------
    num_bytes
        The bytes of a tensor, or more.
    alignment
        A power of two; TFLite asks for 64.
    """
    if not is_whole(num_bytes) or not is_whole(alignment) or num_bytes < 1:
        return None
    if not 1 <= alignment <= mmap.PAGESIZE or alignment & (alignment - 1):
        return None
    try:
        memory = CustomMemory(rpcmem.share(int(num_bytes)))
    except QnnError:
        return None
    with _lock:
        _memories[memory.address] = memory
    return memory


def free(memory: Any) -> None:
    """End memory; refused while an interpreter has a tensor there. Null is ignored, as by `free` in C.

    Raises
    ------
    QnnError
        COMMON_INVALID_ARGUMENT for what is no custom memory, or was freed; COMMON_OPERATION_NOT_PERMITTED while in use.
    """
    if memory is None or (is_whole(memory) and memory == 0):
        return
    address = memory.address if isinstance(memory, CustomMemory) else memory
    what = f"custom memory at {address:#x}" if is_whole(address) else f"custom memory {memory!r}"
    with _lock:
        known = _memories.get(int(address)) if is_whole(address) else None
        if known is None or (isinstance(memory, CustomMemory) and known is not memory):
            hint = "Free each once, by what alloc_custom_mem has answered."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it is not allocated", hint)
        held = [use for use in _all_uses() if use.memory is known]
        if held:
            tensors = ", ".join(f"tensor {use.tensor}" for use in held)
            raise QnnError(
                Code.COMMON_OPERATION_NOT_PERMITTED,
                what,
                f"an interpreter still has {tensors} there",
                "Let go of the interpreter first, or give the tensor other memory.",
            )
        known.buffer.close()
        _memories.pop(known.address, None)


def find(address: int) -> CustomMemory | None:
    """The memory that an address lies in."""
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
    with _lock:
        if wanted.memory.buffer.is_closed:
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
