"""Signatures of the kernels in `kernels.pooling`."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import FLOATS, SIZES
from isthmus.engine.native.words import Number, Numbers, ReadOperand, Signature, Write, flag


def _fits(axis: list[int]) -> bool:
    """Return whether every window along an axis begins in the input or at its end, and does not end before it.

    The kernel would otherwise compute a negative number of positions. `axis` has the six numbers of `POOL`.
    """
    size, out, window, stride, before, _ = axis
    return out >= 1 and stride >= 1 and window >= before and (out - 1) * stride - before <= size


STORED_INTEGERS = ("i8", "u8", "i16", "u16")
"""The kinds of stored fixed-point elements, whose largest one is found without converting them."""
POOL = Signature(
    "pooling:pool",
    (
        Write("output", "batch * depth[1] * height[1] * width[1] * channels * out_size"),
        ReadOperand("x", "batch * depth[0] * height[0] * width[0] * channels * size"),
        Number("batch"),
        Number("channels", 1),
        flag("padding_counts"),
        # For each axis: input size, output size, window, stride, padding before and after.
        Numbers("depth", 6, 0, 1 << 31),
        Numbers("height", 6, 0, 1 << 31),
        Numbers("width", 6, 0, 1 << 31),
    ),
    variants={
        **{f"max_{kind}": {"size": SIZES[kind], "out_size": SIZES[kind]} for kind in (*FLOATS, *STORED_INTEGERS)},
        # Sums of 16 bits would be rounded repeatedly, so results are float32.
        **{f"{name}_{kind}": {"size": SIZES[kind], "out_size": 4} for name in ("avg", "l2") for kind in FLOATS},
    },
    rules=("fits(depth)", "fits(height)", "fits(width)"),
    functions={"fits": _fits},
)
SIGNATURES = (POOL,)
