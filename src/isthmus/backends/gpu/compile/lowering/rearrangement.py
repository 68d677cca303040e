"""Movements of channels in succession as one launch: joins, splits, slices, transposes and shuffles.

Seen as rows of channels, all that such movements do is to put channels of some tensors in other places of others. So
one kernel makes them all, with a table of channels; the tensors between them are never in memory. If the channels were
just computed by a convolution, its kernel stores them where they go, and moves the others as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from isthmus.backends.gpu.compile.kernel_source import KernelSource
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter
from isthmus.backends.gpu.compile.program import BufferRef
from isthmus.backends.gpu.compile.storage import OperandStorage
from isthmus.graph import DataType, Tensor
from isthmus.prepare.geometry import movement as geometry
from isthmus.prepare.schedule import Step

At = Callable[[Tensor], BufferRef]
"""A function that returns the location of a tensor."""
_FLOATS = (DataType.FLOAT_32, DataType.FLOAT_16)
# The size of a movement in elements from which the time of a launch does not matter.
_MAX_ELEMENTS = 1 << 22
# The largest number of entries of a table.
_MAX_CHANNELS = 1 << 16
# The largest number of tensors in a launch; arguments take memory.
_MAX_TENSORS = 12
# Work-items of a work-group.
_GROUP = 128


@dataclass(frozen=True)
class Rearrangement:
    """Channels of some tensors in other places of others.

    - `sources`, `goals`: The tensors, which are dense.
    - `rows`: The number of rows that each of them has.
    - `table`: For each channel of the goals the number of its goal, the channel there, the number of its source, and
      the channel there.
    - `computed`: The number of the source that a kernel computes and stores in the goals, so that it is not in memory;
      its channels are first in the table. -1 if all are in memory.
    """

    sources: tuple[Tensor, ...]
    goals: tuple[Tensor, ...]
    rows: int
    table: np.ndarray
    computed: int = -1

    def behind(self, value: BufferRef, at: At) -> Rearrangement | None:
        """Return it as what a kernel does that computes the source at a location.

        None unless there is one, each of its channels goes to one place, and there are at most as many others.
        """
        places = [at(source) for source in self.sources]
        if value not in places:
            return None
        number = places.index(value)
        own = self.table[:, 2] == number
        first = self.table[own]
        first = first[np.argsort(first[:, 3])]
        channels = self.sources[number].elements // self.rows
        if not np.array_equal(first[:, 3], np.arange(channels)) or len(self.table) > 2 * channels:
            return None
        return replace(self, table=np.concatenate([first, self.table[~own]]), computed=number)

    @property
    def read(self) -> list[Tensor]:
        """The sources that are in memory."""
        return [tensor for number, tensor in enumerate(self.sources) if number != self.computed]


def find(
    steps: Sequence[Step], first: int, at: At, is_needed: Callable[[int, Tensor], bool]
) -> tuple[int, Rearrangement] | None:
    """Return what movements from a step on do as one launch, and the index behind the last of them.

    - `at`: Returns the location of a tensor. Tensors with one location are the same.
    - `is_needed`: Returns whether the result of a step, given by its index, is read by more than the next step, which
      reads it as the given tensor.

    None if there is no movement, if one launch cannot make it, or if it is a single copy anyway.
    """
    best, copies, index = None, 0, first
    maps: dict[Tensor, np.ndarray] = {}
    sources: list[Tensor] = []
    while index < len(steps) and _is_movement(steps[index], steps[first]):
        step = steps[index]
        if index == first:
            sources = list(dict.fromkeys(step.operands))
            begins = np.cumsum([0, *(tensor.elements for tensor in sources)]).tolist()
            maps = {t: np.arange(begin, begin + t.elements) for t, begin in zip(sources, begins, strict=False)}
        else:
            # The only operand is the only result of the step before, by this name or another.
            value, read = steps[index - 1].outputs, step.operands
            if len(value) != 1 or len(read) != 1 or at(value[0]) != at(read[0]) or is_needed(index - 1, read[0]):
                break
            maps = {read[0]: maps[value[0]]}
        moves = geometry.copies(step)
        copies += len(moves)
        maps = _source_indices(step, moves, maps)
        found = _channels(sources, maps)
        if found is not None and copies > 1:
            best = index + 1, found
        index += 1
    return best


def _is_movement(step: Step, first: Step) -> bool:
    """Return whether a step only moves floats that are stored like those of the first one, not too many and no
    constants.
    """
    if step.op not in geometry.MOVEMENTS or step.clamp is not None or geometry.leaves_gaps(step):
        return False
    tensors, like = [t for t in (*step.inputs, *step.outputs) if t is not None], first.outputs[0]
    if sum(tensor.elements for tensor in tensors) > _MAX_ELEMENTS or like.dtype not in _FLOATS:
        return False
    return all(not t.is_static and t.elements and (t.dtype, t.itemsize) == (like.dtype, like.itemsize) for t in tensors)


def _source_indices(
    step: Step, moves: Sequence[geometry.StridedCopy], maps: Mapping[Tensor, np.ndarray]
) -> dict[Tensor, np.ndarray]:
    """Return for each element of a step's results which element of the sources it is, given that of its operands."""
    results = {tensor: np.full(tensor.elements, -1, np.int64) for tensor in step.outputs}
    for move in moves:
        goal, source = (
            _walk(move.dims, strides, start)
            for strides, start in ((move.goal_strides, move.goal_start), (move.source_strides, move.source_start))
        )
        results[move.goal][goal] = maps[move.source][source]
    return results


