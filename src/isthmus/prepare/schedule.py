"""The result of preparation, independent of the engine: fused steps in order, and the location of every tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from isthmus.graph import Tensor

# How many elements of constants are looked at before all are.
_SAMPLES = 64


class Pool(IntEnum):
    """A memory pool; NONE stands for an absent operand."""

    NONE = 0
    CONSTANT = 1
    SCRATCH = 2
    STATE = 3
    IO = 4
    """The pool of the first graph input; the other inputs and then the outputs have the following numbers, one pool
    each.
    """


@dataclass(frozen=True)
class RowRange:
    """The rows of a whole step that a step on a tile computes; for a repeated step, those of the first iteration.

    - `axis`, `source_axis`: the axis of the rows in the result, and in the operands that are read by rows.
    - `first`, `height`: the first row of the result computed here, and the number of rows of the whole result.
    - `source_first`, `source_height`: the first available row of the operands, and the number of their rows in the
      whole step.
    - `pixels`: for a mean over all pixels, the number of pixels in the whole image; else 0.
    """

    axis: int
    first: int
    height: int
    source_axis: int
    source_first: int
    source_height: int
    pixels: int = 0


@dataclass(eq=False)
class Step:
    """One operation to execute, possibly with others fused into it.

    - `op`, `name`: QNN's operation name, and the name of the node that it comes from.
    - `inputs`, `outputs`, `params`: the tensors that it reads (None for an absent one) and writes, and QNN's parameters
      of the operation by name.
    - `clamp`: a fused activation: the result is limited to this range of real values.
    - `part`: for a step on a tile, its rows of the whole step. The engine computes them as it would in the whole step:
      with the same kernels, kernel tiles and tables, and the same order of additions. A mean over all pixels continues
      from the sums of the previous tile; a Concat writes its operand at the right position among the rows.
    - `winograd`: for a convolution that an engine computes by Winograd's algorithm, the side of the squares of its
      result that are computed together; else 0.
    """

    op: str
    name: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    params: dict[str, Any] = field(default_factory=dict)
    clamp: tuple[float, float] | None = None
    part: RowRange | None = None
    winograd: int = 0

    @property
    def operands(self) -> list[Tensor]:
        """The inputs that are not constants."""
        return [tensor for tensor in self.inputs if tensor is not None and not tensor.is_static]

    def input(self, index: int = 0) -> Tensor:
        """Return an input that the operation requires."""
        tensor = self.inputs[index]
        assert tensor is not None
        return tensor


@dataclass(frozen=True)
class Repeat:
    """Steps that are executed several times in succession.

    - `first`, `last`: the range of steps, inclusive.
    - `times`: the number of iterations.
    - `advances`: the tensors whose location changes with each iteration, and by how many bytes; `Schedule.places` has
      the locations of the first iteration.
    - `threads`: how many threads may execute iterations at once.
    - `arena`: offset and size in scratch of the first thread's arena, which holds the blocks that an iteration uses
      alone; the other threads' arenas follow it. None if one thread executes all iterations.
    - `awaited`: for each step, the last step that the previous iteration must have completed before it begins; both are
      relative to `first`.
    """

    first: int
    last: int
    times: int
    advances: Mapping[Tensor, int]
    threads: int = 1
    arena: tuple[int, int] | None = None
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepRows:
    """The rows of one step's result that one tile computes, and the rows `source` of its operands that they need.

    Both are half-open ranges; `step` is an index into `Region.steps`.
    """

    step: int
    rows: tuple[int, int]
    source: tuple[int, int]


@dataclass(frozen=True)
class Region:
    """Consecutive steps that are computed tile by tile, as described in a plan.

    - `steps`: the whole steps in order, as operation and name; the name is that of the node that has this result.
    - `axes`: for each step, the axis of its result along which it is tiled.
    - `tiles`: for each tile, its rows of each step in execution order; steps are indices into `steps`. For a mean, the
      rows are those of its operand.
    - `repeated`: the first repeated tile and the number of repeated tiles, which differ only in their position; (0, 0)
      if there are none.
    - `first`, `last`: the range of steps in the schedule that it became, inclusive.
    - `carried_bytes`: bytes of rows kept from one tile to the next.
    - `peak_bytes`: the estimated maximum of live bytes in it.
    """

    steps: tuple[tuple[str, str], ...]
    axes: tuple[int, ...]
    tiles: tuple[tuple[StepRows, ...], ...]
    repeated: tuple[int, int]
    first: int
    last: int
    carried_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Place:
    """The start of a tensor: a pool and a byte offset in it."""

    pool: int
    offset: int


@dataclass(frozen=True)
class PlanRow:
    """One block of scratch: its name, its size, the steps in which it is in use (inclusive), and its offset."""

    name: str
    bytes: int
    first: int
    last: int
    offset: int


@dataclass(frozen=True)
class ByteRange:
    """Bytes of a pool: the first, and how many."""

    pool: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class StepOperands:
    """The memory that steps read and write, for drawings of the graph.

    - `reads`, `writes`: for each step, the bytes of its operands, and of its results and its work space; constants are
      left out. For a repeated step, those of the first iteration.
    - `inputs`, `outputs`, `states`: the names of the graph's inputs and outputs, whose pools are in this order, and of
      its states with their bytes.
    - `io_offsets`: as in `Schedule`.
    """

    reads: tuple[tuple[ByteRange, ...], ...]
    writes: tuple[tuple[ByteRange, ...], ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: tuple[tuple[str, ByteRange], ...] = ()
    io_offsets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Statistics about the memory of a schedule, for reports.

    - `bytes`: bytes of scratch that the schedule needs.
    - `lower_bound`: lower bound on the scratch that any layout of these blocks needs.
    - `status`: ``"optimal"`` if no smaller layout exists, else ``"feasible"``.
    - `greedy_bytes`: scratch needed if the largest block were placed first, as most runtimes do.
    - `unshared_bytes`: scratch needed if every tensor had its own block.
    - `peak_step`: the step with the most live bytes; -1 if no scratch is used.
    - `peak_live`: the names of the blocks that are live there.
    - `rows`: every block of scratch, in order of its first step.
    - `steps`: every step in order, as operation and name.
    - `order_saved_bytes`: reduction of the peak of live bytes by the choice of operation order.
    - `aliased_bytes`: bytes of tensors that share memory with another: reshapes, slices, concatenations, in-place
      results.
    - `seconds`: time spent on the layout.
    - `regions`: the fused regions that are computed in tiles.
    - `rematerialized`: names of rematerialized tensors, which are computed a second time rather than kept.
    - `bounded`: whether the search for tiles left out long fused regions, because the model has more steps than the
      search may examine. With these regions, less scratch might be needed.
    - `fp16_bytes`, `float_bytes`: bytes of float tensors in scratch that are stored as fp16, and of those that are not;
      each tensor counts separately.
    - `in_float`: the fixed-point steps, as operation and name, that the engine computes in float because no kernel
      supports them.
    - `operands`: the memory that each step reads and writes; None for a plan that was read from a file.
    """

    bytes: int
    lower_bound: int
    status: str
    greedy_bytes: int
    unshared_bytes: int
    peak_step: int
    peak_live: tuple[str, ...]
    rows: tuple[PlanRow, ...]
    steps: tuple[tuple[str, str], ...]
    order_saved_bytes: int = 0
    aliased_bytes: int = 0
    seconds: float = 0.0
    regions: tuple[Region, ...] = ()
    rematerialized: tuple[str, ...] = ()
    bounded: bool = False
    fp16_bytes: int = 0
    float_bytes: int = 0
    in_float: tuple[tuple[str, str], ...] = ()
    operands: StepOperands | None = None

    @property
    def io_inside(self) -> bool:
        """Whether inputs or outputs are in scratch: they live before the first step or after the last one."""
        return any(row.first < 0 or row.last >= len(self.steps) for row in self.rows)


