"""Elementwise kernels: one small kernel for each function and type, all with the same few loops.

The lowering has resolved broadcasting. What remains are rows and the offset of each row in each operand. Within a row,
an operand either advances or repeats one element.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base, mathematics
from isthmus.engine.native.kernels import integer_functions as integers
from isthmus.engine.native.kernels import real_functions as reals
from isthmus.engine.native.kernels.base import device, generated, kernel, share, word
from isthmus.engine.native.kernels.conversions import converter
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.storage import ElementStorage, f64, of_operand, of_result, reader, writer
from isthmus.engine.native.signatures import elementwise as declared
from isthmus.engine.native.signatures.elementwise import FLOATS, SIZES, STEPS
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target

# Elements are distributed to threads in pieces of this size: whole cache lines for every kind.
_UNIT = 64
# The number of elements that are checked together before a slower method is used for all of them.
_BLOCK = 512


@device
def span(total, tid, nt):  # type: ignore[no-untyped-def]
    """Return a thread's half-open range of `total` elements, in whole pieces."""
    begin, end = share((total + _UNIT - 1) // _UNIT, tid, nt)
    return begin * _UNIT, min(end * _UNIT, total)


@generated
def unary(target: Target, variant: str) -> Any:
    """Apply a function to each element. Variant: ``function_kind``.

    Functions of fixed point are those of float32.
    """
    name, _, kind = variant.rpartition("_")
    of_kind = {"f64": reals.UNARY_F64, **dict.fromkeys((*FLOATS, STEPS), reals.UNARY_F32)}.get(kind, {})
    function = {**integers.UNARY_INTEGER, **reals.UNARY_TO_BOOL, **of_kind}[name]
    source = ElementStorage.of(kind, target)
    goal = ElementStorage.of("bool" if name in reals.UNARY_TO_BOOL else kind, target)
    load, store, size, out_size = source.load, goal.store, source.size, goal.size
    if kind == STEPS:
        compute = device(lambda x, a, b, scale, inverse: f64(function(f32(x * scale), a, b)) * inverse)
    else:
        compute = device(lambda x, a, b, scale, inverse: function(x, a, b))

    @kernel(declared.UNARY_OF_STEPS if kind == STEPS else declared.UNARY)
    def execute(
        output, x, elements, first: f32, second: f32, tid, nt, scale=0.0, inverse=0.0, in_zero=0, in_flip=0,
        out_zero=0, out_flip=0, least=0, most=0,
    ):  # fmt: skip
        operand, result = of_operand(in_zero, in_flip), of_result(out_zero, out_flip, least, most)
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * size
        for i in range(end - begin):
            store(output, i, compute(load(x, i, operand), first, second, scale, inverse), result)

    return execute


@generated
def trigonometric(target: Target, variant: str) -> Any:
    """Compute sines or cosines. Variant: ``sin_kind`` or ``cos_kind``."""
    name, _, kind = variant.partition("_")
    phase = np.int32({"sin": 0, "cos": 1}[name])
    # For large arguments, by the C library.
    exact = {"sin": device(lambda x: math.sin(x)), "cos": device(lambda x: math.cos(x))}[name]
    read, write, size = reader(kind, target), writer(kind, target), SIZES[kind]

    @kernel(declared.TRIGONOMETRIC)
    def execute(output, x, elements, tid, nt):
        begin, end = span(elements, tid, nt)
        while begin < end:
            goal, source, count = output + begin * size, x + begin * size, min(end - begin, _BLOCK)
            large = 0
            for i in range(count):
                large |= np.int32(not mathematics.absolute(read(source, i)) <= mathematics.MAX_ANGLE)
            if large:
                for i in range(count):
                    write(goal, i, exact(read(source, i)))
            else:
                for i in range(count):
                    write(goal, i, mathematics.sine(read(source, i), phase))
            begin += count

    return execute


BOTH_ADVANCE, LEFT_FIXED, RIGHT_FIXED = 0, 1, 2
"""Which operands advance in a row; a fixed one repeats one element."""


@device
def outer_offset(dims, rank, row, strides):
    """Return the offset of the `row`-th combination of outer indices; `dims` and `strides` are addresses of lists.

    Both lists begin with the innermost dimension; the index of the outermost one is `row` divided by all other sizes.
    """
    offset = 0
    for d in range(rank - 1):
        size = word(dims, d)
        quotient = row // size
        offset += (row - quotient * size) * word(strides, d)
        row = quotient
    return offset + row * word(strides, rank - 1) if rank else offset


@generated
def binary(target: Target, variant: str) -> Any:
    """Apply a function to pairs of elements, with broadcasting.

    Outer dimensions are listed innermost first; strides are in bytes. Results of f32 arithmetic are limited to [low,
    high]. Variant: ``function_kind``, and how fixed point rounds halves.
    """
    variant, ties = without_ties(variant)
    name, _, kind = variant.rpartition("_")
    to_bool = name in integers.BINARY_TO_BOOL
    of_kind = {
        "f64": reals.BINARY_F64,
        "u64": integers.BINARY_U64,
        STEPS: reals.BINARY_STEPS,
        **dict.fromkeys(FLOATS, reals.BINARY_F32),
    }
    function = {**of_kind.get(kind, integers.BINARY_INTEGER), **integers.BINARY_TO_BOOL}[name]
    operand, result = ElementStorage.of(kind, target), ElementStorage.of("bool" if to_bool else kind, target, ties)
    load, store, size, out_size, clamp = operand.load, result.store, operand.size, result.size, mathematics.clamp
    # `s` has the factors of both operands and of the result, and the limits.
    if kind == STEPS and to_bool:
        compute = device(lambda a, b, s: function(a * s[0], b * s[1]))
    elif kind == STEPS:
        compute = device(lambda a, b, s: function(a * s[0], b * s[1]) * s[2])
    elif kind in FLOATS and not to_bool:
        compute = device(lambda a, b, s: clamp(function(a, b), s[3], s[4]))
    else:
        compute = device(lambda a, b, s: function(a, b))

    @kernel(declared.BINARY_OF_STEPS if kind == STEPS else declared.BINARY)
    def execute(
        output, left, right, elements, inner, mode, low=0.0, high=0.0, left_factor=0.0, right_factor=0.0, factor=0.0,
        left_zero=0, left_flip=0, right_zero=0, right_flip=0, out_zero=0, out_flip=0, least=0, most=0, rank=0, dims=0,
        left_strides=0, right_strides=0, tid=0, nt=1,
    ):  # fmt: skip
        left_words, right_words = of_operand(left_zero, left_flip), of_operand(right_zero, right_flip)
        words = of_result(out_zero, out_flip, least, most)
        scales = left_factor, right_factor, factor, f32(low), f32(high)
        begin, end = span(elements, tid, nt)
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            goal = output + begin * out_size
            one = left + outer_offset(dims, rank, row, left_strides)
            other = right + outer_offset(dims, rank, row, right_strides)
            if mode == BOTH_ADVANCE:
                one, other = one + column * size, other + column * size
                for i in range(count):
                    a, b = load(one, i, left_words), load(other, i, right_words)
                    store(goal, i, compute(a, b, scales), words)
            elif mode == RIGHT_FIXED:
                one, fixed = one + column * size, load(other, 0, right_words)
                for i in range(count):
                    store(goal, i, compute(load(one, i, left_words), fixed, scales), words)
            else:
                other, fixed = other + column * size, load(one, 0, left_words)
                for i in range(count):
                    store(goal, i, compute(fixed, load(other, i, right_words), scales), words)
            begin += count
            row += 1
            column = 0

    return execute


@generated
def choose(target: Target, variant: str) -> Any:
    """Choose one of two elements by a third. Variant: bytes of an element.

    The steps are how far each operand advances per element of a row: 0 or 1.
    """
    kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[int(variant)]
    read, write, size = reader(kind, target), writer(kind, target), int(variant)
    read_flag = base.read_u8

    @kernel(declared.CHOOSE)
    def execute(
        output, condition, yes, no, elements, inner, rank, dims, condition_strides, yes_strides, no_strides,
        condition_step, yes_step, no_step, tid, nt,
    ):  # fmt: skip
        begin, end = span(elements, tid, nt)
        row = begin // inner
        column = begin - row * inner
        while begin < end:
            count = min(inner - column, end - begin)
            goal = output + begin * size
            flag = condition + outer_offset(dims, rank, row, condition_strides) + column * condition_step
            yes_row = yes + outer_offset(dims, rank, row, yes_strides) + column * yes_step * size
            no_row = no + outer_offset(dims, rank, row, no_strides) + column * no_step * size
            if condition_step == 1 and yes_step == 1 and no_step == 1:
                for i in range(count):
                    taken, other = read(yes_row, i), read(no_row, i)
                    write(goal, i, taken if read_flag(flag, i) != 0 else other)
            elif condition_step == 1 and yes_step == 1:
                other = read(no_row, 0)
                for i in range(count):
                    taken = read(yes_row, i)
                    write(goal, i, taken if read_flag(flag, i) != 0 else other)
            elif condition_step == 1 and no_step == 1:
                taken = read(yes_row, 0)
                for i in range(count):
                    other = read(no_row, i)
                    write(goal, i, taken if read_flag(flag, i) != 0 else other)
            else:
                for i in range(count):
                    taken, other = read(yes_row, i * yes_step), read(no_row, i * no_step)
                    write(goal, i, taken if read_flag(flag, i * condition_step) != 0 else other)
            begin += count
            row += 1
            column = 0

    return execute


@generated
def cast(target: Target, variant: str) -> Any:
    """Convert elements to another kind. Variant: ``source_goal``, two kinds."""
    source, _, goal = variant.partition("_")
    convert = converter(*("f32" if kind in FLOATS else kind for kind in (source, goal)))
    read, write = reader(source, target), writer(goal, target)
    in_size, out_size = SIZES[source], SIZES[goal]

    @kernel(declared.CAST)
    def execute(output, x, elements, tid, nt):
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * in_size
        for i in range(end - begin):
            write(output, i, convert(read(x, i)))

    return execute
