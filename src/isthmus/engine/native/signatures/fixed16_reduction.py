"""Signatures of the kernels in `kernels.fixed16_reduction`."""

from __future__ import annotations

from isthmus.engine.native.signatures.fixed16_elementwise import RESULT, stored
from isthmus.engine.native.signatures.rounding import TOWARDS, UP, with_ties
from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Word, WorkSpace, Write

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
SIGNATURES = (SUM, SOFTMAX)
