"""What a planner answers: a layout, how good it is, and why the search ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """How much is known.

    ``OPTIMAL``: a layout, and proof that none is smaller. ``FEASIBLE``: a layout that fits, perhaps not the smallest.
    ``INFEASIBLE``: proof that no layout fits the capacity. ``UNKNOWN``: neither a layout nor a proof within the limits.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Solution:
    """The outcome of planning.

    Parameters
    ----------
    status
        How much is known; see `Status`.
    offsets
        One offset for each buffer of the problem, in its order; ``None`` without a layout.
    peak
        Bytes that the layout takes; ``None`` without a layout.
    lower_bound
        Bytes that every layout needs, as far as proved. Equals `peak` when the status is optimal.
    seconds
        Wall time of the planning.
    nodes
        Partial layouts that the exact search looked at; 0 if it was not needed.
    stopped_by
        ``"proof"``, ``"time limit"``, ``"node limit"``, or ``"size"`` where too many buffers are live together to be
        searched. A decision for a given capacity is proved by any layout that fits.
    loading
        Seconds that it took to load the compiled search, or on its first use to compile it; not part of `seconds`,
        and 0 if it was not needed or already there.
    greedy
        Bytes of the layout that is greedy by size; ``None`` where that was not tried.
    """

    status: Status
    offsets: tuple[int, ...] | None
    peak: int | None
    lower_bound: int
    seconds: float
    nodes: int
    stopped_by: str
    loading: float = 0.0
    greedy: int | None = None
