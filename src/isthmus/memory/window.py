"""A window: a buffer, an offset and a length. Tensors and pools are windows, and engines work in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.memory.identity import Span

if TYPE_CHECKING:
    from isthmus.memory.buffer import Buffer


@dataclass(frozen=True, eq=False)
class Window:
    """A range of a buffer, which it keeps alive.

    Examples
    --------
    >>> from isthmus import memory
    >>> with memory.host(256) as buffer:
    ...     window = buffer.window(64, 32)
    ...     window.nbytes, window.address - buffer.address, window.view("float32", (8,)).shape
    (32, 64, (8,))
    """

    buffer: Buffer
    offset: int
    nbytes: int

    def __post_init__(self) -> None:
        if self.offset < 0 or self.nbytes < 0 or self.offset + self.nbytes > self.buffer.nbytes:
            what = f"bytes {self.offset} to {self.offset + self.nbytes}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"they are outside a {self.buffer.what}")

    @property
    def address(self) -> int:
        """Its address in this process."""
        return self.buffer.address + self.offset

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of memory that it occupies."""
        return self.buffer.spans(self.offset, self.nbytes)

    def part(self, offset: int, nbytes: int) -> Window:
        """Return a window within this window."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            what = f"bytes {offset} to {offset + nbytes}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"they are outside a window of {self.nbytes} bytes")
        return Window(self.buffer, self.offset + offset, nbytes)

    def view(self, dtype: Any, dims: tuple[int, ...]) -> np.ndarray:
        """Return the memory as an array, which keeps the memory alive."""
        return self.buffer.array[self.offset : self.offset + self.nbytes].view(dtype).reshape(dims)

    def describe(self) -> str:
        """Return its size and location, for messages."""
        if self.buffer.is_closed or not self.buffer.has_host_view:
            return f"{self.nbytes} bytes"
        return f"{self.nbytes} bytes at {self.address:#x}"

    def check(self, what: str, nbytes: int, alignment: int = 1, code: Code = Code.COMMON_INVALID_ARGUMENT) -> None:
        """Refuse the window with `code` if it is shorter or less aligned than needed; `what` is its purpose."""
        if self.nbytes < nbytes:
            raise QnnError(code, what, f"has {self.nbytes} bytes, {nbytes} are needed")
        if alignment > 1 and self.address % alignment:
            raise QnnError(
                code,
                what,
                f"starts at {self.address:#x}, which is not a multiple of {alignment}",
                f"isthmus.memory.host(nbytes, alignment={alignment}) allocates aligned memory.",
                mistake="misaligned",
            )
