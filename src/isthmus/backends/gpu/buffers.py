"""Memory of OpenCL devices: buffers of a context, the client's or ours, and host memory that a device works in.

Which memory it is, its memory object tells, and for a sub-buffer its parent with the place in it: two sub-buffers of
one parent overlap where their bytes do. The host sees none of it, unless it is host memory to begin with.
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
from isthmus.errors import Code, QnnError
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
"""What memory is pinned and shared by."""
_lost_pages: list[Buffer] = []


class OpenClBuffer(Buffer):
    """A memory object of OpenCL, of which we hold a reference.

    Parameters
    ----------
    context
        The context that it belongs to.
    owned
        The reference.
    facts
        What OpenCL tells of it.
    """

    def __init__(self, context: ClContext, owned: Owned, facts: MemoryFacts, address: int | None = None) -> None:
        self.context, self.facts = context, facts
        self._owned = owned
        context.keep_for(self)
        if facts.host_address and context.device.unified:
            # The device works in the host's own memory: that is what it is.
            self._describe(KIND, facts.nbytes, address, PRIVATE, facts.host_address)
        else:
            self._describe(KIND, facts.nbytes, address, Identity(KIND, (facts.parent or facts.handle,)), facts.offset)

    @property
    def handle(self) -> int:
        """OpenCL's memory object."""
        self.check_open()
        return self._owned.handle

    @property
    def is_shared(self) -> bool:
        """Whether the device works in memory that the host has too, so that to map it copies nothing."""
        return self.facts.is_of_host and self.context.device.unified

    def abandon(self) -> None:
        """End it though it may be in use; the reference goes when nobody has this object any more."""
        with holds.lock:
            self._closed = True
            holds.changed()
        for ending in self._endings:
            ending.run()

    def _release(self) -> None:
        self._owned.close()
        self.context.leave(self)


class HostSharedBuffer(OpenClBuffer):
    """Host memory that a device works in. Between executions the host has it: it is mapped, always at its address.

    Where the device shares memory with the host, handing it over costs nothing; elsewhere the driver transfers it.
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
        """Give it to the host, whoever has it; an execution that went wrong may have left it with the device."""
        if not map_count(self.handle):
            self._map()

    def _map(self) -> None:
        at = map_buffer(self.context, self.handle, self.facts.nbytes, self.what)
        if at != self.address:
            raise QnnError(Code.MEM_MAPPING, self.what, "the driver maps it to another address than its own")

    def _release(self) -> None:
        self._mapping.run()
        super()._release()


def _hand_back(context: ClContext, owned: Owned, pages: Buffer) -> None:
    """Give host memory to the device for good, and wait until it has taken it: then the memory may end."""
    if sys.is_finalizing():
        return
    if library().is_inherited or owned.is_closed:
        return
    if context.lost is None and not hand_over(context.queue, owned.handle, pages.address, GRACE):
        context.lose("memory that was handed to it does not come back")
    if context.lost is not None:
        # It may still be written into.
        _lost_pages.append(pages)


@dataclass(frozen=True)
class _OpenClRequest(AllocationRequest):
    """A request for memory of a context; `shared` where the device is to work in host memory."""

    _: KW_ONLY
    context: ClContext
    flags: int
    shared: bool


class OpenCl(MemoryResource):
    """Memory of OpenCL devices. It belongs to a context, so it is asked for by `device_buffer` and `shared_buffer`."""

    kind = KIND

    def fulfil(self, request: AllocationRequest) -> Buffer:
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
            raise QnnError(Code.COMMON_MEM_ALLOC, what, f"{context.device} allocates at most {most} bytes")
        if not request.shared:
            return OpenClBuffer(context, *_made(context, flags, nbytes, 0, what))
        # Drivers share whole pages only; and the memory must outlast the memory object.
        pages = HostBuffer(-(-nbytes // PAGE) * PAGE)
        owned, facts = _made(context, flags, pages.nbytes, pages.address, what)
        buffer = HostSharedBuffer(context, owned, facts, pages, nbytes)
        buffer._map()
        return buffer


def _made(context: ClContext, flags: int, nbytes: int, address: int, what: str) -> tuple[Owned, MemoryFacts]:
    owned = Owned.make(what, "clCreateBuffer", context.handle, flags, nbytes, address or None)
    return owned, MemoryFacts(owned.handle, what)


provide(OpenCl())


def device_buffer(context: ClContext, nbytes: int, *, of_host: bool = False) -> OpenClBuffer:
    """Memory of a device; `of_host` asks for memory that the host can be given quickly (ALLOC_HOST_PTR)."""
    flags = numbers.MEM_READ_WRITE | (numbers.MEM_ALLOC_HOST_PTR if of_host else 0)
    return _allocated(context, nbytes, flags, shared=False)


def shared_buffer(context: ClContext, nbytes: int) -> HostSharedBuffer:
    """Host memory that a device works in (USE_HOST_PTR), handed over for each execution."""
    buffer = _allocated(context, nbytes, numbers.MEM_READ_WRITE | numbers.MEM_USE_HOST_PTR, shared=True)
    assert isinstance(buffer, HostSharedBuffer)
    return buffer


def _allocated(context: ClContext, nbytes: int, flags: int, *, shared: bool) -> OpenClBuffer:
    alignment = context.device.alignment
    buffer = current(KIND).fulfil(_OpenClRequest(nbytes, alignment, context=context, flags=flags, shared=shared))
    assert isinstance(buffer, OpenClBuffer)
    return buffer


class PinnedBuffer(Buffer):
    """Memory of the host that a device's own engine reads and writes: ALLOC_HOST_PTR, mapped as long as it lives."""

    def __init__(self, inner: OpenClBuffer, address: int) -> None:
        self.inner = inner
        self._describe("pinned", inner.nbytes, address)

    @property
    def array(self) -> np.ndarray:
        view = (ctypes.c_ubyte * self.nbytes).from_address(self.address)
        # Whoever has a view keeps the memory, also when this has ended.
        view.owner = self.inner  # type: ignore[attr-defined]
        return np.ctypeslib.as_array(view)

    def _release(self) -> None:
        # A view may still be out: the memory goes with the last one.
        self.inner = None  # type: ignore[assignment]


