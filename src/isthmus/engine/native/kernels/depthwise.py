"""Depth-wise convolutions of floats: tiles of neighbouring outputs, vectors of channels.

Outputs of a tile share the input columns under their windows. Tiles that cross an edge of the input take their columns
from a list of addresses, which points to zeros for columns outside the input. Inputs, weights and outputs may have 16
bits; they are converted in registers. The bias is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.engine.native.kernels.base import I64, device, generated, kernel, share, store_i64
from isthmus.engine.native.kernels.gemm import kind_of
from isthmus.engine.native.kernels.vector import VectorCode, outlined
from isthmus.engine.native.signatures.depthwise import CONVOLVE
from isthmus.engine.native.signatures.elementwise import SIZES
from isthmus.engine.native.target import Target


def _over_channels(
    code: VectorCode, channels: Any, kind: str, block: Callable[[Any, Callable, Callable], None]
) -> None:
    """Emit `block` for full vectors of channels, and once more with masks for the last channels.

    It is called with the index of a vector's first channel, and functions that load and store a vector of a kind.
    """
    full = code.builder.and_(channels, code.number(-code.lanes))
    with code.builder.if_then(code.below(0, full)):
        loop = code.loop(full, step=code.lanes)
        block(
            loop.index,
            lambda place: code.load_as(kind, place),
            lambda value, place: code.store_as(kind, value, place),
        )
        loop.end()
    last = code.builder.sub(channels, full)
    with code.builder.if_then(code.below(0, last)):
        mask = code.mask(last)
        block(
            full,
            lambda place: code.load_as(kind, place, mask=mask),
            lambda value, place: code.store_as(kind, value, place, mask=mask),
        )


# Parameters of every tile: inputs, bytes between outer and inner inputs, kernel rows, weights of the first row, bytes
# between outer and inner weights, bias, result, bytes between outputs, the first channel, channels, least, most.
_PARAMETERS = "iiiiiiiiiiiiff"


def _tile(name: str, target: Target, tile: int, kind: str, sums_of: Callable[..., list[Any]]) -> Callable:
    """Return a micro-kernel for `tile` neighbouring outputs, for all channels of a kind.

    ``sums_of(code, arguments, shift, first, load)`` emits their sums: from the first seven of `_PARAMETERS`, the bytes
    to the first channel, the bias for each output, and a function that loads a vector of inputs.
    """

    def emit(code: VectorCode, *arguments: Any) -> None:
        bias, y, y_inner, begin, channels, least, most = arguments[7:]
        low, high = code.splat(least), code.splat(most)

        def block(channel: Any, load: Callable, store: Callable) -> None:
            channel = code.plus(channel, begin)
            shift = code.times(channel, SIZES[kind])
            first = code.load(code.plus(bias, code.times(channel, 4)))
            place = code.plus(y, shift)
            for value in sums_of(code, arguments[:7], shift, [first] * tile, load):
                store(code.clamp(value, low, high), place)
                place = code.plus(place, y_inner)

        _over_channels(code, channels, kind, block)

    return outlined(name, _PARAMETERS, target, emit)


def _shared_tile(target: Target, tile: int, kernel: int, stride: int, listed: bool, kind: str) -> Callable:
    """Return a tile whose outputs share input columns, evenly spaced or listed by address for each kernel row.

    It is for one kernel width and stride. If `listed`, the first argument is the list.
    """
    columns = (tile - 1) * stride + kernel

    def sums_of(code: VectorCode, arguments: Any, shift: Any, first: list[Any], load: Callable) -> list[Any]:
        x, x_outer, x_inner, kernel_rows, weights, w_outer, w_inner = arguments
        inputs = x if listed else code.plus(x, shift)
        # One iteration for each kernel row: load its weights, then add each input column to the sums that need it.
        loop = code.loop(kernel_rows, [inputs, code.plus(weights, shift), *first])
        source, row_weights, *sums = loop.values
        place, taps = row_weights, []
        for _ in range(kernel):
            taps.append(code.load_as(kind, place))
            place = code.plus(place, w_inner)
        place = source
        for column in range(columns):
            if listed:
                value = load(code.plus(code.load(source, I64, 8 * column), shift))
            else:
                value = load(place)
                place = code.plus(place, x_inner)
            for t in range(tile):
                if 0 <= column - t * stride < kernel:
                    sums[t] = code.fma(value, taps[column - t * stride], sums[t])
        after = code.plus(source, 8 * columns if listed else x_outer)
        return loop.end([after, code.plus(row_weights, w_outer), *sums])[2:]

    return _tile(f"shared_{tile}_{kernel}_{stride}_{listed:d}", target, tile, kind, sums_of)


def _separate_tile(target: Target, tile: int, kind: str) -> Callable:
    """Return a tile for any kernel: its outputs share nothing, and a list has their inputs' addresses.

    The list has, for each kernel row and column, the address of the input of each output. It is the first argument; the
    third one is the number of kernel columns, and the second one is not used. All others are those of `_PARAMETERS`.
    """

    def sums_of(code: VectorCode, arguments: Any, shift: Any, first: list[Any], load: Callable) -> list[Any]:
        addresses, _, kernel_columns, kernel_rows, weights, w_outer, w_inner = arguments
        rows = code.loop(kernel_rows, [addresses, code.plus(weights, shift), *first])
        entry, row_weights, *sums = rows.values
        columns = code.loop(kernel_columns, [entry, row_weights, *sums])
        entry, weight_place, *sums = columns.values
        weight = code.load_as(kind, weight_place)
        for t in range(tile):
            place = code.plus(code.load(entry, I64, 8 * t), shift)
            sums[t] = code.fma(load(place), weight, sums[t])
        entry, _, *sums = columns.end([code.plus(entry, 8 * tile), code.plus(weight_place, w_inner), *sums])
        return rows.end([entry, code.plus(row_weights, w_outer), *sums])[2:]

    return _tile(f"separate_{tile}", target, tile, kind, sums_of)


def _list_tile(tile: int, columns: int) -> Any:
    """Return a function that writes the addresses of a tile's inputs to `goal`.

    `outer` and `inner` are words about an axis: size, dilation and step; size, kernel, dilation, step and stride. It
    lists the kernel rows from `start` to `stop`; the first window begins at (top, left). Inputs outside the image are
    those at `zeros`. With `columns`, it lists that many neighbouring inputs per row; else, for each kernel column,
    the input of each output.
    """

    @device
    def list_tile(outer, inner, x, zeros, goal, top, left, start, stop):
        outer_size, outer_dilation, outer_step = outer
        size, kernel, dilation, step, stride = inner
        for kh in range(start, stop):
            h = top + kh * outer_dilation
            row = x + h * outer_step
            outside = h < 0 or h >= outer_size
            for kw in range(columns if columns else kernel):
                w = left + kw * dilation
                for _ in range(1 if columns else tile):
                    store_i64(goal, 0, zeros if outside or w < 0 or w >= size else row + w * step)
                    goal += 8
                    w += stride

    return list_tile


def _parse(variant: str) -> tuple[int, int, int]:
    """Parse the first part of a variant: ``4x3s1`` is outputs of a tile, kernel width and stride; ``4`` fits any
    kernel and stride.
    """
    tile, _, window = variant.partition("x")
    kernel, _, stride = window.partition("s")
    return int(tile), int(kernel or 0), int(stride or 0)


@generated
def convolve(target: Target, variant: str) -> Any:
    """Convolve depth-wise; see `_parse` for the variant. After it, ``_f16`` or ``_bf16`` names a kind of 16 bits."""
    shape, kind = kind_of(variant)
    tile, kernel_width, stride = _parse(shape)
    special = kernel_width > 0
    reach = (tile - 1) * stride + kernel_width if special else 0
    # Without a special tile the call of `inside_tile` is never reached; it only needs the right types.
    listed_tile = inside_tile = _separate_tile(target, tile, kind)
    if special:
        listed_tile = _shared_tile(target, tile, kernel_width, stride, True, kind)
        inside_tile = _shared_tile(target, tile, kernel_width, stride, False, kind)
    list_tile = _list_tile(tile, reach)
    lanes = target.lanes

    @kernel(CONVOLVE)
    def execute(
        x, weights, result, zeros, work, work_bytes, batches, channels, x_batch, y_batch, outer_size, outer_out,
        outer_kernel, outer_stride, outer_dilation, outer_pad, outer_step, outer_out_step, outer_weight_step,
        inner_size, inner_out, inner_kernel, inner_stride, inner_dilation, inner_pad, inner_step, inner_out_step,
        inner_weight_step, least: np.float32, most: np.float32, tid, nt,
    ):  # fmt: skip
        addresses = work + tid * work_bytes
        outer = outer_size, outer_dilation, outer_step
        inner = inner_size, inner_kernel, inner_dilation, inner_step, inner_stride
        taps = weights + (channels + lanes - 1) // lanes * lanes * 4
        rows = batches * outer_out
        first, last = share(rows, tid, nt)
        begin, end = 0, channels
        if rows < nt:
            # There are too few rows for all threads: divide whole vectors of channels.
            first, last = 0, rows
            begin, end = share((channels + lanes - 1) // lanes, tid, nt)
            begin, end = begin * lanes, min(end * lanes, channels)
        for r in range(first, last if begin < end else first):
            batch = r // outer_out
            out = r - batch * outer_out
            image = x + batch * x_batch
            y = result + batch * y_batch + out * outer_out_step
            top = out * outer_stride - outer_pad
            # The kernel rows inside the input; one row of zeros if there are none.
            start = min(0 if top >= 0 else (outer_dilation - 1 - top) // outer_dilation, outer_kernel - 1)
            stop = max(min(outer_kernel, (outer_size - top + outer_dilation - 1) // outer_dilation), start + 1)
            factors = taps + start * outer_weight_step
            done = 0
            while done < inner_out:
                # The last tile is moved back into the row, so some outputs are computed twice, with equal results.
                o = min(done, inner_out - tile)
                left = o * inner_stride - inner_pad
                goal = y + o * inner_out_step
                inside = 0 <= top + start * outer_dilation < outer_size and left >= 0
                if special and inside and left + reach <= inner_size:
                    source = image + (top + start * outer_dilation) * outer_step + left * inner_step
                    inside_tile(
                        source, outer_step * outer_dilation, inner_step, stop - start, factors, outer_weight_step,
                        inner_weight_step, weights, goal, inner_out_step, begin, end - begin, least, most,
                    )  # fmt: skip
                else:
                    list_tile(outer, inner, image, zeros, addresses, top, left, start, stop)
                    listed_tile(
                        addresses, 0, inner_kernel, stop - start, factors, outer_weight_step, inner_weight_step,
                        weights, goal, inner_out_step, begin, end - begin, least, most,
                    )  # fmt: skip
                done = o + tile

    return execute
