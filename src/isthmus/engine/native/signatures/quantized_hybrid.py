"""Signatures of the kernels in `kernels.quantized_hybrid`."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Signature, Write

QUANTIZE_ROWS = Signature(
    "quantized_hybrid:quantize_rows",
    (
        ReadOperand("x", "rows * length * 4"),
        *Number.each("rows length", 1),
        Write("y", "(rows - 1) * pitch + length * size"),
        Number("pitch"),
        # For each row, its scale (f32) and the value that means 0 (i32).
        Write("scaling", "rows * 8"),
    ),
    variants={"u8": {"size": 1}, "s8": {"size": 1}, "s16": {"size": 2}},
)
