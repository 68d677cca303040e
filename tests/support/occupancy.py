"""What memory a process has, as the operating system tells it; and memory that a process is denied for a while.

Counters that a program keeps of itself prove nothing about copies and reservations that it does not count. Here they
are looked for in what the kernel knows: mappings, files in memory, and the most memory that was resident.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NO_ACCESS, _READ_AND_WRITE = 0, 3
_RESET_PEAK = "5"


@dataclass(frozen=True)
class Mapping:
    """A line of ``/proc/PID/maps``."""

    start: int
    end: int
    access: str
    offset: int
    inode: int
    path: str

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def mappings(pid: int) -> list[Mapping]:
    """The mappings of a process."""
    found = []
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        span, access, offset, _, inode, *path = line.split(maxsplit=5)
        start, end = (int(number, 16) for number in span.split("-"))
        found.append(Mapping(start, end, access, int(offset, 16), int(inode), path[0] if path else ""))
    return found


@dataclass(frozen=True)
class Occupancy:
    """What a process has, in bytes.

    Parameters
    ----------
    writable
        Of mappings that it can write to, touched or not.
    files
        Of files in memory that it has mapped or open, each once.
    resident
        Of all that is in memory now.
    peak
        Of all that was in memory at most, from the latest `forget_peak` on.
    """

    writable: int
    files: int
    resident: int
    peak: int


def occupancy(pid: int) -> Occupancy:
    """Return what a process has now."""
    maps = mappings(pid)
    files: dict[int, int] = {}
    for mapping in maps:
        if mapping.path.startswith("/memfd:"):
            files[mapping.inode] = max(files.get(mapping.inode, 0), mapping.offset + mapping.nbytes)
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # A descriptor may be closed by now, as that is by which the list itself was read.
        with suppress(FileNotFoundError):
            if os.readlink(link).startswith("/memfd:"):
                status = link.stat()
                files[status.st_ino] = max(files.get(status.st_ino, 0), status.st_size)
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, peak = (int(lines[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    writable = sum(mapping.nbytes for mapping in maps if "w" in mapping.access)
    return Occupancy(writable, sum(files.values()), resident, peak)


def forget_peak(pid: int) -> None:
    """Reset the peak of a process's memory to what it has now."""
    Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)


def growth_during(action: Callable[[], object], unit: int, **pids: int) -> dict[str, dict[str, int]]:
    """Do something; what each process has more of than before, in units of so many bytes, rounded.

    Beside what it can write to and what it has of files in memory that is the most it had meanwhile.
    """
    before = {}
    for name, pid in pids.items():
        forget_peak(pid)
        before[name] = occupancy(pid)
    action()
    found = {}
    for name, pid in pids.items():
        was, now = before[name], occupancy(pid)
        growth = {
            "writable": now.writable - was.writable, "files": now.files - was.files, "peak": now.peak - was.resident
        }  # fmt: skip
        found[name] = {kind: round(nbytes / unit) for kind, nbytes in growth.items()}
    return found


@contextmanager
def without_access(*descriptors: int) -> Iterator[None]:
    """Within, this process has no access to the memory of these descriptors, through whichever mapping of it.

    Other processes have theirs still. An access of this one ends it.
    """
    inodes = {os.fstat(fd).st_ino for fd in descriptors}
    spans = [mapping for mapping in mappings(os.getpid()) if mapping.inode in inodes and "s" in mapping.access]
    assert {span.inode for span in spans} == inodes, "what is not mapped cannot be denied"
    try:
        for span in spans:
            _protect(span, _NO_ACCESS)
        yield
    finally:
        for span in spans:
            _protect(span, _READ_AND_WRITE)


def _protect(span: Mapping, access: int) -> None:
    if _libc.mprotect(ctypes.c_void_p(span.start), ctypes.c_size_t(span.nbytes), access):
        raise OSError(ctypes.get_errno(), "mprotect")
