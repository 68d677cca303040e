"""Kernels that scale elements by statistics of their neighbours: softmax, norms, and the affine map of channels.

In `*_rows`, the elements that belong together are dense runs. In `*_columns`, they are strided, and whole blocks of
columns are processed at once; a few numbers per column are kept in the thread's work space.
"""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import (
    accessor,
    address,
    device,
    device_reassociated,
    generated,
    load_f32,
    read_f32,
    real,
    share,
    store_f32,
    word,
    write_f32,
)
from isthmus.engine.native.kernels.elementwise import SIZES, reader, span, writer
from isthmus.engine.native.kernels.gemm import kind_of
from isthmus.engine.native.kernels.mathematics import (
    exp_of_negative,
    f32,
    llvm_intrinsic,
    log,
    multiply_add,
    square_root,
)
from isthmus.engine.native.signatures.normalization import (
    AFFINE,
    LOCAL_RESPONSE,
    NORM_COLUMNS,
    NORM_ROWS,
    SOFTMAX_COLUMNS,
    SOFTMAX_ROWS,
)
from isthmus.engine.native.target import Target

_LOCAL_RESPONSE = LOCAL_RESPONSE.place

COLUMNS = 128
"""The number of columns of a block."""
_ZERO, _ONE, _LOWEST = f32(0), f32(1), f32("-inf")
# A NaN may be lost here; the exponentials restore it.
_larger_number = llvm_intrinsic("llvm.maxnum.f32", 2, ("nnan", "nsz"))


@device_reassociated
def _store_exponentials(y, x, count, beta, largest):  # type: ignore[no-untyped-def]
    """Write ``exp(x * beta - largest)`` for each number and return the sum."""
    total = _ZERO
    for i in range(count):
        value = exp_of_negative(read_f32(x, i) * beta - largest)
        write_f32(y, i, value)
        total += value
    return total


@generated
def softmax_rows(target: Target, variant: str) -> Any:
    """Compute softmax of dense rows. Variant: ``plain`` or ``log``, then a kind of 16 bits, as in ``plain_f16``.

    Exponentials wait in a result of float32. In a result of 16 bits they would be rounded twice, so they are computed
    again.
    """
    words = SOFTMAX_ROWS.place
    form, kind = kind_of(variant)
    logarithmic, waits = form == "log", kind == "f32"
    read, write, size = reader(kind, target), writer(kind, target), SIZES[kind]

    @device
    def scaled_maximum(x, count, beta):  # type: ignore[no-untyped-def]
        """Return the largest of `count` numbers times beta."""
        largest = _LOWEST
        for i in range(count):
            largest = _larger_number(largest, read(x, i) * beta)
        return largest

    @device_reassociated
    def sum_exponentials(x, count, beta, largest):  # type: ignore[no-untyped-def]
        """Return the sum of ``exp(x * beta - largest)``."""
        total = _ZERO
        for i in range(count):
            total += exp_of_negative(read(x, i) * beta - largest)
        return total

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        count, beta = word(p, words.length), f32(real(p, words.beta))
        first, last = share(word(p, words.rows), tid, nt)
        for row in range(first, last):
            y, x = address(p, b, words.output) + row * count * size, address(p, b, words.x) + row * count * size
            largest = scaled_maximum(x, count, beta)
            if logarithmic:
                shift = log(sum_exponentials(x, count, beta, largest))
                for i in range(count):
                    write(y, i, read(x, i) * beta - largest - shift)
            elif not waits:
                scale = _ONE / sum_exponentials(x, count, beta, largest)
                for i in range(count):
                    write(y, i, exp_of_negative(read(x, i) * beta - largest) * scale)
            else:
                scale = _ONE / _store_exponentials(y, x, count, beta, largest)
                for i in range(count):
                    store_f32(y, i, load_f32(y, i) * scale)

    return kernel


