"""Sums and products of two 8-bit tensors, one run at a time.

Row `r` of the result has `inner` elements. Each operand's row begins at an offset listed in a table and advances with
the result; the second operand may instead be one element for the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels.base import F32, I8, I32, I64, device, generated, kernel, share
from isthmus.engine.native.kernels.requantization import Requantizer, byte_mask, part
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.quantized_binary import ADD, MULTIPLY
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target


def _wide(code: VectorCode, value: Any, signed: bool) -> Any:
    """Widen bytes, one or a vector of them, to 32-bit integers."""
    kind = vector_type(I32, value.type.count) if hasattr(value.type, "count") else I32
    return code.builder.sext(value, kind) if signed else code.builder.zext(value, kind)


def _each_block(code: VectorCode, sources: list[Any], y: Any, count: Any, signed: bool, body: Callable) -> None:
    """Emit `body` for blocks of four vectors of 32-bit integers from each source; store the bytes that it returns.

    `body` gets four lists, each with a vector from every source.
    """
    builder, lanes = code.builder, code.lanes
    block, kind = 4 * lanes, vector_type(I8, lanes)
    whole = builder.and_(count, code.number(-block))
    with builder.if_then(code.below(0, whole)):
        loop = code.loop(whole, step=block)
        starts = [code.plus(source, loop.index) for source in sources]
        vectors = [[_wide(code, code.load(s, kind, lanes * k), signed) for s in starts] for k in range(4)]
        code.store(body(vectors), code.plus(y, loop.index))
        loop.end()
    with builder.if_then(code.below(whole, count)):
        mask = byte_mask(code, builder.sub(count, whole), block)
        rests = [code.masked_load(code.plus(s, whole), mask, vector_type(I8, block)) for s in sources]
        vectors = [[_wide(code, part(code, r, lanes * k, lanes), signed) for r in rests] for k in range(4)]
        code.masked_store(body(vectors), code.plus(y, whole), mask)


def _each_run(code: VectorCode, a: Any, b: Any, y: Any, runs: Any, offsets: Any, emit: Callable) -> None:
    """Emit a loop over runs with `emit`, which gets the addresses of both operands and of the result.

    `offsets` are the addresses of the operands' offsets, and the elements of a run.
    """
    a_offsets, b_offsets, count = offsets
    loop = code.loop(runs, [y])
    left, right = (
        code.plus(start, code.builder.sext(code.load(code.plus(table, code.times(loop.index, 4)), I32), I64))
        for start, table in ((a, a_offsets), (b, b_offsets))
    )
    emit(left, right, loop.values[0])
    loop.end([code.plus(loop.values[0], count)])


def _weighted_sum(target: Target, signed: bool, fixed: bool) -> Callable:
    """Return a micro-kernel for ``(a * fa + b * fb + bias) >> shift``, plus the zero point, limited.

    If `fixed`, b is one element.

    Arguments: a, b, y, the runs, the addresses of the runs' offsets in a and in b, the elements of a run; fa, fb, bias,
    shift; then, for `Requantizer`, the zero point, the limits least and most, and flip (0x80 if the sign bits of
    results are flipped, else 0).
    """

    def emit(
        code: VectorCode, a: Any, b: Any, y: Any, runs: Any, a_offsets: Any, b_offsets: Any, count: Any, fa: Any,
        fb: Any, bias: Any, shift: Any, *result: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        requantizer = Requantizer(code, *result)
        fa, fb, bias, shift = (builder.trunc(v, I32) for v in (fa, fb, bias, shift))
        fas, fbs, shifts = (code.splat(v) for v in (fa, fb, shift))

        def run(left: Any, right: Any, goal: Any) -> None:
            constant = builder.mul(_wide(code, code.load(right, I8), signed), fb) if fixed else code.number(0, I32)
            biases = code.splat(builder.add(bias, constant))

            def body(vectors: list[list[Any]]) -> Any:
                totals = []
                for values in vectors:
                    total = builder.add(builder.mul(values[0], fas), biases)
                    if not fixed:
                        total = builder.add(total, builder.mul(values[1], fbs))
                    totals.append(builder.ashr(total, shifts))
                return requantizer.packed(totals)

            _each_block(code, [left] if fixed else [left, right], goal, count, signed, body)

        _each_run(code, a, b, y, runs, (a_offsets, b_offsets, count), run)

    return outlined(f"weighted_{signed}_{fixed}", "i" * 15, target, emit)


def _product(target: Target, signed: bool, fixed: bool, ties: str) -> Callable:
    """Return a micro-kernel for ``rint((a - za) * (b - zb) * scale)``, plus zero, limited; products are exact in float.

    If `fixed`, b is one element.

    Arguments: those of `_weighted_sum` up to the elements of a run; za, zb, zero, least, most, flip, scale.
    """

    def emit(
        code: VectorCode,
        a: Any, b: Any, y: Any, runs: Any, a_offsets: Any, b_offsets: Any, count: Any, za: Any, zb: Any, zero: Any,
        least: Any, most: Any, flip: Any, scale: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        requantizer = Requantizer(code, zero, least, most, flip, ties)
        za, zb = (builder.trunc(v, I32) for v in (za, zb))
        zas, zbs, scales = code.splat(za), code.splat(zb), code.splat(scale)

        def run(left: Any, right: Any, goal: Any) -> None:
            one = builder.sub(_wide(code, code.load(right, I8), signed), zb) if fixed else zb
            factors = code.splat(builder.sitofp(one, F32))

            def body(vectors: list[list[Any]]) -> Any:
                products = []
                for values in vectors:
                    first = builder.sitofp(builder.sub(values[0], zas), code.floats)
                    second = factors if fixed else builder.sitofp(builder.sub(values[1], zbs), code.floats)
                    products.append(requantizer.rounded(builder.fmul(builder.fmul(first, second), scales)))
                return requantizer.packed(products)

            _each_block(code, [left] if fixed else [left, right], goal, count, signed, body)

        _each_run(code, a, b, y, runs, (a_offsets, b_offsets, count), run)

    return outlined(f"product_{signed}_{fixed}{ties}", "i" * 13 + "f", target, emit)


def _walk(along: Callable, fixed: Callable) -> Any:
    """Return the loop over a thread's runs, with the micro-kernels for a second operand that advances or is fixed.

    `rest` are their arguments after the operands, the result and the number of elements.
    """

    @device
    def walk(a, b, y, rows, inner, a_offsets, b_offsets, b_fixed, rest, tid, nt):
        first, last = share(rows * inner, tid, nt)
        while first < last:
            row = first // inner
            column = first - row * inner
            # Whole rows at once; a thread's first and last row may be a part.
            count = min(inner - column, last - first)
            runs = (last - first) // inner if column == 0 and count == inner else 1
            tables = a_offsets + 4 * row, b_offsets + 4 * row
            if b_fixed != 0:
                fixed(*(a + column, b, y + first, runs, *tables, count, *rest))
            else:
                along(*(a + column, b + column, y + first, runs, *tables, count, *rest))
            first += runs * count

    return walk


@generated
def add(target: Target, variant: str) -> Any:
    """Compute weighted sums in fixed point, rounded half up if `bias` holds half of the divisor.

    The variant is the type of stored elements.
    """
    walk = _walk(*(_weighted_sum(target, variant == "s8", f) for f in (False, True)))

    @kernel(ADD)
    def execute(
        a, b, y, rows, inner, a_offsets, b_offsets, b_fixed, zero, least, most, flip, a_factor, b_factor, bias, shift,
        tid, nt,
    ):  # fmt: skip
        rest = a_factor, b_factor, bias, shift, zero, least, most, flip
        walk(a, b, y, rows, inner, a_offsets, b_offsets, b_fixed, rest, tid, nt)

    return execute


@generated
def multiply(target: Target, variant: str) -> Any:
    """Multiply, scale in float and round. The variant is the type of stored elements and how halves are rounded."""
    kind, ties = without_ties(variant)
    walk = _walk(*(_product(target, kind == "s8", f, ties) for f in (False, True)))

    @kernel(MULTIPLY)
    def execute(
        a, b, y, rows, inner, a_offsets, b_offsets, b_fixed, zero, least, most, flip, a_zero, b_zero, scale, tid, nt
    ):
        rest = a_zero, b_zero, zero, least, most, flip, scale
        walk(a, b, y, rows, inner, a_offsets, b_offsets, b_fixed, rest, tid, nt)

    return execute
