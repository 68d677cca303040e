"""A kernel that computes each element of a result from the operands' elements at the same index: strided, broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from isthmus.backends.gpu.compile.kernel_source import Draft
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter
from isthmus.backends.gpu.compile.program import BufferRef
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import Tensor
from isthmus.prepare.geometry.layout import collapse, dense_strides

_GROUP = 128
"""Work-items of a work-group on a GPU."""
_CPU_RUN = 2048
"""Elements that a work-item on a CPU processes."""


@dataclass(frozen=True)
class WalkOperand:
    """Memory that a walk reads or writes.

    Parameters
    ----------
    name
        Its name in the kernel.
    strides
        Strides in elements, one for each dimension of the walk.
    scale, zero
        The scale and zero point of a quantized tensor.
    """

    name: str
    place: BufferRef
    storage: OperandStorage
    strides: Sequence[int]
    scale: float = 1.0
    zero: int = 0
    start: int = 0
    """The element at which the walk begins, counted from `place`; only walks that go backwards need it."""


def operand_of(
    e: KernelEmitter, name: str, tensor: Tensor, strides: Sequence[int], offset: int = 0, writes: bool = False
) -> WalkOperand:
    """Return a tensor as an operand of a walk, from its element `offset` on."""
    storage = e.storage(tensor)
    scale, zero = 1.0, 0
    if storage.quantized:
        assert tensor.quantization is not None
        scale, zero = tensor.quantization.scale, tensor.quantization.zero_point
    return WalkOperand(name, e.at(tensor, offset, writes), storage, strides, scale, zero)


def broadcast_strides(dims: Sequence[int], of: Sequence[int]) -> list[int]:
    """Return the strides of a dense tensor of shape `of` in a walk over `dims`.

    >>> broadcast_strides((2, 3, 4), (3, 1))
    [0, 1, 0]
    """
    padded = (1,) * (len(dims) - len(of)) + tuple(of)
    return [0 if d == 1 else s for d, s in zip(padded, dense_strides(padded), strict=True)]


def emit_walk(
    e: KernelEmitter,
    kernel: str,
    dims: Sequence[int],
    result: WalkOperand,
    operands: Sequence[WalkOperand],
    compute: Callable[[int, dict[str, str]], list[str]],
    draft: Draft | None = None,
    widest: int | None = None,
) -> None:
    """Emit a walk: a kernel that computes each element of a result from the operands' elements at the same index.

    The walk is seen as rows along its innermost dimension. A work-item computes a run of a row, or several short rows.

    Parameters
    ----------
    kernel
        The kernel's name.
    dims
        The dimensions of the walk.
    result, operands
        What it writes and what it reads.
    compute
        A function of a vector width and the loaded operands by name; it returns the statements that compute ``v``.
    draft
        The kernel under construction, with the parameters that `compute` refers to.
    widest
        The widest vector that `compute` can handle.
    """
    if not prod(dims):
        return
    draft = draft or e.draft()
    everything = [result, *operands]
    # Adjacent dimensions become one where the strides of all operands allow it.
    sizes, strides = collapse(dims, [o.strides for o in everything])
    inner, outer = sizes[-1], sizes[:-1]
    # The strides along a row; vectors are possible if they are 1, or 0 for an operand that is repeated.
    steps = [s[-1] for s in strides]
    vectors = steps[0] == 1 and all(step in (0, 1) for step in steps[1:])
    width = _width(e, inner, everything, vectors, widest)
    run = width if e.gpu else max(_CPU_RUN, width)
    runs = -(-inner // run)
    rows = prod(outer)
    rows_each = 1 if e.gpu or runs > 1 else max(1, run // inner)
    blocks = -(-rows // rows_each)
    for each in everything:
        draft.operand(each.name, each.place, each.storage, each.scale, each.zero)
    draft.ints(inner=inner, rows=rows, rows_each=rows_each, runs=runs, run=run, items=blocks * runs)
    draft.ints(**{f"{o.name}_start": o.start for o in everything if o.start})
    # Dimensions, innermost first, and the strides of each operand along them.
    body = [
        "  int item = get_global_id(0);",
        "  if (item >= items) return;",
        "  int block = item / runs, first = (item - block * runs) * run, last = min(first + run, inner);",
        "  int row_end = min((block + 1) * rows_each, rows);",
        "  for (int row = block * rows_each; row < row_end; ++row) {",
        "    int rest = row, index;",
        *(f"    int {o.name}_row = {f'{o.name}_start' if o.start else 0};" for o in everything),
    ]
    for axis in range(len(outer) - 1, -1, -1):
        level = len(outer) - 1 - axis
        draft.ints(**{f"d{level}": outer[axis]})
        draft.ints(**{f"{o.name}_s{level}": s[axis] for o, s in zip(everything, strides, strict=True)})
        if axis:
            body.append(f"    index = rest % d{level}; rest /= d{level};")
        else:
            body.append("    index = rest;")
        body += [f"    {o.name}_row += index * {o.name}_s{level};" for o in everything]
    if not vectors:
        draft.ints(**{f"{o.name}_step": s for o, s in zip(everything, steps, strict=True)})
    scalar = _body(everything, steps, vectors, compute, 1, False)
    if width == 1:
        body.append("    for (int i = first; i < last; ++i) {")
        body += [f"      {line}" for line in scalar]
        body.append("    }")
    else:
        aligned = e.gpu and _aligned(everything, strides, steps, inner, width)
        body.append("    int i = first;")
        body.append(f"    for (; i + {width} <= last; i += {width}) {{")
        body += [f"      {line}" for line in _body(everything, steps, vectors, compute, width, aligned)]
        body.append("    }")
        if inner % width:
            body.append("    for (; i < last; ++i) {")
            body += [f"      {line}" for line in scalar]
            body.append("    }")
    body.append("  }")
    items = blocks * runs
    local = _GROUP if e.gpu else 1
    e.launch(kernel, draft, "\n".join(body), (items,), (local,))


def _width(
    e: KernelEmitter,
    inner: int,
    everything: Sequence[WalkOperand],
    vectors: bool,
    widest: int | None,
) -> int:
    """Return the number of elements to compute at a time: 1, or a vector that is no longer than a row (`inner`)."""
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


def _aligned(
    everything: Sequence[WalkOperand], strides: Sequence[Sequence[int]], steps: Sequence[int], inner: int, width: int
) -> bool:
    """Return whether every vector of every operand is aligned to its size, given that pools are."""
    if inner % width:
        return False
    return all(
        step == 0 or (o.place.offset % (width * o.storage.size) == 0 and all(s % width == 0 for s in walk[:-1]))
        for o, walk, step in zip(everything, strides, steps, strict=True)
    )


def _body(
    everything: Sequence[WalkOperand],
    steps: Sequence[int],
    vectors: bool,
    compute: Callable[[int, dict[str, str]], list[str]],
    width: int,
    aligned: bool,
) -> list[str]:
    """Return the statements that load operands at index i of a row, compute ``v`` and store it.

    Parameters
    ----------
    everything, steps
        The result and the operands, and their strides along a row.
    vectors
        Whether these strides are 0 or 1; otherwise they are parameters of the kernel.
    width, aligned
        The number of elements at a time, and whether vectors are aligned to their size.
    """
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
