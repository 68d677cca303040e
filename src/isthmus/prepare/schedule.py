"""What preparation yields: fused steps in order, and the place of every tensor. The same for every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from isthmus.graph import Tensor


class Pool(IntEnum):
    """The memory that something lies in."""

    NONE = 0
    CONSTANT = 1
    SCRATCH = 2
    STATE = 3
    IO = 4
    """The first graph input; the other inputs and then the outputs count up from here, each a pool of its own."""


@dataclass(frozen=True)
class RowRange:
    """Which rows of a whole step a step on a strip computes. In a repeated step they are those of the first time.

    Parameters
    ----------
    axis, source_axis
        The axis of rows in the result and in the operands that are taken by rows.
    first, height
        The first row of the result that is computed here, and the rows of the whole result.
    source_first, source_height
        The first row of operands at hand here, and their rows in the whole step.
    pixels
        Of a mean over all pixels, how many the whole image has; else 0.
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

    Parameters
    ----------
    op
        QNN's operation name.
    clamp
        A fused activation: the result is limited to this range of reals.
    part
        Of a step on a strip, what it is of the whole step. An engine computes it as it would compute the whole: with
        the same kernels, tiles and tables, in the same order of additions. A mean over all pixels goes on from the
        sums of the strip before; a Concat puts its operand in its place among the rows.
    """

    op: str
    name: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    params: dict[str, Any] = field(default_factory=dict)
    clamp: tuple[float, float] | None = None
    part: RowRange | None = None


@dataclass(frozen=True)
class Repeat:
    """Steps that are executed several times in a row.

    Parameters
    ----------
    first, last
        The steps, both included.
    times
        How often.
    advances
        The tensors that lie elsewhere each time, with the bytes by which they move on; their places are those of the
        first time.
    threads
        How many threads may take turns at it.
    lane
        Where what a turn makes for itself alone lies in scratch, and how many bytes that is: those of the first thread,
        with those of the others behind. None where only one takes all turns.
    awaited
        For each of the steps, the last that the turn before must have done by then, both counted from the first.
    """

    first: int
    last: int
    times: int
    advances: Mapping[Tensor, int]
    threads: int = 1
    lane: tuple[int, int] | None = None
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True)
class StepRows:
    """What one strip takes of one step: rows of its result, and the rows of its operands that they need."""

    step: int
    rows: tuple[int, int]
    source: tuple[int, int]


@dataclass(frozen=True)
class Region:
    """Neighbouring steps that are computed strip by strip, as a plan tells of them.

    Parameters
    ----------
    steps
        The whole steps in order, as operation and name; the name is that of the node whose result it is.
    axes
        For each step the axis of its result along which strips are cut.
    strips
        For each strip what it takes of each step, in the order of execution; steps are numbers into `steps`. A mean
        counts rows of its operand.
    repeated
        The first strip that is repeated and how many are, the same but for their place; (0, 0) where none are.
    first, last
        The steps of the schedule that it has become, both included.
    carried_bytes
        Rows kept from one strip to the next.
    peak_bytes
        The most bytes alive in it, as estimated.
    """

    steps: tuple[tuple[str, str], ...]
    axes: tuple[int, ...]
    strips: tuple[tuple[StepRows, ...], ...]
    repeated: tuple[int, int]
    first: int
    last: int
    carried_bytes: int
    peak_bytes: int


@dataclass(frozen=True)
class Place:
    """Where a tensor begins: a pool and a byte offset in it."""

    pool: int
    offset: int


@dataclass(frozen=True)
class PlanRow:
    """One block of scratch: what lies there, how large it is, and from which step to which (both included)."""

    name: str
    bytes: int
    first: int
    last: int
    offset: int


@dataclass(frozen=True)
class Plan:
    """Facts about the memory of a schedule, for reports.

    Parameters
    ----------
    bytes
        Scratch that the schedule needs.
    lower_bound
        Scratch that any layout of these blocks needs.
    status
        ``"optimal"`` when no smaller layout exists, else ``"feasible"``.
    greedy_bytes
        What placing the largest block first would need, as most runtimes do.
    unshared_bytes
        What a block of its own for every tensor would need.
    peak_step
        The step with the most live bytes; -1 when no scratch is used.
    peak_live
        The names of the blocks that are live there.
    rows
        Every block of scratch, in order of its first step.
    steps
        Every step in order, as its operation and its name.
    order_saved_bytes
        Live bytes at the worst step that the choice of operation order took away.
    aliased_bytes
        Bytes of tensors that share the memory of another: reshapes, slices, concatenations, in-place results.
    seconds
        Time spent on the layout.
    regions
        What is computed by strips.
    again
        Names of tensors that are computed a second time rather than kept.
    bounded
        Whether the search for strips left out long stretches, since the model has more steps than it may look at: with
        them there might be less scratch.
    half_bytes, float_bytes
        Bytes of the floats in scratch, each tensor by itself, that are stored as halves, and of those that are not.
    in_float
        The steps on fixed-point tensors, as operation and name, that the engine computes in float, since no kernel
        covers them.
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
    again: tuple[str, ...] = ()
    bounded: bool = False
    half_bytes: int = 0
    float_bytes: int = 0
    in_float: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """Steps in the order of their execution, and where everything they touch lies.

    Parameters
    ----------
    places
        A place for every tensor that is not a constant.
    work
        For each step the offset in scratch of its work space.
    io_offsets
        Where each input, then each output lies in scratch when the plan holds them too; else empty.
    state_offsets
        Where each state lies in state memory.
    alignment
        What the addresses of scratch, state and IO memory must be a multiple of.
    numerics
        How 8-bit results are rounded, as the graph says.
    repeats
        The steps that are executed more than once, in order; none lies in another.
    """

    name: str
    steps: tuple[Step, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    states: tuple[Tensor, ...]
    places: dict[Tensor, Place]
    work: tuple[int, ...]
    scratch_bytes: int
    state_bytes: int
    state_offsets: tuple[int, ...]
    io_offsets: tuple[int, ...]
    alignment: int
    plan: Plan
    numerics: str = "exact"
    repeats: tuple[Repeat, ...] = ()

    @property
    def cursor_pool(self) -> int:
        """The first number that no pool has."""
        return Pool.IO + len(self.inputs) + len(self.outputs)
