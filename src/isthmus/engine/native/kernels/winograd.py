"""Winograd's transforms for convolutions of 3 x 3 pixels: `scatter` before and `gather` after products of matrices.

A square of the input becomes as many numbers for each channel as it has pixels, each in a matrix of its own. The
matrices are multiplied by transformed weights, and `gather` makes pixels of the products.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import I64, device, generated, kernel, share, store_i64
from isthmus.engine.native.kernels.vector import VectorCode, outlined
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.signatures.winograd import GATHER, POINTS, SCATTER
from isthmus.engine.native.target import Target


def _sum(code: VectorCode, terms: Sequence[tuple[float, Any]]) -> Any:
    """Return the sum of factors times vectors; the first factor is 1."""
    (_, total), *rest = terms
    for factor, value in rest:
        if factor == 1:
            total = code.builder.fadd(total, value)
        elif factor == -1:
            total = code.builder.fsub(total, value)
        else:
            total = code.fma(code.constant(factor), value, total)
    return total


def _scattered(code: VectorCode, m: int, d: list[Any]) -> list[Any]:
    """Return a row of the input's transform: its polynomial, reduced modulo each of the points.

    A pair of points p and -p has the even powers in common; the odd ones differ in their signs.
    """
    builder, points = code.builder, POINTS[m]
    if m == 2:
        even, odd = d[2], d[1]
        pairs = [builder.fadd(even, odd), builder.fsub(even, odd)]
        return [builder.fsub(d[2], d[0]), *pairs, builder.fsub(d[3], d[1])]
    p, q = points
    total, product = p * p + q * q, (p * q) ** 2
    result = [_sum(code, [(1, d[4]), (-total, d[2]), (product, d[0])])]
    for own, other in ((p, q), (q, p)):
        even = _sum(code, [(1, d[4]), (-other * other, d[2])])
        odd = _sum(code, [(1, d[3]), (-other * other, d[1])])
        factor = code.constant(own)
        result += [code.fma(factor, odd, even), code.fma(code.constant(-own), odd, even)]
    return [*result, _sum(code, [(1, d[5]), (-total, d[3]), (product, d[1])])]


def _gathered(code: VectorCode, m: int, values: list[Any]) -> list[Any]:
    """Return a row of the result: the coefficients of the polynomial that has these values at the points."""
    builder, points = code.builder, POINTS[m]
    pairs = [(values[1 + 2 * i], values[2 + 2 * i]) for i in range(len(points))]
    sums, differences = [builder.fadd(a, b) for a, b in pairs], [builder.fsub(a, b) for a, b in pairs]
    result = []
    for power in range(m):
        terms = [(point**power, part) for point, part in zip(points, differences if power % 2 else sums, strict=True)]
        if power == 0:
            terms = [(1, values[0]), *terms]
        elif power == m - 1:
            terms = [(1, values[-1]), *terms]
        elif terms[0][0] != 1:
            terms[0] = 1, builder.fmul(code.constant(terms[0][0]), terms[0][1])
        result.append(_sum(code, terms))
    return result


def _transposed(grid: list[list[Any]]) -> list[list[Any]]:
    return [list(row) for row in zip(*grid, strict=True)]


def _vectors(code: VectorCode, count: Any, body: Callable[[Any], None]) -> None:
    """Emit a loop over the first elements of vectors that cover `count` ones; the last one may overlap another."""
    lanes = code.lanes
    last = code.builder.sub(count, code.number(lanes))
    loop = code.loop(count, step=lanes)
    index = code.builder.select(code.below(last, loop.index), last, loop.index)
    body(index)
    loop.end()


def _input_transform(target: Target, m: int, kind: str) -> Callable:
    """Return a micro-kernel that transforms a square of all channels, elements of a kind: f32, f16 or bf16.

    Arguments: the list of its pixels' addresses, goal of the first number, bytes between numbers, channels.
    """
    side = m + 2

    def emit(code: VectorCode, addresses: Any, goal: Any, plane: Any, channels: Any) -> None:
        def vector(index: Any) -> None:
            offset = code.times(index, SIZES[kind])

            def pixel(i: int, j: int) -> Any:
                return code.load_as(kind, code.plus(code.load(addresses, I64, 8 * (i * side + j)), offset))

            columns = [_scattered(code, m, [pixel(i, j) for i in range(side)]) for j in range(side)]
            place = code.plus(goal, code.times(index, 4))
            for row in _transposed(columns):
                for value in _scattered(code, m, row):
                    code.store(value, place)
                    place = code.plus(place, plane)

        _vectors(code, channels, vector)

    return outlined(f"scatter_{m}_{kind}", "iiii", target, emit)


def _output_transform(target: Target, m: int, kind: str) -> Callable:
    """Return a micro-kernel that makes the pixels of a square, elements of a kind, with bias and limits.

    Arguments: the list of the pixels' addresses, the first product, bytes between products, bias, columns, least, most.
    """
    side = m + 2

    def emit(
        code: VectorCode, addresses: Any, sums: Any, plane: Any, bias: Any, columns: Any, least: Any, most: Any
    ) -> None:
        low, high = code.splat(least), code.splat(most)

        def vector(index: Any) -> None:
            offset = code.times(index, 4)
            place = code.plus(sums, offset)
            rows = []
            for _ in range(side):
                row = []
                for _ in range(side):
                    row.append(code.load(place))
                    place = code.plus(place, plane)
                rows.append(_gathered(code, m, row))
            start = code.load(code.plus(bias, offset))
            pixels = _transposed([_gathered(code, m, column) for column in _transposed(rows)])
            for number, value in enumerate(value for row in pixels for value in row):
                address = code.plus(code.load(addresses, I64, 8 * number), code.times(index, SIZES[kind]))
                code.store_as(kind, code.clamp(code.builder.fadd(value, start), low, high), address)

        _vectors(code, columns, vector)

    return outlined(f"gather_{m}_{kind}", "iiiiiff", target, emit)


def _form(target: Target, variant: str, transform: Callable[[Target, int, str], Callable]) -> tuple[int, int, Any]:
    """Return the side of a square and the size of an element of a variant, and a function that calls a transform.

    Its arguments are whether elements of 16 bits are BFLOAT_16, and a tuple of those of the transform.
    """
    side, _, halves = variant.partition("_")
    m = int(side)
    if not halves:
        single = transform(target, m, "f32")
        return m, 4, device(lambda _, arguments: single(*arguments))
    half, brain_half = transform(target, m, "f16"), transform(target, m, "bf16")

    @device
    def call(brain, arguments):
        if brain != 0:
            brain_half(*arguments)
        else:
            half(*arguments)

    return m, 2, call


@generated
def scatter(target: Target, variant: str) -> Any:
    """Transform squares of the input; the variant is the side of a square of the result, and the size of elements."""
    m, item, transform = _form(target, variant, _input_transform)
    side = m + 2

    @kernel(SCATTER)
    def execute(
        x, goal, zeros, work, work_bytes, brain, down, across, first, squares, rows, plane, height, width, channels,
        top, left, tid, nt,
    ):  # fmt: skip
        addresses = work + tid * work_bytes
        begin, end = share(squares, tid, nt)
        for square in range(begin, end):
            number = first + square
            image = number // (down * across)
            y = (number // across) % down * m - top
            z = number % across * m - left
            for i in range(side):
                for j in range(side):
                    pixel = zeros
                    if 0 <= y + i < height and 0 <= z + j < width:
                        pixel = x + ((image * height + y + i) * width + z + j) * channels * item
                    store_i64(addresses, i * side + j, pixel)
            place = goal + square // rows * side * side * plane + square % rows * channels * 4
            transform(brain, (addresses, place, plane, channels))

    return execute


@generated
def gather(target: Target, variant: str) -> Any:
    """Make pixels of products; the variant is that of `scatter`."""
    m, item, transform = _form(target, variant, _output_transform)
    square_size = (m + 2) * (m + 2)

    @kernel(GATHER)
    def execute(
        sums, bias, result, work, work_bytes, brain, down, across, first, squares, rows, plane, height, width, columns,
        least: np.float32, most: np.float32, tid, nt,
    ):  # fmt: skip
        addresses = work + tid * work_bytes
        begin, end = share(squares, tid, nt)
        for square in range(begin, end):
            number = first + square
            image = number // (down * across)
            y = (number // across) % down * m
            z = number % across * m
            for i in range(m):
                for j in range(m):
                    # Pixels outside the result are written behind the list.
                    pixel = addresses + m * m * 8
                    if y + i < height and z + j < width:
                        pixel = result + ((image * height + y + i) * width + z + j) * columns * item
                    store_i64(addresses, i * m + j, pixel)
            place = sums + square // rows * square_size * plane + square % rows * columns * 4
            transform(brain, (addresses, place, plane, bias, columns, least, most))

    return execute
