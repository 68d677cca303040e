"""The GPU backend: graphs run on an OpenCL device, in the client's own buffers if it provides them.

A registered OpenCL buffer is used in place: nothing is transferred and nothing copied. An execution can wait for events
and return one, so that a pipeline never leaves the device. Raw memory is transferred at each execution, and the
transfers are counted. The OpenCL context is the backend's own or the client's. The client's is given in advance, or it
is that of the first registered buffer.

When the device is lost, contexts, graphs and handles on it fail with COMMON_SYSTEM_COMMUNICATION. The backend stays
usable: its next context works in a new OpenCL context, unless the OpenCL context is the client's.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any, ClassVar

from isthmus.backends.gpu import binary as gpu_binary
from isthmus.backends.gpu import delegate, options
from isthmus.backends.gpu.accepted import ACCEPTED
from isthmus.backends.gpu.buffers import OpenClBuffer, adopt_pyopencl, pinned_buffer, shared_buffer
from isthmus.backends.gpu.compile import lower
from isthmus.backends.gpu.config import KEYS, GpuConfig, read_config
from isthmus.backends.gpu.constants import SharedConstants
from isthmus.backends.gpu.graph import DeviceSide, GpuGraphDriver
from isthmus.backends.gpu.memory import GpuMemory, GpuRegistration
from isthmus.backends.gpu.prepare import preparation, traits
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.device import choose
from isthmus.backends.gpu.runtime.library import REMEDY
from isthmus.backends.gpu.runtime.program import Repository
from isthmus.backends.seam import driver as seam
from isthmus.backends.seam.entry import BackendEntry, IoMemory, IoPolicy, register_custom
from isthmus.compiled.folder import Folder
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph, TensorInfo, TensorMemType
from isthmus.graph.operation import Call
from isthmus.log import Log, LogLevel, deferred
from isthmus.memory import Buffer, adopt, holds
from isthmus.system.interrupts import Finalizer
from isthmus.system.lock import Lock


class GpuBackend(seam.BackendDriver):
    """The backend, on the device that its configuration names or on the best one available."""

    properties = options.GpuBackendProperty
    refuses_op_packages = "its packages are kernels for the vendor's own GPU driver, which this machine lacks"

    def __init__(self, config: GpuConfig, log: Log) -> None:
        self.config, self.log = config, log
        self.contexts = config.contexts
        self._lock = Lock()
        self._opencl = self._open()
        # The list of adopters would otherwise keep the backend alive.
        reference = weakref.ref(self)

        def wrap(source: Any) -> OpenClBuffer | None:
            backend = reference()
            return None if backend is None else adopt_pyopencl(backend._opencl, source)

        # A client may pass pyopencl buffers wherever memory is expected, until the backend is closed.
        self._adoption = Finalizer(self, adopt(wrap))

    def _open(self) -> ClContext:
        """Wrap the client's OpenCL context or queue if the configuration has one, else create our own."""
        config = self.config
        if config.context is not None or config.queue is not None:
            opened = ClContext.of_client(config.context, config.queue)
            if config.platform is not None or config.device is not None:
                rule = "a context or queue of the client's is on a device already: platform and device cannot be chosen"
                raise QnnError(Code.BACKEND_INCONSISTENT_CONFIG, "backend 'gpu'", rule)
        else:
            opened = ClContext.create(choose(config.platform, config.device, partial(self.log, LogLevel.WARN)))
        opened.patience = config.patience
        self.log(LogLevel.INFO, f"OpenCL device {opened.device}, driver {opened.device.driver}")
        return opened

    def opencl(self) -> ClContext:
        """Return the OpenCL context; open a new one if our own is lost."""
        with deferred(), self._lock:
            if self._opencl.lost is not None and self._opencl.is_own:
                self.log(LogLevel.WARN, f"The device is lost: {self._opencl.lost}; opening it again")
                self._opencl = self._open()
            return self._opencl

    def get_property(self, option: IntEnum) -> Any:
        """Return the OpenCL context, queue or device as a pyopencl object, for the client's own commands."""
        try:
            import pyopencl
        except ImportError:
            rule = "the package pyopencl, whose objects properties are, is not installed"
            raise QnnError(Code.COMMON_PLATFORM_NOT_SUPPORTED, "backend 'gpu'", rule, REMEDY) from None
        opencl = self.opencl()
        opencl.check("backend 'gpu'")
        if option is options.GpuBackendProperty.CL_CONTEXT:
            return pyopencl.Context.from_int_ptr(opencl.handle, retain=True)
        if option is options.GpuBackendProperty.CL_QUEUE:
            return pyopencl.CommandQueue.from_int_ptr(opencl.queue, retain=True)
        assert option is options.GpuBackendProperty.CL_DEVICE
        return pyopencl.Device.from_int_ptr(opencl.device.handle, retain=True)

    def supports(self, call: Call) -> str | None:
        return ACCEPTED.refusal(call, lower.supports(call))

    def operations(self) -> Collection[str]:
        return ACCEPTED.types

    def create_context(self, device: seam.DeviceDriver | None = None) -> GpuContext:
        opencl = self.opencl()
        opencl.check("GPU context")
        return GpuContext(self.config, opencl)

    def close(self) -> None:
        self._adoption.run()
        self._opencl.close()


