"""Signatures of the kernel in `kernels.coordinates`."""

from __future__ import annotations

from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Signature, Write

NON_ZERO = Signature(
    "coordinates:non_zero",
    (
        Write("output", "room * rank * 4"),
        ReadOperand("x", "elements"),
        Number("elements", 1),
        Number("room", 1),
        Count("rank"),
        Numbers("dims", "rank", 1),
    ),
)
SIGNATURES = (NON_ZERO,)
