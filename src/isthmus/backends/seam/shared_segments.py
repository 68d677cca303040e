"""Segments of programs that run in this process: equal ones of a context are the same memory."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakValueDictionary

import numpy as np

from isthmus.engine.native.program import Program
from isthmus.memory import host

_SAMPLES = 64
_ALIGNMENT = 64


class SharedSegments:
    """The segments of a context's programs, each as long as a program has it."""

    def __init__(self) -> None:
        self._segments: WeakValueDictionary[tuple[int, bytes], np.ndarray] = WeakValueDictionary()

    def share(self, program: Program) -> Program:
        """Return a program in which segments that the context has already are that memory."""
        return replace(program, segments=tuple(map(self._memory_of, program.segments)))

    def _memory_of(self, segment: np.ndarray) -> np.ndarray:
        """Return the memory of a segment: that of an equal one, or its own, aligned as executors use it in place."""
        # Bytes from everywhere tell nearly all that differ; then all bytes are compared.
        key = segment.nbytes, segment[:: max(1, segment.size // _SAMPLES)].tobytes()
        shared = self._segments.get(key)
        if shared is not None and np.array_equal(shared, segment):
            return shared
        if segment.ctypes.data % _ALIGNMENT:
            aligned = host(segment.nbytes, _ALIGNMENT).array
            aligned[:] = segment
            segment = aligned
        if shared is None:
            self._segments[key] = segment
        return segment
