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

from isthmus.cabi.client import BadPointer, read_array
from isthmus.cabi.objects import PropertyAnswer
from isthmus.cabi.tables import ARGUMENTS, BACKEND_FUNCTIONS, CORE_VERSION, FunctionTable, Interface
from isthmus.cabi.tensors import check_dense, tensor_fields
from isthmus.cabi.types import (
    SCALAR_FIELDS,
    OpConfig,
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
# Argument types of a function that is not supported; it ignores its arguments, however many there are.
_UNUSED = [ctypes.c_void_p] * 6


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

    def describe_node(self, config: OpConfig) -> NodeEntry:
        """Return a node on tensors that were created before, as it is recorded."""
        node = config.v1
        name = _text(node.name, "node")

        def names(tensors: Any, count: int) -> tuple[str, ...]:
            """Return the names of the node's inputs or outputs; an optional input that is left out has none."""
            operands = []
            for tensor in _list(tensors, count, f"tensors of node '{name}'"):
                recorded = self.tensors.get(tensor.v1.id)
                if recorded is None and tensor.v1.type != TensorKind.NULL:
                    rule = f"its tensor {tensor.v1.id} was not created in graph '{self.name}'"
                    raise QnnError(Code.GRAPH_INVALID_TENSOR, f"node '{name}'", rule)
                operands.append("" if recorded is None else recorded.name)
            return tuple(operands)

        params = _list(node.params, node.numOfParams, f"parameters of node '{name}'")
        return NodeEntry(
            name,
            _text(node.typeName, f"operation of node '{name}'"),
            names(node.inputTensors, node.numOfInputs),
            names(node.outputTensors, node.numOfOutputs),
            dict(self._param(name, param) for param in params),
            package=_text(node.packageName, f"package of node '{name}'"),
            kinds={
                _text(param.name, "parameter"): param.scalarParam.dataType
                for param in params
                if param.paramType == ParamType.SCALAR
            },
        )

    def add_node(self, config: OpConfig, described: NodeEntry) -> None:
        """Record a node that `describe_node` has described."""
        node = config.v1
        operands = ((node.inputTensors, node.numOfInputs), (node.outputTensors, node.numOfOutputs))
        for tensor in (each for tensors, count in operands for each in _list(tensors, count, "its tensors")):
            recorded = self.tensors.get(tensor.v1.id)
            if recorded is not None and tensor.v1.memType == TensorMemType.MEMHANDLE:
                # A client may announce registered memory when it creates a tensor, or later with a node.
                self.tensors[tensor.v1.id] = replace(recorded, mem_type=int(TensorMemType.MEMHANDLE))
        self.nodes.append(described)

    def _param(self, node: str, param: Param) -> tuple[str, Scalar | ComposedTensor]:
        """Copy a parameter of a node: its name and value. A tensor without data refers to one created before."""
        name = _text(param.name, "parameter")
        if param.paramType == ParamType.TENSOR:
            tensor = Tensor.from_buffer_copy(param.tensorParam)
            created = self.tensors.get(tensor.v1.id) if not tensor.v1.clientBuf.data else None
            # A parameter is a constant, whatever its type; an undefined memory type means RAW.
            tensor.v1.type = TensorKind.STATIC
            if tensor.v1.memType == TensorMemType.UNDEFINED:
                tensor.v1.memType = TensorMemType.RAW
            return name, created or composed_tensor(tensor, "" if tensor.v1.name else self._fresh(f"{node}.{name}"))
        scalar = param.scalarParam
        field_name = SCALAR_FIELDS.get(scalar.dataType)
        if field_name is None:
            rule = f"its data type {scalar.dataType:#06x} is not a data type of a scalar"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"parameter '{name}'", rule)
        value = getattr(scalar, field_name)
        if field_name == "bool8Value":
            return name, bool(value)
        return name, value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else value

    def _fresh(self, name: str) -> str:
        """Return a name for a parameter's tensor that has none: derived from `name`, and no other tensor's."""
        taken = {each.name for each in self.tensors.values()}
        numbered = f"{name}.{len(self.nodes)}"
        while numbered in taken:
            numbered += "_"
        return numbered


