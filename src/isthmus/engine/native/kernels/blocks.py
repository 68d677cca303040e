"""8-bit convolutions and products by blocks of 32 results in a row by 32 columns, for processors with matrix registers.

AMX has eight registers of 16 rows of 64 bytes. Four hold the sums of a block, two hold rows of inputs and two hold
weights; an instruction multiplies up to 16 rows by 16 columns over a depth of up to 64 bytes. Other targets compute the
same blocks row by row, so that programs and tests need no such processor.

A block is full if a row of results has 32 pixels. Narrow images are computed in strips of several rows: the input rows
are copied so that windows of neighbouring image rows are evenly spaced too, as if the results were one long row. The
results between two image rows are computed and not stored.

Panels are packed as for `quantized_gemm`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from isthmus.engine.native.kernels.base import I8, I16, I32, I64, kernel
from isthmus.engine.native.kernels.gemm import divide_work
from isthmus.engine.native.kernels.quantized_gemm import accumulate
from isthmus.engine.native.kernels.requantization import Requantizer, byte_mask, part
from isthmus.engine.native.kernels.segments import by_columns
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.quantized_convolution import BLOCK_ROWS, BLOCK_VECTORS, CONVOLVE_BLOCKS
from isthmus.engine.native.target import Target

# The rows of a register.
_HALF = BLOCK_ROWS // 2
# The first registers of inputs and of weights; those before them hold sums.
_INPUTS, _WEIGHTS = 4, 6
# Offsets in the configuration of matrix registers: its format, the bytes of a row of each register, and its rows.
_PALETTE, _WIDTHS, _HEIGHTS = 0, 16, 48


def _amx(code: VectorCode, name: str, *arguments: Any) -> None:
    """Emit an instruction for matrix registers; Python integers are numbers of registers."""
    values = [code.number(a, I8) if isinstance(a, int) else a for a in arguments]
    code.call(f"llvm.x86.{name}", ir.VoidType(), values)


def _configuring(target: Target) -> tuple[Callable, Callable]:
    """Return functions to call before and after micro-kernels; the first one takes the bytes of a multiplied depth."""

    def configure(code: VectorCode, depth: Any) -> None:
        if not target.has_matrix_registers:
            return
        memory = code.builder.alloca(vector_type(I8, 64))
        memory.align = 64
        start = code.builder.ptrtoint(memory, I64)
        parts = [0] * 64
        parts[_PALETTE] = 1
        for register in range(8):
            parts[_WIDTHS + 2 * register], parts[_HEIGHTS + register] = 64, _HALF
        code.store(ir.Constant(vector_type(I8, 64), parts), start)
        width = code.builder.trunc(depth, I16)
        height = code.builder.trunc(code.builder.lshr(depth, code.number(2)), I8)
        for register in range(2):
            code.store(width, code.plus(start, _WIDTHS + 2 * (_INPUTS + register)))
            code.store(height, code.plus(start, _HEIGHTS + _WEIGHTS + register))
        _amx(code, "ldtilecfg", code.pointer(start, I8))

    def release(code: VectorCode) -> None:
        if target.has_matrix_registers:
            _amx(code, "tilerelease")

    return outlined("configure", "i", target, configure), outlined("release", "", target, release)


def _multiply(
    code: VectorCode, halves: int, vectors: int, is_signed: bool, first: Any, distance: Any, offsets: Any, body: Any,
    taps: Any, groups: Any, depth: Any, sums: Any,
) -> None:  # fmt: skip
    """Emit the sums of a block of 16 or 32 rows (`halves`) by matrix registers."""
    builder = code.builder
    size = 4 * code.lanes
    row_bytes = code.number(size * vectors)
    weight_bytes = code.times(depth, code.lanes * vectors)
    cells = [(h, v) for h in range(halves) for v in range(vectors)]
    for h, v in cells:
        _amx(code, "tilezero", 2 * h + v)
    outer = code.loop(taps, [body])
    tap = code.plus(first, code.load(code.plus(offsets, code.times(outer.index, 8)), I64))
    pieces = builder.udiv(code.times(groups, 4), depth)
    inner = code.loop(pieces, [tap, outer.values[0]])
    place, weights = inner.values
    for h in range(halves):
        here = code.plus(place, code.times(distance, _HALF)) if h else place
        _amx(code, "tileloadd64", _INPUTS + h, code.pointer(here, I8), distance)
    for v in range(vectors):
        _amx(code, "tileloadd64", _WEIGHTS + v, code.pointer(weights, I8, size * v), row_bytes)
    for h, v in cells:
        _amx(code, "tdpbssd" if is_signed else "tdpbusd", 2 * h + v, _INPUTS + h, _WEIGHTS + v)
    ended = inner.end([code.plus(place, depth), code.plus(weights, weight_bytes)])
    outer.end([ended[1]])
    pitch = code.number(size * BLOCK_VECTORS)
    for h, v in cells:
        offset = h * _HALF * size * BLOCK_VECTORS + v * size
        _amx(code, "tilestored64", 2 * h + v, code.pointer(sums, I8, offset), pitch)


def _multiply_by_rows(
    code: VectorCode, vectors: int, first: Any, distance: Any, offsets: Any, body: Any, taps: Any, groups: Any,
    present: Any, sums: Any,
) -> None:  # fmt: skip
    """Emit the sums of the rows of a block that are present, for targets without matrix registers."""
    size = 4 * code.lanes
    rows = code.loop(present, [first, sums])
    row, target = rows.values
    outer = code.loop(taps, [body, *[ir.Constant(code.ints, None)] * vectors])
    tap = code.plus(row, code.load(code.plus(offsets, code.times(outer.index, 8)), I64))
    inner = code.loop(groups, [tap, *outer.values])
    place, weights, *totals = inner.values
    value = code.splat(code.load(place, I32))
    totals = [accumulate(code, total, value, code.load(weights, code.ints, v * size)) for v, total in enumerate(totals)]
    ended = inner.end([code.plus(place, 4), code.plus(weights, size * vectors), *totals])
    ended = outer.end(ended[1:])
    for v in range(vectors):
        code.store(ended[1 + v], target, v * size)
    rows.end([code.plus(row, distance), code.plus(target, size * BLOCK_VECTORS)])


def _block(target: Target, vectors: int, is_signed: bool, ties: str) -> Callable:
    """Return a micro-kernel for a block of one panel.

    Arguments: first row, bytes between rows, list of the taps' offsets, panel, result, bytes between results, rows and
    columns present, taps, groups per tap, and bytes of the depth that is multiplied at a time; then from which result
    of an image row the block begins, how many an image row has, and after how many the next one begins; then zero
    point, least, most and flip (see `Requantizer`). 16 or 32 rows are read, those that are present are stored.
    """
    lanes = target.lanes
    columns = vectors * lanes

    def emit(
        code: VectorCode, first: Any, distance: Any, offsets: Any, panel: Any, result: Any, stride: Any, present: Any,
        valid: Any, taps: Any, groups: Any, depth: Any, column: Any, width: Any, period: Any, *limits: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        memory = builder.alloca(code.ints, size=BLOCK_ROWS * BLOCK_VECTORS)
        memory.align = 64
        sums, body = builder.ptrtoint(memory, I64), code.plus(panel, 8 * columns)
        if target.has_matrix_registers:
            with builder.if_else(code.below(_HALF, present)) as branches:
                for branch, halves in zip(branches, (2, 1), strict=True):
                    with branch:
                        _multiply(
                            code, halves, vectors, is_signed, first, distance, offsets, body, taps, groups, depth, sums
                        )
        else:
            _multiply_by_rows(code, vectors, first, distance, offsets, body, taps, groups, present, sums)
        requantizer = Requantizer(code, *limits, ties)
        biases = [code.load(panel, code.ints, 4 * lanes * v) for v in range(vectors)]
        scales = [code.load(panel, code.floats, 4 * columns + 4 * lanes * v) for v in range(vectors)]
        mask = byte_mask(code, builder.select(code.below(valid, columns), valid, code.number(columns)), columns)
        # Four vectors of sums are a vector of bytes, which holds several rows.
        together = 4 // vectors
        loop = code.loop(present, [sums, result, column], step=together)
        source, place, at = loop.values
        totals = [
            builder.add(code.load(source, code.ints, 4 * lanes * (r * BLOCK_VECTORS + v)), biases[v])
            for r in range(together)
            for v in range(vectors)
        ]
        stored = requantizer.stored(totals, scales * together)
        for r in range(together):
            inside = code.below(at, width)
            with builder.if_then(builder.and_(inside, code.below(code.plus(loop.index, r), present))):
                code.masked_store(part(code, stored, r * columns, columns), place, mask)
            place = builder.select(inside, code.plus(place, stride), place)
            after = code.plus(at, 1)
            at = builder.select(builder.icmp_signed("==", after, period), code.number(0), after)
        loop.end([code.plus(source, 4 * lanes * BLOCK_VECTORS * together), place, at])

    return outlined(f"block_{vectors}{'s' if is_signed else 'u'}{ties}", "i" * 18, target, emit)


def blocks_kernel(target: Target, is_signed: bool, ties: str, stage: Callable) -> Any:
    """Return the kernel that computes strips of image rows by blocks.

    Parameters
    ----------
    is_signed
        Whether inputs are signed bytes as they are multiplied by matrix registers.
    stage
        Copies input rows (see `segments.stager`).
    """
    panel_columns = BLOCK_VECTORS * target.lanes
    multiply = by_columns([_block(target, v, is_signed, ties) for v in range(1, BLOCK_VECTORS + 1)], target.lanes)
    configure, release = _configuring(target)

    @kernel(CONVOLVE_BLOCKS)
    def execute(
        x, y, weights, offsets, work, work_bytes, rows, height, width_in, pixel, channels, out_height, out_width,
        out_pixel, columns, kernel_h, span, stride_h, stride_w, dilation_h, top, left, taps, groups, panel_bytes,
        segment, staged, pitch, distance, padding, input_zero, zero, least, most, flip, few_rows, strip, depth, tid, nt,
    ):  # fmt: skip
        own_work = work + tid * work_bytes
        strips, segments = (out_height + strip - 1) // strip, (out_width + segment - 1) // segment
        units = (rows + out_height - 1) // out_height * strips * segments
        panels = (columns + panel_columns - 1) // panel_columns
        first_unit, last_unit, first_panel, last_panel = divide_work(units, panels, few_rows, tid, nt)
        if first_unit == last_unit or first_panel == last_panel:
            return
        configure(depth)
        # A unit is a strip, or a segment of an image row.
        for unit in range(first_unit, last_unit):
            line = unit // segments
            begin = (unit - line * segments) * segment
            width = min(segment, out_width - begin)
            n = line // strips
            row = (line - n * strips) * strip
            tall = min(strip, out_height - row, rows - n * out_height - row)
            image = x + n * height * width_in * pixel
            first_row, first_column = row * stride_h - top, begin * stride_w - left
            source = own_work
            if staged != 0:
                windows = height, width_in, pixel, channels, staged, pitch, stride_w, span, tall, stride_h
                for i in range(kernel_h):
                    here = own_work + i * strip * pitch
                    stage(windows, image, here, first_row + i * dilation_h, first_column, width, padding, input_zero)
            else:
                source = image + (first_row * width_in + first_column) * pixel
            # Where image rows follow each other, and how many results there are up to the last one.
            period = pitch // distance if strip > 1 else width
            count = (tall - 1) * period + width
            result = y + ((n * out_height + row) * out_width + begin) * out_pixel
            for panel in range(first_panel, last_panel):
                first_column = panel * panel_columns
                packed = weights + panel * panel_bytes
                done = 0
                while done < count:
                    present = min(BLOCK_ROWS, count - done)
                    if staged == 0 and present < BLOCK_ROWS:
                        # There are no rows after the last: repeat some before it.
                        done, present = count - BLOCK_ROWS, BLOCK_ROWS
                    across = done // period if strip > 1 else 0
                    at = done - across * period
                    place = result + (across * out_width + min(at, width)) * out_pixel + first_column
                    multiply(columns - first_column, (
                        source + done * distance, distance, offsets, packed, place, out_pixel, present,
                        columns - first_column, taps, groups, depth, at, width, period, zero, least, most, flip,
                    ))  # fmt: skip
                    done += BLOCK_ROWS
        release()

    return execute
