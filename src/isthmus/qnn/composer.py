"""Composition of graphs from data, by calling a table of QNN's functions as QNN's own readers do.

It is the inverse of `recorder`: any library that implements QNN's functions can be given the graphs of a DLC. Data that
is passed to the library stays valid as long as the composer lives.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace
from typing import Any

from isthmus.cabi.objects import PROPERTY_TENSOR_SUPPORT_RETRIEVE_RAW
from isthmus.cabi.tables import FunctionTable, function
from isthmus.cabi.types import Tensor, TensorKind
from isthmus.cabi.writer import Keeps, write_node, write_tensor
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry, Scalar


@dataclass(frozen=True)
class ComposedGraph:
    """A graph created in a library: its handle there, and the descriptions of its inputs and outputs with their ids."""

    name: str
    handle: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Composer:
    """A composer of graphs in a library's context."""

    def __init__(self, table: FunctionTable, backend: int, context: int) -> None:
        self._backend, self._context = backend, context
        self._functions = {
            name: function(table, name)
            for name in (
                "propertyHasCapability", "graphCreate", "tensorCreateGraphTensor", "backendValidateOpConfig",
                "graphAddNode",
            )
        }  # fmt: skip
        # What the C structures point to.
        self.keeps: Keeps = []

    def compose(self, graph: GraphEntry, configs: Any = None) -> ComposedGraph:
        """Compose a graph without finalizing it.

        - `configs`: The argument of ``graphCreate``: a null-terminated list of pointers.
        """
        # QNN's reader queries this first; the result is not used here.
        self._functions["propertyHasCapability"](PROPERTY_TENSOR_SUPPORT_RETRIEVE_RAW)
        handle = ctypes.c_void_p()
        self._call(f"graph '{graph.name}'", "graphCreate", self._context, graph.name.encode(), configs,
                   ctypes.byref(handle))  # fmt: skip
        composition = _Graph(self, graph, handle)
        inputs = composition.create_tensors(TensorKind.APP_WRITE)
        outputs = composition.create_tensors(TensorKind.APP_READ)
        for node in graph.nodes:
            composition.add(node)
        return ComposedGraph(graph.name, handle.value or 0, inputs, outputs)

    def _call(self, what: str, name: str, *arguments: Any) -> None:
        """Call the library's function `name`; `what` is the graph, node or tensor for messages."""
        error = self._functions[name](*arguments)
        if error:
            # QNN's error codes have 16 bits; a library may put its own number above them.
            codes = {int(code): code for code in Code}
            code = codes.get(error & 0xFFFF, Code.COMMON_GENERAL)
            raise QnnError(code, what, f"{name} answers {error}")


class _Graph:
    """One graph during composition."""

    def __init__(self, composer: Composer, graph: GraphEntry, handle: ctypes.c_void_p) -> None:
        self._composer, self._graph, self._handle = composer, graph, handle
        self._entries = {entry.name: entry for entry in graph.tensors}
        # The C descriptions of tensors, with the ids that the library has given them.
        self._tensors: dict[str, Tensor] = {}

    def create_tensors(self, kind: TensorKind) -> tuple[Tensor, ...]:
        """Return the tensors of a kind in order, creating those that do not exist yet."""
        return tuple(self._tensor(entry.name) for entry in self._graph.tensors if entry.type == kind)

    def add(self, node: NodeEntry) -> None:
        """Create the tensors of a node that do not exist yet, validate the node and add it."""
        what = f"node '{node.name}' ({node.type})"
        for name in (*node.inputs, *node.outputs):
            if name and name not in self._entries:
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"there is no tensor '{name}'")
            self._tensor(name)
        params = {name: self._param(node.name, name, value) for name, value in node.params.items()}
        config = write_node(replace(node, params=params), self._tensors, self._composer.keeps)
        self._composer._call(what, "backendValidateOpConfig", self._composer._backend, config)
        self._composer._call(what, "graphAddNode", self._handle, config)

    def _tensor(self, name: str) -> Tensor:
        """Return a tensor, creating it at its first use; a tensor that is left out has type NULL and no id."""
        if name not in self._tensors:
            entry = self._entries.get(name)
            if entry is None or entry.type == TensorKind.NULL:
                absent = Tensor()
                absent.version, absent.v1.name, absent.v1.type = 2, name.encode(), TensorKind.NULL
                self._tensors[name] = absent
            else:
                self._tensors[name] = self._create(entry)
        return self._tensors[name]

    def _create(self, entry: ComposedTensor) -> Tensor:
        """Create a tensor in the library, which writes the tensor's id into the description that is returned."""
        description = write_tensor(entry, self._composer.keeps)
        what = f"tensor '{entry.name}'"
        self._composer._call(what, "tensorCreateGraphTensor", self._handle, ctypes.byref(description))
        return description

    def _param(self, node: str, name: str, value: Scalar | ComposedTensor) -> Scalar | ComposedTensor:
        """Return a node's parameter; an array becomes a static tensor of the graph."""
        if not isinstance(value, ComposedTensor):
            return value
        # A tensor of another name is needed if the parameter's own is already taken in the graph.
        taken, free = {*self._entries, *self._tensors}, value.name
        if free in taken:
            free = f"{node}_{name}"
        while free in taken:
            free += "_"
        static = replace(value, name=free, type=TensorKind.STATIC)
        self._tensors[free] = self._create(static)
        return static