class Recorder:
    """The backend: `interface` is the interface for clients, `table` the functions alone.

    A method called ``_`` and the name of a function of the table implements that function. It takes the function's
    arguments and raises `QnnError` for an error code. Functions without a method answer that they are not supported.
    """

    def __init__(self) -> None:
        self.table = FunctionTable()
        # The first error.
        self.problem: QnnError | None = None
        self._graphs: dict[int, Recording] = {}
        # The handle of the last graph; any number but 0 will do.
        self._handle = 0x1000
        # Keeps the functions of the table alive.
        self._callbacks: list[Any] = []
        for name in BACKEND_FUNCTIONS:
            method = getattr(self, f"_{name}", None)
            arguments = ARGUMENTS[name] if method is not None else _UNUSED
            callback = ctypes.CFUNCTYPE(ctypes.c_uint64, *arguments)(self._guard(name, method))
            self._callbacks.append(callback)
            setattr(self.table, name, ctypes.cast(callback, ctypes.c_void_p).value)

    @property
    def interface(self) -> Interface:
        """The interface that a library with this backend would provide."""
        version = Version(*CORE_VERSION)
        # 6 is HTP's backend id.
        return Interface(6, b"RECORDER_ISTHMUS", version, Version(5, 0, 0), self.table)

    @property
    def graphs(self) -> list[GraphEntry]:
        """The graphs composed so far, in order."""
        return [recording.entry for recording in self._graphs.values()]

    def _guard(self, name: str, method: Callable[..., None] | None) -> Callable[..., int]:
        """Return a function that calls a method, turns its exceptions into error codes and keeps the first."""

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
        """Ignore the configs: they are for the backend that executes the graph later."""
        self._graph(graph)

    def _graphCreate(self, context: int, name: bytes, configs: Any, out: Any) -> None:
        """Record a graph, and write its handle to `out`."""
        text = _text(name, "graph")
        if any(recording.name == text for recording in self._graphs.values()):
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{text}'", "that name is taken")
        self._handle += 16
        self._graphs[self._handle] = Recording(text)
        out[0] = self._handle

    def _tensorCreateGraphTensor(self, graph: int, tensor: Any) -> None:
        """Record a tensor, and write its id into the client's structure."""
        recording = self._graph(graph)
        tensor_id = len(recording.tensors) + 1
        recording.tensors[tensor_id] = composed_tensor(tensor[0])
        tensor[0].v1.id = tensor_id

    def _graphAddNode(self, graph: int, config: OpConfig) -> None:
        """Record a node on tensors that were created before."""
        recording = self._graph(graph)
        recording.add_node(config, recording.describe_node(config))

    def _graph(self, handle: int) -> Recording:
        """Return the graph of a handle."""
        recording = self._graphs.get(handle)
        if recording is None:
            raise QnnError(Code.GRAPH_INVALID_HANDLE, f"graph {handle}", "there is no such graph")
        return recording


def _text(value: bytes | None, what: str) -> str:
    """Return a C string as text; refuse a null pointer as the name of `what`."""
    if value is None:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it has no name")
    return value.decode("utf-8", "replace")


def _list(pointer: Any, count: int, what: str) -> list[Any]:
    """Return the items of a C array; refuse a null pointer and a count that cannot be right."""
    if count > MAX_LIST or (count and not pointer):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"{count} of them cannot be")
    return pointer[:count] if count else []


def composed_tensor(tensor: Tensor, name: str = "") -> ComposedTensor:
    """Copy a tensor's description, with its data if it is a constant or the initial value of a state."""
    name = name or _text(tensor.v1.name, "tensor")
    try:
        fields = tensor_fields(tensor)
        check_dense(f"tensor '{fields.name}'", fields.data_format)
        is_static = fields.type == TensorKind.STATIC
        if is_static and (fields.mem_type != TensorMemType.RAW or (fields.nbytes and not fields.data)):
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{name}'", "a STATIC tensor needs its data")
        data = None
        is_state = fields.type == TensorKind.APP_READWRITE
        if is_static or (is_state and fields.mem_type == TensorMemType.RAW and fields.data):
            data = read_array(fields.data, np.uint8, (fields.nbytes,)).data.toreadonly()
    except BadPointer as problem:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{name}'", str(problem)) from None
    encoding = None if fields.encoding is None else EncodingEntry(**vars(fields.encoding))
    return ComposedTensor(name, fields.type, fields.dtype, fields.dims, encoding, data, fields.mem_type)
