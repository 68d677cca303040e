"""The accelerator's view of shared memory: each buffer mapped once, however many windows of it are registered.

A window's number is its slot: a row of a table that native code reads, and how often that row was reused. So a request
that comes too late for its memory finds none, never someone else's. What is removed from the table during an execution
stays mapped until every queue has finished the execution it was running.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from isthmus.engine.native.doorbell import MEMORY_ADDRESS, MEMORY_GENERATION, MEMORY_ROW, MEMORY_SIZE, SLOT_BITS
from isthmus.errors import Code, QnnError
from isthmus.memory import Window
from isthmus.memory.buffer import ClientBuffer
from isthmus.memory.identity import Identity, file_identity
from isthmus.memory.shareable import SharedFile, map_whole
from isthmus.system.channel import system_refusal

MAX_SLOTS = 1 << SLOT_BITS
"""Number of rows of the table."""
PLACE = 64
"""The multiple at which each constant begins in registered memory."""
NOTHING = -1
"""The slot that means no memory."""
ENTRY = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
"""The type of a kernel's entry: four words."""

Quiet = Callable[[], bool]
"""Returns whether all executions that were running when it was created have ended."""


def paged(nbytes: int) -> int:
    """Return how many bytes the system maps for so many."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


@dataclass
class _Mapping:
    """A buffer in this process: its identity and size when it was mapped, the mapping, and the number of its slots."""

    file: SharedFile
    pages: mmap.mmap
    address: int
    users: int = 0


@dataclass
class _Retired:
    """A mapping without slots; `quiet` returns whether all executions that may still be using it have ended."""

    mapping: _Mapping
    quiet: Quiet = field(repr=False)


class SharedMemory:
    """Registered windows by slot, in a table that native code reads: address, size and generation of each slot in use.

    `publish` is the address of ``doorbell:publish``, which writes a row of the table. `quiet` is called when memory is
    removed; it returns a function that tells when the memory is no longer used.
    """

    def __init__(self, publish: int, quiet: Callable[[], Quiet]) -> None:
        self.table = np.zeros((MAX_SLOTS, MEMORY_ROW // 8), np.int64)
        self._publish = ENTRY(publish)
        self._quiet = quiet
        self._mappings: dict[Identity, _Mapping] = {}
        self._by_slot: dict[int, _Mapping] = {}
        # Rows to be reused, and the first row that was never used.
        self._unused: list[int] = []
        self._next = 0
        # Mappings to be released once no execution uses them.
        self._retired: list[_Retired] = []

    def __len__(self) -> int:
        return len(self._by_slot)

    @property
    def mapped_bytes(self) -> int:
        """The bytes of its table and of all buffers that are mapped."""
        retired = [each.mapping for each in self._retired]
        return self.table.nbytes + sum(paged(each.file.nbytes) for each in (*self._mappings.values(), *retired))

    def register(self, fd: int, offset: int, nbytes: int) -> int:
        """Map a window and return its slot."""
        file = _shared_file(fd)
        if offset < 0 or nbytes < 0 or offset + nbytes > file.nbytes:
            rule = f"bytes {offset} to {offset + nbytes} are outside a buffer of {file.nbytes} bytes"
            raise QnnError(Code.MEM_INVALID_SHAPE, "shared buffer", rule)
        if not self._unused and self._next == MAX_SLOTS:
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "shared buffer", f"{MAX_SLOTS} are registered already")
        self.release()
        mapping = self._mapping(fd, file, offset + nbytes)
        mapping.users += 1
        if self._unused:
            row = self._unused.pop()
        else:
            row = self._next
            self._next += 1
        slot = row | self._generation(row) << SLOT_BITS
        self._by_slot[slot] = mapping
        self._write(row, mapping.address + offset, nbytes, self._generation(row))
        return slot

    def window(self, slot: int) -> Window | None:
        """Return the memory of a slot, or None for the number -1."""
        if slot == NOTHING:
            return None
        if slot not in self._by_slot:
            raise QnnError(Code.MEM_INVALID_HANDLE, f"memory {slot} of the accelerator", "it is not registered")
        address, nbytes = (int(self.table[slot % MAX_SLOTS, word // 8]) for word in (MEMORY_ADDRESS, MEMORY_SIZE))
        return ClientBuffer(self._by_slot[slot], address, nbytes).window()

    def array(self, slot: int) -> np.ndarray:
        """Return the memory of a slot as bytes, which stay mapped as long as the array exists."""
        window = self.window(slot)
        assert window is not None
        mapping = self._by_slot[slot]
        return np.frombuffer(mapping.pages, np.uint8, window.nbytes, window.address - mapping.address)

    def part(self, slot: int, offset: int, nbytes: int) -> np.ndarray:
        """Return some of a slot's memory, to be read; it stays mapped as long as the array is used."""
        window = self.window(slot)
        if window is None:
            raise QnnError(Code.MEM_INVALID_HANDLE, "memory of the accelerator", "it is not registered")
        place = window.part(offset, nbytes)
        mapping = self._by_slot[slot]
        array = np.frombuffer(mapping.pages, np.uint8, nbytes, place.address - mapping.address)
        array.flags.writeable = False
        return array

    def deregister(self, slot: int) -> None:
        """Remove a window, and the buffer with its last one; ignore unknown slots."""
        mapping = self._by_slot.pop(slot, None)
        if mapping is None:
            return
        row = slot % MAX_SLOTS
        # With the next generation, the old slot no longer matches its row.
        self._write(row, 0, 0, self._generation(row) + 1)
        self._unused.append(row)
        mapping.users -= 1
        if mapping.users == 0:
            # A later mapping of the same buffer, made after it had grown, stays.
            if self._mappings.get(mapping.file.identity) is mapping:
                del self._mappings[mapping.file.identity]
            self._retired.append(_Retired(mapping, self._quiet()))
        self.release()

    def release(self) -> None:
        """Unmap removed memory that is no longer used; a graph that works in it keeps it alive."""
        self._retired = [retired for retired in self._retired if not retired.quiet()]

    def _mapping(self, fd: int, file: SharedFile, end: int) -> _Mapping:
        """Return the buffer's mapping, a new one if it ends before `end`: a file may have grown since it was mapped."""
        mapping = self._mappings.get(file.identity)
        if mapping is None or mapping.file.nbytes < end:
            pages = map_whole(fd, file.nbytes, "shared buffer")
            mapping = _Mapping(file, pages, np.frombuffer(pages, np.uint8).ctypes.data)
            self._mappings[file.identity] = mapping
        return mapping

    def _generation(self, row: int) -> int:
        """Return how often a row was reassigned."""
        return int(self.table[row, MEMORY_GENERATION // 8])

    def _write(self, row: int, address: int, nbytes: int, generation: int) -> None:
        """Write a row of the table, in an order that is safe while native code reads it."""
        self._publish(self.table.ctypes.data + row * MEMORY_ROW, address, nbytes, generation)


def _shared_file(fd: int) -> SharedFile:
    """Inspect a descriptor. The client has checked that it is shared memory; here it must only be mappable."""
    try:
        status = os.fstat(fd)
        # A DMA buffer has no file type, and reports its size only through lseek.
        kind = stat.S_IFMT(status.st_mode)
        if kind not in (0, stat.S_IFREG):
            raise QnnError(Code.MEM_INVALID_ARGUMENT, "shared buffer", "its descriptor is one of no memory")
        return SharedFile(file_identity(status.st_dev, status.st_ino), status.st_size or os.lseek(fd, 0, os.SEEK_END))
    except OSError as problem:
        rule = "its descriptor cannot be used"
        raise system_refusal(problem, "shared buffer", rule, Code.MEM_INVALID_ARGUMENT) from None
