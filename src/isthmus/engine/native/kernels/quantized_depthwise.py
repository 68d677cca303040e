"""8-bit depthwise convolution: four input rows (two without a four-way dot product) are multiplied in one instruction.

A block of channels of the rows under some output rows is first copied into work space, with padding. There, the bytes
of one channel and column from those rows are adjacent: a group. A dot product of groups with groups of weights then
covers a column of the kernel. Zero weights at either end let the same groups serve several output rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llvmlite import ir

from isthmus.engine.native.kernels.base import I8, I16, I32, I64, device, generated, kernel, load_i64, share
from isthmus.engine.native.kernels.nibbles import NibbleForm
from isthmus.engine.native.kernels.quantized_gemm import accumulate
from isthmus.engine.native.kernels.requantization import Requantizer, byte_mask, store_rows
from isthmus.engine.native.kernels.vector import VectorCode, outlined, vector_type
from isthmus.engine.native.signatures.quantized_depthwise import CONVOLVE, block_kinds
from isthmus.engine.native.signatures.rounding import without_ties
from isthmus.engine.native.target import Target


def _unpack(code: VectorCode, left: Any, right: Any, bits: int, high: bool) -> Any:
    """Interleave elements of both vectors, from the low or the high half of each 128 bits."""
    builder, count = code.builder, 4 * code.lanes * 8 // bits
    kind = vector_type(I8 if bits == 8 else I16, count)
    half = 64 // bits
    order = []
    for lane in range(0, count, 2 * half):
        for i in range(half):
            place = lane + i + (half if high else 0)
            order += [place, place + count]
    left, right = builder.bitcast(left, kind), builder.bitcast(right, kind)
    return builder.shuffle_vector(left, right, ir.Constant(vector_type(I32, count), order))


def _stage(target: Target, masked: bool) -> Callable:
    """Return a micro-kernel that copies columns of four rows (two, for pairs) into groups.

    Arguments: for each of four rows, its first column and the bytes to the next; columns; work space; the byte that
    flips input; channels present.
    """
    pairs = target.dot == "none"

    def emit(code: VectorCode, *arguments: Any) -> None:
        builder = code.builder
        rows, steps, (count, place, flip, present) = arguments[:8:2], arguments[1:8:2], arguments[8:]
        kind = vector_type(I8, 4 * code.lanes)
        flips = code.splat(builder.trunc(flip, I8), 4 * code.lanes)
        mask = byte_mask(code, present, 4 * code.lanes) if masked else None
        loop = code.loop(count, [place, *rows])
        place, *sources = loop.values

        def load(source: Any) -> Any:
            """Load a column of one row, with its sign bits flipped if the input needs that."""
            value = code.load(source, kind) if mask is None else code.masked_load(source, mask, kind)
            return builder.xor(value, flips)

        zero = ir.Constant(kind, None)
        if pairs:
            first, second = load(sources[0]), load(sources[1])
            values = [first, zero, second, zero]
        else:
            values = [load(source) for source in sources]
        # Interleaving bytes of rows in pairs, then pairs of bytes, makes groups of four.
        offset = 0
        for high in (False, True):
            upper = _unpack(code, values[0], values[1], 8, high)
            lower = _unpack(code, values[2], values[3], 8, high)
            for second_half in (False, True):
                code.store(_unpack(code, upper, lower, 16, second_half), place, offset)
                offset += 4 * code.lanes
        loop.end([code.plus(place, offset), *(code.plus(s, d) for s, d in zip(sources, steps, strict=True))])

    return outlined(f"depthwise_stage_{target.lanes}_{masked}", "i" * 12, target, emit)


def _tile(target: Target, outputs: int, masked: bool, form: NibbleForm | None, ties: str) -> Callable:
    """Return a micro-kernel that computes neighbouring results of a row for one block of channels.

    `form` is that of 4-bit weights: a word has one weight of each of several vectors of channels.

    Arguments: groups under the first result, bytes to those of the next, columns of the steps, steps, bias and scales,
    weights, result, bytes between results, results present, channels present, zero, least, most, flip.
    """
    lanes = target.lanes
    vector, column = 4 * lanes, 16 * lanes

    def emit(
        code: VectorCode, groups: Any, distance: Any, offsets: Any, steps: Any, head: Any, weights: Any, result: Any,
        stride: Any, present: Any, valid: Any, zero: Any, least: Any, most: Any, flip: Any,
    ) -> None:  # fmt: skip
        sums = [code.load(head, code.ints, vector * k) for k in range(4)] * outputs
        loop = code.loop(steps, [weights, *sums])
        here, totals = loop.values[0], list(loop.values[1:])
        offset = code.load(code.plus(offsets, code.times(loop.index, 8)), I64)
        source = code.plus(groups, code.times(offset, column))
        each = 1 if form is None else form.groups
        factors = [code.load(here, code.ints, vector * (k // each)) for k in range(4)]
        if form is not None:
            factors = [form.unpacked(code, words, k % each, None) for k, words in enumerate(factors)]
        for output in range(outputs):
            for k in range(4):
                value = code.load(source, code.ints, vector * k)
                totals[4 * output + k] = accumulate(code, totals[4 * output + k], value, factors[k])
            source = code.plus(source, distance)
        totals = loop.end([code.plus(here, column // each), *totals])[1:]
        scales = [code.load(head, code.floats, column + vector * k) for k in range(4)]
        requantizer = Requantizer(code, zero, least, most, flip, ties)
        stored = [requantizer.stored(totals[i : i + 4], scales, interleaved=True) for i in range(0, len(totals), 4)]
        places = [result]
        for _ in range(1, outputs):
            places.append(code.plus(places[-1], stride))
        store_rows(code, stored, places, 4 * lanes, present, valid if masked else code.number(4 * lanes))

    return outlined(f"depthwise_tile_{lanes}_{masked}{ties}", "i" * 14, target, emit)


def _by_kind(functions: list[Callable], arity: int) -> Any:
    """Return a function that calls one of the functions, selected by its first argument; all have `arity` others."""
    names = ", ".join(f"a{i}" for i in range(arity))
    lines = [f"def call(kind, {names}):"]
    for kind in range(len(functions)):
        lines += [f"    if kind == {kind}:", f"        return f{kind}({names})"]
    scope: dict[str, Any] = {f"f{kind}": function for kind, function in enumerate(functions)}
    exec("\n".join(lines), scope)
    return device(scope["call"])


@generated
def convolve(target: Target, variant: str) -> Any:
    """Convolve depth-wise with one filter for each channel. Variant: the form of 4-bit weights, and how halves are
    rounded.
    """
    name, ties = without_ties(variant)
    form = NibbleForm(2 if name == "nibbles_bytes" else 4, False) if name else None
    widths = block_kinds(target.lanes)
    # A block of `width` channels is one vector of bytes. The last kind has fewer channels, so it needs masks.
    narrowed = [replace(target, vector_bytes=width) for width in (*widths, widths[-1])]
    flags = [False] * len(widths) + [True]
    outputs = 4 if target.vector_bytes == 64 or not target.triple.startswith("x86_64") else 2
    stage = _by_kind([_stage(t, m) for t, m in zip(narrowed, flags, strict=True)], 12)
    tile = _by_kind([_tile(t, outputs, m, form, ties) for t, m in zip(narrowed, flags, strict=True)], 14)
    group_rows = 2 if target.dot == "none" else 4
    first_width = widths[0]
    last_kind = len(widths) - 1
    word_groups = 1 if form is None else form.groups

    @device
    def stage_rows(windows, image, blank, work, kind, column_bytes, row, left, count, valid):
        """Copy the groups under `count` results.

        `windows` has the words about windows, `image` is the address of the block's first channel; the first window
        begins at (row, left). `valid` is the number of channels present. Rows and columns outside the image come from
        `blank`.
        """
        height, width, channels, needed_rows, dilation, flip, stride, span, row_groups, pitch = windows
        needed = (count - 1) * stride + span
        before = min(max(-left, 0), needed)
        inside = max(min(width, left + needed) - max(left, 0), 0)
        after = needed - before - inside
        for g in range(row_groups):
            place = work + g * pitch * column_bytes
            # The rows of the group, and the bytes from one column of each to the next.
            a0, a1, a2, a3 = blank, blank, blank, blank
            s0, s1, s2, s3 = 0, 0, 0, 0
            for i in range(group_rows):
                index = g * group_rows + i
                h = row + index * dilation
                if index < needed_rows and h >= 0 and h < height:
                    source = image + (h * width + max(left, 0)) * channels
                    if i == 0:
                        a0, s0 = source, channels
                    elif i == 1:
                        a1, s1 = source, channels
                    elif i == 2:
                        a2, s2 = source, channels
                    else:
                        a3, s3 = source, channels
            if before > 0:
                stage(kind, blank, 0, blank, 0, blank, 0, blank, 0, before, place, flip, valid)
            if inside > 0:
                stage(kind, a0, s0, a1, s1, a2, s2, a3, s3, inside, place + before * column_bytes, flip, valid)
            if after > 0:
                place += (before + inside) * column_bytes
                stage(kind, blank, 0, blank, 0, blank, 0, blank, 0, after, place, flip, valid)

    @kernel(CONVOLVE)
    def execute(
        x, y, weights, blocks, offsets, blank, work, work_bytes, batch, height, width, channels, out_height, out_width,
        together, stride_h, stride_w, top, left, segment, steps, block_count, zero, least, most, flip, needed_rows,
        dilation_h, input_flip, span, row_groups, pitch, tid, nt,
    ):  # fmt: skip
        work = work + tid * work_bytes
        windows = (
            height, width, channels, needed_rows, dilation_h, input_flip, stride_w, span, row_groups, pitch
        )  # fmt: skip
        bands, segments = (out_height + together - 1) // together, (out_width + segment - 1) // segment
        first, last = share(batch * bands * segments * block_count, tid, nt)
        # A unit is one block of channels of one segment of one band: output rows that share groups.
        for unit in range(first, last):
            block, rest = unit % block_count, unit // block_count
            begin, rest = rest % segments * segment, rest // segments
            band, n = rest % bands * together, rest // bands
            start, kind = load_i64(blocks, 3 * block), load_i64(blocks, 3 * block + 1)
            head = weights + load_i64(blocks, 3 * block + 2)
            column_bytes = (4 * first_width) >> min(kind, last_kind)
            valid = min(channels - start, column_bytes >> 2)
            count = min(segment, out_width - begin)
            image = x + n * height * width * channels + start
            row = band * stride_h - top
            first_column = begin * stride_w - left
            stage_rows(windows, image, blank, work, kind, column_bytes, row, first_column, count, valid)
            distance = stride_w * column_bytes
            for u in range(min(together, out_height - band)):
                factors = head + 2 * column_bytes + u * steps * (column_bytes // word_groups)
                result = y + ((n * out_height + band + u) * out_width + begin) * channels + start
                done = 0
                while done < count:
                    # A tile also computes the missing results. A single one is computed again in their place.
                    tile(
                        kind, work + done * distance, distance if count > 1 else 0, offsets, steps, head, factors,
                        result + done * channels, channels, min(outputs, count - done), valid, zero, least, most, flip,
                    )  # fmt: skip
                    done += outputs

    return execute
