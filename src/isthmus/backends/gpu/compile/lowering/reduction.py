"""Lowering of reductions. Any set of axes becomes rows, columns or a walk over kept and reduced axes.

For columns, work-items process adjacent vectors of channels and share the reduced elements among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from isthmus.backends.gpu.compile.kernel_source import KernelSource
from isthmus.backends.gpu.compile.lowering.chains import Epilogue, limit_links
from isthmus.backends.gpu.compile.lowering.elementwise import is_real
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering, Link
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import Tensor
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.reduction import REDUCTIONS, Reduction, around, reduction
from isthmus.prepare.schedule import Step

# The initial v of a reduction, and how an element u updates it; comparisons keep a NaN.
START = {"sum": "0", "prod": "1", "max": "-INFINITY", "min": "INFINITY"}
MORE = {
    "sum": "v = v + u;",
    "prod": "v = v * u;",
    "max": "v = u > v || u != u ? u : v;",
    "min": "v = u < v || u != u ? u : v;",
}
_INTEGER_START = {
    ("max", "i32"): "INT_MIN", ("min", "i32"): "INT_MAX", ("max", "i64"): "LONG_MIN", ("min", "i64"): "LONG_MAX",
    ("max", "u32"): "0", ("min", "u32"): "UINT_MAX", ("max", "i8"): "CHAR_MIN", ("min", "i8"): "CHAR_MAX",
    ("max", "u8"): "0", ("min", "u8"): "UCHAR_MAX", ("max", "i16"): "SHRT_MIN", ("min", "i16"): "SHRT_MAX",
    ("max", "u16"): "0", ("min", "u16"): "USHRT_MAX", ("max", "u64"): "0", ("min", "u64"): "ULONG_MAX",
}  # fmt: skip
# The shape of a work-group for columns on a GPU: adjacent columns, and work-items that share one.
_LANES, _SLICES = 16, 16
# Work-items of a work-group on a GPU, which share a row.
_ROW_GROUP = 128


def _start(function: str, storage: OperandStorage) -> str:
    """Return the initial value of a reduction; integers have no infinity, so theirs depends on their type."""
    return START[function] if storage.real else _INTEGER_START.get((function, storage.kind), START[function])


def _begin(
    e: KernelEmitter, x: Tensor, output: Tensor, links: Sequence[Link], factor: float, **sizes: int
) -> tuple[KernelSource, OperandStorage, Epilogue]:
    """Start the kernel of a reduction; return it with the storage of its operand and what it does with results."""
    kernel = e.kernel()
    storage = kernel.tensor("x", x)
    kernel.ints(**sizes)
    kernel.floats(factor=factor)
    return kernel, storage, Epilogue(e, kernel, output, links)


def emit_columns(
    e: KernelEmitter,
    x: Tensor,
    output: Tensor,
    function: str,
    outer: int,
    length: int,
    inner: int,
    links: Sequence[Link],
    factor: float = 1.0,
) -> None:
    """Emit a reduction of the middle axis of [outer, length, inner].

    - `links`: The functions that are applied to each result.
    - `factor`: What each result is multiplied by before `links`, such as one over the length for a mean.
    """
    kernel, storage, tail = _begin(e, x, output, links, factor, outer=outer, length=length, inner=inner)
    computed, start, more = storage.computed, _start(function, storage), MORE[function]
    scaled = "v = v * factor;" if storage.real else ""
    if e.gpu:
        lines = [
            f"  local {computed} parts[{_SLICES}][{_LANES}];",
            "  int lane = get_local_id(0), slice = get_local_id(1);",
            f"  int i = get_group_id(0) * {_LANES} + lane, o = get_group_id(1);",
            f"  {computed} v = {start};",
            "  if (i < inner)",
            f"    for (int k = slice; k < length; k += {_SLICES}) {{",
            f"      {computed} u = {storage.load('x', '(o * length + k) * inner + i')};",
            f"      {more}",
            "    }",
            "  parts[slice][lane] = v;",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            "  if (slice == 0 && i < inner) {",
            f"    for (int s = 1; s < {_SLICES}; ++s) {{ {computed} u = parts[s][lane]; {more} }}",
            f"    {scaled}",
            *(f"    {line}" for line in tail.lines(1, "o * inner + i", "i")),
            "  }",
        ]
        kernel.launch("columns", lines, (-(-inner // _LANES) * _LANES, outer * _SLICES), (_LANES, _SLICES))
        return
    # On a CPU a work-item reduces 64 columns: vectors of 8 first, then what is left one by one.
    lines = ["  int o = get_global_id(0), i = get_global_id(1) * 64, last = min(i + 64, inner);"]
    for width in (8, 1) if storage.real else (1,):
        real = computed if width == 1 else f"{computed}{width}"
        lines += [
            f"  for (; i + {width} <= last; i += {width}) {{",
            f"    {real} v = ({real})({start});",
            "    for (int k = 0; k < length; ++k) {",
            f"      {real} u = {storage.load('x', '(o * length + k) * inner + i', width)};",
            f"      {more}",
            "    }",
            f"    {scaled}",
            *(f"    {line}" for line in tail.lines(width, "o * inner + i", "i")),
            "  }",
        ]
    kernel.launch("columns", lines, (outer, -(-inner // 64)), (1, 1))


def emit_rows(
    e: KernelEmitter,
    x: Tensor,
    output: Tensor,
    function: str,
    rows: int,
    length: int,
    links: Sequence[Link],
    factor: float = 1.0,
) -> None:
    """Emit a reduction of each of `rows` rows of `length` elements; parameters as for `emit_columns`."""
    kernel, storage, tail = _begin(e, x, output, links, factor, rows=rows, length=length)
    computed, start, more = storage.computed, _start(function, storage), MORE[function]
    scaled = "v = v * factor;" if storage.real else ""
    if e.gpu:
        lines = [
            f"  local {computed} parts[{_ROW_GROUP}];",
            "  int lane = get_local_id(0), row = get_group_id(0);",
            f"  {computed} v = {start};",
            f"  for (int k = lane; k < length; k += {_ROW_GROUP}) {{",
            f"    {computed} u = {storage.load('x', 'row * length + k')};",
            f"    {more}",
            "  }",
            "  parts[lane] = v;",
            "  barrier(CLK_LOCAL_MEM_FENCE);",
            f"  for (int s = {_ROW_GROUP // 2}; s > 0; s >>= 1) {{",
            f"    if (lane < s) {{ {computed} u = parts[lane + s]; v = parts[lane]; {more} parts[lane] = v; }}",
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            "  }",
            "  if (lane == 0) {",
            "    v = parts[0];",
            f"    {scaled}",
            *(f"    {line}" for line in tail.lines(1, "row", "0")),
            "  }",
        ]
        kernel.launch("rows", lines, (rows * _ROW_GROUP,), (_ROW_GROUP,))
        return
    lines = [
        "  int row = get_global_id(0);",
        f"  {computed} v = {start};",
        "  for (int k = 0; k < length; ++k) {",
        f"    {computed} u = {storage.load('x', 'row * length + k')};",
        f"    {more}",
        "  }",
        f"  {scaled}",
        *(f"  {line}" for line in tail.lines(1, "row", "0")),
    ]
    kernel.launch("rows", lines, (rows,), (1,))


def _emit_walk(
    e: KernelEmitter, x: Tensor, output: Tensor, function: str, axes: Reduction, links: Sequence[Link], factor: float
) -> None:
    """Emit a reduction of axes that alternate with kept ones; each work-item computes one result."""
    # Sizes and strides of the axes that are kept and of those that are reduced, innermost first.
    inner = [(axes.run, 1)]
    remaining, reduced = (axes.kept, inner + axes.reduced) if axes.reduces_run else (inner + axes.kept, axes.reduced)
    kernel, storage, tail = _begin(e, x, output, links, factor, count=output.elements, length=axes.count)
    computed = storage.computed

    def split_number(name: str, number: str, sizes: list[tuple[int, int]]) -> list[str]:
        """Return statements that split a number into indices of axes and add up their strides in variable `name`."""
        lines = [f"int rest_{name} = {number}, {name} = 0;"]
        for level, (size, stride) in enumerate(sizes):
            kernel.ints(**{f"{name}_d{level}": size, f"{name}_s{level}": stride})
            lines.append(f"{name} += rest_{name} % {name}_d{level} * {name}_s{level}; rest_{name} /= {name}_d{level};")
        return lines

    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= count) return;",
        *(f"  {line}" for line in split_number("base", "item", remaining)),
        f"  {computed} v = {_start(function, storage)};",
        "  for (int k = 0; k < length; ++k) {",
        *(f"    {line}" for line in split_number("at", "k", reduced)),
        f"    {computed} u = {storage.load('x', 'base + at')};",
        f"    {MORE[function]}",
        "  }",
        "  v = v * factor;" if storage.real else "",
        *(f"  {line}" for line in tail.lines(1, "item", "0")),
    ]
    kernel.launch("reduce", lines, (output.elements,), (64,))


def _emit_reduce(step: Step, e: KernelEmitter, name: str) -> None:
    """Emit a reduction as rows or columns if its axes are adjacent, else as a walk; a mean is a sum with a factor."""
    x, output = operand(step), step.outputs[0]
    function = "sum" if name == "mean" else name
    axes, links = reduction(step), limit_links(step.clamp)
    factor = 1.0 / axes.count if name == "mean" and axes.count else 1.0
    if not axes.count or not x.elements:
        # The reduction of no elements is the initial value; the mean of none is NaN.
        emit_rows(e, x, output, function, output.elements, 0, links, float("nan") if name == "mean" else 1.0)
    elif axes.reduces_run and not axes.reduced:
        emit_rows(e, x, output, function, output.elements, axes.run, links, factor)
    elif not axes.reduced:
        # Nothing is reduced but axes of one element.
        emit_rows(e, x, output, function, output.elements, 1, links, factor)
    elif not axes.reduces_run and len(axes.reduced) == 1:
        outer = prod(size for size, _ in axes.kept)
        emit_columns(e, x, output, function, outer, axes.runs, axes.run, links, factor)
    else:
        _emit_walk(e, x, output, function, axes, links, factor)


def _refuses_reduce(step: Step, name: str) -> str | None:
    """Return why a reduction cannot be executed, or None. Of reals all can, of integers those with integer results."""
    x, output = operand(step), step.outputs[0]
    if is_real(x) and is_real(output):
        return None
    if not x.dtype.is_integer or x.dtype is not output.dtype or name == "mean" or step.clamp is not None:
        return f"the {name} of {x.describe()} is not supported"
    return None


def _emit_running_sum(step: Step, e: KernelEmitter) -> None:
    """Emit the running sums along an axis; a work-item adds up one row of it."""
    x, output = operand(step), step.outputs[0]
    kernel = e.kernel()
    storage = kernel.tensor("x", x)
    outer, length, inner = around(x.dims, int(step.params["axis"]) % x.rank)
    kernel.ints(
        outer=outer, length=length, inner=inner, exclusive=int(step.params["exclusive"]),
        reverse=int(step.params["reverse"]),
    )  # fmt: skip
    tail = Epilogue(e, kernel, output, limit_links(step.clamp))
    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= outer * inner) return;",
        f"  {storage.computed} sum = 0;",
        "  for (int k = 0; k < length; ++k) {",
        "    int at = (item / inner * length + (reverse ? length - 1 - k : k)) * inner + item % inner;",
        f"    {storage.computed} u = {storage.load('x', 'at')}, v = sum;",
        "    sum = sum + u;",
        "    if (!exclusive) v = sum;",
        *(f"    {line}" for line in tail.lines(1, "at", "0")),
        "  }",
    ]
    kernel.launch("running_sum", lines, (outer * inner,), (64,))


def _reduce(name: str) -> KernelLowering:
    """Return the lowering of a reduction: "sum", "prod", "max", "min" or "mean"."""
    return KernelLowering(lambda step, e: _emit_reduce(step, e, name), refuses=lambda step: _refuses_reduce(step, name))


LOWERINGS: dict[str, KernelLowering] = {
    **{op: _reduce(name) for op, name in REDUCTIONS.items()},
    "CumulativeSum": KernelLowering(_emit_running_sum, refuses=lambda step: _refuses_reduce(step, "sum")),
}