class GpuContext(seam.GraphsContext[GpuGraphDriver]):
    """A context: graphs and registered buffers of one OpenCL context.

    If the configuration says `follow_client`, it moves to the OpenCL context of the first registered buffer: its graphs
    are created there again, and what they had before is released.

    - `opencl`: The OpenCL context to begin with.
    """

    configs = options.GpuContextOption

    def __init__(self, config: GpuConfig, opencl: ClContext) -> None:
        super().__init__()
        self.config, self.opencl = config, opencl
        self.moving: AbstractContextManager[object] = Lock() if config.follow_client else nullcontext()
        """A lock that is held while the context moves to another OpenCL context, and while anything is created in the
        current one.
        """
        # The client's OpenCL context that it has moved to; it closes this one, but not the backend's.
        self._followed: ClContext | None = None
        # Calls that remain to be made to release what the context had before it moved.
        self._releases: tuple[Callable[[], object], ...] = ()
        path = config.kernel_repo_path
        self.repository = Repository() if path is None else _repository(path)
        self.repository.is_valid = not config.invalidate_kernel_repo
        self._perf_hint = options.PerfHint.HIGH
        self.memory = GpuMemory(opencl)
        self.constants = SharedConstants()
        self.scratch_owner: GpuGraphDriver | None = None
        """The graph whose scratch others use, if graphs share scratch."""

    def get_config(self, option: IntEnum) -> Any:
        if option is options.GpuContextOption.PERF_HINT:
            return self._perf_hint
        if option is options.GpuContextOption.USE_GL_BUFFERS:
            return False
        if option is options.GpuContextOption.KERNEL_REPO_DIR:
            return str(self.repository.folder.path)
        return not self.repository.is_valid

    def set_config(self, option: IntEnum, value: Any) -> seam.Change:
        """Set the folder for built kernels, whether they are built again, or a hint; the result can undo it."""
        before, was_valid, hint = self.repository, self.repository.is_valid, self._perf_hint
        if option is options.GpuContextOption.PERF_HINT:
            self._perf_hint = options.perf_hint(option, value, Code.CONTEXT_INVALID_CONFIG)
        elif option is options.GpuContextOption.USE_GL_BUFFERS:
            if options.truth(option, value, Code.CONTEXT_INVALID_CONFIG):
                rule = "OpenGL buffers cannot be used here"
                raise QnnError(Code.CONTEXT_INVALID_CONFIG, "USE_GL_BUFFERS = True", rule)
        elif option is options.GpuContextOption.KERNEL_REPO_DIR:
            self.repository = _repository(value)
            self.repository.is_valid = was_valid
        else:
            self.repository.is_valid = not options.truth(option, value, Code.CONTEXT_INVALID_CONFIG)

        def undo() -> None:
            self.repository, self._perf_hint = before, hint
            before.is_valid = was_valid

        return seam.Change(undo=undo)

    def create_graph(self, graph: Graph) -> GpuGraphDriver:
        with self.moving:
            return super().create_graph(graph)

    def _new_graph(self, graph: Graph) -> GpuGraphDriver:
        self.opencl.check("GPU context")
        return GpuGraphDriver(self, graph)

    def drop_graph(self, graph: Graph) -> None:
        with self.moving:
            super().drop_graph(graph)

    def share_scratch(self, graph: seam.GraphDriver) -> None:
        assert isinstance(graph, GpuGraphDriver)
        self.scratch_owner = graph

    def register(self, descriptors: Sequence[seam.MemDescriptor]) -> Sequence[GpuRegistration]:
        """Register all buffers or none; if the context follows the client, it first moves to their OpenCL context."""
        with self.moving:
            if self.config.follow_client:
                # First complete what an interrupt may have left of an earlier move.
                self._release_left()
                self._follow(descriptors)
                self._release_left()
            self.opencl.check("memory registration")
            return self.memory.register(descriptors)

    def _follow(self, descriptors: Sequence[seam.MemDescriptor]) -> None:
        """Move to the OpenCL context of the client's buffers, with all graphs, or change nothing.

        Registered buffers must stay usable, so the context does not move away from them, nor from the state of graphs.
        """
        client_context = self.memory.foreign(descriptors)
        if client_context is None or any(graph.has_history for graph in self._graphs):
            return
        try:
            target = ClContext.of_client(client_context, None)
        except QnnError as problem:
            hint = "Create the buffers in a context of one device."
            raise QnnError(Code.MEM_INVALID_ARGUMENT, problem.what, problem.rule, hint) from None
        target.patience = self.config.patience
        graphs, sides = tuple(self._graphs), list[DeviceSide]()
        try:
            for graph in graphs:
                sides.append(graph.create_on(target))
            _under_locks([graph for graph in graphs if graph.has_state], partial(self._switch, graphs, sides, target))
        finally:
            if self.opencl is not target:
                # It did not move.
                for side in sides:
                    side.close()
                target.close()

    def _switch(self, graphs: Sequence[GpuGraphDriver], sides: Sequence[DeviceSide], target: ClContext) -> None:
        """Move to `target` at once, each graph with its new side, unless an execution has left state meanwhile."""
        if any(graph.has_history for graph in graphs):
            return
        releases: list[Callable[[], object]] = [partial(graph.counts.under_lock, graph.side.close) for graph in graphs]
        releases.append(self.memory.close)
        if self._followed is not None:
            releases.append(self._followed.close)
        assignments: list[tuple[object, str, object]] = [
            *((graph, "side", side) for graph, side in zip(graphs, sides, strict=True)),
            (self, "opencl", target), (self, "memory", GpuMemory(target)), (self, "_followed", target),
            (self, "_releases", (*self._releases, *releases)),
        ]  # fmt: skip
        # This is a single C call, and what is left to release is recorded by it: neither a signal handler nor another
        # thread can intervene.
        deque(starmap(setattr, assignments), maxlen=0)

    def _release_left(self) -> None:
        """Release what the context had before it moved; calls that are interrupted are made again.

        Bindings notice the move and are bound again before they run; until then they use the previous OpenCL context.
        """
        if self._releases:
            holds.record_change()
            for release in self._releases:
                release()
            self._releases = ()

    def get_binary(self) -> bytes:
        return gpu_binary.to_bytes([graph.program for graph in list(self._graphs)])

    def restore(self, binary: seam.Source) -> Sequence[GpuGraphDriver]:
        """Create all graphs of a context binary, finalized, or none."""
        with self.moving:
            self.opencl.check("context binary")
            programs = gpu_binary.programs(binary, traits(self.opencl.device))
            graphs = [GpuGraphDriver(self, seam.outline(program.info), program) for program in programs]
            try:
                for graph in graphs:
                    graph.finalize()
            except Exception:
                for graph in graphs:
                    graph.close()
                raise
            self._graphs += graphs
            return graphs

    def close(self) -> None:
        self._close_graphs()
        self._release_left()
        self.memory.close()
        if self._followed is not None:
            self._followed.close()


