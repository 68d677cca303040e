"""LPAI's shared buffers: memory registered by file descriptor and 32-bit offset, mapped and used in place."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from isthmus.backends.lpai.options import UINT32_MAX, MemInfo
from isthmus.backends.seam.driver import DescriptorType, MemDescriptor, Registration
from isthmus.errors import Code, QnnError
from isthmus.memory import SharedFd, Window, holds
from isthmus.memory.identity import Identity
from isthmus.memory.integers import is_int
from isthmus.memory.shareable import mapped_window, shared_file

_Key = tuple[Identity, int]


class SharedBuffer(Registration):
    """One tensor's window of a shared buffer, which is not freed before it."""

    def __init__(self, descriptor: MemDescriptor, part: Window, key: _Key, all_: dict[_Key, SharedBuffer]) -> None:
        self.descriptor = descriptor
        self.window = part
        self._key, self._all = key, all_
        self._hold: holds.Hold | None = None

    def hold(self) -> None:
        """Keep the memory from ending; once it is on record, so that its context lets go of it whatever happens."""
        what = f"{self.descriptor.dtype.name}{list(self.descriptor.dims)}"
        self._hold = holds.keep(self.window, f"memory of a handle for {what} until it is deregistered")

    def _release(self) -> None:
        if self._hold is not None:
            self._hold.release()
        self._all.pop(self._key, None)


class SharedBuffers:
    """The shared buffers of one context.

    Parameters
    ----------
    remote
        Whether another process plays the core, and works in them.
    """

    def __init__(self, remote: bool) -> None:
        self._remote = remote
        self._all: dict[_Key, SharedBuffer] = {}
        self._lock = threading.Lock()

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[Registration]:
        """Map each descriptor's window; on a refusal none is registered."""
        done: list[Registration] = []
        with self._lock:
            try:
                for index, descriptor in enumerate(descriptors):
                    done.append(self._one(f"memory descriptor {index}", descriptor))
            except BaseException:
                for registration in done:
                    registration.close()
                raise
        return done

    def close(self) -> None:
        """Forget all."""
        for buffer in list(self._all.values()):
            buffer.close()

    def _one(self, what: str, descriptor: MemDescriptor) -> SharedBuffer:
        info = descriptor.custom
        if descriptor.mem_type is not DescriptorType.CUSTOM:
            rule = f"LPAI takes CUSTOM memory (lpai.MemInfo), not {descriptor.mem_type.name}"
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule)
        if not isinstance(info, MemInfo):
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a MemInfo, is {info!r}")
        if not is_int(info.offset) or not 0 <= info.offset <= UINT32_MAX:
            rule = f"offset {info.offset!r} must be a whole number of 32 bits"
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule)
        fd = int(info.fd) if is_int(info.fd) else info.fd
        file = shared_file(fd, what)
        key = file.identity, int(info.offset)
        if key in self._all:
            earlier = self._all[key].descriptor
            raise QnnError(
                Code.MEM_ALREADY_REGISTERED,
                what,
                f"offset {info.offset} of this buffer is registered as {earlier.dtype.name}{list(earlier.dims)}",
                "Deregister it first.",
            )
        part = mapped_window(SharedFd(fd, int(info.offset), descriptor.nbytes), what, untouched=self._remote, file=file)
        made = self._all[key] = SharedBuffer(descriptor, part, key, self._all)
        made.hold()
        return made