@generated
def softmax_columns(target: Target, variant: str) -> Any:
    """Compute softmax along a middle axis. The variants are those of `softmax_rows`."""
    words = SOFTMAX_COLUMNS.place
    form, kind = kind_of(variant)
    logarithmic = form == "log"
    read, store, size = reader(kind, target), accessor("store", kind, target), SIZES[kind]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        length, inner, beta = word(p, words.length), word(p, words.columns), f32(real(p, words.beta))
        # For each column of a block: the largest number, and the sum of exponentials, which becomes its inverse or log.
        largest = address(p, b, words.work) + tid * 8 * COLUMNS
        total = largest + 4 * COLUMNS
        blocks = (inner + COLUMNS - 1) // COLUMNS
        first, last = share(word(p, words.outer_count) * blocks, tid, nt)
        for piece in range(first, last):
            outer = piece // blocks
            column = (piece - outer * blocks) * COLUMNS
            count = min(COLUMNS, inner - column)
            start = (outer * length * inner + column) * size
            for i in range(count):
                store_f32(largest, i, _LOWEST)
                store_f32(total, i, _ZERO)
            for r in range(length):
                x = address(p, b, words.x) + start + r * inner * size
                for i in range(count):
                    store_f32(largest, i, _larger_number(load_f32(largest, i), read(x, i) * beta))
            for r in range(length):
                x = address(p, b, words.x) + start + r * inner * size
                for i in range(count):
                    value = exp_of_negative(read(x, i) * beta - load_f32(largest, i))
                    store_f32(total, i, load_f32(total, i) + value)
            for i in range(count):
                value = load_f32(total, i)
                store_f32(total, i, log(value) if logarithmic else _ONE / value)
            for r in range(length):
                x, y = (
                    address(p, b, words.x) + start + r * inner * size,
                    address(p, b, words.output) + start + r * inner * size,
                )
                for i in range(count):
                    shifted = read(x, i) * beta - load_f32(largest, i)
                    if logarithmic:
                        store(y, i, shifted - load_f32(total, i))
                    else:
                        store(y, i, exp_of_negative(shifted) * load_f32(total, i))

    return kernel


def _inverse(variant: str) -> Any:
    """Return the function that computes the factor from a sum of squares, the number of summands and epsilon."""
    if variant == "l2":
        return device(lambda squares, count, epsilon: _ONE / mathematics.maximum(square_root(squares), epsilon))
    return device(lambda squares, count, epsilon: _ONE / square_root(squares / count + epsilon))


@generated
def norm_rows(target: Target, variant: str) -> Any:
    """Normalise each (outer, group) of an input [outer, rows, groups, run] over rows and run.

    There is a scale and an offset for each (group, run). Variant: ``moments``, ``mean`` (the variance is kept), ``rms``
    or ``l2``, then a kind of 16 bits for input and output, as in ``rms_f16``.
    """
    words = NORM_ROWS.place
    form, kind = kind_of(variant)
    centred, spread = form in ("moments", "mean"), form != "mean"
    inverse = _inverse(form)
    read, write, size = reader(kind, target), writer(kind, target), SIZES[kind]

    @device_reassociated
    def sum_of(x, count):  # type: ignore[no-untyped-def]
        """Return the sum of `count` numbers."""
        total = _ZERO
        for i in range(count):
            total += read(x, i)
        return total

    @device_reassociated
    def sum_of_squares(x, count, mean):  # type: ignore[no-untyped-def]
        """Return the sum of the squared differences from the mean."""
        total = _ZERO
        for i in range(count):
            difference = read(x, i) - mean
            total += difference * difference
        return total

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        rows, groups, run, epsilon = (
            word(p, words.rows),
            word(p, words.groups),
            word(p, words.run),
            f32(real(p, words.epsilon)),
        )
        count, stride = f32(rows * run), groups * run * size
        first, last = share(word(p, words.outer_count) * groups, tid, nt)
        for piece in range(first, last):
            outer = piece // groups
            group = piece - outer * groups
            start = outer * rows * stride + group * run * size
            x, y = address(p, b, words.x) + start, address(p, b, words.output) + start
            scales, offsets = (
                address(p, b, words.scales) + group * run * 4,
                address(p, b, words.offsets) + group * run * 4,
            )
            mean, factor = _ZERO, _ONE
            if centred:
                total = _ZERO
                for r in range(rows):
                    total += sum_of(x + r * stride, run)
                mean = total / count
            if spread:
                total = _ZERO
                for r in range(rows):
                    total += sum_of_squares(x + r * stride, run, mean)
                factor = inverse(total, count, epsilon)
            for r in range(rows):
                source, goal = x + r * stride, y + r * stride
                for i in range(run):
                    value = (read(source, i) - mean) * factor
                    write(goal, i, multiply_add(value, read_f32(scales, i), read_f32(offsets, i)))

    return kernel


