"""Kernels in which data determines where elements come from or go to: gathers, scatters, one-hot, extremes, sorting.

Indices come from data that has not been checked. Negative ones count from the end if the instruction says so. An index
that is still outside is moved to the nearest element, so that none can reach beyond its tensor, and is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.compiled.instructions import atomic_store
from isthmus.engine.native.control import CONTROL, FAULT
from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import accessor, device, generated, kernel, share, word
from isthmus.engine.native.kernels.conversions import number_type
from isthmus.engine.native.kernels.elementwise import SIZES, outer_offset
from isthmus.engine.native.kernels.movement import mover
from isthmus.engine.native.signatures import selection as declared
from isthmus.engine.native.target import Target


@device
def _count_from_end(index, size, from_end):  # type: ignore[no-untyped-def]
    """Return an index, counted from the end if it is negative and `from_end` is 1."""
    index = np.int64(index)
    # The shift makes every bit the sign bit, and the product is constant within a loop: there is no branch.
    return index + (size * from_end & index >> 63)


@device
def locate(index, size, from_end):  # type: ignore[no-untyped-def]
    """Return the valid index that is nearest to an index, and bits that are nonzero if it is outside its axis."""
    counted = _count_from_end(index, size, from_end)
    nearest = max(0, min(counted, size - 1))
    return nearest, nearest ^ counted


@generated
def gather(target: Target, variant: str) -> Any:
    """Gather slices along an axis.

    Variant: ``kind_size``, the kind of the indices and the bytes of a slice, or ``run`` for any number.
    """
    kind, _, length_text = variant.partition("_")
    load_index, sized = accessor("load", kind), length_text != "run"
    size = int(length_text) if sized else 0
    move = mover(size) if sized else device(lambda goal, source: None)

    @kernel(declared.GATHER)
    def execute(output, x, indices, outer_count, count, axis_size, length, from_end, bases, instruction, tid, nt):
        first, last = share(outer_count * count, tid, nt)
        outside = 0
        for piece in range(first, last):
            outer = piece // count
            index, wrong = locate(load_index(indices, piece - outer * count), axis_size, from_end)
            outside |= wrong
            goal = output + piece * length
            source = x + (outer * axis_size + index) * length
            if sized:
                move(goal, source)
            else:
                base.copy_bytes(goal, source, length)
        report_outside(instruction, bases, outside)

    return execute


@generated
def gather_elements(target: Target, variant: str) -> Any:
    """Gather an element of the axis for each index. Variant: ``kind_size``.

    The strides are the input's, with 0 for the axis.
    """
    kind, _, size_text = variant.partition("_")
    load_index, size = accessor("load", kind), int(size_text)
    move = mover(size)

    @kernel(declared.GATHER_ELEMENTS)
    def execute(
        output, x, indices, elements, axis_size, axis_stride, from_end, rank, dims, strides, bases, instruction, tid, nt
    ):
        first, last = share(elements, tid, nt)
        outside = 0
        for i in range(first, last):
            index, wrong = locate(load_index(indices, i), axis_size, from_end)
            outside |= wrong
            source = x + outer_offset(dims, rank, i, strides) + index * axis_stride
            move(output + i * size, source)
        report_outside(instruction, bases, outside)

    return execute


@device
def _tuple_offset(load_index, indices, tuple_number, depth, sizes, strides, from_end):
    """Return the byte offset of a tuple of `depth` indices, and bits that are nonzero if one is outside its axis."""
    offset = outside = 0
    for d in range(depth):
        size = word(sizes, d)
        index, wrong = locate(load_index(indices, tuple_number * depth + d), size, from_end)
        outside |= wrong
        offset += index * word(strides, d)
    return offset, outside


@generated
def gather_nd(target: Target, variant: str) -> Any:
    """Gather slices by tuples of indices. Variant: the kind of the indices."""
    load_index = accessor("load", variant)

    @kernel(declared.GATHER_ND)
    def execute(
        output, x, indices, tuples, batch_tuples, batch_bytes, length, from_end, depth, sizes, strides, bases,
        instruction, tid, nt,
    ):  # fmt: skip
        first, last = share(tuples, tid, nt)
        outside = 0
        for i in range(first, last):
            source = x + i // batch_tuples * batch_bytes
            offset, wrong = _tuple_offset(load_index, indices, i, depth, sizes, strides, from_end)
            outside |= wrong
            base.copy_bytes(output + i * length, source + offset, length)
        report_outside(instruction, bases, outside)

    return execute


def _reductions(name: str, kind: str) -> Callable:
    """Return the function of an old and a new element whose result is stored."""
    convert = number_type(kind)
    return {
        "none": device(lambda old, new: new),
        "add": device(lambda old, new: convert(old + new)),
        "mul": device(lambda old, new: convert(old * new)),
        "max": device(lambda old, new: old if old > new else new),
        "min": device(lambda old, new: old if old < new else new),
    }[name]


@generated
def scatter_nd(target: Target, variant: str) -> Any:
    """Scatter slices by tuples of indices. Variant: ``index_kind_reduction``.

    The output already holds the input. Each thread processes its part of every slice, in the order of the indices.
    """
    index, kind, name = variant.split("_")
    load_index, combine, size = accessor("load", index), _reductions(name, kind), SIZES[kind]
    load, store = accessor("load", kind), accessor("store", kind)

    @kernel(declared.SCATTER_ND)
    def execute(output, indices, updates, tuples, length, from_end, depth, sizes, strides, bases, instruction, tid, nt):
        first, last = share(length, tid, nt)
        if first == last:
            return
        outside = 0
        for i in range(tuples):
            offset, wrong = _tuple_offset(load_index, indices, i, depth, sizes, strides, from_end)
            outside |= wrong
            goal = output + offset
            source = updates + i * length * size
            for k in range(first, last):
                store(goal, k, combine(load(goal, k), load(source, k)))
        report_outside(instruction, bases, outside)

    return execute


@generated
def scatter_elements(target: Target, variant: str) -> Any:
    """Scatter elements by indices. Variant: ``index_kind_reduction``.

    The output already holds the input. One thread does all the work, in order.
    """
    index, kind, name = variant.split("_")
    load_index, combine = accessor("load", index), _reductions(name, kind)
    load, store = accessor("load", kind), accessor("store", kind)

    @kernel(declared.SCATTER_ELEMENTS)
    def execute(
        output, indices, updates, elements, axis_size, axis_stride, from_end, rank, dims, strides, bases, instruction,
        tid, nt,
    ):  # fmt: skip
        if tid != 0:
            return
        outside = 0
        for i in range(elements):
            position, wrong = locate(load_index(indices, i), axis_size, from_end)
            outside |= wrong
            goal = output + outer_offset(dims, rank, i, strides) + position * axis_stride
            store(goal, 0, combine(load(goal, 0), load(updates, i)))
        report_outside(instruction, bases, outside)

    return execute


@generated
def one_hot(target: Target, variant: str) -> Any:
    """Write one of two values for each class. Variant: ``index_size``."""
    index, _, size_text = variant.partition("_")
    load_index, size = accessor("load", index), int(size_text)
    store = accessor("store", f"u{8 * size}")

    @kernel(declared.ONE_HOT)
    def execute(output, indices, outer_count, depth, inner, on, off, from_end, tid, nt):
        first, last = share(outer_count * depth, tid, nt)
        for line in range(first, last):
            outer = line // depth
            position = line - outer * depth
            goal = output + line * inner * size
            for i in range(inner):
                hot = _count_from_end(load_index(indices, outer * inner + i), depth, from_end)
                store(goal, i, on if hot == position else off)

    return execute


@generated
def reverse_sequence(target: Target, variant: str) -> Any:
    """Reverse the first elements of each sequence. Variant: the kind of the lengths.

    The input is seen as [outer, first, middle, second, length], where first and second are the axes of batch and time,
    in either order.
    """
    load_index = accessor("load", variant)

    @kernel(declared.REVERSE_SEQUENCE)
    def execute(
        output, x, lengths, outer_count, first, middle, second, length, time_first, bases, instruction, tid, nt
    ):
        begin, end = share(outer_count * first * middle * second, tid, nt)
        steps = first if time_first else second
        outside = 0
        for line in range(begin, end):
            j, rest = line % second, line // second
            m = rest % middle
            rest //= middle
            i, outer = rest % first, rest // first
            time, batch = (i, j) if time_first else (j, i)
            count, wrong = locate(load_index(lengths, batch), steps + 1, 0)
            outside |= wrong
            time = count - 1 - time if time < count else time
            i, j = (time, j) if time_first else (i, time)
            row = (outer * first + i) * middle + m
            source = x + (row * second + j) * length
            base.copy_bytes(output + line * length, source, length)
        report_outside(instruction, bases, outside)

    return execute


def _better(largest: bool) -> Callable:
    """Return the test of whether a new element replaces an old one."""
    return device(lambda new, old: new > old) if largest else device(lambda new, old: new < old)


@generated
def argument(target: Target, variant: str) -> Any:
    """Write the index of the largest or smallest element. Variant: ``max_kind_index`` or ``min_kind_index``.

    The first of equal elements wins; NaN beats everything, as in numpy.
    """
    name, kind, index = variant.split("_")
    load, size, better = accessor("load", kind), SIZES[kind], _better(name == "max")
    store, index_size = accessor("store", index), SIZES[index]

    @kernel(declared.ARGUMENT)
    def execute(output, x, outer_count, length, inner, tid, nt):
        first, last = share(outer_count * inner, tid, nt)
        for line in range(first, last):
            outer = line // inner
            source = x + (outer * length * inner + line - outer * inner) * size
            best, position = load(source, 0), 0
            for i in range(1, length):
                value = load(source, i * inner)
                if better(value, best) or (value != value and best == best):
                    best, position = value, i
            store(output + line * index_size, 0, position)

    return execute


@generated
def top_k(target: Target, variant: str) -> Any:
    """Write the best elements of each row and their indices. Variant: ``max_kind_index`` or ``min_kind_index``.

    A sorted list of the best so far is kept in the outputs. Equal elements keep their order.
    """
    name, kind, index = variant.split("_")
    load, store, size, better = accessor("load", kind), accessor("store", kind), SIZES[kind], _better(name == "max")
    load_index, store_index, index_size = accessor("load", index), accessor("store", index), SIZES[index]

    @kernel(declared.TOP_K)
    def execute(values, indices, x, rows, length, k, tid, nt):
        first, last = share(rows, tid, nt)
        for row in range(first, last):
            own_values, own_indices = values + row * k * size, indices + row * k * index_size
            source = x + row * length * size
            count = 0
            for i in range(length):
                value = load(source, i)
                if count == k and not better(value, load(own_values, k - 1)):
                    continue
                j = count if count < k else k - 1
                while j > 0 and better(value, load(own_values, j - 1)):
                    store(own_values, j, load(own_values, j - 1))
                    store_index(own_indices, j, load_index(own_indices, j - 1))
                    j -= 1
                store(own_values, j, value)
                store_index(own_indices, j, i)
                count = min(count + 1, k)

    return execute


@kernel(declared.NON_ZERO)
def non_zero(output, x, elements, room, rank, dims, tid, nt):
    """Write the coordinates of each true element in order, as far as there is room; other rows are -1.

    Their number depends on the data, so one thread does all the work.
    """
    if tid != 0:
        return
    row = 0
    for i in range(elements):
        if base.load_u8(x, i) != 0 and row < room:
            rest = i
            for k in range(rank):
                axis = rank - 1 - k
                size = word(dims, axis)
                base.store_i32(output, row * rank + axis, np.int32(rest % size))
                rest //= size
            row += 1
    for i in range(row * rank, room * rank):
        base.store_i32(output, i, np.int32(-1))


@device
def report_outside(p, b, outside):  # type: ignore[no-untyped-def]
    """Record the instruction as one that met an index outside its axis, unless `outside` is 0."""
    if outside != 0:
        atomic_store(base.load_i64(b, CONTROL) + FAULT, p)
