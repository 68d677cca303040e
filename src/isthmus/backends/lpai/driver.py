"""The LPAI backend: a low-power AI core that runs graphs in memory that the client provides. These are its rules.

There are three pools. Scratch holds intermediates and may be replaced between executions. Persistent memory holds state
and belongs to the graph until its context is freed. IO is inside scratch unless it is planned outside it or the client
brings buffers. In ADSP direct mode IO and the model binary may be in TCM instead. All pools are aligned as the backend
requires, and no two of them overlap. Scratch and persistent memory must be set before a graph is finalized.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any, ClassVar

from isthmus.backends.accelerator.device import AcceleratorDevice
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.lpai.config import LpaiConfig, config_keys, read
from isthmus.backends.lpai.graph import LpaiGraphDriver, RemoteRunner
from isthmus.backends.lpai.memory import SharedBuffers, plan_pools
from isthmus.backends.lpai.model import Allocator, ModelBinary, unknown_mem_type
from isthmus.backends.lpai.options import LpaiBackendProperty, LpaiContextOption, LpaiMemType, Mem, MemInfo
from isthmus.backends.lpai.report import describe_pools
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam import native
from isthmus.backends.seam.binary import BinaryContents, ContextBinary, in_place, inspect, to_bytes, unshared
from isthmus.backends.seam.binary import read as read_binary
from isthmus.backends.seam.entry import BackendEntry, IoMemory, IoPolicy, PlanReport, PlanRequest, register_custom
from isthmus.backends.seam.execution_lock import FairLock
from isthmus.backends.seam.facets import DelegateFacet
from isthmus.backends.seam.planned import FORMAT
from isthmus.backends.seam.runner import HostRunner
from isthmus.backends.seam.shared_segments import SharedSegments
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import named
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, TensorInfo, TensorMemType
from isthmus.graph.operation import Call
from isthmus.log import Log, LogLevel
from isthmus.memory import Buffer, Window, host, rpcmem
from isthmus.memory.integers import is_int


class LpaiBackend(seam.BackendDriver):
    """The backend, created with a configuration."""

    properties = LpaiBackendProperty
    refuses_op_packages = "its packages are code for the accelerator, which cannot run on this machine"

    def __init__(self, config: LpaiConfig, log: Log) -> None:
        self.config, self.log = config, log
        self.contexts = config.contexts
        self.device = AcceleratorDevice("LPAI backend", Code.BACKEND_INVALID_HANDLE, log)
        """The process that simulates the core in the "arm" environment."""
        if self.remote and config.alignment.start_addr_alignment > mmap.PAGESIZE:
            raise QnnError(
                Code.BACKEND_INVALID_CONFIG,
                config.source,
                f"shared memory starts at multiples of {mmap.PAGESIZE}, "
                f"start_addr_alignment is {config.alignment.start_addr_alignment}",
                'Only the target environment "arm" works in shared memory.',
            )

    @property
    def remote(self) -> bool:
        """Whether another process simulates the core; it sees shared memory only."""
        return self.config.target_env == "arm"

    @property
    def keeps_binaries(self) -> bool:
        return self.config.is_persistent_binary

    def close(self) -> None:
        self.device.close()

    def supports(self, call: Call) -> str | None:
        return native.supports(call)

    def operations(self) -> Collection[str]:
        return native.operations()

    def get_property(self, option: IntEnum) -> Any:
        answers = {
            LpaiBackendProperty.ALIGNMENT_REQ: self.config.alignment,
            LpaiBackendProperty.REQUIRE_PERSISTENT_BINARY: self.keeps_binaries,
            LpaiBackendProperty.SHARED_POOLS: self.remote,
        }
        return answers[LpaiBackendProperty(option)]

    def create_context(self, device: seam.DeviceDriver | None = None) -> LpaiContext:
        return LpaiContext(self)


class LpaiContext(seam.GraphsContext[LpaiGraphDriver]):
    """A context: its graphs execute one after the other, in the order of requests, and may share scratch.

    - `lock`: The execution lock of all its graphs.
    - `_queue`: Its queue in the accelerator, in the "arm" environment, once a graph is finalized.
    - `_opening`: Held while the queue is opened, so that two threads do not both open one.
    """

    configs = LpaiContextOption

    def __init__(self, backend: LpaiBackend) -> None:
        super().__init__()
        self.backend = backend
        self.lock = FairLock()
        self._settings: dict[LpaiContextOption, Any] = {
            LpaiContextOption.MODEL_BUFFER_MEM_TYPE: backend.config.mem_type,
            LpaiContextOption.ENABLE_ISLAND: False,
        }
        self._shared = SharedBuffers(backend.remote)
        self.segments = SharedSegments()
        """The segments that its programs share."""
        self._opening = threading.Lock()
        self._queue: Queue | None = None
        self._closed = False
        native.anticipate_graphs()

    @property
    def mem_type(self) -> LpaiMemType:
        """The memory type of IO and model binaries."""
        return LpaiMemType(self._settings[LpaiContextOption.MODEL_BUFFER_MEM_TYPE])

    @property
    def remote(self) -> bool:
        """Whether its graphs run in another process."""
        return self.backend.remote

    @property
    def allocator(self) -> Allocator:
        """The allocator of IO buffers and model binaries."""
        config = self.backend.config
        return Allocator(
            self.mem_type, config.target_env, config.hw_ver, config.alignment, config.tcm_bytes, config.source,
            self.backend.log,
        )  # fmt: skip

    def get_config(self, option: IntEnum) -> Any:
        return self._settings[LpaiContextOption(option)]

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        checks = {
            LpaiContextOption.MODEL_BUFFER_MEM_TYPE: self._check_mem_type,
            LpaiContextOption.ENABLE_ISLAND: _check_island,
        }
        key = LpaiContextOption(option)
        return seam.Change.entry(self._settings, key, checks[key](value))

    def _check_mem_type(self, value: Any) -> LpaiMemType:
        """Check a memory type for IO and model binaries. UNDEFINED is accepted here, and refused at an allocation."""
        if not is_int(value) or value not in (LpaiMemType.DDR, LpaiMemType.TCM, LpaiMemType.UNDEFINED):
            what, rule = f"model memory type {value!r}", "must be MemType.DDR or MemType.TCM"
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, what, rule)
        if self._graphs:
            rule = "must be set before the context has graphs"
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "model memory type", rule)
        return LpaiMemType(value)

    def _new_graph(self, graph: Graph) -> LpaiGraphDriver:
        return LpaiGraphDriver(self, graph)

    def get_binary(self) -> bytes:
        return to_bytes([graph.prepared() for graph in self._graphs], "lpai")

    def restore(self, binary: seam.Source) -> Sequence[LpaiGraphDriver]:
        """Create drivers for all graphs of a context binary. They share its bytes, and need pools before they can be
        finalized.
        """
        start = self.backend.config.alignment.start_addr_alignment
        content, contents = self._open(binary)
        graphs = contents.planned.values()
        for planned in graphs:
            native.check_plan(planned, 1, start, io_in_scratch=True)
        programs = [self.segments.share(native.lowered(planned)) for planned in graphs]
        model = ModelBinary(content, "model binary of the context")
        self._graphs += [
            LpaiGraphDriver(self, seam.outline(planned.info), planned, program, model)
            for planned, program in zip(graphs, programs, strict=True)
        ]
        return list(self._graphs)

    def _open(self, binary: seam.Source) -> tuple[memoryview, BinaryContents]:
        """Read a context binary in the client's memory, or in a copy; return its bytes and its contents."""
        if self.backend.keeps_binaries:
            view = in_place(binary)
            if view is not None:
                return view, read_binary(view, backend="lpai")
            reason = f"it is a file, or memory that does not start at a multiple of {FORMAT.alignment}"
            self.backend.log(LogLevel.INFO, f"the context binary is copied: {reason}")
        with ContextBinary(binary, "lpai") as opened:
            return opened.content, opened.contents

    def register(self, descriptors: Sequence[seam.MemDescriptor]) -> Sequence[seam.Registration]:
        return self._shared.register(descriptors)

    def executor(
        self, program: Program, scratch: Window | None, persistent: Window | None
    ) -> HostRunner | RemoteRunner:
        """Return an executor for a program in these pools: in this process, or in the "arm" environment in the
        accelerator.
        """
        if not self.remote:
            # Each binding brings its own IO memory.
            return HostRunner(program, scratch, persistent, [None] * (len(program.inputs) + len(program.outputs)))
        with self._opening:
            if self._closed:
                raise QnnError(Code.CONTEXT_INVALID_HANDLE, "LPAI context", "it has been freed")
            if self._queue is None:
                self._queue = self.backend.device.open_queue()
        return RemoteRunner(self._queue, program, scratch, persistent)

    @property
    def seconds_to_finish(self) -> float | None:
        return None if self._queue is None else self._queue.accelerator.deadlines.closing

    def abort_now(self) -> None:
        if self._queue is not None:
            self._queue.abort_now()

    def close(self) -> None:
        """Release the queue, the graphs and registered memory; safe to call again."""
        with self._opening:
            self._closed = True
        # First: this ends a stuck execution and so releases the execution lock that the graphs wait for.
        if self._queue is not None:
            self._queue.close()
        self._close_graphs()
        self._shared.close()


