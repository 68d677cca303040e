"""Sums and products of two 8-bit tensors, one run at a time.

Row `r` of the result has `inner` elements. Each operand's row begins at an offset listed in a table and advances with
the result; the second operand may instead be one element for the whole row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.native.kernels.base import F32, I8, I32, device, generated, kernel, load_i32, share
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


def _weighted(target: Target, signed: bool, fixed: bool) -> Callable:
    """Return a micro-kernel for ``(a * fa + b * fb + bias) >> shift``, plus zero, limited.

    If `fixed`, b is one element.

    Arguments: a, b, y, count, fa, fb, bias, shift, zero, least, most, flip.
    """

    def emit(
        code: VectorCode, a: Any, b: Any, y: Any, count: Any, fa: Any, fb: Any, bias: Any, shift: Any, *result: Any
    ) -> None:
        builder = code.builder
        requantizer = Requantizer(code, *result)
        fa, fb, bias, shift = (builder.trunc(v, I32) for v in (fa, fb, bias, shift))
        if fixed:
            bias = builder.add(bias, builder.mul(_wide(code, code.load(b, I8), signed), fb))
        fas, fbs, biases, shifts = (code.splat(v) for v in (fa, fb, bias, shift))

        def body(vectors: list[list[Any]]) -> Any:
            totals = []
            for values in vectors:
                total = builder.add(builder.mul(values[0], fas), biases)
                if not fixed:
                    total = builder.add(total, builder.mul(values[1], fbs))
                totals.append(builder.ashr(total, shifts))
            return requantizer.packed(totals)

        _each_block(code, [a] if fixed else [a, b], y, count, signed, body)

    return outlined(f"weighted_{signed}_{fixed}", "i" * 12, target, emit)


def _product(target: Target, signed: bool, fixed: bool, ties: str) -> Callable:
    """Return a micro-kernel for ``rint((a - za) * (b - zb) * scale)``, plus zero, limited; products are exact in float.

    If `fixed`, b is one element.

    Arguments: a, b, y, count, za, zb, zero, least, most, flip, scale.
    """

    def emit(
        code: VectorCode,
        a: Any, b: Any, y: Any, count: Any, za: Any, zb: Any, zero: Any, least: Any, most: Any, flip: Any,
        scale: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        requantizer = Requantizer(code, zero, least, most, flip, ties)
        za, zb = (builder.trunc(v, I32) for v in (za, zb))
        zas, zbs, scales = code.splat(za), code.splat(zb), code.splat(scale)
        if fixed:
            factor = builder.sitofp(builder.sub(_wide(code, code.load(b, I8), signed), zb), F32)
            factors = code.splat(factor)

        def body(vectors: list[list[Any]]) -> Any:
            products = []
            for values in vectors:
                left = builder.sitofp(builder.sub(values[0], zas), code.floats)
                right = factors if fixed else builder.sitofp(builder.sub(values[1], zbs), code.floats)
                products.append(requantizer.rounded(builder.fmul(builder.fmul(left, right), scales)))
            return requantizer.packed(products)

        _each_block(code, [a] if fixed else [a, b], y, count, signed, body)

    return outlined(f"product_{signed}_{fixed}{ties}", "i" * 10 + "f", target, emit)


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
            count = min(inner - column, last - first)
            left, right = a + load_i32(a_offsets, row) + column, b + load_i32(b_offsets, row)
            if b_fixed != 0:
                fixed(*(left, right, y + first, count, *rest))
            else:
                along(*(left, right + column, y + first, count, *rest))
            first += count

    return walk


@generated
def add(target: Target, variant: str) -> Any:
    """Compute weighted sums in fixed point, rounded half up if `bias` holds half of the divisor.

    The variant is the type of stored elements.
    """
    walk = _walk(*(_weighted(target, variant == "s8", f) for f in (False, True)))

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
