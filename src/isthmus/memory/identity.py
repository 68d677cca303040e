"""Identity of memory, independent of where it is mapped: a file, a device's object, or a private range.

Two mappings of one file are the same memory at different addresses. Two ranges of private memory are the same only
where their addresses overlap. Holds and overlap checks go by identity, so that aliases are detected.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Identity:
    """One memory. With equal identities, equal positions are the same bytes.

    Parameters
    ----------
    kind
        "private", "file", or the name of a device's memory.
    key
        What distinguishes it from others of its kind: a file's device and inode, a device object's numbers.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.rpcmem.alloc(memory.rpcmem.HEAP_ID_SYSTEM, 1, 4096) as buffer:
    ...     named_by_descriptor = memory.window(memory.SharedFd(buffer.fd, 0, 4096))
    ...     named_by_address = memory.window(buffer.address, nbytes=4096)
    ...     named_by_descriptor.spans == named_by_address.spans
    True
    """

    kind: str
    key: tuple[int, ...] = ()


PRIVATE = Identity("private")
"""The private memory of this process; a position in it is an address."""


@dataclass(frozen=True)
class Span:
    """A range of one memory: `nbytes` bytes from position `start`."""

    identity: Identity
    start: int
    nbytes: int

    def overlaps(self, other: Span) -> bool:
        """Return whether the two spans share a byte."""
        return (
            self.identity == other.identity
            and self.start < other.start + other.nbytes
            and other.start < self.start + self.nbytes
            and min(self.nbytes, other.nbytes) > 0
        )


def file_identity(device: int, inode: int) -> Identity:
    """Return the identity of a file, independent of descriptor and mapping."""
    return Identity("file", (device, inode))


@dataclass(frozen=True)
class Mapping:
    """A line of the system's table of mappings: addresses, permissions, and the memory behind them."""

    start: int
    end: int
    readable: bool
    writable: bool
    executable: bool
    identity: Identity
    position: int
    """The position of `start` in `identity`."""


def mappings(table: Path = Path("/proc/self/maps")) -> list[Mapping]:
    """Return all mappings of this process, by address."""
    return list(_parse(table.read_text(errors="replace")))


def _parse(text: str) -> Iterator[Mapping]:
    """Yield the mappings of a table in the format of ``/proc/self/maps``."""
    for line in text.splitlines():
        addresses, mode, offset, device, inode = line.split(maxsplit=5)[:5]
        start, end = (int(part, 16) for part in addresses.split("-"))
        identity, position = PRIVATE, start
        # Only a shared mapping is the file's own memory; what is written to a private one is copied.
        if mode[3] == "s" and inode != "0":
            major, minor = (int(part, 16) for part in device.split(":"))
            identity, position = file_identity(_device_number(major, minor), int(inode)), int(offset, 16)
        yield Mapping(start, end, mode[0] == "r", mode[1] == "w", mode[2] == "x", identity, position)


def _device_number(major: int, minor: int) -> int:
    """Return the device number as `fstat` composes it on Linux."""
    return (minor & 0xFF) | ((major & 0xFFF) << 8) | ((minor & ~0xFF) << 12) | ((major & ~0xFFF) << 32)


def covering(address: int, nbytes: int) -> list[Mapping]:
    """Return the mappings that cover these addresses without a gap; none if a part is not mapped."""
    table = mappings()
    index = bisect.bisect_right([mapping.start for mapping in table], address) - 1
    covered: list[Mapping] = []
    end = address
    while index >= 0 and index < len(table) and table[index].start <= end < table[index].end:
        covered.append(table[index])
        end = table[index].end
        if end >= address + nbytes:
            return covered
        index += 1
    return []
