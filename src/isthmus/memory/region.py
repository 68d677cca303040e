"""A region: a span of addresses that some object keeps alive. What engines are given to work in."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError


@dataclass(frozen=True)
class Region:
    """A span of memory.

    Parameters
    ----------
    address, nbytes
        Where it is and how long.
    owner
        The object that keeps the memory valid.
    """

    address: int
    nbytes: int
    owner: Any

    @staticmethod
    def of(owner: Any, what: str = "buffer", writable: bool = True) -> Region:
        """The region of a buffer of this package, a numpy array or anything with the buffer protocol.

        Examples
        --------
        >>> Region.of(bytearray(16)).nbytes
        16
        """
        if isinstance(owner, Region):
            return owner
        known = getattr(owner, "region", None)
        if isinstance(known, Region):
            return known
        try:
            array = owner if isinstance(owner, np.ndarray) else np.frombuffer(owner, np.uint8)
        except (TypeError, ValueError, BufferError) as problem:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, what, f"a {type(owner).__name__} exposes no memory: {problem}"
            ) from None
        if not array.flags.c_contiguous:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "its memory is not contiguous")
        if writable and not array.flags.writeable:
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "its memory is read-only")
        return Region(array.ctypes.data, array.nbytes, array)

    def view(self, dtype: Any, dims: tuple[int, ...]) -> np.ndarray:
        """The memory as an array, which keeps its owner alive if that is an array."""
        if isinstance(self.owner, np.ndarray):
            start = self.address - self.owner.ctypes.data
            content = self.owner.reshape(-1).view(np.uint8)[start : start + self.nbytes]
        else:
            content = np.ctypeslib.as_array((ctypes.c_uint8 * self.nbytes).from_address(self.address))
        return content.view(dtype).reshape(dims)

    def check(self, what: str, nbytes: int, alignment: int = 1) -> None:
        """Refuse a region that is shorter or less aligned than needed."""
        if self.nbytes < nbytes:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT, what, f"has {self.nbytes} bytes, {nbytes} are needed"
            )
        if self.address % alignment:
            raise QnnError(
                Code.COMMON_INVALID_ARGUMENT,
                what,
                f"starts at {self.address:#x}, which is not a multiple of {alignment}",
                f"isthmus.memory.host(nbytes, alignment={alignment}) allocates aligned memory.",
            )
