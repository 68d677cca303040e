"""The client's end of a doorbell: a page of memory shared with one thread of the accelerator."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os

import numpy as np

from isthmus.backends.accelerator.memory import ENTRY
from isthmus.engine.native import doorbell, loader
from isthmus.engine.native.target import host as host_target
from isthmus.system.channel import system_refusal
from isthmus.system.interrupts import own_fd

RINGING = ("doorbell:call", "doorbell:wait", "doorbell:hang_up")
"""The kernels of the client's end."""
# The page cannot change its size: neither side can make the other crash by truncating it.
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
# Maximum seconds of a wait in native code, where Python handles no signals.
_CHUNK = 0.05


class _TimeSpan(ctypes.Structure):
    """The duration of a wait in native code (struct timespec)."""

    _fields_ = (("seconds", ctypes.c_int64), ("nanoseconds", ctypes.c_int64))


def _span(seconds: float) -> _TimeSpan:
    """Return the duration of a wait, at most `_CHUNK`."""
    return _TimeSpan(0, max(1, int(min(seconds, _CHUNK) * 1e9)))


class Page:
    """The page, its words by name (see `isthmus.engine.native.doorbell`), and the native calls that ring and wait.

    The fast path (`Queue.execute`) rings by `call` itself. Its arguments are `address`, the request's number, how long
    to spin, and `span`: the address of the longest duration of a wait.
    """

    def __init__(self) -> None:
        code = loader.addresses(RINGING, host_target())
        self.call, self._wait, self._hang_up = (ENTRY(code[kernel]) for kernel in RINGING)
        try:
            self._descriptor = own_fd(os.memfd_create, "isthmus-doorbell", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as problem:
            raise system_refusal(problem, "doorbell of a context", "it cannot be made") from None
        try:
            os.ftruncate(self.fd, doorbell.PAGE_BYTES)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, _SEALS)
            self.words = np.frombuffer(mmap.mmap(self.fd, doorbell.PAGE_BYTES), np.int64)
        except OSError as problem:
            self.close()
            raise system_refusal(problem, "doorbell of a context", "it cannot be mapped") from None
        self.address = self.words.ctypes.data
        self.request, self.response, self.status, self.abort = (
            ctypes.c_int64.from_address(self.address + word)
            for word in (doorbell.REQUEST, doorbell.RESPONSE, doorbell.STATUS, doorbell.ABORT)
        )
        self._chunk = _span(_CHUNK)
        self.span = ctypes.addressof(self._chunk)

    @property
    def fd(self) -> int:
        """Its descriptor for the other side, until it is closed here."""
        return self._descriptor.fileno()

    def ring(self, number: int, seconds: float) -> None:
        """Post a request by its number and wait for its reply, no longer than `seconds` or `_CHUNK`."""
        if seconds < _CHUNK:
            self.call(self.address, number, 0, ctypes.addressof(_span(seconds)))
        else:
            self.call(self.address, number, doorbell.WORKING_SPINS, self.span)

    def wait(self, number: int, seconds: float = _CHUNK) -> None:
        """Wait for the reply to a posted request, no longer than `seconds` or `_CHUNK`."""
        self._wait(self.address, number, 0, ctypes.addressof(_span(seconds)))

    def hang_up(self) -> None:
        """Release every thread that waits, now and later, because the accelerator is gone."""
        self._hang_up(self.address, 0, 0, 0)

    def close(self) -> None:
        """Close the descriptor, which the other side has received by now; safe to call again."""
        self._descriptor.close()
