"""Lowering of softmax and of the normalisations: statistics over rows of runs, one set of elements at a time.

Elements are seen as [outer, rows, groups, run]; those of one outer index and one group form a set. On a GPU a
work-group processes a set, on a CPU a work-item does.
"""

from __future__ import annotations

from math import prod

from isthmus.backends.gpu.compile.lowering.chains import Epilogue, limit_links, plain
from isthmus.backends.gpu.compile.lowering.elementwise import is_real
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering
from isthmus.graph import Tensor
from isthmus.graph.ops.reduction import ACROSS_ALL, ACROSS_CHANNEL, LRN_ACROSS_CHANNEL, RMS
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.reduction import norm_span, refuses_norm_axes
from isthmus.prepare.schedule import Step

# Work-items of a work-group on a GPU, which share a set.
_GROUP = 128
_PASSES: dict[str, tuple[list[tuple[str, str, str]], str]] = {
    # For each pass: the initial s, how an element u updates s, and the final value (p0, p1). Then the result for u.
    "softmax": (
        [("-INFINITY", "s = fmax(s, u * beta);", "s"), ("0.0f", "s += exp(u * beta - p0);", "1.0f / s")],
        "exp(u * beta - p0) * p1",
    ),
    "log_softmax": (
        [("-INFINITY", "s = fmax(s, u * beta);", "s"), ("0.0f", "s += exp(u * beta - p0);", "log(s)")],
        "u * beta - p0 - p1",
    ),
    "moments": (
        [("0.0f", "s += u;", "s / count"), ("0.0f", "s += (u - p0) * (u - p0);", "1.0f / sqrt(s / count + beta)")],
        "(u - p0) * p1",
    ),
    "mean": ([("0.0f", "s += u;", "s / count")], "u - p0"),
    "rms": ([("0.0f", "s += u * u;", "1.0f / sqrt(s / count + beta)")], "u * p0"),
    "l2": ([("0.0f", "s += u * u;", "1.0f / fmax(sqrt(s), beta)")], "u * p0"),
}


def _emit_sets(
    step: Step, e: KernelEmitter, variant: str, shape: tuple[int, int, int, int], parameter: float, affine: bool
) -> None:
    """Emit the normalisation of each set of elements."""
    # - `parameter`: The value that the passes call beta: softmax's factor, or what keeps a norm from dividing by 0.
    # - `affine`: Whether operands 1 and 2 are factors and offsets for each channel of the results.
    x, output = operand(step), step.outputs[0]
    outer, rows, groups, run = shape
    kernel = e.kernel()
    storage = kernel.tensor("x", x)
    kernel.ints(outer=outer, rows=rows, groups=groups, run=run)
    kernel.floats(beta=parameter, count=float(rows * run))
    # Names of the factors and offsets in the kernel, and how they are stored.
    weights = []
    for name, index in (("gamma", 1), ("offset", 2)):
        tensor = plain(step.inputs[index]) if affine and len(step.inputs) > index else None
        if tensor is not None:
            weights.append((name, kernel.tensor(name, tensor)))
    tail = Epilogue(e, kernel, output, limit_links(step.clamp))
    passes, result = _PASSES[variant]
    load = f"float u = {storage.load('x', 'base + r * groups * run + c')};"
    lines = [
        f"  int set = {'get_group_id(0)' if e.gpu else 'get_global_id(0)'}, g = set % groups;",
        "  int base = set / groups * rows * groups * run + g * run;",
    ]
    if e.gpu:
        lines += [f"  local float parts[{_GROUP}];", "  int lane = get_local_id(0);"]

    def over_set(body: list[str]) -> list[str]:
        """Return a loop over the elements u of the set, of which a work-item of a GPU takes every 128th."""
        if e.gpu:
            return [
                f"  for (int j = lane; j < rows * run; j += {_GROUP}) {{",
                "    int r = j / run, c = j - r * run;",
                f"    {load}",
                *(f"    {line}" for line in body),
                "  }",
            ]
        return [
            "  for (int r = 0; r < rows; ++r)",
            "  for (int c = 0; c < run; ++c) {",
            f"    {load}",
            *(f"    {line}" for line in body),
            "  }",
        ]

    for number, (start, more, end) in enumerate(passes):
        lines.append(f"  float p{number};")
        lines.append("  {")
        lines.append(f"  float s = {start};")
        lines += over_set([more])
        if e.gpu:
            # The work-items add up their values of s in a tree, or take the largest.
            joined = "fmax(parts[lane], parts[lane + n])" if "fmax(s," in more else "parts[lane] + parts[lane + n]"
            lines += [
                "  parts[lane] = s;",
                "  barrier(CLK_LOCAL_MEM_FENCE);",
                f"  for (int n = {_GROUP // 2}; n > 0; n >>= 1) {{",
                f"    if (lane < n) parts[lane] = {joined};",
                "    barrier(CLK_LOCAL_MEM_FENCE);",
                "  }",
                "  s = parts[0];",
                "  barrier(CLK_LOCAL_MEM_FENCE);",
            ]
        lines.append(f"  p{number} = {end};")
        lines.append("  }")
    body = [f"float v = {result};", "int channel = g * run + c;"]
    for name, stored in weights:
        body.append(f"v = v {'*' if name == 'gamma' else '+'} {stored.load(name, 'channel')};")
    lines += over_set([*body, *tail.lines(1, "base + r * groups * run + c", "channel")])
    kernel.launch("normalize", lines, (outer * groups * (_GROUP if e.gpu else 1),), (_GROUP if e.gpu else 1,))


