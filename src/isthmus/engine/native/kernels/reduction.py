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
from isthmus.engine.native.kernels.base import accessor, device, device_reassociated, generated, kernel, share
from isthmus.engine.native.kernels.elementwise import outer_offset
from isthmus.engine.native.kernels.mathematics import f32
from isthmus.engine.native.kernels.real_functions import BINARY_F64
from isthmus.engine.native.kernels.storage import SIZES, reader, writer
from isthmus.engine.native.signatures.elementwise import FLOATS
from isthmus.engine.native.signatures.reduction import COLUMNS, ROWS, RUNNING_SUM, sums_in_float32
from isthmus.engine.native.target import Target

# The number of outputs that a thread accumulates together in `columns`.
_BLOCK = 128

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

    @kernel(ROWS)
    def execute(
        output, x, outputs, run, runs, factor, kept_rank, reduced_rank, kept, kept_strides, reduced, reduced_strides,
        tid, nt,
    ):  # fmt: skip
        factor = in_kind(factor)
        first, last = share(outputs, tid, nt)
        for out in range(first, last):
            source = x + outer_offset(kept, kept_rank, out, kept_strides)
            total = reduce_run(source, run, neutral)
            for r in range(1, runs):
                part = reduce_run(source + outer_offset(reduced, reduced_rank, r, reduced_strides), run, neutral)
                total = convert(combine(total, part))
            if is_float:
                total = total * factor
            write(output + out * size, 0, total)

    return execute


@generated
def columns(target: Target, variant: str) -> Any:
    """Reduce rows to rows of outputs. The variant is that of `rows`; see `sums_in_float32` for floats of 16 bits."""
    name, _, kind = variant.partition("_")
    combine, neutral = _combination(name, kind)
    result = "f32" if sums_in_float32(name, kind) else kind
    read, write, size, is_float = reader(kind, target), writer(result, target), SIZES[kind], kind in (*FLOATS, "f64")
    load, store, out_size = accessor("load", result, target), accessor("store", result, target), SIZES[result]
    in_kind = _NUMPY[kind] if is_float else f32

    @kernel(COLUMNS)
    def execute(
        output, x, outer_outputs, inner, elements, goes_on, factor, kept_rank, reduced_rank, kept, kept_strides,
        reduced, reduced_strides, tid, nt,
    ):  # fmt: skip
        factor = in_kind(factor)
        blocks = (inner + _BLOCK - 1) // _BLOCK
        first, last = share(outer_outputs * blocks, tid, nt)
        for piece in range(first, last):
            out = piece // blocks
            column = (piece - out * blocks) * _BLOCK
            count = min(_BLOCK, inner - column)
            y = output + (out * inner + column) * out_size
            source = x + outer_offset(kept, kept_rank, out, kept_strides) + column * size
            if not goes_on:
                for i in range(count):
                    write(y, i, neutral)
            # Four rows at a time: the sums are loaded and stored once for all of them.
            whole = elements - elements % 4
            r = 0
            while r < whole:
                x0 = source + outer_offset(reduced, reduced_rank, r, reduced_strides)
                x1 = source + outer_offset(reduced, reduced_rank, r + 1, reduced_strides)
                x2 = source + outer_offset(reduced, reduced_rank, r + 2, reduced_strides)
                x3 = source + outer_offset(reduced, reduced_rank, r + 3, reduced_strides)
                for i in range(count):
                    four = combine(combine(read(x0, i), read(x1, i)), combine(read(x2, i), read(x3, i)))
                    store(y, i, combine(load(y, i), four))
                r += 4
            while r < elements:
                x0 = source + outer_offset(reduced, reduced_rank, r, reduced_strides)
                for i in range(count):
                    store(y, i, combine(load(y, i), read(x0, i)))
                r += 1
            if is_float:
                for i in range(count):
                    store(y, i, load(y, i) * factor)

    return execute


@generated
def running_sum(target: Target, variant: str) -> Any:
    """Compute running sums along a middle axis, of `length` elements. Variant: the kind of number.

    Each of the `inner` elements after that axis has its own sums; `exclusive` ones leave out the element itself.
    """
    load, store, size = accessor("load", variant, target), accessor("store", variant, target), SIZES[variant]
    zero, convert = _NUMPY[variant](0), _NUMPY[variant]

    @kernel(RUNNING_SUM)
    def execute(output, x, outer_count, length, inner, exclusive, reverse, tid, nt):
        first, last = share(outer_count * inner, tid, nt)
        for line in range(first, last):
            outer = line // inner
            start = (outer * length * inner + line - outer * inner) * size
            step = inner * size
            if reverse:
                start, step = start + (length - 1) * step, -step
            source, y = x + start, output + start
            total = zero
            for i in range(length):
                value = load(source + i * step, 0)
                after = convert(total + value)
                store(y + i * step, 0, total if exclusive else after)
                total = after

    return execute
