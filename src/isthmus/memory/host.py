"""Host memory with a chosen alignment, as a buffer that is at once a numpy array."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.memory.holds import holders
from isthmus.memory.region import Region


class HostBuffer:
    """Aligned, zeroed, private memory; a context manager. Made by `host`.

    Examples
    --------
    >>> with host(100, alignment=64) as buffer:
    ...     buffer.array[:3] = 1, 2, 3
    ...     buffer.nbytes, buffer.region.address % 64
    (100, 0)
    """

    def __init__(self, nbytes: int, alignment: int) -> None:
        if nbytes < 0 or alignment < 1 or alignment & (alignment - 1):
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT,
                f"host buffer of {nbytes} bytes aligned to {alignment}",
                "the size must not be negative, the alignment must be a power of two",
            )
        try:
            # Private, so that a forked process has memory of its own and not this one's.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._map: mmap.mmap | None = mmap.mmap(-1, max(nbytes + alignment, 1), flags=flags)
        except (OSError, ValueError, OverflowError):
            raise QnnError(
                Code.COMMON_MEM_ALLOC, f"host buffer of {nbytes} bytes", "the system has not that much memory"
            ) from None
        whole = np.frombuffer(self._map, np.uint8)
        start = -whole.ctypes.data % alignment
        self._address = whole.ctypes.data + start
        self._array: np.ndarray | None = whole[start : start + nbytes]

    @property
    def array(self) -> np.ndarray:
        """The memory as bytes."""
        if self._array is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "host buffer", "it is closed")
        return self._array

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.array.nbytes

    @property
    def region(self) -> Region:
        """Its address and size."""
        return Region(self._address, self.nbytes, self.array)

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray:
        """A typed view of part of it."""
        dtype = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return self.array[offset : offset + count].view(dtype).reshape(shape)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__

    def close(self) -> None:
        """Let go of the memory; views that were taken keep it alive until they go too.

        Refused while a graph holds it, with the graph named. Safe to call again.
        """
        if self._array is not None:
            for hold in holders(self.region):
                raise QnnError(
                    Code.COMMON_OPERATION_NOT_PERMITTED,
                    f"host buffer of {self.nbytes} bytes",
                    f"it is the {hold.holder} and cannot be closed before",
                )
        self._array = None
        self._map = None

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def host(nbytes: int, alignment: int = 64) -> HostBuffer:
    """Allocate host memory."""
    return HostBuffer(nbytes, alignment)
