"""8-bit depthwise convolution: four input rows (two without a four-way dot product) are multiplied in one instruction.

A block of channels of the rows under some output rows is first copied into work space, padding included, with the bytes
of one channel and column from those rows side by side: a group. A dot product of groups with groups of weights then
covers a column of the kernel. Weights of 0 at either end let the same groups serve several output rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llvmlite import ir

from isthmus.engine.native.kernels.base import I8, I16, I32, I64, address, device, generated, load_i64, share, word
from isthmus.engine.native.kernels.quantized_gemm import accumulate
from isthmus.engine.native.kernels.requantization import Requantizer, byte_mask, store_rows
from isthmus.engine.native.kernels.vector import Code, outlined, vector_type
from isthmus.engine.native.target import Target

WORDS = (
    "x", "y", "weights", "blocks", "offsets", "blank", "work", "work_bytes",
    "batch", "height", "width", "channels", "out_height", "out_width",
    "together", "row_groups", "needed_rows", "stride_h", "stride_w", "dilation_h", "top", "left", "span",
    "segment", "pitch", "steps", "block_count", "input_flip", "zero", "least", "most", "flip",
)  # fmt: skip
"""The words of the instruction, in order.

blocks: i64 triples for each block of channels: its first channel, its kind (see `block_kinds`), where its weights
begin. offsets: i64 for each step, the column of its groups. blank: bytes that mean 0. together: output rows that share
groups. row_groups: groups above each other. needed_rows: input rows under those output rows. span: input columns under
a result. segment: results of a row computed together. pitch: columns of work space for a row of groups. steps: dot
products for a result. input_flip: flips the sign bit of input bytes. zero, least, most, flip: of the result, see
`requantization`.

