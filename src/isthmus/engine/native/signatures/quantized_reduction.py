"""Signatures of the kernels in `kernels.quantized_reduction`. Variants name the stored types of operand and result."""

from __future__ import annotations

from isthmus.engine.native.signatures.rounding import TOWARDS, UP, with_ties
from isthmus.engine.native.words import (
    Number,
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
_BYTES = {kind: {"size": 1} for kind in ("s8", "u8")}
_WIDE = {kinds: {"size": 2} for kinds in ("s16", "u16", "s16_u16", "u16_s16")}
RESULT: tuple[Word, ...] = (signed("zero", _INT32), signed("least", _INT32), signed("most", _INT32))
"""Zero point and limits of results, as they are stored."""
_MEANS: tuple[Word, ...] = (
    # A result is ``(sum - offset) * scale + bias`` for bytes, and ``(sum - offset) * scale / divisor`` for 16 bits.
    Real("scale"),
    Number("divisor", 1),
    signed("offset"),
    Real("bias"),
    *RESULT,
)

MEAN = Signature(
    "quantized_reduction:mean",
    (
        ReadOperand("x", "outer_count * count * kept * inner_count * inner * size"),
        Write("y", "outer_count * kept * inner * size"),
        # The axes: kept, summed, kept, summed, kept.
        Number("outer_count"),
        *Number.each("count kept", 1),
        Number("inner_count"),
        Number("inner", 1),
        # Sums of bytes in 32 bits, and of 16-bit numbers in 64 bits.
        WorkSpace("work", "shares * inner * 4 * size"),
        *_MEANS,
    ),
    variants=with_ties(_BYTES, TOWARDS) | with_ties(_WIDE, UP, TOWARDS),
    # A sum over nothing ends soon.
    rules=("inner_count >= 1 or count == 1",),
)
ADD_BYTES = Signature(
    "quantized_reduction:add_bytes",
    (
        Write("sums", "channels * 4"),
        ReadOperand("x", "pixels * channels"),
        Number("pixels"),
        Number("channels", 1),
        flag("goes_on"),
    ),
    variants=_BYTES,
)
MEAN_OF_SUMS = Signature(
    "quantized_reduction:mean_of_sums",
    (ReadOperand("sums", "channels * 4"), Write("y", "channels"), Number("channels", 1), *_MEANS),
    variants=with_ties(_BYTES, UP, TOWARDS),
)
SOFTMAX = Signature(
    "quantized_reduction:softmax",
    (
        ReadOperand("x", "rows * length * size"),
        Write("y", "rows * length * size"),
        Number("rows"),
        Number("length", 1),
        # For bytes, 256 exponentials as float32 or integers; for 16 bits, room for those of a row in float32.
        ReadOperand("table", "1024", absent="size == 2"),
        WorkSpace("work", "shares * length * 4", absent="size == 1"),
        # The exponent for one step, for 16 bits.
        Real("scale"),
        # Steps of the result in 1.0.
        Real("inverse"),
        *RESULT,
    ),
    variants=_BYTES | _WIDE | {f"{kind}_integers": parts for kind, parts in _BYTES.items()},
)
