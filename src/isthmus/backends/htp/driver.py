"""The HTP backend: graphs run in another process that sees only shared memory. These are its rules.

Raw buffers are invisible to the accelerator: they are copied through staging memory. It is reserved when the graph is
prepared or, for tensors prepared as MEMHANDLE, at the first execution that brings a raw buffer anyway. Registered
memory is used in place. Both may be mixed tensor by tensor, and every copy and reservation is counted.

When the accelerator dies, its contexts, graphs and handles are dead and return COMMON_SYSTEM_COMMUNICATION. Backend and
device survive: the next context starts a new accelerator.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar

from isthmus.backends.accelerator.faulty import start_accelerator
from isthmus.backends.htp import delegate, options
from isthmus.backends.htp.accepted import ACCEPTED, refusal
from isthmus.backends.htp.context import HtpContext
from isthmus.backends.htp.device import HtpDevice
from isthmus.backends.htp.graph import HtpGraphDriver, plan
from isthmus.backends.htp.list_groups import SharedResources, shared_by
from isthmus.backends.htp.process_domains import DomainState, SharedDomains
from isthmus.backends.htp.vtcm import VtcmReport, vtcm_bytes
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import inspect, unshared
from isthmus.backends.seam.entry import BackendEntry, IoMemory, IoPolicy, PlanReport, PlanRequest, register_custom
from isthmus.backends.seam.staging import pack
from isthmus.engine.native.target import named
from isthmus.graph import Graph, TensorInfo, TensorMemType
from isthmus.graph.operation import Call
from isthmus.log import Log
from isthmus.memory import rpcmem


class HtpBackend(seam.BackendDriver):
    """The backend, created with a configuration. Its own device is for clients that create none."""

    properties = options.HtpBackendProperty
    takes_other_batches = True
    copies_binaries = True
    refuses_op_packages = "its packages are code for the Hexagon processor, which cannot run on this machine"

    def __init__(self, config: options.HtpConfig, log: Log) -> None:
        self.log = log
        self.config, self.contexts = config, config.contexts
        self.device = self._new_device()

    def _new_device(self) -> HtpDevice:
        """Return a device whose accelerator is not started yet."""
        start = partial(start_accelerator, self.config.units, self.config.deadlines)
        stated = self.config.devices[0] if self.config.devices else {}
        return HtpDevice(stated.get("soc", 0), stated.get("arch", 0), self.config.chip, self.log, start)

    def get_property(self, option: IntEnum) -> Any:
        if option is options.HtpBackendProperty.PROCESS_DOMAINS:
            return self._domains()
        if option is options.HtpBackendProperty.LOADED_GRAPHS:
            return () if self.device.pid is None else self.device.accelerator().loaded()
        assert option is options.HtpBackendProperty.ACCELERATOR_PID
        return self.device.pid

    def _domains(self) -> tuple[DomainState, ...]:
        """Return the process domains of its own device's chip."""
        chip = self.device.profile
        return () if chip is None else SharedDomains.of(chip).states()

    def supports(self, call: Call) -> str | None:
        return refusal(call)

    def operations(self) -> Collection[str]:
        return native.operations()

    def create_device(self) -> HtpDevice:
        device = self._new_device()
        # Started now, so that a client learns here if that fails.
        device.accelerator()
        return device

    def create_context(self, device: seam.DeviceDriver | None = None) -> HtpContext:
        chosen = self.device if device is None else device
        assert isinstance(chosen, HtpDevice)
        return HtpContext(self.config, chosen, chosen.open_queue(), self.log)

    def open_list(
        self, configs: Mapping[Any, Any], entries: Sequence[seam.ListEntry], device: seam.DeviceDriver | None = None
    ) -> tuple[Mapping[Any, Any], Sequence[SharedResources | None]]:
        chosen = self.device if device is None else device
        assert isinstance(chosen, HtpDevice)
        config, option = self.config, options.HtpContextConfigOption
        stated = {option.SHARE_RESOURCES: config.share_resources, option.REUSED_IO_LIMIT: config.list_reused_io_limit}
        return shared_by({each: value for each, value in stated.items() if value} | {**configs}, entries, chosen.arch)

    def close(self) -> None:
        self.device.close()


class HtpIo(IoPolicy):
    """Memory for a graph whose user brings none: one shared buffer for all tensors, unless raw memory is requested."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"memhandle": TensorMemType.MEMHANDLE, "raw": TensorMemType.RAW}

    def io(self, graph: seam.GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Provide raw memory, or by default one shared buffer with a registered part for each tensor."""
        if kind == "raw":
            return super().io(graph, kind, tensors)
        assert isinstance(graph, HtpGraphDriver)
        infos = graph.info.tensors if tensors is None else tensors
        # An empty tensor takes a byte too, since two registrations cannot have the same offset.
        offsets, total = pack(max(info.nbytes, 1) for info in infos)
        buffer = rpcmem.share(total)
        assert buffer.fd is not None
        customs = [options.HtpDescriptor(buffer.nbytes, buffer.fd, offset) for offset in offsets]
        return IoMemory(register_custom(graph.context, infos, customs), [buffer])


def _prepare(graph: Graph, config: options.HtpConfig, request: PlanRequest) -> PlanReport:
    """Plan a graph with at least the configured number of threads."""
    named(request.target)
    threads = native.check_threads(max(request.threads, config.threads))
    prepared = plan(graph, threads, request.limit, config, config.weight_sharing)
    stated = config.devices[0] if config.devices else {}
    soc = stated.get("soc", 0)
    vtcm = vtcm_bytes(config.graph_options(graph.name), soc, options.arch_of(soc, stated.get("arch", 0)))
    return native.preparation(prepared, VtcmReport(prepared.schedule, vtcm))


ENTRY = BackendEntry(
    name="htp",
    library="libQnnHtp.so",
    driver=HtpBackend,
    read_config=options.read_config,
    io=HtpIo(),
    prepare=_prepare,
    inspect=inspect,
    unshared=unshared,
    c="isthmus.backends.htp.c:FACET",
    delegate=delegate.FACET,
    accepted=ACCEPTED,
    keys=options.KEYS,
)