class LpaiIo(IoPolicy):
    """Memory for a graph whose user brings none: both pools, and IO that is not planned into scratch or TCM."""

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"raw": TensorMemType.RAW, "memhandle": TensorMemType.MEMHANDLE}

    def pools(self, graph: seam.GraphDriver) -> list[Buffer]:
        """Allocate scratch and persistent memory of the required sizes, and set them."""
        assert isinstance(graph, LpaiGraphDriver)
        buffers = []
        for pool in graph.pools:
            nbytes = graph.required_bytes(pool)
            if nbytes:
                # The core of the "arm" environment sees shared memory only.
                shared = graph.context.remote
                buffer = rpcmem.share(nbytes) if shared else host(nbytes, graph.alignment.start_addr_alignment)
                graph.set_config(pool.option, Mem(LpaiMemType.DDR, nbytes, buffer)).keep()
                buffers.append(buffer)
        return buffers

    def io(self, graph: seam.GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Provide buffers of a kind, by default only for inputs and outputs without a planned place; all or none."""
        assert isinstance(graph, LpaiGraphDriver)
        if graph.context.mem_type is LpaiMemType.TCM and kind == "memhandle":
            rule = "TCM, where the model binary is, has no file descriptor to register it by"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"memory handles for {graph.what}", rule, 'Take io "raw".')
        return super().io(graph, kind, tensors)

    def _allocate(
        self, graph: seam.GraphDriver, info: TensorInfo, kind: str | None
    ) -> tuple[Buffer, seam.TensorMemory]:
        """Allocate a shared buffer for a tensor, or a raw one, in DDR or TCM as configured."""
        assert isinstance(graph, LpaiGraphDriver)
        # The accelerator sees only shared memory; other memory would be copied.
        if kind == "memhandle" or (kind is None and graph.context.remote):
            return _register(graph, info)
        buffer = graph.allocator.allocate(f"buffer of tensor '{info.name}' of {graph.what}", info.nbytes)
        return buffer, seam.TensorMemory(buffer.window())


def _register(graph: LpaiGraphDriver, info: TensorInfo) -> tuple[Buffer, seam.TensorMemory]:
    """Allocate a shared buffer for a tensor and register it."""
    start = graph.alignment.start_addr_alignment
    # Shared memory is page-aligned; a larger alignment needs extra room.
    room = start if start > mmap.PAGESIZE else 0
    buffer = rpcmem.share(graph.alignment.padded(info.nbytes) + room)
    custom = MemInfo(rpcmem.to_fd(buffer), -buffer.address % start)
    [memory] = register_custom(graph.context, [info], [custom])
    return buffer, memory


def _check_island(value: Any) -> bool:
    """Check the option that graphs run in an island (a low-power mode). It has no effect here."""
    if not isinstance(value, bool):
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"island {value!r}", "must be true or false")
    return value


def _prepare(graph: Graph, config: LpaiConfig, request: PlanRequest) -> PlanReport:
    """Plan a graph and describe its pools; the limit that is asked for overrides the configuration's."""
    named(request.target)
    if request.threads != 1:
        what = f"threads={request.threads} of graph '{graph.name}'"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, what, "this backend runs a graph on one thread")
    if request.limit is not None:
        config = replace(config, prepare=replace(config.prepare, scratch_limit=request.limit))
    if config.mem_type is LpaiMemType.UNDEFINED:
        raise unknown_mem_type(f"memory of graph '{graph.name}'", config.source)
    planned = plan_pools(graph, config.alignment, config.io_in_scratch, config.prepare.scratch_limit)
    return native.preparation(planned, describe_pools(graph, config, planned))


ENTRY = BackendEntry(
    name="lpai",
    library="libQnnLpai.so",
    driver=LpaiBackend,
    read_config=read,
    io=LpaiIo(),
    prepare=_prepare,
    inspect=inspect,
    unshared=unshared,
    c="isthmus.backends.lpai.c:FACET",
    delegate=DelegateFacet(number=100, takes_client_memory=False),
    modes={"adsp": {"lpai_backend": {"target_env": "adsp"}}},
    accepted=native.ACCEPTED,
    keys=config_keys(Log()),
    memory_sizes={"tcm": "lpai_backend.tcm_size"},
)
