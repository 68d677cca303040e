"""The accelerator's view of shared memory: each buffer mapped once, however many windows of it are registered."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from isthmus.engine.native.doorbell import MEMORY_ROW
from isthmus.errors import Code, QnnError
from isthmus.memory import Window
from isthmus.memory.buffer import ClientBuffer
from isthmus.memory.identity import Identity
from isthmus.memory.shareable import SharedFile, map_whole, shared_file

MAX_SLOTS = 1 << 16
NOTHING = -1


@dataclass
class _Mapping:
    file: SharedFile
    pages: mmap.mmap
    address: int
    users: int = 0


class SharedMemory:
    """Registered windows by number, in a table that native code reads."""

    def __init__(self) -> None:
        self.table = np.zeros((MAX_SLOTS, MEMORY_ROW // 8), np.int64)
        self._mappings: dict[Identity, _Mapping] = {}
        self._of: dict[int, _Mapping] = {}
        self._unused: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return len(self._of)

    def register(self, fd: int, offset: int, nbytes: int) -> int:
        """Map a window; the number it has from now on."""
        file = shared_file(fd, "shared buffer")
        if offset < 0 or nbytes < 0 or offset + nbytes > file.nbytes:
            rule = f"bytes {offset} to {offset + nbytes} lie outside a buffer of {file.nbytes} bytes"
            raise QnnError(Code.MEM_INVALID_SHAPE, "shared buffer", rule)
        if not self._unused and self._next == MAX_SLOTS:
            raise QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "shared buffer", f"{MAX_SLOTS} are registered already")
        mapping = self._mappings.get(file.identity)
        if mapping is None:
            pages = map_whole(fd, file.nbytes, "shared buffer")
            mapping = _Mapping(file, pages, np.frombuffer(pages, np.uint8).ctypes.data)
            self._mappings[file.identity] = mapping
        mapping.users += 1
        if self._unused:
            slot = self._unused.pop()
        else:
            slot = self._next
            self._next += 1
        self._of[slot] = mapping
        self.table[slot] = mapping.address + offset, nbytes
        return slot

    def window(self, slot: int) -> Window | None:
        """The memory of a number; none for the number -1."""
        if slot == NOTHING:
            return None
        if slot not in self._of:
            raise QnnError(Code.MEM_INVALID_HANDLE, f"memory {slot} of the accelerator", "it is not registered")
        return ClientBuffer(self._of[slot], int(self.table[slot, 0]), int(self.table[slot, 1])).window()

    def deregister(self, slot: int) -> None:
        """Forget a window, and the buffer with its last one; unknown numbers are ignored."""
        mapping = self._of.pop(slot, None)
        if mapping is None:
            return
        self.table[slot] = 0
        self._unused.append(slot)
        mapping.users -= 1
        if mapping.users == 0:
            del self._mappings[mapping.file.identity]
            mapping.pages.close()
