"""Quantization of float rows at run time, each by its own range, for products with 8-bit weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels.base import I16, I32, generated, kernel, load_f32, share, store_f32, store_i32
from isthmus.engine.native.kernels.requantization import Requantizer, byte_mask
from isthmus.engine.native.kernels.vector import VectorCode, outlined, type_suffix, vector_type
from isthmus.engine.native.signatures.quantized_hybrid import QUANTIZE_ROWS
from isthmus.engine.native.target import Target

# The distances by which a vector is shifted and combined with itself to reduce it to one element, by lanes.
_REDUCED = {4: (2, 1), 8: (4, 2, 1), 16: (8, 4, 2, 1)}


def _range(target: Target) -> Callable:
    """Return a micro-kernel that stores the minimum and the maximum of a row, both together with 0.

    Arguments: row, length, the address of the two results.
    """

    def emit(code: VectorCode, x: Any, length: Any, result: Any) -> None:
        builder, lanes = code.builder, code.lanes
        full = builder.and_(length, code.number(-lanes))
        zero = code.constant(0.0)

        def widen(values: list[Any], more: Any) -> list[Any]:
            """Return minimum and maximum after another vector."""
            return [code.minimum(more, values[0]), code.maximum(more, values[1])]

        def bulk() -> list[Any]:
            loop = code.loop(full, [zero, zero], step=lanes)
            return loop.end(widen(loop.values, code.load(code.plus(x, code.times(loop.index, 4)))))

        values = code.either(code.below(0, full), bulk, lambda: [zero, zero])
        mask = code.mask(builder.sub(length, full))
        low, high = widen(values, code.masked_load(code.plus(x, code.times(full, 4)), mask))
        for distance in _REDUCED[lanes]:
            order = ir.Constant(vector_type(I32, lanes), [(i + distance) % lanes for i in range(lanes)])
            low = code.minimum(builder.shuffle_vector(low, low, order), low)
            high = code.maximum(builder.shuffle_vector(high, high, order), high)
        for i, value in enumerate((low, high)):
            code.store(builder.extract_element(value, code.number(0, I32)), result, 4 * i)

    return outlined("row_range", "iii", target, emit)


def _quantizer(target: Target, form: str) -> Callable:
    """Return a micro-kernel that multiplies a row by a factor, rounds it, adds the zero point and limits it to a byte.

    The result is a byte (`form` u8 or s8), or 16 bits without the zero point (s16). Arguments: row, length, result,
    zero point, factor.
    """

    def emit(code: VectorCode, x: Any, length: Any, y: Any, zero: Any, factor: Any) -> None:
        builder, lanes = code.builder, code.lanes
        least, most = code.number(-128), code.number(127)
        requantizer = Requantizer(code, zero, least, most, code.number(0x80 if form == "u8" else 0))
        factors, count = code.splat(factor), lanes if form == "s16" else 4 * lanes
        size = 2 if form == "s16" else 1

        def body(vectors: list[Any]) -> Any:
            """Return the quantized elements of some vectors of floats as one vector."""
            integers = [requantizer.rounded(builder.fmul(v, factors)) for v in vectors]
            if form != "s16":
                return requantizer.packed(integers)
            zeros = code.splat(builder.trunc(zero, I32))
            suffix = type_suffix(code.ints)
            value = builder.add(integers[0], zeros)
            value = code.call(f"llvm.smax.{suffix}", code.ints, [value, code.constant(-128, code.ints)])
            value = code.call(f"llvm.smin.{suffix}", code.ints, [value, code.constant(127, code.ints)])
            return builder.trunc(builder.sub(value, zeros), vector_type(I16, lanes))

        parts = range(count // lanes)
        whole = builder.and_(length, code.number(-count))
        with builder.if_then(code.below(0, whole)):
            loop = code.loop(whole, step=count)
            source = code.plus(x, code.times(loop.index, 4))
            code.store(
                body([code.load(source, None, 4 * lanes * k) for k in parts]),
                code.plus(y, code.times(loop.index, size)),
            )
            loop.end()
        with builder.if_then(code.below(whole, length)):
            rest = builder.sub(length, whole)
            source = code.plus(x, code.times(whole, 4))
            vectors = [code.masked_load(source, code.mask(rest, lanes * k), None, 4 * lanes * k) for k in parts]
            stored, place = body(vectors), code.plus(y, code.times(whole, size))
            if form == "s16":
                for i in range(lanes):
                    with builder.if_then(code.below(i, rest)):
                        code.store(builder.extract_element(stored, code.number(i, I32)), place, 2 * i)
            else:
                code.masked_store(stored, place, byte_mask(code, rest, count))

    return outlined(f"quantized_row_{form}", "iiiif", target, emit)


@generated
def quantize_rows(target: Target, variant: str) -> Any:
    """Quantize rows of floats, each to 256 steps of its range, which includes 0.

    The variant is the form of results: ``u8``, ``s8``, or ``s16`` minus the zero point. For each row, its scale and the
    result that means 0 are stored at `scaling`.
    """
    find, quantize = _range(target), _quantizer(target, variant)
    bias = {"u8": 128, "s8": 0, "s16": 0}[variant]
    centred = variant == "s16"
    steps, one, lowest, highest = np.float32(255), np.float32(1), np.float32(-128), np.float32(127)

    @kernel(QUANTIZE_ROWS)
    def execute(x, rows, length, y, pitch, scaling, tid, nt):
        first, last = share(rows, tid, nt)
        for row in range(first, last):
            own_scaling = scaling + 8 * row
            # The range is stored there first, then replaced.
            find(x + row * length * 4, length, own_scaling)
            low, high = load_f32(own_scaling, 0), load_f32(own_scaling, 1)
            span = high - low
            factor = steps / span if span > np.float32(0) else one
            # The end of the range with the smaller rounding error determines the zero point.
            down, up = low * factor, high * factor
            zero_real = lowest - down if (lowest + down) + (highest + up) > np.float32(0) else highest - up
            zero = np.int64(np.rint(min(max(zero_real, lowest), highest)))
            store_f32(own_scaling, 0, one / factor)
            store_i32(own_scaling, 1, np.int32(0 if centred else zero + bias))
            quantize(x + row * length * 4, length, y + row * pitch, zero, factor)

    return execute
