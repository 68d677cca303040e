"""Signatures of the kernels in `kernels.quantized_elementwise`."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import UNARY_KINDS
from isthmus.engine.native.signatures.rounding import AWAY, UP, with_ties
from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Real, Signature, Word, Write, signed

_STORED = {"s8": {"size": 1}, "u8": {"size": 1}, "s16": {"size": 2}, "u16": {"size": 2}, "s32": {"size": 4}}
_EXTENTS = (Number("outer_count"), Number("axis", 1), Number("inner"))
_ENDS = ("inner >= 1 or outer_count <= 1",)

DEQUANTIZE = Signature(
    "quantized_elementwise:dequantize",
    (
        ReadOperand("x", "outer_count * axis * inner * size"),
        Write("y", "outer_count * axis * inner * 4"),
        *_EXTENTS,
        ReadOperand("scales", "4 * axis"),
        ReadOperand("zeros", "4 * axis"),
    ),
    variants=_STORED,
    rules=_ENDS,
)
QUANTIZE = Signature(
    "quantized_elementwise:quantize",
    (
        ReadOperand("x", "outer_count * axis * inner * 4"),
        Write("y", "outer_count * axis * inner * size"),
        *_EXTENTS,
        # A real is divided by the divisor, or, if that is 1, multiplied by the factor.
        ReadOperand("divisors", "4 * axis"),
        ReadOperand("factors", "4 * axis"),
        ReadOperand("zeros", "4 * axis"),
    ),
    variants=with_ties(_STORED, UP, AWAY),
    rules=_ENDS,
)
LOOKUP = Signature(
    "quantized_elementwise:lookup",
    (ReadOperand("x", "count"), Write("y", "count"), Number("count"), ReadOperand("table", "256")),
)
_INT32 = 1 << 31


def stored(name: str) -> tuple[Word, ...]:
    """Return the words of an operand's zero point and flip.

    Flipping the bits of a stored number that `flip` has gives a signed number; the zero point is one of those.
    """
    return signed(f"{name}_zero", _INT32), Number(f"{name}_flip", 0, 1 << 15)


RESULT: tuple[Word, ...] = (*stored("out"), signed("least", _INT32), signed("most", _INT32))
"""Zero point, flip and limits of results as signed numbers."""

CONVERT = Signature(
    "quantized_elementwise:convert",
    (
        Write("output", "elements * out_size"),
        ReadOperand("x", "elements * size"),
        Number("elements"),
        # Steps of the result in a step of the operand, for operands above and below zero.
        Real("factor"),
        Real("factor_below"),
        *stored("in"),
        *RESULT,
    ),
    variants=with_ties({f"{a}_{b}": {"size": a, "out_size": b} for a, b in ((1, 2), (2, 1), (2, 2))}, UP),
)
UNARY = Signature(
    "quantized_elementwise:unary",
    (
        Write("output", "elements * 2"),
        ReadOperand("x", "elements * 2"),
        Number("elements"),
        Real("first"),
        Real("second"),
        Real("scale"),
        # Steps of the result in 1.0.
        Real("inverse"),
        *stored("in"),
        *RESULT,
    ),
    variants={name: {} for name, kinds in UNARY_KINDS.items() if "f32" in kinds and name not in ("isnan", "isinf")},
)
ARITHMETIC = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "squared_difference", "floor_div", "power", "prelu",
)  # fmt: skip
"""Functions of two numbers whose result is a number."""
COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
BINARY = Signature(
    "quantized_elementwise:binary",
    (
        Write("output", "elements * out_size"),
        ReadOperand("left", "walk(elements, inner, dims, left_strides, 2 * (mode != 1), 2)"),
        ReadOperand("right", "walk(elements, inner, dims, right_strides, 2 * (mode != 2), 2)"),
        Number("elements"),
        Number("inner", 1),
        Number("mode", 0, 2),
        # What the operands and then the result of the function are multiplied by.
        Real("left_factor"),
        Real("right_factor"),
        Real("factor"),
        *stored("left"),
        *stored("right"),
        *RESULT,
        Count("rank"),
        Numbers("dims", "rank", 1),
        Numbers("left_strides", "rank"),
        Numbers("right_strides", "rank"),
    ),
    variants={
        **with_ties({name: {"out_size": 2} for name in ARITHMETIC}, UP),
        **{name: {"out_size": 1} for name in COMPARISONS},
    },
)
SIGNATURES = (DEQUANTIZE, QUANTIZE, LOOKUP, CONVERT, UNARY, BINARY)
