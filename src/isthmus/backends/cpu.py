"""The CPU backend: a graph prepared for this machine's instruction set and run in the caller's process.

Its rules: scratch and state are the backend's own; inputs and outputs are the client's, at any address, and the
backend's own where the client brings none. It has no custom options and registers no memory.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.backends.driver import (
    BackendDriver,
    ContextDriver,
    DeviceDriver,
    GraphDriver,
    GraphStats,
    MemDescriptor,
    Registration,
    TensorMemory,
    check_apart,
    unknown_option,
)
from isthmus.engine.native import lower
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import Target
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.log import Log
from isthmus.memory import HostBuffer, Region, host
from isthmus.prepare import schedule
from isthmus.prepare.schedule import Plan

MAX_THREADS = 64
_IO_ALIGNMENT = 64


def prepare(graph: Graph, threads: int = 1, target: Target | None = None) -> tuple[Program, Plan]:
    """Turn a finalized graph into a program for this machine, and say how its memory was planned."""
    if not isinstance(threads, (int, np.integer)) or not 1 <= threads <= MAX_THREADS:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT, f"threads={threads!r}", f"the number of threads must be 1 to {MAX_THREADS}"
        )
    if not graph.finalized:
        raise QnnError(Code.GRAPH_NOT_FINALIZED, f"graph '{graph.name}'", "finalize it before it is prepared")
    target = target or host_target()
    count = int(threads)
    planned = schedule(graph, work_bytes=lambda step: lower.work_bytes(step, target, count))
    return lower.lower(planned, target, count), planned.plan


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


class CpuBackend(BackendDriver):
    """The backend as the QNN API drives it."""

    name = "cpu"

    def __init__(self, config: Any, log: Log) -> None:
        if config:
            raise QnnError(Code.BACKEND_INVALID_CONFIG, "backend 'cpu'", "it has no configuration")

    def get_property(self, option: int) -> Any:
        raise unknown_option(Code.BACKEND_NOT_SUPPORTED, "backend 'cpu'", "property", option)

    def create_context(self, configs: Mapping[int, Any], device: DeviceDriver | None = None) -> CpuContext:
        context = CpuContext()
        for option, value in configs.items():
            context.set_config(option, value)
        return context


class CpuContext(ContextDriver):
    """A context on the CPU."""

    def __init__(self) -> None:
        self._graphs: list[CpuGraphDriver] = []

    def get_property(self, option: int) -> Any:
        raise unknown_option(Code.CONTEXT_INVALID_ARGUMENT, "CPU context", "property", option)

    def set_config(self, option: int, value: Any) -> None:
        raise unknown_option(Code.CONTEXT_INVALID_CONFIG, "CPU context", "config", option)

    def create_graph(self, graph: Graph) -> CpuGraphDriver:
        driver = CpuGraphDriver(graph)
        self._graphs.append(driver)
        return driver

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[Registration]:
        raise QnnError(
            Code.COMMON_NOT_SUPPORTED, "CPU context", "it registers no memory", "Raw buffers are used in place here."
        )

    def close(self) -> None:
        for graph in self._graphs:
            graph.close()


class CpuGraphDriver(GraphDriver):
    """A graph on the CPU."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._turn = threading.Lock()
        self._prepared: tuple[Program, Plan] | None = None
        self._cpu: CpuGraph | None = None
        self._own: list[HostBuffer] = []
        self._bound: Sequence[TensorMemory | None] | None = None
        self._stats = GraphStats()

    def get_property(self, option: int) -> Any:
        raise unknown_option(Code.GRAPH_INVALID_ARGUMENT, f"graph '{self.graph.name}'", "property", option)

    def set_config(self, option: int, value: Any) -> None:
        raise unknown_option(Code.GRAPH_INVALID_ARGUMENT, f"graph '{self.graph.name}'", "config", option)

    def finalize(self) -> None:
        self._own = [host(info.nbytes, _IO_ALIGNMENT) for info in self.tensors]
        self._cpu = CpuGraph(self.program, [buffer.region for buffer in self._own])

    def execute(self, memories: Sequence[TensorMemory | None]) -> None:
        with self._turn:
            cpu = self._finalized()
            if memories is not self._bound:
                regions = [
                    own.region if memory is None else memory.region
                    for own, memory in zip(self._own, memories, strict=True)
                ]
                for region, info in zip(regions, self.tensors, strict=True):
                    region.check(f"memory of tensor '{info.name}'", info.nbytes)
                check_apart(f"graph '{self.graph.name}'", self.tensors, len(self.program.inputs), regions)
                for index, region in enumerate(regions):
                    cpu.executor.bind_io(index, region)
                self._bound = memories
            cpu.execute()
            self._stats.executions += 1

    @property
    def program(self) -> Program:
        return self._ready()[0]

    @property
    def plan(self) -> Plan:
        return self._ready()[1]

    def place(self, index: int) -> Region | None:
        self._finalized()
        return self._own[index].region

    def reset(self) -> None:
        with self._turn:
            self._finalized().reset()

    def stats(self) -> GraphStats:
        nbytes = self._stats.executions * sum(info.nbytes for info in self.tensors)
        return GraphStats(self._stats.executions, in_place_bytes={"raw": nbytes} if nbytes else {})

    def close(self) -> None:
        with self._turn:
            if self._cpu is not None:
                self._cpu.close()
                self._cpu = None

    def _ready(self) -> tuple[Program, Plan]:
        if self._prepared is None:
            if not self.graph.finalized:
                self.graph.finalize()
            self._prepared = prepare(self.graph)
        return self._prepared

    def _finalized(self) -> CpuGraph:
        if self._cpu is None:
            raise QnnError(
                Code.GRAPH_NOT_FINALIZED, f"graph '{self.graph.name}'", "only a finalized graph can be executed"
            )
        return self._cpu
