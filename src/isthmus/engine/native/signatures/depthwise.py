"""Signatures of the kernels in `kernels.depthwise`."""

from __future__ import annotations

from isthmus.engine.native.signatures.matmul import halves
from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, WorkSpace, Write, signed

_MAX = 1 << 31


def _axis(name: str) -> tuple[Number, ...]:
    """Return the words of a spatial axis, outer or inner: its sizes, and the bytes between elements of the input, the
    result and the weights (``step``, ``out_step`` and ``weight_step``).
    """
    return (
        *Number.each(f"{name}_size {name}_out {name}_kernel {name}_stride {name}_dilation", 1, _MAX),
        signed(f"{name}_pad", _MAX),
        *Number.each(f"{name}_step {name}_out_step {name}_weight_step"),
    )


SPECIAL = ((3, 1), (3, 2), (5, 1), (5, 2), (7, 1))
"""Kernel widths and strides that have a micro-kernel of their own."""
TILES = (4, 2)
"""The numbers of neighbouring outputs computed together; the smaller one is for narrow tiles of fused regions."""
_VARIANTS = {
    "1": {"tile": 1, "special": 0, "special_stride": 0, "item": 4},
    "4": {"tile": 4, "special": 0, "special_stride": 0, "item": 4},
    **{f"{t}x{k}s{s}": {"tile": t, "special": k, "special_stride": s, "item": 4} for t in TILES for k, s in SPECIAL},
}

CONVOLVE = Signature(
    "depthwise:convolve",
    (
        ReadOperand(
            "x", "reach([batches, outer_size, inner_size], [x_batch, outer_step, inner_step], channels * item)"
        ),
        # The bias, then the weights of each kernel element; channels are padded to whole vectors.
        ReadOperand(
            "weights",
            "padded(channels, lanes) * 4 + reach([outer_kernel, inner_kernel], [outer_weight_step, inner_weight_step],"
            " padded(channels, lanes) * item)[1]",
        ),
        Write("result", "goal"),
        ReadOperand("zeros", "channels * item"),
        # Lists of addresses.
        WorkSpace("work", "shares * work_bytes"),
        Number("work_bytes"),
        *Number.each("batches channels", 1),
        *Number.each("x_batch y_batch"),
        *_axis("outer"),
        *_axis("inner"),
        *Real.each("least most"),
    ),
    variants=_VARIANTS | halves(_VARIANTS),
    where={
        "goal": "reach([batches, outer_out, inner_out], [y_batch, outer_out_step, inner_out_step], channels * item)",
        "listed": "(tile - 1) * special_stride + special if special else tile * inner_kernel",
    },
    rules=(
        "inner_out >= tile",
        "work_bytes >= outer_kernel * listed * 8",
        "not special or (inner_kernel, inner_stride, inner_dilation) == (special, special_stride, 1)",
        "goal[1] >= batches * outer_out * inner_out * channels * item",
    ),
)
