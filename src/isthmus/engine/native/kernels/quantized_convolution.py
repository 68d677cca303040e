"""8-bit convolution and matrix product with constant weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    copy_bytes,
    device,
    fill_bytes,
    generated,
    read_i8,
    read_u8,
    write_i16,
    write_u8,
)
from isthmus.engine.native.kernels.nibbles import NibbleForm
from isthmus.engine.native.kernels.quantized_gemm import float_tile, tile
from isthmus.engine.native.kernels.segments import segments_kernel
from isthmus.engine.native.signatures.quantized_convolution import (
    CONVOLVE,
    CONVOLVE_NIBBLES,
    CONVOLVE_NIBBLES_TO_FLOAT,
    CONVOLVE_TO_FLOAT,
)
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target
from isthmus.engine.native.words import Signature


@device
def _copy(form, target, source, count, zero):  # type: ignore[no-untyped-def]
    """Copy `count` elements in a form (see `staged` in the signature); return the address after the last one.

    `zero` is the zero point that is subtracted from 16-bit ones.
    """
    if form == 1:
        copy_bytes(target, source, count)
    elif form == 2:
        for i in range(count):
            write_u8(target, i, np.uint8(read_u8(source, i) ^ np.uint8(0x80)))
    elif form == 3:
        for i in range(count):
            write_i16(target, i, np.int16(np.int16(read_i8(source, i)) - np.int16(zero)))
        return target + 2 * count
    else:
        for i in range(count):
            write_i16(target, i, np.int16(np.int16(read_u8(source, i)) - np.int16(zero)))
        return target + 2 * count
    return target + count


@generated
def convolve(target: Target, variant: str) -> Any:
    """Convolve bytes with the tile named by the variant, ``ROWSxVECTORS``, and round as its end says."""
    return _kernel(CONVOLVE, target, variant)


@generated
def convolve_to_float(target: Target, variant: str) -> Any:
    """Convolve an input that was quantized at run time; results are floats."""
    return _kernel(CONVOLVE_TO_FLOAT, target, variant)


@generated
def convolve_nibbles(target: Target, variant: str) -> Any:
    """Convolve bytes with 4-bit weights; the variant names the tile and the form of the weights."""
    return _kernel(CONVOLVE_NIBBLES, target, variant)


@generated
def convolve_nibbles_to_float(target: Target, variant: str) -> Any:
    """Convolve an input that was quantized at run time with 4-bit weights; results are floats."""
    return _kernel(CONVOLVE_NIBBLES_TO_FLOAT, target, variant)


def _kernel(signature: Signature, target: Target, variant: str) -> Any:
    """Return the kernel for byte results, or for float results of an input that was quantized at run time."""
    name, ties = without_ties(variant)
    shape, *parts = name.split("_")
    rows, vectors = (int(n) for n in shape.split("x"))
    form = NibbleForm(2 if "bytes" in parts else 4, "factors" in parts) if parts else None
    to_float = "scaling" in signature.at
    widths = range(1, vectors + 1)
    tiles = [float_tile(target, rows, v, form) if to_float else tile(target, rows, v, form, ties) for v in widths]
    # Where the limits of float results are in the instruction.
    limits = 8 * signature.at["least"]
    if to_float:
        rest = device(lambda zero, least, most, flip, _, __, scales, step, instruction: (
            scales, step, instruction + limits, 0
        ))  # fmt: skip
    else:
        rest = device(lambda zero, least, most, flip, _, __, scales, step, instruction: (zero, least, most, flip))
    item = 4 if to_float else 1
    return segments_kernel(signature, tiles, rows, target.lanes, item, fill_bytes, _copy, rest, scaled=to_float)
