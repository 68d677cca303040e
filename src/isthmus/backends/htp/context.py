"""A context of HTP: a queue of the accelerator, the graphs in it, and where these come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from typing import Any
from weakref import WeakMethod

from isthmus.backends.accelerator.gate import GroupedLock, QueueLock
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.accelerator.remote import load_placed, load_programs
from isthmus.backends.htp import client_buffers, options
from isthmus.backends.htp.binary_source import BinarySource
from isthmus.backends.htp.chips import chip_of
from isthmus.backends.htp.device import HtpDevice
from isthmus.backends.htp.graph import HtpGraphDriver
from isthmus.backends.htp.graph_switch import GraphSwitch
from isthmus.backends.htp.group_membership import GROUPS, MULTI, GroupMembership
from isthmus.backends.htp.list_groups import SharedResources, refuse_list_only
from isthmus.backends.htp.memory import ContextBuffer, HtpMemory
from isthmus.backends.htp.process_domains import ContextCharge, DomainUse
from isthmus.backends.htp.spill_fill_groups import SpillFillGroup
from isthmus.backends.htp.vtcm import check_optimal
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import BinaryContents, describe, to_bytes
from isthmus.backends.seam.device_record import DeviceRecord, GraphRecord
from isthmus.backends.seam.provider import BinarySection, ProvidedBuffer
from isthmus.domains import Choice, ContextSizes, GraphNeeds
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.log import Log, LogLevel, deferred
from isthmus.memory.integers import is_int

# The first version of the processor with extended UDMA.
_MIN_ARCH_OF_UDMA = 81
Buffers = Mapping[options.HtpMemType, ContextBuffer]
"""The buffers of the client's for a context, by type."""
_NO_BUFFERS: Buffers = {}
# The buffers that graphs are loaded into.
_OF_GRAPHS = (options.HtpMemType.WEIGHTS_BUFFER, options.HtpMemType.SHARED_SPILLFILL_BUFFER)


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
        self.membership = GroupMembership(config, device, queue.accelerator, log)
        """The contexts with which it has its spill-fill buffer in common."""
        self.charge = ContextCharge(DomainUse(device.profile, log), self.membership)
        """What it takes in a process domain of its chip."""
        # The context keeps its memory. If that kept the context too, both would be left to the garbage collector.
        least_bytes = WeakMethod(self._least_bytes)
        self.memory = HtpMemory(self.queue, config.reregistration, self.charge.use, least_bytes)
        self.source = BinarySource(log)
        """The binary that it comes from, if it comes from one."""
        self.switch: GraphSwitch | None = None
        """What loads and unloads its graphs; None if all of them stay loaded."""
        # What executions exclude those of other contexts with, whose spill-fill buffers are in the same file.
        self._turns: object = None
        self._is_from_binary = False

    @property
    def group(self) -> SpillFillGroup | None:
        """The contexts with which it has its spill-fill buffer in common."""
        return self.membership.group

    def check(self, what: str) -> None:
        """Refuse use after the accelerator has died."""
        if not self.queue.accelerator.alive:
            raise self.queue.accelerator.gone(what)

    def get_config(self, option: IntEnum) -> Any:
        refuse_list_only(option)
        if option in GROUPS:
            return self.membership.registrations[option]
        attribute = options.HtpContextConfigOption(option).attribute
        return getattr(self, attribute) if attribute else self.memory.policy

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        """Set an option of graphs, which has no effect on graphs that exist, or the policy for memory that is
        registered again.
        """
        refuse_list_only(option)
        if option in GROUPS:
            self.membership.check(option, value, self.memory.has_buffers())
            if self._graphs:
                return self._without_effect(option)
            return seam.Change.entry(self.membership.registrations, option, value)
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

    def check_priority_change(self) -> None:
        if self.membership.is_concurrent:
            rule = "the graphs of a concurrent group keep the priority that their context was created with"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "priority", rule)

    def _new_graph(self, graph: Graph) -> HtpGraphDriver:
        self.check("HTP context")
        self.source.check_own("graph")
        if self.switch is not None:
            rule = "its context switches graphs, and has those of its binary only"
            raise QnnError(Code.COMMON_OPERATION_NOT_PERMITTED, f"graph '{graph.name}'", rule)
        if self.membership.is_concurrent:
            rule = "Concurrent resource sharing config is not supported: its graphs must come from a binary"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"graph '{graph.name}'", rule)
        if self.membership.registrations[MULTI] is not None and self.group is None and not self._graphs:
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
                self.source.infos = [each for each in self.source.infos if each.name != graph.graph.name]
                if self.switch is not None:
                    self.switch.forget(graph.graph.name)
                    self.charge_loaded([self.switch.loaded])

        # Under the lock of executions, which switch graphs. After an error all of this can be called again.
        self.queue.under_lock(unload)
        super().release_graph(graph)
        # What is left needs less, so it has room. The client's buffers stay as they are.
        if self.switch is None and self.charge.use.domain is not None and self.source.provided is None:
            self._charge_graphs()

    def register(self, descriptors: Sequence[seam.MemDescriptor]) -> Sequence[seam.Registration]:
        self.check("memory registration")
        # The table of registrations is locked meanwhile.
        with deferred():
            return self.memory.register(descriptors)

    def get_binary(self) -> bytes:
        self.check("context binary")
        self.source.check_own("context binary")
        if self.reference_weight_sharing:
            rule = "with reference weight sharing it is only a part of a DLC"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", rule)
        prepared = [graph.planned() for graph in self._graphs]
        records = {graph.graph.name: graph.record for graph in self._graphs}
        return to_bytes(prepared, "htp", DeviceRecord(self.soc, self.arch, records), self.weight_sharing)

    def get_property(self, option: IntEnum) -> Any:
        """Return what a client allocates for the context, before its graphs are loaded."""
        return self.source.property(option, self.enabled)

    def _least_bytes(self, what: str, kind: options.HtpMemType) -> int:
        """Return how large a buffer of the client's must be; refuse one that the context cannot use."""
        rule = ""
        if self.source.deferred is None:
            rule = "it is for a context that was created with deferred graphs, before it is finalized"
        elif self.membership.is_asked_for:
            rule = "a context of a group has its spill-fill in the buffer of the group"
        elif self.loading.switches:
            rule = "a context that switches graphs has the memory of those that are loaded"
        if rule:
            raise QnnError(Code.MEM_UNSUPPORTED_MEMTYPE, what, f"a {kind.name} cannot be registered: {rule}")
        return int(self.get_property(client_buffers.SIZES[kind]))

    def join_list(self, shared: SharedResources) -> None:
        self.membership.shared = shared

    def sections(self, binary: seam.Source) -> Sequence[BinarySection]:
        self.check("HTP context")
        reasons = {
            "with extended UDMA": self.extended_udma,
            "with graph switching": self.loading.switches,
            "in a list that shares resources with type 0": self.membership.reserving is not None,
        }
        for reason, applies in reasons.items():
            if applies:
                rule = f"its data cannot come from callbacks {reason}"
                raise QnnError(Code.COMMON_NOT_SUPPORTED, "context binary", rule, "Create the context without them.")
        self._begin_loading()
        return self.source.sections(binary)

    def restore_provided(self, buffers: Sequence[ProvidedBuffer]) -> Sequence[HtpGraphDriver]:
        """Load the graphs of a binary whose constants are in buffers that the accelerator uses in place."""
        return self._restore(self.source.read_provided(self.queue.accelerator, buffers))

    def restore(self, binary: seam.Source) -> Sequence[HtpGraphDriver]:
        """Load the graphs of a context binary into the accelerator, ready to execute."""
        return self._restore(self._read(binary))

    def defer(self, binary: seam.Source) -> Sequence[str]:
        self.source.deferred = self._read(binary)
        return list(self.source.deferred.graphs)

    def _read(self, binary: seam.Source) -> BinaryContents:
        """Read a binary, where its client keeps it or as a sealed copy."""
        self._begin_loading()
        return self.source.read(binary, self.loading.is_persistent)

    def _begin_loading(self) -> None:
        """Record what the accelerator has mapped before graphs of a binary are loaded."""
        self._is_from_binary = True
        self._record_memory("DSP:before_context_created", 1)

    def restore_deferred(self) -> Sequence[HtpGraphDriver]:
        assert self.source.deferred is not None, "nothing is deferred"
        buffers = self.memory.take_buffers()
        spill_fill = buffers.get(options.HtpMemType.SHARED_SPILLFILL_BUFFER)
        if spill_fill is not None:
            self._turns = client_buffers.turns(spill_fill.kind, spill_fill.window, self.queue.accelerator)
        try:
            drivers = self._restore(self.source.deferred, buffers)
        except Exception:
            self._turns = None
            self.memory.return_buffers()
            raise
        self.source.end_deferral()
        return drivers

    def _restore(self, contents: BinaryContents, buffers: Buffers = _NO_BUFFERS) -> Sequence[HtpGraphDriver]:
        """Load the enabled graphs of a binary, with weights and scratch in the client's buffers that there are."""
        device = contents.device or DeviceRecord()
        self.weight_sharing = contents.shares
        for option in (options.HtpContextConfigOption.USE_EXTENDED_UDMA, options.HtpContextConfigOption.PREPARE_ONLY):
            if getattr(self, option.attribute):
                self._log(LogLevel.WARN, f"HTP context option {option.name} is for graphs that are prepared: ignored")
                setattr(self, option.attribute, False)
        if self.reused_io_limit and not self.io_mem_estimation:
            rule = "without effect, since IO_MEM_ESTIMATION is not set"
            self._log(LogLevel.INFO, f"HTP context option REUSED_IO_LIMIT: {rule}")
        graphs = self.source.select(contents, self.enabled)
        self.loading.check(graphs)
        self.source.check(contents)
        if self.strict:
            check_optimal({name: each for name, each in device.graphs.items() if name in graphs}, self._device.profile)
        self.source.infos = [each for each in contents.info.graphs if each.name in graphs]
        drivers: list[HtpGraphDriver] = []
        try:
            need = max((GraphNeeds.of(each).spill_fill for each in self.source.infos), default=0)
            priorities = {self.priority_of(each.name) for each in self.source.infos}
            self.membership.join(self, need, priorities, self.loading.switches)
            graphs, programs = self.source.lower(graphs)
            for name, each in graphs.items():
                record = device.graphs.get(name, GraphRecord())
                drivers.append(HtpGraphDriver(self, seam.outline(each.info), each, record))
            if self.loading.switches and drivers:
                order = [name for name in self.enabled or graphs if name in graphs]
                switch = GraphSwitch(self, order, drivers, self._log)
                switch.begin()
                self.switch = switch
            else:
                self.charge.charge_binary(self.source.infos, self.io_mem_estimation, self.reused_io_limit)
                programs = programs or [native.lowered(each.planned()) for each in drivers]
                numbers = self.load(programs, *map(buffers.get, _OF_GRAPHS))
                for driver in drivers:
                    driver.number = numbers[driver.graph.name]
                # Now all of them can be unloaded, if one of them cannot be made ready.
                for driver in drivers:
                    driver.mark_loaded(driver.number)
        except Exception:
            self._discard(drivers)
            self.charge.discharge()
            self.membership.leave(self)
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
        if self.source.provided is not None:
            return load_placed(self.queue, programs, self.source.provided.place, scratch)
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
            kept = {info.name: info for info in self.source.infos} if self.source.kept is not None else {}
            stored = [kept[graph.graph.name] for graph in graphs if graph.graph.name in kept]
            graphs = [graph for graph in graphs if graph.graph.name not in kept]
            device = DeviceRecord(graphs={graph.graph.name: graph.record for graph in graphs})
            composed = describe([graph.planned() for graph in graphs], device, self.weight_sharing)
            return self.charge.sizes([*stored, *composed], self.reused_io_limit)

        self.charge.use.charge(sizes)

    def charge_loaded(self, choices: Sequence[Choice]) -> int:
        """Charge the graphs of its binary, with the first choice of loaded ones that has room; return its index."""
        return self.charge.charge_first(self.source.infos, choices, self.io_mem_estimation, self.reused_io_limit)

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
        self.memory.close()
        self.source.close()
        self.charge.discharge()
        self.membership.leave(self)
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


def _check_mb(option: IntEnum, value: Any) -> None:
    """Refuse a size that is not a number of MB."""
    if not is_int(value) or not 0 <= value <= options.MAX_MB:
        rule = f"must be a number of MB from 0 to {options.MAX_MB}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"{option.name.lower()} {value!r}", rule)
