"""Kernels that scale elements by statistics of their neighbours: softmax, norms, and the affine map of channels.

In `*_rows`, the elements that belong together are dense runs. In `*_columns`, they are strided, and whole blocks of
columns are processed at once; a few numbers per column are kept in the thread's work space.
"""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.kernels import base, mathematics
from isthmus.engine.native.kernels.base import accessor, device, device_reassociated, generated, kernel, share
from isthmus.engine.native.kernels.elementwise import span
from isthmus.engine.native.kernels.gemm import kind_of
from isthmus.engine.native.kernels.mathematics import exp_of_negative, f32, log, multiply_add, square_root
from isthmus.engine.native.kernels.storage import SIZES, reader, writer
from isthmus.engine.native.signatures import normalization as declared
from isthmus.engine.native.target import Target

COLUMNS = 128
"""The number of columns of a block."""
_ZERO, _ONE, _LOWEST = f32(0), f32(1), f32("-inf")
# A NaN may be lost here; the exponentials restore it.
_larger_number = mathematics.llvm_intrinsic("llvm.maxnum.f32", 2, ("nnan", "nsz"))


@device
def _block(piece, length, columns):
    """Return the first column of a block, how many it has, and its first element."""
    blocks = (columns + COLUMNS - 1) // COLUMNS
    outer = piece // blocks
    column = (piece - outer * blocks) * COLUMNS
    return column, min(COLUMNS, columns - column), outer * length * columns + column


@device_reassociated
def _store_exponentials(y, x, count, beta, largest):  # type: ignore[no-untyped-def]
    """Write ``exp(x * beta - largest)`` for each number and return the sum."""
    total = _ZERO
    for i in range(count):
        value = exp_of_negative(base.read_f32(x, i) * beta - largest)
        base.write_f32(y, i, value)
        total += value
    return total


@generated
def softmax_rows(target: Target, variant: str) -> Any:
    """Compute softmax of dense rows. Variant: ``plain`` or ``log``, then a kind of 16 bits, as in ``plain_f16``.

    Exponentials wait in a result of float32. In a result of 16 bits they would be rounded twice, so they are computed
    again.
    """
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

    @kernel(declared.SOFTMAX_ROWS)
    def execute(output, x, rows, length, beta: f32, tid, nt):
        first, last = share(rows, tid, nt)
        for row in range(first, last):
            y, source = output + row * length * size, x + row * length * size
            largest = scaled_maximum(source, length, beta)
            if logarithmic:
                shift = log(sum_exponentials(source, length, beta, largest))
                for i in range(length):
                    write(y, i, read(source, i) * beta - largest - shift)
            elif not waits:
                scale = _ONE / sum_exponentials(source, length, beta, largest)
                for i in range(length):
                    write(y, i, exp_of_negative(read(source, i) * beta - largest) * scale)
            else:
                scale = _ONE / _store_exponentials(y, source, length, beta, largest)
                for i in range(length):
                    base.store_f32(y, i, base.load_f32(y, i) * scale)

    return execute


@generated
def softmax_columns(target: Target, variant: str) -> Any:
    """Compute softmax along a middle axis. The variants are those of `softmax_rows`."""
    form, kind = kind_of(variant)
    logarithmic = form == "log"
    read, store, size = reader(kind, target), accessor("store", kind, target), SIZES[kind]

    @kernel(declared.SOFTMAX_COLUMNS)
    def execute(output, x, outer_count, length, columns, beta: f32, work, tid, nt):
        # For each column of a block: the largest number, and the sum of exponentials, which becomes its inverse or log.
        largest = work + tid * 8 * COLUMNS
        total = largest + 4 * COLUMNS
        blocks = (columns + COLUMNS - 1) // COLUMNS
        first, last = share(outer_count * blocks, tid, nt)
        for piece in range(first, last):
            _, count, start = _block(piece, length, columns)
            start *= size
            for i in range(count):
                base.store_f32(largest, i, _LOWEST)
                base.store_f32(total, i, _ZERO)
            for r in range(length):
                source = x + start + r * columns * size
                for i in range(count):
                    base.store_f32(largest, i, _larger_number(base.load_f32(largest, i), read(source, i) * beta))
            for r in range(length):
                source = x + start + r * columns * size
                for i in range(count):
                    value = exp_of_negative(read(source, i) * beta - base.load_f32(largest, i))
                    base.store_f32(total, i, base.load_f32(total, i) + value)
            for i in range(count):
                value = base.load_f32(total, i)
                base.store_f32(total, i, log(value) if logarithmic else _ONE / value)
            for r in range(length):
                source, y = x + start + r * columns * size, output + start + r * columns * size
                for i in range(count):
                    shifted = read(source, i) * beta - base.load_f32(largest, i)
                    if logarithmic:
                        store(y, i, shifted - base.load_f32(total, i))
                    else:
                        store(y, i, exp_of_negative(shifted) * base.load_f32(total, i))

    return execute


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

    @kernel(declared.NORM_ROWS)
    def execute(output, x, scales, offsets, outer_count, rows, groups, run, epsilon: f32, tid, nt):
        count, stride = f32(rows * run), groups * run * size
        first, last = share(outer_count * groups, tid, nt)
        for piece in range(first, last):
            outer = piece // groups
            group = piece - outer * groups
            start = outer * rows * stride + group * run * size
            image, y = x + start, output + start
            own_scales, own_offsets = scales + group * run * 4, offsets + group * run * 4
            mean, factor = _ZERO, _ONE
            if centred:
                total = _ZERO
                for r in range(rows):
                    total += sum_of(image + r * stride, run)
                mean = total / count
            if spread:
                total = _ZERO
                for r in range(rows):
                    total += sum_of_squares(image + r * stride, run, mean)
                factor = inverse(total, count, epsilon)
            for r in range(rows):
                source, goal = image + r * stride, y + r * stride
                for i in range(run):
                    value = (read(source, i) - mean) * factor
                    write(goal, i, multiply_add(value, base.read_f32(own_scales, i), base.read_f32(own_offsets, i)))

    return execute