def _walk(dims: Sequence[int], strides: Sequence[int], start: int) -> np.ndarray:
    """Return the elements that a walk over `dims` visits."""
    at = np.full((1,) * len(dims), start, np.int64)
    for axis, (size, stride) in enumerate(zip(dims, strides, strict=True)):
        at = at + (np.arange(size) * stride).reshape((size,) + (1,) * (len(dims) - 1 - axis))
    return at.reshape(-1)


def _channels(sources: Sequence[Tensor], maps: Mapping[Tensor, np.ndarray]) -> Rearrangement | None:
    """Return the elements of results as channels of sources, if that is the same in all rows, and few enough."""
    goals = list(maps)
    rows = gcd(*(prod(tensor.dims[:-1]) for tensor in (*sources, *goals)))
    if len(sources) + len(goals) > _MAX_TENSORS or sum(t.elements for t in goals) > rows * _MAX_CHANNELS:
        return None
    begins = np.cumsum([0, *(tensor.elements for tensor in sources)])
    widths = np.array([tensor.elements // rows for tensor in sources])
    entries = []
    for number, goal in enumerate(goals):
        elements = maps[goal].reshape(rows, -1)
        if elements.min() < 0:
            return None
        source = np.searchsorted(begins, elements[0], "right") - 1
        expected = elements[0] + np.arange(rows)[:, None] * widths[source]
        # In the first row, channels are those of the sources' first rows.
        channel = elements[0] - begins[source]
        if not np.array_equal(elements, expected) or (channel >= widths[source]).any():
            return None
        entries.append(np.stack([np.full_like(source, number), np.arange(len(source)), source, channel], axis=1))
    return Rearrangement(tuple(sources), tuple(goals), rows, np.concatenate(entries).astype(np.int32))


def emit_rearrangement(e: KernelEmitter, r: Rearrangement) -> None:
    """Emit a launch for a rearrangement. A work-item moves four adjacent channels of a row if all come in such groups
    that are aligned, else one.
    """
    kernel, storage = e.kernel(), e.storage(r.goals[0])
    width = 4 if _is_by_four(e, r) else 1
    table = r.table[::width]
    declare(e, kernel, r, table)
    kernel.ints(entries=len(table), items=len(table) * r.rows)
    real = storage.computed if width == 1 else f"{storage.computed}{width}"
    lines = [
        "  int item = get_global_id(0);",
        "  if (item >= items) return;",
        "  int row = item / entries;",
        "  int4 move = moves[item - row * entries];",
        f"  {real} v;",
        *_loads(r, storage, "v", width),
        *_stores(r, storage, "v", width),
    ]
    kernel.launch("rearrange", lines, (len(table) * r.rows,), (_GROUP,))


def _is_by_four(e: KernelEmitter, r: Rearrangement) -> bool:
    """Return whether channels move in aligned groups of four."""
    tensors = (*r.sources, *r.goals)
    if any((t.elements // r.rows) % 4 or e.at(t).offset % (4 * e.storage(t).size) for t in tensors):
        return False
    groups = r.table.reshape(-1, 4, 4)
    steps = groups - groups[:, :1]
    return bool((groups[:, 0, [1, 3]] % 4 == 0).all() and (steps == np.arange(4)[:, None] * [0, 1, 0, 1]).all())


def declare(e: KernelEmitter, kernel: KernelSource, r: Rearrangement, table: np.ndarray) -> None:
    """Declare the tensors of a rearrangement, the number of channels of each, and a table."""
    for name, tensors, writes in (("from", r.sources, False), ("to", r.goals, True)):
        for number, tensor in enumerate(tensors):
            if writes or number != r.computed:
                kernel.declare(e.operand(f"{name}{number}", tensor, writes=writes))
                kernel.ints(**{f"{name}{number}_step": tensor.elements // r.rows})
    kernel.memory("moves", e.constant(np.ascontiguousarray(table)), "int4")


def declare_spread(e: KernelEmitter, kernel: KernelSource, r: Rearrangement) -> None:
    """Declare what `spread_lines` refer to."""
    declare(e, kernel, r, r.table)
    kernel.ints(moves_own=r.sources[r.computed].elements // r.rows, moves_end=len(r.table))


def spread_lines(r: Rearrangement, storage: OperandStorage, width: int, index: str, channel: str) -> list[str]:
    """Return statements that store ``v``, a vector of `width` computed channels, where they go, and move others.

    - `index`, `channel`: Expressions for the index of the first of them in the computed tensor, and its channel.
    """
    lines = [f"{{ int own = {channel}, row = ({index} - own) / moves_own, last = min(own + {width}, moves_own);"]
    for j in range(width):
        lines += [
            f"  {{ int4 move = moves[own + {j}];",
            *_stores(r, storage, f"v.s{j}" if width > 1 else "v", 1),
            "  }",
        ]
    lines += [
        "  for (int k = own + moves_own; k < min(last + moves_own, moves_end); ++k) {",
        f"    int4 move = moves[k]; {storage.computed} u = 0;",
        *_loads(r, storage, "u", 1),
        *_stores(r, storage, "u", 1),
        "  } }",
    ]
    return lines


def _loads(r: Rearrangement, storage: OperandStorage, value: str, width: int) -> list[str]:
    """Return statements that set a variable to the channels of a row from the source that ``move`` says."""
    return [
        f"  if (move.z == {n}) {value} = {storage.load(f'from{n}', f'row * from{n}_step + move.w', width, width > 1)};"
        for n in range(len(r.sources))
        if n != r.computed
    ]


def _stores(r: Rearrangement, storage: OperandStorage, value: str, width: int) -> list[str]:
    """Return statements that store a value as the channels of a row in the goal that ``move`` says."""
    return [
        f"  if (move.x == {n}) {{ {storage.store(f'to{n}', f'row * to{n}_step + move.y', value, width, width > 1)} }}"
        for n in range(len(r.goals))
    ]


def may_write(r: Rearrangement, at: At, reads: Sequence[BufferRef]) -> bool:
    """Return whether the goals may be written while the sources and other memory are read.

    A row's channels are moved by several work-items, so no goal may be in the memory of a source.
    """
    goals = [at(goal) for goal in r.goals]
    return not any(touch(goal, other) for goal in goals for other in (*map(at, r.read), *reads))


def touch(a: BufferRef, b: BufferRef) -> bool:
    """Return whether two ranges of memory have a byte in common."""
    return (a.pool, a.index) == (b.pool, b.index) and a.offset < b.offset + b.nbytes and b.offset < a.offset + a.nbytes
