"""The GPU's registered memory: the client's own OpenCL buffers, with all rules that apply to them.

One buffer has one handle and serves one tensor. A registration keeps a reference, so the client may release its own at
any time. Registration is all or nothing; a handle belongs to one context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.backends.gpu.buffers import HostSharedBuffer, OpenClBuffer, adopt_buffer, context_of
from isthmus.backends.gpu.options import GpuMemInfo, GpuMemType
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.seam.driver import DescriptorType, MemDescriptor
from isthmus.backends.seam.registration import RegistrationTable, TableEntry
from isthmus.errors import Code, QnnError
from isthmus.memory import holds
from isthmus.memory.integers import is_int


class GpuRegistration(TableEntry):
    """One registered OpenCL buffer for tensors.

    - `buffer`: The buffer; the registration closes it.
    - `forget`: Takes the registration out of its table.
    """

    def __init__(
        self, number: int, descriptor: MemDescriptor, buffer: OpenClBuffer, forget: Callable[[GpuRegistration], None]
    ) -> None:
        super().__init__(number, descriptor, buffer.window(0, descriptor.nbytes), forget)
        self.buffer = buffer
        self.shared: HostSharedBuffer | None = None
        """The buffer, if it is our own host memory, which is handed to the device for each execution; else None."""

    def _release(self) -> None:
        super()._release()
        if holds.holders(self.window):
            # An execution is using it. Do not wait for it: its binding keeps the memory as long as it needs.
            self.buffer.abandon()
        else:
            self.buffer.close()


class GpuMemory(RegistrationTable[GpuRegistration]):
    """The registered memory of one context.

    - `context`: The OpenCL context that buffers must belong to.
    """

    def __init__(self, context: ClContext) -> None:
        super().__init__()
        self._context = context

    def foreign(self, descriptors: Sequence[MemDescriptor]) -> int | None:
        """Return the OpenCL context that all these buffers belong to, if it is another one and nothing is registered
        here; else None.
        """
        with self._lock:
            if self._entries:
                return None
        owners = set()
        for index, descriptor in enumerate(descriptors):
            what = f"memory descriptor {index}"
            owners.add(context_of(_named_buffer(what, descriptor), what))
        return None if len(owners) != 1 or self._context.handle in owners else owners.pop()

    def _entry(self, what: str, descriptor: MemDescriptor) -> GpuRegistration:
        """Return a registration for a descriptor, or refuse it; `what` names the descriptor in errors."""
        source = _named_buffer(what, descriptor)
        buffer = adopt_buffer(self._context, source, what)
        try:
            self._check(what, descriptor, buffer)
        except Exception:
            buffer.close()
            raise
        registration = GpuRegistration(next(self._numbers), descriptor, buffer, self._forget)
        if isinstance(source, HostSharedBuffer):
            # A buffer that we allocated in host memory: the registration's window is that memory.
            registration.shared, registration.window = source, source.window(0, descriptor.nbytes)
        return registration

    def _check(self, what: str, descriptor: MemDescriptor, buffer: OpenClBuffer) -> None:
        """Refuse a buffer that is too small, or that shares bytes with a registered one."""
        if buffer.nbytes < descriptor.nbytes:
            rule = f"its OpenCL buffer has {buffer.nbytes} bytes, the tensor needs {descriptor.nbytes}"
            raise QnnError(Code.MEM_INVALID_SHAPE, what, rule)
        for other in self._entries:
            if other.buffer.handle == buffer.handle:
                rule = f"its OpenCL buffer is registered as {other.name}"
                hint = "One buffer has one handle: deregister that, or use it."
                raise QnnError(Code.MEM_ALREADY_REGISTERED, what, rule, hint)
            if holds.overlap(other.buffer.window(), buffer.window()):
                rule = f"its OpenCL buffer shares memory with the one that is registered as {other.name}"
                raise QnnError(Code.MEM_ALREADY_REGISTERED, what, rule, "Give each tensor memory of its own.")


def _named_buffer(what: str, descriptor: MemDescriptor) -> object:
    """Return the buffer that a descriptor names, if it is of a kind that the GPU backend accepts."""
    if descriptor.mem_type is not DescriptorType.CUSTOM:
        rule = f"the GPU backend does not register {descriptor.mem_type.name} memory"
        raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule, "Register CUSTOM memory with an OpenCL buffer.")
    custom = descriptor.custom
    if not isinstance(custom, GpuMemInfo):
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a GpuMemInfo, is {custom!r}")
    if not is_int(custom.mem_type) or custom.mem_type != GpuMemType.OPENCL:
        kind = getattr(custom.mem_type, "name", repr(custom.mem_type))
        rule = f"custom memory of type {kind} cannot be registered"
        raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule, f"Only OPENCL ({int(GpuMemType.OPENCL)}) can.")
    if custom.buffer is None:
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, "its custom structure names no OpenCL buffer")
    return custom.buffer
