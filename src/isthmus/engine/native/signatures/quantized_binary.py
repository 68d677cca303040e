"""Signatures of the kernels in `kernels.quantized_binary`."""

from __future__ import annotations

from isthmus.engine.native.signatures.rounding import UP, with_ties
from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Real, Signature, Word, Write, flag, signed

_INT32 = 1 << 31
RESULT: tuple[Word, ...] = (
    *Number.each("zero least most", -_INT32, _INT32),
    Number("flip", 0, 128),
)
"""Zero point and limits of results as signed bytes, and the flip that converts these to the result's type."""
_RUNS: tuple[Word, ...] = (
    ReadOperand("a", "(a_offsets.least, a_offsets.most + inner) if rows * inner else 0"),
    ReadOperand("b", "(b_offsets.least, b_offsets.most + (1 if b_fixed else inner)) if rows * inner else 0"),
    Write("y", "rows * inner"),
    *Number.each("rows inner"),
    *OffsetTable.each("a_offsets b_offsets", "rows", kind="i32"),
    flag("b_fixed"),
    *RESULT,
)
_STORED: dict[str, dict[str, int]] = {"s8": {}, "u8": {}}

ADD = Signature(
    "quantized_binary:add",
    (
        *_RUNS,
        *Number.each("a_factor b_factor bias", -_INT32, _INT32),
        Number("shift", 0, 31),
    ),
    variants=_STORED,
)
MULTIPLY = Signature(
    "quantized_binary:multiply",
    (*_RUNS, signed("a_zero", _INT32), signed("b_zero", _INT32), Real("scale")),
    variants=with_ties(_STORED, UP),
)
