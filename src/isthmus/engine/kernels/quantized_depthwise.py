"""8-bit depthwise convolution: channels across lanes, products and sums in float, where they are exact.

Inside the image a strip of neighbouring outputs shares its loads; at the borders one output at a time is computed from
the taps that exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.engine.kernels.base import I8, address, device, generated, real, share, word
from isthmus.engine.kernels.quantized_gemm import limits, requantized
from isthmus.engine.kernels.vector import Code, outlined, vector_type
from isthmus.engine.target import Target

STRIP = 4
"""Outputs computed together inside the image."""

WORDS = (
    "x", "y", "weights", "bias", "inner_bias", "scales",
    "batch", "height", "width", "channels", "out_height", "out_width",
    "kernel_h", "kernel_w", "stride_h", "stride_w", "dilation_h", "dilation_w", "top", "left",
    "row_bytes", "zero_in", "zero", "least", "most",
)  # fmt: skip
"""The words of the instruction. `row_bytes` is the length of one tap's weights; `inner_bias` has the input's zero point
folded in, for places where every tap exists."""
_AT = {name: index for index, name in enumerate(WORDS)}


def _reals(code: Code, address: Any, signed: bool, mask: Any) -> Any:
    """A vector of input bytes as floats; with a mask only some are read."""
    builder, kind = code.builder, vector_type(I8, code.lanes)
    stored = code.load(address, kind) if mask is None else code.masked_load(address, mask, kind)
    wide = builder.sext(stored, code.ints) if signed else builder.zext(stored, code.ints)
    return builder.sitofp(wide, code.floats)


def _blocks(code: Code, channels: Any, body: Callable[[Any, Any], None]) -> None:
    """Run the body for each whole block of channels, then with a mask for what remains."""
    builder, lanes = code.builder, code.lanes
    whole = builder.and_(channels, code.number(-lanes))
    with builder.if_then(code.below(0, whole)):
        loop = code.loop(whole, step=lanes)
        body(loop.index, None)
        loop.end()
    with builder.if_then(code.below(whole, channels)):
        body(whole, code.mask(builder.sub(channels, whole)))


def _store(code: Code, total: Any, scale: Any, place: Any, mask: Any, bounds: tuple[Any, Any, Any]) -> None:
    stored = requantized(code, total, scale, *bounds)
    if mask is None:
        code.store(stored, place)
    else:
        code.masked_store(stored, place, mask)


def _strip(target: Target, signed: bool, kernel_w: int, stride: int) -> Callable:
    """`STRIP` outputs of a row where every tap exists.

    Arguments: first tap, bytes to the next image row of taps, bytes between pixels, rows of taps, weights, bytes of a
    row of taps' weights, bytes of a tap's weights, bias, scales, result, channels; zero, least, most.
    """

    def emit(
        code: Code, x: Any, next_row: Any, pixel: Any, kernel_h: Any, weights: Any, weights_row: Any, tap: Any,
        bias: Any, scales: Any, y: Any, channels: Any, zero: Any, least: Any, most: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        bounds = limits(code, zero, least, most)

        def block(channel: Any, mask: Any) -> None:
            lane = code.times(channel, 4)
            start = code.load(code.plus(bias, lane))
            rows = code.loop(kernel_h, [code.plus(x, channel), code.plus(weights, lane), *[start] * STRIP])
            source, factors_at, totals = rows.values[0], rows.values[1], list(rows.values[2:])
            factors, place = [], factors_at
            for _ in range(kernel_w):
                factors.append(code.load(place))
                place = code.plus(place, tap)
            place = source
            for column in range((STRIP - 1) * stride + kernel_w):
                value = _reals(code, place, signed, mask)
                place = code.plus(place, pixel)
                for output in range(STRIP):
                    index = column - output * stride
                    if 0 <= index < kernel_w:
                        totals[output] = code.fma(value, factors[index], totals[output])
            totals = rows.end([code.plus(source, next_row), code.plus(factors_at, weights_row), *totals])[2:]
            scale = code.load(code.plus(scales, lane))
            place = code.plus(y, channel)
            for total in totals:
                _store(code, total, scale, place, mask, bounds)
                place = builder.add(place, channels)

        _blocks(code, channels, block)

    return outlined(f"quantized_strip_{kernel_w}_{stride}_{signed}", "iiiiiiiiiiifff", target, emit)


def _single(target: Target, signed: bool) -> Callable:
    """One output from the taps that exist.

    Arguments: first tap that exists, bytes to the next row of taps, bytes to the next tap, rows and columns of taps,
    their weights, bytes of a row of taps' weights, bytes of a tap's weights, bias, scales, result, channels; zero
    point of the input, zero, least, most.
    """

    def emit(
        code: Code, x: Any, next_row: Any, next_tap: Any, kernel_h: Any, kernel_w: Any, weights: Any,
        weights_row: Any, tap: Any, bias: Any, scales: Any, y: Any, channels: Any, zero_in: Any, zero: Any,
        least: Any, most: Any,
    ) -> None:  # fmt: skip
        builder = code.builder
        bounds = limits(code, zero, least, most)
        origin = code.splat(zero_in)

        def block(channel: Any, mask: Any) -> None:
            lane = code.times(channel, 4)
            start = code.load(code.plus(bias, lane))
            rows = code.loop(kernel_h, [code.plus(x, channel), code.plus(weights, lane), start])
            columns = code.loop(kernel_w, rows.values)
            source, factors_at, total = columns.values
            value = builder.fsub(_reals(code, source, signed, mask), origin)
            total = code.fma(value, code.load(factors_at), total)
            _, _, total = columns.end([code.plus(source, next_tap), code.plus(factors_at, tap), total])
            _, _, total = rows.end([code.plus(rows.values[0], next_row), code.plus(rows.values[1], weights_row), total])
            _store(code, total, code.load(code.plus(scales, lane)), code.plus(y, channel), mask, bounds)

        _blocks(code, channels, block)

    return outlined(f"quantized_single_{signed}", "iiiiiiiiiiiiffff", target, emit)


@generated
def convolve(target: Target, variant: str) -> Any:
    """Depthwise convolution; the variant is ``s8`` or ``u8``, and ``s8_3_1`` adds strips for kernel width and stride."""
    stored, *special = variant.split("_")
    kernel_w, stride = (int(n) for n in special) if special else (0, 0)
    single = _single(target, stored == "s8")
    strip = _strip(target, stored == "s8", kernel_w, stride) if special else _no_strip()
    at_x, at_y, at_weights, at_bias, at_inner, at_scales = (_AT[n] for n in WORDS[:6])
    at_batch, at_height, at_width, at_channels, at_out_height, at_out_width = (_AT[n] for n in WORDS[6:12])
    at_kh, at_kw, at_sh, at_sw, at_dh, at_dw, at_top, at_left = (_AT[n] for n in WORDS[12:20])
    at_row, at_zero_in, at_zero, at_least, at_most = (_AT[n] for n in WORDS[20:])

    @device
    def kernel(p, b, tid, nt):  # type: ignore[no-untyped-def]
        x, y, weights = address(p, b, at_x), address(p, b, at_y), address(p, b, at_weights)
        bias, inner_bias, scales = address(p, b, at_bias), address(p, b, at_inner), address(p, b, at_scales)
        height, width, channels = word(p, at_height), word(p, at_width), word(p, at_channels)
        out_height, out_width = word(p, at_out_height), word(p, at_out_width)
        kh, kw, sh, sw = word(p, at_kh), word(p, at_kw), word(p, at_sh), word(p, at_sw)
        dh, dw, top, left, tap = word(p, at_dh), word(p, at_dw), word(p, at_top), word(p, at_left), word(p, at_row)
        zero_in, zero, least, most = real(p, at_zero_in), real(p, at_zero), real(p, at_least), real(p, at_most)
        low, high = share(word(p, at_batch) * out_height, tid, nt)
        for row in range(low, high):
            n = row // out_height
            h0 = (row - n * out_height) * sh - top
            # The first tap of each kind inside the image, and one past the last.
            r0, r1 = max(0, (dh - 1 - h0) // dh), min(kh, (height - h0 + dh - 1) // dh)
            image = x + n * height * width * channels
            ow = 0
            while ow < out_width:
                w0 = ow * sw - left
                result = y + (row * out_width + ow) * channels
                if (
                    kernel_w > 0
                    and r1 - r0 == kh
                    and w0 >= 0
                    and ow + STRIP <= out_width
                    and w0 + (STRIP - 1) * sw + kw <= width
                ):
                    strip(
                        image + (h0 * width + w0) * channels, dh * width * channels, channels, kh, weights, kw * tap,
                        tap, inner_bias, scales, result, channels, zero, least, most,
                    )  # fmt: skip
                    ow += STRIP
                    continue
                c0, c1 = max(0, (dw - 1 - w0) // dw), min(kw, (width - w0 + dw - 1) // dw)
                if r1 > r0 and c1 > c0:
                    single(
                        image + ((h0 + r0 * dh) * width + w0 + c0 * dw) * channels, dh * width * channels,
                        dw * channels, r1 - r0, c1 - c0, weights + (r0 * kw + c0) * tap, kw * tap, tap, bias, scales,
                        result, channels, zero_in, zero, least, most,
                    )  # fmt: skip
                else:
                    # No tap exists; one row of zeros follows the weights.
                    single(
                        image, 0, 0, 1, 1, weights + kh * kw * tap, 0, 0, bias, scales, result, channels, zero_in,
                        zero, least, most,
                    )  # fmt: skip
                ow += 1

    return kernel


def _no_strip() -> Any:
    @device
    def strip(x, a, c, d, e, f, g, h, i, j, k, zero, least, most):  # type: ignore[no-untyped-def]
        return None

    return strip