def pinned_buffer(context: ClContext, nbytes: int) -> PinnedBuffer:
    """Host memory that transfers go to and from at the speed of the bus."""
    inner, cell = device_buffer(context, nbytes, of_host=True), (ctypes.c_void_p * 1)()
    # Drivers keep memory that is mapped.
    Finalizer(inner, _unmap, context, inner._owned, cell)
    return PinnedBuffer(inner, map_buffer(context, inner.handle, nbytes, inner.what, cell))


def _unmap(context: ClContext, owned: Owned, cell: Any) -> None:
    if sys.is_finalizing():
        return
    found = library()
    if cell[0] and not found.is_inherited and not owned.is_closed and context.lost is None:
        found.functions["clEnqueueUnmapMemObject"](context.queue, owned.handle, cell[0], 0, None, None)
        found.functions["clFlush"](context.queue)


def pin_pages(context: ClContext, address: int, nbytes: int) -> Owned | None:
    """Have whole pages of a client's memory stay where they are, so that a device can fetch from there.

    It is a memory object over them that no command uses; the answer ends it. None where the driver makes none.
    """
    flags = numbers.MEM_READ_WRITE | numbers.MEM_USE_HOST_PTR
    try:
        return Owned.make("client's memory", "clCreateBuffer", context.handle, flags, nbytes, address)
    except QnnError:
        return None


def adopt_buffer(context: ClContext, given: Any, what: str) -> OpenClBuffer:
    """The client's buffer, by an object of pyopencl or by its handle.

    Raises
    ------
    QnnError
        MEM_INVALID_ARGUMENT for what is no buffer of OpenCL, or one of another context; MEM_INVALID_HANDLE for one that
        was released.
    """
    facts = _facts(given, what)
    if facts.context != context.handle:
        raise QnnError(
            Code.MEM_INVALID_ARGUMENT, what, "its OpenCL buffer belongs to another context than the backend works in",
            "Create it in the backend's context, or the backend in its context.",
        )  # fmt: skip
    return OpenClBuffer(context, Owned.keep(what, "MemoryObject", facts.handle), facts)


def context_of(given: Any, what: str) -> int:
    """The context of OpenCL that a client's buffer belongs to, by its handle; errors as those of `adopt_buffer`."""
    return _facts(given, what).context


def _facts(given: Any, what: str) -> MemoryFacts:
    code = Code.MEM_INVALID_ARGUMENT
    if isinstance(given, Buffer) and not isinstance(given, OpenClBuffer):
        raise QnnError(code, what, f"a {given.what} is not an OpenCL buffer")
    if isinstance(given, OpenClBuffer):
        given.check_open()
        given = given.handle
    facts = MemoryFacts(handle_of(given, "MemoryObject", what, code, Code.MEM_INVALID_HANDLE), what)
    if not facts.is_buffer:
        raise QnnError(code, what, "its memory object is an image", "Give a buffer.")
    return facts


def adopt_pyopencl(context: ClContext, given: Any) -> OpenClBuffer | None:
    """The buffer of pyopencl that a client brought instead of memory; None for all else, and for other contexts."""
    if not type(given).__module__.startswith("pyopencl") or not hasattr(given, "int_ptr"):
        return None
    try:
        return adopt_buffer(context, given, "OpenCL buffer")
    except QnnError:
        return None
