"""The result of planning: a layout, how good it is, and why the search ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(str, Enum):
    """The outcome of planning as far as it is proved.

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
    """The result of planning.

    Parameters
    ----------
    status
        The outcome; see `Status`.
    offsets
        One offset for each buffer of the problem, in its order; ``None`` without a layout.
    peak
        Bytes that the layout needs; ``None`` without a layout.
    lower_bound
        Bytes that every layout needs, as far as proved. Equals `peak` if the status is optimal.
    seconds
        The wall time of planning.
    nodes
        The number of partial layouts that the exact search examined; 0 if it was not needed.
    stopped_by
        ``"proof"``, ``"time limit"``, ``"node limit"``, or ``"size"`` if too many buffers are live at once to be
        searched. For a given capacity, any layout that fits is a proof.
    loading
        The seconds needed to load the compiled search, or to compile it on its first use. They are not part of
        `seconds`; 0 if it was not needed or already loaded.
    greedy
        Bytes of the greedy-by-size layout; ``None`` if that was not tried.
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
