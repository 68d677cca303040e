"""LPAI's shared buffers: memory registered by file descriptor and 32-bit offset, mapped and used in place."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

import numpy as np

from isthmus.backends.driver import DescriptorType, MemDescriptor, Registration
from isthmus.backends.lpai_options import UINT32_MAX, MemInfo
from isthmus.errors import Code, QnnError
from isthmus.memory import Region, rpcmem
from isthmus.memory.shareable import SharedFile, map_whole, shared_file

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
        self._files: WeakValueDictionary[tuple[int, int], np.ndarray] = WeakValueDictionary()

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
        file = shared_file(info.fd, what)
        key = (*file.identity, offset)
        if key in self._all:
            earlier = self._all[key].descriptor
            raise QnnError(
                Code.MEM_ALREADY_REGISTERED,
                what,
                f"offset {offset} of this buffer is registered as {earlier.dtype.name}{list(earlier.dims)}",
                "Deregister it first.",
            )
        if offset + descriptor.nbytes > file.nbytes:
            raise QnnError(
                Code.MEM_INVALID_SHAPE,
                what,
                f"bytes {offset} to {offset + descriptor.nbytes} lie outside a buffer of {file.nbytes} bytes",
            )
        window = self._window(what, info, file, descriptor.nbytes)
        self._all[key] = SharedBuffer(descriptor, window, key, self._all)
        return self._all[key]

    def _window(self, what: str, info: MemInfo, file: SharedFile, nbytes: int) -> Region:
        """A part of the one mapping of a file: tensors that share bytes of it share addresses, so that it shows."""
        whole = self._files.get(file.identity)
        if whole is None or whole.nbytes < file.nbytes:
            mapped = rpcmem.buffer_of(info.fd)
            whole = np.frombuffer(map_whole(info.fd, file.nbytes, what), np.uint8) if mapped is None else mapped.array
            self._files[file.identity] = whole
        array = whole[info.offset : info.offset + nbytes]
        return Region(whole.ctypes.data + info.offset, nbytes, array)
