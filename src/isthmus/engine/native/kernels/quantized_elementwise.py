"""Conversions of fixed-point tensors: to and from reals, by tables of 256 entries, and between 8 and 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir

from isthmus.engine.native.kernels import base, storage
from isthmus.engine.native.kernels.base import device, generated, kernel, share
from isthmus.engine.native.kernels.elementwise import span
from isthmus.engine.native.kernels.requantization import byte_mask
from isthmus.engine.native.kernels.storage import NEAREST, READ, SIZE, WRITE, ElementStorage
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.quantized_elementwise import CONVERT, DEQUANTIZE, LOOKUP, QUANTIZE
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target

_ZERO = np.float64(0)


@generated
def dequantize(target: Target, variant: str) -> Any:
    """Convert stored integers to reals, with one scale for each index of a middle axis. Variant: the stored type."""
    read, size = READ[variant], SIZE[variant]
    # Small integers are exact in float, where the subtraction is cheaper.
    number = np.int32 if variant == "s32" else np.float32

    @kernel(DEQUANTIZE)
    def execute(x, y, outer_count, axis, inner, scales, zeros, tid, nt):
        if axis == 1:
            scale, zero = base.load_f32(scales, 0), number(base.load_i32(zeros, 0))
            low, high = share(outer_count * inner, tid, nt)
            for i in range(low, high):
                base.write_f32(y, i, np.float32(number(read(x, i)) - zero) * scale)
            return
        low, high = share(outer_count * axis, tid, nt)
        for row in range(low, high):
            scale, zero = base.load_f32(scales, row % axis), number(base.load_i32(zeros, row % axis))
            source, result = x + row * inner * size, y + row * inner * 4
            for i in range(inner):
                base.write_f32(result, i, np.float32(number(read(source, i)) - zero) * scale)

    return execute


@generated
def quantize(target: Target, variant: str) -> Any:
    """Convert reals to the nearest stored integers, limited to the type.

    A real is divided by the divisor, or, if that is 1, multiplied by the factor. Variant: the stored type, and
    how halves are rounded.
    """
    kind, ties = without_ties(variant)
    write, size, stored, nearest = WRITE[kind], SIZE[kind], storage.STORED[kind], NEAREST[ties]
    least, most = np.float32(np.iinfo(stored).min), np.float32(np.iinfo(stored).max)
    one = np.float32(1)
    largest = np.int64(np.iinfo(stored).max)

    if size == 4:
        # `most` as a float is one more than the largest integer, so the integer is limited again.
        @device
        def limit(value):
            return stored(min(np.int64(min(max(value, least), most)), largest))
    else:

        @device
        def limit(value):
            return stored(np.int32(min(max(value, least), most)))

    @kernel(QUANTIZE)
    def execute(x, y, outer_count, axis, inner, divisors, factors, zeros, tid, nt):
        # Threads divide the elements, not the rows: with one scale for all there may be only one row.
        rows, length = outer_count * axis, inner
        first, last = share(rows * length, tid, nt)
        while first < last:
            row = first // length
            count = min(length - (first - row * length), last - first)
            source, result = x + first * 4, y + first * size
            divisor, factor = base.load_f32(divisors, row % axis), base.load_f32(factors, row % axis)
            zero = np.float32(base.load_i32(zeros, row % axis))
            if divisor == one:
                for i in range(count):
                    value = nearest(base.read_f32(source, i) * factor) + zero
                    write(result, i, limit(value))
            else:
                for i in range(count):
                    value = nearest(base.read_f32(source, i) / divisor) + zero
                    write(result, i, limit(value))
            first += count

    return execute


def _permutation(target: Target) -> Any:
    """Return a lookup of 64 bytes at a time in a table in four vector registers. Arguments: x, y, count, table."""
    kind = vector_type(base.I8, 64)

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
    permuted = _permutation(target) if "avx512vbmi" in target.needs else None

    @kernel(LOOKUP)
    def by_register(x, y, count, table, tid, nt):
        low, high = share(count, tid, nt)
        permuted(x + low, y + low, high - low, table)

    @kernel(LOOKUP)
    def by_memory(x, y, count, table, tid, nt):
        low, high = share(count, tid, nt)
        for i in range(low, high):
            base.write_u8(y, i, base.read_u8(table, np.int64(base.read_u8(x, i))))

    return by_register if permuted is not None else by_memory


@generated
def convert(target: Target, variant: str) -> Any:
    """Multiply by a factor that depends on the sign, and round.

    Variant: the kinds of operands and of results, and how halves are rounded.
    """
    kinds, ties = without_ties(variant)
    source, _, goal = kinds.partition("_")
    operand, result = ElementStorage.of(source), ElementStorage.of(goal, ties=ties)
    load, store, size, out_size = operand.load, result.store, operand.size, result.size

    @kernel(CONVERT)
    def execute(output, x, elements, factor, factor_below, in_zero, in_flip, out_zero, out_flip, least, most, tid, nt):
        words, result_words = storage.of_operand(in_zero, in_flip), storage.of_result(out_zero, out_flip, least, most)
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * size
        for i in range(end - begin):
            steps = load(x, i, words)
            store(output, i, steps * (factor_below if steps < _ZERO else factor), result_words)

    return execute
