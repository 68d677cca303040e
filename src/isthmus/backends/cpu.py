"""The CPU backend: a graph prepared for this machine's instruction set and run in the caller's process.

Its rules: scratch and state are the backend's own; inputs and outputs are the client's, at any address.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.engine import lower
from isthmus.engine.executor import Executor
from isthmus.engine.program import Program
from isthmus.engine.target import Target
from isthmus.engine.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.memory import Region, host
from isthmus.prepare import schedule
from isthmus.prepare.schedule import Plan

MAX_THREADS = 64


def prepare(graph: Graph, threads: int = 1, target: Target | None = None) -> tuple[Program, Plan]:
    """Turn a finalized graph into a program for this machine, and say how its memory was planned."""
    if not 1 <= threads <= MAX_THREADS:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT, f"threads={threads}", f"the number of threads must be 1 to {MAX_THREADS}"
        )
    if not graph.finalized:
        raise QnnError(Code.GRAPH_NOT_FINALIZED, f"graph '{graph.name}'", "finalize it before it is prepared")
    target = target or host_target()
    planned = schedule(graph, work_bytes=lambda step: lower.work_bytes(step, target, threads))
    return lower.lower(planned, target, threads), planned.plan


class CpuGraph:
    """A prepared graph with its scratch and state, bound to the client's inputs and outputs."""

    def __init__(self, program: Program, io: Sequence[Region]) -> None:
        self.program = program
        self._scratch = host(program.scratch_bytes, program.alignment)
        self._state = host(program.state_bytes, program.alignment)
        self.executor = Executor(program, self._scratch.region, self._state.region, io)
        self.executor.reset()

    def execute(self) -> None:
        """Run once on the bound memory."""
        self.executor.run()

    def reset(self) -> None:
        """Set the initial state."""
        self.executor.reset()

    def close(self) -> None:
        """End the threads and let go of scratch and state."""
        self.executor.close()
        self._scratch.close()
        self._state.close()
