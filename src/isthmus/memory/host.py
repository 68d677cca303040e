"""Host memory with a chosen alignment: private to this process, zeroed."""

from __future__ import annotations

import mmap

from isthmus.errors import Code, QnnError
from isthmus.memory.buffer import Buffer, MappedBuffer, PartBuffer, part_of
from isthmus.memory.integers import as_int
from isthmus.memory.resource import DEFAULT_ALIGNMENT, AllocationRequest, MemoryResource, current, provide


class HostBuffer(MappedBuffer):
    """Private memory in pages of its own."""

    def __new__(cls, nbytes: int) -> HostBuffer:
        # Private, so that a forked process gets its own copy.
        return super().__new__(cls, -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def __init__(self, nbytes: int) -> None:
        super().__init__("host", nbytes)


class Host(MemoryResource):
    """The resource for host memory."""

    kind = "host"

    def fulfil(self, request: AllocationRequest) -> Buffer:
        what = f"host buffer of {request.nbytes!r} bytes aligned to {request.alignment!r}"
        nbytes, alignment = as_int(request.nbytes, what), as_int(request.alignment, what)
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1):
            rule = "the size must not be negative, the alignment must be a power of two"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
        try:
            if nbytes > 0 and alignment <= mmap.PAGESIZE:
                return HostBuffer(nbytes)
            # Enough to begin at an aligned address inside it; a mapping cannot be empty.
            pages = HostBuffer(nbytes + alignment)
        except (OSError, ValueError, OverflowError):
            raise QnnError(Code.COMMON_MEM_ALLOC, what, "the system does not have that much memory") from None
        return part_of(pages, -pages.address % alignment, nbytes, "host", PartBuffer)


provide(Host())


def host(nbytes: int, alignment: int = DEFAULT_ALIGNMENT) -> Buffer:
    """Allocate host memory.

    Examples
    --------
    >>> with host(100, alignment=64) as buffer:
    ...     buffer.array[:3] = 1, 2, 3
    ...     buffer.nbytes, buffer.address % 64, bytes(memoryview(buffer)[:4])
    (100, 0, b'\\x01\\x02\\x03\\x00')
    """
    return current("host").allocate(nbytes, alignment)
