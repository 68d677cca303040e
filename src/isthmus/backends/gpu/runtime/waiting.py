"""Waiting for events of OpenCL: in native code, and in pieces, so that interrupts and limits get through."""

from __future__ import annotations

import ctypes
import time
from collections import deque
from contextlib import suppress
from itertools import chain, starmap
from operator import setitem
from typing import TYPE_CHECKING, Any

from isthmus.backends.gpu.runtime import machine, numbers
from isthmus.backends.gpu.runtime.cells import give_back, store
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.loop import WORD, CommandWord
from isthmus.backends.gpu.runtime.status import check, refusal
from isthmus.system.interrupts import Finalizer

if TYPE_CHECKING:
    from isthmus.backends.gpu.runtime.context import ClContext

PIECE = 0.05
"""The longest wait in one piece, in seconds: interrupts and time limits are looked at in between."""
SPIN = 0.002
"""How long to spin for a device that computes by itself, in seconds."""
SPIN_ON_HOST = 0.00005
"""The same for one that computes on the host's processors, where it has a single command: more of them need all
processors. Whoever spins makes way."""

_SLAB = 512
"""Bells that are made at a time."""
_Words = ctypes.c_int64 * CommandWord.END
_FUNCTIONS = {
    CommandWord.LAUNCH: "clEnqueueNDRangeKernel",
    CommandWord.WRITE: "clEnqueueWriteBuffer",
    CommandWord.READ: "clEnqueueReadBuffer",
    CommandWord.MAP: "clEnqueueMapBuffer",
    CommandWord.UNMAP: "clEnqueueUnmapMemObject",
    CommandWord.FLUSH: "clFlush",
    CommandWord.MEM_INFO: "clGetMemObjectInfo",
    CommandWord.EVENT_INFO: "clGetEventInfo",
    CommandWord.CALL_BACK: "clSetEventCallback",
    CommandWord.RELEASE: "clReleaseEvent",
}


class Bells:
    """Words that drivers write when they call back, and whose memory never ends.

    A driver may be late: it may write when whoever waited has gone, and while the process ends. So a word is used again
    only after its call, and nothing gives its memory back. It stands in a block, or here as free or as awaited, and
    goes from one to the other by a single call of C, which no handler of a signal can divide.
    """

    def __init__(self) -> None:
        self._free: deque[int] = deque()
        self._awaited: deque[int] = deque()
        self._slabs: list[Any] = []
        # A reference that nobody has: Python itself does not free these words when it ends.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._slabs))

    def give(self, words: Any) -> None:
        """Put one that nobody is going to write into a block that has none."""
        self._sweep()
        while not words[CommandWord.BELL]:
            try:
                store(words, CommandWord.BELL, starmap(self._free.popleft, ((),)))
            except IndexError:
                self._make()

    def exchange(self, words: Any) -> None:
        """Put another one into a block whose own a driver was asked to write."""
        self._sweep()
        while words[CommandWord.ARMED]:
            another, asked = starmap(self._free.popleft, ((),)), (words[CommandWord.BELL],)
            steps = chain(
                map(setitem, (words,), (CommandWord.BELL,), another),
                map(self._awaited.append, asked),
                map(setitem, (words,), (CommandWord.ARMED,), (0,)),
            )
            try:
                deque(steps, maxlen=0)
            except IndexError:
                self._make()

    def take_back(self, words: Any) -> None:
        """Have a block's again, if it has one; safe to repeat."""
        give_back(words, CommandWord.BELL, (self._awaited if words[CommandWord.ARMED] else self._free).append)

    def _sweep(self) -> None:
        """Have those free that were written."""
        for address in tuple(self._awaited):
            bell = ctypes.c_int64.from_address(address)
            if bell.value:
                steps = chain(
                    map(self._awaited.remove, (address,)),
                    map(setattr, (bell,), ("value",), (0,)),
                    map(self._free.append, (address,)),
                )
                # Another thread may have been first.
                with suppress(ValueError):
                    deque(steps, maxlen=0)

    def _make(self) -> None:
        slab = (ctypes.c_int64 * _SLAB)()
        first = ctypes.addressof(slab)
        addresses = range(first, first + WORD * _SLAB, WORD)
        deque(chain(map(self._slabs.append, (slab,)), map(self._free.extend, (addresses,))), maxlen=0)


