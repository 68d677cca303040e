"""A kernel that computes each element of a result from the operands' elements at the same index: strided, broadcast."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from isthmus.backends.gpu.compile.kernel_source import KernelOperand, KernelSource
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter
from isthmus.graph import Tensor
from isthmus.prepare.geometry.layout import collapse, dense_strides

# Work-items of a work-group on a GPU.
_GROUP = 128
# Elements that a work-item on a CPU processes.
_CPU_RUN = 2048


def broadcast_strides(dims: Sequence[int], of: Sequence[int]) -> list[int]:
    """Return the strides of a dense tensor of shape `of` in a walk over `dims`.

    >>> broadcast_strides((2, 3, 4), (3, 1))
    [0, 1, 0]
    """
    padded = (1,) * (len(dims) - len(of)) + tuple(of)
    return [0 if d == 1 else s for d, s in zip(padded, dense_strides(padded), strict=True)]


def emit_walk(
    e: KernelEmitter,
    name: str,
    dims: Sequence[int],
    result: KernelOperand,
    operands: Sequence[KernelOperand],
    compute: Callable[[int, dict[str, str]], list[str]],
    kernel: KernelSource | None = None,
    widest: int | None = None,
) -> None:
    """Emit a walk: a kernel that computes each element of a result from the operands' elements at the same index.

    The walk is seen as rows along its innermost dimension. A work-item computes a run of a row, or several short rows.

    - `compute`: A function of a vector width and the loaded operands by name; it returns the statements that compute
      ``v``.
    - `kernel`: The kernel under construction, with the parameters that `compute` refers to.
    - `widest`: The widest vector that `compute` can handle.
    """
    if not prod(dims):
        return
    kernel = kernel or e.kernel()
    everything = [result, *operands]
    # Adjacent dimensions become one where the strides of all operands allow it.
    sizes, strides = collapse(dims, [o.strides for o in everything])
    inner, outer = sizes[-1], sizes[:-1]
    # The strides along a row; vectors are possible if they are 1, or 0 for an operand that is repeated.
    steps = [s[-1] for s in strides]
    vectors = steps[0] == 1 and all(step in (0, 1) for step in steps[1:])
    width = _width(e, inner, everything, vectors, widest)
    # A work-item computes a `run` of one row or, on a CPU with short rows, a block of `rows_each` whole rows.
    run = width if e.gpu else max(_CPU_RUN, width)
    runs = -(-inner // run)
    rows = prod(outer)
    rows_each = 1 if e.gpu or runs > 1 else max(1, run // inner)
    blocks = -(-rows // rows_each)
    kernel.declare(*everything)
    kernel.ints(inner=inner, rows=rows, rows_each=rows_each, runs=runs, run=run, items=blocks * runs)
    kernel.ints(**{f"{o.name}_start": o.start for o in everything if o.start})
    body = [
        "  int item = get_global_id(0);",
        "  if (item >= items) return;",
        "  int block = item / runs, first = (item - block * runs) * run, last = min(first + run, inner);",
        "  int row_end = min((block + 1) * rows_each, rows);",
        "  for (int row = block * rows_each; row < row_end; ++row) {",
        "    int rest = row, index;",
        *(f"    int {o.name}_row = {f'{o.name}_start' if o.start else 0};" for o in everything),
    ]
    # Sizes of the outer dimensions (d), innermost first, and the strides of each operand along them (s).
    for axis in range(len(outer) - 1, -1, -1):
        level = len(outer) - 1 - axis
        kernel.ints(**{f"d{level}": outer[axis]})
        kernel.ints(**{f"{o.name}_s{level}": s[axis] for o, s in zip(everything, strides, strict=True)})
        if axis:
            body.append(f"    index = rest % d{level}; rest /= d{level};")
        else:
            body.append("    index = rest;")
        body += [f"    {o.name}_row += index * {o.name}_s{level};" for o in everything]
    if not vectors:
        kernel.ints(**{f"{o.name}_step": s for o, s in zip(everything, steps, strict=True)})
    scalar = _body(everything, steps, vectors, compute, 1, False)
    if width == 1:
        body.append("    for (int i = first; i < last; ++i) {")
        body += [f"      {line}" for line in scalar]
        body.append("    }")
    else:
        aligned = e.gpu and _are_aligned(everything, strides, steps, inner, width)
        body.append("    int i = first;")
        body.append(f"    for (; i + {width} <= last; i += {width}) {{")
        body += [f"      {line}" for line in _body(everything, steps, vectors, compute, width, aligned)]
        body.append("    }")
        if inner % width:
            body.append("    for (; i < last; ++i) {")
            body += [f"      {line}" for line in scalar]
            body.append("    }")
    body.append("  }")
    kernel.launch(name, body, (blocks * runs,), (_GROUP if e.gpu else 1,))


def emit_broadcast(
    e: KernelEmitter,
    name: str,
    output: Tensor,
    tensors: Mapping[str, Tensor],
    compute: Callable[[int, dict[str, str]], list[str]],
    kernel: KernelSource,
    widest: int | None = None,
    stored: bool = False,
) -> None:
    """Emit a walk over the elements of an output, with operands, by their names, that are broadcast to its shape.

    With `stored`, all of them are read and written as stored numbers.
    """
    operands = [e.operand(each, t, broadcast_strides(output.dims, t.dims)) for each, t in tensors.items()]
    result = e.operand("y", output, broadcast_strides(output.dims, output.dims), writes=True)
    if stored:
        result, operands = as_stored(result), [as_stored(each) for each in operands]
    emit_walk(e, name, output.dims, result, operands, compute, kernel, widest)


def as_stored(o: KernelOperand) -> KernelOperand:
    """Return an operand that is read or written as stored numbers, without its quantization."""
    return replace(o, storage=replace(o.storage, quantized=False, real=o.storage.kind in ("f32", "f16")))


def _width(
    e: KernelEmitter,
    inner: int,
    everything: Sequence[KernelOperand],
    vectors: bool,
    widest: int | None,
) -> int:
    """Return the number of elements to compute at a time: 1, or a vector that is no longer than a row (`inner`)."""
    # `vectors` tells whether the operands' strides along a row allow vectors.
    if not vectors:
        return 1
    # CPU drivers do not handle vectors above 32 bytes well.
    largest = max(max(o.storage.size, 4 if o.storage.real else 1) for o in everything)
    width = min(widest or 8, 4 if e.gpu else max(e.traits.vector_width, 4), 32 // largest)
    while width > inner:
        width //= 2
    if e.gpu and width == 2:
        return 1
    return width


def _are_aligned(
    everything: Sequence[KernelOperand], strides: Sequence[Sequence[int]], steps: Sequence[int], inner: int, width: int
) -> bool:
    """Return whether every vector of every operand is aligned to its size, given that pools are."""
    if inner % width:
        return False
    return all(
        step == 0 or (o.place.offset % (width * o.storage.size) == 0 and all(s % width == 0 for s in walk[:-1]))
        for o, walk, step in zip(everything, strides, steps, strict=True)
    )


def _body(
    everything: Sequence[KernelOperand],
    steps: Sequence[int],
    vectors: bool,
    compute: Callable[[int, dict[str, str]], list[str]],
    width: int,
    aligned: bool,
) -> list[str]:
    """Return the statements that load operands at index i of a row, compute ``v`` and store it."""
    # - `steps`, `vectors`: The operands' strides along a row, and whether all of them are 0 or 1; otherwise they are
    #   parameters of the kernel.
    lines, loaded = [], {}
    wide = "" if width == 1 else str(width)
    for o, step in list(zip(everything, steps, strict=True))[1:]:
        computed = o.storage.computed
        variable = f"{o.name}_v"
        if not vectors:
            value = o.storage.load(o.name, f"{o.name}_row + i * {o.name}_step")
        elif step == 0:
            value = f"({computed}{wide})({o.storage.load(o.name, f'{o.name}_row')})"
        else:
            value = o.storage.load(o.name, f"{o.name}_row + i", width, aligned)
        lines.append(f"{computed}{wide} {variable} = {value};")
        loaded[o.name] = variable
    lines += compute(width, loaded)
    y = everything[0]
    index = f"{y.name}_row + i" if vectors else f"{y.name}_row + i * {y.name}_step"
    lines.append(y.storage.store(y.name, index, "v", width, aligned and vectors))
    return lines
