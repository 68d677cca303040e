"""Convolutions over one to three spatial axes, as a matrix product whose left rows are lists of addresses.

Only windows that cross the left or right edge of the input are copied, and only if a whole row of the window is read as
one run. Elements outside the input are read from a constant of zeros. Windows of elements of 16 bits are converted to
float32 rows in work space, each of which is then one run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    address,
    copy_bytes,
    device,
    fill_bytes,
    generated,
    load_i64,
    read_i64,
    real,
    store_i64,
    word,
    write_i64,
)
from isthmus.engine.native.kernels.gemm import divide_work, indirect_tile, kind_of, shape_of, window_staging
from isthmus.engine.native.kernels.nibble_floats import nibble_panel_bytes, unpacker
from isthmus.engine.native.signatures.convolution import INDIRECT_NIBBLES
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.target import Target

_INFINITY = np.float32(np.inf)

# The operands of both kernels are at the same positions; for 4-bit weights there are some more at the end.
_WORDS = INDIRECT_NIBBLES.place


@device
def _list_window(p, x, zeros, goal, step, spare, n, od, oh, ow):  # type: ignore[no-untyped-def]
    """List the addresses of the taps of a window that may cross edges; return the next free byte for copies.

    Parameters
    ----------
    goal, step
        Where the first address is written, and the bytes to the next.
    spare
        Work space for copies of rows that cross an edge.
    n, od, oh, ow
        The image, and the window's position in the result.
    """
    depth, height, width = read_i64(p, _WORDS.size), read_i64(p, _WORDS.size + 1), read_i64(p, _WORDS.size + 2)
    kernel_width, dilation_width, pixel = (
        read_i64(p, _WORDS.kernel + 2),
        read_i64(p, _WORDS.dilation + 2),
        read_i64(p, _WORDS.pixel),
    )
    left = ow * read_i64(p, _WORDS.stride + 2) - read_i64(p, _WORDS.pad + 2)
    top = oh * read_i64(p, _WORDS.stride + 1) - read_i64(p, _WORDS.pad + 1)
    front = od * read_i64(p, _WORDS.stride) - read_i64(p, _WORDS.pad)
    whole_rows = read_i64(p, _WORDS.whole_rows) != 0
    taps = 1 if whole_rows else kernel_width
    for kd in range(read_i64(p, _WORDS.kernel)):
        d = front + kd * read_i64(p, _WORDS.dilation)
        for kh in range(read_i64(p, _WORDS.kernel + 1)):
            h = top + kh * read_i64(p, _WORDS.dilation + 1)
            row = x + ((n * depth + d) * height + h) * width * pixel
            if d < 0 or d >= depth or h < 0 or h >= height:
                for _ in range(taps):
                    write_i64(goal, 0, zeros)
                    goal += step
            elif whole_rows:
                first, last = max(left, 0), min(left + kernel_width, width)
                tap = row + left * pixel
                if last - first < kernel_width:
                    tap = zeros
                    if first < last:
                        tap = spare
                        fill_bytes(tap, 0, kernel_width * pixel)
                        copy_bytes(tap + (first - left) * pixel, row + first * pixel, (last - first) * pixel)
                        spare += kernel_width * pixel
                write_i64(goal, 0, tap)
                goal += step
            else:
                w = left
                for _ in range(kernel_width):
                    write_i64(goal, 0, row + w * pixel if 0 <= w < width else zeros)
                    w += dilation_width
                    goal += step
    return spare


@device
def _inside(p, axis, position):  # type: ignore[no-untyped-def]
    """Return whether windows at this position are inside the input along an axis."""
    first = position * read_i64(p, _WORDS.stride + axis) - read_i64(p, _WORDS.pad + axis)
    reach = (read_i64(p, _WORDS.kernel + axis) - 1) * read_i64(p, _WORDS.dilation + axis)
    return first >= 0 and first + reach < read_i64(p, _WORDS.size + axis)


def _list_inside(height: int) -> Any:
    """Return a function that lists the taps of `count` neighbouring windows inside the input: evenly spaced addresses.

    For each tap, a list has one address for each of the `height` rows of a tile.
    """

    @device
    def list_inside(p, x, goal, count, n, od, oh, ow):  # type: ignore[no-untyped-def]
        pixel = read_i64(p, _WORDS.pixel)
        row_bytes = read_i64(p, _WORDS.size + 2) * pixel
        plane_bytes = read_i64(p, _WORDS.size + 1) * row_bytes
        w = ow * read_i64(p, _WORDS.stride + 2) - read_i64(p, _WORDS.pad + 2)
        h = oh * read_i64(p, _WORDS.stride + 1) - read_i64(p, _WORDS.pad + 1)
        d = n * read_i64(p, _WORDS.size) + od * read_i64(p, _WORDS.stride) - read_i64(p, _WORDS.pad)
        first = x + d * plane_bytes + h * row_bytes + w * pixel
        between = read_i64(p, _WORDS.stride + 2) * pixel
        taps = 1 if read_i64(p, _WORDS.whole_rows) != 0 else read_i64(p, _WORDS.kernel + 2)
        for kd in range(read_i64(p, _WORDS.kernel)):
            for kh in range(read_i64(p, _WORDS.kernel + 1)):
                row = (
                    first
                    + kd * read_i64(p, _WORDS.dilation) * plane_bytes
                    + kh * read_i64(p, _WORDS.dilation + 1) * row_bytes
                )
                for kw in range(taps):
                    tap = row + kw * read_i64(p, _WORDS.dilation + 2) * pixel
                    # The compiler knows the length of the first loop.
                    if count == height:
                        for r in range(height):
                            write_i64(goal, r, tap + r * between)
                    else:
                        for r in range(count):
                            write_i64(goal, r, tap + r * between)
                    goal += height * 8

    return list_inside


def _list_tiles(height: int) -> Any:
    """Return a function that lists, for the tiles `begin` to `end`, the addresses of their taps and then of their
    results. Rows of tiles are pixels of the result; there are `rows` in all. It returns the next free byte for copies.
    """
    list_inside = _list_inside(height)

    @device
    def list_tiles(p, x, zeros, y, goal, spare, taps, begin, end, rows):  # type: ignore[no-untyped-def]
        out_depth, out_height, out_width = (
            read_i64(p, _WORDS.out),
            read_i64(p, _WORDS.out + 1),
            read_i64(p, _WORDS.out + 2),
        )
        y_pixel, stride, pad = (
            read_i64(p, _WORDS.y_strides + 3),
            read_i64(p, _WORDS.stride + 2),
            read_i64(p, _WORDS.pad + 2),
        )
        # Windows between these columns are inside the input.
        inside_from = 0 if pad <= 0 else (pad + stride - 1) // stride
        room = (
            read_i64(p, _WORDS.size + 2)
            + pad
            - (read_i64(p, _WORDS.kernel + 2) - 1) * read_i64(p, _WORDS.dilation + 2)
            - 1
        )
        inside_to = 0 if room < 0 else room // stride + 1
        # The first pixel, and its position in the result.
        m = begin * height
        ow = m % out_width
        oh = m // out_width % out_height
        od = m // (out_width * out_height) % out_depth
        n = m // (out_width * out_height * out_depth)
        for _ in range(begin, end):
            r = 0
            while r < height:
                if m >= rows:
                    # Missing rows repeat the last one.
                    for t in range(taps + 1):
                        store_i64(goal, t * height + r, load_i64(goal, t * height + r - 1))
                    r += 1
                    continue
                count = min(height - r, out_width - ow)
                if ow >= inside_from and ow < inside_to and _inside(p, 0, od) and _inside(p, 1, oh):
                    count = min(count, inside_to - ow)
                    list_inside(p, x, goal + 8 * r, count, n, od, oh, ow)
                else:
                    for i in range(count):
                        spare = _list_window(p, x, zeros, goal + 8 * (r + i), 8 * height, spare, n, od, oh, ow + i)
                        if ow + i + 1 == inside_from:
                            count = i + 1
                            break
                result_row = (
                    y
                    + n * read_i64(p, _WORDS.y_strides)
                    + od * read_i64(p, _WORDS.y_strides + 1)
                    + oh * read_i64(p, _WORDS.y_strides + 2)
                )
                for i in range(count):
                    write_i64(goal, taps * height + r + i, result_row + (ow + i) * y_pixel)
                r += count
                m += count
                ow += count
                if ow == out_width:
                    ow = 0
                    oh += 1
                    if oh == out_height:
                        oh = 0
                        od += 1
                        if od == out_depth:
                            od = 0
                            n += 1
            goal += (taps + 1) * height * 8
        return spare

    return list_tiles


@generated
def indirect(target: Target, variant: str) -> Any:
    """Convolve. Rows of the product are pixels of the result, columns are filters.

    Each thread computes its tiles in blocks of `tile_block`: it lists the addresses of a block, then multiplies all its
    tiles by each panel of weights. A tap is one position of the window, and a run the elements that it reads at one
    address (with `whole_rows`, a tap is a row of the window). The list of a tile has, for each tap, an address for each
    row, and then the rows' result addresses. A panel has a float32 bias for each column, and then the weights of all
    taps.

    The variant is the tile, ``rows x vectors``, and for elements of 16 bits their kind: ``8x3_f16``.
    """
    return _indirect(target, variant, False)


@generated
def indirect_nibbles(target: Target, variant: str) -> Any:
    """Convolve floats like `indirect`, with panels of 4-bit weights, of which parts are dequantized into work space."""
    return _indirect(target, variant, True)


def _indirect(target: Target, variant: str, nibbles: bool) -> Any:
    """Return the kernel for panels of elements like those of the input, or of 4-bit weights."""
    shape, kind = kind_of(variant)
    height, vectors = shape_of(shape)
    half = max(1, height // 2)
    width, size, staged = vectors * target.lanes, SIZES[kind], kind != "f32"
    tile = indirect_tile(target, height, vectors, height, kind)
    half_tile = indirect_tile(target, half, vectors, height, kind)
    list_tiles, stage = _list_tiles(height), window_staging(target, kind)
    dequantize = unpacker(target, vectors)

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        zeros, columns = address(p, b, _WORDS.zeros), word(p, _WORDS.columns)
        block, tap_block = word(p, _WORDS.tile_block), word(p, _WORDS.tap_block)
        lists = address(p, b, _WORDS.work) + tid * word(p, _WORDS.work_bytes)
        rows = word(p, _WORDS.batches) * word(p, _WORDS.out) * word(p, _WORDS.out + 1) * word(p, _WORDS.out + 2)
        taps, run = word(p, _WORDS.kernel) * word(p, _WORDS.kernel + 1), word(p, _WORDS.channels)
        if word(p, _WORDS.whole_rows) != 0:
            run *= word(p, _WORDS.kernel + 2)
        else:
            taps *= word(p, _WORDS.kernel + 2)
        least, most = np.float32(real(p, _WORDS.least)), np.float32(real(p, _WORDS.most))
        list_bytes = (taps + 1) * height * 8
        spare = lists + block * list_bytes
        # The bias of a column has 4 bytes.
        panel_bytes = (4 + taps * run * size) * width
        scale_block, floats = 8, 0
        if nibbles:
            # Dequantized weights are behind the lists and copies.
            scale_block, floats = word(p, _WORDS.block), lists + word(p, _WORDS.floats)
            panel_bytes = nibble_panel_bytes(taps * run, scale_block, width)
        tiles, panels = (rows + height - 1) // height, (columns + width - 1) // width
        first, last, first_panel, last_panel = divide_work(tiles, panels, columns > rows, tid, nt)
        for group in range(word(p, _WORDS.groups)):
            x = address(p, b, _WORDS.x) + group * word(p, _WORDS.x_group)
            y = address(p, b, _WORDS.result) + group * word(p, _WORDS.y_group)
            right = address(p, b, _WORDS.panels) + group * word(p, _WORDS.panel_group)
            begin = first
            while begin < last:
                end = min(begin + block, last)
                row_lists = list_tiles(p, x, zeros, y, lists, spare, taps, begin, end, rows)
                if staged:
                    # The addresses of the converted windows, a list for each tile, and then the windows.
                    row_lists = (row_lists + 63) & -64
                    windows = row_lists + (end - begin) * height * 8
                    for row in range((end - begin) * height):
                        store_i64(row_lists, row, windows + row * taps * run * 4)
                        entry = lists + row // height * list_bytes + row % height * 8
                        stage(entry, height * 8, taps, run, windows + row * taps * run * 4)
                # Taps are summed in parts. Sums wait in the result, so only the last part is clamped.
                done = 0
                while done < taps:
                    part = min(taps - done, tap_block)
                    low, high = -_INFINITY, _INFINITY
                    if done + part == taps:
                        low, high = least, most
                    for j in range(first_panel, last_panel):
                        bias, present, shift = right + j * panel_bytes, columns - j * width, j * width * size
                        panel = bias + (4 + done * run * size) * width
                        if nibbles:
                            panel = dequantize(bias, taps * run, scale_block, done * run, (done + part) * run, floats)
                        if done > 0:
                            # Continue from the sums in the result.
                            bias = 0
                        for i in range(begin, end):
                            tile_list = lists + (i - begin) * list_bytes
                            goals, entry = tile_list + taps * height * 8, tile_list + done * height * 8
                            count, run_bytes = part, run * 4
                            if staged:
                                # A converted window is one run of all taps; the signature allows no parts then.
                                entry, count, run_bytes = row_lists + (i - begin) * height * 8, 1, taps * run * 4
                            if rows - i * height > half:
                                tile(entry, count, run_bytes, bias, panel, goals, shift, present, low, high)
                            else:
                                half_tile(entry, count, run_bytes, bias, panel, goals, shift, present, low, high)
                    done += part
                begin = end

    return kernel
