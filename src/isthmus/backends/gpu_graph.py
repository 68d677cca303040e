"""A graph on an OpenCL device: prepared, loaded with scratch, constants and state of its own, bound to memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus.backends import gpu_prepare
from isthmus.backends.binding import Ledger
from isthmus.backends.driver import Change, GraphDriver, GraphStats, Memories
from isthmus.backends.gpu_binding import GpuBinding
from isthmus.backends.gpu_options import GraphConfig, Precision, truth
from isthmus.backends.gpu_program import DeviceProgram
from isthmus.backends.gpu_staging import Staging
from isthmus.backends.turn import PlainTurn
from isthmus.engine.opencl.program import Program
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, GraphInfo, MemType
from isthmus.memory import holds
from isthmus.opencl.context import Context
from isthmus.prepare.schedule import Plan
from isthmus.prepare.strips import ScratchLimit

if TYPE_CHECKING:
    from isthmus.backends.gpu import GpuContext


@dataclass(frozen=True)
class DeviceSide:
    """What a graph has on a device: its program, once it is finalized, and memory for what is transferred."""

    program: Program | None
    loaded: DeviceProgram | None
    staging: Staging

    def close(self) -> None:
        """Give it all back."""
        if self.loaded is not None:
            self.loaded.close()
        self.staging.close()


class GpuGraphDriver(GraphDriver):
    """A graph on an OpenCL device, with scratch, constants and state of its own there."""

    configs = GraphConfig

    def __init__(self, context: GpuContext, graph: Graph, program: Program | None = None) -> None:
        self.context, self.graph = context, graph
        self.options: dict[GraphConfig, Any] = {**_DEFAULTS, **context.config.options(graph.name)}
        self._program = program
        self._is_restored = program is not None
        self._preparing = threading.Lock()
        self._turn = PlainTurn()
        self.ledger = Ledger(self._turn)
        self.staging = Staging(context.opencl)
        self._loaded: DeviceProgram | None = None

    @property
    def what(self) -> str:
        """The graph as messages call it."""
        return f"graph '{self.graph.name}'"

    # -- preparation ---------------------------------------------------------------------------------------------------

    def get_config(self, option: IntEnum) -> Any:
        return self.options[GraphConfig(option)]

    def set_config(self, option: IntEnum, value: Any) -> Change:
        known = GraphConfig(option)
        if self._program is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, f"it is prepared: {known.name} is fixed")
        before, self.options[known] = self.options[known], _checked_option(known, value)

        def undo() -> None:
            self.options[known] = before

        return Change(undo=undo)

    def set_scratch_limit(self, limit: ScratchLimit | None) -> Change:
        gpu_prepare.refuse_limit(self.graph, limit)
        return Change()

    @property
    def program(self) -> Program:
        """Its executable form. To ask for what depends on it ends composition: sizes are those of a complete graph."""
        if self._program is None:
            with self._preparing:
                if self._program is None:
                    if not self.graph.finalized:
                        self.graph.finalize()
                    self._program = gpu_prepare.prepare(self.graph, self.context.opencl.device, self.options)
        return self._program

    @property
    def info(self) -> GraphInfo:
        return self.program.info

    @property
    def plan(self) -> Plan | None:
        return self.program.schedule.plan

    def finalize(self) -> None:
        context = self.context
        with context.moving:
            context.opencl.check(self.what)
            self._loaded = self._load(context.opencl, self.program, self.staging)
        self.ledger.total.staging_prepare_bytes = self.staging.reserved
        self.finalized = True

    def _load(self, here: Context, program: Program, staging: Staging) -> DeviceProgram:
        """The program on a device, with memory for what the graph says will be transferred."""
        loaded = DeviceProgram(here, program, self.context.repository, self.context.config.patience, self.what)
        try:
            infos = program.info.tensors
            raw = [index for index, info in enumerate(infos) if info.mem_type is MemType.RAW]
            staging.reserve(infos, raw)
        except BaseException:
            loaded.close()
            staging.close()
            raise
        return loaded

    # -- another OpenCL context ----------------------------------------------------------------------------------------

    @property
    def has_history(self) -> bool:
        """Whether executions have left state on the device."""
        return self._loaded is not None and bool(self.program.state_bytes) and self.stats().executions > 0

    def made_on(self, here: Context) -> DeviceSide:
        """The same in another OpenCL context, to be moved to; prepared anew where that is on another device."""
        device, staging, program = self.context.opencl.device, Staging(here), self._program
        if program is not None and here.device.handle != device.handle:
            if self._is_restored:
                rule = f"the client's buffers are on {here.device}, and its binary was taken for {device}"
                raise QnnError(Code.MEM_INVALID_ARGUMENT, self.what, rule, "Name the device in the configuration.")
            program = gpu_prepare.prepare(self.graph, here.device, self.options)
        loaded = None if self._loaded is None or program is None else self._load(here, program, staging)
        return DeviceSide(program, loaded, staging)

    def move(self, side: DeviceSide) -> None:
        """Go there. Bindings notice, and are made again before they run."""

        def go() -> None:
            left = DeviceSide(None, self._loaded, self.staging)
            self._program, self._loaded, self.staging = side.program, side.loaded, side.staging
            holds.changed()
            left.close()

        self.ledger.in_turn(go)

    # -- execution -----------------------------------------------------------------------------------------------------

    def loaded(self) -> DeviceProgram:
        """The program on the device."""
        self.context.opencl.check(self.what)
        if self._loaded is None:
            raise QnnError(Code.GRAPH_NOT_FINALIZED, self.what, "only a finalized graph can be executed")
        return self._loaded

    def bind(self, memories: Memories) -> GpuBinding:
        return GpuBinding(self, memories)

    def reset(self) -> None:
        with self._turn:
            self.loaded().reset()

    def stats(self) -> GraphStats:
        return self.ledger.stats()

    def close(self) -> None:
        # Whoever waits for the device in a turn is not to keep this waiting for ever.
        for binding in list(self.ledger.bindings):
            if isinstance(binding, GpuBinding):
                binding.hurry()
        with self._turn:
            self.ledger.close()
            if self._loaded is not None:
                self._loaded.close()
                self._loaded = None
            self.staging.close()


_DEFAULTS: dict[GraphConfig, Any] = {
    GraphConfig.PRECISION: Precision.USER_PROVIDED,
    GraphConfig.DISABLE_MEMORY_OPTIMIZATIONS: False,
    GraphConfig.DISABLE_NODE_OPTIMIZATIONS: False,
    GraphConfig.DISABLE_QUEUE_RECORDING: False,
}


def _checked_option(option: GraphConfig, value: Any) -> Any:
    if option is GraphConfig.PRECISION:
        if isinstance(value, Precision) or (type(value) is int and value in {int(known) for known in Precision}):
            return Precision(value)
        known = ", ".join(f"{each.name} {int(each)}" for each in Precision)
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"precision {value!r}", f"must be one of {known}")
    return truth(option, value, Code.GRAPH_INVALID_ARGUMENT)
