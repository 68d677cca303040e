"""LPAI's shared buffers: memory registered by file descriptor and 32-bit offset, mapped and used in place."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence

import numpy as np

from isthmus.backends.driver import DescriptorType, MemDescriptor, Registration
from isthmus.backends.lpai_options import UINT32_MAX, MemInfo
from isthmus.errors import Code, QnnError
from isthmus.memory import Region

_SHAREABLE = ("/memfd:", "/dmabuf", "/dev/shm/")
"""What the link in /proc/self/fd begins with for memory that another processor can be given."""

_Key = tuple[int, int, int]


class SharedBuffer(Registration):
    """One tensor's window of a shared buffer."""

    def __init__(self, descriptor: MemDescriptor, region: Region, key: _Key, all_: dict[_Key, SharedBuffer]) -> None:
        self.descriptor = descriptor
        self._region = region
        self._key, self._all = key, all_

    @property
    def region(self) -> Region:
        return self._region

    def close(self) -> None:
        # The mapping goes with the last view of it.
        self._all.pop(self._key, None)


class SharedBuffers:
    """The shared buffers of one context."""

    def __init__(self) -> None:
        self._all: dict[_Key, SharedBuffer] = {}

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[Registration]:
        """Map each descriptor's window; on a refusal none is registered."""
        done: list[Registration] = []
        try:
            for index, descriptor in enumerate(descriptors):
                done.append(self._one(f"memory descriptor {index}", descriptor))
        except QnnError:
            for registration in done:
                registration.close()
            raise
        return done

    def close(self) -> None:
        """Forget all."""
        self._all.clear()

    def _one(self, what: str, descriptor: MemDescriptor) -> SharedBuffer:
        info = descriptor.custom
        if descriptor.mem_type is not DescriptorType.CUSTOM:
            rule = f"LPAI takes CUSTOM memory (lpai.MemInfo), not {descriptor.mem_type.name}"
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, rule)
        if not isinstance(info, MemInfo):
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"its custom structure must be a MemInfo, is {info!r}")
        offset = info.offset
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= UINT32_MAX:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"offset {offset!r} must be a whole number of 32 bits")
        status = _status(what, info.fd)
        key = (status.st_dev, status.st_ino, offset)
        if key in self._all:
            earlier = self._all[key].descriptor
            raise QnnError(
                Code.MEM_ALREADY_REGISTERED,
                what,
                f"offset {offset} of this buffer is registered as {earlier.dtype.name}{list(earlier.dims)}",
                "Deregister it first.",
            )
        size = status.st_size or os.lseek(info.fd, 0, os.SEEK_END)
        if offset + descriptor.nbytes > size:
            raise QnnError(
                Code.MEM_INVALID_SHAPE,
                what,
                f"bytes {offset} to {offset + descriptor.nbytes} lie outside a buffer of {size} bytes",
            )
        self._all[key] = SharedBuffer(descriptor, _mapped(what, info, descriptor.nbytes), key, self._all)
        return self._all[key]


def _status(what: str, fd: object) -> os.stat_result:
    if isinstance(fd, bool) or not isinstance(fd, int) or fd < 0:
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, f"file descriptor {fd!r} is not one")
    try:
        status, link = os.fstat(fd), os.readlink(f"/proc/self/fd/{fd}")
    except OSError as problem:
        rule = f"file descriptor {fd} cannot be used: {problem.strerror}"
        raise QnnError(Code.MEM_INVALID_ARGUMENT, what, rule) from None
    if not link.startswith(_SHAREABLE) or stat.S_ISDIR(status.st_mode):
        raise QnnError(
            Code.MEM_INVALID_ARGUMENT,
            what,
            f"file descriptor {fd} is no shared memory ({link})",
            "os.memfd_create() makes one.",
        )
    return status


def _mapped(what: str, info: MemInfo, nbytes: int) -> Region:
    skip = info.offset % mmap.ALLOCATIONGRANULARITY
    try:
        window = mmap.mmap(info.fd, skip + max(nbytes, 1), offset=info.offset - skip)
    except (OSError, ValueError) as problem:
        rule = f"file descriptor {info.fd} cannot be mapped: {problem}"
        raise QnnError(Code.MEM_MAPPING, what, rule) from None
    array = np.frombuffer(window, np.uint8, nbytes, skip)
    return Region(array.ctypes.data, nbytes, array)
