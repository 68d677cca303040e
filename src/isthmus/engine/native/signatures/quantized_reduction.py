"""Signatures of the kernels in `kernels.quantized_reduction`."""

from __future__ import annotations

from isthmus.engine.native.signatures.quantized_elementwise import RESULT, stored
from isthmus.engine.native.signatures.rounding import TOWARDS, UP, with_ties
from isthmus.engine.native.words import (
    Number,
    OffsetTable,
    ReadOperand,
    Real,
    Signature,
    Word,
    WorkSpace,
    Write,
    flag,
    signed,
)

_INT32 = 1 << 31
_MAX = (1 << 31) - 1
_STORED: dict[str, dict[str, int]] = {"s8": {}, "u8": {}}
_LIMITS: tuple[Word, ...] = (signed("least", _INT32), signed("most", _INT32))
_ROWS: tuple[Word, ...] = (
    ReadOperand("x", "rows * length"),
    Write("y", "rows * length"),
    Number("rows"),
    Number("length", 1),
)
_IMAGE: tuple[Word, ...] = (
    ReadOperand("x", "batch * height * width * channels"),
    Write("y", "batch * out_height * out_width * channels"),
    *Number.each("batch height width", 0, _MAX),
    *Number.each("channels out_height out_width", 1, _MAX),
)

MEAN = Signature(
    "quantized_reduction:mean",
    (
        ReadOperand("x", "outer_count * count * inner"),
        Write("y", "outer_count * inner"),
        Number("outer_count"),
        Number("count"),
        Number("inner", 1),
        # 32-bit sums.
        WorkSpace("work", "shares * inner * 4"),
        Real("scale"),
        signed("offset"),
        Real("bias"),
        signed("zero", _INT32),
        *_LIMITS,
    ),
    variants=with_ties(_STORED, TOWARDS),
)
_POOLED = {
    **{name: {"size": 1} for name in ("s8", "u8")},
    **{name: {"size": 2} for name in ("s16", "u16", "s16_u16", "u16_s16")},
}
AVERAGE_POOL = Signature(
    "quantized_reduction:average_pool",
    (
        ReadOperand("x", "batch * height * width * channels * size"),
        Write("y", "batch * out_height * out_width * channels * size"),
        *_IMAGE[2:],
        *Number.each("kernel_h kernel_w stride_h stride_w", 1, _MAX),
        Number("top", 0, _MAX),
        Number("left", 0, _MAX),
        flag("padding_counts"),
        # Sums of bytes in 32 bits, integers or floats, and of 16-bit numbers in float64.
        WorkSpace("work", "shares * channels * 4 * size"),
        # Whether means of stored values are rounded half away from zero.
        flag("ties_away"),
        # Bytes are multiplied by the first and means divided by the second; means of 16 bits are multiplied by that.
        Real("scale_in"),
        Real("scale_out"),
        signed("zero_in", _INT32),
        signed("zero_out", _INT32),
        *_LIMITS,
        Number("bottom", 0, _MAX),
        Number("right", 0, _MAX),
    ),
    variants=with_ties(_POOLED, UP),
)
SOFTMAX = Signature(
    "quantized_reduction:softmax",
    (*_ROWS, ReadOperand("table", "1024"), Real("inverse"), signed("zero", _INT32), *_LIMITS),
    variants=_STORED,
)
SOFTMAX_OF_INTEGERS = Signature(
    "quantized_reduction:softmax_of_integers",
    (*_ROWS, ReadOperand("table", "1024"), Number("factor", 0, _MAX), signed("zero", _INT32), *_LIMITS),
    variants=_STORED,
)
RESIZE_BILINEAR = Signature(
    "quantized_reduction:resize_bilinear",
    (
        *_IMAGE,
        # For each row and column of the result: the input index before it, the one after it, and the latter's weight.
        OffsetTable("rows", "out_height", kind="i32", columns=3),
        OffsetTable("columns", "out_width", kind="i32", columns=3),
    ),
    variants=_STORED,
    rules=(
        "0 <= min(rows.least[:2])",
        "max(rows.most[:2]) < height",
        "0 <= min(columns.least[:2])",
        "max(columns.most[:2]) < width",
    ),
)
_QUANTIZATIONS: tuple[Word, ...] = (
    # Steps of the result in a step of the operand.
    Real("ratio"),
    *stored("in"),
    *RESULT,
)

SUM = Signature(
    "quantized_reduction:reduce_sum",
    (
        ReadOperand("x", "outer_count * count * kept * inner_count * inner * 2"),
        Write("y", "outer_count * kept * inner * 2"),
        # The axes: kept, summed, kept, summed, kept.
        Number("outer_count"),
        *Number.each("count kept inner_count inner", 1),
        # Sums in float64.
        WorkSpace("work", "shares * inner * 8"),
        # What sums are divided by.
        Number("divisor", 1),
        *_QUANTIZATIONS,
    ),
    variants=with_ties({"": {}}, UP, TOWARDS),
)
SOFTMAX_WIDE = Signature(
    "quantized_reduction:softmax_wide",
    (
        ReadOperand("x", "rows * length * 2"),
        Write("y", "rows * length * 2"),
        Number("rows"),
        Number("length", 1),
        # Exponentials in float32.
        WorkSpace("work", "shares * length * 4"),
        # The exponent for one step.
        Real("scale"),
        # Steps of the result in 1.0.
        Real("inverse"),
        Number("in_flip", 0, 1 << 15),
        *RESULT,
    ),
)
SIGNATURES = (MEAN, AVERAGE_POOL, SOFTMAX, SOFTMAX_OF_INTEGERS, RESIZE_BILINEAR, SUM, SOFTMAX_WIDE)
