"""A backend that only records the graphs that a client composes on its function table, as data.

QNN's readers of DLCs and compiled model libraries compose graphs by calling a table of C functions. This is such a
table. Data from the client is copied before the call returns, as QNN promises. An invalid structure is answered with an
error code, as far as it can be detected; an invalid pointer to a list or a name ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isthmus.cabi import ARGUMENTS, BACKEND_FUNCTIONS, CORE_VERSION, FunctionTable, Interface, OpConfig
from isthmus.cabi.client import BadPointer, read_array
from isthmus.cabi.objects import PropertyAnswer
from isthmus.cabi.tensors import tensor_fields
from isthmus.cabi.types import (
    SCALAR_FIELDS,
    Param,
    ParamType,
    Tensor,
    TensorKind,
    TensorMemType,
    Version,
)
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar

MAX_LIST = 1 << 16
"""Maximum number of tensors or parameters of one node."""
_UNUSED = [ctypes.c_void_p] * 6
"""Parameters of a function that are ignored."""


@dataclass
class Recording:
    """A graph during composition: its tensors by id, its nodes."""

    name: str
    tensors: dict[int, ComposedTensor] = field(default_factory=dict)
    nodes: list[NodeEntry] = field(default_factory=list)

    @property
    def entry(self) -> GraphEntry:
        """The graph as composed so far."""
        return GraphEntry(self.name, tuple(self.tensors.values()), tuple(self.nodes))


class Recorder:
    """The backend: `interface` is the interface for clients, `table` the functions alone."""

    def __init__(self) -> None:
        self.table = FunctionTable()
        self.problem: QnnError | None = None
        """The first error."""
        self._graphs: dict[int, Recording] = {}
        self._handle = 0x1000
        self._kept: list[Any] = []
        for name in BACKEND_FUNCTIONS:
            method = getattr(self, f"_{name}", None)
            arguments = ARGUMENTS[name] if method is not None else _UNUSED
            callback = ctypes.CFUNCTYPE(ctypes.c_uint64, *arguments)(self._guarded(name, method))
            self._kept.append(callback)
            setattr(self.table, name, ctypes.cast(callback, ctypes.c_void_p).value)

    @property
    def interface(self) -> Interface:
        """The interface that a library with this backend would provide."""
        version = Version(*CORE_VERSION)
        return Interface(6, b"RECORDER_ISTHMUS", version, Version(5, 0, 0), self.table)

    @property
    def graphs(self) -> list[GraphEntry]:
        """The graphs composed so far, in order."""
        return [recording.entry for recording in self._graphs.values()]

    def _guarded(self, name: str, method: Callable[..., None] | None) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            if method is None:
                return PropertyAnswer.NOT_SUPPORTED
            try:
                method(*arguments)
                return 0
            except QnnError as error:
                self.problem = self.problem or error
                return int(error.code)
            except Exception as error:  # no exception may cross into C
                self.problem = self.problem or QnnError(Code.COMMON_GENERAL, name, f"{type(error).__name__}: {error}")
                return int(Code.COMMON_GENERAL)

        return call

    def _backendValidateOpConfig(self, backend: int, config: OpConfig) -> None:
        """Accept every node: unsupported operations are reported later for the whole graph."""

    def _graphSetConfig(self, graph: int, configs: Any) -> None:
        self._graph(graph)

    def _graphCreate(self, context: int, name: bytes, configs: Any, out: Any) -> None:
        text = _text(name, "graph")
        if any(recording.name == text for recording in self._graphs.values()):
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{text}'", "that name is taken")
        self._handle += 16
        self._graphs[self._handle] = Recording(text)
        out[0] = self._handle

    def _tensorCreateGraphTensor(self, graph: int, tensor: Any) -> None:
        recording = self._graph(graph)
        number = len(recording.tensors) + 1
        recording.tensors[number] = _tensor(tensor[0])
        tensor[0].v1.id = number

    def _graphAddNode(self, graph: int, config: OpConfig) -> None:
        recording, node = self._graph(graph), config.v1
        name = _text(node.name, "node")

        def names(tensors: Any, count: int) -> tuple[str, ...]:
            found = []
            for tensor in _listed(tensors, count, f"tensors of node '{name}'"):
                known = recording.tensors.get(tensor.v1.id)
                if known is None and tensor.v1.type != TensorKind.NULL:
                    rule = f"its tensor {tensor.v1.id} was not created in graph '{recording.name}'"
                    raise QnnError(Code.GRAPH_INVALID_TENSOR, f"node '{name}'", rule)
                if known is not None and tensor.v1.memType == TensorMemType.MEMHANDLE:
                    # A client may announce registered memory when it creates a tensor, or later with a node.
                    recording.tensors[tensor.v1.id] = replace(known, mem_type=int(TensorMemType.MEMHANDLE))
                found.append("" if known is None else known.name)
            return tuple(found)

        params = dict(_param(param) for param in _listed(node.params, node.numOfParams, f"parameters of node '{name}'"))
        recording.nodes.append(
            NodeEntry(
                name,
                _text(node.typeName, f"operation of node '{name}'"),
                names(node.inputTensors, node.numOfInputs),
                names(node.outputTensors, node.numOfOutputs),
                params,
                package=_text(node.packageName, f"package of node '{name}'"),
            )
        )

    def _graph(self, handle: int) -> Recording:
        recording = self._graphs.get(handle)
        if recording is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"graph {handle}", "there is no such graph")
        return recording


def _text(value: bytes | None, what: str) -> str:
    if value is None:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it has no name")
    return value.decode("utf-8", "replace")


def _listed(pointer: Any, count: int, what: str) -> list[Any]:
    if count > MAX_LIST or (count and not pointer):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"{count} of them cannot be")
    return pointer[:count] if count else []


def _tensor(tensor: Tensor) -> ComposedTensor:
    """Copy a tensor's whole description."""
    name = _text(tensor.v1.name, "tensor")
    try:
        given = tensor_fields(tensor)
        is_static = given.type == TensorKind.STATIC
        if is_static and (given.mem_type != TensorMemType.RAW or (given.nbytes and not given.data)):
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{name}'", "a STATIC tensor needs its data")
        data = None
        if is_static or (given.type == TensorKind.APP_READWRITE and given.mem_type == TensorMemType.RAW and given.data):
            data = read_array(given.data, np.uint8, (given.nbytes,)).data.toreadonly()
    except BadPointer as problem:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{name}'", str(problem)) from None
    encoding = None if given.encoding is None else EncodingEntry(**vars(given.encoding))
    return ComposedTensor(name, given.type, given.dtype, given.dims, encoding, data, given.mem_type)


def _param(param: Param) -> tuple[str, Scalar | ComposedTensor]:
    name = _text(param.name, "parameter")
    if param.paramType == ParamType.TENSOR:
        return name, _tensor(param.tensorParam)
    scalar = param.scalarParam
    held = SCALAR_FIELDS.get(scalar.dataType)
    if held is None:
        rule = f"its data type {scalar.dataType:#06x} is not a data type of a scalar"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"parameter '{name}'", rule)
    value = getattr(scalar, held)
    if held == "bool8Value":
        return name, bool(value)
    return name, value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else value