@dataclass(frozen=True)
class Schedule:
    """Steps in execution order, and the location of all memory that they use.

    - `name`: the name of the graph.
    - `steps`, `inputs`, `outputs`, `states`: the steps, and the graph's tensors that outlive them.
    - `places`: the location of every tensor that is not a constant.
    - `work`, `work_bytes`: for each step, the offset of its work space in scratch, and the bytes that are reserved
      there.
    - `scratch_bytes`, `state_bytes`: the sizes of scratch and of state memory.
    - `io_offsets`: the offset in scratch of each input, then of each output, if the plan includes them; else empty.
    - `state_offsets`: the offset of each state in state memory.
    - `alignment`: the required alignment of the addresses of scratch, state and IO memory.
    - `plan`: statistics for reports; None for a schedule that was read from a file.
    - `numerics`: the rounding mode of fixed-point results: that of the graph, or "hexagon".
    - `repeats`: the steps that are executed more than once, in order; they are not nested.
    - `tiled`: the ranges of steps, first and last, that compute a fused region in tiles.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    places: dict[Tensor, Place]
    work: tuple[int, ...]
    work_bytes: tuple[int, ...]
    scratch_bytes: int
    state_bytes: int
    state_offsets: tuple[int, ...]
    io_offsets: tuple[int, ...]
    alignment: int
    plan: Plan | None = None
    numerics: str = "exact"
    repeats: tuple[Repeat, ...] = ()
    tiled: tuple[tuple[int, int], ...] = ()

    @property
    def statistics(self) -> Plan:
        """The statistics of a schedule that was planned here."""
        assert self.plan is not None
        return self.plan

    @property
    def constant_bytes(self) -> int:
        """The bytes of the constants that the steps read, equal ones once; 4 bits take half a byte."""
        read = dict.fromkeys(tensor for step in self.steps for tensor in step.inputs if tensor is not None)
        return sum(tensor.stored_bytes for tensor in _distinct(tensor for tensor in read if tensor.is_static))

    @property
    def cursor_pool(self) -> int:
        """The first pool number that no tensor uses; programs of repeated steps number their cursors from there on."""
        return Pool.IO + len(self.inputs) + len(self.outputs)


def _distinct(constants: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield constants, of those with equal elements the first."""
    groups: dict[tuple[object, ...], list[np.ndarray]] = {}
    for tensor in constants:
        assert tensor.data is not None
        elements = tensor.data.reshape(-1)
        # Elements from everywhere tell nearly all that differ; then all are compared.
        key = tensor.dtype, tensor.stored_bytes, elements[:: max(1, elements.size // _SAMPLES)].tobytes()
        alike = groups.setdefault(key, [])
        if not any(np.array_equal(elements, each) for each in alike):
            alike.append(elements)
            yield tensor
