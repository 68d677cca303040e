"""Depth-wise convolutions: each channel has its own filters.

A work-item computes one pixel of a vector of channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.backends.gpu.compile.kernel_source import by_axis
from isthmus.backends.gpu.compile.lowering.chains import Epilogue
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, Link
from isthmus.backends.gpu.compile.lowering.matmul import zero_of
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import Tensor
from isthmus.prepare.geometry.windows import ConvWindow


def emit_depth_wise(
    e: KernelEmitter,
    x: Tensor,
    window: ConvWindow,
    weights: np.ndarray,
    biases: np.ndarray | None,
    output: Tensor,
    links: Sequence[Link],
) -> None:
    """Emit a convolution with weights [taps, filters], filter f over channel f // multiplier.

    `links` are applied to the sums. A work-item computes four channels if each has one filter, else one.
    """
    multiplier = window.filters // window.channels
    kernel, storage = e.kernel(), e.storage(x)
    place, stored = e.weights(weights)
    kernel.memory("x", e.at(x), storage.c_type)
    kernel.memory("w", place, stored.c_type)
    if biases is not None:
        kernel.memory("bias", e.constant(np.asarray(biases, np.float32)), "float")
    if storage.quantized:
        kernel.floats(x_zero=float(zero_of(x)))
    width = 4 if multiplier == 1 and window.filters % 4 == 0 else 1
    blocks = -(-window.filters // width)
    lines = window.batches * window.out[0] * window.out[1]
    kernel.ints(
        F=window.filters, channels=window.channels, multiplier=multiplier, blocks=blocks, lines=lines,
        **by_axis("", window.size), **by_axis("O", window.out), **by_axis("K", window.kernel),
        **by_axis("s", window.stride), **by_axis("d", window.dilation), **by_axis("p", window.pad),
    )  # fmt: skip
    tail = Epilogue(e, kernel, output, links, x.dtype.is_fixed_point)
    # Vectors may be read and written as such if those of the image and of the result are aligned.
    ends = (e.at(x), storage), (e.at(tail.output), tail.storage)
    aligned = e.gpu and width > 1 and all(s.kind == "f32" and at.offset % (4 * width) == 0 for at, s in ends)
    body = _body(storage, stored, tail, width, biases is not None, multiplier, window, aligned)
    kernel.launch("depth_wise", [body], (blocks * window.out[2] * lines,), (128,))


def _body(
    storage: OperandStorage,
    stored: OperandStorage,
    tail: Epilogue,
    width: int,
    biased: bool,
    multiplier: int,
    window: ConvWindow,
    aligned: bool,
) -> str:
    """Return the body of the kernel."""
    real = "float" if width == 1 else f"float{width}"
    channel = "f" if multiplier == 1 else "f / multiplier"
    start = (f"*(global const float{width} *)(bias + f)" if width > 1 else "bias[f]") if biased else f"({real})(0.0f)"
    place = f"(((b * D + iz) * H + iy) * W + ix) * channels + {channel}"
    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= blocks * OW * lines) return;",
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
        f"        v = fma({storage.load_whole('x', place, width, aligned)}, u, v);",
        "      }",
        "    }",
        "  }",
        *(f"  {line}" for line in tail.lines(width, "(line * OW + ox) * F + f", "f", aligned)),
    ]
    return "\n".join(lines)