@generated
def norm_columns(target: Target, variant: str) -> Any:
    """Normalise each (outer, column) of an input [outer, rows, columns] over rows.

    There is a scale and an offset for each column. Variants are those of `norm_rows`.
    """
    form, kind = kind_of(variant)
    centred, spread = form in ("moments", "mean"), form != "mean"
    inverse = _inverse(form)
    read, store, size = reader(kind, target), accessor("store", kind, target), SIZES[kind]

    @kernel(declared.NORM_COLUMNS)
    def execute(output, x, scales, offsets, outer_count, rows, columns, epsilon: f32, work, tid, nt):
        # For each column of a block: the mean, and the sum of squares, which becomes the factor.
        mean = work + tid * 8 * COLUMNS
        factor = mean + 4 * COLUMNS
        height = f32(rows)
        blocks = (columns + COLUMNS - 1) // COLUMNS
        first, last = share(outer_count * blocks, tid, nt)
        for piece in range(first, last):
            column, count, start = _block(piece, rows, columns)
            start *= size
            for i in range(count):
                base.store_f32(mean, i, _ZERO)
                base.store_f32(factor, i, _ZERO if spread else _ONE)
            if centred:
                for r in range(rows):
                    source = x + start + r * columns * size
                    for i in range(count):
                        base.store_f32(mean, i, base.load_f32(mean, i) + read(source, i))
                for i in range(count):
                    base.store_f32(mean, i, base.load_f32(mean, i) / height)
            if spread:
                for r in range(rows):
                    source = x + start + r * columns * size
                    for i in range(count):
                        difference = read(source, i) - base.load_f32(mean, i)
                        base.store_f32(factor, i, multiply_add(difference, difference, base.load_f32(factor, i)))
                for i in range(count):
                    base.store_f32(factor, i, inverse(base.load_f32(factor, i), height, epsilon))
            own_scales, own_offsets = scales + column * 4, offsets + column * 4
            for r in range(rows):
                source, y = x + start + r * columns * size, output + start + r * columns * size
                for i in range(count):
                    value = (read(source, i) - base.load_f32(mean, i)) * base.load_f32(factor, i)
                    store(y, i, multiply_add(value, base.load_f32(own_scales, i), base.load_f32(own_offsets, i)))

    return execute


@generated
def affine(target: Target, variant: str) -> Any:
    """Compute ``x * scale + offset`` for each channel, limited. Variant: the kind of input and output."""
    read, write, size = reader(variant, target), writer(variant, target), SIZES[variant]

    @kernel(declared.AFFINE)
    def execute(output, x, scales, offsets, elements, channels, low: f32, high: f32, tid, nt):
        begin, end = span(elements, tid, nt)
        column = begin % channels
        while begin < end:
            count = min(channels - column, end - begin)
            y, source = output + begin * size, x + begin * size
            own_scales, own_offsets = scales + column * 4, offsets + column * 4
            for i in range(count):
                value = multiply_add(read(source, i), base.read_f32(own_scales, i), base.read_f32(own_offsets, i))
                write(y, i, mathematics.clamp(value, low, high))
            begin += count
            column = 0

    return execute


@kernel(declared.LOCAL_RESPONSE)
def local_response(output, x, rows, channels, radius, alpha: f32, beta: f32, bias: f32, tid, nt):
    """Divide by a power of the sum of squares around a channel. It does not work in place."""
    first, last = share(rows, tid, nt)
    for row in range(first, last):
        y, source = output + row * channels * 4, x + row * channels * 4
        for c in range(channels):
            total = _ZERO
            for k in range(max(0, c - radius), min(channels, c + radius + 1)):
                total += base.read_f32(source, k) * base.read_f32(source, k)
            # The result first holds the base of the power.
            base.write_f32(y, c, multiply_add(total, alpha, bias))
        for c in range(channels):
            base.store_f32(y, c, base.read_f32(source, c) * mathematics.exp(-beta * log(base.load_f32(y, c))))