A block's weights are: bias i32, scale f32, then for each of the rows together, for each step, four bytes a channel.
"""
_AT = {name: index for index, name in enumerate(WORDS)}


def block_kinds(lanes: int) -> tuple[int, ...]:
    """The widths of blocks of channels, by kind. There is one kind more, for fewer channels than the narrowest."""
    return tuple(4 * n for n in (16, 8, 4) if n <= lanes)


def _unpacked(code: Code, left: Any, right: Any, bits: int, high: bool) -> Any:
    """Elements of both vectors in turn, from the low or the high half of each 128 bits."""
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
    """Copy columns of four rows (two, for pairs) into groups.

    Arguments: for each of four rows its first column and the bytes to the next; columns; work space; the byte that
    flips input; channels present.
    """
    pairs = target.dot == "none"

    def emit(code: Code, *arguments: Any) -> None:
        builder = code.builder
        rows, steps, (count, place, flip, present) = arguments[:8:2], arguments[1:8:2], arguments[8:]
        kind = vector_type(I8, 4 * code.lanes)
        flips = code.splat(builder.trunc(flip, I8), 4 * code.lanes)
        mask = byte_mask(code, present, 4 * code.lanes) if masked else None
        loop = code.loop(count, [place, *rows])
        place, *sources = loop.values

        def load(source: Any) -> Any:
            value = code.load(source, kind) if mask is None else code.masked_load(source, mask, kind)
            return builder.xor(value, flips)

        zero = ir.Constant(kind, None)
        if pairs:
            first, second = load(sources[0]), load(sources[1])
            values = [first, zero, second, zero]
        else:
            values = [load(source) for source in sources]
        offset = 0
        for high in (False, True):
            upper = _unpacked(code, values[0], values[1], 8, high)
            lower = _unpacked(code, values[2], values[3], 8, high)
            for second_half in (False, True):
                code.store(_unpacked(code, upper, lower, 16, second_half), place, offset)
                offset += 4 * code.lanes
        loop.end([code.plus(place, offset), *(code.plus(s, d) for s, d in zip(sources, steps, strict=True))])

    return outlined(f"depthwise_stage_{target.lanes}_{masked}", "i" * 12, target, emit)


def _tile(target: Target, outputs: int, masked: bool) -> Callable:
    """Neighbouring results of a row for one block of channels.

    Arguments: groups under the first result, bytes to those of the next, columns of the steps, steps, bias and scales,
    weights, result, bytes between results, results present, channels present, zero, least, most, flip.
    """
    lanes = target.lanes
    vector, column = 4 * lanes, 16 * lanes

    def emit(
        code: Code, groups: Any, distance: Any, offsets: Any, steps: Any, head: Any, weights: Any, result: Any,
        stride: Any, present: Any, wanted: Any, zero: Any, least: Any, most: Any, flip: Any,
    ) -> None:  # fmt: skip
        sums = [code.load(head, code.ints, vector * k) for k in range(4)] * outputs
        loop = code.loop(steps, [weights, *sums])
        here, totals = loop.values[0], list(loop.values[1:])
        offset = code.load(code.plus(offsets, code.times(loop.index, 8)), I64)
        source = code.plus(groups, code.times(offset, column))
        factors = [code.load(here, code.ints, vector * k) for k in range(4)]
        for output in range(outputs):
            for k in range(4):
                value = code.load(source, code.ints, vector * k)
                totals[4 * output + k] = accumulate(code, totals[4 * output + k], value, factors[k])
            source = code.plus(source, distance)
        totals = loop.end([code.plus(here, column), *totals])[1:]
        scales = [code.load(head, code.floats, column + vector * k) for k in range(4)]
        requantizer = Requantizer(code, zero, least, most, flip)
        stored = [requantizer.stored(totals[i : i + 4], scales, interleaved=True) for i in range(0, len(totals), 4)]
        places = [result]
        for _ in range(1, outputs):
            places.append(code.plus(places[-1], stride))
        store_rows(code, stored, places, 4 * lanes, present, wanted if masked else code.number(4 * lanes))

    return outlined(f"depthwise_tile_{lanes}_{masked}", "i" * 14, target, emit)


def _by_kind(functions: list[Callable], arity: int) -> Any:
    """One function that calls whichever of the functions its first argument numbers."""
    names = ", ".join(f"a{i}" for i in range(arity))
    lines = [f"def call(kind, {names}):"]
    for kind in range(len(functions)):
        lines += [f"    if kind == {kind}:", f"        return f{kind}({names})"]
    scope: dict[str, Any] = {f"f{kind}": function for kind, function in enumerate(functions)}
    exec("\n".join(lines), scope)
    return device(scope["call"])


@generated
def convolve(target: Target, variant: str) -> Any:
    """Depthwise convolution with one filter for each channel. Words: see `WORDS`."""
    widths = block_kinds(target.lanes)
    narrowed = [replace(target, vector_bytes=width) for width in (*widths, widths[-1])]
    flags = [False] * len(widths) + [True]
    outputs = 4 if target.vector_bytes == 64 or not target.triple.startswith("x86_64") else 2
    stage = _by_kind([_stage(t, m) for t, m in zip(narrowed, flags, strict=True)], 12)
    tile = _by_kind([_tile(t, outputs, m) for t, m in zip(narrowed, flags, strict=True)], 14)
    group_rows = 2 if target.dot == "none" else 4
    first_width = widths[0]
    last_kind = len(widths) - 1
    x_at, y_at, weights_at, blocks_at, offsets_at, blank_at, work_at, work_bytes_at = (_AT[n] for n in WORDS[:8])
    batch_at, height_at, width_at, channels_at, out_height_at, out_width_at = (_AT[n] for n in WORDS[8:14])
    together_at, groups_at, needed_at, stride_h_at, stride_w_at = (_AT[n] for n in WORDS[14:19])
    dilation_at, top_at, left_at, span_at, segment_at, pitch_at, steps_at = (_AT[n] for n in WORDS[19:26])
    count_at, input_flip_at, zero_at, least_at, most_at, flip_at = (_AT[n] for n in WORDS[26:])

    @device
    def stage_rows(p, image, blank, work, kind, column_bytes, row, left, count, wanted):  # type: ignore[no-untyped-def]
        """Copy the groups under `count` results; `image` is the block's first channel."""
        height, width, channels = word(p, height_at), word(p, width_at), word(p, channels_at)
        needed_rows, dilation, flip = word(p, needed_at), word(p, dilation_at), word(p, input_flip_at)
        needed = (count - 1) * word(p, stride_w_at) + word(p, span_at)
        before = min(max(-left, 0), needed)
        inside = max(min(width, left + needed) - max(left, 0), 0)
        after = needed - before - inside
        for g in range(word(p, groups_at)):
            place = work + g * word(p, pitch_at) * column_bytes
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
                stage(kind, blank, 0, blank, 0, blank, 0, blank, 0, before, place, flip, wanted)
            if inside > 0:
                stage(kind, a0, s0, a1, s1, a2, s2, a3, s3, inside, place + before * column_bytes, flip, wanted)
            if after > 0:
                place += (before + inside) * column_bytes
                stage(kind, blank, 0, blank, 0, blank, 0, blank, 0, after, place, flip, wanted)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        x, y, weights, blocks = (
            address(p, b, x_at),
            address(p, b, y_at),
            address(p, b, weights_at),
            address(p, b, blocks_at),
        )
        offsets, blank = address(p, b, offsets_at), address(p, b, blank_at)
        work = address(p, b, work_at) + tid * word(p, work_bytes_at)
        channels, out_height, out_width = word(p, channels_at), word(p, out_height_at), word(p, out_width_at)
        together, segment, steps, block_count = (
            word(p, together_at),
            word(p, segment_at),
            word(p, steps_at),
            word(p, count_at),
        )
        zero, least, most, flip = word(p, zero_at), word(p, least_at), word(p, most_at), word(p, flip_at)
        bands, segments = (out_height + together - 1) // together, (out_width + segment - 1) // segment
        first, last = share(word(p, batch_at) * bands * segments * block_count, tid, nt)
        for unit in range(first, last):
            block, rest = unit % block_count, unit // block_count
            begin, rest = rest % segments * segment, rest // segments
            band, n = rest % bands * together, rest // bands
            start, kind = load_i64(blocks, 3 * block), load_i64(blocks, 3 * block + 1)
            head = weights + load_i64(blocks, 3 * block + 2)
            column_bytes = (4 * first_width) >> min(kind, last_kind)
            wanted = min(channels - start, column_bytes >> 2)
            count = min(segment, out_width - begin)
            image = x + n * word(p, height_at) * word(p, width_at) * channels + start
            row = band * word(p, stride_h_at) - word(p, top_at)
            left = begin * word(p, stride_w_at) - word(p, left_at)
            stage_rows(p, image, blank, work, kind, column_bytes, row, left, count, wanted)
            distance = word(p, stride_w_at) * column_bytes
            for u in range(min(together, out_height - band)):
                factors = head + (2 + u * steps) * column_bytes
                result = y + ((n * out_height + band + u) * out_width + begin) * channels + start
                done = 0
                while done < count:
                    tile(
                        kind, work + done * distance, distance, offsets, steps, head, factors,
                        result + done * channels, channels, min(outputs, count - done), wanted, zero, least, most, flip,
                    )  # fmt: skip
                    done += outputs

    return kernel
