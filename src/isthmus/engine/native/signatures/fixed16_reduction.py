"""Signatures of the kernels in `kernels.fixed16_reduction`."""

from __future__ import annotations

from isthmus.engine.native.signatures.fixed16_elementwise import RESULT, stored
from isthmus.engine.native.signatures.rounding import TOWARDS, UP, with_ties
from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Word, WorkSpace, Write, flag

_MAX = (1 << 31) - 1
_QUANTIZATIONS: tuple[Word, ...] = (
    # Steps of the result in a step of the operand.
    Real("ratio"),
    *stored("in"),
    *RESULT,
)

SUM = Signature(
    "fixed16_reduction:reduce_sum",
    (
        ReadOperand("x", "outer_count * count * kept * inner_count * inner * 2"),
        Write("y", "outer_count * kept * inner * 2"),
        # The axes: kept, summed, kept, summed, kept.
        Number("outer_count"),
        Number("count", 1),
        Number("kept", 1),
        Number("inner_count", 1),
        Number("inner", 1),
        # Sums in float64.
        WorkSpace("work", "shares * inner * 8"),
        # What sums are divided by.
        Number("divisor", 1),
        *_QUANTIZATIONS,
    ),
    variants=with_ties({"": {}}, UP, TOWARDS),
)
AVERAGE_POOL = Signature(
    "fixed16_reduction:average_pool",
    (
        ReadOperand("x", "batch * height * width * channels * 2"),
        Write("y", "batch * out_height * out_width * channels * 2"),
        Number("batch", 0, _MAX),
        Number("height", 0, _MAX),
        Number("width", 0, _MAX),
        Number("channels", 1, _MAX),
        Number("out_height", 1, _MAX),
        Number("out_width", 1, _MAX),
        Number("kernel_h", 1, _MAX),
        Number("kernel_w", 1, _MAX),
        Number("stride_h", 1, _MAX),
        Number("stride_w", 1, _MAX),
        Number("top", 0, _MAX),
        Number("left", 0, _MAX),
        Number("bottom", 0, _MAX),
        Number("right", 0, _MAX),
        flag("padding_counts"),
        # Whether means of stored values are rounded half away from zero, not half to even.
        flag("ties_away"),
        # Sums in float64.
        WorkSpace("work", "shares * channels * 8"),
        *_QUANTIZATIONS,
    ),
    variants=with_ties({"": {}}, UP),
)
SOFTMAX = Signature(
    "fixed16_reduction:softmax",
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
SIGNATURES = (SUM, AVERAGE_POOL, SOFTMAX)
