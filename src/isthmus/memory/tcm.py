"""Tightly coupled memory (TCM) of the low-power AI core: one small pool a process, of a fixed size.

It hands out at most 32 buffers, first fit, and says what it does in the very lines that LPAI's backend extensions log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.log import LogLevel
from isthmus.memory.holds import holders
from isthmus.memory.host import HostBuffer
from isthmus.memory.region import Region

POOL_BYTES = 2_035_712
MAX_ALLOCATIONS = 32
_POOL_ALIGNMENT = 4096

Say = Callable[[LogLevel, str], object]


class TcmPool:
    """A pool of on-chip memory, simulated in host memory of exactly its size.

    Examples
    --------
    >>> pool = TcmPool()
    >>> buffer = pool.allocate(1000, 64, lambda level, text: print(level.name, text))
    INFO TCM pool current size: 0 max_size: 2035712
    INFO Allocate size 1000 from tcm pool 0
    >>> buffer.close()
    >>> pool.free_bytes
    2035712
    """

    def __init__(self) -> None:
        # The garbage collector may give a buffer back while its thread is in here.
        self._lock = threading.RLock()
        self._memory: HostBuffer | None = None
        self._spans: list[tuple[int, int]] = []

    @property
    def free_bytes(self) -> int:
        """Bytes that no buffer takes, wherever they lie."""
        return POOL_BYTES - sum(nbytes for _, nbytes in self._spans)

    @property
    def allocations(self) -> int:
        """How many buffers there are now."""
        return len(self._spans)

    def allocate(self, nbytes: int, alignment: int, log: Say) -> TcmBuffer | None:
        """A buffer, or None and a line in the log when it does not fit. There is no fallback to other memory.

        Raises
        ------
        QnnError
            COMMON_SYSTEM_COMMUNICATION_FATAL for a 33rd buffer: on a device the whole core goes down with it. Here
            the pool stays as it was.
        """
        with self._lock:
            if self._memory is None:
                log(LogLevel.INFO, f"TCM pool current size: {self._used()} max_size: {POOL_BYTES}")
                self._memory = HostBuffer(POOL_BYTES, _POOL_ALIGNMENT)
            if len(self._spans) >= MAX_ALLOCATIONS:
                raise QnnError(
                    Code.COMMON_SYSTEM_COMMUNICATION_FATAL,
                    f"TCM allocation of {nbytes} bytes",
                    f"the TCM allocator supports {MAX_ALLOCATIONS} individual buffers and has handed out all",
                    'Use fewer tensor buffers, or set mem_type to "ddr".',
                )
            offset = self._first_fit(nbytes, alignment)
            if offset is None:
                log(LogLevel.ERROR, f"TCM memory allocation failure: required size: {nbytes}")
                return None
            log(LogLevel.INFO, f"Allocate size {nbytes} from tcm pool 0")
            self._spans.append((offset, nbytes))
            self._spans.sort()
            array = self._memory.array[offset : offset + nbytes]
            return TcmBuffer(self, offset, Region(array.ctypes.data, nbytes, array), array)

    def require(self, nbytes: int, alignment: int, log: Say, what: str) -> TcmBuffer:
        """A buffer, or the refusal of `what` it was for."""
        buffer = self.allocate(nbytes, alignment, log)
        if buffer is None:
            raise QnnError(
                Code.COMMON_MEM_ALLOC,
                what,
                f"{nbytes} bytes of TCM are needed, {self.free_bytes} of {POOL_BYTES} are left",
                'Make the model or its tensors smaller, or set mem_type to "ddr".',
            )
        return buffer

    def holds(self, region: Region) -> bool:
        """Whether a region lies inside the pool."""
        if self._memory is None:
            return False
        pool = self._memory.region
        return pool.address <= region.address and region.address + region.nbytes <= pool.address + pool.nbytes

    def _used(self) -> int:
        return POOL_BYTES - self.free_bytes

    def _first_fit(self, nbytes: int, alignment: int) -> int | None:
        start = 0
        for offset, taken in (*self._spans, (POOL_BYTES, 0)):
            if start + nbytes <= offset:
                return start
            start = -(-(offset + taken) // alignment) * alignment
        return None

    def _give_back(self, offset: int, nbytes: int) -> None:
        with self._lock:
            self._spans.remove((offset, nbytes))


class TcmBuffer:
    """A part of the pool; a context manager. Made by `TcmPool.allocate`."""

    def __init__(self, pool: TcmPool, offset: int, region: Region, array: np.ndarray) -> None:
        self._pool, self.offset, self._region = pool, offset, region
        self._array: np.ndarray | None = array

    @property
    def array(self) -> np.ndarray:
        """The memory as bytes."""
        if self._array is None:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "TCM buffer", "it is closed")
        return self._array

    @property
    def nbytes(self) -> int:
        """Its size."""
        return self.array.nbytes

    @property
    def region(self) -> Region:
        """Its address and size."""
        return Region(self._region.address, self.nbytes, self.array)

    def close(self) -> None:
        """Give it back to the pool; refused while a graph holds it. Safe to call again."""
        if self._array is None:
            return
        for hold in holders(self._region):
            raise QnnError(
                Code.COMMON_OPERATION_NOT_PERMITTED,
                f"TCM buffer of {self.nbytes} bytes",
                f"it is the {hold.holder} and cannot be closed before",
            )
        self._array = None
        self._pool._give_back(self.offset, self._region.nbytes)

    def __enter__(self) -> TcmBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


_pool = TcmPool()


def pool() -> TcmPool:
    """The pool of this process."""
    return _pool
