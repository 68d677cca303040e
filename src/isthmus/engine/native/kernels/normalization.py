"""Kernels that scale elements by statistics of their neighbours: softmax, norms, and the affine map of channels.

In `*_rows`, the elements that belong together are dense runs. In `*_columns`, they are strided, and whole blocks of
columns are processed at once; a few numbers per column are kept in the thread's work space.
"""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import (
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
from isthmus.engine.native.kernels.elementwise import span
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

_AFFINE, _LOCAL_RESPONSE = AFFINE.place, LOCAL_RESPONSE.place

COLUMNS = 128
"""The number of columns of a block."""
_ZERO, _ONE, _LOWEST = f32(0), f32(1), f32("-inf")
# A NaN may be lost here; the exponentials restore it.
_larger_number = llvm_intrinsic("llvm.maxnum.f32", 2, ("nnan", "nsz"))


@device
def _scaled_maximum(x, count, beta):  # type: ignore[no-untyped-def]
    """Return the largest of `count` numbers times beta."""
    largest = _LOWEST
    for i in range(count):
        largest = _larger_number(largest, read_f32(x, i) * beta)
    return largest


@device_reassociated
def _store_exponentials(y, x, count, beta, largest):  # type: ignore[no-untyped-def]
    """Write ``exp(x * beta - largest)`` for each number and return the sum."""
    total = _ZERO
    for i in range(count):
        value = exp_of_negative(read_f32(x, i) * beta - largest)
        write_f32(y, i, value)
        total += value
    return total


@device_reassociated
def _sum_exponentials(x, count, beta, largest):  # type: ignore[no-untyped-def]
    """Return the sum of ``exp(x * beta - largest)``."""
    total = _ZERO
    for i in range(count):
        total += exp_of_negative(read_f32(x, i) * beta - largest)
    return total


@generated
def softmax_rows(target: Target, variant: str) -> Any:
    """Compute softmax of dense rows. Variant: ``plain`` or ``log``."""
    words = SOFTMAX_ROWS.place
    logarithmic = variant == "log"

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        count, beta = word(p, words.length), f32(real(p, words.beta))
        first, last = share(word(p, words.rows), tid, nt)
        for row in range(first, last):
            y, x = address(p, b, words.output) + row * count * 4, address(p, b, words.x) + row * count * 4
            largest = _scaled_maximum(x, count, beta)
            if logarithmic:
                shift = log(_sum_exponentials(x, count, beta, largest))
                for i in range(count):
                    write_f32(y, i, read_f32(x, i) * beta - largest - shift)
            else:
                scale = _ONE / _store_exponentials(y, x, count, beta, largest)
                for i in range(count):
                    store_f32(y, i, load_f32(y, i) * scale)

    return kernel


@generated
def softmax_columns(target: Target, variant: str) -> Any:
    """Compute softmax along a middle axis. Variant: ``plain`` or ``log``."""
    words = SOFTMAX_COLUMNS.place
    logarithmic = variant == "log"

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
            start = (outer * length * inner + column) * 4
            for i in range(count):
                store_f32(largest, i, _LOWEST)
                store_f32(total, i, _ZERO)
            for r in range(length):
                x = address(p, b, words.x) + start + r * inner * 4
                for i in range(count):
                    store_f32(largest, i, _larger_number(load_f32(largest, i), read_f32(x, i) * beta))
            for r in range(length):
                x = address(p, b, words.x) + start + r * inner * 4
                for i in range(count):
                    value = exp_of_negative(read_f32(x, i) * beta - load_f32(largest, i))
                    store_f32(total, i, load_f32(total, i) + value)
            for i in range(count):
                value = load_f32(total, i)
                store_f32(total, i, log(value) if logarithmic else _ONE / value)
            for r in range(length):
                x, y = (
                    address(p, b, words.x) + start + r * inner * 4,
                    address(p, b, words.output) + start + r * inner * 4,
                )
                for i in range(count):
                    shifted = read_f32(x, i) * beta - load_f32(largest, i)
                    if logarithmic:
                        store_f32(y, i, shifted - load_f32(total, i))
                    else:
                        store_f32(y, i, exp_of_negative(shifted) * load_f32(total, i))

    return kernel


@device_reassociated
def _sum(x, count):  # type: ignore[no-untyped-def]
    """Return the sum of `count` numbers."""
    total = _ZERO
    for i in range(count):
        total += read_f32(x, i)
    return total


@device_reassociated
def _sum_of_squares(x, count, mean):  # type: ignore[no-untyped-def]
    """Return the sum of the squared differences from the mean."""
    total = _ZERO
    for i in range(count):
        difference = read_f32(x, i) - mean
        total += difference * difference
    return total


def _inverse(variant: str) -> Any:
    """Return the function that computes the factor from a sum of squares, the number of summands and epsilon."""
    if variant == "l2":
        return device(lambda squares, count, epsilon: _ONE / mathematics.maximum(square_root(squares), epsilon))
    return device(lambda squares, count, epsilon: _ONE / square_root(squares / count + epsilon))


@generated
def norm_rows(target: Target, variant: str) -> Any:
    """Normalise each (outer, group) of an input [outer, rows, groups, run] over rows and run.

    There is a scale and an offset for each (group, run). Variant: ``moments``, ``mean`` (the variance is kept), ``rms``
    or ``l2``.
    """
    words = NORM_ROWS.place
    centred, spread = variant in ("moments", "mean"), variant != "mean"
    inverse = _inverse(variant)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        rows, groups, run, epsilon = (
            word(p, words.rows),
            word(p, words.groups),
            word(p, words.run),
            f32(real(p, words.epsilon)),
        )
        count, stride = f32(rows * run), groups * run * 4
        first, last = share(word(p, words.outer_count) * groups, tid, nt)
        for piece in range(first, last):
            outer = piece // groups
            group = piece - outer * groups
            start = outer * rows * stride + group * run * 4
            x, y = address(p, b, words.x) + start, address(p, b, words.output) + start
            scales, offsets = (
                address(p, b, words.scales) + group * run * 4,
                address(p, b, words.offsets) + group * run * 4,
            )
            mean, factor = _ZERO, _ONE
            if centred:
                total = _ZERO
                for r in range(rows):
                    total += _sum(x + r * stride, run)
                mean = total / count
            if spread:
                total = _ZERO
                for r in range(rows):
                    total += _sum_of_squares(x + r * stride, run, mean)
                factor = inverse(total, count, epsilon)
            for r in range(rows):
                source, goal = x + r * stride, y + r * stride
                for i in range(run):
                    value = (read_f32(source, i) - mean) * factor
                    write_f32(goal, i, multiply_add(value, read_f32(scales, i), read_f32(offsets, i)))

    return kernel


@generated
def norm_columns(target: Target, variant: str) -> Any:
    """Normalise each (outer, column) of an input [outer, rows, columns] over rows.

    There is a scale and an offset for each column. Variants are those of `norm_rows`.
    """
    words = NORM_COLUMNS.place
    centred, spread = variant in ("moments", "mean"), variant != "mean"
    inverse = _inverse(variant)

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
            start = (outer * rows * inner + column) * 4
            for i in range(count):
                store_f32(mean, i, _ZERO)
                store_f32(factor, i, _ZERO if spread else _ONE)
            if centred:
                for r in range(rows):
                    x = address(p, b, words.x) + start + r * inner * 4
                    for i in range(count):
                        store_f32(mean, i, load_f32(mean, i) + read_f32(x, i))
                for i in range(count):
                    store_f32(mean, i, load_f32(mean, i) / height)
            if spread:
                for r in range(rows):
                    x = address(p, b, words.x) + start + r * inner * 4
                    for i in range(count):
                        difference = read_f32(x, i) - load_f32(mean, i)
                        store_f32(factor, i, multiply_add(difference, difference, load_f32(factor, i)))
                for i in range(count):
                    store_f32(factor, i, inverse(load_f32(factor, i), height, epsilon))
            scales, offsets = address(p, b, words.scales) + column * 4, address(p, b, words.offsets) + column * 4
            for r in range(rows):
                x, y = (
                    address(p, b, words.x) + start + r * inner * 4,
                    address(p, b, words.output) + start + r * inner * 4,
                )
                for i in range(count):
                    value = (read_f32(x, i) - load_f32(mean, i)) * load_f32(factor, i)
                    store_f32(y, i, multiply_add(value, load_f32(scales, i), load_f32(offsets, i)))

    return kernel


@device
def affine(p, b, tid, nt):  # type: ignore[no-untyped-def]
    """Compute ``x * scale + offset`` for each channel, limited."""
    begin, end = span(word(p, _AFFINE.elements), tid, nt)
    channels, low, high = word(p, _AFFINE.channels), f32(real(p, _AFFINE.low)), f32(real(p, _AFFINE.high))
    column = begin % channels
    while begin < end:
        count = min(channels - column, end - begin)
        y, x = address(p, b, _AFFINE.output) + begin * 4, address(p, b, _AFFINE.x) + begin * 4
        scales, offsets = address(p, b, _AFFINE.scales) + column * 4, address(p, b, _AFFINE.offsets) + column * 4
        for i in range(count):
            value = multiply_add(read_f32(x, i), read_f32(scales, i), read_f32(offsets, i))
            write_f32(y, i, mathematics.clamp(value, low, high))
        begin += count
        column = 0


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
