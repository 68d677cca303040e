"""Products of 8-bit matrices, summed in 32 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import generated, kernel, share
from isthmus.engine.native.kernels.elementwise import outer_offset
from isthmus.engine.native.signatures.integer_matmul import PRODUCT
from isthmus.engine.native.target import Target

# The number of columns whose sums are kept in cache while the rows of the right matrix are read.
_BLOCK = 256


@generated
def product(target: Target, variant: str) -> Any:
    """Multiply matrices after subtracting their zero points. Variant: ``left_right``, each i8 or u8."""
    left_kind, _, right_kind = variant.partition("_")
    load_left = {"i8": base.load_i8, "u8": base.load_u8}[left_kind]
    read_right, load_right = {"i8": (base.read_i8, base.load_i8), "u8": (base.read_u8, base.load_u8)}[right_kind]

    @kernel(PRODUCT)
    def execute(
        output, left, right, left_zeros, right_zeros, left_step, right_step, rows, inner, columns, batches, rank, dims,
        left_strides, right_strides, tid, nt,
    ):  # fmt: skip
        blocks = (columns + _BLOCK - 1) // _BLOCK
        first, last = share(batches * rows * blocks, tid, nt)
        for piece in range(first, last):
            line = piece // blocks
            start = (piece - line * blocks) * _BLOCK
            count = min(_BLOCK, columns - start)
            batch = line // rows
            row = line - batch * rows
            left_row = left + outer_offset(dims, rank, batch, left_strides) + row * inner
            right_block = right + outer_offset(dims, rank, batch, right_strides) + start
            out = output + (line * columns + start) * 4
            zero = np.int32(load_left(left_zeros, row * left_step))
            # The sum of the left row; times a column's zero point it is subtracted at the end.
            total = np.int32(0)
            for i in range(count):
                base.store_i32(out, i, np.int32(0))
            whole = inner - inner % 4
            for k in range(0, whole, 4):
                w0, w1 = np.int32(load_left(left_row, k) - zero), np.int32(load_left(left_row, k + 1) - zero)
                w2, w3 = np.int32(load_left(left_row, k + 2) - zero), np.int32(load_left(left_row, k + 3) - zero)
                total = np.int32(total + w0 + w1 + w2 + w3)
                x0 = right_block + k * columns
                x1, x2, x3 = x0 + columns, x0 + 2 * columns, x0 + 3 * columns
                for i in range(count):
                    pair = np.int32(w0 * read_right(x0, i) + w1 * read_right(x1, i))
                    other = np.int32(w2 * read_right(x2, i) + w3 * read_right(x3, i))
                    base.store_i32(out, i, np.int32(base.load_i32(out, i) + pair + other))
            for k in range(whole, inner):
                w0 = np.int32(load_left(left_row, k) - zero)
                total = np.int32(total + w0)
                x0 = right_block + k * columns
                for i in range(count):
                    base.store_i32(out, i, np.int32(base.load_i32(out, i) + w0 * read_right(x0, i)))
            for i in range(count):
                base.store_i32(
                    out, i, np.int32(base.load_i32(out, i) - total * load_right(right_zeros, (start + i) * right_step))
                )

    return execute
