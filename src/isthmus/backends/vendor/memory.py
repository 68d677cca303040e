"""Registered memory in the vendor's library: its process gets the descriptor and registers it there.

On a device the library maps such memory for the DSP. Its x86 build registers no memory: COMMON_NOT_SUPPORTED.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from isthmus.backends.htp.memory import SharedPart, part_of_buffer
from isthmus.backends.htp.options import HtpDescriptor
from isthmus.backends.seam.driver import DescriptorType, MemDescriptor
from isthmus.backends.seam.registration import RegistrationTable, TableEntry
from isthmus.backends.vendor.library import VendorProcess
from isthmus.errors import Code, QnnError


class VendorRegistration(TableEntry):
    """Memory that the vendor's library has registered.

    - `handle`: the library's handle; 0 while there is none.
    """

    def __init__(
        self, number: int, descriptor: MemDescriptor, part: SharedPart, forget: Callable[[VendorRegistration], None]
    ) -> None:
        super().__init__(number, descriptor, part.window, forget)
        self.part = part
        self.handle = 0


class VendorMemory(RegistrationTable[VendorRegistration]):
    """The registered memory of one context.

    - `process`: returns the process of the context.
    """

    def __init__(self, process: Callable[[], VendorProcess]) -> None:
        super().__init__()
        self._process = process

    @property
    def is_empty(self) -> bool:
        """Whether no memory is registered."""
        return not self._entries

    def _entry(self, what: str, descriptor: MemDescriptor) -> VendorRegistration:
        made = VendorRegistration(next(self._numbers), descriptor, part_of_buffer(what, descriptor), self._forget)
        made.hold()
        return made

    def _share(self, entries: Sequence[VendorRegistration]) -> None:
        descriptors = [entry.part.shared[0] for entry in entries]
        memories = [_fields(entry.descriptor) for entry in entries]
        try:
            answer, _ = self._process().call("register", {}, descriptors, memories=memories)
        except QnnError as problem:
            if problem.code is not Code.COMMON_NOT_SUPPORTED:
                raise
            rule = f"the library registers no memory on this machine ({os.uname().machine}): {problem.rule}"
            hint = "Raw buffers work, and are copied. On a device with libcdsprpc.so the library registers memory."
            raise QnnError(problem.code, "memory registration", rule, hint) from None
        for entry, handle in zip(entries, answer["handles"], strict=True):
            entry.handle = int(handle)

    def _forget(self, entry: VendorRegistration) -> None:
        """Deregister the memory, if the process still exists."""
        handle, entry.handle = entry.handle, 0
        process = self._process()
        if handle and process.alive:
            process.call("deregister", handles=[handle])
        super()._forget(entry)


def _fields(descriptor: MemDescriptor) -> dict[str, object]:
    """Return what the process needs to write QNN's descriptor; the file descriptor comes beside it."""
    fields: dict[str, object] = {
        "dims": list(descriptor.dims), "dtype": int(descriptor.dtype), "mem_type": int(descriptor.mem_type),
    }  # fmt: skip
    if descriptor.mem_type is DescriptorType.CUSTOM:
        custom = descriptor.custom
        assert isinstance(custom, HtpDescriptor)
        fields |= {"type": int(custom.type), "size": custom.size, "offset": custom.offset}
    return fields
