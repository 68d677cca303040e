"""The HTP backend: graphs run in another process that sees only shared memory. These are its rules.

Raw buffers are invisible to the accelerator: they are copied through staging memory. It is reserved when the graph is
prepared or, for tensors prepared as MEMHANDLE, at the first execution that brings a raw buffer anyway. Registered
memory is used in place. Both may be mixed tensor by tensor, and every copy and reservation is counted.

When the accelerator dies, its contexts, graphs and handles are dead and return COMMON_SYSTEM_COMMUNICATION. Backend and
device survive: the next context starts a new accelerator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from isthmus.backends.accelerator import AcceleratorDevice, Queue, start_accelerator
from isthmus.backends.accelerator.remote import MAKER
from isthmus.backends.htp import delegate
from isthmus.backends.htp.accepted import ACCEPTED, refusal
from isthmus.backends.htp.graph import HtpGraphDriver, plan
from isthmus.backends.htp.io import HtpIo
from isthmus.backends.htp.memory import HtpMemory
from isthmus.backends.htp.options import (
    KEYS,
    HtpBackendProperty,
    HtpConfig,
    HtpContextConfigOption,
    Reregistration,
    read_config,
)
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import ContextBinary, inspect, to_bytes
from isthmus.backends.seam.driver import (
    BackendDriver,
    Change,
    DeviceDriver,
    GraphDriver,
    GraphsContext,
    MemDescriptor,
    Registration,
    Source,
    check_member,
    outline,
)
from isthmus.backends.seam.entry import BackendEntry, PlanReport, PlanRequest
from isthmus.backends.seam.planned import PlannedGraph
from isthmus.engine.native.target import named
from isthmus.errors import Code
from isthmus.graph import Graph
from isthmus.graph.operation import Call
from isthmus.log import Log


class HtpBackend(BackendDriver):
    """The backend, created with a configuration. Its own device is for clients that create none."""

    properties = HtpBackendProperty
    refuses_op_packages = "its packages are code for the Hexagon processor, which cannot run on this machine"

    def __init__(self, config: HtpConfig, log: Log) -> None:
        self.log = log
        self.config = config
        self.device = self._new_device()

    def _new_device(self) -> AcceleratorDevice:
        """Return a device whose accelerator is not started yet."""
        start = partial(start_accelerator, self.config.units, self.config.deadlines)
        return AcceleratorDevice("HTP device", Code.DEVICE_INVALID_HANDLE, self.log, start)

    def get_property(self, option: IntEnum) -> Any:
        assert option is HtpBackendProperty.ACCELERATOR_PID
        return self.device.pid

    def supports(self, call: Call) -> str | None:
        return refusal(call)

    def operations(self) -> Collection[str]:
        return native.operations()

    def create_device(self) -> AcceleratorDevice:
        device = self._new_device()
        # Started now, so that a client learns here if that fails.
        device.accelerator()
        return device

    def create_context(self, device: DeviceDriver | None = None) -> HtpContext:
        chosen = self.device if device is None else device
        assert isinstance(chosen, AcceleratorDevice)
        return HtpContext(self.config, chosen.open_queue())

    def close(self) -> None:
        self.device.close()


class HtpContext(GraphsContext[HtpGraphDriver]):
    """A context: a queue of the accelerator, so its executions are ordered."""

    configs = HtpContextConfigOption

    def __init__(self, config: HtpConfig, queue: Queue) -> None:
        super().__init__()
        self.config = config
        self.queue = queue
        self.memory = HtpMemory(self.queue, config.reregistration)

    def check(self, what: str) -> None:
        """Refuse use after the accelerator has died."""
        if not self.queue.accelerator.alive:
            raise self.queue.accelerator.gone(what)

    def get_config(self, option: IntEnum) -> Any:
        assert option is HtpContextConfigOption.REREGISTRATION
        return self.memory.policy

    def set_config(self, option: IntEnum, value: Any) -> Change:
        """Set the only config, the policy for memory that is registered again."""
        check_member(option, value, Reregistration, Code.CONTEXT_INVALID_CONFIG)
        return Change.attribute(self.memory, "policy", value)

    def _new_graph(self, graph: Graph) -> HtpGraphDriver:
        self.check("HTP context")
        return HtpGraphDriver(self, graph)

    def release_graph(self, graph: GraphDriver) -> None:
        assert isinstance(graph, HtpGraphDriver)
        super().release_graph(graph)
        if graph.number >= 0 and self.queue.accelerator.alive:
            self.queue.unload(graph.number)

    def register(self, descriptors: Sequence[MemDescriptor]) -> Sequence[Registration]:
        self.check("memory registration")
        return self.memory.register(descriptors)

    def get_binary(self) -> bytes:
        self.check("context binary")
        return to_bytes([graph.prepared() for graph in self._graphs], "htp")

    def restore(self, binary: Source) -> Sequence[HtpGraphDriver]:
        """Load all graphs of a context binary into the accelerator, ready to execute."""
        with ContextBinary(binary, "htp") as content:
            graphs = content.contents.planned
        for planned in graphs.values():
            native.check_plan(planned)
        numbers = self.load(list(graphs.values()))
        for name, planned in graphs.items():
            self._graphs.append(HtpGraphDriver(self, outline(planned.info), planned))
            self._graphs[-1].loaded(numbers[name])
        return list(self._graphs)

    def load(self, graphs: Sequence[PlannedGraph]) -> dict[str, int]:
        """Load graphs into the accelerator, as programs for this machine; return their numbers there by name."""
        content = to_bytes([native.lowered(graph) for graph in graphs], MAKER)
        with ContextBinary(content, verify=False) as programs:
            return self.queue.load(programs)

    @property
    def seconds_to_finish(self) -> float:
        return self.queue.accelerator.deadlines.closing

    def abort_now(self) -> None:
        self.queue.abort_now()

    def close(self) -> None:
        """Release everything: first the queue, which waits for a running execution; safe to call again."""
        self.queue.close()
        self._close_graphs()
        self.memory.close()


def _prepare(graph: Graph, config: HtpConfig, request: PlanRequest) -> PlanReport:
    """Plan a graph with at least the configured number of threads."""
    named(request.target)
    threads = native.checked_threads(max(request.threads, config.threads))
    return native.preparation(plan(graph, threads, request.limit, config.precision, config.numerics))


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
    accepted=ACCEPTED,
    keys=KEYS,
)
