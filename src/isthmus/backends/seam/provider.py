"""Providers of the constants of context binaries: they bring them section by section, in buffers of their own.

A buffer belongs to the backend from the moment that it is brought until it is given back, after the context has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BinarySection:
    """A part of a binary's file that a client brings (Qnn_ContextBinaryDataRequest_t): where it is, and its size."""

    offset: int
    nbytes: int


@dataclass(frozen=True)
class ProvidedBuffer:
    """A buffer with a section (Qnn_ContextBinaryDmaDataResponse_t).

    - `fd`: The descriptor of shared memory.
    - `nbytes`: The size of the buffer.
    - `start`: Where the section begins in it.
    - `memory`: What its provider knows it by.
    """

    fd: int
    nbytes: int
    start: int = 0
    memory: Any = None


class BinaryProvider(ABC):
    """Brings the constants of a binary (Qnn_ContextBinaryCallback_t).

    A thread of the library may call it, while the call that creates or frees the context waits.
    """

    @abstractmethod
    def provide(self, section: BinarySection) -> ProvidedBuffer:
        """Return a buffer that no earlier call has returned, with a section of the file in it."""

    @abstractmethod
    def release(self, buffer: ProvidedBuffer) -> None:
        """Take a buffer back, which is not used any more. Called once for each, when the context has ended."""


class BinaryReader(ABC):
    """A binary of which parts are read; `nbytes` is its size."""

    nbytes: int

    @abstractmethod
    def read(self, offset: int, nbytes: int) -> bytes:
        """Return some bytes of it, fewer at its end."""
