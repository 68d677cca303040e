"""Constants on a device: large ones are buffers that a context's graphs share, small ones a buffer for each graph."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

import numpy as np

from isthmus.backends.gpu.buffers import OpenClBuffer, device_buffer
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.runtime.context import ClContext

Upload = Callable[[OpenClBuffer, np.ndarray], None]
"""Writes the contents of a buffer."""
# An OpenCL context and a digest of contents.
_Key = tuple[int, bytes]


@dataclass
class _Shared:
    """A buffer of a large constant, and how many programs use it."""

    buffer: OpenClBuffer
    users: int = 0


class SharedConstants:
    """The large constants of a context's graphs: equal ones are one buffer until the last graph leaves it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._buffers: dict[_Key, _Shared] = {}

    def join(self, context: ClContext, content: np.ndarray, upload: Upload) -> tuple[_Key, OpenClBuffer]:
        """Return the buffer with these contents, and a key by which it is left; write them if it is new."""
        key = context.handle, hashlib.sha256(content.data).digest()
        with self._lock:
            if key not in self._buffers:
                self._buffers[key] = _Shared(_fill_buffer(context, content, upload))
            self._buffers[key].users += 1
            return key, self._buffers[key].buffer

    def leave(self, key: _Key) -> None:
        """Release a buffer if no other program uses it."""
        with self._lock:
            self._buffers[key].users -= 1
            if not self._buffers[key].users:
                self._buffers.pop(key).buffer.close()


def _fill_buffer(context: ClContext, content: np.ndarray, upload: Upload) -> OpenClBuffer:
    """Return a new buffer with these contents."""
    buffer = device_buffer(context, content.nbytes)
    try:
        upload(buffer, content)
    except Exception:
        buffer.close()
        raise
    return buffer


class DeviceConstants:
    """The constants of a program on a device."""

    def __init__(self, context: ClContext, program: KernelProgram, shared: SharedConstants, upload: Upload) -> None:
        self._shared, self._keys = shared, list[_Key]()
        # Where each piece of the program's pool of constants begins, and the buffer and the offset where it is.
        self._starts, self._places = list[int](), list[tuple[OpenClBuffer | None, int]]()
        self._rest: OpenClBuffer | None = None
        content = np.ascontiguousarray(program.constants).reshape(-1).view(np.uint8)
        rest, end, nbytes = list[np.ndarray](), 0, 0
        try:
            for offset, size in (*program.large_constants, (content.nbytes, 0)):
                if offset > end:
                    self._add(end, None, nbytes)
                    rest.append(content[end:offset])
                    nbytes += offset - end
                end = offset + size
                if size:
                    key, buffer = shared.join(context, content[offset:end], upload)
                    self._keys.append(key)
                    self._add(offset, buffer, 0)
            if rest:
                self._rest = _fill_buffer(context, np.concatenate(rest), upload)
        except Exception:
            self.close()
            raise

    def _add(self, start: int, buffer: OpenClBuffer | None, offset: int) -> None:
        self._starts.append(start)
        self._places.append((buffer, offset))

    def place(self, offset: int) -> tuple[int, int]:
        """Return the memory object that has a byte of the pool of constants, and the byte's offset there."""
        number = bisect_right(self._starts, offset) - 1
        buffer, start = self._places[number]
        buffer = buffer or self._rest
        assert buffer is not None
        return buffer.handle, start + offset - self._starts[number]

    def close(self) -> None:
        """Release everything that no other program uses; safe to call again."""
        keys, self._keys = self._keys, []
        for key in keys:
            self._shared.leave(key)
        if self._rest is not None:
            self._rest.close()
