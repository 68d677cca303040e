"""Tightly coupled memory (TCM) of the low-power AI core: one small pool per process, of fixed size.

The pool allocates at most 32 buffers, first fit. Its log lines are exactly those of LPAI's backend extensions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass

from isthmus.errors import Code, DoesNotFit, QnnError
from isthmus.log import LogLevel, deferred
from isthmus.memory import holds
from isthmus.memory.buffer import Buffer, PartBuffer, part_of
from isthmus.memory.host import HostBuffer
from isthmus.memory.integers import as_int
from isthmus.memory.resource import Adaptor, AllocationRequest, MemoryResource, current, provide
from isthmus.memory.window import Window
from isthmus.system.lock import Lock

POOL_BYTES = 2_035_712
MAX_ALLOCATIONS = 32
# The largest alignment that a buffer of the pool may request.
_POOL_ALIGNMENT = 1 << 16

Say = Callable[[LogLevel, str], object]
"""A function that logs a message, such as a `Log`."""


@dataclass(frozen=True)
class TcmRequest(AllocationRequest):
    """A request for on-chip memory, with the log for the pool's messages.

    `size` is the size of the device's TCM, if it has less than the pool: only so many bytes of the pool are used.
    """

    log: Say = lambda level, text: None
    size: int = POOL_BYTES


class TcmBuffer(PartBuffer):
    """A part of the pool, returned to it when the buffer is closed or collected. Created by `TcmPool.allocate`."""


class TcmPool(MemoryResource):
    """A pool of on-chip memory, simulated in host memory of exactly its size.

    >>> pool = TcmPool()
    >>> buffer = pool.allocate(1000, 64)
    >>> pool.free_bytes
    2034712
    >>> buffer.close()
    >>> pool.free_bytes
    2035712
    """

    kind = "tcm"

    def __init__(self) -> None:
        # The garbage collector may finalize other buffers in this thread while the lock is held.
        self._lock = Lock()
        # Allocated with the first buffer: pages of the process, and the aligned part of them that is the pool.
        self._pages: HostBuffer | None = None
        self._memory: Buffer | None = None
        self._allocations: list[weakref.ref[TcmBuffer]] = []

    @property
    def _spans(self) -> list[tuple[int, int]]:
        """Offsets and sizes of the live buffers. Closed or collected ones drop out by themselves."""
        uncollected = [buffer for reference in self._allocations if (buffer := reference()) is not None]
        return sorted((buffer.offset, buffer.nbytes) for buffer in uncollected if not buffer.is_closed)

    @property
    def free_bytes(self) -> int:
        """Number of bytes that no buffer occupies, contiguous or not."""
        return POOL_BYTES - sum(nbytes for _, nbytes in self._spans)

    @property
    def allocations(self) -> int:
        """Number of live buffers."""
        return len(self._spans)

    def fulfil(self, request: AllocationRequest) -> TcmBuffer:
        """Allocate a buffer. There is no fallback to other memory.

        Raises `QnnError`: COMMON_MEM_ALLOC if it does not fit; COMMON_SYSTEM_COMMUNICATION_FATAL for a 33rd buffer,
        which on a device crashes the whole core. Here the pool stays as it was. Either error is logged.
        """
        log = request.log if isinstance(request, TcmRequest) else TcmRequest.log
        size = request.size if isinstance(request, TcmRequest) else POOL_BYTES
        what = f"TCM allocation of {request.nbytes!r} bytes aligned to {request.alignment!r}"
        nbytes, alignment = as_int(request.nbytes, what), as_int(request.alignment, what)
        if nbytes < 0 or not 1 <= alignment <= _POOL_ALIGNMENT or alignment & (alignment - 1):
            rule = f"the size must not be negative, the alignment a power of two up to {_POOL_ALIGNMENT}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, rule)
        with deferred(), self._lock:
            memory = self._open(log, size)
            if len(self._spans) >= MAX_ALLOCATIONS:
                log(LogLevel.ERROR, f"TCM system fatal error: more than {MAX_ALLOCATIONS} buffers")
                raise QnnError(
                    Code.COMMON_SYSTEM_COMMUNICATION_FATAL,
                    what,
                    f"the TCM allocator supports {MAX_ALLOCATIONS} individual buffers and has handed out all",
                    'Use fewer tensor buffers, or set mem_type to "ddr".',
                )
            offset = self._first_fit(nbytes, alignment, size)
            if offset is None:
                log(LogLevel.ERROR, f"TCM memory allocation failure: required size: {nbytes}")
                left = max(0, self.free_bytes - (POOL_BYTES - size))
                raise DoesNotFit(
                    Code.COMMON_MEM_ALLOC,
                    what,
                    f"{nbytes} bytes of TCM are needed in one piece, {left} of {size} are left",
                    'Make the model or its tensors smaller, or set mem_type to "ddr".',
                )
            log(LogLevel.INFO, f"Allocate size {nbytes} from tcm pool 0")
            buffer = part_of(memory, offset, nbytes, "tcm", TcmBuffer)
            uncollected = [reference for reference in self._allocations if reference() is not None]
            self._allocations = [*uncollected, weakref.ref(buffer)]
            return buffer

    def touches(self, window: Window) -> bool:
        """Return whether any byte of a window is in the pool."""
        return self._memory is not None and holds.overlap(self._memory.window(), window)

    def encloses(self, window: Window, size: int = POOL_BYTES) -> bool:
        """Return whether every byte of a window is in the pool, or in its first `size` bytes."""
        if self._memory is None:
            return window.nbytes == 0
        [pool] = self._memory.window().spans
        return all(
            span.identity == pool.identity and pool.start <= span.start <= pool.start + size - span.nbytes
            for span in window.spans
        )

    def _open(self, log: Say, size: int) -> Buffer:
        """Return the memory of the pool, after allocating it at the first call; `size` is as in `TcmRequest`."""
        if self._memory is None:
            log(LogLevel.INFO, f"TCM pool current size: {POOL_BYTES - self.free_bytes} max_size: {size}")
            self._pages = HostBuffer(POOL_BYTES + _POOL_ALIGNMENT)
            self._memory = part_of(self._pages, -self._pages.address % _POOL_ALIGNMENT, POOL_BYTES, "tcm", PartBuffer)
        return self._memory

    def _first_fit(self, nbytes: int, alignment: int, size: int) -> int | None:
        """Return the lowest aligned offset with this many free bytes, or None if the first `size` bytes have none."""
        start = 0
        # The end counts as a buffer without bytes.
        for offset, occupied in (*self._spans, (size, 0)):
            if start + nbytes <= min(offset, size):
                return start
            start = max(start, -(-(offset + occupied) // alignment) * alignment)
        return None


provide(TcmPool())


def pool() -> TcmPool:
    """Return the pool of this process, without its adaptors."""
    resource = current("tcm")
    while isinstance(resource, Adaptor):
        resource = resource.upstream
    assert isinstance(resource, TcmPool)
    return resource


def allocate(nbytes: int, alignment: int, log: Say, size: int = POOL_BYTES) -> Buffer:
    """Allocate a buffer from the first `size` bytes of this process's pool, which logs to `log`."""
    return current("tcm").fulfil(TcmRequest(nbytes, alignment, log, size))
