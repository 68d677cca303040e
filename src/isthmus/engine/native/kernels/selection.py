"""Kernels in which data decides where elements come from or go to: gathers, scatters, one-hot, extremes, sorting.

Indices come from data that nobody has checked. Negative ones count from the end; what is still outside is moved to the
nearest element, so that no index can reach beyond its tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import address, copy_bytes, device, generated, share, word
from isthmus.engine.native.kernels.elementwise import SIZES, outer_offset
from isthmus.engine.native.kernels.movement import mover
from isthmus.engine.native.target import Target

_NUMPY = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "i8": np.int8, "u8": np.uint8}


@device
def _within(index, size):  # type: ignore[no-untyped-def]
    index = np.int64(index)
    index = index + size if index < 0 else index
    return max(0, min(index, size - 1))


@generated
def gather(target: Target, variant: str) -> Any:
    """Words: output, input, indices, outer count, number of indices, axis size, bytes of a slice.

    Variant: ``kind_size``, the kind of the indices and the bytes of a slice, or ``run`` for any number.
    """
    kind, _, length_text = variant.partition("_")
    load_index, sized = getattr(base, f"load_{kind}"), length_text != "run"
    size = int(length_text) if sized else 0
    move = mover(size) if sized else device(lambda goal, source: None)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        count, axis_size, length = word(p, 4), word(p, 5), word(p, 6)
        first, last = share(word(p, 3) * count, tid, nt)
        for piece in range(first, last):
            outer = piece // count
            index = _within(load_index(address(p, b, 2), piece - outer * count), axis_size)
            goal = address(p, b, 0) + piece * length
            source = address(p, b, 1) + (outer * axis_size + index) * length
            if sized:
                move(goal, source)
            else:
                copy_bytes(goal, source, length)

    return kernel


@generated
def gather_elements(target: Target, variant: str) -> Any:
    """Words: output, input, indices, elements, axis size, bytes from one index to the next along the axis, rank,
    dimensions of the indices, the input's byte strides with 0 for the axis. Variant: ``kind_size``.
    """
    kind, _, size_text = variant.partition("_")
    load_index, size = getattr(base, f"load_{kind}"), int(size_text)
    move = mover(size)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        rank = word(p, 6)
        first, last = share(word(p, 3), tid, nt)
        for i in range(first, last):
            index = _within(load_index(address(p, b, 2), i), word(p, 4))
            source = address(p, b, 1) + outer_offset(p, 7, rank, i, 7 + rank) + index * word(p, 5)
            move(address(p, b, 0) + i * size, source)

    return kernel


@device
def _place(p, load_index, indices, tuple_number, depth, lists):  # type: ignore[no-untyped-def]
    """The byte offset that a tuple of indices names; sizes and strides of its axes are listed at word `lists`."""
    offset = 0
    for d in range(depth):
        index = _within(load_index(indices, tuple_number * depth + d), word(p, lists + d))
        offset += index * word(p, lists + depth + d)
    return offset


@generated
def gather_nd(target: Target, variant: str) -> Any:
    """Words: output, input, indices, tuples, tuples of a batch, bytes of a batch, bytes of a slice, depth, sizes,
    strides. Variant: the kind of the indices.
    """
    load_index = getattr(base, f"load_{variant}")

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        length, depth = word(p, 6), word(p, 7)
        first, last = share(word(p, 3), tid, nt)
        for i in range(first, last):
            source = address(p, b, 1) + i // word(p, 4) * word(p, 5)
            source += _place(p, load_index, address(p, b, 2), i, depth, 8)
            copy_bytes(address(p, b, 0) + i * length, source, length)

    return kernel


def _reductions(name: str, kind: str) -> Callable:
    convert = _NUMPY[kind]
    return {
        "none": device(lambda old, new: new),
        "add": device(lambda old, new: convert(old + new)),
        "mul": device(lambda old, new: convert(old * new)),
        "max": device(lambda old, new: old if old > new else new),
        "min": device(lambda old, new: old if old < new else new),
    }[name]


@generated
def scatter_nd(target: Target, variant: str) -> Any:
    """Words: output, indices, updates, tuples, elements of a slice, depth, sizes, strides.

    The output holds the input already. Each thread does its part of every slice, in the order of the indices. Variant:
    ``index_kind_reduction``.
    """
    index, kind, name = variant.split("_")
    load_index, combine, size = getattr(base, f"load_{index}"), _reductions(name, kind), SIZES[kind]
    load, store = getattr(base, f"load_{kind}"), getattr(base, f"store_{kind}")

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        length, depth = word(p, 4), word(p, 5)
        first, last = share(length, tid, nt)
        if first == last:
            return
        for i in range(word(p, 3)):
            goal = address(p, b, 0) + _place(p, load_index, address(p, b, 1), i, depth, 6)
            source = address(p, b, 2) + i * length * size
            for k in range(first, last):
                store(goal, k, combine(load(goal, k), load(source, k)))

    return kernel


@generated
def scatter_elements(target: Target, variant: str) -> Any:
    """Words: output, indices, updates, elements, axis size, byte stride of the axis, rank, dimensions, strides.

    The output holds the input already; one thread does it all, in order. Variant: ``index_kind_reduction``.
    """
    index, kind, name = variant.split("_")
    load_index, combine = getattr(base, f"load_{index}"), _reductions(name, kind)
    load, store = getattr(base, f"load_{kind}"), getattr(base, f"store_{kind}")

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        rank = word(p, 6)
        if tid != 0:
            return
        for i in range(word(p, 3)):
            place = _within(load_index(address(p, b, 1), i), word(p, 4))
            goal = address(p, b, 0) + outer_offset(p, 7, rank, i, 7 + rank) + place * word(p, 5)
            store(goal, 0, combine(load(goal, 0), load(address(p, b, 2), i)))

    return kernel


@generated
def one_hot(target: Target, variant: str) -> Any:
    """Words: output, indices, outer count, depth, inner count, on, off (as bits). Variant: ``index_size``."""
    index, _, size_text = variant.partition("_")
    load_index, size = getattr(base, f"load_{index}"), int(size_text)
    store = getattr(base, f"store_{ {1: 'u8', 2: 'u16', 4: 'u32', 8: 'u64'}[size] }")

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        depth, inner, on, off = word(p, 3), word(p, 4), word(p, 5), word(p, 6)
        first, last = share(word(p, 2) * depth, tid, nt)
        for line in range(first, last):
            outer = line // depth
            wanted = line - outer * depth
            goal = address(p, b, 0) + line * inner * size
            for i in range(inner):
                hot = np.int64(load_index(address(p, b, 1), outer * inner + i))
                hot = hot + depth if hot < 0 else hot
                store(goal, i, on if hot == wanted else off)

    return kernel


@generated
def reverse_sequence(target: Target, variant: str) -> Any:
    """Words: output, input, lengths, outer count, first size, middle count, second size, bytes of an element, whether
    the time axis is the first of the two. Variant: the kind of the lengths.
    """
    load_index = getattr(base, f"load_{variant}")

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        one, middle, two, length, time_first = word(p, 4), word(p, 5), word(p, 6), word(p, 7), word(p, 8)
        first, last = share(word(p, 3) * one * middle * two, tid, nt)
        steps = one if time_first else two
        for line in range(first, last):
            j, rest = line % two, line // two
            m = rest % middle
            rest //= middle
            i, outer = rest % one, rest // one
            time, batch = (i, j) if time_first else (j, i)
            count = max(0, min(np.int64(load_index(address(p, b, 2), batch)), steps))
            time = count - 1 - time if time < count else time
            i, j = (time, j) if time_first else (i, time)
            source = address(p, b, 1) + (((outer * one + i) * middle + m) * two + j) * length
            copy_bytes(address(p, b, 0) + line * length, source, length)

    return kernel


def _better(largest: bool) -> Callable:
    return device(lambda new, old: new > old) if largest else device(lambda new, old: new < old)


@generated
def argument(target: Target, variant: str) -> Any:
    """Words: output, input, outer count, length, inner count. Variant: ``max_kind_index`` or ``min_kind_index``.

    The first of equal elements wins; NaN beats everything, as in numpy.
    """
    name, kind, index = variant.split("_")
    load, size, better = getattr(base, f"load_{kind}"), SIZES[kind], _better(name == "max")
    store, index_size = getattr(base, f"store_{index}"), SIZES[index]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        length, inner = word(p, 3), word(p, 4)
        first, last = share(word(p, 2) * inner, tid, nt)
        for line in range(first, last):
            outer = line // inner
            x = address(p, b, 1) + (outer * length * inner + line - outer * inner) * size
            best, place = load(x, 0), 0
            for i in range(1, length):
                value = load(x, i * inner)
                if better(value, best) or (value != value and best == best):
                    best, place = value, i
            store(address(p, b, 0) + line * index_size, 0, place)

    return kernel


@generated
def top_k(target: Target, variant: str) -> Any:
    """Words: values, indices, input, rows, row length, k. Variant: ``max_kind_index`` or ``min_kind_index``.

    A sorted list of the best so far is kept in the outputs; of equal elements the first comes first.
    """
    name, kind, index = variant.split("_")
    load, store, size, better = (
        getattr(base, f"load_{kind}"), getattr(base, f"store_{kind}"), SIZES[kind], _better(name == "max")
    )  # fmt: skip
    load_index, store_index, index_size = getattr(base, f"load_{index}"), getattr(base, f"store_{index}"), SIZES[index]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        length, k = word(p, 4), word(p, 5)
        first, last = share(word(p, 3), tid, nt)
        for row in range(first, last):
            values, places = address(p, b, 0) + row * k * size, address(p, b, 1) + row * k * index_size
            x = address(p, b, 2) + row * length * size
            count = 0
            for i in range(length):
                value = load(x, i)
                if count == k and not better(value, load(values, k - 1)):
                    continue
                j = count if count < k else k - 1
                while j > 0 and better(value, load(values, j - 1)):
                    store(values, j, load(values, j - 1))
                    store_index(places, j, load_index(places, j - 1))
                    j -= 1
                store(values, j, value)
                store_index(places, j, i)
                count = min(count + 1, k)

    return kernel
