"""A graph on an OpenCL device: prepared, loaded with its own scratch, constants and state, and bound to memory."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.binding import GpuBinding
from isthmus.backends.gpu.compile.program import KernelProgram
from isthmus.backends.gpu.options import GRAPH_OPTIONS, GpuGraphOption
from isthmus.backends.gpu.program import DeviceProgram
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.staging import DeviceStaging
from isthmus.backends.seam.binding import ExecutionCounts
from isthmus.backends.seam.driver import Change, GraphDriver, GraphStats, Memories
from isthmus.backends.seam.execution_lock import ExecutionLock
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, GraphInfo, TensorMemType
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit

if TYPE_CHECKING:
    from isthmus.backends.gpu.driver import GpuContext


@dataclass(frozen=True)
class DeviceSide:
    """The resources of a graph on a device.

    - `staging`: Memory for tensors that the client passes as raw memory.
    - `program`: The program, once the graph is prepared.
    - `loaded`: The program on the device, once the graph is finalized.
    """

    staging: DeviceStaging
    program: KernelProgram | None = None
    loaded: DeviceProgram | None = None

    def close(self) -> None:
        """Release everything; safe to call again."""
        if self.loaded is not None:
            self.loaded.close()
        self.staging.close()


class GpuGraphDriver(GraphDriver):
    """A graph on an OpenCL device, with its own scratch, constants and state there.

    - `graph`: The graph, which a client may still be composing.
    - `program`: Its program if it comes from a context binary; then `graph` has inputs and outputs only.
    """

    configs = GpuGraphOption

    def __init__(self, context: GpuContext, graph: Graph, program: KernelProgram | None = None) -> None:
        self.context, self.graph = context, graph
        self.options: dict[GpuGraphOption, Any] = {
            **{option: rule.default for option, rule in GRAPH_OPTIONS.items()},
            **context.config.options(graph.name),
        }
        self.side = DeviceSide(DeviceStaging(context.opencl), program)
        """The device side. It is replaced as a whole, under the execution lock or while the context moves, so two reads
        may return different objects.
        """
        # Whether it comes from a context binary, so that it cannot be prepared again for another device.
        self._is_restored = program is not None
        self._closed = False
        # A lock that is held while the graph is prepared, so that only one thread does it.
        self._preparing = threading.Lock()
        self._lock = ExecutionLock()
        self.counts = ExecutionCounts(self._lock)

    # -- preparation ---------------------------------------------------------------------------------------------------

    def get_config(self, option: IntEnum) -> Any:
        return self.options[GpuGraphOption(option)]

    def set_config(self, option: IntEnum, value: Any) -> Change:
        graph_option = GpuGraphOption(option)
        if self.side.program is not None:
            raise QnnError(Code.GRAPH_FINALIZED, self.what, f"it is prepared: {graph_option.name} is fixed")
        checked = GRAPH_OPTIONS[graph_option].check(graph_option, value, Code.GRAPH_INVALID_ARGUMENT)
        return Change.entry(self.options, graph_option, checked)

    def set_scratch_limit(self, limit: ScratchLimit | None) -> Change:
        gpu_prepare.refuse_limit(self.graph, limit)
        return Change()

    @property
    def program(self) -> KernelProgram:
        """The executable form; the first use prepares the graph, after which no node can be added.

        A client may ask for sizes before it finalizes the graph, and sizes are those of a complete graph.
        """
        program = self.side.program
        if program is not None:
            return program
        with self.context.moving, self._preparing:
            # Another thread may have prepared it meanwhile.
            side = self.side
            if side.program is not None:
                return side.program
            if self._closed:
                raise QnnError(Code.GRAPH_INVALID_HANDLE, self.what, "its context has been freed")
            if not self.graph.finalized:
                self.graph.finalize()
            program = gpu_prepare.prepare(self.graph, self.context.opencl.device, self.options)
            self.side = replace(side, program=program)
        return program

    @property
    def info(self) -> GraphInfo:
        return self.program.info

    @property
    def plan(self) -> Plan | None:
        return self.program.schedule.plan

    def finalize(self) -> None:
        """Prepare the graph if it is not prepared, and load it on the device."""
        context = self.context
        with context.moving:
            context.opencl.check(self.what)
            program, side = self.program, self.side
            self.side = replace(side, loaded=self._load(context.opencl, program, side.staging))
        self.counts.total.staging_prepare_bytes = side.staging.reserved
        self.finalized = True

    def _load(self, opencl: ClContext, program: KernelProgram, staging: DeviceStaging) -> DeviceProgram:
        """Load the program on a device, and reserve staging for the tensors that the graph declares as raw."""
        owner = self.context.scratch_owner
        shared = None if owner in (None, self) else owner.loaded()
        if shared is not None and shared.context is not opencl:
            shared = None
        loaded = DeviceProgram(
            opencl, program, self.context.repository, self.context.config.patience, self.what, self.context.constants,
            shared,
        )  # fmt: skip
        try:
            infos = program.info.tensors
            raw = [index for index, info in enumerate(infos) if info.mem_type is TensorMemType.RAW]
            staging.reserve(infos, raw)
        except Exception:
            loaded.close()
            staging.close()
            raise
        return loaded

    # -- another OpenCL context ----------------------------------------------------------------------------------------

    @property
    def has_history(self) -> bool:
        """Whether executions have left state on the device."""
        return self.has_state and self.stats().executions > 0

    @property
    def has_state(self) -> bool:
        """Whether executions may leave state on the device."""
        side = self.side
        return side.loaded is not None and bool(side.loaded.program.state_bytes)

    def create_on(self, opencl: ClContext) -> DeviceSide:
        """Create what the graph has on its device in another OpenCL context, as far as it is prepared and loaded.

        Nothing of the graph changes. It is prepared again if the other context is on another device.
        """
        device, staging, side = self.context.opencl.device, DeviceStaging(opencl), self.side
        program = side.program
        if program is not None and opencl.device.handle != device.handle:
            if self._is_restored:
                rule = f"the client's buffers are on {opencl.device}, and its binary was taken for {device}"
                raise QnnError(Code.MEM_INVALID_ARGUMENT, self.what, rule, "Name the device in the configuration.")
            program = gpu_prepare.prepare(self.graph, opencl.device, self.options)
        loaded = None if side.loaded is None or program is None else self._load(opencl, program, staging)
        return DeviceSide(staging, program, loaded)

    # -- execution -----------------------------------------------------------------------------------------------------

    def loaded(self) -> DeviceProgram:
        """Return the program on the device."""
        return self.ready()[0]

    def ready(self) -> tuple[DeviceProgram, DeviceStaging]:
        """Return the program on the device, and its staging memory."""
        side = self.side
        self.context.opencl.check(self.what)
        if side.loaded is None:
            raise QnnError(Code.GRAPH_NOT_FINALIZED, self.what, "only a finalized graph can be executed")
        return side.loaded, side.staging

    def bind(self, memories: Memories) -> GpuBinding:
        return GpuBinding(self, memories)

    def reset(self) -> None:
        with self._lock:
            self.loaded().reset()

    def stats(self) -> GraphStats:
        return self.counts.stats()

    def close(self) -> None:
        """Release everything on the device, once an execution in progress has ended or was given up."""
        # An execution that waits for the device must not block this call for ever.
        for binding in list(self.counts.bindings):
            if isinstance(binding, GpuBinding):
                binding.abort_now()
        with self._lock:
            self.counts.close()
            side = self.side
            side.close()
            # A client may keep handles and bindings long after it has freed them. They keep an empty graph alive, and
            # no constants.
            self._closed, self.side, self.graph = True, DeviceSide(side.staging), Graph(self.graph.name)
