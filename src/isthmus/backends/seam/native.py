"""The base of backends on the native engine: preparation, supported operations, context binaries."""

from __future__ import annotations

import threading
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from isthmus.backends.seam import binary, planned
from isthmus.backends.seam.driver import Change, GraphDriver
from isthmus.backends.seam.entry import PlanReport, Section
from isthmus.backends.seam.planned import PlannedGraph
from isthmus.engine.native import loader, lower
from isthmus.engine.native.accepted import ACCEPTED
from isthmus.engine.native.executor import KERNELS as EXECUTOR
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target, by_name, named, runnable, uniform
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, GraphInfo
from isthmus.graph.operation import Call
from isthmus.memory.integers import is_int
from isthmus.prepare import Plan, PlanOptions
from isthmus.prepare.engine_model import DEFAULT_ALIGNMENT
from isthmus.prepare.tiling import ScratchLimit

MAX_THREADS = 64
"""Maximum number of threads of an execution."""

Prepared = TypeVar("Prepared", bound="PreparedGraph")
"""The form in which a backend prepares its graphs."""


class PreparedGraph(Protocol):
    """A graph that is ready to be loaded."""

    @property
    def info(self) -> GraphInfo:
        """Its description for clients."""

    @property
    def plan(self) -> Plan | None:
        """The plan of its scratch; a context binary holds only the result."""

    @property
    def threads(self) -> int:
        """The number of threads that it was prepared for."""

    @property
    def shareable_io(self) -> frozenset[tuple[int, int]]:
        """The pairs of an input and an output, by number, that may be the same memory."""


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that is compiled for one target.

    - `program`: Its executable form.
    - `plan`: The plan of its scratch; a context binary holds only the result.
    """

    program: Program
    plan: Plan | None = None

    @property
    def info(self) -> GraphInfo:
        """Its description for clients."""
        return self.program.info

    @property
    def threads(self) -> int:
        """The number of threads that it was prepared for."""
        return self.program.threads

    @property
    def shareable_io(self) -> frozenset[tuple[int, int]]:
        """The pairs of an input and an output, by number, that may be the same memory."""
        return self.program.shareable_io


def prepare(
    graph: Graph,
    threads: int = 1,
    target: Target | None = None,
    limit: ScratchLimit | None = None,
    options: PlanOptions | None = None,
) -> CompiledGraph:
    """Compile a complete graph to a program for a target, by default for this machine.

    With a limit on scratch, parts that do not fit as a whole are computed in tiles, and nothing uses Winograd's
    algorithm.

    Raises COMMON_NOT_SUPPORTED with every node that the engine does not execute, COMMON_MEM_ALLOC if the limit is too
    small to be met.
    """
    target, count = target or host_target(), check_threads(threads)
    options = options or PlanOptions()
    if options.is_uniform:
        target = uniform(target)
    engine = lower.NativeEngine(target, count, winograd=options.winograd and limit is None)
    schedule = planned.schedule(graph, engine, options, limit)
    with np.errstate(all="ignore"):
        return CompiledGraph(lower.lower(schedule, target, count), schedule.plan)


def anticipate_graphs() -> None:
    """Start a compiler in the background if graphs of a new context will need one, while the client describes them."""
    loader.anticipate(EXECUTOR)


def restore_program(program: Program) -> CompiledGraph:
    """Return a program of a context binary, if this machine can run it.

    Raises COMMON_INCOMPATIBLE_BINARIES if it cannot.
    """
    if not runnable(by_name(program.target)):
        raise _incompatible(program.name, f"it was prepared for {program.target}, which this machine is not")
    return CompiledGraph(program)


def check_plan(
    graph: PlannedGraph, threads: int | None = None, alignment: int = DEFAULT_ALIGNMENT, io_in_scratch: bool = False
) -> None:
    """Check that a backend can run a graph of a context binary with these threads and this alignment of pools.

    - `threads`: The number of threads that the backend runs. By default any.
    - `alignment`: The alignment of pools that the backend guarantees.
    - `io_in_scratch`: Whether the backend supports inputs and outputs that are planned into scratch.

    Raises COMMON_INCOMPATIBLE_BINARIES if it cannot.
    """
    required = graph.schedule.alignment
    if threads is not None and graph.threads != threads:
        raise _incompatible(graph.name, f"it was prepared for {graph.threads} threads, this backend runs {threads}")
    if graph.io_offsets and not io_in_scratch:
        raise _incompatible(graph.name, "its inputs and outputs are in scratch, which this backend does not support")
    if alignment % required:
        rule = f"its pools must start at multiples of {required}, the backend asks for {alignment} only"
        raise _incompatible(graph.name, rule)


def _incompatible(graph: str, rule: str) -> QnnError:
    return QnnError(Code.COMMON_INCOMPATIBLE_BINARIES, f"graph '{graph}'", rule, "Generate the binary again.")


def lowered(graph: PlannedGraph) -> Program:
    """Return the program of a graph for this machine; an error names the binary and the graph."""
    try:
        return graph.lowered()
    except QnnError as problem:
        raise problem if graph.is_trusted else binary.named(graph.name, problem) from None


def preparation(prepared: PreparedGraph, section: Section | None = None) -> PlanReport:
    """Return the report of a prepared graph."""
    assert prepared.plan is not None
    return PlanReport(prepared.info, prepared.plan, prepared.threads, section)


def check_threads(threads: Any, code: Code = Code.COMMON_INVALID_ARGUMENT) -> int:
    """Return a number of threads, or refuse it."""
    if not is_int(threads) or not 1 <= threads <= MAX_THREADS:
        raise QnnError(code, f"threads={threads!r}", f"the number of threads must be 1 to {MAX_THREADS}")
    return int(threads)


def check_target(name: str | None) -> None:
    """Refuse a name that no instruction set has; None means that of this machine."""
    named(name)


def supports(call: Call) -> str | None:
    """Return why the native engine cannot execute a node, or None if it can."""
    return ACCEPTED.refusal(call, lower.supports(call))


def operations() -> tuple[str, ...]:
    """Return the operations that the native engine executes in some form."""
    return tuple(ACCEPTED.types)


class NativeGraphDriver(GraphDriver, Generic[Prepared]):
    """A graph that is, or will become, a program of the native engine.

    - `graph`: The graph, composed or still to be composed.
    - `prepared`: The prepared graph, if it comes from a context binary.
    - `threads`: Number of threads of an execution unless the client sets another.
    - `_prepared`: The compiled graph, once it is needed.
    - `_preparing`: Held while the graph is compiled, so that two threads do not both compile it.
    - `_restored`: Whether it comes from a context binary.
    """

    def __init__(self, graph: Graph, prepared: Prepared | None = None, threads: int = 1) -> None:
        self.graph = graph
        self._restored = prepared is not None
        self._prepared = prepared
        self._preparing = threading.Lock()
        self._threads = threads if prepared is None else prepared.threads
        self._scratch_limit: ScratchLimit | None = None
        self._closed = False

    @property
    def info(self) -> GraphInfo:
        return self.prepared().info

    @property
    def plan(self) -> Plan | None:
        return self.prepared().plan

    def prepared(self) -> Prepared:
        """Return the prepared graph. Querying it ends composition: sizes are those of a complete graph."""
        prepared = self._prepared
        if prepared is None:
            with self._preparing:
                if self._closed:
                    raise QnnError(Code.GRAPH_INVALID_HANDLE, self.what, "its context has been freed")
                prepared = self._prepared
                if prepared is None:
                    if not self.graph.finalized:
                        self.graph.finalize()
                    prepared = self._prepared = self._prepare()
        return prepared

    @abstractmethod
    def _prepare(self) -> Prepared:
        """Prepare the complete graph."""

    def close(self) -> None:
        """Release weights and program: a client may keep handles and bindings long after it has freed them.

        An empty graph remains, with the name for messages.
        """
        with self._preparing:
            self._closed, self._prepared, self.graph = True, None, Graph(self.graph.name)

    @property
    def threads(self) -> int:
        return self._threads

    def set_threads(self, threads: int) -> Change:
        """Set the number of threads, before the graph is compiled."""
        count = check_threads(threads, Code.GRAPH_INVALID_ARGUMENT)
        if self._prepared is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, "it is prepared: the number of threads is fixed")
        return Change.attribute(self, "_threads", count)

    @property
    def scratch_limit(self) -> ScratchLimit | None:
        return self._scratch_limit

    def set_scratch_limit(self, limit: ScratchLimit | None) -> Change:
        """Limit the graph's scratch, before the graph is compiled."""
        if self._prepared is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, "it is prepared: its scratch is planned")
        return Change.attribute(self, "_scratch_limit", limit)


def target_key() -> str:
    """Return what plans and code depend on here: the best instruction set, or the one that ``ISTHMUS_TARGET`` names."""
    return named(None).key
