"""A graph's scratch and persistent memory: what the client gave, held as long as it is the graph's."""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.backends.lpai.options import BufferAlignmentReq, LpaiGraphOption, Mem
from isthmus.backends.lpai.rules import pool_window
from isthmus.errors import Code
from isthmus.memory import Window, holds


@dataclass(frozen=True)
class PoolMemory:
    """Memory that was taken for a pool, with the hold on it; neither for a pool of size 0 or one that is not set."""

    memory: Mem | None = None
    window: Window | None = None
    hold: holds.Hold | None = None

    def release(self) -> None:
        """Let go of it; safe to call again."""
        if self.hold is not None:
            self.hold.release()


class GraphPool:
    """A pool of one graph.

    Parameters
    ----------
    name, until
        What it is, and until when it is the graph's, for messages.
    option
        The config that sets it.
    graph
        The graph, for messages.
    group
        Pools of one group may share memory, as their graphs take turns.
    """

    def __init__(self, name: str, until: str, option: LpaiGraphOption, graph: str, group: object | None = None) -> None:
        self.name, self.option = name, option
        self.what = f"{name} of {graph}"
        self.present = PoolMemory()
        """What it is now."""
        self._until, self._group = until, group

    def take(self, memory: Mem, required: int, alignment: BufferAlignmentReq) -> PoolMemory:
        """Check memory that is to become this pool and hold it, beside the memory that the pool has now."""
        found = pool_window(self.what, memory, required, alignment)
        if found is None:
            return PoolMemory(memory)
        hold = holds.claim(
            found,
            self.what,
            f"{self.what} {self._until}",
            group=self._group,
            besides=self.present.hold,
            code=Code.GRAPH_INVALID_ARGUMENT,
        )
        return PoolMemory(memory, found, hold)

    def release(self) -> None:
        """Let go of what it is now."""
        self.present.release()
        self.present = PoolMemory()
