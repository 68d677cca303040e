"""Coordinates of elements that are not 0. Their number depends on the data, so one thread does all the work."""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.kernels.base import address, device, load_u8, store_i32, word
from isthmus.engine.native.signatures.coordinates import NON_ZERO

_WORDS = NON_ZERO.place


@device
def non_zero(p, b, tid, nt):  # type: ignore[no-untyped-def]
    """Write the coordinates of each true element in order, as far as there is room; other rows are -1."""
    if tid != 0:
        return
    x, output = address(p, b, _WORDS.x), address(p, b, _WORDS.output)
    room, rank = word(p, _WORDS.room), word(p, _WORDS.rank)
    row = 0
    for i in range(word(p, _WORDS.elements)):
        if load_u8(x, i) != 0 and row < room:
            rest = i
            for k in range(rank):
                axis = rank - 1 - k
                size = word(p, _WORDS.dims + axis)
                store_i32(output, row * rank + axis, np.int32(rest % size))
                rest //= size
            row += 1
    for i in range(row * rank, room * rank):
        store_i32(output, i, np.int32(-1))
