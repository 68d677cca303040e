"""A context: graphs and memory handles with a common lifetime (QnnContext_*, QnnMem_*)."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import audit_log
from isthmus import graph as ir
from isthmus.backends.seam.config import MAX_QUEUE_DEPTH
from isthmus.backends.seam.driver import GraphDriver, MemDescriptor, Source, member
from isthmus.backends.seam.loading import Loading, LoadingOptions
from isthmus.backends.seam.provider import BinaryProvider, ProvidedBuffer
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.frontends import ModelSource
from isthmus.log import LogLevel
from isthmus.memory.integers import is_int
from isthmus.qnn import mem, options
from isthmus.qnn.asynchronous import QUEUE_DEPTH, ExecutionQueue
from isthmus.qnn.backend import Backend, Device, check_provider, free_all
from isthmus.qnn.graph import Priority, QnnGraph
from isthmus.qnn.handle import Handle
from isthmus.qnn.mem import MemHandle
from isthmus.qnn.profile import Profile, ProfilingEvent
from isthmus.qnn.system import of_binary, with_file_name
from isthmus.system.lock import Lock
from isthmus.system.shield import shielded

if TYPE_CHECKING:
    from typing_extensions import Unpack

_CONFIG = Code.CONTEXT_INVALID_CONFIG
# The largest memory limit hint, which has 64 bits in C.
_MAX_HINT = (1 << 64) - 1


def _drop(graph: QnnGraph) -> None:
    """Remove the graph that an interrupted call has created: the client never receives it."""
    graph.context.drop_graph(graph.driver.graph)


def _drop_all(graphs: Iterable[QnnGraph]) -> None:
    for graph in graphs:
        _drop(graph)


class Context(Handle):
    """A context (QnnContext_create). Freeing it frees its graphs and memory handles.

    Parameters
    ----------
    backend
        The backend that its graphs run on.
    configs
        Custom configs by option.
    device
        The device to run on; the backend's only device if omitted.
    binary
        A context binary to take the graphs from: a file, or its contents.
    from_binary
        Whether to read `binary`. A `binary` of None is then refused, instead of creating an empty context.
    graphs
        The graphs of the binary to load; if omitted those that the backend's configuration enables, or all.
    deferred
        Whether the graphs are loaded by `finalize` only.
    queue_depth
        How many asynchronous executions may wait or run; if omitted what the backend's configuration says, or 10.
    priority
        The priority of its graphs, a `Priority`; if omitted what the backend's configuration says.
    profile
        Records how long it took, and what the backend says of memory.
    strict
        Whether a binary that does not make full use of the device is refused (QNN_CONTEXT_BINARY_COMPATIBILITY_TYPE);
        if omitted what the backend's configuration says.
    provider
        Brings the constants of the binary in buffers that the backend uses in place.
    shared
        What it shares with the other contexts of a list (`Backend.open_list`).
    persistent, memory_limit, retained
        How the graphs of the binary are loaded: see `Backend.create_context_from_binary`.
    """

    invalid = Code.CONTEXT_INVALID_HANDLE

    @shielded(release=Handle.free)
    def __init__(
        self,
        backend: Backend,
        configs: Mapping[Any, Any] | None = None,
        device: Device | None = None,
        binary: Source | None = None,
        from_binary: bool = False,
        graphs: Collection[str] | None = None,
        deferred: bool = False,
        queue_depth: int | None = None,
        priority: int | None = None,
        profile: Profile | None = None,
        strict: bool | None = None,
        provider: BinaryProvider | None = None,
        shared: Any = None,
        **loading: Unpack[LoadingOptions],
    ) -> None:
        begin = time.perf_counter()
        backend._check()
        backend.check_device(device)
        if provider is not None:
            check_provider(provider)
        self.backend = backend
        self.executions = ExecutionQueue(_depth(queue_depth or backend.driver.contexts.queue_depth or QUEUE_DEPTH))
        """Its asynchronous executions."""
        self._device = device
        self._is_composed = not from_binary
        # What brings its constants, and the buffers that it has brought.
        self._provider, self._provided = provider, list[ProvidedBuffer]()
        # The graphs of its binary that `finalize` will load; empty if it needs none.
        self._deferred: tuple[str, ...] | None = None
        self._finalizing = Lock()
        self.driver = backend.driver.create_context(None if device is None else device.driver)
        try:
            super().__init__(f"context of {backend._what}", backend)
            if device is not None:
                device.contexts.add(self)
        except QnnError:
            # The backend has been freed meanwhile.
            self.driver.close()
            raise
        try:
            self.driver.priority = None if priority is None else int(member(priority, Priority, "priority", _CONFIG))
            if configs:
                self.set_config(configs)
            enabled = backend.driver.contexts.enabled if graphs is None else graphs
            self.driver.enabled = None if enabled is None else tuple(dict.fromkeys(enabled))
            self.driver.strict = backend.driver.contexts.strict if strict is None else strict
            if shared is not None:
                self.driver.join_list(shared)
            if from_binary:
                self.driver.loading = _loading(backend.driver.contexts.loading, **loading)
                try:
                    if provider is not None:
                        self._take(self._restore_provided(binary, deferred))
                    elif deferred:
                        self._deferred = self._enabled_names(self.driver.defer(binary))
                    else:
                        self._take(self.driver.restore(binary))
                except QnnError as problem:
                    raise of_binary(problem) from None
                self._set_loading(self.driver.loading)
        except QnnError as problem:
            self.free()
            raise with_file_name(problem, binary) from None
        except Exception:
            self.free()
            raise
        self._record(profile, "context created from binary" if from_binary else "context created", begin)

    def _record(self, profile: Profile | None, name: str, begin: float) -> None:
        """Record a call that began at a time, and what the backend says of memory."""
        if profile is not None:
            figures = [ProfilingEvent(name, nbytes, "bytes") for name, nbytes in self.driver.memory_events]
            profile.add(ProfilingEvent(name, (time.perf_counter() - begin) * 1e6, "us"), *figures)

    def free(self, profile: Profile | None = None) -> None:
        """Free the context with its graphs and memory handles (QnnContext_free); safe to call again.

        Parameters
        ----------
        profile
            Records how long it took, and what the backend says of memory.
        """
        begin = time.perf_counter()
        super().free()
        self._record(profile, "context freed", begin)

    def _restore_provided(self, binary: Source | None, deferred: bool) -> Sequence[GraphDriver]:
        """Restore a binary with constants that its provider brings."""
        assert self._provider is not None
        if deferred:
            rule = "data of a binary cannot come from callbacks if its graphs are deferred"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, self._what, rule)
        for section in self.driver.sections(binary):
            buffer = self._provider.provide(section)
            if not isinstance(buffer, ProvidedBuffer):
                rule = f"its provider has brought {buffer!r}, which is not a ProvidedBuffer"
                raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, self._what, rule)
            self._provided.append(buffer)
        return self.driver.restore_provided(self._provided)

    def _enabled_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the graphs of its binary that are enabled; refuse names that the binary does not have."""
        every, enabled = tuple(names), self.driver.enabled
        missing = sorted({*(enabled or ())} - {*every})
        if missing:
            rule = f"it has no graph {', '.join(missing)}"
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context binary", rule)
        return tuple(name for name in every if enabled is None or name in enabled)

    def _take(self, drivers: Sequence[GraphDriver]) -> None:
        """Create handles for the graphs of its binary that are enabled."""
        enabled = self._enabled_names(driver.graph.name for driver in drivers)
        for driver in drivers:
            if driver.graph.name in enabled:
                self._open(driver)

    def _open(self, driver: GraphDriver) -> QnnGraph:
        """Create the handle of a graph, which registers itself with this context, its owner."""
        own = self.driver.priority
        driver.priority = self.backend.driver.contexts.priority_of(driver.graph.name) if own is None else own
        return QnnGraph(self, driver)

    @property
    def is_deferred(self) -> bool:
        """Whether its graphs are yet to be loaded, by `finalize`."""
        return self._deferred is not None

    @property
    def graph_names(self) -> tuple[str, ...]:
        """The names of its graphs, also of those that `finalize` will load."""
        return tuple(self.graphs) if self._deferred is None else self._deferred

    @shielded
    @audit_log.reported
    def finalize(self) -> None:
        """Load the graphs of a context that was created with `deferred` (QnnContext_finalize).

        Raises
        ------
        QnnError
            COMMON_NOT_SUPPORTED for any other context; otherwise the reason why the binary cannot be loaded.
        """
        # Of two threads that come here at once, the second finds it finalized.
        with self._finalizing:
            self._check()
            if self._deferred is None:
                rule = "no features indicate a need for context finalization"
                raise QnnError(Code.COMMON_NOT_SUPPORTED, self._what, rule)
            try:
                self._take(self.driver.restore_deferred())
            except QnnError as problem:
                raise of_binary(problem) from None
            self._deferred = None

    def _check_loaded(self, code: Code) -> None:
        """Refuse a call that needs the graphs of a context before `finalize` has loaded them."""
        if self.is_deferred:
            raise QnnError(code, self._what, "it needs finalization", "Call finalize() of the context first.")

    @property
    def graphs(self) -> dict[str, QnnGraph]:
        """The graphs by name."""
        return {handle.name: handle for handle in list(self._owned) if isinstance(handle, QnnGraph)}

    def get_property(self, option: Any) -> Any:
        """Return a property, or the current value of a config (QnnContext_getProperty)."""
        self._check()
        return options.ask(self.driver, option, self._what, Code.CONTEXT_INVALID_ARGUMENT)

    @shielded
    def set_config(self, option: Any, value: Any = None) -> None:
        """Set a config, or several from a mapping: all or none (QnnContext_setConfig)."""
        self._check()
        pairs = options.pairs(option, value, self._what, Code.CONTEXT_INVALID_CONFIG)
        options.set_all(self.driver, pairs, self._what, Code.CONTEXT_INVALID_CONFIG).keep()

    @shielded
    def retain(self, names: Sequence[str]) -> None:
        """Replace the order of retention (QNN_CONTEXT_CONFIG_OPTION_GRAPH_RETENTION_ORDER).

        Nothing is loaded or unloaded now: the next graph switch follows it. Without graph switching it has no effect.
        """
        self._check()
        order = _texts(names)
        if not self._is_composed:
            self._set_loading(replace(self.driver.loading, retained=order))
        elif order:
            rule = "Invalid or duplicate graph names provided in graph switching config list"
            raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule, "Provide valid graph names.")

    def _set_loading(self, loading: Loading) -> None:
        """Set how graphs are loaded, after a check of the order of retention."""
        loading.check(self.graph_names)
        self.driver.loading = loading
        if loading.retained and not loading.memory_limit:
            text = "Graph retention order set without memory limit hint. Disabling graph switching mode."
            self.backend.log(LogLevel.WARN, text)
        elif loading.memory_limit and not (loading.is_persistent and self.driver.switches):
            why = "its binary is not persistent" if self.driver.switches else "this backend keeps all graphs loaded"
            self.backend.log(LogLevel.INFO, f"MEMORY_LIMIT_HINT = {loading.memory_limit}: without effect, {why}")
        if loading.is_persistent and not (self.driver.switches or self.backend.driver.keeps_binaries):
            self.backend.log(LogLevel.INFO, "PERSISTENT_BINARY = True: without effect, the binary is copied")

    @shielded(release=_drop)
    def create_graph(self, name: str) -> QnnGraph:
        """Create an empty graph (QnnGraph_create)."""
        self._check()
        self._check_name(name)
        return self._add(ir.Graph(name, self.backend.driver.definitions))

    @shielded(release=_drop)
    def compose(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Mapping[str, Any] | None = None,
        mem_type: ir.TensorMemType | None = None,
        graph: str | None = None,
    ) -> QnnGraph:
        """Create a graph from a model file, as QNN's converters compose one.

        Parameters
        ----------
        path
            A ``.tflite``, ``.onnx`` or ``.dlc`` file, or a model library (``libqnn_model.so``).
        name
            The graph's name; the name in the file if omitted.
        shapes, constants
            Dimensions of dynamic inputs, and values of inputs to be fixed.
        mem_type
            The memory type that all inputs and outputs are prepared for. If omitted, the file's, or RAW if the file
            declares none.
        graph
            Which graph to take from a file that contains several.
        """
        self._check()
        from isthmus.qnn.models import load

        source = ModelSource(_path(path), shapes, constants, graph, operations=self.backend.driver.definitions)
        return self._compose([load(source)], name, mem_type)[0]

    @shielded(release=_drop_all)
    def compose_all(
        self,
        path: str | os.PathLike[str],
        mem_type: ir.TensorMemType | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        clean_names: bool = False,
        prefix: str = ModelSource.prefix,
    ) -> list[QnnGraph]:
        """Compose all graphs of a model file, or none if one is refused (QnnSystemDlc_composeGraphs).

        Parameters
        ----------
        path, mem_type, shapes
            As for `compose`.
        clean_names
            Whether the tensors of a DLC get the names that QNN's own reader gives them: every character but letters,
            digits and ``_`` is replaced by ``_``, and ``_`` is put before a leading digit. Otherwise they keep the
            file's names.
        prefix
            What the functions of a model library begin with.
        """
        self._check()
        from isthmus.qnn.models import load_all

        operations = self.backend.driver.definitions
        source = ModelSource(_path(path), shapes, clean_names=clean_names, prefix=prefix, operations=operations)
        return self._compose(load_all(source), None, mem_type)

    def _compose(self, graphs: list[ir.Graph], name: str | None, mem_type: ir.TensorMemType | None) -> list[QnnGraph]:
        """Add the graphs of a file: check all names first, and set the memory type of inputs and outputs if given."""
        for graph in graphs:
            graph.name = name or graph.name
            self._check_name(graph.name)
            if sum(other.name == graph.name for other in graphs) > 1:
                raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{graph.name}'", "the file has two of that name")
        if mem_type is not None:
            kind = member(mem_type, ir.TensorMemType, "memory type", Code.CONTEXT_INVALID_ARGUMENT)
            for tensor in (tensor for graph in graphs for tensor in (*graph.inputs, *graph.outputs)):
                tensor.mem_type = kind
        return [self._add(graph) for graph in graphs]

    @shielded(release=_drop)
    def add_graph(self, graph: ir.Graph) -> QnnGraph:
        """Add a graph that was composed elsewhere; the context owns it from then on."""
        self._check()
        if not isinstance(graph, ir.Graph):
            raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, f"graph {graph!r}", "it is not a composed graph")
        self._check_name(graph.name)
        return self._add(graph)

    def retrieve(self, name: str) -> QnnGraph:
        """Return a graph by name (QnnGraph_retrieve)."""
        self._check()
        self._check_loaded(Code.GRAPH_NOT_FINALIZED)
        graphs = self.graphs
        if not isinstance(name, str) or name not in graphs:
            existing = ", ".join(f"'{each}'" for each in graphs) or "none"
            rule, hint = f"the context has {existing}", did_you_mean(name, graphs)
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{name}'", rule, hint)
        return graphs[name]

    def get_binary_size(self) -> int:
        """Return the size of the context's binary (QnnContext_getBinarySize)."""
        return len(self.get_binary())

    @shielded
    def get_binary(self) -> bytes:
        """Return a binary of the context and all its graphs, to create it from again (QnnContext_getBinary)."""
        self._check()
        self._check_loaded(Code.CONTEXT_NOT_FINALIZED)
        for graph in list(self.graphs.values()):
            if not graph.finalized:
                raise QnnError(Code.CONTEXT_NOT_FINALIZED, graph._what, "it is not finalized", "Call finalize() first.")
        return self.driver.get_binary()

    @shielded
    def prepare_offline(self) -> bytes:
        """Return the context's binary from graphs that are not finalized, without allocating execution memory."""
        self._check()
        return self.driver.get_binary()

    @shielded(release=free_all)
    @audit_log.reported
    def mem_register(self, descriptors: Iterable[MemDescriptor]) -> list[MemHandle]:
        """Register memory (QnnMem_register): all of it, or none."""
        self._check()
        try:
            items = list(descriptors)
        except TypeError:
            rule = f"{descriptors!r} is not a list of descriptors"
            raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory registration", rule) from None
        if not items:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory registration", "no descriptors are given")
        checked = [
            mem.check_descriptor(f"memory descriptor {index}", descriptor) for index, descriptor in enumerate(items)
        ]
        since = time.monotonic()
        try:
            registrations = self.driver.register(checked)
        except QnnError as error:
            refused = [each for index, each in enumerate(checked) if error.what == f"memory descriptor {index}"]
            audit_log.refuse(error, self._tensors_like(refused or checked))
            raise
        handles: list[MemHandle] = []
        try:
            for registration in registrations:
                handle = MemHandle(self, registration)
                handles.append(handle)
                if audit_log.active:
                    names, window = self._tensors_like([handle.descriptor]), registration.window
                    handle.audit_key = audit_log.new_key()
                    audit_log.begin(
                        handle.audit_key, audit_log.Action.REGISTER, handle.what, window.nbytes,
                        spans=window.spans, since=since, owner="client",
                    )  # fmt: skip
                    if names:
                        audit_log.name_memory(window.spans, names, is_certain=False)
        except QnnError:
            # The context has been freed meanwhile.
            for registration in registrations:
                registration.close()
            raise
        return handles

    @shielded
    @audit_log.reported
    def mem_deregister(self, handles: Iterable[MemHandle]) -> None:
        """Deregister memory (QnnMem_deRegister): every valid handle in the list, even if another is refused."""
        self._check()
        refused = []
        try:
            items = list(handles)
        except TypeError:
            rule = f"{handles!r} is not a list of handles"
            raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory handles", rule) from None
        for index, handle in enumerate(items):
            if isinstance(handle, MemHandle) and handle.alive and handle.context is self:
                handle.free()
            else:
                refused.append(index)
        if refused:
            rule, hint = "they are not registered in this context", "The others were deregistered."
            raise QnnError(Code.MEM_INVALID_HANDLE, f"memory handles {refused} of the list", rule, hint)

    def _tensors_like(self, descriptors: Iterable[MemDescriptor]) -> str:
        """List the inputs and outputs that memory may be for, by type and dimensions: descriptors name no tensor."""
        shapes = {(each.dtype, tuple(each.dims)) for each in descriptors}
        graphs = [graph.driver.graph for graph in self.graphs.values()]
        tensors = [tensor for graph in graphs for tensor in (*graph.inputs, *graph.outputs)]
        names = (f"'{tensor.name}'" for tensor in tensors if (tensor.dtype, tuple(tensor.dims)) in shapes)
        return " or ".join(dict.fromkeys(names))

    def _add(self, graph: ir.Graph) -> QnnGraph:
        """Create a graph in the driver and its handle, or neither."""
        self._check_loaded(Code.GRAPH_NOT_FINALIZED)
        try:
            return self._open(self.driver.create_graph(graph))
        except Exception:
            self.drop_graph(graph)
            raise

    @shielded
    def drop_graph(self, graph: ir.Graph) -> None:
        """Remove a graph that the client never received; QNN has no call for this. Its name becomes free again."""
        self.driver.drop_graph(graph)
        for handle in list(self._owned):
            if isinstance(handle, QnnGraph) and handle.driver.graph is graph:
                self._disown(handle)

    @shielded
    def release_graph(self, graph: QnnGraph) -> None:
        """Free a graph that nothing executes, with its bindings, before its context; QNN has no call for this."""
        graph.usable = False
        graph._release()
        self.driver.release_graph(graph.driver)
        self._disown(graph)

    def _check_name(self, name: str) -> None:
        """Refuse a graph's name that is empty or taken."""
        if not isinstance(name, str) or not name:
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph {name!r}", "its name must be a text that is not empty")
        if name in self.graphs:
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{name}'", "the context has one of that name")

    def _quiet(self) -> None:
        """Finish the running asynchronous execution and cancel the others; abort it if it takes too long."""
        if not self.executions.close(self.driver.seconds_to_finish):
            # Its accelerator is stopped or never finishes, or a client callback does not return.
            self.driver.abort_now()
            self.executions.close(self.driver.seconds_to_finish)

    def _release(self) -> None:
        self.driver.close()
        while self._provider is not None and self._provided:
            # Taken from the list first: a buffer is given back once, whatever happens then.
            self._provider.release(self._provided.pop(0))
        if self._device is not None:
            self._device.contexts.discard(self)


