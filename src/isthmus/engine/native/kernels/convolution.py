"""Convolutions over one to three spatial axes, as a matrix product whose left rows are lists of addresses.

Only windows that cross the left or right edge of the input are copied, and only if a whole row of the window is read as
one run. Elements outside the input are read from a constant of zeros. Windows of elements of 16 bits are converted to
float32 rows in work space, each of which is then one run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import (
    copy_bytes,
    device,
    fill_bytes,
    generated,
    kernel,
    load_i64,
    store_i64,
    write_i64,
)
from isthmus.engine.native.kernels.gemm import divide_work, form_of, indirect_tile, shape_of, window_staging
from isthmus.engine.native.kernels.nibble_floats import nibble_panel_bytes, unpacker
from isthmus.engine.native.signatures.convolution import INDIRECT
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.target import Target

_INFINITY = np.float32(np.inf)


@device
def _list_window(geometry, x, zeros, goal, step, spare, n, od, oh, ow):
    """List the addresses of the taps of a window that may cross edges; return the next free byte for copies.

    Parameters
    ----------
    geometry
        The words about windows: size, kernel, stride, dilation and pad along each axis; pixel, whole_rows.
    goal, step
        Where the first address is written, and the bytes to the next.
    spare
        Work space for copies of rows that cross an edge.
    n, od, oh, ow
        The image, and the window's position in the result.
    """
    size, kernel, stride, dilation, pad, pixel, whole_rows = geometry
    depth, height, width = size
    kernel_width = kernel[2]
    left, top, front = ow * stride[2] - pad[2], oh * stride[1] - pad[1], od * stride[0] - pad[0]
    taps = 1 if whole_rows else kernel_width
    for kd in range(kernel[0]):
        d = front + kd * dilation[0]
        for kh in range(kernel[1]):
            h = top + kh * dilation[1]
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
                    w += dilation[2]
                    goal += step
    return spare


@device
def _inside(size, kernel, stride, dilation, pad, position):
    """Return whether windows at this position are inside the input along an axis."""
    first = position * stride - pad
    return first >= 0 and first + (kernel - 1) * dilation < size


def _list_inside(height: int) -> Any:
    """Return a function that lists the taps of `count` neighbouring windows inside the input: evenly spaced addresses.

    For each tap, a list has one address for each of the `height` rows of a tile.
    """

    @device
    def list_inside(geometry, x, goal, count, n, od, oh, ow):
        size, kernel, stride, dilation, pad, pixel, whole_rows = geometry
        row_bytes = size[2] * pixel
        plane_bytes = size[1] * row_bytes
        w, h, d = ow * stride[2] - pad[2], oh * stride[1] - pad[1], n * size[0] + od * stride[0] - pad[0]
        first = x + d * plane_bytes + h * row_bytes + w * pixel
        between = stride[2] * pixel
        taps = 1 if whole_rows else kernel[2]
        for kd in range(kernel[0]):
            for kh in range(kernel[1]):
                row = first + kd * dilation[0] * plane_bytes + kh * dilation[1] * row_bytes
                for kw in range(taps):
                    tap = row + kw * dilation[2] * pixel
                    # The compiler knows the length of the first loop.
                    if count == height:
                        for r in range(height):
                            write_i64(goal, r, tap + r * between)
                    else:
                        for r in range(count):
                            write_i64(goal, r, tap + r * between)
                    goal += height * 8

    return list_inside


def list_tiles_of(height: int) -> Any:
    """Return a function that lists, for the tiles `begin` to `end`, the addresses of their taps and then of their
    results. Rows of tiles are pixels of the result; there are `rows` in all. It returns the next free byte for copies.
    """
    list_inside = _list_inside(height)

    @device
    def list_tiles(geometry, out, y_strides, x, zeros, y, goal, spare, taps, begin, end, rows):
        size, kernel, stride, dilation, pad, _, _ = geometry
        out_depth, out_height, out_width = out
        # Windows between these columns are inside the input.
        inside_from = 0 if pad[2] <= 0 else (pad[2] + stride[2] - 1) // stride[2]
        room = size[2] + pad[2] - (kernel[2] - 1) * dilation[2] - 1
        inside_to = 0 if room < 0 else room // stride[2] + 1
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
                if (
                    ow >= inside_from and ow < inside_to
                    and _inside(size[0], kernel[0], stride[0], dilation[0], pad[0], od)
                    and _inside(size[1], kernel[1], stride[1], dilation[1], pad[1], oh)
                ):  # fmt: skip
                    count = min(count, inside_to - ow)
                    list_inside(geometry, x, goal + 8 * r, count, n, od, oh, ow)
                else:
                    for i in range(count):
                        place = goal + 8 * (r + i)
                        spare = _list_window(geometry, x, zeros, place, 8 * height, spare, n, od, oh, ow + i)
                        if ow + i + 1 == inside_from:
                            count = i + 1
                            break
                result_row = y + n * y_strides[0] + od * y_strides[1] + oh * y_strides[2]
                for i in range(count):
                    write_i64(goal, taps * height + r + i, result_row + (ow + i) * y_strides[3])
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

    The variant is the tile, ``rows x vectors``, and for elements of 16 bits their kind: ``8x3_f16``. For
    ``8x3_nibbles``, panels have 4-bit weights, of which parts are dequantized into work space.
    """
    shape, kind, nibbles = form_of(variant)
    height, vectors = shape_of(shape)
    half = max(1, height // 2)
    width, item, staged = vectors * target.lanes, SIZES[kind], kind != "f32"
    tile = indirect_tile(target, height, vectors, height, kind)
    half_tile = indirect_tile(target, half, vectors, height, kind)
    list_tiles, stage = list_tiles_of(height), window_staging(target, kind)
    dequantize = unpacker(target, vectors)

    @kernel(INDIRECT)
    def execute(
        x, panels, result, zeros, work, work_bytes, tile_block, batches, size, out, kernel, stride, dilation, pad,
        channels, pixel, groups, x_group, panel_group, y_group, y_strides, columns, whole_rows, tap_block, block,
        floats, least: np.float32, most: np.float32, tid, nt,
    ):  # fmt: skip
        geometry = size, kernel, stride, dilation, pad, pixel, whole_rows != 0
        lists = work + tid * work_bytes
        rows = batches * out[0] * out[1] * out[2]
        taps, run = kernel[0] * kernel[1], channels
        if whole_rows != 0:
            run *= kernel[2]
        else:
            taps *= kernel[2]
        list_bytes = (taps + 1) * height * 8
        spare = lists + tile_block * list_bytes
        # The bias of a column has 4 bytes.
        panel_bytes = (4 + taps * run * item) * width
        if nibbles:
            panel_bytes = nibble_panel_bytes(taps * run, block, width)
        # Dequantized weights are behind the lists and copies.
        unpacked = lists + floats
        tiles, panel_count = (rows + height - 1) // height, (columns + width - 1) // width
        first, last, first_panel, last_panel = divide_work(tiles, panel_count, columns > rows, tid, nt)
        for group in range(groups):
            image, y = x + group * x_group, result + group * y_group
            right = panels + group * panel_group
            begin = first
            while begin < last:
                end = min(begin + tile_block, last)
                row_lists = list_tiles(geometry, out, y_strides, image, zeros, y, lists, spare, taps, begin, end, rows)
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
                        bias, present, shift = right + j * panel_bytes, columns - j * width, j * width * item
                        panel = bias + (4 + done * run * item) * width
                        if nibbles:
                            panel = dequantize(bias, taps * run, block, done * run, (done + part) * run, unpacked)
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

    return execute
