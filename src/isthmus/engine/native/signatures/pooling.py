"""Signatures of the kernels in `kernels.pooling`."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import FLOATS, SIZES
from isthmus.engine.native.signatures.quantized_reduction import RESULT
from isthmus.engine.native.signatures.rounding import UP, with_ties
from isthmus.engine.native.words import Number, Numbers, ReadOperand, Real, Signature, WorkSpace, Write, flag, signed


def _fits(axis: list[int]) -> bool:
    """Return whether every window along an axis begins in the input or at its end, and does not end before it.

    The kernel would otherwise compute a negative number of positions. `axis` has the six numbers of `POOL`.
    """
    size, out, window, stride, before, _ = axis
    return out >= 1 and stride >= 1 and window >= before and (out - 1) * stride - before <= size


def _sizes(size: int, out_size: int, sum_size: int = 0) -> dict[str, int]:
    """Return the bytes of an element, of a result, and of a sum in work space."""
    return {"size": size, "out_size": out_size, "sum_size": sum_size}


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
        *Numbers.each("depth height width", 6, 0, 1 << 31),
        # The rest is for means of fixed-point elements: sums of bytes in 32 bits, integers or floats, and of 16-bit
        # numbers in 64 bits.
        WorkSpace("work", "shares * channels * sum_size", absent="sum_size == 0"),
        # Whether means of stored values are rounded half away from zero.
        flag("ties_away"),
        # Bytes are multiplied by the first and means divided by the second; means of 16 bits are multiplied by that.
        *Real.each("scale_in scale_out"),
        signed("zero_in", 1 << 31),
        *RESULT,
    ),
    variants={
        **{f"max_{kind}": _sizes(SIZES[kind], SIZES[kind]) for kind in (*FLOATS, *STORED_INTEGERS)},
        # Sums of 16 bits would be rounded repeatedly, so results are float32.
        **{f"{name}_{kind}": _sizes(SIZES[kind], 4) for name in ("avg", "l2") for kind in FLOATS},
        **with_ties({f"mean_{kind}": _sizes(1, 1, 4) for kind in ("s8", "u8")}, UP),
        **with_ties({f"mean_{kinds}": _sizes(2, 2, 8) for kinds in ("s16", "u16", "s16_u16", "u16_s16")}, UP),
    },
    rules=("fits(depth)", "fits(height)", "fits(width)"),
    functions={"fits": _fits},
)
