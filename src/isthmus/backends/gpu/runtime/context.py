"""An OpenCL context with its queue on one device: our own, or the client's.

A device that no longer answers is lost, and everything in its context with it. Every later use fails with an error, and
nothing waits for the device again.
"""

from __future__ import annotations

import ctypes
import weakref
from ctypes import c_uint64, c_void_p
from typing import Any

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.device import ClDevice, describe
from isthmus.backends.gpu.runtime.handles import handle_of
from isthmus.backends.gpu.runtime.library import own_library
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.errors import Code, QnnError
from isthmus.system.lock import Lock

PATIENCE = 600.0
"""Seconds that a device may take for one operation, unless the configuration sets another limit."""


class ClContext:
    """A context and an in-order queue.

    - `context`, `queue`: References to the OpenCL context and queue.
    - `is_own`: Whether only we use them, so that lost ones can be replaced.
    """

    def __init__(self, device: ClDevice, context: Owned, queue: Owned, is_own: bool) -> None:
        self.device = device
        self.is_own = is_own
        self._context, self._queue = context, queue
        self._profiling: Owned | None = None
        """A second queue, which records when commands begin and end."""
        self._lock = Lock()
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()
        """Objects that still need the queue; after `close`, everything is released when none is left."""
        self._closed = False
        self.patience = PATIENCE
        """Seconds that the device may take for one operation before it counts as lost."""
        self.lost: str | None = None
        """The reason why it is lost, as part of a sentence."""

    @classmethod
    def create(cls, device: ClDevice) -> ClContext:
        """Create our own context and queue."""
        what, handles = f"OpenCL context on {device}", (c_void_p * 1)(device.handle)
        properties = (ctypes.c_ssize_t * 3)(numbers.CONTEXT_PLATFORM, device.platform, 0)
        context = Owned.make(what, "clCreateContext", properties, 1, handles, None, None)
        return cls(device, context, Owned.make(what, "clCreateCommandQueue", context.handle, device.handle, 0), True)

    @classmethod
    def of_client(cls, context: Any, queue: Any) -> ClContext:
        """Wrap the client's context, its queue, or both.

        - `context`, `queue`: A pyopencl object or a handle each; one of them may be None. Without a queue, one of our
          own is created in the context; without a context, it is the queue's.

        Raises BACKEND_INCONSISTENT_CONFIG if the queue belongs to another context, BACKEND_INVALID_CONFIG if the queue
        is out of order, or if the context has several devices and there is no queue.
        """
        opencl, code = own_library(), Code.BACKEND_INVALID_CONFIG
        what = "the client's OpenCL context"
        context_handle = None if context is None else handle_of(context, "Context", what, code)
        if queue is None:
            assert context_handle is not None
            handles = opencl.content(what, "clGetContextInfo", context_handle, numbers.CONTEXT_DEVICES)
            count = len(handles) // ctypes.sizeof(c_void_p)
            if count != 1:
                rule = f"it has {count} devices"
                raise QnnError(code, what, rule, "Give a queue, which is on one of them.")
            device = describe(int.from_bytes(handles, "little"))
            reference = Owned.keep(what, "Context", context_handle)
            new_queue = Owned.make(what, "clCreateCommandQueue", context_handle, device.handle, 0)
            return cls(device, reference, new_queue, False)
        what = "the client's OpenCL queue"
        queue_handle = handle_of(queue, "CommandQueue", what, code)

        def number(which: int, kind: Any) -> int:
            return opencl.number(what, "clGetCommandQueueInfo", queue_handle, which, kind=kind)

        owner = number(numbers.QUEUE_CONTEXT, c_void_p)
        if context_handle is not None and owner != context_handle:
            rule = "it belongs to another context than the one given"
            raise QnnError(Code.BACKEND_INCONSISTENT_CONFIG, what, rule)
        if number(numbers.QUEUE_PROPERTIES, c_uint64) & numbers.QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE:
            raise QnnError(code, what, "it runs commands out of order", "Give an in-order queue, or only its context.")
        device = describe(number(numbers.QUEUE_DEVICE, c_void_p))
        return cls(device, Owned.keep(what, "Context", owner), Owned.keep(what, "CommandQueue", queue_handle), False)

    @property
    def handle(self) -> int:
        """The OpenCL context."""
        return self._context.handle

    @property
    def queue(self) -> int:
        """The OpenCL queue."""
        return self._queue.handle

    def profiling_queue(self) -> int:
        """Return a queue that records when commands begin and end; it is created on first use."""
        with self._lock:
            if self._profiling is None:
                flags = numbers.QUEUE_PROFILING_ENABLE
                self._profiling = Owned.make(
                    "OpenCL queue", "clCreateCommandQueue", self.handle, self.device.handle, flags
                )
            return self._profiling.handle

    def check(self, what: str) -> None:
        """Raise an error if the device is lost or the context was closed."""
        if self.lost is not None:
            raise self.loss(what)
        if self._closed:
            raise QnnError(Code.CONTEXT_INVALID_HANDLE, what, "its OpenCL context has been freed")

    def lose(self, why: str) -> None:
        """Record that the device no longer answers, and the first reason why; `loss` returns the error to raise."""
        if self.lost is None:
            self.lost = why

    def loss(self, what: str) -> QnnError:
        """Return the error for the use of a lost device."""
        remedy = "Create a new context." if self.is_own else "Create a backend on another OpenCL context."
        rule = f"the device {self.device} is lost: {self.lost}"
        return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, what, rule, remedy)

    def keep_for(self, user: Any) -> None:
        """Keep the queue until `user`, which needs it for its release, has left or was collected."""
        with self._lock:
            self._users.add(user)

    def leave(self, user: Any) -> None:
        """Record that `user` has been released; if it was the last of a closed context, release the queue too."""
        with self._lock:
            self._users.discard(user)
            if self._closed and not self._users:
                self._give_back()

    def close(self) -> None:
        """Accept no more work, and release everything once nothing needs it any more; safe to call again."""
        with self._lock:
            self._closed = True
            if not self._users:
                self._give_back()

    def _give_back(self) -> None:
        """Release the queues, then the context that they belong to."""
        for owned in (self._profiling, self._queue, self._context):
            if owned is not None:
                owned.close()
