"""LPAI's shared buffers: memory registered by file descriptor and 32-bit offset, mapped and used in place."""

from __future__ import annotations

from isthmus.backends.lpai.options import UINT32_MAX, MemInfo
from isthmus.backends.seam.driver import DescriptorType, MemDescriptor
from isthmus.backends.seam.registration import RegistrationTable, TableEntry
from isthmus.errors import Code, QnnError
from isthmus.memory import SharedFd
from isthmus.memory.integers import is_int
from isthmus.memory.shareable import mapped_window, shared_file


class SharedBuffers(RegistrationTable[TableEntry]):
    """The shared buffers of one context.

    Parameters
    ----------
    remote
        Whether another process simulates the core and works in them: then this process does not touch them.
    """

    def __init__(self, remote: bool) -> None:
        super().__init__()
        self._remote = remote

    def _entry(self, what: str, descriptor: MemDescriptor) -> TableEntry:
        """Check a descriptor and make an entry for it, which maps and holds the memory."""
        info = descriptor.custom
        if descriptor.mem_type is not DescriptorType.CUSTOM:
            rule = f"LPAI takes CUSTOM memory (lpai.MemInfo), not {descriptor.mem_type.name}"
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule)
        if not isinstance(info, MemInfo):
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a MemInfo, is {info!r}")
        if not is_int(info.offset) or not 0 <= info.offset <= UINT32_MAX:
            rule = f"offset {info.offset!r} must be an integer of 32 bits"
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule)
        fd = int(info.fd) if is_int(info.fd) else info.fd
        file = shared_file(fd, what)
        key = file.identity, int(info.offset)
        for known in self._found(key):
            rule = f"offset {info.offset} of this buffer is registered as {known.name}"
            raise QnnError(Code.MEM_ALREADY_REGISTERED, what, rule, "Deregister it first.")
        part = mapped_window(SharedFd(fd, int(info.offset), descriptor.nbytes), what, untouched=self._remote, file=file)
        entry = TableEntry(next(self._numbers), descriptor, part, self._forget, [key])
        entry.hold()
        return entry
