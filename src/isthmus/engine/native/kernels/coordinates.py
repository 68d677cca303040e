"""Coordinates of elements that are not 0. Their number depends on the data, so one thread does all the work."""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.kernels.base import kernel, load_u8, store_i32, word
from isthmus.engine.native.signatures.coordinates import NON_ZERO


@kernel(NON_ZERO)
def non_zero(output, x, elements, room, rank, dims, tid, nt):
    """Write the coordinates of each true element in order, as far as there is room; other rows are -1."""
    if tid != 0:
        return
    row = 0
    for i in range(elements):
        if load_u8(x, i) != 0 and row < room:
            rest = i
            for k in range(rank):
                axis = rank - 1 - k
                size = word(dims, axis)
                store_i32(output, row * rank + axis, np.int32(rest % size))
                rest //= size
            row += 1
    for i in range(row * rank, room * rank):
        store_i32(output, i, np.int32(-1))
