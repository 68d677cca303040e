"""Weights in buffers that a client brings by callbacks: the accelerator maps the buffers and uses them in place.

A buffer comes with the constants as the binary has them. The native engine needs them in the form of its kernels, so
they are packed when they are loaded, and what was packed is written into the same buffers: there is no other copy of
it. What does not fit there, because its packed form is larger, is kept in memory of the accelerator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from isthmus.backends.accelerator.memory import PLACE
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import SegmentPlace
from isthmus.backends.seam.provider import BinarySection, ProvidedBuffer
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel
from isthmus.memory import SharedFd, Window, holds
from isthmus.memory.integers import is_int
from isthmus.memory.shareable import mapped_window, shared_file


class ProvidedWeights:
    """The buffers of one context. Its client leaves them alone until they are given back.

    - `sections`: What the client was asked for.
    - `buffers`: The buffers that it has brought, one for each section.

    Errors: CONTEXT_INVALID_ARGUMENT for a buffer that was brought already or is too small; COMMON_NOT_SUPPORTED for
    memory that the accelerator cannot use in place.
    """

    def __init__(
        self, accelerator: Accelerator, sections: Sequence[BinarySection], buffers: Sequence[ProvidedBuffer], log: Log
    ) -> None:
        self._accelerator, self._log = accelerator, log
        self._windows: list[Window] = []
        self._holds: list[holds.Hold] = []
        self._sections: list[memoryview] = []
        self._slots: list[int] = []
        self._registered: list[Sequence[int]] = []
        try:
            for number, (section, buffer) in enumerate(zip(sections, buffers, strict=True)):
                self._add(f"buffer {number} of data callbacks", section, buffer)
        except Exception:
            self.close()
            raise

    def _add(self, what: str, section: BinarySection, buffer: ProvidedBuffer) -> None:
        """Check a buffer, hold it and register it with the accelerator."""
        window = _window(what, section, buffer)
        code = Code.CONTEXT_INVALID_ARGUMENT
        self._holds.append(holds.claim(window, what, f"{what} of a context", code=code))
        slots = self._accelerator.register([(buffer.fd, buffer.start, window.nbytes)])
        self._registered.append(slots)
        self._slots.append(slots[0])
        self._windows.append(window)
        self._sections.append(window.view(np.uint8, (window.nbytes,)).data[: section.nbytes])

    @property
    def sections(self) -> list[memoryview]:
        """The sections as the client has brought them, until `place` overwrites them."""
        return self._sections

    def place(self, segments: Mapping[str, np.ndarray]) -> dict[str, SegmentPlace]:
        """Write packed weights into the buffers, the largest first; return the places of those that fit."""
        places: dict[str, SegmentPlace] = {}
        ends = [0] * len(self._windows)
        left = 0
        for name, segment in sorted(segments.items(), key=lambda item: -item[1].nbytes):
            for index, window in enumerate(self._windows):
                begin = ends[index]
                if begin + segment.nbytes <= window.nbytes:
                    target = window.view(np.uint8, (window.nbytes,))[begin : begin + segment.nbytes]
                    target[...] = segment.reshape(-1).view(np.uint8)
                    places[name] = SegmentPlace(self._slots[index], begin, segment.nbytes)
                    ends[index] = -(-(begin + segment.nbytes) // PLACE) * PLACE
                    break
            else:
                left += segment.nbytes
        if left:
            self._log(LogLevel.INFO, f"HTP context: {left:,} bytes of packed weights have no room in the buffers of "
                      "its callbacks, and are in memory of the accelerator")  # fmt: skip
        self._sections = []
        return places

    def close(self) -> None:
        """Leave the buffers to the client, when nothing uses them any more; safe to call again."""
        for slots in self._registered:
            self._accelerator.deregister(slots)
        for hold in self._holds:
            hold.release()
        self._registered, self._holds, self._windows, self._sections = [], [], [], []


def _window(what: str, section: BinarySection, buffer: ProvidedBuffer) -> Window:
    """Return the memory of a buffer from where its section begins; refuse a buffer that does not hold the section."""
    numbers = (buffer.fd, buffer.nbytes, buffer.start)
    if not all(is_int(number) and number >= 0 for number in numbers) or buffer.start % PLACE:
        rule = f"descriptor {buffer.fd!r}, {buffer.nbytes!r} bytes, data at {buffer.start!r}: these are not a buffer's"
        hint = f"Data begins at a multiple of {PLACE}, best at 0."
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, what, rule, hint)
    if buffer.nbytes < section.nbytes:
        rule = f"it has {buffer.nbytes} bytes, {section.nbytes} were asked for"
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, what, rule)
    try:
        file = shared_file(buffer.fd, what)
        usable = min(file.nbytes, max(buffer.nbytes, buffer.start + section.nbytes)) - buffer.start
        if usable < section.nbytes:
            rule = f"its memory has {file.nbytes} bytes, its data would end after them"
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, what, rule)
        return mapped_window(SharedFd(buffer.fd, buffer.start, usable), what, file=file)
    except QnnError as problem:
        if problem.code not in (Code.MEM_INVALID_ARGUMENT, Code.MEM_MAPPING):
            raise
        raise QnnError(
            Code.COMMON_NOT_SUPPORTED, what, f"the accelerator cannot use it in place: {problem.rule}",
            "Bring shared memory that can be written and not made smaller, or create the context without callbacks.",
        ) from None  # fmt: skip
