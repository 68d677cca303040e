"""The clock of timed runs: an instruction that adds the time since it last ran to a slot, and logs it."""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.kernels.base import device, generated, load_i64, store_i64
from isthmus.engine.native.kernels.executor import call_kernel
from isthmus.engine.native.target import Target

# CLOCK_MONOTONIC.
_MONOTONIC = 1
_SECOND = 1_000_000_000


@generated
def read(target: Target, variant: str) -> Any:
    """Read the clock and add the nanoseconds since it was last read to a slot.

    Its words: the addresses of the slot, of the time at which the clock was last read, of a C ``timespec``, of
    ``clock_gettime``, and of the log: the address of its next entry and of its end, then entries of the slot's address
    and the time. A full log takes no more.
    """

    @device
    def read_clock(words, bases, tid, nt):  # type: ignore[no-untyped-def]
        slot, last, now = load_i64(words, 0), load_i64(words, 1), load_i64(words, 2)
        # Two arguments more than it has, which the C calling conventions of all targets allow.
        call_kernel(load_i64(words, 3), _MONOTONIC, now, 0, 0)
        nanoseconds = load_i64(now, 0) * _SECOND + load_i64(now, 1)
        store_i64(slot, 0, load_i64(slot, 0) + nanoseconds - load_i64(last, 0))
        store_i64(last, 0, nanoseconds)
        log = load_i64(words, 4)
        entry = load_i64(log, 0)
        if entry < load_i64(log, 1):
            store_i64(entry, 0, slot)
            store_i64(entry, 1, nanoseconds)
            store_i64(log, 0, entry + 16)

    return read_clock
