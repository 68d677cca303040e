"""FLOAT_32 tensors that are stored as fp16.

The declared type stays the same, so every rule of an operation applies as before; only the size differs. Planning uses
that size, and an engine that knows `Fp16Tensor` converts on loads and stores.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import Tensor


class Fp16Tensor(Tensor):
    """A FLOAT_32 tensor whose elements are stored as fp16; the data of a constant are values that fp16 can hold."""

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return 2


def to_fp16(array: np.ndarray) -> np.ndarray:
    """Convert to fp16; values that are too large become the largest one."""
    limit = np.finfo(np.float16).max
    return np.clip(array, -limit, limit).astype(np.float16)
