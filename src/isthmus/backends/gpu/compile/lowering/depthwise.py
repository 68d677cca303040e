"""Depth-wise convolutions: each channel with filters of its own.

A work-item computes a few neighbouring pixels of a vector of channels, so that filters are read once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.backends.gpu.compile.lowering.chains import Epilogue
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, Link
from isthmus.backends.gpu.compile.lowering.matmul import zero_of
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import Tensor
from isthmus.prepare.geometry.windows import ConvWindow

_UNROLLED = 11
"""Taps in a row that are written one after the other."""


def emit_depth_wise(
    e: KernelEmitter,
    x: Tensor,
    window: ConvWindow,
    weights: np.ndarray,
    biases: np.ndarray | None,
    output: Tensor,
    links: Sequence[Link],
) -> None:
    """Emit a convolution with weights [taps, filters], filter f over channel f // multiplier."""
    multiplier = window.filters // window.channels
    draft, storage = e.draft(), e.storage(x)
    place, stored = e.weights(weights)
    draft.memory("x", e.at(x), storage.c_type)
    draft.memory("w", place, stored.c_type)
    if biases is not None:
        draft.memory("bias", e.constant(np.asarray(biases, np.float32)), "float")
    if storage.quantized:
        draft.floats(x_zero=float(zero_of(x)))
    width = _width(e, window.filters if multiplier == 1 else 1)
    across = 1 if e.gpu else 4
    tiles = -(-window.out[2] // across)
    blocks = -(-window.filters // width)
    lines = window.batches * window.out[0] * window.out[1]
    draft.ints(
        F=window.filters, channels=window.channels, multiplier=multiplier, blocks=blocks, tiles=tiles, lines=lines,
        D=window.size[0], H=window.size[1], W=window.size[2], OD=window.out[0], OH=window.out[1], OW=window.out[2],
        KD=window.kernel[0], KH=window.kernel[1], KW=window.kernel[2],
        sd=window.stride[0], sh=window.stride[1], sw=window.stride[2],
        dd=window.dilation[0], dh=window.dilation[1], dw=window.dilation[2],
        pd=window.pad[0], ph=window.pad[1], pw=window.pad[2],
    )  # fmt: skip
    tail = Epilogue(e, draft, output, links, x.dtype.is_fixed_point)
    if e.gpu:
        ends = (e.at(x), storage), (e.at(tail.output), tail.storage)
        aligned = width > 1 and all(s.kind == "f32" and place.offset % (4 * width) == 0 for place, s in ends)
        body = _gpu_body(storage, stored, tail, width, biases is not None, multiplier, window, aligned)
        e.launch("depth_wise", draft, body, (blocks * tiles * lines,), (128,))
    else:
        body = _cpu_body(storage, stored, tail, width, across, biases is not None, multiplier, window)
        e.launch("depth_wise", draft, body, (1, lines, 1), (1, 1, 1))


def _width(e: KernelEmitter, channels: int) -> int:
    width = 4 if e.gpu else 8
    while width > 1 and channels % width:
        width //= 2
    return width if width != 2 else 1


def _value(storage: OperandStorage, name: str, index: str, width: int, aligned: bool = False) -> str:
    if not storage.quantized:
        return storage.load(name, index, width, aligned)
    if width == 1:
        return f"((float){name}[{index}] - x_zero)"
    return f"(convert_float{width}(*(global const {storage.c_type}{width}_u *)({name} + ({index}))) - x_zero)"


def _row(
    storage: OperandStorage,
    stored: OperandStorage,
    width: int,
    across: int,
    channel: str,
    window: ConvWindow,
    inside: bool,
) -> list[str]:
    """A row of taps for all pixels of a tile: each place of it is read once, whatever taps meet there."""
    real = "float" if width == 1 else f"float{width}"
    taps, stride, dilation = window.kernel[2], window.stride[2], window.dilation[2]
    meetings: dict[int, list[tuple[int, int]]] = {}
    for p in range(across):
        for k in range(taps):
            meetings.setdefault(p * stride + k * dilation, []).append((p, k))
    lines = []
    for place, pairs in sorted(meetings.items()):
        check = "" if inside else f"if ((uint)(ix0 + {place}) < (uint)W) "
        sums = " ".join(f"a{p} = s * u{k} + a{p};" for p, k in pairs)
        lines.append(f"      {check}{{ {real} s = {_value(storage, 'at', f'{place} * channels', width)}; {sums} }}")
    return [
        f"      global const {storage.c_type} *at = x + (((b * D + iz) * H + iy) * W + ix0) * channels + {channel};",
        *(
            f"      {real} u{k} = {stored.load('w', f'((kz * KH + ky) * {taps} + {k}) * F + f', width)};"
            for k in range(taps)
        ),
        *lines,
    ]


def _long_row(
    storage: OperandStorage,
    stored: OperandStorage,
    width: int,
    across: int,
    channel: str,
    window: ConvWindow,
    inside: bool,
) -> list[str]:
    """The same as a loop, tap by tap."""
    real = "float" if width == 1 else f"float{width}"
    lines = [
        "      for (int kx = 0; kx < KW; ++kx) {",
        f"      {real} u = {stored.load('w', '((kz * KH + ky) * KW + kx) * F + f', width)};",
        f"      global const {storage.c_type} *at ="
        f" x + (((b * D + iz) * H + iy) * W + ix0 + kx * dw) * channels + {channel};",
    ]
    for p in range(across):
        check = "" if inside else f"if ((uint)(ix0 + {p} * sw + kx * dw) < (uint)W) "
        lines.append(f"      {check}a{p} = {_value(storage, 'at', f'{p} * sw * channels', width)} * u + a{p};")
    return [*lines, "      }"]


def _cpu_body(
    storage: OperandStorage,
    stored: OperandStorage,
    tail: Epilogue,
    width: int,
    across: int,
    biased: bool,
    multiplier: int,
    window: ConvWindow,
) -> str:
    real = "float" if width == 1 else f"float{width}"
    channel = "f" if multiplier == 1 else "f / multiplier"
    start = (f"*(global const float{width}_u *)(bias + f)" if width > 1 else "bias[f]") if biased else "0.0f"
    pixels = range(across)
    row = _row if window.kernel[2] <= _UNROLLED else _long_row
    lines = [
        "  int line = get_global_id(1);",
        "  int oy = line % OH, oz = line / OH % OD, b = line / (OH * OD);",
        "  int iy0 = oy * sh - ph, iz0 = oz * sd - pd;",
        f"  for (int ox = 0; ox < OW; ox += {across}) {{",
        f"  int ix0 = ox * sw - pw, last = ix0 + {across - 1} * sw, count = min({across}, OW - ox);",
        f"  int whole = count == {across} && ix0 >= 0 && last + (KW - 1) * dw < W;",
        f"  for (int f = 0; f < F; f += {width}) {{",
        *(f"    {real} a{p} = {start};" for p in pixels),
        "    for (int kz = 0; kz < KD; ++kz) {",
        "    int iz = iz0 + kz * dd;",
        "    if ((uint)iz >= (uint)D) continue;",
        "    for (int ky = 0; ky < KH; ++ky) {",
        "    int iy = iy0 + ky * dh;",
        "    if ((uint)iy >= (uint)H) continue;",
        "    if (whole) {",
        *row(storage, stored, width, across, channel, window, True),
        "    } else {",
        *row(storage, stored, width, across, channel, window, False),
        "    }",
        "    } }",
        "    int y_at = (line * OW + ox) * F + f;",
    ]
    for p in pixels:
        lines.append(f"    if ({p} < count) {{ {real} v = a{p};")
        lines += [f"      {line}" for line in tail.lines(width, f"y_at + {p} * F", "f")]
        lines.append("    }")
    lines += ["  }", "  }"]
    return "\n".join(lines)


def _gpu_body(
    storage: OperandStorage,
    stored: OperandStorage,
    tail: Epilogue,
    width: int,
    biased: bool,
    multiplier: int,
    window: ConvWindow,
    aligned: bool,
) -> str:
    real = "float" if width == 1 else f"float{width}"
    channel = "f" if multiplier == 1 else "f / multiplier"
    start = (f"*(global const float{width} *)(bias + f)" if width > 1 else "bias[f]") if biased else f"({real})(0.0f)"
    place = f"(((b * D + iz) * H + iy) * W + ix) * channels + {channel}"
    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= blocks * tiles * lines) return;",
        f"  int f = item % blocks * {width}, ox = item / blocks % OW, line = item / (blocks * OW);",
        "  int oy = line % OH, oz = line / OH % OD, b = line / (OH * OD);",
        "  int ix0 = ox * sw - pw, iy0 = oy * sh - ph, iz0 = oz * sd - pd;",
        f"  {real} v = {start};",
        f"  for (int kz = 0; kz < {window.kernel[0]}; ++kz)",
        f"  for (int ky = 0; ky < {window.kernel[1]}; ++ky) {{",
        "    int iy = iy0 + ky * dh, iz = iz0 + kz * dd;",
        "    if ((uint)iy >= (uint)H || (uint)iz >= (uint)D) continue;",
        "    #pragma unroll",
        f"    for (int kx = 0; kx < {window.kernel[2]}; ++kx) {{",
        "      int ix = ix0 + kx * dw;",
        "      if ((uint)ix < (uint)W) {",
        f"        {real} u = {stored.load('w', '((kz * KH + ky) * KW + kx) * F + f', width, width > 1)};",
        f"        v = fma({_value(storage, 'x', place, width, aligned)}, u, v);",
        "      }",
        "    }",
        "  }",
        *(f"  {line}" for line in tail.lines(width, "(line * OW + ox) * F + f", "f", aligned)),
    ]
    return "\n".join(lines)
