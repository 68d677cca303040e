"""A graph's scratch and persistent memory: provided by the client, held as long as the graph uses it."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.backends.lpai.options import BufferAlignmentReq, LpaiGraphOption, Mem
from isthmus.backends.lpai.rules import pool_window
from isthmus.backends.seam.planned import PlannedGraph, plan
from isthmus.errors import Code
from isthmus.graph import Graph
from isthmus.memory import Window, holds
from isthmus.prepare.tiling import ScratchLimit


def plan_pools(
    graph: Graph, alignment: BufferAlignmentReq, io_in_scratch: bool, limit: ScratchLimit | None
) -> PlannedGraph:
    """Plan a complete graph whose pools start at aligned addresses and have aligned sizes.

    The sizes in its description and in its plan are those of the pools, so a limit on scratch limits the pool.
    """
    start, size = alignment.start_addr_alignment, alignment.size_alignment
    return plan(graph, alignment=start, io_in_scratch=io_in_scratch, limit=limit, size_alignment=size)


@dataclass(frozen=True)
class PoolMemory:
    """Memory of a pool, with the hold on it.

    Parameters
    ----------
    memory
        The memory as the client has set it; None if it has not.
    window, hold
        The memory itself and the hold on it; None also for a pool of size 0.
    """

    memory: Mem | None = None
    window: Window | None = None
    hold: holds.Hold | None = None

    def release(self) -> None:
        """Release the hold; safe to call again."""
        if self.hold is not None:
            self.hold.release()


class GraphPool:
    """A pool of one graph.

    Parameters
    ----------
    name, until
        Its name, and how long it belongs to the graph, for messages.
    option
        The config that sets it.
    graph
        The graph, for messages.
    group
        Pools of one group may share memory, because their graphs execute one at a time.
    """

    def __init__(self, name: str, until: str, option: LpaiGraphOption, graph: str, group: object | None = None) -> None:
        self.name, self.option = name, option
        self.what = f"{name} of {graph}"
        self.present = PoolMemory()
        """Its current memory."""
        self._until, self._group = until, group

    def take(self, memory: Mem, required: int, alignment: BufferAlignmentReq) -> PoolMemory:
        """Check new memory for this pool and hold it, while the pool still has its current memory."""
        window = pool_window(self.what, memory, required, alignment)
        if window is None:
            return PoolMemory(memory)
        hold = holds.claim(
            window,
            self.what,
            f"{self.what} {self._until}",
            group=self._group,
            # New memory may overlap the current one, which it replaces.
            besides=self.present.hold,
            code=Code.GRAPH_INVALID_ARGUMENT,
        )
        return PoolMemory(memory, window, hold)

    def release(self) -> None:
        """Release its current memory."""
        self.present.release()
        self.present = PoolMemory()