@generated
def norm_columns(target: Target, variant: str) -> Any:
    """Normalise each (outer, column) of an input [outer, rows, columns] over rows.

    There is a scale and an offset for each column. Variants are those of `norm_rows`.
    """
    words = NORM_COLUMNS.place
    form, kind = kind_of(variant)
    centred, spread = form in ("moments", "mean"), form != "mean"
    inverse = _inverse(form)
    read, store, size = reader(kind, target), accessor("store", kind, target), SIZES[kind]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        rows, inner, epsilon = word(p, words.rows), word(p, words.columns), f32(real(p, words.epsilon))
        # For each column of a block: the mean, and the sum of squares, which becomes the factor.
        mean = address(p, b, words.work) + tid * 8 * COLUMNS
        factor = mean + 4 * COLUMNS
        height = f32(rows)
        blocks = (inner + COLUMNS - 1) // COLUMNS
        first, last = share(word(p, words.outer_count) * blocks, tid, nt)
        for piece in range(first, last):
            outer = piece // blocks
            column = (piece - outer * blocks) * COLUMNS
            count = min(COLUMNS, inner - column)
            start = (outer * rows * inner + column) * size
            for i in range(count):
                store_f32(mean, i, _ZERO)
                store_f32(factor, i, _ZERO if spread else _ONE)
            if centred:
                for r in range(rows):
                    x = address(p, b, words.x) + start + r * inner * size
                    for i in range(count):
                        store_f32(mean, i, load_f32(mean, i) + read(x, i))
                for i in range(count):
                    store_f32(mean, i, load_f32(mean, i) / height)
            if spread:
                for r in range(rows):
                    x = address(p, b, words.x) + start + r * inner * size
                    for i in range(count):
                        difference = read(x, i) - load_f32(mean, i)
                        store_f32(factor, i, multiply_add(difference, difference, load_f32(factor, i)))
                for i in range(count):
                    store_f32(factor, i, inverse(load_f32(factor, i), height, epsilon))
            scales, offsets = address(p, b, words.scales) + column * 4, address(p, b, words.offsets) + column * 4
            for r in range(rows):
                x, y = (
                    address(p, b, words.x) + start + r * inner * size,
                    address(p, b, words.output) + start + r * inner * size,
                )
                for i in range(count):
                    value = (read(x, i) - load_f32(mean, i)) * load_f32(factor, i)
                    store(y, i, multiply_add(value, load_f32(scales, i), load_f32(offsets, i)))

    return kernel


@generated
def affine(target: Target, variant: str) -> Any:
    """Compute ``x * scale + offset`` for each channel, limited. Variant: the kind of input and output."""
    words = AFFINE.place
    read, write, size = reader(variant, target), writer(variant, target), SIZES[variant]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        begin, end = span(word(p, words.elements), tid, nt)
        channels, low, high = word(p, words.channels), f32(real(p, words.low)), f32(real(p, words.high))
        column = begin % channels
        while begin < end:
            count = min(channels - column, end - begin)
            y, x = address(p, b, words.output) + begin * size, address(p, b, words.x) + begin * size
            scales, offsets = address(p, b, words.scales) + column * 4, address(p, b, words.offsets) + column * 4
            for i in range(count):
                value = multiply_add(read(x, i), read_f32(scales, i), read_f32(offsets, i))
                write(y, i, mathematics.clamp(value, low, high))
            begin += count
            column = 0

    return kernel


@device
def local_response(p, b, tid, nt):  # type: ignore[no-untyped-def]
    """Divide by a power of the sum of squares around a channel. It does not work in place."""
    channels, radius = word(p, _LOCAL_RESPONSE.channels), word(p, _LOCAL_RESPONSE.radius)
    alpha, beta, bias = (
        f32(real(p, _LOCAL_RESPONSE.alpha)),
        f32(real(p, _LOCAL_RESPONSE.beta)),
        f32(real(p, _LOCAL_RESPONSE.bias)),
    )
    first, last = share(word(p, _LOCAL_RESPONSE.rows), tid, nt)
    for row in range(first, last):
        y, x = (
            address(p, b, _LOCAL_RESPONSE.output) + row * channels * 4,
            address(p, b, _LOCAL_RESPONSE.x) + row * channels * 4,
        )
        for c in range(channels):
            total = _ZERO
            for k in range(max(0, c - radius), min(channels, c + radius + 1)):
                total += read_f32(x, k) * read_f32(x, k)
            # The result first holds the base of the power.
            write_f32(y, c, multiply_add(total, alpha, bias))
        for c in range(channels):
            store_f32(y, c, read_f32(x, c) * mathematics.exp(-beta * log(load_f32(y, c))))
