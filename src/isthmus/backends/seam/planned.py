"""Graphs that are planned for every processor, and become programs where they are loaded.

An accelerator's memory figures must not depend on the machine that simulates it. So its graphs are planned for all
targets at once: the work space of a step is large enough for each of them. A context binary holds the schedule, with
constants as the model declares them. Kernels are chosen and constants are packed when a graph is loaded, in private
memory that no figure includes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from isthmus.engine.native import lower
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import host as host_target
from isthmus.engine.native.target import uniform
from isthmus.engine.native.verification import Unsafe
from isthmus.engine.native.verification import verify as verify_instructions
from isthmus.errors import QnnError
from isthmus.graph import Graph, GraphInfo, MemoryNeeds, TensorInfo
from isthmus.prepare import Plan, Planner, PlanOptions, Schedule, serialization
from isthmus.prepare.engine_model import DEFAULT_ALIGNMENT, EngineModel
from isthmus.prepare.inplace import shareable_io
from isthmus.prepare.tiling import ScratchLimit
from isthmus.prepare.tiling.fit import schedule_within
from isthmus.system.container import MALFORMED, as_size
from isthmus.system.contents import GraphContents, StoredContents

FORMAT = serialization.FORMAT


@dataclass(frozen=True)
class PlannedGraph:
    """A graph whose steps and memory are planned, for any processor.

    - `schedule`: The plan in full.
    - `threads`: The number of threads that it is planned for.
    - `is_uniform`: Whether constant matrices are packed alike for any number of rows, so that graphs can share them in
      the accelerator too.
    - `is_trusted`: Whether it was planned here. Otherwise it was read from a file, and its program is verified.
    """

    schedule: Schedule
    threads: int
    is_uniform: bool = False
    is_trusted: bool = True

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.schedule.name

    @property
    def plan(self) -> Plan | None:
        """The plan of its scratch; None if it was read from a file."""
        return self.schedule.plan

    @property
    def io_offsets(self) -> tuple[int, ...]:
        """The offset of each input, then each output in scratch; empty if they are planned outside it."""
        return self.schedule.io_offsets

    @cached_property
    def info(self) -> GraphInfo:
        """The description of the graph for clients; it names no target."""
        schedule = self.schedule
        needs = MemoryNeeds(schedule.scratch_bytes, schedule.state_bytes, schedule.constant_bytes, schedule.alignment)
        inputs, outputs = (tuple(map(TensorInfo.of, ends)) for ends in (schedule.inputs, schedule.outputs))
        return GraphInfo(schedule.name, inputs, outputs, needs)

    @cached_property
    def shareable_io(self) -> frozenset[tuple[int, int]]:
        """The pairs of an input and an output, by number, that may be the same memory."""
        return shareable_io(self.schedule)

    def to_bytes(self, shared: GraphContents | None = None) -> bytes:
        """Return the graph as one block of bytes; its arrays are in it, or in the section `shared`."""
        engine = {"threads": self.threads, "uniform": self.is_uniform}
        return serialization.to_bytes(self.schedule, engine, shared)

    def bare(self) -> PlannedGraph:
        """Return what describes it, without its steps and their constants: it cannot be stored or lowered any more."""
        bare = replace(self, schedule=replace(self.schedule, steps=(), places={}, work=(), work_bytes=(), repeats=()))
        # These follow from the steps.
        vars(bare).update(info=self.info, shareable_io=self.shareable_io)
        return bare

    @np.errstate(all="ignore")
    def lowered(self) -> Program:
        """Return a program for this machine.

        Raises COMMON_INCOMPATIBLE_BINARIES if a file's work space is too small for this machine's kernels,
        COMMON_LOADING_BINARIES if it cannot become a safe program.
        """
        target = uniform(host_target()) if self.is_uniform else host_target()
        if self.is_trusted:
            return lower.lower(self.schedule, target, self.threads)
        try:
            program = lower.lower(self.schedule, target, self.threads)
            verify_instructions(program, self.schedule.io_offsets)
        except QnnError as problem:
            rule = f"{problem.what}: {problem.rule}"
            raise (FORMAT.outdated if problem.code is FORMAT.other_version else FORMAT.refusal)(rule) from None
        except Unsafe as problem:
            raise FORMAT.refusal(str(problem)) from None
        except MemoryError:
            raise FORMAT.refusal("the host has no memory for its constants") from None
        except (*MALFORMED, AssertionError) as problem:
            raise FORMAT.refusal(f"no program can be made of it: {problem}") from None
        return program


@dataclass(frozen=True)
class GraphOutline:
    """What clients see of a planned graph, without its steps and constants: those are in the binary that it is of."""

    info: GraphInfo
    threads: int
    shareable_io: frozenset[tuple[int, int]]
    plan: Plan | None = None

    @classmethod
    def of(cls, graph: PlannedGraph) -> GraphOutline:
        """Return the outline of a graph."""
        return cls(graph.info, graph.threads, graph.shareable_io)

    @property
    def name(self) -> str:
        """The name of the graph."""
        return self.info.name


def from_bytes(content: bytes | memoryview, verify: bool = True, shared: StoredContents | None = None) -> PlannedGraph:
    """Return the graph in a block of bytes, after all checks; the contents of its constants are views of that block.

    `verify` says whether to check the checksum, `shared` is the section with its arrays if they are not in the block.
    """
    schedule, engine = serialization.from_bytes(content, verify, shared)
    try:
        threads, is_uniform = as_size(engine["threads"], serialization.MAX_THREADS), engine["uniform"]
    except MALFORMED as problem:
        raise FORMAT.malformed(problem) from None
    if type(is_uniform) is not bool:
        raise FORMAT.refusal("it does not say how its matrices are packed")
    if threads < 1 or any(repeat.threads not in (1, threads) for repeat in schedule.repeats):
        raise FORMAT.refusal("its numbers of threads differ")
    return PlannedGraph(schedule, threads, is_uniform, is_trusted=False)


# An overflow in a model shows in its results, as it should; it needs no warning.
@np.errstate(all="ignore")
def schedule(graph: Graph, engine: EngineModel, options: PlanOptions, limit: ScratchLimit | None) -> Schedule:
    """Plan a complete graph for a native engine.

    With a limit on scratch, parts that do not fit as a whole are computed in tiles.

    Raises COMMON_NOT_SUPPORTED with every node that the engine does not execute, COMMON_MEM_ALLOC if the limit is too
    small to be met.
    """
    planner = Planner(graph, options, engine)
    planned = planner.schedule() if limit is None else schedule_within(planner, limit)
    # Reported to the user. One operation may have become several steps: a dictionary names it once, in order.
    in_float = dict.fromkeys((step.op, step.name) for step in planned.steps if lower.is_in_float(step))
    return replace(planned, plan=replace(planned.statistics, in_float=tuple(in_float)))


def plan(
    graph: Graph,
    threads: int = 1,
    alignment: int = DEFAULT_ALIGNMENT,
    limit: ScratchLimit | None = None,
    options: PlanOptions | None = None,
) -> PlannedGraph:
    """Plan a complete graph for every processor; the result depends on the graph and these settings only."""
    chosen = options or PlanOptions()
    engine = lower.every_target(threads, alignment, chosen.is_uniform)
    return PlannedGraph(schedule(graph, engine, chosen, limit), threads, chosen.is_uniform)
