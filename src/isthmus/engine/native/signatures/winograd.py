"""Signatures of the kernels in `kernels.winograd`, and the sizes and points of the transforms.

F(m x m, 3 x 3) computes `m` x `m` pixels of a result from `m + 2` x `m + 2` pixels of the input: a square. Squares are
numbered along rows of the result, image after image. Groups of `rows` squares have their numbers in one matrix for each
of the square's positions, `plane` bytes apart.
"""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, WorkSpace, Write, flag

POINTS: dict[int, tuple[float, ...]] = {2: (1.0,), 4: (0.5**0.5, 2.0**0.5)}
"""For each size `m`, the positive points at which polynomials are evaluated, besides 0, the negative ones and infinity.

The errors of F(4 x 4) with the points 1/sqrt(2) and sqrt(2) are a fifth of those with 1 and 2.
"""
_SIZES = {str(size): {"m": size, "square": (size + 2) ** 2, "item": 4} for size in POINTS}
# The side of a square of the result, and whether elements of inputs and results have 16 bits.
_VARIANTS = _SIZES | {f"{size}_halves": {**parts, "item": 2} for size, parts in _SIZES.items()}
_SQUARES = (
    # The squares of the result: in each image, so many downwards and across; those that are computed here.
    *Number.each("batches down across", 1),
    Number("first"),
    *Number.each("squares rows", 1),
    Number("plane", 4),
    WorkSpace("work", "shares * work_bytes"),
    Number("work_bytes"),
    # Whether elements of 16 bits are BFLOAT_16, not FLOAT_16.
    flag("brain"),
)
_MATRICES = {"matrices": "[ceil(squares, rows), square, min(rows, squares)]"}
_IN_IMAGES = "first + squares <= batches * down * across"

SCATTER = Signature(
    "winograd:scatter",
    (
        ReadOperand("x", "batches * height * width * channels * item"),
        Write("goal", "reach(matrices, [square * plane, plane, channels * 4], channels * 4)"),
        ReadOperand("zeros", "channels * item"),
        *_SQUARES,
        *Number.each("height width channels", 1),
        # Zeros above and on the left of the image.
        *Number.each("top left"),
    ),
    variants=_VARIANTS,
    where=_MATRICES,
    rules=(_IN_IMAGES, "channels >= lanes", "plane >= rows * channels * 4", "work_bytes >= square * 8"),
)
GATHER = Signature(
    "winograd:gather",
    (
        ReadOperand("sums", "reach(matrices, [square * plane, plane, columns * 4], columns * 4)"),
        ReadOperand("bias", "columns * 4"),
        Write("result", "batches * height * width * columns * item"),
        *_SQUARES,
        *Number.each("height width columns", 1),
        *Real.each("least most"),
    ),
    variants=_VARIANTS,
    where=_MATRICES,
    rules=(
        _IN_IMAGES,
        "columns >= lanes",
        "plane >= rows * columns * 4",
        # Addresses of pixels, and a place for pixels outside the result.
        "work_bytes >= m * m * 8 + columns * 4",
    ),
)
