"""Elementwise kernels: one small kernel for each function and type, all with the same few loops.

The lowering has resolved broadcasting. What remains are rows and the offset of each row in each operand. Within a row,
an operand either advances or repeats one element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base, mathematics
from isthmus.engine.native.kernels.base import accessor, device, generated, kernel, share, word
from isthmus.engine.native.kernels.conversions import converter
from isthmus.engine.native.kernels.integer_functions import BINARY_INTEGER, BINARY_TO_BOOL, BINARY_U64, UNARY_INTEGER
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.real_functions import BINARY_F32, BINARY_F64, UNARY_F32, UNARY_F64, UNARY_TO_BOOL
from isthmus.engine.native.signatures.elementwise import BINARY, CAST, CHOOSE, FLOATS, SIZES, TRIGONOMETRIC, UNARY
from isthmus.engine.native.target import Target

_UNIT = 64
"""Elements are distributed to threads in pieces of this size: whole cache lines for every kind."""
_BLOCK = 512
"""The number of elements that are checked together before a slower method is used for all of them."""


def reader(kind: str, target: Target | None = None) -> Callable:
    """Return the streaming read of a kind; only floats of 16 bits need the target."""
    return accessor("read", kind, target)


def writer(kind: str, target: Target | None = None) -> Callable:
    """Return the streaming write of a kind; only floats of 16 bits need the target."""
    return accessor("write", kind, target)


@device
def span(total, tid, nt):  # type: ignore[no-untyped-def]
    """Return a thread's half-open range of `total` elements, in whole pieces."""
    begin, end = share((total + _UNIT - 1) // _UNIT, tid, nt)
    return begin * _UNIT, min(end * _UNIT, total)


@generated
def unary(target: Target, variant: str) -> Any:
    """Apply a function to each element. Variant: ``function_kind``."""
    name, _, kind = variant.rpartition("_")
    of_kind = {"f64": UNARY_F64, **dict.fromkeys(FLOATS, UNARY_F32)}.get(kind, {})
    function = {**UNARY_INTEGER, **UNARY_TO_BOOL, **of_kind}[name]
    result = "bool" if name in UNARY_TO_BOOL else kind
    read, write = reader(kind, target), writer(result, target)
    size, out_size = SIZES[kind], SIZES[result]

    @kernel(UNARY)
    def execute(output, x, elements, first: f32, second: f32, tid, nt):
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * size
        for i in range(end - begin):
            write(output, i, function(read(x, i), first, second))

    return execute


@generated
def trigonometric(target: Target, variant: str) -> Any:
    """Compute sines or cosines. Variant: ``sin_kind`` or ``cos_kind``."""
    name, _, kind = variant.partition("_")
    phase = np.int32({"sin": 0, "cos": 1}[name])
    # For large arguments, by the C library.
    exact = {"sin": device(lambda x: math.sin(x)), "cos": device(lambda x: math.cos(x))}[name]
    read, write, size = reader(kind, target), writer(kind, target), SIZES[kind]

    @kernel(TRIGONOMETRIC)
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


def walk_pairs(load: Callable, put: Callable, size: int, out_size: int) -> Any:
    """Return the loop over a thread's part of the pairs of elements of two operands, with broadcasting.

    ``load(place, index, storage)`` returns an element, and ``put(place, index, one, other, storage)`` writes a result.
    `storages` are those of both operands and of the result: what is known of stored elements besides their type.
    """

    @device
    def walk(output, left, right, elements, inner, mode, rank, dims, left_strides, right_strides, storages, tid, nt):
        left_storage, right_storage, storage = storages
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
                    put(goal, i, load(one, i, left_storage), load(other, i, right_storage), storage)
            elif mode == RIGHT_FIXED:
                one, fixed = one + column * size, load(other, 0, right_storage)
                for i in range(count):
                    put(goal, i, load(one, i, left_storage), fixed, storage)
            else:
                other, fixed = other + column * size, load(one, 0, left_storage)
                for i in range(count):
                    put(goal, i, fixed, load(other, i, right_storage), storage)
            begin += count
            row += 1
            column = 0

    return walk


@generated
def binary(target: Target, variant: str) -> Any:
    """Apply a function to pairs of elements, with broadcasting. Variant: ``function_kind``.

    Outer dimensions are listed innermost first; strides are in bytes. Results of f32 arithmetic are limited to [low,
    high].
    """
    name, _, kind = variant.rpartition("_")
    to_bool = name in BINARY_TO_BOOL
    of_kind = {"f64": BINARY_F64, "u64": BINARY_U64, **dict.fromkeys(FLOATS, BINARY_F32)}
    function = {**of_kind.get(kind, BINARY_INTEGER), **BINARY_TO_BOOL}[name]
    result = "bool" if to_bool else kind
    read, write, clamp = reader(kind, target), writer(result, target), mathematics.clamp
    if kind in FLOATS and not to_bool:
        put = device(lambda goal, i, a, b, limits: write(goal, i, clamp(function(a, b), limits[0], limits[1])))
    else:
        put = device(lambda goal, i, a, b, limits: write(goal, i, function(a, b)))
    walk = walk_pairs(device(lambda place, i, storage: read(place, i)), put, SIZES[kind], SIZES[result])

    @kernel(BINARY)
    def execute(
        output, left, right, elements, inner, mode, low: f32, high: f32, rank, dims, left_strides, right_strides, tid,
        nt,
    ):  # fmt: skip
        storages = 0, 0, (low, high)
        walk(output, left, right, elements, inner, mode, rank, dims, left_strides, right_strides, storages, tid, nt)

    return execute


@generated
def choose(target: Target, variant: str) -> Any:
    """Choose one of two elements by a third. Variant: bytes of an element.

    The steps are how far each operand advances per element of a row: 0 or 1.
    """
    kind = {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[int(variant)]
    read, write, size = reader(kind, target), writer(kind, target), int(variant)
    read_flag = base.read_u8

    @kernel(CHOOSE)
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

    @kernel(CAST)
    def execute(output, x, elements, tid, nt):
        begin, end = span(elements, tid, nt)
        output, x = output + begin * out_size, x + begin * in_size
        for i in range(end - begin):
            write(output, i, convert(read(x, i)))

    return execute
