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
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any

from isthmus.accelerator import Accelerator, Lane
from isthmus.backends import native
from isthmus.backends.binding import Binding, Ledger
from isthmus.backends.driver import (
    BackendDriver,
    Change,
    ContextDriver,
    DeviceDriver,
    GraphStats,
    MemDescriptor,
    Memories,
    Registration,
    Source,
    TensorMemory,
    Traffic,
    check_apart,
)
from isthmus.backends.entry import BackendEntry, Preparation
from isthmus.backends.htp_config import HtpConfig, read_config
from isthmus.backends.htp_io import HtpIo
from isthmus.backends.htp_memory import HtpMemory, HtpRegistration
from isthmus.backends.htp_options import BackendProperty, ContextConfig, Reregistration
from isthmus.backends.htp_staging import Staging
from isthmus.backends.limit import Limit
from isthmus.backends.native import NativeGraphDriver, Prepared
from isthmus.binary import ContextBinary, inspect, to_bytes
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, MemType, TensorInfo
from isthmus.graph.operation import Call
from isthmus.log import Log, LogLevel
from isthmus.memory import Window


class HtpDevice(DeviceDriver):
    """A device: an accelerator process, started when it is first needed and again when it has died."""

    def __init__(self, config: HtpConfig, log: Log) -> None:
        self._config, self._log = config, log
        self._lock = threading.Lock()
        self._accelerator: Accelerator | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process, if there is one."""
        accelerator = self._accelerator
        return accelerator.pid if accelerator is not None and accelerator.alive else None

    def accelerator(self) -> Accelerator:
        """The running accelerator."""
        with self._lock:
            if self._closed:
                raise QnnError(Code.DEVICE_INVALID_HANDLE, "HTP device", "it has been freed")
            if self._accelerator is None or not self._accelerator.alive:
                if self._accelerator is not None:
                    self._accelerator.close()
                    self._log(LogLevel.WARN, "The accelerator has ended; starting it again")
                self._accelerator = Accelerator(self._config.units or None, self._config.deadlines)
                self._log(LogLevel.INFO, f"Accelerator process {self._accelerator.pid} started")
            return self._accelerator

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._accelerator is not None:
                self._accelerator.close()
                self._accelerator = None


class HtpBackend(BackendDriver):
    """The backend, created with a configuration."""

    properties = BackendProperty

    def __init__(self, config: HtpConfig, log: Log) -> None:
        self.log = log
        self.config = config
        self._device = HtpDevice(config, log)

    def get_property(self, option: IntEnum) -> Any:
        assert option is BackendProperty.ACCELERATOR_PID
        return self._device.pid

    def supports(self, call: Call) -> str | None:
        return native.supports(call)

    def operations(self) -> Collection[str]:
        return native.operations()

    def create_device(self) -> HtpDevice:
        device = HtpDevice(self.config, self.log)
        device.accelerator()
        return device

    def create_context(self, device: DeviceDriver | None = None) -> HtpContext:
        here = self._device if device is None else device
        assert isinstance(here, HtpDevice)
        try:
            return HtpContext(self.config, here.accelerator())
        except QnnError as problem:
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise
            # It had died unnoticed; nothing of this context was lost with it.
            return HtpContext(self.config, here.accelerator())

    def close(self) -> None:
        self._device.close()


class HtpContext(ContextDriver):
    """A context: a lane to the accelerator, so its executions are ordered."""

    configs = ContextConfig

    def __init__(self, config: HtpConfig, accelerator: Accelerator) -> None:
        self.config = config
        self.lane = Lane(accelerator)
        self.memory = HtpMemory(self.lane, config.reregistration)
        self._graphs: list[HtpGraphDriver] = []

    def check(self, what: str) -> None:
        """Refuse to be used after the accelerator has died."""
        if not self.lane.accelerator.alive:
            raise self.lane.accelerator.gone(what)

    def get_config(self, option: IntEnum) -> Any:
        assert option is ContextConfig.REREGISTRATION
        return self.memory.policy

    def set_config(self, option: IntEnum, value: Any) -> Change:
        if not isinstance(value, Reregistration):
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"reregistration {value!r}", "must be a Reregistration")
        before, self.memory.policy = self.memory.policy, value
        return Change(undo=lambda: setattr(self.memory, "policy", before))

    def create_graph(self, graph: Graph) -> HtpGraphDriver:
        self.check("HTP context")
        self._graphs.append(HtpGraphDriver(self, graph))
        return self._graphs[-1]

    def drop_graph(self, graph: Graph) -> None:
        self._graphs = [known for known in self._graphs if known.graph is not graph]

    def register(self, descriptors: Sequence[MemDescriptor]) -> Sequence[Registration]:
        self.check("memory registration")
        return self.memory.register(descriptors)

    def get_binary(self) -> bytes:
        self.check("context binary")
        return to_bytes([graph.binary() for graph in self._graphs], "htp")

    def restore(self, binary: Source) -> Sequence[HtpGraphDriver]:
        with ContextBinary(binary, "htp") as content:
            found = [(native.outline(entry), native.restored(entry)) for entry in content.graphs.values()]
            numbers = self.lane.load(content)
        for graph, prepared in found:
            self._graphs.append(HtpGraphDriver(self, graph, prepared))
            self._graphs[-1].loaded(numbers[graph.name])
        return list(self._graphs)

    @property
    def seconds_to_finish(self) -> float:
        return self.lane.accelerator.deadlines.closing

    def hasten(self) -> None:
        self.lane.hasten()

    def close(self) -> None:
        self.lane.close()
        for graph in self._graphs:
            graph.close()
        self.memory.close()


class LaneTurn:
    """A graph's turn on its context's lane, by the priority that the graph has at the time."""

    def __init__(self, lane: Lane, graph: HtpGraphDriver) -> None:
        self._lane, self._graph = lane, graph

    def __enter__(self) -> None:
        try:
            self._lane.enter(self._graph.priority)
        except BaseException:
            self._lane.leave()
            raise

    def __exit__(self, *exception: object) -> None:
        self._lane.leave()

    def forsake(self) -> None:
        self._lane.leave()


class HtpGraphDriver(NativeGraphDriver):
    """A graph that lives in the accelerator."""

    def __init__(self, context: HtpContext, graph: Graph, prepared: Prepared | None = None) -> None:
        super().__init__(graph, prepared, context.config.threads)
        self.context = context
        self.turn = LaneTurn(context.lane, self)
        self.ledger = Ledger(self.turn)
        self.staging = Staging(context.lane)
        self.number = -1
        """What the accelerator knows it by."""

    def finalize(self) -> None:
        self.context.check(self.what)
        binary = self.binary()
        reserved = self._reserve()
        try:
            with ContextBinary(to_bytes([binary], "htp")) as content:
                self.loaded(self.context.lane.load(content)[self.graph.name], reserved)
        except BaseException:
            self.staging.close()
            raise

    def loaded(self, number: int, reserved: int | None = None) -> None:
        """Become a graph that the accelerator has."""
        self.number = number
        self.ledger.total.staging_prepare_bytes = self._reserve() if reserved is None else reserved
        self.finalized = True

    def _reserve(self) -> int:
        """Staging memory for what was prepared as raw; how many bytes that took."""
        raw = [index for index, info in enumerate(self.info.tensors) if info.mem_type is MemType.RAW]
        return self.staging.reserve(self.info.tensors, raw)

    def bind(self, memories: Memories) -> HtpBinding:
        return HtpBinding(self, memories, self.ledger)

    def reset(self) -> None:
        self.context.check(self.what)
        self.ledger.in_turn(lambda: self.context.lane.reset(self.number))

    def stats(self) -> GraphStats:
        return self.ledger.stats()

    def close(self) -> None:
        self.ledger.close()
        self.staging.close()


class HtpBinding(Binding):
    """Memory for a graph in the accelerator: registered memory by its number there, raw memory by a copy."""

    def __init__(self, graph: HtpGraphDriver, memories: Memories, ledger: Ledger) -> None:
        self._graph = graph
        self._lane = graph.context.lane
        self._begun = 0.0
        super().__init__(graph.what, memories, ledger)

    def _basis(self) -> object:
        self._graph.context.check(self._what)
        return self._graph.number

    def _bind(self) -> tuple[Traffic, list[tuple[str, Window]]]:
        graph, infos = self._graph, self._graph.info.tensors
        graph.context.check(graph.what)
        self._begun = time.perf_counter()
        given = [_checked(graph.what, info, memory) for info, memory in zip(infos, self.memories, strict=True)]
        inputs = len(graph.info.inputs)
        check_apart(graph.what, infos, inputs, [m.window.part(0, i.nbytes) for i, m in zip(infos, given, strict=True)])
        raw = [index for index, memory in enumerate(given) if memory.registration is None]
        graph.ledger.total.staging_execute_bytes += graph.staging.reserve(infos, raw)
        self._slots: list[int] = []
        self._copies_in: list[tuple[int, int, int]] = []
        self._copies_out: list[tuple[int, int, int]] = []
        in_place = 0
        for index, (info, memory) in enumerate(zip(infos, given, strict=True)):
            if isinstance(memory.registration, HtpRegistration):
                self._slots.append(memory.registration.slot)
                in_place += info.nbytes
                continue
            stage, slot = graph.staging[index]
            self._slots.append(slot)
            if index < inputs:
                self._copies_in.append((stage, memory.window.address, info.nbytes))
            else:
                self._copies_out.append((memory.window.address, stage, info.nbytes))
        traffic = Traffic(
            sum(nbytes for _, _, nbytes in self._copies_in),
            sum(nbytes for _, _, nbytes in self._copies_out),
            {"shared": in_place} if in_place else {},
        )
        return traffic, [
            (info.name, memory.window.part(0, info.nbytes)) for info, memory in zip(infos, given, strict=True)
        ]

    def close(self) -> None:
        if not self._lane.accelerator.forked:
            super().close()

    def _run_within(self, limit: Limit) -> None:
        with limit.watched(self._lane.abort):
            self._run(limit.left)

    def _run(self, seconds: float | None = None) -> None:
        for target, source, nbytes in self._copies_in:
            ctypes.memmove(target, source, nbytes)
        self._lane.execute(self._graph.number, self._slots, seconds)
        for target, source, nbytes in self._copies_out:
            ctypes.memmove(target, source, nbytes)
        if self._begun:
            total = self._graph.ledger.total
            total.first_execution_us = total.first_execution_us or (time.perf_counter() - self._begun) * 1e6
            self._begun = 0.0


def _checked(graph: str, info: TensorInfo, memory: TensorMemory | None) -> TensorMemory:
    what = f"tensor '{info.name}' of {graph}"
    if memory is None:
        rule = "needs memory: HTP has none of its own"
        raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule, "Pass a raw buffer or a memory handle.")
    if memory.window.nbytes < info.nbytes:
        rule = f"its buffer has {memory.window.nbytes} bytes, {info.nbytes} are needed"
        raise QnnError(Code.GRAPH_INVALID_TENSOR, what, rule)
    return memory


def _prepare(graph: Graph, config: HtpConfig, threads: int) -> Preparation:
    return native.preparation(native.prepare(graph, max(threads, config.threads)))


ENTRY = BackendEntry(
    name="htp",
    library="libQnnHtp.so",
    driver=HtpBackend,
    read_config=read_config,
    io=HtpIo(),
    prepare=_prepare,
    inspect=inspect,
)
