"""Kernels that reduce along axes: sums, products, extremes, and running sums.

A reduction has one of two forms. In `rows`, the innermost axis is reduced: each output sums dense runs. In `columns`,
it is kept: whole runs of outputs are accumulated at once. Other axes, kept or reduced, are lists of sizes and byte
strides, innermost first. Every output is computed by one thread, in a fixed order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.kernels import mathematics
from isthmus.engine.native.kernels.base import (
    accessor,
    address,
    device,
    device_reassociated,
    generated,
    real,
    share,
    word,
)
from isthmus.engine.native.kernels.elementwise import SIZES, outer_offset, reader, writer
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.real_functions import BINARY_F64
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.reduction import COLUMNS, ROWS, RUNNING_SUM, sums_in_float32
from isthmus.engine.native.target import Target

_BLOCK = 128
"""The number of outputs that a thread accumulates together in `columns`."""

_NUMPY: dict[str, Any] = {
    **dict.fromkeys(FLOATS, np.float32), "f64": np.float64, "i8": np.int8, "i16": np.int16, "i32": np.int32,
    "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64,
}  # fmt: skip
_larger = mathematics.llvm_intrinsic("llvm.maximum.f32", 2)
_smaller = mathematics.llvm_intrinsic("llvm.minimum.f32", 2)


def _limit(kind: str, lowest: bool) -> Any:
    """Return the lowest or highest number of a kind, which a maximum or minimum starts from."""
    if kind in (*FLOATS, "f64"):
        return _NUMPY[kind](-np.inf if lowest else np.inf)
    info = np.iinfo(_NUMPY[kind])
    return _NUMPY[kind](info.min if lowest else info.max)


def _combination(name: str, kind: str) -> tuple[Callable, Any]:
    """Return the function that combines two values, and its neutral element."""
    number = _NUMPY[kind]
    if name == "sum":
        return device_reassociated(lambda a, b: a + b), number(0)
    if name == "prod":
        return device_reassociated(lambda a, b: a * b), number(1)
    if kind in FLOATS:
        return (_larger, _limit(kind, True)) if name == "max" else (_smaller, _limit(kind, False))
    if kind == "f64":
        extreme = BINARY_F64["maximum" if name == "max" else "minimum"]
        return extreme, _limit(kind, name == "max")
    if name == "max":
        return device(lambda a, b: max(a, b)), _limit(kind, True)
    return device(lambda a, b: min(a, b)), _limit(kind, False)


@generated
def rows(target: Target, variant: str) -> Any:
    """Reduce dense runs to each output. Variant: ``function_kind``. Float results are multiplied by the factor."""
    words = ROWS.place
    name, _, kind = variant.partition("_")
    combine, neutral = _combination(name, kind)
    read, write, size, is_float = reader(kind, target), writer(kind, target), SIZES[kind], kind in (*FLOATS, "f64")
    convert = _NUMPY[kind]
    in_kind = convert if is_float else f32

    @device_reassociated
    def reduce_run(x, count, total):  # type: ignore[no-untyped-def]
        for i in range(count):
            total = convert(combine(total, read(x, i)))
        return total

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        run, runs, kept, reduced = (
            word(p, words.run),
            word(p, words.runs),
            word(p, words.kept_rank),
            word(p, words.reduced_rank),
        )
        factor = in_kind(real(p, words.factor))
        # The lists of the reduced axes follow those of the kept ones.
        lists = words.kept + 2 * kept
        first, last = share(word(p, words.outputs), tid, nt)
        for out in range(first, last):
            x = address(p, b, words.x) + outer_offset(p, words.kept, kept, out, words.kept + kept)
            total = reduce_run(x, run, neutral)
            for r in range(1, runs):
                part = reduce_run(x + outer_offset(p, lists, reduced, r, lists + reduced), run, neutral)
                total = convert(combine(total, part))
            if is_float:
                total = total * factor
            write(address(p, b, words.output) + out * size, 0, total)

    return kernel


@generated
def columns(target: Target, variant: str) -> Any:
    """Reduce rows to rows of outputs. The variant is that of `rows`; see `sums_in_float32` for floats of 16 bits."""
    words = COLUMNS.place
    name, _, kind = variant.partition("_")
    combine, neutral = _combination(name, kind)
    result = "f32" if sums_in_float32(name, kind) else kind
    read, write, size, is_float = reader(kind, target), writer(result, target), SIZES[kind], kind in (*FLOATS, "f64")
    load, store, out_size = accessor("load", result, target), accessor("store", result, target), SIZES[result]
    in_kind = _NUMPY[kind] if is_float else f32

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        inner, reduced_count, kept, reduced = (
            word(p, words.inner),
            word(p, words.elements),
            word(p, words.kept_rank),
            word(p, words.reduced_rank),
        )
        factor = in_kind(real(p, words.factor))
        # The lists of the reduced axes follow those of the kept ones.
        lists = words.kept + 2 * kept
        blocks = (inner + _BLOCK - 1) // _BLOCK
        first, last = share(word(p, words.outer_outputs) * blocks, tid, nt)
        for piece in range(first, last):
            out = piece // blocks
            column = (piece - out * blocks) * _BLOCK
            count = min(_BLOCK, inner - column)
            y = address(p, b, words.output) + (out * inner + column) * out_size
            x = address(p, b, words.x) + outer_offset(p, words.kept, kept, out, words.kept + kept) + column * size
            for i in range(count):
                write(y, i, neutral)
            # Four rows at a time: the sums are loaded and stored once for all of them.
            whole = reduced_count - reduced_count % 4
            r = 0
            while r < whole:
                x0 = x + outer_offset(p, lists, reduced, r, lists + reduced)
                x1 = x + outer_offset(p, lists, reduced, r + 1, lists + reduced)
                x2 = x + outer_offset(p, lists, reduced, r + 2, lists + reduced)
                x3 = x + outer_offset(p, lists, reduced, r + 3, lists + reduced)
                for i in range(count):
                    four = combine(combine(read(x0, i), read(x1, i)), combine(read(x2, i), read(x3, i)))
                    store(y, i, combine(load(y, i), four))
                r += 4
            while r < reduced_count:
                x0 = x + outer_offset(p, lists, reduced, r, lists + reduced)
                for i in range(count):
                    store(y, i, combine(load(y, i), read(x0, i)))
                r += 1
            if is_float:
                for i in range(count):
                    store(y, i, load(y, i) * factor)

    return kernel


@generated
def running_sum(target: Target, variant: str) -> Any:
    """Compute running sums along a middle axis, of `length` elements. Variant: the kind of number.

    Each of the `inner` elements after that axis has its own sums; `exclusive` ones leave out the element itself.
    """
    words = RUNNING_SUM.place
    load, store, size = accessor("load", variant, target), accessor("store", variant, target), SIZES[variant]
    zero, convert = _NUMPY[variant](0), _NUMPY[variant]

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        length, inner, exclusive = word(p, words.length), word(p, words.inner), word(p, words.exclusive)
        first, last = share(word(p, words.outer_count) * inner, tid, nt)
        for line in range(first, last):
            outer = line // inner
            start = (outer * length * inner + line - outer * inner) * size
            step = inner * size
            if word(p, words.reverse):
                start, step = start + (length - 1) * step, -step
            x, y = address(p, b, words.x) + start, address(p, b, words.output) + start
            total = zero
            for i in range(length):
                value = load(x + i * step, 0)
                after = convert(total + value)
                store(y + i * step, 0, total if exclusive else after)
                total = after

    return kernel
