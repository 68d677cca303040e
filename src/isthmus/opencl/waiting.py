"""Waiting for events of OpenCL: in native code, in pieces, and never for ever."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from contextlib import suppress
from typing import Any

from isthmus.opencl import machine, numbers
from isthmus.opencl.cells import give_back
from isthmus.opencl.library import library
from isthmus.opencl.loop import WORD, Word

PIECE = 0.05
"""The longest wait in one piece, in seconds: interrupts and time limits are looked at in between."""
SPIN = 0.002
"""How long to spin for a device that computes by itself, in seconds."""
SPIN_ON_HOST = 0.00005
"""The same for one that computes on the host's processors, where it has a single command: more of them need all
processors. Whoever spins makes way."""

_Words = ctypes.c_int64 * Word.END
_FUNCTIONS = {
    Word.LAUNCH: "clEnqueueNDRangeKernel",
    Word.WRITE: "clEnqueueWriteBuffer",
    Word.READ: "clEnqueueReadBuffer",
    Word.MAP: "clEnqueueMapBuffer",
    Word.UNMAP: "clEnqueueUnmapMemObject",
    Word.FLUSH: "clFlush",
    Word.MEM_INFO: "clGetMemObjectInfo",
    Word.EVENT_INFO: "clGetEventInfo",
    Word.CALL_BACK: "clSetEventCallback",
    Word.RELEASE: "clReleaseEvent",
}


class _Bells:
    """Words that drivers write when they call back. A driver may be late: a word is used again only after its call."""

    def __init__(self) -> None:
        self._free: deque[Any] = deque()
        self._awaited: deque[Any] = deque()

    def take(self) -> Any:
        """A word that nobody is going to write."""
        # Other threads may take some meanwhile.
        with suppress(IndexError):
            for _ in range(len(self._awaited)):
                bell = self._awaited.popleft()
                (self._free if bell.value else self._awaited).append(bell)
        try:
            bell = self._free.popleft()
        except IndexError:
            bell = ctypes.c_int64()
        bell.value = 0
        return bell

    def give_back(self, bell: Any, armed: bool) -> None:
        """Have it used again, once a driver that was asked to write it has done so."""
        (self._awaited if armed and not bell.value else self._free).append(bell)


_bells = _Bells()


class Block:
    """The words that native code enqueues and waits by.

    Parameters
    ----------
    queue
        Where commands go.
    on_host
        Whether the device computes on the host's processors.
    is_single
        Whether a single command is waited for.
    """

    def __init__(self, queue: int, on_host: bool, is_single: bool = False) -> None:
        found, loop = library(), machine.load()
        self.words = _Words()
        self.address = ctypes.addressof(self.words)
        for word, name in _FUNCTIONS.items():
            self.words[word] = found.address(name)
        self.words[Word.NOTIFY] = loop.notify
        self.words[Word.QUEUE] = queue
        on_host_ns = -int(SPIN_ON_HOST * 1e9) if is_single else 0
        self.words[Word.SPIN] = on_host_ns if on_host else int(SPIN * 1e9)
        self.words[Word.SLICE] = int(PIECE * 1e9)
        self._bell = _bells.take()
        self.words[Word.BELL] = ctypes.addressof(self._bell)

    def fresh_bell(self) -> None:
        """After a wait that slept: have a bell that no earlier event rings."""
        if self.words[Word.ARMED]:
            # The new one first: no bell may be in two hands, wherever an exception comes.
            rung, self._bell = self._bell, _bells.take()
            _bells.give_back(rung, True)
            self.words[Word.BELL] = ctypes.addressof(self._bell)
            self.words[Word.ARMED] = 0

    def __del__(self) -> None:
        bell = getattr(self, "_bell", None)
        if bell is not None:
            _bells.give_back(bell, bool(self.words[Word.ARMED]))

    def wait(self, seconds: float) -> bool:
        """Wait for the block's event, and go on after pieces; whether it has ended, in whatever way.

        What came of it stands in the words: nothing in EVENT if it is complete, else its state in VALUE.
        """
        wait, words, deadline = machine.load().wait, self.words, time.monotonic() + seconds
        try:
            while True:
                left = deadline - time.monotonic()
                words[Word.SLICE] = int(min(max(left, 0), PIECE) * 1e9)
                wait(self.address, 0, 0, 0)
                if words[Word.EVENT] == 0 or words[Word.STATUS] != 0 or state(words) < numbers.COMPLETE:
                    return True
                if left <= 0:
                    return False
        finally:
            words[Word.SLICE] = int(PIECE * 1e9)


def hand_over(queue: int, memory: int, address: int, seconds: float) -> bool:
    """Give memory that is mapped to the device for good, and wait; whether it has taken it. Safe to call again."""
    functions, block = library().functions, Block(queue, True)
    event = block.address + WORD * Word.EVENT
    try:
        if functions["clEnqueueUnmapMemObject"](queue, memory, address, 0, None, event):
            # It is not mapped any more: what ended that may still be under way.
            functions["clEnqueueMarkerWithWaitList"](queue, 0, None, event)
        functions["clFlush"](queue)
        return not block.words[Word.EVENT] or (block.wait(seconds) and not block.words[Word.EVENT])
    finally:
        give_back(block.words, Word.EVENT, functions["clReleaseEvent"])


def state(words: Any) -> int:
    """The execution status of an event as the block has it: 32 bits with a sign."""
    return ctypes.c_int32(words[Word.VALUE] & 0xFFFFFFFF).value
