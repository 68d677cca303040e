"""What preparation yields: fused steps in order, and the place of every tensor. The same for every engine."""

from __future__ import annotations

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


@dataclass(eq=False)
class Step:
    """One operation to execute, possibly with others fused into it.

    Parameters
    ----------
    op
        QNN's operation name.
    clamp
        A fused activation: the result is limited to this range of reals.
    """

    op: str
    name: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    params: dict[str, Any] = field(default_factory=dict)
    clamp: tuple[float, float] | None = None


@dataclass(frozen=True)
class Place:
    """Where a tensor begins: a pool and a byte offset in it."""

    pool: int
    offset: int


@dataclass(frozen=True)
class Row:
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
    """

    bytes: int
    lower_bound: int
    status: str
    greedy_bytes: int
    unshared_bytes: int
    peak_step: int
    peak_live: tuple[str, ...]
    rows: tuple[Row, ...]
    steps: tuple[tuple[str, str], ...]
    order_saved_bytes: int
    aliased_bytes: int
    seconds: float


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
