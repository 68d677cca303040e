"""The HTP backend: graphs run in another process that sees only shared memory, by rules shown whole here.

Raw buffers are invisible to the accelerator: they are copied through staging memory, which is reserved when the graph
is prepared, or, for tensors prepared as MEMHANDLE, at the first execution that brings a raw buffer all the same.
Registered memory is used where it lies. Both may be mixed tensor by tensor, and every copy and reserve is counted.

When the accelerator dies, its contexts, graphs and handles are dead and answer COMMON_SYSTEM_COMMUNICATION. Backend and
device live on: the next context starts a new accelerator.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from isthmus.accelerator import Accelerator, Lane
from isthmus.accelerator.process import gone
from isthmus.backends.cpu import MAX_THREADS, prepare
from isthmus.backends.driver import (
    BackendDriver,
    ContextDriver,
    DeviceDriver,
    GraphDriver,
    GraphStats,
    MemDescriptor,
    Registration,
    TensorMemory,
    outline,
    unknown_option,
)
from isthmus.backends.htp_config import HtpConfig, read_config
from isthmus.backends.htp_memory import HtpMemory, HtpRegistration, Window
from isthmus.backends.htp_options import ContextConfig, DeviceProperty, GraphConfig, Reregistration
from isthmus.backends.htp_staging import Staging
from isthmus.binary import ContextBinary, GraphBinary, to_bytes
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, MemType, TensorInfo
from isthmus.log import Log, LogLevel
from isthmus.memory import Region
from isthmus.prepare.schedule import Plan


class HtpDevice(DeviceDriver):
    """A device: an accelerator process, started when it is first needed and again when it has died."""

    def __init__(self, config: HtpConfig, log: Log) -> None:
        self._config, self._log = config, log
        self._lock = threading.Lock()
        self._accelerator: Accelerator | None = None

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        accelerator = self._accelerator
        return accelerator.pid if accelerator is not None and accelerator.alive else None

    def accelerator(self) -> Accelerator:
        """The running accelerator."""
        with self._lock:
            if self._accelerator is None or not self._accelerator.alive:
                if self._accelerator is not None:
                    self._accelerator.close()
                    self._log(LogLevel.WARN, "The accelerator has ended; starting it again")
                self._accelerator = Accelerator(self._config.units or None)
                self._log(LogLevel.INFO, f"Accelerator process {self._accelerator.pid} started")
            return self._accelerator

    def close(self) -> None:
        with self._lock:
            if self._accelerator is not None:
                self._accelerator.close()
                self._accelerator = None


class HtpBackend(BackendDriver):
    """The backend, created with a configuration."""

    name = "htp"

    def __init__(self, config: Any, log: Log) -> None:
        self.log = log
        self.config = read_config(config)
        self._device = HtpDevice(self.config, log)

    def get_property(self, option: int) -> Any:
        if option == DeviceProperty.ACCELERATOR_PID:
            return self._device.pid
        raise unknown_option(Code.BACKEND_NOT_SUPPORTED, "backend 'htp'", "property", option)

    def create_device(self) -> HtpDevice:
        device = HtpDevice(self.config, self.log)
        device.accelerator()
        return device

    def create_context(self, configs: Mapping[int, Any], device: DeviceDriver | None = None) -> HtpContext:
        here = self._device if device is None else device
        assert isinstance(here, HtpDevice)
        try:
            context = HtpContext(self.config, here.accelerator())
        except QnnError as problem:
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise
            # It had died unnoticed; nothing of this context was lost with it.
            context = HtpContext(self.config, here.accelerator())
        try:
            for option, value in configs.items():
                context.set_config(option, value)
        except BaseException:
            context.close()
            raise
        return context

    def close(self) -> None:
        self._device.close()


class HtpContext(ContextDriver):
    """A context: a lane to the accelerator, so its executions are ordered."""

    def __init__(self, config: HtpConfig, accelerator: Accelerator) -> None:
        self.config = config
        self.lane = Lane(accelerator)
        self.memory = HtpMemory(self.lane, config.reregistration)
        self._graphs: list[HtpGraph] = []

    def check(self, what: str) -> None:
        """Refuse to be used after the accelerator has died."""
        if not self.lane.accelerator.alive:
            raise gone(what)

    def get_property(self, option: int) -> Any:
        if option == ContextConfig.REREGISTRATION:
            return self.memory.policy
        raise unknown_option(Code.CONTEXT_INVALID_ARGUMENT, "HTP context", "property", option)

    def set_config(self, option: int, value: Any) -> None:
        if option != ContextConfig.REREGISTRATION:
            raise unknown_option(Code.CONTEXT_INVALID_CONFIG, "HTP context", "config", option)
        if not isinstance(value, Reregistration):
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"reregistration {value!r}", "must be a Reregistration")
        self.memory.policy = value

    def create_graph(self, graph: Graph) -> HtpGraph:
        self.check("HTP context")
        self._graphs.append(HtpGraph(self, graph))
        return self._graphs[-1]

    def register(self, descriptors: Sequence[MemDescriptor]) -> list[Registration]:
        self.check("memory registration")
        return list(self.memory.register(descriptors))

    def graph_binaries(self) -> list[GraphBinary]:
        self.check("context binary")
        return [graph.binary for graph in self._graphs]

    def restore(self, binary: ContextBinary) -> list[GraphDriver]:
        numbers = self.lane.load(binary)
        for name, graph in binary.graphs.items():
            self._graphs.append(HtpGraph(self, outline(graph)))
            self._graphs[-1].restore(graph, numbers[name])
        return list(self._graphs)

    def close(self) -> None:
        self.lane.close()
        for graph in self._graphs:
            graph.close()
        self.memory.close()


class HtpGraph(GraphDriver):
    """A graph that lives in the accelerator."""

    def __init__(self, context: HtpContext, graph: Graph) -> None:
        self.graph = graph
        self._context, self._lane = context, context.lane
        self._threads = context.config.threads
        self._prepared: tuple[Program, Plan | None] | None = None
        self._number = -1
        self._staging = Staging(context.lane)
        self._bound: Sequence[TensorMemory | None] | None = None
        self._slots: list[int] = []
        self._copies_in: list[tuple[int, int, int]] = []
        self._copies_out: list[tuple[int, int, int]] = []
        self._per_execution = GraphStats()
        self._since = 0
        self._stats = GraphStats()

    # -- what it is ----------------------------------------------------------------------------------------------------

    def get_property(self, option: int) -> Any:
        if option == GraphConfig.THREADS:
            return self._threads
        raise unknown_option(Code.GRAPH_INVALID_ARGUMENT, self._what, "property", option)

    def set_config(self, option: int, value: Any) -> None:
        if option != GraphConfig.THREADS:
            raise unknown_option(Code.GRAPH_INVALID_ARGUMENT, self._what, "config", option)
        if self._prepared is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self._what, "it is prepared: the number of threads is fixed")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_THREADS:
            rule = f"the number of threads must be 1 to {MAX_THREADS}, is {value!r}"
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, self._what, rule)
        self._threads = value

    @property
    def _what(self) -> str:
        return f"graph '{self.graph.name}'"

    @property
    def program(self) -> Program:
        return self._ready()[0]

    @property
    def plan(self) -> Plan:
        plan = self._ready()[1]
        if plan is None:
            raise QnnError(Code.COMMON_NOT_SUPPORTED, self._what, "a context binary does not carry the plan of a graph")
        return plan

    @property
    def binary(self) -> GraphBinary:
        """The graph as a context binary holds it."""
        return GraphBinary(self.program, self._mem_types)

    @property
    def _mem_types(self) -> tuple[MemType, ...]:
        return tuple(self.graph.tensors[info.name].mem_type for info in self.tensors)

    def _ready(self) -> tuple[Program, Plan | None]:
        if self._prepared is None:
            if not self.graph.finalized:
                self.graph.finalize()
            self._prepared = prepare(self.graph, self._threads)
        return self._prepared

    # -- prepare -------------------------------------------------------------------------------------------------------

    def finalize(self) -> None:
        self._context.check(self._what)
        reserved = self._reserve()
        try:
            with ContextBinary(to_bytes([self.binary], "htp")) as content:
                self._number = self._lane.load(content)[self.graph.name]
        except BaseException:
            self._staging.close()
            raise
        self._stats.staging_prepare_bytes = reserved

    def restore(self, binary: GraphBinary, number: int) -> None:
        """Become a graph that was loaded from a context binary."""
        self._prepared = binary.program, None
        self._threads = binary.program.threads
        self._number = number
        self._stats.staging_prepare_bytes = self._reserve()
        self.finalized = True

    def _reserve(self) -> int:
        """Staging memory for what was prepared as raw; how many bytes that took."""
        raw = [i for i, mem_type in enumerate(self._mem_types) if mem_type is MemType.RAW]
        return self._staging.reserve(self.tensors, raw)

    # -- execute -------------------------------------------------------------------------------------------------------

    def execute(self, memories: Sequence[TensorMemory | None]) -> None:
        lane = self._lane
        lane.enter(self.priority)
        try:
            if memories is self._bound:
                self._run()
            else:
                begin = time.perf_counter()
                self._bind(memories)
                self._run()
                if self._stats.executions + self._since == 1:
                    self._stats.first_execution_us = (time.perf_counter() - begin) * 1e6
        finally:
            lane.leave()

    def _run(self) -> None:
        """Execute on the bound memory, in a turn of the lane."""
        for target, source, nbytes in self._copies_in:
            ctypes.memmove(target, source, nbytes)
        self._lane.execute(self._number, self._slots)
        for target, source, nbytes in self._copies_out:
            ctypes.memmove(target, source, nbytes)
        self._since += 1

    def _bind(self, memories: Sequence[TensorMemory | None]) -> None:
        """Use these memories from now on; checked as a whole before anything is reserved."""
        self._context.check(self._what)
        inputs = len(self.program.inputs)
        for info, memory in zip(self.tensors, memories, strict=True):
            self._check_memory(info, memory)
        self._check_apart(memories)
        raw = [i for i, memory in enumerate(memories) if memory is not None and memory.registration is None]
        self._stats.staging_execute_bytes += self._staging.reserve(self.tensors, raw)
        self._bound = None
        self._count()
        self._slots, self._copies_in, self._copies_out = [], [], []
        self._per_execution = GraphStats()
        shared = 0
        for index, (info, memory) in enumerate(zip(self.tensors, memories, strict=True)):
            assert memory is not None
            if isinstance(memory.registration, HtpRegistration):
                self._slots.append(memory.registration.slot)
                shared += info.nbytes
                continue
            stage, slot = self._staging[index]
            self._slots.append(slot)
            if index < inputs:
                self._copies_in.append((stage, memory.region.address, info.nbytes))
                self._per_execution.copied_in_bytes += info.nbytes
            else:
                self._copies_out.append((memory.region.address, stage, info.nbytes))
                self._per_execution.copied_out_bytes += info.nbytes
        self._per_execution.in_place_bytes = {"shared": shared}
        self._bound = memories

    def _check_memory(self, info: TensorInfo, memory: TensorMemory | None) -> None:
        what = f"tensor '{info.name}' of {self._what}"
        if memory is None:
            rule = "needs memory: HTP has none of its own"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, "Pass a raw buffer or a memory handle.")
        if memory.region.nbytes < info.nbytes:
            rule = f"its buffer has {memory.region.nbytes} bytes, {info.nbytes} are needed"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)

    def _check_apart(self, memories: Sequence[TensorMemory | None]) -> None:
        """Refuse an output that lies over another tensor in shared memory; inputs may share it."""
        windows: list[tuple[TensorInfo, Window]] = []
        for index, (info, memory) in enumerate(zip(self.tensors, memories, strict=True)):
            if memory is None or not isinstance(memory.registration, HtpRegistration):
                continue
            mine = memory.registration.window
            for other, theirs in windows if index >= len(self.program.inputs) else ():
                apart = mine.offset >= theirs.offset + theirs.nbytes or theirs.offset >= mine.offset + mine.nbytes
                if mine.identity == theirs.identity and not apart:
                    rule = f"its memory overlaps that of tensor '{other.name}'"
                    raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{info.name}' of {self._what}", rule)
            windows.append((info, mine))

    def _count(self) -> None:
        """Add what was executed with the present binding to the totals."""
        total, once, times = self._stats, self._per_execution, self._since
        self._since = 0
        total.executions += times
        total.copied_in_bytes += times * once.copied_in_bytes
        total.copied_out_bytes += times * once.copied_out_bytes
        for kind, nbytes in once.in_place_bytes.items():
            total.in_place_bytes[kind] = total.in_place_bytes.get(kind, 0) + times * nbytes

    def place(self, index: int) -> Region | None:
        return None

    def reset(self) -> None:
        self._context.check(self._what)
        self._lane.enter(self.priority)
        try:
            self._lane.reset(self._number)
        finally:
            self._lane.leave()

    def stats(self) -> GraphStats:
        self._lane.enter(self.priority)
        try:
            self._count()
        finally:
            self._lane.leave()
        return replace(self._stats, in_place_bytes=dict(self._stats.in_place_bytes))

    def close(self) -> None:
        self._staging.close()
        self._bound = None
