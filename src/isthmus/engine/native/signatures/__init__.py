"""The signatures of all kernels that programs may call, by name; there are no other kernels."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.engine.native.signatures import (
    boxes,
    convolution,
    depthwise,
    elementwise,
    grouped_convolution,
    integer_matmul,
    matmul,
    movement,
    normalization,
    pooling,
    quantized_binary,
    quantized_convolution,
    quantized_depthwise,
    quantized_elementwise,
    quantized_hybrid,
    quantized_reduction,
    random,
    recurrent,
    reduction,
    resize,
    selection,
    tiles,
    winograd,
)
from isthmus.engine.native.words import Signature

_FAMILIES = (
    convolution, depthwise, elementwise, grouped_convolution, integer_matmul, matmul, movement, normalization, pooling,
    quantized_binary, quantized_convolution, quantized_depthwise, quantized_elementwise, quantized_hybrid,
    quantized_reduction, recurrent, reduction, resize, selection, tiles, boxes, random, winograd,
)  # fmt: skip
SIGNATURES: tuple[Signature, ...] = tuple(s for family in _FAMILIES for s in family.SIGNATURES)
"""All signatures."""
KERNELS: Mapping[str, Signature] = {
    f"{signature.kernel}.{variant}" if variant else signature.kernel: signature
    for signature in SIGNATURES
    for variant in signature.variants
}
"""The signature of each kernel, by its name with its variant: a closed list."""


def parts_of(kernel: str) -> Mapping[str, int]:
    """Return the numbers that a kernel's variant stands for in its signature (see `Signature.variants`)."""
    return KERNELS[kernel].variants[kernel.partition(".")[2]]
