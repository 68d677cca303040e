"""Memory handles: registered memory for tensors of one context (QnnMem_*)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from isthmus.backends.seam.driver import DescriptorType, MemDescriptor, Registration, member
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType
from isthmus.memory.integers import is_int
from isthmus.qnn.handle import Handle


class MemHandle(Handle):
    """Registered memory. Created by `Context.mem_register`, ended by `Context.mem_deregister` or with its context."""

    invalid = Code.MEM_INVALID_HANDLE

    def __init__(self, context: Handle, registration: Registration) -> None:
        descriptor = registration.descriptor
        self.context = context
        self.registration = registration
        super().__init__(f"memory handle of {descriptor.title}", context)

    @property
    def descriptor(self) -> MemDescriptor:
        """The descriptor that was registered."""
        return self.registration.descriptor

    def _release(self) -> None:
        self.registration.close()


def check_descriptor(what: str, descriptor: Any) -> MemDescriptor:
    """Check what every backend requires of a descriptor; return it with plain integers as dimensions and enum members.

    `what` names the descriptor, for messages.
    """
    if not isinstance(descriptor, MemDescriptor):
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"{descriptor!r} is not a MemDescriptor")
    kind = member(descriptor.mem_type, DescriptorType, f"{what}: memory type", Code.MEM_UNSUPPORTED_MEMTYPE)
    if kind is DescriptorType.CUSTOM and not descriptor.is_tensor:
        return replace(descriptor, dims=(), dtype=DataType.UNDEFINED, mem_type=kind)
    dtype = member(descriptor.dtype, DataType, f"{what}: data type", Code.MEM_INVALID_SHAPE)
    if dtype is DataType.UNDEFINED:
        raise QnnError(Code.MEM_INVALID_SHAPE, what, "data type UNDEFINED has no size")
    # Stands for dimensions that are not iterable at all; None is refused below.
    dims: tuple[Any, ...] = (None,)
    if isinstance(descriptor.dims, Iterable):
        dims = tuple(descriptor.dims)
    if not all(is_int(dim) and dim >= 1 for dim in dims):
        raise QnnError(Code.MEM_INVALID_SHAPE, what, f"dimensions {descriptor.dims!r} must be positive integers")
    return replace(descriptor, dims=tuple(int(dim) for dim in dims), dtype=dtype, mem_type=kind)