def _depth(depth: Any) -> int:
    """Return the depth of a queue; refuse what is none."""
    if not is_int(depth) or not 1 <= depth <= MAX_QUEUE_DEPTH:
        rule = f"the depth of its queue must be 1 to {MAX_QUEUE_DEPTH}, is {depth!r}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule)
    return int(depth)


def _texts(names: Any) -> tuple[str, ...]:
    """Return the names of an order of retention; refuse what are none."""
    listed = tuple(names) if isinstance(names, Iterable) and not isinstance(names, str) else (None,)
    if not all(isinstance(name, str) for name in listed):
        rule = f"an order of retention must be a list of names, is {names!r}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule)
    return listed


def _loading(
    usual: Loading,
    persistent: bool | None = None,
    memory_limit: int | None = None,
    retained: Sequence[str] | None = None,
) -> Loading:
    """Return how graphs of a binary are loaded: as a client says, or as is usual."""
    if memory_limit is not None and (not is_int(memory_limit) or not 0 <= memory_limit <= _MAX_HINT):
        rule = f"a memory limit hint must be a number of MB from 0 to {_MAX_HINT}, is {memory_limit!r}"
        raise QnnError(Code.CONTEXT_INVALID_CONFIG, "context", rule)
    return Loading(
        usual.is_persistent if persistent is None else bool(persistent),
        usual.memory_limit if memory_limit is None else int(memory_limit),
        usual.retained if retained is None else _texts(retained),
    )


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, f"model {path!r}", "must be a path")
    return Path(path)
