"""A context: graphs and memory handles with a common lifetime (QnnContext_*, QnnMem_*)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus import audit_log
from isthmus import graph as ir
from isthmus.backends.seam.driver import MemDescriptor, Source, member
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.frontends import ModelSource
from isthmus.qnn import mem, options
from isthmus.qnn.asynchronous import ExecutionQueue
from isthmus.qnn.backend import Backend, Device
from isthmus.qnn.graph import QnnGraph
from isthmus.qnn.handle import Handle
from isthmus.qnn.mem import MemHandle
from isthmus.qnn.system import of_binary, with_file_name
from isthmus.system.shield import shielded


def _free_all(handles: Iterable[Handle]) -> None:
    """Free the handles that an interrupted call has created: the client never receives them."""
    for handle in handles:
        handle.free()


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
    ) -> None:
        backend._check()
        if device is not None:
            if not isinstance(device, Device):
                raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context", f"{device!r} is not a device")
            device._check()
            if device.backend is not backend:
                raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context", "its device belongs to another backend")
        self.backend = backend
        self.executions = ExecutionQueue()
        """Its asynchronous executions."""
        self._device = device
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
            if configs:
                self.set_config(configs)
            if from_binary:
                try:
                    for driver in self.driver.restore(binary):
                        # The new handle registers itself with this context, its owner.
                        QnnGraph(self, driver)
                except QnnError as problem:
                    raise of_binary(problem) from None
        except QnnError as problem:
            self.free()
            raise with_file_name(problem, binary) from None
        except Exception:
            self.free()
            raise

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
        graphs = self.graphs
        if not isinstance(name, str) or name not in graphs:
            known = ", ".join(f"'{known}'" for known in graphs) or "none"
            rule, hint = f"the context has {known}", did_you_mean(name, graphs)
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{name}'", rule, hint)
        return graphs[name]

    def get_binary_size(self) -> int:
        """Return the size of the context's binary (QnnContext_getBinarySize)."""
        return len(self.get_binary())

    @shielded
    def get_binary(self) -> bytes:
        """Return a binary of the context and all its graphs, to create it from again (QnnContext_getBinary)."""
        self._check()
        for graph in list(self.graphs.values()):
            if not graph.finalized:
                raise QnnError(Code.CONTEXT_NOT_FINALIZED, graph._what, "it is not finalized", "Call finalize() first.")
        return self.driver.get_binary()

    @shielded
    def prepare_offline(self) -> bytes:
        """Return the context's binary from graphs that are not finalized, without allocating execution memory."""
        self._check()
        return self.driver.get_binary()

    @shielded(release=_free_all)
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
        checked = [mem.checked(f"memory descriptor {index}", descriptor) for index, descriptor in enumerate(items)]
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
            raise QnnError(
                Code.MEM_INVALID_HANDLE,
                f"memory handles {refused} of the list",
                "they are not registered in this context",
                "The others were deregistered.",
            )

    def _tensors_like(self, descriptors: Iterable[MemDescriptor]) -> str:
        """List the inputs and outputs of the graphs that memory may be for, by type and dimensions: it has no name."""
        shapes = {(each.dtype, tuple(each.dims)) for each in descriptors}
        graphs = [graph.driver.graph for graph in self.graphs.values()]
        tensors = [tensor for graph in graphs for tensor in (*graph.inputs, *graph.outputs)]
        names = (f"'{tensor.name}'" for tensor in tensors if (tensor.dtype, tuple(tensor.dims)) in shapes)
        return " or ".join(dict.fromkeys(names))

    def _add(self, graph: ir.Graph) -> QnnGraph:
        """Create a graph in the driver and its handle, or neither."""
        try:
            return QnnGraph(self, self.driver.create_graph(graph))
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
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph {name!r}", "a graph's name is a text that is not empty")
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
        if self._device is not None:
            self._device.contexts.discard(self)


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, f"model {path!r}", "must be a path")
    return Path(path)
