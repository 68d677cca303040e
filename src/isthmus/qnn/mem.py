"""A memory handle: registered memory that tensors of one context may lie in (QnnMem_*)."""

from __future__ import annotations

from isthmus.backends.driver import MemDescriptor, Registration
from isthmus.errors import Code
from isthmus.qnn.handle import Handle


class MemHandle(Handle):
    """Registered memory. Made by `Context.mem_register`, ended by `Context.mem_deregister` or with its context."""

    invalid = Code.MEM_INVALID_HANDLE

    def __init__(self, context: Handle, registration: Registration) -> None:
        descriptor = registration.descriptor
        super().__init__(f"memory handle of {descriptor.dtype.name}{list(descriptor.dims)}", context)
        self.context = context
        self.registration = registration

    @property
    def descriptor(self) -> MemDescriptor:
        """What was registered."""
        return self.registration.descriptor

    def _release(self) -> None:
        self.registration.close()
