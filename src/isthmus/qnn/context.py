"""A context: graphs and memory handles that live and end together (QnnContext_*, QnnMem_*)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from isthmus import graph as ir
from isthmus.backends.driver import MemDescriptor
from isthmus.binary import ContextBinary, Source, to_bytes
from isthmus.errors import Code, QnnError
from isthmus.qnn.asynchronous import ExecutionQueue
from isthmus.qnn.backend import Backend
from isthmus.qnn.device import Device
from isthmus.qnn.graph import Graph
from isthmus.qnn.handle import Handle
from isthmus.qnn.mem import MemHandle


class Context(Handle):
    """A context (QnnContext_create). Freeing it frees its graphs and memory handles.

    Parameters
    ----------
    backend
        Where its graphs run.
    configs
        Custom configs by option.
    device
        The device to run on; the backend's only one without it.
    binary
        A context binary to take the graphs from: a file, or the contents of one.
    """

    invalid = Code.CONTEXT_INVALID_HANDLE

    def __init__(
        self,
        backend: Backend,
        configs: Mapping[int, Any] | None = None,
        device: Device | None = None,
        binary: Source | None = None,
    ) -> None:
        backend._check()
        if device is not None:
            device._check()
            if device.backend is not backend:
                raise QnnError(Code.CONTEXT_INVALID_ARGUMENT, "context", "its device belongs to another backend")
        self.driver = backend.driver.create_context(
            {int(k): v for k, v in (configs or {}).items()}, None if device is None else device.driver
        )
        super().__init__(f"context of {backend._what}", backend)
        self.backend = backend
        self._device = device
        if device is not None:
            device.contexts.add(self)
        self.graphs: dict[str, Graph] = {}
        """The graphs by name."""
        self.executions = ExecutionQueue()
        """Its asynchronous executions."""
        if binary is not None:
            try:
                self._restore(binary)
            except BaseException:
                self.free()
                raise

    def get_property(self, option: int) -> Any:
        """A custom property (QnnContext_getProperty)."""
        self._check()
        return self.driver.get_property(int(option))

    def set_config(self, option: int, value: Any) -> None:
        """A custom config (QnnContext_setConfig)."""
        self._check()
        self.driver.set_config(int(option), value)

    def create_graph(self, name: str) -> Graph:
        """An empty graph (QnnGraph_create)."""
        self._check()
        self._check_name(name)
        return self._add(ir.Graph(name))

    def compose(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Mapping[str, Any] | None = None,
        mem_type: ir.MemType = ir.MemType.RAW,
    ) -> Graph:
        """A graph with the contents of a model file, as QNN's converters compose one.

        Parameters
        ----------
        path
            A ``.tflite`` or ``.onnx`` file.
        name
            The graph's name; the file's without it.
        shapes, constants
            Dimensions of dynamic inputs, and values of inputs that are to be fixed.
        mem_type
            The memory type that all inputs and outputs are prepared for.
        """
        self._check()
        from isthmus.frontends import load

        graph = load(os.fspath(path), shapes, constants)
        graph.name = name or graph.name
        self._check_name(graph.name)
        for tensor in (*graph.inputs, *graph.outputs):
            tensor.mem_type = mem_type
        return self._add(graph)

    def retrieve(self, name: str) -> Graph:
        """A graph by name (QnnGraph_retrieve)."""
        self._check()
        if name not in self.graphs:
            known = ", ".join(f"'{known}'" for known in self.graphs) or "none"
            raise QnnError(Code.GRAPH_DOES_NOT_EXIST, f"graph '{name}'", f"the context has {known}")
        return self.graphs[name]

    def get_binary_size(self) -> int:
        """The size of the context's binary (QnnContext_getBinarySize)."""
        return len(self.get_binary())

    def get_binary(self) -> bytes:
        """The context with all its graphs, to be created again from (QnnContext_getBinary)."""
        self._check()
        for graph in self.graphs.values():
            if not graph.finalized:
                raise QnnError(
                    Code.CONTEXT_GET_BINARY_FAILED, graph._what, "it is not finalized", "Call finalize() first."
                )
        return to_bytes(self.driver.graph_binaries(), self.backend.name, self.backend.get_build_id())

    def mem_register(self, descriptors: Iterable[MemDescriptor]) -> list[MemHandle]:
        """Register memory (QnnMem_register): all of it, or none."""
        self._check()
        descriptors = list(descriptors)
        if not descriptors:
            raise QnnError(Code.MEM_INVALID_ARGUMENT, "memory registration", "no descriptors are given")
        return [MemHandle(self, registration) for registration in self.driver.register(descriptors)]

    def mem_deregister(self, handles: Iterable[MemHandle]) -> None:
        """Deregister memory (QnnMem_deRegister): every valid handle of the list, even if another is refused."""
        self._check()
        refused = []
        for index, handle in enumerate(handles):
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

    def _add(self, graph: ir.Graph) -> Graph:
        handle = Graph(self, self.driver.create_graph(graph))
        self.graphs[graph.name] = handle
        return handle

    def _restore(self, source: Source) -> None:
        with ContextBinary(source) as binary:
            if binary.info.backend != self.backend.name:
                raise QnnError(
                    Code.CONTEXT_CREATE_FROM_BINARY,
                    "context binary",
                    f"it was made for backend '{binary.info.backend}', not for '{self.backend.name}'",
                )
            for driver in self.driver.restore(binary):
                self.graphs[driver.graph.name] = Graph(self, driver)

    def _check_name(self, name: str) -> None:
        if name in self.graphs:
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{name}'", "the context has one of that name")

    def _end(self) -> None:
        self.executions.close()
        super()._end()

    def _release(self) -> None:
        self.driver.close()
        if self._device is not None:
            self._device.contexts.discard(self)
