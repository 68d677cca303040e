"""Signatures of the kernels in `kernels.quantized_elementwise`."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import RESULT, zero_and_flip
from isthmus.engine.native.signatures.rounding import AWAY, UP, with_ties
from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Word, Write

_STORED = {"s8": {"size": 1}, "u8": {"size": 1}, "s16": {"size": 2}, "u16": {"size": 2}, "s32": {"size": 4}}
_EXTENTS: tuple[Word, ...] = (Number("outer_count"), Number("axis", 1), Number("inner"))
_ENDS = ("inner >= 1 or outer_count <= 1",)

DEQUANTIZE = Signature(
    "quantized_elementwise:dequantize",
    (
        ReadOperand("x", "outer_count * axis * inner * size"),
        Write("y", "outer_count * axis * inner * 4"),
        *_EXTENTS,
        *ReadOperand.each("scales zeros", "4 * axis"),
    ),
    _STORED,
    rules=_ENDS,
)
QUANTIZE = Signature(
    "quantized_elementwise:quantize",
    (
        ReadOperand("x", "outer_count * axis * inner * 4"),
        Write("y", "outer_count * axis * inner * size"),
        *_EXTENTS,
        # A real is divided by the divisor, or, if that is 1, multiplied by the factor.
        *ReadOperand.each("divisors factors zeros", "4 * axis"),
    ),
    with_ties(_STORED, UP, AWAY),
    rules=_ENDS,
)
LOOKUP = Signature(
    "quantized_elementwise:lookup",
    (ReadOperand("x", "count"), Write("y", "count"), Number("count"), ReadOperand("table", "256")),
)
CONVERT = Signature(
    "quantized_elementwise:convert",
    (
        Write("output", "elements * out_size"),
        ReadOperand("x", "elements * size"),
        Number("elements"),
        # Steps of the result in a step of the operand, for operands above and below zero.
        *Real.each("factor factor_below"),
        *zero_and_flip("in"),
        *RESULT,
    ),
    with_ties({f"q{8 * a}_q{8 * b}": {"size": a, "out_size": b} for a, b in ((1, 2), (2, 1), (2, 2))}, UP),
)
