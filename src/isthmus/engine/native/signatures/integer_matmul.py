"""Signatures of the kernels in `kernels.integer_matmul`. Dimensions of batches are innermost first."""

from __future__ import annotations

from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Signature, Write, flags

PRODUCT = Signature(
    "integer_matmul:product",
    (
        Write("output", "4 * batches * rows * columns"),
        ReadOperand("left", "sum_of(outer(batches, dims, left_strides), (0, rows * inner))"),
        ReadOperand("right", "sum_of(outer(batches, dims, right_strides), (0, inner * columns))"),
        ReadOperand("left_zeros", "(rows - 1) * left_step + 1"),
        ReadOperand("right_zeros", "(columns - 1) * right_step + 1"),
        *flags("left_step right_step"),
        Number("rows", 1),
        Number("inner"),
        *Number.each("columns batches", 1),
        Count("rank"),
        Numbers("dims", "rank", 1),
        *Numbers.each("left_strides right_strides", "rank"),
    ),
    variants={f"{left}_{right}": {} for left in ("i8", "u8") for right in ("i8", "u8")},
)
