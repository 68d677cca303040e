"""Waiting for OpenCL events: in native code, and in pieces, so that interrupts and limits take effect."""

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
"""The longest single wait in seconds; interrupts and time limits are checked in between."""
SPIN = 0.002
"""Seconds to spin for a device with its own processors."""
SPIN_ON_HOST = 0.00005
"""Seconds to spin for a device that computes on the host's processors, if it has a single command; several commands
need all processors. The spinning thread yields the processor.
"""

# The number of bells that are created at a time.
_SLAB = 512
# The type of a block: an array of 64-bit words, see `CommandWord`.
_Words = ctypes.c_int64 * CommandWord.END
# The OpenCL functions whose addresses are words of a block.
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
    """Words (bells) that become 1 when a driver calls back; their memory is never freed.

    A driver may be late: it may write after the waiting thread has gone, and while the process exits. So a word is
    reused only after its callback, and its memory is never freed. A word is in a block, or it is listed here as free or
    as awaited. It moves from one to the other in a single C call, which no signal handler can interrupt.

    The parameter `words` of methods is the array of a block's words.
    """

    def __init__(self) -> None:
        self._free: deque[int] = deque()
        """Addresses of bells that are 0 and that no driver is going to write."""
        self._awaited: deque[int] = deque()
        """Addresses of bells that a driver is going to write, or has written."""
        self._slabs: list[Any] = []
        """Arrays that the bells are in."""
        # This reference is never released, so that Python does not free these words when it exits.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._slabs))

    def give(self, words: Any) -> None:
        """Put a bell that no driver is going to write into a block that has none."""
        self._sweep()
        while not words[CommandWord.BELL]:
            try:
                # `starmap` calls `popleft` once, without arguments.
                store(words, CommandWord.BELL, starmap(self._free.popleft, ((),)))
            except IndexError:
                self._make()

    def exchange(self, words: Any) -> None:
        """Put another bell into a block whose own bell a driver was asked to write."""
        self._sweep()
        while words[CommandWord.ARMED]:
            # Nothing happens before `deque` runs the iterators; the first one raises if no bell is free.
            new, old = starmap(self._free.popleft, ((),)), (words[CommandWord.BELL],)
            steps = chain(
                map(setitem, (words,), (CommandWord.BELL,), new),
                map(self._awaited.append, old),
                map(setitem, (words,), (CommandWord.ARMED,), (0,)),
            )
            try:
                deque(steps, maxlen=0)
            except IndexError:
                self._make()

    def take_back(self, words: Any) -> None:
        """Take back the bell of a block, if it has one; safe to repeat."""
        give_back(words, CommandWord.BELL, (self._awaited if words[CommandWord.ARMED] else self._free).append)

    def _sweep(self) -> None:
        """Set the awaited bells that were written to 0, and list them as free."""
        for address in tuple(self._awaited):
            bell = ctypes.c_int64.from_address(address)
            if bell.value:
                steps = chain(
                    map(self._awaited.remove, (address,)),
                    map(setattr, (bell,), ("value",), (0,)),
                    map(self._free.append, (address,)),
                )
                # Another thread may have moved it first; then `remove` raises before anything else is done.
                with suppress(ValueError):
                    deque(steps, maxlen=0)

    def _make(self) -> None:
        """Create more free bells."""
        slab = (ctypes.c_int64 * _SLAB)()
        first = ctypes.addressof(slab)
        addresses = range(first, first + WORD * _SLAB, WORD)
        deque(chain(map(self._slabs.append, (slab,)), map(self._free.extend, (addresses,))), maxlen=0)


_bells = Bells()


