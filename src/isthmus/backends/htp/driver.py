"""The HTP backend: graphs run in another process that sees only shared memory. These are its rules.

Raw buffers are invisible to the accelerator: they are copied through staging memory. It is reserved when the graph is
prepared or, for tensors prepared as MEMHANDLE, at the first execution that brings a raw buffer anyway. Registered
memory is used in place. Both may be mixed tensor by tensor, and every copy and reservation is counted.

When the accelerator dies, its contexts, graphs and handles are dead and return COMMON_SYSTEM_COMMUNICATION. Backend and
device survive: the next context starts a new accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import Any, ClassVar
from weakref import WeakMethod, WeakValueDictionary

from isthmus.backends.accelerator.device import AcceleratorDevice
from isthmus.backends.accelerator.faulty import start_accelerator
from isthmus.backends.accelerator.gate import GroupedLock, QueueLock
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.accelerator.remote import load_placed, load_programs
from isthmus.backends.htp import client_buffers, delegate, options
from isthmus.backends.htp.accepted import ACCEPTED, refusal
from isthmus.backends.htp.chips import chip_of, profile_of
from isthmus.backends.htp.graph import HtpGraphDriver, plan
from isthmus.backends.htp.graph_switch import GraphSwitch
from isthmus.backends.htp.kept_binary import KeptBinary
from isthmus.backends.htp.list_groups import MIN_ARCH_OF_CONCURRENT, SharedResources, refuse_list_only, shared_by
from isthmus.backends.htp.memory import ContextBuffer, HtpMemory
from isthmus.backends.htp.process_domains import DomainState, DomainUse, SharedDomains
from isthmus.backends.htp.provided_weights import ProvidedWeights
from isthmus.backends.htp.spill_fill_groups import GroupRegistration, MemberNeeds, SpillFillGroup, group_for
from isthmus.backends.htp.vtcm import VtcmReport, check_optimal, vtcm_bytes
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import BinaryContents, ContextBinary, describe, inspect, to_bytes, unshared
from isthmus.backends.seam.device_record import DeviceRecord, GraphRecord
from isthmus.backends.seam.entry import BackendEntry, IoMemory, IoPolicy, PlanReport, PlanRequest, register_custom
from isthmus.backends.seam.planned import GraphOutline, PlannedGraph
from isthmus.backends.seam.provided import ProvidedBinary
from isthmus.backends.seam.provider import BinarySection, ProvidedBuffer
from isthmus.backends.seam.staging import pack
from isthmus.domains import ChipProfile, Choice, ContextSizes, GraphNeeds, profile
from isthmus.domains.sizes import rounded_up, spill_fill_property, weights_property
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import named
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, GraphInfo, TensorInfo, TensorMemType
from isthmus.graph.operation import Call
from isthmus.log import Log, LogLevel, deferred
from isthmus.memory import rpcmem
from isthmus.memory.integers import is_int

_MULTI = options.HtpContextConfigOption.REGISTER_MULTI_CONTEXTS
_CONCURRENT = options.HtpContextConfigOption.REGISTER_CONCURRENT_RESOURCE_SHARING
# The options that put a context into a group.
_GROUPS = (_MULTI, _CONCURRENT)
# The first version of the processor with extended UDMA.
_MIN_ARCH_OF_UDMA = 81
Buffers = Mapping[options.HtpMemType, ContextBuffer]
"""The buffers of the client's for a context, by type."""
_NO_BUFFERS: Buffers = {}
# The buffers that graphs are loaded into.
_OF_GRAPHS = (options.HtpMemType.WEIGHTS_BUFFER, options.HtpMemType.SHARED_SPILLFILL_BUFFER)
# How many graphs of a context its name in messages has.
_NAMED = 3


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