def _sets(x: Tensor, first: int, last: int) -> tuple[int, int, int, int]:
    """Return the shape of the elements as [outer, rows, groups, run], for sets over axes `first` to `last`."""
    outer, length, inner = prod(x.dims[:first]), prod(x.dims[first : last + 1]), prod(x.dims[last + 1 :])
    return (outer, 1, 1, length) if inner == 1 else (outer, length, inner, 1)


def _emit_softmax(step: Step, e: KernelEmitter, variant: str) -> None:
    """Emit a softmax or log-softmax along one axis; elements of the axes behind it are groups of a run of 1."""
    x = operand(step)
    axis = x.rank - 1 if step.params["axis"] is None else int(step.params["axis"]) % max(x.rank, 1)
    _emit_sets(step, e, variant, _sets(x, axis, axis), float(step.params["beta"]), False)


def _emit_axes(step: Step, e: KernelEmitter, variant: str) -> None:
    """Emit a norm over adjacent axes; elements of the axes behind them are groups of a run of 1."""
    first, last = norm_span(step)
    _emit_sets(step, e, variant, _sets(operand(step), first, last), float(step.params["epsilon"]), True)


def _emit_instance(step: Step, e: KernelEmitter) -> None:
    """Emit an instance norm over the region that it names: the channels of a pixel, all elements, or one channel."""
    x, params = operand(step), step.params
    variant = "rms" if params["mode"] == RMS else "moments" if params["normalize_variance"] else "mean"
    batch, spatial, channels = x.dims[0], prod(x.dims[1:-1]), x.dims[-1]
    shape = {ACROSS_CHANNEL: (batch * spatial, 1, 1, channels), ACROSS_ALL: (batch, spatial, 1, channels)}.get(
        params["region"], (batch, spatial, channels, 1)
    )
    _emit_sets(step, e, variant, shape, float(params["epsilon"]), True)


def _emit_group(step: Step, e: KernelEmitter) -> None:
    """Emit a norm over each group of channels of an image."""
    x, groups = operand(step), int(step.params["group"])
    shape = (x.dims[0], prod(x.dims[1:-1]), groups, x.dims[-1] // groups)
    _emit_sets(step, e, "moments", shape, float(step.params["epsilon"]), True)


def _emit_lrn(step: Step, e: KernelEmitter) -> None:
    """Emit a local response norm: each element divided by a power of the squares of the channels around it."""
    x, output, params = operand(step), step.outputs[0], step.params
    kernel = e.kernel()
    storage = kernel.tensor("x", x)
    kernel.ints(count=x.elements, C=x.dims[-1], radius=int(params["radius"]))
    kernel.floats(alpha=float(params["alpha"]), beta=float(params["beta"]), plus=float(params["bias"]))
    tail = Epilogue(e, kernel, output, limit_links(step.clamp))
    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= count) return;",
        "  int c = item % C, row = item - c;",
        "  float s = 0.0f;",
        "  for (int k = max(c - radius, 0); k <= min(c + radius, C - 1); ++k) {",
        f"    float u = {storage.load('x', 'row + k')};",
        "    s += u * u;",
        "  }",
        f"  float v = {storage.load('x', 'item')} / pow(plus + alpha * s, beta);",
        *(f"  {line}" for line in tail.lines(1, "item", "c")),
    ]
    kernel.launch("local_response", lines, (x.elements,), (64,))


def _refuses(step: Step) -> str | None:
    """Return why a norm cannot be executed, or None; only constant factors and offsets are converted to floats."""
    for tensor in (*step.inputs, *step.outputs):
        if tensor is not None and not is_real(tensor):
            return f"{tensor.describe()} must be a float or fixed point"
    for tensor in step.inputs[1:]:
        if tensor is not None and tensor.dtype.is_fixed_point and not tensor.is_static:
            return f"{tensor.describe()} must be a float or a constant"
    return None


def _refuses_axes(step: Step) -> str | None:
    return _refuses(step) or refuses_norm_axes(step)


def _refuses_lrn(step: Step) -> str | None:
    """Return why a local response norm cannot be executed, or None: its kernel sums over channels, not over pixels."""
    across = step.params["region"] == LRN_ACROSS_CHANNEL
    return _refuses(step) or (None if across else "only the region across channels is supported")


LOWERINGS: dict[str, KernelLowering] = {
    "Softmax": KernelLowering(lambda step, e: _emit_softmax(step, e, "softmax"), refuses=_refuses),
    "LogSoftmax": KernelLowering(lambda step, e: _emit_softmax(step, e, "log_softmax"), refuses=_refuses),
    "LayerNorm": KernelLowering(lambda step, e: _emit_axes(step, e, "moments"), refuses=_refuses_axes),
    "RmsNorm": KernelLowering(lambda step, e: _emit_axes(step, e, "rms"), refuses=_refuses_axes),
    "L2Norm": KernelLowering(lambda step, e: _emit_axes(step, e, "l2"), refuses=_refuses_axes),
    "InstanceNorm": KernelLowering(_emit_instance, refuses=_refuses),
    "GroupNorm": KernelLowering(_emit_group, refuses=_refuses),
    "Lrn": KernelLowering(_emit_lrn, refuses=_refuses_lrn),
}