class CommandBlock:
    """The words that native code uses to enqueue commands and to wait.

    - `queue`: The queue for the commands; 0 if none are enqueued.
    - `on_host`: Whether the device computes on the host's processors.
    - `is_single`: Whether a single command is waited for.
    """

    def __init__(self, queue: int, on_host: bool, is_single: bool = False) -> None:
        opencl, loop = library(), machine.load()
        self.words = _Words()
        self.address = ctypes.addressof(self.words)
        for word, name in _FUNCTIONS.items():
            self.words[word] = opencl.address(name)
        self.words[CommandWord.NOTIFY] = loop.notify
        self.words[CommandWord.QUEUE] = queue
        # A negative number makes the spinning thread yield the processor.
        on_host_ns = -int(SPIN_ON_HOST * 1e9) if is_single else 0
        self.words[CommandWord.SPIN] = on_host_ns if on_host else int(SPIN * 1e9)
        self.words[CommandWord.SLICE] = int(PIECE * 1e9)
        Finalizer(self, _bells.take_back, self.words)
        _bells.give(self.words)

    def fresh_bell(self) -> None:
        """Replace the bell if a driver was asked to write it, so that no earlier event rings it in the next wait."""
        if self.words[CommandWord.ARMED]:
            _bells.exchange(self.words)

    def wait(self, seconds: float) -> bool:
        """Wait for the block's event, in pieces; return whether it has ended, successfully or not.

        The outcome is in the words: EVENT is 0 if it is complete. Otherwise STATUS has the error of a query, or VALUE
        has the event's execution status, which is below COMPLETE (0) if its command failed.
        """
        wait, words, deadline = machine.load().wait, self.words, time.monotonic() + seconds
        try:
            while True:
                left = deadline - time.monotonic()
                words[CommandWord.SLICE] = int(min(max(left, 0), PIECE) * 1e9)
                # Between two of these calls Python runs the handlers of signals.
                wait(self.address, 0, 0, 0)
                if words[CommandWord.EVENT] == 0 or words[CommandWord.STATUS] != 0 or state(words) < numbers.COMPLETE:
                    return True
                if left <= 0:
                    return False
        finally:
            words[CommandWord.SLICE] = int(PIECE * 1e9)


def map_buffer(context: ClContext, memory: int, nbytes: int, what: str, cell: Any = None) -> int:
    """Map a buffer for the host to read and write, once everything before it in the queue is done; return its address.

    - `memory`, `nbytes`: The buffer's handle and size.
    - `cell`: An array whose first element becomes the address, in the same C call that maps the buffer, so that no
      signal handler can intervene.

    Raises COMMON_SYSTEM_COMMUNICATION if the device fails, or if it has not mapped the buffer in time: then it is lost.
    """
    functions, block = library().functions, CommandBlock(context.queue, context.device.kind == "cpu")
    status, flags, cell = ctypes.c_int32(), numbers.MAP_READ | numbers.MAP_WRITE, cell or (ctypes.c_void_p * 1)()
    event = block.address + WORD * CommandWord.EVENT
    # FALSE: the call does not wait for the device, because nothing could interrupt it. The event is waited for instead.
    arguments = (context.queue, memory, numbers.FALSE, flags, 0, nbytes, 0, None, event, ctypes.byref(status))
    try:
        store(cell, 0, map(functions["clEnqueueMapBuffer"], *((argument,) for argument in arguments)))
        check(status.value, what, "clEnqueueMapBuffer")
        functions["clFlush"](context.queue)
        if not block.wait(context.patience):
            context.lose(f"memory was not mapped within {context.patience:g} s")
        elif block.words[CommandWord.EVENT]:
            failed = int(block.words[CommandWord.STATUS]) or state(block.words)
            context.lose(refusal(failed, what, "clEnqueueMapBuffer").rule)
    finally:
        give_back(block.words, CommandWord.EVENT, functions["clReleaseEvent"])
    if context.lost is not None:
        raise context.loss(what)
    return int(cell[0] or 0)


def hand_over(queue: int, memory: int, address: int, seconds: float) -> bool:
    """Give mapped memory to the device for good, and wait; return whether it has taken it. Safe to call again.

    - `queue`, `memory`: OpenCL's handles of the queue and the memory object.
    - `address`: Where the memory is mapped.
    - `seconds`: How long to wait at most.
    """
    functions, block = library().functions, CommandBlock(queue, True)
    event = block.address + WORD * CommandWord.EVENT
    try:
        if functions["clEnqueueUnmapMemObject"](queue, memory, address, 0, None, event):
            # Refused, so the memory is no longer mapped; but the command that unmapped it may still be running.
            functions["clEnqueueMarkerWithWaitList"](queue, 0, None, event)
        functions["clFlush"](queue)
        # There is no event if the queue took neither command; `wait` makes it 0 if it is complete.
        return not block.words[CommandWord.EVENT] or (block.wait(seconds) and not block.words[CommandWord.EVENT])
    finally:
        give_back(block.words, CommandWord.EVENT, functions["clReleaseEvent"])


def state(words: Any) -> int:
    """Return an event's execution status, which OpenCL wrote to the low half of VALUE: a signed 32-bit number.

    It is 0 (COMPLETE), negative if the command failed, positive if it has not ended.
    """
    return ctypes.c_int32(words[CommandWord.VALUE] & 0xFFFFFFFF).value