class HtpDevice(AcceleratorDevice):
    """A device: an accelerator process, and the chip that it stands for.

    The chip changes nothing that is executed. Binaries state it, and contexts are charged to its process domains.
    """

    configs = options.HtpDeviceConfigOption

    def __init__(
        self, soc: int, arch: int, chip: ChipProfile | None, log: Log, start: Callable[[], Accelerator]
    ) -> None:
        super().__init__("HTP device", Code.DEVICE_INVALID_HANDLE, log, start)
        self._chip = chip
        self._stated = {options.HtpDeviceConfigOption.SOC: soc, options.HtpDeviceConfigOption.ARCH: arch}
        self.groups: WeakValueDictionary[int, SpillFillGroup] = WeakValueDictionary()
        """The groups that configurations have named, by their number there."""

    def get_config(self, option: IntEnum) -> Any:
        return self._stated[options.HtpDeviceConfigOption(option)]

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        is_known = options.is_soc if option is options.HtpDeviceConfigOption.SOC else options.is_architecture
        if not is_int(value) or not is_known(value):
            raise QnnError(Code.DEVICE_INVALID_CONFIG, f"{option.name} {value!r}", "there is none of this number")
        return seam.Change.entry(self._stated, option, int(value))

    @property
    def soc(self) -> int:
        """The number of the chip; 0 if none is named."""
        return self._stated[options.HtpDeviceConfigOption.SOC]

    @property
    def arch(self) -> int:
        """The version of its processor: the chip's, or the one that was named without a chip."""
        return options.arch_of(self.soc, self._stated[options.HtpDeviceConfigOption.ARCH])

    @property
    def profile(self) -> ChipProfile | None:
        """The process domains of its chip; None if neither a chip nor a version of the processor is named."""
        if self._chip is not None:
            return self._chip
        if self.soc:
            return profile_of(str(self.soc))
        arch = self._stated[options.HtpDeviceConfigOption.ARCH]
        return profile(f"v{arch}", arch=arch) if arch else None


