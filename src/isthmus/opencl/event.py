"""Events: the ends of commands, to be waited for by the host or by other commands."""

from __future__ import annotations

import math
from ctypes import c_int32, c_uint64, c_void_p
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.opencl import numbers
from isthmus.opencl.context import Context
from isthmus.opencl.handles import Owned, handle_of
from isthmus.opencl.library import REMEDY, library
from isthmus.opencl.loop import Word
from isthmus.opencl.status import refusal
from isthmus.opencl.waiting import Block, state


class Event(Owned):
    """The end of what was enqueued.

    Parameters
    ----------
    context
        Where it is going to happen.
    handle
        A reference, which this takes over.
    what
        What was enqueued, for messages.
    """

    def __init__(self, context: Context, handle: int, what: str) -> None:
        super().__init__(handle, "clReleaseEvent")
        self._context, self._what = context, what

    @property
    def int_ptr(self) -> int:
        """OpenCL's event; it lives as long as this object."""
        return self.handle

    @property
    def cl(self) -> Any:
        """The event as pyopencl has events, to be waited for by a client's own commands."""
        try:
            import pyopencl
        except ImportError:
            rule = "the package pyopencl is not installed"
            raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "OpenCL event", rule, REMEDY) from None
        return pyopencl.Event.from_int_ptr(self.handle, retain=True)

    @property
    def done(self) -> bool:
        """Whether it has happened."""
        found = library()
        return found.number(
            self._what, "clGetEventInfo", self.handle, numbers.EVENT_COMMAND_EXECUTION_STATUS, kind=c_int32
        ) <= numbers.COMPLETE

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until it has happened.

        Raises
        ------
        QnnError
            GRAPH_TIMED_OUT if it has not within `seconds`; it may still happen then. COMMON_SYSTEM_COMMUNICATION if
            the device failed.
        """
        self._context.check(self._what)
        block, ended = self._waited(seconds)
        if not ended:
            raise QnnError(Code.GRAPH_TIMED_OUT, self._what, f"it has not ended within {seconds:g} s")
        if block.words[Word.EVENT]:
            failed = block.words[Word.STATUS] or state(block.words)
            self._context.lose(refusal(failed, self._what, "an execution").rule)
            raise self._context.loss(self._what)

    def happens_within(self, seconds: float) -> bool:
        """Wait for a while; whether it has happened well, however the context stands."""
        block, ended = self._waited(seconds)
        return ended and not block.words[Word.EVENT]

    def _waited(self, seconds: float) -> tuple[Block, bool]:
        block = Block(0, self._context.device.kind != "cpu")
        # Native code gives a reference back when the event is complete.
        library().call(self._what, "clRetainEvent", self.handle)
        block.words[Word.EVENT] = self.handle
        try:
            return block, block.wait(seconds)
        finally:
            if block.words[Word.EVENT]:
                library().functions["clReleaseEvent"](self.handle)

    def profile(self) -> int:
        """Nanoseconds from its command's begin to its end, as the device has them."""
        found = library()
        begin, end = (
            found.number(self._what, "clGetEventProfilingInfo", self.handle, which, kind=c_uint64)
            for which in (numbers.PROFILING_COMMAND_START, numbers.PROFILING_COMMAND_END)
        )
        return end - begin


def checked(events: Any, context: Context, what: str) -> list[int]:
    """The handles of events that a client wants waited for, if all of them are the context's."""
    code = Code.GRAPH_INVALID_ARGUMENT
    try:
        given = list(events)
    except TypeError:
        raise QnnError(code, what, f"wait_for {events!r} is no list of events") from None
    handles = []
    for event in given:
        handle = handle_of(event, "Event", f"event to wait for before {what}", code)
        owner = library().number(what, "clGetEventInfo", handle, numbers.EVENT_CONTEXT, kind=c_void_p)
        if owner != context.handle:
            raise QnnError(code, what, "an event to wait for belongs to another OpenCL context")
        handles.append(handle)
    return handles
