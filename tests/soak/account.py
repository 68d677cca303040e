"""What a process has: descriptors, threads, children, memory, holds. Compared when nothing of a program is left."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import linecache
import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from isthmus.memory import holds, shareable, tcm
from isthmus.system.interrupts import run_pending

_SECONDS_TO_SETTLE = 30.0


@dataclass(frozen=True)
class Account:
    """What there is when nothing goes on.

    Parameters
    ----------
    descriptors
        What each open file descriptor refers to.
    threads
        Names of Python's threads.
    tasks
        Threads of the process as the system counts them.
    children
        Processes that it has started.
    held
        Windows that somebody holds, by the name of the holder.
    mapped
        Shared buffers that are known.
    tcm
        Buffers of TCM.
    """

    descriptors: tuple[str, ...]
    threads: tuple[str, ...]
    tasks: int
    children: tuple[int, ...]
    held: tuple[str, ...]
    mapped: int
    tcm: int

    def more_than(self, before: Account) -> str:
        """Return what this account has more of than another, in words; an empty text if nothing."""
        found = []
        if len(self.descriptors) > len(before.descriptors):
            extra = list(self.descriptors)
            for known in before.descriptors:
                if known in extra:
                    extra.remove(known)
            found.append(f"descriptors {extra}")
        if len(self.threads) > len(before.threads) or self.tasks > before.tasks:
            found.append(f"threads {self.threads}, {self.tasks} tasks after {before.tasks}")
        if len(self.children) > len(before.children):
            found.append(f"children {self.children} after {before.children}")
        if len(self.held) > len(before.held):
            found.append(f"holds {self.held}")
        if self.mapped > before.mapped:
            found.append(f"{self.mapped} shared mappings after {before.mapped}")
        if self.tcm > before.tcm:
            found.append(f"{self.tcm} buffers of TCM after {before.tcm}")
        return "; ".join(found)


def take() -> Account:
    """The present account, when what an interrupt kept from its end has ended."""
    run_pending()
    return Account(
        tuple(sorted(_links())),
        tuple(sorted(thread.name for thread in threading.enumerate())),
        len(os.listdir("/proc/self/task")),
        children(),
        tuple(hold.holder for hold in holds.present()),
        sum(not mapping.is_closed for mapping in list(shareable._mappings.values())),
        tcm.pool().allocations,
    )


def settled(before: Account) -> Account:
    """The account when there is no more than before, or when time is up: threads and processes take a moment to end."""
    deadline = time.monotonic() + _SECONDS_TO_SETTLE
    while True:
        now = take()
        if not now.more_than(before) or time.monotonic() > deadline:
            return now
        gc.collect()
        time.sleep(0.01)


def _links() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}").split(":[")[0])
        except OSError:
            continue
    return found


def children() -> tuple[int, ...]:
    """Processes that this one has started and not waited for."""
    found: list[int] = []
    for table in Path("/proc/self/task").glob("*/children"):
        try:
            found += map(int, table.read_text().split())
        except OSError:
            continue
    return tuple(sorted(found))


def blocks() -> int:
    """How many blocks Python has handed out for objects, but for what it keeps within bounds and of its own accord.

    That is the text of source files that a traceback has named, and names of attributes that were asked for.
    """
    linecache.clearcache()
    # Python 3.13 has another name for it.
    getattr(sys, "_clear_internal_caches", sys._clear_type_cache)()
    gc.collect()
    return sys.getallocatedblocks()


class _Heap(ctypes.Structure):
    """What a C library tells of its allocator (``struct mallinfo2``)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "mapped", "usmblks", "fsmblks", "used", "free", "keepcost")
    ]


def heap_bytes() -> int | None:
    """Return how much the C library's allocator has handed out, wherever it lies; None where it does not tell.

    Arrays, large objects of Python and all that libraries allocate are here. What lies between is not, and makes the
    difference to the memory that the process has.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:  # not every C library has it
        return None
    ask.restype = _Heap
    reported = ask()
    return int(reported.used + reported.mapped)


def own_bytes() -> int:
    """Return how much memory this process has, when its allocator has given back what it only kept for later."""
    with contextlib.suppress(AttributeError):  # not every C library has it
        ctypes.CDLL(None).malloc_trim(0)
    return resident_bytes()


def resident_bytes(pid: int | str = "self") -> int:
    """Return how much memory a process has, without what it shares with others through files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return int(fields["RssAnon"].split()[0]) * 1024
