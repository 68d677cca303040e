"""Elementwise kernels on fixed-point tensors: conversions to and from reals, tables of 256 entries, 16-bit functions.

16-bit numbers become reals, and results stored numbers, in registers.
Arithmetic on them is done in float64, so that results are the nearest steps. Other functions are those of the float32
kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels.base import (
    I8,
    device,
    generated,
    kernel,
    load_f32,
    load_i32,
    read_f32,
    read_i8,
    read_i16,
    read_i32,
    read_u8,
    read_u16,
    share,
    write_f32,
    write_i8,
    write_i16,
    write_i32,
    write_u8,
    write_u16,
)
from isthmus.engine.native.kernels.elementwise import span, walk_pairs
from isthmus.engine.native.kernels.integer_functions import BINARY_TO_BOOL
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.real_functions import UNARY_F32
from isthmus.engine.native.kernels.requantization import byte_mask
from isthmus.engine.native.kernels.rounding import NEAREST
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.quantized_elementwise import BINARY, CONVERT, DEQUANTIZE, LOOKUP, QUANTIZE, UNARY
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target

# By the name of a type of stored elements: how it is read and written, its numpy type, and its size in bytes.
READ = {"s8": read_i8, "u8": read_u8, "s16": read_i16, "u16": read_u16, "s32": read_i32}
WRITE = {"s8": write_i8, "u8": write_u8, "s16": write_i16, "u16": write_u16, "s32": write_i32}
STORED = {"s8": np.int8, "u8": np.uint8, "s16": np.int16, "u16": np.uint16, "s32": np.int32}
SIZE = {"s8": 1, "u8": 1, "s16": 2, "u16": 2, "s32": 4}


@generated
def dequantize(target: Target, variant: str) -> Any:
    """Convert stored integers to reals, with one scale for each index of a middle axis. Variant: the stored type."""
    read, size = READ[variant], SIZE[variant]
    # Small integers are exact in float, where the subtraction is cheaper.
    number = np.int32 if variant == "s32" else np.float32

    @kernel(DEQUANTIZE)
    def execute(x, y, outer_count, axis, inner, scales, zeros, tid, nt):
        if axis == 1:
            scale, zero = load_f32(scales, 0), number(load_i32(zeros, 0))
            low, high = share(outer_count * inner, tid, nt)
            for i in range(low, high):
                write_f32(y, i, np.float32(number(read(x, i)) - zero) * scale)
            return
        low, high = share(outer_count * axis, tid, nt)
        for row in range(low, high):
            scale, zero = load_f32(scales, row % axis), number(load_i32(zeros, row % axis))
            source, result = x + row * inner * size, y + row * inner * 4
            for i in range(inner):
                write_f32(result, i, np.float32(number(read(source, i)) - zero) * scale)

    return execute


@generated
def quantize(target: Target, variant: str) -> Any:
    """Convert reals to the nearest stored integers, limited to the type.

    A real is divided by the divisor, or, if that is 1, multiplied by the factor. Variant: the stored type, and
    how halves are rounded.
    """
    kind, ties = without_ties(variant)
    write, size, stored, nearest = WRITE[kind], SIZE[kind], STORED[kind], NEAREST[ties]
    least, most = np.float32(np.iinfo(stored).min), np.float32(np.iinfo(stored).max)
    one = np.float32(1)
    largest = np.int64(np.iinfo(stored).max)

    if size == 4:
        # `most` as a float is one more than the largest integer, so the integer is limited again.
        @device
        def limited(value):
            return stored(min(np.int64(min(max(value, least), most)), largest))
    else:

        @device
        def limited(value):
            return stored(np.int32(min(max(value, least), most)))

    @kernel(QUANTIZE)
    def execute(x, y, outer_count, axis, inner, divisors, factors, zeros, tid, nt):
        # With one scale for all, threads divide the elements.
        rows, length = outer_count * axis, inner
        first, last = share(rows * length, tid, nt)
        while first < last:
            row = first // length
            count = min(length - (first - row * length), last - first)
            source, result = x + first * 4, y + first * size
            divisor, factor = load_f32(divisors, row % axis), load_f32(factors, row % axis)
            zero = np.float32(load_i32(zeros, row % axis))
            if divisor == one:
                for i in range(count):
                    value = nearest(read_f32(source, i) * factor) + zero
                    write(result, i, limited(value))
            else:
                for i in range(count):
                    value = nearest(read_f32(source, i) / divisor) + zero
                    write(result, i, limited(value))
            first += count

    return execute


def _permuted(target: Target) -> Any:
    """Return a lookup of 64 bytes at a time in a table in four vector registers. Arguments: x, y, count, table."""
    kind = vector_type(I8, 64)

    def emit(code: VectorCode, x: Any, y: Any, count: Any, table: Any) -> None:
        builder = code.builder
        quarters = [code.load(table, kind, 64 * i) for i in range(4)]

        def looked_up(index: Any) -> Any:
            """Return the entries of 64 bytes; the sign bit of each selects the lower or upper half of the table."""
            low, high = (
                code.call("llvm.x86.avx512.vpermi2var.qi.512", kind, [quarters[i], index, quarters[i + 1]])
                for i in (0, 2)
            )
            return builder.select(builder.icmp_signed("<", index, ir.Constant(kind, None)), high, low)

        whole = builder.and_(count, code.number(-64))
        with builder.if_then(code.below(0, whole)):
            loop = code.loop(whole, step=64)
            code.store(looked_up(code.load(code.plus(x, loop.index), kind)), code.plus(y, loop.index))
            loop.end()
        with builder.if_then(code.below(whole, count)):
            mask = byte_mask(code, builder.sub(count, whole), 64)
            index = code.masked_load(code.plus(x, whole), mask, kind)
            code.masked_store(looked_up(index), code.plus(y, whole), mask)

    return outlined("lookup_permuted", "iiii", target, emit)


@generated
def lookup(target: Target, variant: str) -> Any:
    """Replace each byte by its entry in a table of 256."""
    # The lookup in registers needs an instruction (VBMI) that only this target uses.
    permuted = _permuted(target) if target.name == "avx512-vnni" else None

    @kernel(LOOKUP)
    def by_register(x, y, count, table, tid, nt):
        low, high = share(count, tid, nt)
        permuted(x + low, y + low, high - low, table)

    @kernel(LOOKUP)
    def by_memory(x, y, count, table, tid, nt):
        low, high = share(count, tid, nt)
        for i in range(low, high):
            write_u8(y, i, read_u8(table, np.int64(read_u8(x, i))))

    return by_register if permuted is not None else by_memory


f64 = np.float64
_ZERO = f64(0)


@device
def centred(stored, flip, zero):  # type: ignore[no-untyped-def]
    """Return the signed number of steps that a stored 16-bit number is above its zero point, in float64."""
    return f64(np.int32(np.int16(stored ^ flip)) - zero)


def nearest_of(ties: str) -> Callable:
    """Return a function for the stored 16-bit number of steps above the zero point: rounded, limited; NaN is zero."""
    rounded = NEAREST[ties]

    @device
    def number(steps, zero, least, most, flip):  # type: ignore[no-untyped-def]
        value = rounded(steps if steps == steps else _ZERO) + zero
        return np.uint16(np.int32(min(max(value, least), most))) ^ flip

    return number


nearest = nearest_of("")
"""The function that rounds halves to even."""


@device
def _centred_byte(stored, flip, zero):  # type: ignore[no-untyped-def]
    """Return the signed number of steps that a stored byte is above its zero point, in float64."""
    return f64(np.int32(np.int8(stored ^ np.uint8(flip))) - zero)


def _nearest_byte_of(ties: str) -> Callable:
    """Return a function for the stored byte of steps above the zero point."""
    rounded = NEAREST[ties]

    @device
    def number(steps, zero, least, most, flip):  # type: ignore[no-untyped-def]
        return np.uint8(np.int32(min(max(rounded(steps) + zero, least), most))) ^ np.uint8(flip)

    return number


_BY_SIZE: dict[str, tuple[Callable, Callable, Callable, Callable[[str], Callable]]] = {
    "1": (read_u8, _centred_byte, write_u8, _nearest_byte_of),
    "2": (read_u16, centred, write_u16, nearest_of),
}
"""By the bytes of a stored number: how it is read, centred, written, and, by the rounding of halves, rounded."""


@generated
def convert(target: Target, variant: str) -> Any:
    """Multiply by a factor that depends on the sign, and round.

    Variant: the bytes of operands and of results, and how halves are rounded.
    """
    sizes, ties = without_ties(variant)
    source, _, goal = sizes.partition("_")
    (read, steps_of, _, _), (_, _, write, rounding) = _BY_SIZE[source], _BY_SIZE[goal]
    rounded = rounding(ties)
    size, out_size = int(source), int(goal)

    @kernel(CONVERT)
    def execute(
        output, x, elements, factor, factor_below, in_zero: np.int32, in_flip: np.uint16, out_zero: f64,
        out_flip: np.uint16, least: f64, most: f64, tid, nt,
    ):  # fmt: skip
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * size
        for i in range(end - begin):
            steps = steps_of(read(x, i), in_flip, in_zero)
            write(
                output, i, rounded(steps * (factor_below if steps < _ZERO else factor), out_zero, least, most, out_flip)
            )

    return execute


@generated
def unary(target: Target, variant: str) -> Any:
    """Apply a function of float32 to each real. Variant: the function."""
    function = UNARY_F32[variant]

    @kernel(UNARY)
    def execute(
        output, x, elements, first: f32, second: f32, scale, inverse, in_zero: np.int32, in_flip: np.uint16,
        out_zero: f64, out_flip: np.uint16, least: f64, most: f64, tid, nt,
    ):  # fmt: skip
        begin, end = span(elements, tid, nt)
        output, x = output + begin * 2, x + begin * 2
        for i in range(end - begin):
            value = function(f32(centred(read_u16(x, i), in_flip, in_zero) * scale), first, second)
            write_u16(output, i, nearest(f64(value) * inverse, out_zero, least, most, out_flip))

    return execute


_ARITHMETIC: dict[str, Callable] = {
    "add": device(lambda a, b: a + b),
    "subtract": device(lambda a, b: a - b),
    "multiply": device(lambda a, b: a * b),
    "divide": device(lambda a, b: a / b),
    "maximum": device(lambda a, b: max(a, b)),
    "minimum": device(lambda a, b: min(a, b)),
    "squared_difference": device(lambda a, b: (a - b) * (a - b)),
    "floor_div": device(lambda a, b: np.floor(a / b)),
    "power": device(lambda a, b: f64(f32(a) ** f32(b))),
    "prelu": device(lambda x, slope: x * slope if x < _ZERO else x),
}


@generated
def binary(target: Target, variant: str) -> Any:
    """Apply a function to pairs of numbers, with broadcasting. Variant: the function, and how halves are rounded.

    Outer dimensions are listed innermost first; strides are in bytes.
    """
    name, ties = without_ties(variant)
    to_bool = name in BINARY_TO_BOOL
    function = BINARY_TO_BOOL[name] if to_bool else _ARITHMETIC[name]
    rounded = nearest_of(ties)
    # A storage is the flip, the zero point and the factor of an operand; factor, zero point, limits, flip of a result.
    load = device(lambda place, i, s: centred(read_u16(place, i), s[0], s[1]) * s[2])
    if to_bool:
        put = device(lambda goal, i, a, b, s: write_u8(goal, i, function(a, b)))
    else:
        put = device(
            lambda goal, i, a, b, s: write_u16(goal, i, rounded(function(a, b) * s[0], s[1], s[2], s[3], s[4]))
        )
    walk = walk_pairs(load, put, 2, 1 if to_bool else 2)

    @kernel(BINARY)
    def execute(
        output, left, right, elements, inner, mode, left_factor, right_factor, factor, left_zero: np.int32,
        left_flip: np.uint16, right_zero: np.int32, right_flip: np.uint16, out_zero: f64, out_flip: np.uint16,
        least: f64, most: f64, rank, dims, left_strides, right_strides, tid, nt,
    ):  # fmt: skip
        storages = (
            (left_flip, left_zero, left_factor), (right_flip, right_zero, right_factor),
            (factor, out_zero, least, most, out_flip),
        )  # fmt: skip
        walk(output, left, right, elements, inner, mode, rank, dims, left_strides, right_strides, storages, tid, nt)

    return execute
