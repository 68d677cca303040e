"""The HTP backend: graphs run in another process that sees only shared memory, by rules shown whole here.

Raw buffers are invisible to the accelerator: they are copied through staging memory, which is reserved when the graph
is prepared, or, for tensors prepared as MEMHANDLE, at the first execution that brings a raw buffer all the same.
Registered memory is used where it lies. Both may be mixed tensor by tensor, and every copy and reserve is counted.

When the accelerator dies, its contexts, graphs and handles are dead and answer COMMON_SYSTEM_COMMUNICATION. Backend and
device live on: the next context starts a new accelerator.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any

from isthmus.backends.accelerator import Accelerator, Queue, open_lane
from isthmus.backends.htp import delegate
from isthmus.backends.htp.config import HtpConfig, read_config
from isthmus.backends.htp.graph import HtpGraphDriver
from isthmus.backends.htp.io import HtpIo
from isthmus.backends.htp.memory import HtpMemory
from isthmus.backends.htp.options import HtpBackendProperty, HtpContextConfigOption, Reregistration
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import ContextBinary, inspect, to_bytes
from isthmus.backends.seam.driver import (
    BackendDriver,
    Change,
    ContextDriver,
    DeviceDriver,
    MemDescriptor,
    Registration,
    Source,
)
from isthmus.backends.seam.entry import BackendEntry, PlanReport
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.graph.operation import Call
from isthmus.log import Log, LogLevel, deferred
from isthmus.prepare.tiling import ScratchLimit


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
        with deferred(), self._lock:
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

    properties = HtpBackendProperty

    def __init__(self, config: HtpConfig, log: Log) -> None:
        self.log = log
        self.config = config
        self._device = HtpDevice(config, log)

    def get_property(self, option: IntEnum) -> Any:
        assert option is HtpBackendProperty.ACCELERATOR_PID
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
        return HtpContext(self.config, open_lane(here.accelerator))

    def close(self) -> None:
        self._device.close()


class HtpContext(ContextDriver):
    """A context: a lane to the accelerator, so its executions are ordered."""

    configs = HtpContextConfigOption

    def __init__(self, config: HtpConfig, lane: Queue) -> None:
        self.config = config
        self.lane = lane
        self.memory = HtpMemory(self.lane, config.reregistration)
        self._graphs: list[HtpGraphDriver] = []

    def check(self, what: str) -> None:
        """Refuse to be used after the accelerator has died."""
        if not self.lane.accelerator.alive:
            raise self.lane.accelerator.gone(what)

    def get_config(self, option: IntEnum) -> Any:
        assert option is HtpContextConfigOption.REREGISTRATION
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
        self._graphs.clear()


def _prepare(graph: Graph, config: HtpConfig, threads: int, limit: ScratchLimit | None) -> PlanReport:
    return native.preparation(native.prepare(graph, max(threads, config.threads), limit=limit))


ENTRY = BackendEntry(
    name="htp",
    library="libQnnHtp.so",
    driver=HtpBackend,
    read_config=read_config,
    io=HtpIo(),
    prepare=_prepare,
    inspect=inspect,
    c="isthmus.backends.htp.c:FACET",
    delegate=delegate.FACET,
)
