"""Memory of OpenCL devices: buffers of a context (the client's or ours), and host memory that a device works in.

The identity of a buffer is its memory object; that of a sub-buffer is its parent and the offset in it. Two sub-buffers
of one parent overlap where their bytes do. The host cannot access this memory, unless it was host memory to begin with.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.handles import MemoryFacts, handle_of, map_count
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.owned import Owned
from isthmus.backends.gpu.runtime.waiting import hand_over, map_buffer
from isthmus.errors import Code, DoesNotFit, QnnError
from isthmus.memory import holds
from isthmus.memory.buffer import Buffer
from isthmus.memory.host import HostBuffer
from isthmus.memory.identity import PRIVATE, Identity
from isthmus.memory.integers import as_int
from isthmus.memory.resource import AllocationRequest, MemoryResource, current, provide
from isthmus.system.interrupts import Finalizer

KIND = "opencl"
GRACE = 10.0
"""Seconds that a device may take to give memory back."""
PAGE = 4096
"""The granularity in bytes at which memory is pinned and shared."""
# Host memory that a lost device may still write. It is never freed.
_lost_pages: list[Buffer] = []


class OpenClBuffer(Buffer):
    """An OpenCL memory object to which we hold a reference.

    - `context`: The context that the memory object belongs to.
    - `owned`: The reference.
    - `facts`: What OpenCL reports about it.
    - `address`: Where the host sees it; None if it cannot.
    """

    def __init__(self, context: ClContext, owned: Owned, facts: MemoryFacts, address: int | None = None) -> None:
        self.context, self.facts = context, facts
        self._owned = owned
        context.keep_for(self)
        if facts.host_address and context.device.unified:
            # The device works in the host's own memory, so that memory is its identity.
            self._describe(KIND, facts.nbytes, address, PRIVATE, facts.host_address)
        else:
            self._describe(KIND, facts.nbytes, address, Identity(KIND, (facts.parent or facts.handle,)), facts.offset)

    @property
    def handle(self) -> int:
        """The OpenCL memory object."""
        self.check_open()
        return self._owned.handle

    @property
    def is_shared(self) -> bool:
        """Whether the device works in memory that the host can access too, so that mapping it copies nothing."""
        return self.facts.is_of_host and self.context.device.unified

    def abandon(self) -> None:
        """Close the buffer even if it is in use; the reference is released when this object is collected."""
        with holds.lock:
            self._closed = True
            holds.record_change()
        # These are the callbacks of `when_gone`.
        for ending in self._endings:
            ending.run()

    def _release(self) -> None:
        self._owned.close()
        # A context that was closed meanwhile releases its queue when the last buffer has left.
        self.context.leave(self)


class HostSharedBuffer(OpenClBuffer):
    """Host memory that a device works in. Between executions it is mapped for the host, always at the same address.

    If the device shares memory with the host, handing it over costs nothing; otherwise the driver transfers it.

    - `pages`: The host memory, in whole pages.
    - `nbytes`: The bytes of it that were requested.
    """

    def __init__(self, context: ClContext, owned: Owned, facts: MemoryFacts, pages: Buffer, nbytes: int) -> None:
        super().__init__(context, owned, facts, pages.address)
        self.nbytes = nbytes
        self._pages = pages
        self._mapping = Finalizer(self, _hand_back, context, owned, pages)

    @property
    def array(self) -> np.ndarray:
        self.check_open()
        return self._pages.array[: self.nbytes]

    def ensure_mapped(self) -> None:
        """Map the memory for the host if it is not mapped; a failed execution may have left it with the device."""
        if not map_count(self.handle):
            self._map()

    def _map(self) -> None:
        """Map the memory for the host; a driver that puts it elsewhere is refused, because clients have its address."""
        address = map_buffer(self.context, self.handle, self.facts.nbytes, self.what)
        if address != self.address:
            raise QnnError(Code.MEM_MAPPING, self.what, "the driver maps it to another address than its own")

    def _release(self) -> None:
        self._mapping.run()
        super()._release()


def _hand_back(context: ClContext, owned: Owned, pages: Buffer) -> None:
    """End the mapping of host memory and wait until the device has done so, so that the memory can be freed."""
    if sys.is_finalizing():
        return
    if library().is_inherited or owned.is_closed:
        return
    if context.lost is None and not hand_over(context.queue, owned.handle, pages.address, GRACE):
        context.lose("memory that was handed to it does not come back")
    if context.lost is not None:
        # The device may still write into it.
        _lost_pages.append(pages)


@dataclass(frozen=True)
class _OpenClRequest(AllocationRequest):
    """A request for memory of a context.

    - `shared`: Whether the device is to work in host memory.
    """

    _: KW_ONLY
    context: ClContext
    flags: int
    shared: bool


class OpenCl(MemoryResource):
    """Memory of OpenCL devices. It belongs to a context, so `device_buffer` and `shared_buffer` request it."""

    kind = KIND

    def fulfil(self, request: AllocationRequest) -> Buffer:
        """Allocate what is requested, in a context: memory of the device, or host memory that it works in."""
        nbytes = as_int(request.nbytes, "OpenCL buffer")
        what = f"OpenCL buffer of {nbytes} bytes"
        if not isinstance(request, _OpenClRequest):
            rule, hint = "memory of a device belongs to a context", "qnn.gpu.allocate makes it for a backend."
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule, hint)
        if nbytes < 1:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "OpenCL has no empty buffers")
        context, flags = request.context, request.flags
        context.check(what)
        if nbytes > (most := context.device.largest_allocation):
            raise DoesNotFit(Code.COMMON_MEM_ALLOC, what, f"{context.device} allocates at most {most} bytes")
        if not request.shared:
            return OpenClBuffer(context, *_create(context, flags, nbytes, 0, what))
        # Drivers share whole pages only, and the memory must outlive the memory object.
        pages = HostBuffer(-(-nbytes // PAGE) * PAGE)
        owned, facts = _create(context, flags, pages.nbytes, pages.address, what)
        buffer = HostSharedBuffer(context, owned, facts, pages, nbytes)
        buffer._map()
        return buffer


def _create(context: ClContext, flags: int, nbytes: int, address: int, what: str) -> tuple[Owned, MemoryFacts]:
    """Create a memory object, over host memory at an address if that is not 0; return it with the facts about it."""
    owned = Owned.make(what, "clCreateBuffer", context.handle, flags, nbytes, address or None)
    return owned, MemoryFacts(owned.handle, what)


provide(OpenCl())


def device_buffer(context: ClContext, nbytes: int, *, of_host: bool = False) -> OpenClBuffer:
    """Allocate device memory; `of_host` requests memory that can be mapped for the host quickly (ALLOC_HOST_PTR)."""
    flags = numbers.MEM_READ_WRITE | (numbers.MEM_ALLOC_HOST_PTR if of_host else 0)
    return _allocate(context, nbytes, flags, shared=False)


def shared_buffer(context: ClContext, nbytes: int) -> HostSharedBuffer:
    """Allocate host memory that a device works in (USE_HOST_PTR); it is handed over for each execution."""
    buffer = _allocate(context, nbytes, numbers.MEM_READ_WRITE | numbers.MEM_USE_HOST_PTR, shared=True)
    assert isinstance(buffer, HostSharedBuffer)
    return buffer


def _allocate(context: ClContext, nbytes: int, flags: int, *, shared: bool) -> OpenClBuffer:
    """Allocate through the current memory resource, so that adaptors count, limit and fail these allocations too."""
    alignment = context.device.alignment
    buffer = current(KIND).fulfil(_OpenClRequest(nbytes, alignment, context=context, flags=flags, shared=shared))
    assert isinstance(buffer, OpenClBuffer)
    return buffer


class PinnedBuffer(Buffer):
    """Host memory that a device's copy engine reads and writes (ALLOC_HOST_PTR), mapped for its whole lifetime.

    - `inner`: The memory object, which keeps the memory alive.
    - `address`: Where it is mapped.
    """

    def __init__(self, inner: OpenClBuffer, address: int) -> None:
        self.inner = inner
        self._describe("pinned", inner.nbytes, address)

    @property
    def array(self) -> np.ndarray:
        view = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        # A view keeps the memory alive, even after this buffer is closed.
        view.owner = self.inner  # type: ignore[attr-defined]
        return np.ctypeslib.as_array(view)

    def _release(self) -> None:
        # A view may still exist; the memory is freed with the last one.
        self.inner = None  # type: ignore[assignment]


def pinned_buffer(context: ClContext, nbytes: int) -> PinnedBuffer:
    """Allocate host memory whose transfers run at the speed of the bus."""
    inner, cell = device_buffer(context, nbytes, of_host=True), (ctypes.c_void_p * 1)()
    # Drivers do not free memory while it is mapped. The cell gets the address as soon as the memory is mapped.
    Finalizer(inner, _unmap, context, inner._owned, cell)
    return PinnedBuffer(inner, map_buffer(context, inner.handle, nbytes, inner.what, cell))


def _unmap(context: ClContext, owned: Owned, cell: Any) -> None:
    """End the mapping of a memory object at the address in a cell, if there is one and OpenCL can still be called."""
    if sys.is_finalizing():
        return
    opencl = library()
    if cell[0] and not opencl.is_inherited and not owned.is_closed and context.lost is None:
        opencl.functions["clEnqueueUnmapMemObject"](context.queue, owned.handle, cell[0], 0, None, None)
        opencl.functions["clFlush"](context.queue)


def pin_pages(context: ClContext, address: int, nbytes: int) -> Owned | None:
    """Pin whole pages of a client's memory, so that a device can access them directly.

    This creates a memory object over the pages that no command uses; closing the result unpins them. Return None if the
    driver cannot create one.
    """
    flags = numbers.MEM_READ_WRITE | numbers.MEM_USE_HOST_PTR
    try:
        return Owned.make("client's memory", "clCreateBuffer", context.handle, flags, nbytes, address)
    except QnnError:
        return None


def adopt_buffer(context: ClContext, source: Any, what: str) -> OpenClBuffer:
    """Wrap a client's buffer, given as a pyopencl object or as its handle.

    Raises MEM_INVALID_ARGUMENT if it is not an OpenCL buffer or belongs to another context; MEM_INVALID_HANDLE if it
    was released.
    """
    facts = _facts(source, what)
    if facts.context != context.handle:
        raise QnnError(
            Code.MEM_INVALID_ARGUMENT, what, "its OpenCL buffer belongs to another context than the backend works in",
            "Create it in the backend's context, or the backend in its context.",
        )  # fmt: skip
    return OpenClBuffer(context, Owned.keep(what, "MemoryObject", facts.handle), facts)


def context_of(source: Any, what: str) -> int:
    """Return the handle of the OpenCL context of a client's buffer; errors are those of `adopt_buffer`."""
    return _facts(source, what).context


def _facts(source: Any, what: str) -> MemoryFacts:
    """Check that a client's object is a buffer of OpenCL, and return what OpenCL reports about it."""
    code = Code.MEM_INVALID_ARGUMENT
    if isinstance(source, Buffer) and not isinstance(source, OpenClBuffer):
        raise QnnError(code, what, f"a {source.what} is not an OpenCL buffer")
    if isinstance(source, OpenClBuffer):
        source.check_open()
        source = source.handle
    facts = MemoryFacts(handle_of(source, "MemoryObject", what, code, Code.MEM_INVALID_HANDLE), what)
    if not facts.is_buffer:
        raise QnnError(code, what, "its memory object is an image", "Give a buffer.")
    return facts


def adopt_pyopencl(context: ClContext, source: Any) -> OpenClBuffer | None:
    """Wrap a pyopencl buffer that a client passed as memory; return None for anything else and for other contexts."""
    if not type(source).__module__.startswith("pyopencl") or not hasattr(source, "int_ptr"):
        return None
    try:
        return adopt_buffer(context, source, "OpenCL buffer")
    except QnnError:
        return None
