"""Events: the ends of commands, for which the host or other commands can wait."""

from __future__ import annotations

import ctypes
import math
import sys
import time
from ctypes import c_int32, c_uint64, c_void_p
from typing import Any

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.cells import give_back, store_retained
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.handles import handle_of
from isthmus.backends.gpu.runtime.library import REMEDY, ClLibrary, library
from isthmus.backends.gpu.runtime.loop import WORD, CommandWord
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.status import refusal
from isthmus.backends.gpu.runtime.waiting import CommandBlock, state
from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import Finalizer

# Seconds after which a waiting thread checks whether the device is lost.
_PIECE = 1.0


class ClEvent(Owned):
    """The end of enqueued commands. It has no handle until they are enqueued: the driver writes it to `address`."""

    def __init__(self, context: ClContext, what: str) -> None:
        super().__init__("Event")
        self._context, self._what = context, what

    @property
    def int_ptr(self) -> int:
        """The OpenCL event; it lives as long as this object."""
        if not self.handle:
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"event of {self._what}", "it is closed")
        return self.handle

    @property
    def cl(self) -> Any:
        """The event as a pyopencl object, for a client's own commands to wait for."""
        try:
            import pyopencl
        except ImportError:
            rule = "the package pyopencl is not installed"
            raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "OpenCL event", rule, REMEDY) from None
        return pyopencl.Event.from_int_ptr(self.int_ptr, retain=True)

    @property
    def done(self) -> bool:
        """Whether it has happened."""
        opencl = library()
        return (
            opencl.number(
                self._what, "clGetEventInfo", self.int_ptr, numbers.EVENT_COMMAND_EXECUTION_STATUS, kind=c_int32
            )
            <= numbers.COMPLETE
        )

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until it has happened.

        Raises GRAPH_TIMED_OUT if it has not happened within `seconds`; it may still happen later.
        GRAPH_INVALID_ARGUMENT if `seconds` is not a valid time, COMMON_SYSTEM_COMMUNICATION if the device failed.
        """
        self._context.check(self._what)
        ended, failed = self._wait_until_ended(_seconds(seconds, self._what))
        if not ended:
            raise QnnError(Code.GRAPH_TIMED_OUT, self._what, f"it did not end within {float(seconds):g} s")
        if failed:
            self._context.lose(refusal(failed, self._what, "an execution").rule)
            raise self._context.loss(self._what)

    def _wait_until_ended(self, seconds: float) -> tuple[bool, int]:
        """Wait for a while; return whether it has ended, and the status that it failed with, or 0."""
        # Nothing is enqueued, so the block needs no queue.
        block, opencl = CommandBlock(0, self._context.device.kind == "cpu"), library()
        words = block.words
        try:
            # Native code releases a reference when the event is complete.
            store_retained(words, CommandWord.EVENT, opencl.functions["clRetainEvent"], self.int_ptr)
            if not words[CommandWord.EVENT]:
                raise QnnError(Code.COMMON_SYSTEM, self._what, "the driver does not allow its event to be retained")
            deadline = time.monotonic() + seconds
            # Wait in pieces, because another thread may find that the device is lost.
            while not (ended := block.wait(min(_PIECE, deadline - time.monotonic()))):
                self._context.check(self._what)
                if time.monotonic() >= deadline:
                    break
            # An ended event that is still in the block has failed: the query of its status did, or its command.
            return ended, (words[CommandWord.STATUS] or state(words)) if ended and words[CommandWord.EVENT] else 0
        finally:
            give_back(words, CommandWord.EVENT, opencl.functions["clReleaseEvent"])


class Events:
    """The events of several commands, which native code writes into one array.

    - `count`: The largest number of events.
    """

    def __init__(self, count: int) -> None:
        self._cells = (c_void_p * count)()
        self._end = Finalizer(self, _give_all_back, library(), self._cells)

    @property
    def addresses(self) -> list[int]:
        """The address that each command is to write its event to."""
        first = ctypes.addressof(self._cells)
        return [first + WORD * index for index in range(len(self._cells))]

    @property
    def handles(self) -> list[int]:
        """The handles of the events, 0 where there is none."""
        return [handle or 0 for handle in self._cells]

    def close(self) -> None:
        """Release all events; safe to call again."""
        self._end.run()


def _give_all_back(opencl: ClLibrary, cells: Any) -> None:
    """Release all events, unless the library may not be called: in a forked child, and while the process exits."""
    if not opencl.is_inherited and not sys.is_finalizing():
        for index in range(len(cells)):
            give_back(cells, index, opencl.functions["clReleaseEvent"])


def device_times(event: int, what: str) -> tuple[int, int]:
    """Return when an event's command began and ended, in nanoseconds on the device's clock.

    Its queue must record such times.
    """
    begin, end = (
        library().number(what, "clGetEventProfilingInfo", event, which, kind=c_uint64)
        for which in (numbers.PROFILING_COMMAND_START, numbers.PROFILING_COMMAND_END)
    )
    return begin, end


def _seconds(value: Any, what: str) -> float:
    """Check and return how many seconds a client wants to wait."""
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    # `not seconds >= 0` is also true of NaN.
    if isinstance(value, str) or not seconds >= 0:
        rule = f"{value!r} is not a valid time to wait"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, what, rule, "Give seconds, or nothing to wait without end.")
    return seconds


def event_handles(events: Any, context: ClContext, what: str) -> list[int]:
    """Return the handles of the events that a client wants to wait for; refuse any of another context."""
    code = Code.GRAPH_INVALID_ARGUMENT
    try:
        listed = list(events)
    except TypeError:
        raise QnnError(code, what, f"wait_for {events!r} is not a list of events") from None
    handles = []
    for event in listed:
        handle = handle_of(event, "Event", f"event to wait for before {what}", code)
        owner = library().number(what, "clGetEventInfo", handle, numbers.EVENT_CONTEXT, kind=c_void_p)
        if owner != context.handle:
            raise QnnError(code, what, "an event to wait for belongs to another OpenCL context")
        handles.append(handle)
    return handles