class HtpContext(seam.GraphsContext[HtpGraphDriver]):
    """A context: a queue of the accelerator, so its executions are ordered.

    - `soc`, `arch`: The chip of its device and the version of its processor, or those that its binary was made for.
    """

    configs = options.HtpContextConfigOption
    properties = options.HtpContextProperty
    switches = True

    def __init__(self, config: options.HtpConfig, device: HtpDevice, queue: Queue, log: Log) -> None:
        super().__init__()
        self.config = config
        self.soc, self.arch = device.soc, device.arch
        self._device = device
        self.queue = queue
        self.weight_sharing = config.weight_sharing
        """Whether its graphs share equal constants."""
        self.extended_udma = config.extended_udma
        """Whether weights may be above 4 GB of the accelerator's memory."""
        self.io_mem_estimation = config.io_mem_estimation
        """Whether its process domain must have room for its inputs and outputs when it is created."""
        self.reused_io_limit = config.reused_io_limit
        """The MB that count then, instead of the inputs and outputs of all graphs; 0 for these."""
        self.dsp_memory_profiling = config.dsp_memory_profiling
        """Whether profiles get what the accelerator has mapped."""
        self.prepare_only = False
        """Whether its graphs are prepared and not loaded."""
        self.reference_weight_sharing = False
        """Whether it is for a DLC with binaries of several chips."""
        self._log = log
        self.group: SpillFillGroup | None = None
        """The contexts with which it has its spill-fill buffer in common."""
        # What the client has registered, by the option: the first or the second kind of group.
        self._registrations: dict[IntEnum, GroupRegistration | None] = dict.fromkeys(_GROUPS)
        self._shared: SharedResources | None = None
        # The process domain and the bytes of the inputs and outputs for which its list has kept room there.
        self._awaited_io: tuple[int, int] | None = None
        self._use = DomainUse(device.profile, log)
        # The context keeps its memory. If that kept the context too, both would be left to the garbage collector.
        least_bytes = WeakMethod(self._least_bytes)
        self.memory = HtpMemory(self.queue, config.reregistration, self._use, least_bytes)
        # The binary whose constants its client brings, and the buffers with them.
        self._awaited: ProvidedBinary | None = None
        self._provided: ProvidedWeights | None = None
        # The binary of graphs that are yet to be loaded, and the bytes that they take of a weights buffer. Their
        # programs are kept if these were computed from them.
        self._deferred: BinaryContents | None = None
        self._deferred_weights: int | None = None
        self._kept: KeptBinary | None = None
        self._infos: Sequence[GraphInfo] = ()
        """The graphs of its binary that are enabled."""
        self.switch: GraphSwitch | None = None
        """What loads and unloads its graphs; None if all of them stay loaded."""
        self._programs: list[Program] = []
        # What executions exclude those of other contexts with, whose spill-fill buffers are in the same file.
        self._turns: object = None
        self._is_from_binary = False

    def check(self, what: str) -> None:
        """Refuse use after the accelerator has died."""
        if not self.queue.accelerator.alive:
            raise self.queue.accelerator.gone(what)

    def get_config(self, option: IntEnum) -> Any:
        refuse_list_only(option)
        if option in _GROUPS:
            return self._registrations[option]
        attribute = options.HtpContextConfigOption(option).attribute
        return getattr(self, attribute) if attribute else self.memory.policy

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        """Set an option of graphs, which has no effect on graphs that exist, or the policy for memory that is
        registered again.
        """
        refuse_list_only(option)
        if option in _GROUPS:
            self._check_group(option, value)
            if self._graphs:
                return self._without_effect(option)
            return seam.Change.entry(self._registrations, option, value)
        if attribute := options.HtpContextConfigOption(option).attribute:
            if option is options.HtpContextConfigOption.REUSED_IO_LIMIT:
                _check_mb(option, value)
            else:
                seam.check_member(option, value, bool, Code.CONTEXT_INVALID_CONFIG)
            if self._graphs and option is not options.HtpContextConfigOption.DSP_MEMORY_PROFILING_ENABLED:
                return self._without_effect(option)
            return seam.Change.attribute(self, attribute, value)
        seam.check_member(option, value, options.Reregistration, Code.CONTEXT_INVALID_CONFIG)
        return seam.Change.attribute(self.memory, "policy", value)

    def _without_effect(self, option: IntEnum) -> seam.Change:
        """Log that an option of graphs comes too late, and change nothing."""
        self._log(LogLevel.INFO, f"HTP context option {option.name}: without effect, the context has graphs")
        return seam.Change()

    def _check_group(self, option: IntEnum, value: Any) -> None:
        """Refuse a group that the context cannot be in."""
        seam.check_member(option, value, GroupRegistration, Code.CONTEXT_INVALID_CONFIG)
        rule = ""
        if option is _CONCURRENT and self._device.arch < MIN_ARCH_OF_CONCURRENT:
            what = f"HTP context option {option.name} on v{self._device.arch}"
            rule = "Concurrent resource sharing config is not supported"
            hint = f"Chips from v{MIN_ARCH_OF_CONCURRENT} on have it."
            raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, hint)
        if self.memory.has_buffers():
            rule = "the client has registered buffers of its own for the context, which excludes groups"
        elif any(other is not None for kind, other in self._registrations.items() if kind is not option):
            rule = "a context is in one group"
        elif not is_int(value.nbytes) or value.nbytes < 0:
            rule = f"its size must be a number of bytes, is {value.nbytes!r}"
        if rule:
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "spill-fill group", rule)

    def check_priority_change(self) -> None:
        if self._registrations[_CONCURRENT] is not None:
            rule = "the graphs of a concurrent group keep the priority that their context was created with"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "priority", rule)

    def _new_graph(self, graph: Graph) -> HtpGraphDriver:
        self.check("HTP context")
        self._check_own("graph")
        if self.switch is not None:
            rule = "its context switches graphs, and has those of its binary only"
            raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, f"graph '{graph.name}'", rule)
        if self._registrations[_CONCURRENT] is not None:
            rule = "Concurrent resource sharing config is not supported: its graphs must come from a binary"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"graph '{graph.name}'", rule)
        if self._registrations[_MULTI] is not None and self.group is None and not self._graphs:
            self._log(LogLevel.WARN, "This option (2) is only for offline prepare case.")
        if self.extended_udma and self.arch < _MIN_ARCH_OF_UDMA:
            rule = (
                "Failed to enable extended UDMA which is only available for DSP architectures >= "
                f"{_MIN_ARCH_OF_UDMA}; the device is v{self.arch}"
            )
            raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"graph '{graph.name}'", rule)
        if self.config.graph_options(graph.name)[options.HtpGraphConfigOption.DLBC_WEIGHTS]:
            self.check_dlbc_weights(f"graph '{graph.name}'")
        return HtpGraphDriver(self, graph)

    def vector_threads(self, count: int) -> int:
        """Return how many vector threads a graph gets that asks for so many: at most those of its chip."""
        chip = chip_of(self.soc)
        most = chip.hvx_threads if chip is not None else 0
        if not most or count <= most:
            return count
        self._log(
            LogLevel.WARN,
            f"Invalid number of HVX thread configuration ({count}) for this SoC. It should be less than or equal to "
            f"{most}, will clip it to the maximum supported number.",
        )
        return most

    def check_cores(self, what: str, count: int) -> None:
        """Refuse a graph, `what`, that asks for several cores of a chip that has one, as the vendor's compiler does."""
        chip = chip_of(self.soc)
        if count > 1 and (chip is None or not chip.has_several_cores):
            rule = f"RouterX86 graph prepare failed 99: it is for {count} cores, and the chip has one"
            raise QnnError(Code.COMMON_MEM_ALLOC, what, rule)
        if count > 1:
            self._log(LogLevel.INFO, f"HTP graph option NUM_CORES = {count}: graphs run on one core here")

    def check_dlbc_weights(self, what: str) -> None:
        """Refuse compressed weights of a graph, `what`, if the context shares weights."""
        if self.weight_sharing:
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED,
                what,
                "DLBC Weights with Weight sharing feature is not supported. These cannot be set together."
                " Provide one of the two options during prepare.",
            )

    def release_graph(self, graph: seam.GraphDriver) -> None:
        assert isinstance(graph, HtpGraphDriver)
        if self.queue.accelerator.forked:
            super().release_graph(graph)
            return

        def unload() -> None:
            with self.queue.held():
                graph.unload()
                self._infos = [each for each in self._infos if each.name != graph.graph.name]
                if self.switch is not None:
                    self.switch.forget(graph.graph.name)
                    self.charge_loaded([self.switch.loaded])

        # Under the lock of executions, which switch graphs. After an error all of this can be called again.
        self.queue.under_lock(unload)
        super().release_graph(graph)
        # What is left needs less, so it has room. The client's buffers stay as they are.
        if self.switch is None and self._use.domain is not None and self._provided is None:
            self._charge_graphs()

    def register(self, descriptors: Sequence[seam.MemDescriptor]) -> Sequence[seam.Registration]:
        self.check("memory registration")
        # The table of registrations is locked meanwhile.
        with deferred():
            return self.memory.register(descriptors)

    def get_binary(self) -> bytes:
        self.check("context binary")
        self._check_own("context binary")
        if self.reference_weight_sharing:
            rule = "with reference weight sharing it is only a part of a DLC"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", rule)
        prepared = [graph.planned() for graph in self._graphs]
        records = {graph.graph.name: graph.record for graph in self._graphs}
        return to_bytes(prepared, "htp", DeviceRecord(self.soc, self.arch, records), self.weight_sharing)

    def get_property(self, option: IntEnum) -> Any:
        """Return what a client allocates for the context, before its graphs are loaded."""
        if self._deferred is None:
            rule = "a context has it only before the finalization of deferred graphs"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"property {option.name}", rule)
        needs = [
            GraphNeeds(name, figures.constants, figures.shared_weights, spill_fill=figures.spill_fill)
            for name, figures in ((graph.name, graph.figures) for graph in self._deferred.info.graphs)
            if figures is not None and (self.enabled is None or name in self.enabled)
        ]
        if option is options.HtpContextProperty.BUFFER_START_ALIGNMENT:
            return client_buffers.BUFFER_ALIGNMENT
        if option is options.HtpContextProperty.MAX_SPILLFILL_BUFFER_SIZE:
            return spill_fill_property(needs)
        if option is options.HtpContextProperty.WEIGHTS_BUFFER_SIZE:
            return max(weights_property(needs), rounded_up(self._weights_bytes(self._deferred)))
        return 0

    def _weights_bytes(self, contents: BinaryContents) -> int:
        """Return how many bytes of a weights buffer the graphs take that are yet to be loaded."""
        # Two threads that come here at once compute the same.
        if self._deferred_weights is None:
            enabled = [name for name in contents.graphs if self.enabled is None or name in self.enabled]
            graph = contents.planned.__getitem__ if self._kept is None else self._kept.graph
            programs = [native.lowered(graph(name)) for name in enabled]
            self._deferred_weights = client_buffers.weights_bytes(programs)
            if self._kept is None:
                # Constants of a binary that its client keeps may change until they are loaded.
                self._programs = programs
        return self._deferred_weights

    def _least_bytes(self, what: str, kind: options.HtpMemType) -> int:
        """Return how large a buffer of the client's must be; refuse one that the context cannot use."""
        rule = ""
        if self._deferred is None:
            rule = "it is for a context that was created with deferred graphs, before it is finalized"
        elif any(self._registrations.values()) or self.config.group_bytes or self._shared is not None:
            rule = "a context of a group has its spill-fill in the buffer of the group"
        elif self.loading.switches:
            rule = "a context that switches graphs has the memory of those that are loaded"
        if rule:
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, f"a {kind.name} cannot be registered: {rule}")
        return int(self.get_property(client_buffers.SIZES[kind]))

    def join_list(self, shared: SharedResources) -> None:
        self._shared = shared

    def _check_own(self, what: str) -> None:
        """Refuse what needs the constants of its graphs as they were stored."""
        if self._provided is not None:
            rule = "the weights of its context are in the client's buffers, in the form of kernels"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule, "Create a context without data callbacks.")

    def sections(self, binary: seam.Source) -> Sequence[BinarySection]:
        self.check("HTP context")
        reasons = {
            "with extended UDMA": self.extended_udma,
            "with graph switching": self.loading.switches,
            "in a list that shares resources with type 0": self._shared is not None and self._shared.reserves_io,
        }
        for reason, applies in reasons.items():
            if applies:
                rule = f"its data cannot come from callbacks {reason}"
                raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", rule, "Create the context without them.")
        self._begin_loading()
        self._awaited = ProvidedBinary(binary, "htp")
        return self._awaited.sections

    def restore_provided(self, buffers: Sequence[ProvidedBuffer]) -> Sequence[HtpGraphDriver]:
        """Load the graphs of a binary whose constants are in buffers that the accelerator uses in place."""
        awaited, self._awaited = self._awaited, None
        assert awaited is not None, "no sections were asked for"
        self._provided = ProvidedWeights(self.queue.accelerator, awaited.sections, buffers, self._log)
        return self._restore(awaited.contents(self._provided.sections))

    def restore(self, binary: seam.Source) -> Sequence[HtpGraphDriver]:
        """Load the graphs of a context binary into the accelerator, ready to execute."""
        return self._restore(self._read(binary))

    def defer(self, binary: seam.Source) -> Sequence[str]:
        self._deferred = self._read(binary)
        return list(self._deferred.graphs)

    def _read(self, binary: seam.Source) -> BinaryContents:
        """Read a binary, where its client keeps it or as a sealed copy."""
        self._begin_loading()
        if self.loading.is_persistent:
            self._kept = KeptBinary(binary, "htp", self._log)
            return self._kept.contents
        with ContextBinary(binary, "htp") as content:
            return content.contents

    def _begin_loading(self) -> None:
        """Record what the accelerator has mapped before graphs of a binary are loaded."""
        self._is_from_binary = True
        self._record_memory("DSP:before_context_created", 1)

    def read_kept(self, name: str) -> PlannedGraph:
        """Return a graph of the binary that its client keeps."""
        if self._kept is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"graph '{name}'", "its context has been freed")
        return self._kept.graph(name)

    def restore_deferred(self) -> Sequence[HtpGraphDriver]:
        assert self._deferred is not None, "nothing is deferred"
        buffers = self.memory.take_buffers()
        spill_fill = buffers.get(options.HtpMemType.SHARED_SPILLFILL_BUFFER)
        if spill_fill is not None:
            self._turns = client_buffers.turns(spill_fill.kind, spill_fill.window, self.queue.accelerator)
        try:
            drivers = self._restore(self._deferred, buffers)
        except Exception:
            self._turns = None
            self.memory.return_buffers()
            raise
        self._deferred, self._programs = None, []
        return drivers

    def _restore(self, contents: BinaryContents, buffers: Buffers = _NO_BUFFERS) -> Sequence[HtpGraphDriver]:
        """Load the enabled graphs of a binary, with weights and scratch in the client's buffers that there are."""
        kept, device = self._kept, contents.device or DeviceRecord()
        graphs: Mapping[str, PlannedGraph | GraphOutline] = contents.planned if kept is None else kept.outlines
        self.weight_sharing = contents.shares
        for option in (options.HtpContextConfigOption.USE_EXTENDED_UDMA, options.HtpContextConfigOption.PREPARE_ONLY):
            if getattr(self, option.attribute):
                self._log(LogLevel.WARN, f"HTP context option {option.name} is for graphs that are prepared: ignored")
                setattr(self, option.attribute, False)
        if self.reused_io_limit and not self.io_mem_estimation:
            rule = "without effect, since IO_MEM_ESTIMATION is not set"
            self._log(LogLevel.INFO, f"HTP context option REUSED_IO_LIMIT: {rule}")
        if self.enabled is not None:
            graphs = {name: planned for name, planned in graphs.items() if name in self.enabled}
        self.loading.check(graphs)
        # Those of a binary that is kept were checked when it was read.
        for planned in contents.planned.values() if kept is None else ():
            native.check_plan(planned)
        if self.strict:
            check_optimal({name: each for name, each in device.graphs.items() if name in graphs}, self._device.profile)
        self._infos = [each for each in contents.info.graphs if each.name in graphs]
        drivers: list[HtpGraphDriver] = []
        try:
            need = max((GraphNeeds.of(each).spill_fill for each in self._infos), default=0)
            self._join_group(need, {self.priority_of(each.name) for each in self._infos})
            programs = self._programs
            if self._provided is not None:
                # The client's buffers get the constants as kernels have them, and nothing else keeps them.
                provided = {name: each for name, each in graphs.items() if isinstance(each, PlannedGraph)}
                programs = list(map(native.lowered, provided.values()))
                graphs = {name: each.bare() for name, each in provided.items()}
            for name, each in graphs.items():
                record = device.graphs.get(name, GraphRecord())
                drivers.append(HtpGraphDriver(self, seam.outline(each.info), each, record))
            if self.loading.switches and drivers:
                order = [name for name in self.enabled or graphs if name in graphs]
                switch = GraphSwitch(self, order, drivers, self._log)
                switch.begin()
                self.switch = switch
            else:
                self._charge_binary(self._infos)
                programs = programs or [native.lowered(each.planned()) for each in drivers]
                numbers = self.load(programs, *map(buffers.get, _OF_GRAPHS))
                for driver in drivers:
                    driver.number = numbers[driver.graph.name]
                # Now all of them can be unloaded, if one of them cannot be made ready.
                for driver in drivers:
                    driver.mark_loaded(driver.number)
        except Exception:
            self._discard(drivers)
            self._discharge()
            self._leave_group()
            raise
        self.soc, self.arch = device.soc, device.arch
        self._graphs += drivers
        return list(self._graphs)

    def _discard(self, drivers: Sequence[HtpGraphDriver]) -> None:
        """Unload and close graphs of a binary of which another one could not be loaded; raise no other error."""
        for driver in drivers:
            with suppress(QnnError):
                driver.unload()
            with suppress(QnnError):
                driver.close()

    def load(
        self, programs: Sequence[Program], weights: ContextBuffer | None = None, spill: ContextBuffer | None = None
    ) -> dict[str, int]:
        """Load programs into the accelerator, and return their numbers there by name.

        - `weights`, `spill`: The client's buffers for their constants and their scratch.
        """
        scratch = None if self.group is None else self.group.slot
        if self._provided is not None:
            return load_placed(self.queue, programs, self._provided.place, scratch)
        return load_programs(
            self.queue, programs, self.weight_sharing, scratch=scratch if spill is None else spill.slot,
            weights=None if weights is None else weights.slot,
        )  # fmt: skip

    def switch_to(self, graph: HtpGraphDriver) -> None:
        """Load a graph for an execution, whose lock the caller holds, and unload others for it."""
        assert self.switch is not None
        self.switch.switch_to(graph.graph.name)

    def reset(self, graph: HtpGraphDriver) -> None:
        """Give a graph its initial state; the caller holds the lock of executions."""
        if graph.number < 0 and self.switch is not None:
            self.switch.reset(graph.graph.name)
        else:
            self.queue.reset(graph.number)

    def lock(self, priority: int) -> QueueLock | GroupedLock:
        """Return the lock of its executions: that of its queue, and that of the contexts with the same spill-fill."""
        shared = self._turns if self.group is None else self.group
        queue = self.queue.lock(priority)
        return queue if shared is None else GroupedLock(self.queue.accelerator.gate.lock(shared, priority), queue)

    def priority_of(self, graph: str) -> int:
        """Return the priority that a graph of its binary gets."""
        return self.config.contexts.priority_of(graph) if self.priority is None else self.priority

    def _join_group(self, need: int, priorities: Collection[int]) -> None:
        """Join or found the group that is named, with the context's spill-fill and the priorities of its graphs."""
        registration, group = self._registrations[_CONCURRENT] or self._registrations[_MULTI], None
        if self._shared is not None:
            rule = ""
            if registration is not None or self.config.group_bytes:
                rule = "contexts of a list that share resources are in no other group"
            elif self.loading.switches:
                rule = "contexts of a list that share resources switch no graphs"
            if rule:
                raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context of a list", rule)
            group = self._shared.group_on(self.queue.accelerator)
        elif registration is not None:
            founder = getattr(registration.first, "driver", None)
            founders = founder.group if isinstance(founder, HtpContext) else None
            member = MemberNeeds(need, None if self._registrations[_CONCURRENT] is None else _common(priorities))
            group = group_for(registration, founders, self.queue.accelerator, member, self._log)
        elif self.config.group_bytes:
            group = self._device.groups.get(self.config.group_id)
            first = None if group is None or not group.is_open else group
            registration = GroupRegistration(first, self.config.group_bytes)
            group = group_for(registration, first, self.queue.accelerator, MemberNeeds(need), self._log)
            self._device.groups[self.config.group_id] = group
        if group is not None:
            group.join(self)
            self.group = group
            self._log(LogLevel.INFO, f"HTP context: its spill-fill buffer is that of group {group.number}")

    def _leave_group(self) -> None:
        """Leave its group, when nothing of it is loaded any more; safe to call again."""
        if self.group is not None:
            self.group.leave(self)
            self.group = None

    def _charge_binary(self, infos: Sequence[GraphInfo]) -> None:
        """Charge the graphs of its binary, with room for inputs and outputs if that is wanted."""
        shared = self._shared if self._shared is not None and self._shared.reserves_io else None
        beside = {} if shared is None or self.reused_io_limit else shared.io
        self._use.charge(lambda: self._sizes(infos), self.io_mem_estimation or shared is not None, beside)
        if shared is not None and self._use.domain is not None:
            self._awaited_io = self._use.domain, sum(self._sizes(infos).io)
            shared.io[self._use.domain] = shared.io.get(self._use.domain, 0) + self._awaited_io[1]

    def _discharge(self) -> None:
        """Charge nothing any more; safe to call again."""
        self._use.close()
        if self._shared is not None and self._awaited_io is not None:
            domain, nbytes = self._awaited_io
            self._shared.io[domain] -= nbytes
        self._awaited_io = None

    def load_composed(self, graph: HtpGraphDriver) -> int:
        """Load a graph that is not from a binary and return its number. It is charged first; a refusal loads none."""
        self._charge_graphs(graph)
        try:
            return self.load([native.lowered(graph.planned())])[graph.graph.name]
        except Exception:
            self._charge_graphs()
            raise

    def _charge_graphs(self, new: HtpGraphDriver | None = None) -> None:
        """Charge the graphs that are loaded, and a new one."""

        def sizes() -> ContextSizes:
            graphs = [graph for graph in self._graphs if graph.number >= 0 or graph is new]
            # A binary that its client keeps is not read again for this.
            kept = {info.name: info for info in self._infos} if self._kept is not None else {}
            stored = [kept[graph.graph.name] for graph in graphs if graph.graph.name in kept]
            graphs = [graph for graph in graphs if graph.graph.name not in kept]
            device = DeviceRecord(graphs={graph.graph.name: graph.record for graph in graphs})
            composed = describe([graph.planned() for graph in graphs], device, self.weight_sharing)
            return self._sizes([*stored, *composed])

        self._use.charge(sizes)

    def charge_loaded(self, choices: Sequence[Choice]) -> int:
        """Charge the graphs of its binary, with the first choice of loaded ones that has room; return its index."""
        return self._use.charge_first(
            [partial(self._sizes, self._infos, each) for each in choices], self.io_mem_estimation
        )

    def _sizes(self, graphs: Sequence[GraphInfo], loaded: Choice | None = None) -> ContextSizes:
        """Return what these graphs need in a process domain; with switching if some are `loaded`."""
        names = ", ".join(each.name for each in graphs[:_NAMED]) + ", …" * (len(graphs) > _NAMED)
        limit = (self.reused_io_limit << 20,) if self.reused_io_limit else None
        group = None if self.group is None else self.group.charge
        return ContextSizes(names, tuple(map(GraphNeeds.of, graphs)), buffers=limit, group=group, loaded=loaded)

    @property
    def seconds_to_finish(self) -> float:
        return self.queue.accelerator.deadlines.closing

    def abort_now(self) -> None:
        self.queue.abort_now()

    def close(self) -> None:
        """Release everything: first the queue, which waits for a running execution; safe to call again."""
        self.queue.close()
        self._close_graphs()
        if self.switch is not None:
            self.switch.close()
        self._kept = self._deferred = None
        self.memory.close()
        if self._provided is not None:
            self._provided.close()
        self._discharge()
        self._leave_group()
        if self._is_from_binary:
            self._record_memory("DSP:after_context_freed", 0)

    def _record_memory(self, event: str, contexts: int) -> None:
        """Record what the accelerator has mapped, if that is wanted and it has so many contexts."""
        self.memory_events = ()
        if not self.dsp_memory_profiling or not self.queue.accelerator.alive:
            return
        with suppress(QnnError):
            counts = self.queue.accelerator.call("counts")
            if counts["queues"] == contexts:
                self.memory_events = ((event, counts["mapped_bytes"]),)


def _common(priorities: Collection[int]) -> int:
    """Return the priority of all graphs of a concurrent group; refuse several."""
    if len(priorities) > 1:
        rule = f"its graphs must have one priority, they have {', '.join(map(str, sorted(priorities)))}"
        raise QnnError(Code.CONTEXT_CREATE_FROM_BINARY, "concurrent group", rule)
    return next(iter(priorities), seam.GraphDriver.priority)


def _check_mb(option: IntEnum, value: Any) -> None:
    """Refuse a size that is not a number of MB."""
    if not is_int(value) or not 0 <= value <= options.MAX_MB:
        rule = f"must be a number of MB from 0 to {options.MAX_MB}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"{option.name.lower()} {value!r}", rule)


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