_bells = Bells()


class CommandBlock:
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
        self.words[CommandWord.NOTIFY] = loop.notify
        self.words[CommandWord.QUEUE] = queue
        on_host_ns = -int(SPIN_ON_HOST * 1e9) if is_single else 0
        self.words[CommandWord.SPIN] = on_host_ns if on_host else int(SPIN * 1e9)
        self.words[CommandWord.SLICE] = int(PIECE * 1e9)
        Finalizer(self, _bells.take_back, self.words)
        _bells.give(self.words)

    def fresh_bell(self) -> None:
        """After a wait that slept: have a bell that no earlier event rings."""
        if self.words[CommandWord.ARMED]:
            _bells.exchange(self.words)

    def wait(self, seconds: float) -> bool:
        """Wait for the block's event, and go on after pieces; whether it has ended, in whatever way.

        What came of it stands in the words: nothing in EVENT if it is complete, else its state in VALUE.
        """
        wait, words, deadline = machine.load().wait, self.words, time.monotonic() + seconds
        try:
            while True:
                left = deadline - time.monotonic()
                words[CommandWord.SLICE] = int(min(max(left, 0), PIECE) * 1e9)
                wait(self.address, 0, 0, 0)
                if words[CommandWord.EVENT] == 0 or words[CommandWord.STATUS] != 0 or state(words) < numbers.COMPLETE:
                    return True
                if left <= 0:
                    return False
        finally:
            words[CommandWord.SLICE] = int(PIECE * 1e9)


def map_buffer(context: ClContext, memory: int, nbytes: int, what: str, cell: Any = None) -> int:
    """Have the host read and write a buffer, once all before it in the queue is done.

    The answer is the address that the host sees; it stands in a cell too, if one is given, where no handler of a signal
    can come between.

    Raises
    ------
    QnnError
        COMMON_SYSTEM_COMMUNICATION if the device fails, or has not come to it when its time is over: then it is lost.
    """
    functions, block = library().functions, CommandBlock(context.queue, context.device.kind == "cpu")
    status, flags, cell = ctypes.c_int32(), numbers.MAP_READ | numbers.MAP_WRITE, cell or (ctypes.c_void_p * 1)()
    event = block.address + WORD * CommandWord.EVENT
    given = (context.queue, memory, numbers.FALSE, flags, 0, nbytes, 0, None, event, ctypes.byref(status))
    try:
        store(cell, 0, map(functions["clEnqueueMapBuffer"], *((argument,) for argument in given)))
        check(status.value, what, "clEnqueueMapBuffer")
        functions["clFlush"](context.queue)
        if not block.wait(context.patience):
            context.lose(f"memory has not been mapped within {context.patience:g} s")
        elif block.words[CommandWord.EVENT]:
            failed = int(block.words[CommandWord.STATUS]) or state(block.words)
            context.lose(refusal(failed, what, "clEnqueueMapBuffer").rule)
    finally:
        give_back(block.words, CommandWord.EVENT, functions["clReleaseEvent"])
    if context.lost is not None:
        raise context.loss(what)
    return int(cell[0] or 0)


def hand_over(queue: int, memory: int, address: int, seconds: float) -> bool:
    """Give memory that is mapped to the device for good, and wait; whether it has taken it. Safe to call again."""
    functions, block = library().functions, CommandBlock(queue, True)
    event = block.address + WORD * CommandWord.EVENT
    try:
        if functions["clEnqueueUnmapMemObject"](queue, memory, address, 0, None, event):
            # It is not mapped any more: what ended that may still be under way.
            functions["clEnqueueMarkerWithWaitList"](queue, 0, None, event)
        functions["clFlush"](queue)
        return not block.words[CommandWord.EVENT] or (block.wait(seconds) and not block.words[CommandWord.EVENT])
    finally:
        give_back(block.words, CommandWord.EVENT, functions["clReleaseEvent"])


def state(words: Any) -> int:
    """The execution status of an event as the block has it: 32 bits with a sign."""
    return ctypes.c_int32(words[CommandWord.VALUE] & 0xFFFFFFFF).value