class GpuIo(IoPolicy):
    """Memory for graphs whose user provides none: registered buffers or raw memory, whichever suits the device better.

    For a device that works in host memory, they are registered buffers there, which are handed back to the host after
    each execution; nothing is copied. For a device with its own memory, they are pinned host memory, transferred at the
    speed of the bus.
    """

    kinds: ClassVar[Mapping[str, TensorMemType]] = {"memhandle": TensorMemType.MEMHANDLE, "raw": TensorMemType.RAW}

    def io(self, graph: seam.GraphDriver, kind: str | None, tensors: Sequence[TensorInfo] | None = None) -> IoMemory:
        """Allocate memory; `kind` is a key of `kinds`, or None for what suits the device."""
        assert isinstance(graph, GpuGraphDriver)
        context, infos = graph.context.opencl, graph.info.tensors if tensors is None else tensors
        buffers: list[Buffer] = []
        if kind == "raw" or (kind is None and not context.device.unified):
            buffers += [pinned_buffer(context, max(info.nbytes, 1)) for info in infos]
            return IoMemory([seam.TensorMemory(buffer.window()) for buffer in buffers], buffers)
        buffers += [shared_buffer(context, max(info.nbytes, 1)) for info in infos]
        customs = [options.GpuMemInfo(options.GpuMemType.OPENCL, buffer) for buffer in buffers]
        return IoMemory(register_custom(graph.context, infos, customs), buffers)


def _under_locks(graphs: Sequence[GpuGraphDriver], do: Callable[[], None]) -> None:
    """Call `do` while none of `graphs` executes: one execution lock is taken by each recursive call."""
    if graphs:
        graphs[0].counts.under_lock(partial(_under_locks, graphs[1:], do))
    else:
        do()


def _repository(path: Any) -> Repository:
    """Return the repository in a folder that the client names, which must be usable."""
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, f"kernel repository {path!r}", "must be the path of a folder")
    setting = f"{options.GpuContextOption.KERNEL_REPO_DIR.name} (kernel_repo_path)"
    repository = Repository(Folder(Path(path).absolute(), setting), is_required=True)
    repository.check()
    return repository


ENTRY = BackendEntry(
    name="gpu",
    library="libQnnGpu.so",
    driver=GpuBackend,
    read_config=read_config,
    io=GpuIo(),
    prepare=preparation,
    inspect=gpu_binary.inspect,
    unshared=gpu_binary.unshared,
    c="isthmus.backends.gpu.c:FACET",
    delegate=delegate.FACET,
    accepted=ACCEPTED,
    keys=KEYS,
)
