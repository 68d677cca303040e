"""Lowering of pooling: a work-item computes a vector of channels of one pixel."""

from __future__ import annotations

from math import prod

from isthmus.backends.gpu.compile.kernel_source import by_axis
from isthmus.backends.gpu.compile.lowering.chains import Epilogue, limit_links
from isthmus.backends.gpu.compile.lowering.elementwise import is_real
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.backends.gpu.compile.lowering.reduction import emit_columns
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.windows import POOLS, pool_window
from isthmus.prepare.schedule import Step

# For each kind of pooling: the initial v, how an element u of the window updates v, and the final v.
_START = {"max": "-INFINITY", "avg": "0.0f", "l2": "0.0f"}
_MORE = {"max": "v = u > v || u != u ? u : v;", "avg": "v += u;", "l2": "v += u * u;"}
_END = {"max": "", "avg": "v = v / count;", "l2": "v = sqrt(v / count);"}


def _emit(step: Step, e: KernelEmitter, name: str) -> None:
    """Emit pooling of a kind; a window that covers all of an image is a reduction of its pixels."""
    x, output = operand(step), step.outputs[0]
    w = pool_window(step)
    if w.covers_all and name != "l2" and not x.dtype.is_fixed_point:
        area = prod(w.size)
        emit_columns(
            e, x, output, "max" if name == "max" else "sum", w.batches, area, w.channels, limit_links(step.clamp),
            1.0 / area if name == "avg" else 1.0,
        )  # fmt: skip
        return
    kernel = e.kernel()
    storage = kernel.tensor("x", x)
    width = 1 if w.channels % 4 else 4
    blocks, pixels = w.channels // width, w.pixels
    kernel.ints(
        C=w.channels, blocks=blocks, pixels=pixels, **by_axis("", w.size), **by_axis("O", w.out),
        **by_axis("K", w.kernel), **by_axis("s", w.stride), **by_axis("p", w.pad), **by_axis("e", w.after),
        edges=int(bool(step.params.get("count_pad_for_edges"))),
    )  # fmt: skip
    tail = Epilogue(e, kernel, output, limit_links(step.clamp))
    real = "float" if width == 1 else f"float{width}"
    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= pixels * blocks) return;",
        f"  int pixel = item / blocks, c = item % blocks * {width};",
        "  int ox = pixel % OW, oy = pixel / OW % OH, oz = pixel / (OW * OH) % OD, b = pixel / (OW * OH * OD);",
        "  int z0 = oz * sd - pd, y0 = oy * sh - ph, x0 = ox * sw - pw;",
        "  int z1 = min(z0 + KD, D), y1 = min(y0 + KH, H), x1 = min(x0 + KW, W);",
        "  float count = edges ? (float)(min(z0 + KD, D + ed) - z0) * (min(y0 + KH, H + eh) - y0)"
        " * (min(x0 + KW, W + ew) - x0)"
        " : (float)max(z1 - max(z0, 0), 0) * max(y1 - max(y0, 0), 0) * max(x1 - max(x0, 0), 0);",
        "  count = max(count, 1.0f);",
        "  z0 = max(z0, 0); y0 = max(y0, 0); x0 = max(x0, 0);",
        f"  {real} v = ({real})({_START[name]});",
        "  for (int z = z0; z < z1; ++z) for (int yy = y0; yy < y1; ++yy) for (int xx = x0; xx < x1; ++xx) {",
        f"    {real} u = {storage.load('x', '(((b * D + z) * H + yy) * W + xx) * C + c', width)};",
        f"    {_MORE[name]}",
        "  }",
        f"  {_END[name]}",
        *(f"  {line}" for line in tail.lines(width, "pixel * C + c", "c")),
    ]
    kernel.launch("pool", lines, (pixels * blocks,), (128,))


def _refuses(step: Step) -> str | None:
    """Return why pooling cannot be executed, or None: elements must be reals."""
    if is_real(operand(step)) and is_real(step.outputs[0]):
        return None
    return f"windows of {operand(step).describe()} are not supported"


def _pool(name: str) -> KernelLowering:
    """Return the lowering of a kind of pooling: "max", "avg" or "l2"."""
    return KernelLowering(lambda step, e: _emit(step, e, name), refuses=_refuses, takes_chain=True)


LOWERINGS: dict[str, KernelLowering] = {op: _pool(name) for op, name in POOLS.items()}
