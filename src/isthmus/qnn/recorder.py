"""A back end that only writes down the graphs that a client composes on its function table, as data.

QNN's readers of DLCs and compiled model libraries compose graphs by calling a table of C functions. This is such a
table. What a client hands over is copied before the call returns, as QNN promises. A structure that makes no sense is
answered by an error code, as far as it can be told; a pointer that points nowhere ends the process.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from isthmus.cabi import ARGUMENTS, BACKEND_FUNCTIONS, CORE_VERSION, FunctionTable, Interface, OpConfig
from isthmus.cabi.objects import PropertyAnswer
from isthmus.cabi.types import (
    SCALAR_FIELDS,
    Definition,
    Param,
    ParamType,
    QuantizationEncoding,
    QuantizeParams,
    Tensor,
    TensorKind,
    TensorMemType,
    Version,
)
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar

MAX_RANK = 16
MAX_LIST = 1 << 16
"""The most tensors or parameters of one node."""
MAX_SCALES = 1 << 24
"""The most channels of one encoding: as many as `isthmus.capi.values` reads."""
_DENSE = 0
_PAIR = np.dtype([("scale", np.float32), ("offset", np.int32)])
"""Qnn_ScaleOffset_t, as an array has it."""
_UNUSED = [ctypes.c_void_p] * 6
"""What a function takes that is not looked at."""


@dataclass
class Recording:
    """A graph that is being composed: its tensors by id, its nodes."""

    name: str
    tensors: dict[int, ComposedTensor] = field(default_factory=dict)
    nodes: list[NodeEntry] = field(default_factory=list)

    @property
    def entry(self) -> GraphEntry:
        """The graph as it stands."""
        return GraphEntry(self.name, tuple(self.tensors.values()), tuple(self.nodes))


class Recorder:
    """The back end; `interface` is what a client asks for, `table` the functions alone."""

    def __init__(self) -> None:
        self.table = FunctionTable()
        self.problem: QnnError | None = None
        """The first thing that was refused, and why."""
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
        """What a library with this back end would provide."""
        version = Version(*CORE_VERSION)
        return Interface(6, b"RECORDER_ISTHMUS", version, Version(5, 0, 0), self.table)

    @property
    def graphs(self) -> list[GraphEntry]:
        """The graphs composed so far, in their order."""
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
            except Exception as error:  # nothing may cross into C
                self.problem = self.problem or QnnError(Code.COMMON_GENERAL, name, f"{type(error).__name__}: {error}")
                return int(Code.COMMON_GENERAL)

        return call

    def _backendValidateOpConfig(self, backend: int, config: OpConfig) -> None:
        """Everything passes: what cannot be had is told of the whole graph, later."""

    def _graphSetConfig(self, graph: int, configs: Any) -> None:
        self._graph(graph)

    def _graphCreate(self, context: int, name: bytes, configs: Any, out: Any) -> None:
        text = _text(name, "graph")
        if any(recording.name == text for recording in self._graphs.values()):
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{text}'", "there is one of that name")
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
                    # The hint may come with the tensor or with a node.
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
    """A copy of all that a tensor says."""
    if tensor.version not in (1, 2):
        rule = f"its version {tensor.version} is neither 1 nor 2"
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, "tensor", rule)
    told = tensor.v1
    name = _text(told.name, "tensor")
    if told.rank > MAX_RANK or (told.rank and not told.dimensions):
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{name}'", f"its rank {told.rank} cannot be")
    _check_form(tensor, name)
    data = None
    if told.type == TensorKind.STATIC:
        buffer = told.clientBuf
        if told.memType != TensorMemType.RAW or (buffer.dataSize and not buffer.data):
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{name}'", "a STATIC tensor needs its data")
        data = memoryview(_copied(buffer.data, buffer.dataSize))
    elif told.type == TensorKind.APP_READWRITE and told.memType == TensorMemType.RAW and told.clientBuf.data:
        data = memoryview(_copied(told.clientBuf.data, told.clientBuf.dataSize))
    dims = tuple(told.dimensions[: told.rank]) if told.rank else ()
    encoding = _encoding(told.quantizeParams, name)
    return ComposedTensor(name, told.type, told.dataType, dims, encoding, data, told.memType)


def _check_form(tensor: Tensor, name: str) -> None:
    """Refuse what a graph here cannot have, and what would be lost by not looking."""
    told, code = tensor.v2, Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
    if told.dataFormat != _DENSE:
        raise QnnError(code, f"tensor '{name}'", f"its data format {told.dataFormat} is not dense")
    if tensor.version == 2 and told.isDynamicDimensions and any(told.isDynamicDimensions[: told.rank]):
        raise QnnError(code, f"tensor '{name}'", "it has dynamic dimensions")


def _copied(address: int | None, nbytes: int) -> bytes:
    """A copy of bytes of a client's, 2 GiB and more of them too."""
    return bytes((ctypes.c_ubyte * nbytes).from_address(address)) if address and nbytes else b""


def _array(pointer: Any, dtype: Any, count: int, what: str) -> np.ndarray:
    """A copy of so many numbers of a client's."""
    if count > MAX_SCALES or (count and not pointer):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"{count} of them cannot be")
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    return np.frombuffer(_copied(address, count * np.dtype(dtype).itemsize), dtype)


def _encoding(told: QuantizeParams, name: str) -> EncodingEntry | None:
    """The encoding of a tensor; of a form that is not understood its number alone."""
    if told.encodingDefinition != Definition.DEFINED:
        return None
    kind = told.quantizationEncoding
    what = f"scales of tensor '{name}'"
    scales, offsets = np.empty(0, np.float32), np.empty(0, np.int32)
    axis, bits = None, 0
    if kind == QuantizationEncoding.SCALE_OFFSET:
        one = told.scaleOffsetEncoding
        scales, offsets = np.array([one.scale], np.float32), np.array([one.offset], np.int32)
    elif kind == QuantizationEncoding.AXIS_SCALE_OFFSET:
        along = told.axisScaleOffsetEncoding
        pairs = _array(along.scaleOffset, _PAIR, along.numScaleOffsets, what)
        axis, scales, offsets = along.axis, pairs["scale"], pairs["offset"]
    elif kind == QuantizationEncoding.BW_SCALE_OFFSET:
        few = told.bwScaleOffsetEncoding
        scales, offsets = np.array([few.scale], np.float32), np.array([few.offset], np.int32)
        bits = few.bitwidth
    elif kind == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
        many = told.bwAxisScaleOffsetEncoding
        axis, bits = many.axis, many.bitwidth
        scales = _array(many.scales, np.float32, many.numElements, what)
        offsets = np.zeros(len(scales), np.int32)
        if many.offsets:
            offsets = _array(many.offsets, np.int32, many.numElements, what)
    return EncodingEntry(scales, offsets, axis, bits, kind)


def _param(param: Param) -> tuple[str, Scalar | ComposedTensor]:
    name = _text(param.name, "parameter")
    if param.paramType == ParamType.TENSOR:
        return name, _tensor(param.tensorParam)
    scalar = param.scalarParam
    held = SCALAR_FIELDS.get(scalar.dataType)
    if held is None:
        rule = f"its data type {scalar.dataType:#06x} is none of a scalar's"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"parameter '{name}'", rule)
    value = getattr(scalar, held)
    if held == "bool8Value":
        return name, bool(value)
    return name, value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else value
