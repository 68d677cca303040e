"""Signatures of the kernel in `kernels.random`."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Write

NUMBERS = Signature(
    "random:numbers",
    (
        Write("output", "elements * 4"),
        *ReadOperand.each("seed execution", "4"),
        Number("stream", 0, (1 << 32) - 1),
        Number("elements", 1),
        # A number is multiplied by the factor, then the summand is added.
        *Real.each("factor summand"),
    ),
    variants={"uniform": {}, "normal": {}},
)
