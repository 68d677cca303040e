"""Composition of graphs from data, by calling a table of QNN's functions as QNN's own readers do.

It is the inverse of `recorder`: any library that implements QNN's functions can be given the graphs of a DLC. Data that
is passed to the library stays valid as long as the composer lives.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.cabi.tables import FunctionTable, function
from isthmus.cabi.types import (
    DATATYPE_STRING,
    SCALAR_FIELDS,
    AxisScaleOffset,
    BlockEncoding,
    BlockwiseExpansion,
    BwAxisScaleOffset,
    BwScaleOffset,
    Definition,
    OpConfig,
    Param,
    ParamType,
    QuantizationEncoding,
    QuantizeParams,
    ScaleOffset,
    Tensor,
    TensorKind,
    TensorMemType,
)
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar

RETRIEVE_RAW = 516
"""The capability that QNN's reader queries first; the result is not used here."""
# Qnn_DataType_t of scalars.
_BOOL, _FLOAT, _UINT, _INT, _UINT_64, _INT_64 = 0x0508, 0x0232, 0x0132, 0x0032, 0x0164, 0x0064
_MAX_UINT32 = 0xFFFFFFFF


@dataclass(frozen=True)
class ComposedGraph:
    """A graph created in a library: its handle there, and the descriptions of its inputs and outputs with their ids."""

    name: str
    handle: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Composer:
    """A composer of graphs in a library's context.

    Parameters
    ----------
    table
        The library's functions.
    backend, context
        The handles that the library has returned.
    """

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
        self._kept: list[Any] = []

    def compose(self, graph: GraphEntry, configs: Any = None) -> ComposedGraph:
        """Compose a graph without finalizing it.

        Parameters
        ----------
        graph
            The graph as data: tensors and nodes.
        configs
            The argument of ``graphCreate``: a null-terminated list of pointers.

        Raises
        ------
        QnnError
            With the error code of the library's function, and the name of what it was called for.
        """
        self._functions["propertyHasCapability"](RETRIEVE_RAW)
        handle = ctypes.c_void_p()
        self._call(f"graph '{graph.name}'", "graphCreate", self._context, graph.name.encode(), configs,
                   ctypes.byref(handle))  # fmt: skip
        composition = _Graph(self, graph, handle)
        inputs = composition.created(TensorKind.APP_WRITE)
        outputs = composition.created(TensorKind.APP_READ)
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

    def keep(self, thing: Any) -> Any:
        """Keep an object alive as long as this composer."""
        self._kept.append(thing)
        return thing


class _Graph:
    """One graph during composition.

    Parameters
    ----------
    composer
        Calls the library, and keeps what the library is passed.
    graph
        The graph as data.
    handle
        The library's handle of the graph that it has created.
    """

    def __init__(self, composer: Composer, graph: GraphEntry, handle: ctypes.c_void_p) -> None:
        self._composer, self._graph, self._handle = composer, graph, handle
        self._entries = {entry.name: entry for entry in graph.tensors}
        # The C descriptions of tensors, with the ids that the library has given them.
        self._tensors: dict[str, Tensor] = {}

    def created(self, kind: TensorKind) -> tuple[Tensor, ...]:
        """Return the tensors of a kind in order, creating those that do not exist yet."""
        return tuple(self._tensor(entry.name) for entry in self._graph.tensors if entry.type == kind)

    def add(self, node: NodeEntry) -> None:
        """Create the tensors of a node that do not exist yet, validate the node and add it."""
        what = f"node '{node.name}' ({node.type})"
        inputs = self._operands(what, node.inputs)
        outputs = self._operands(what, node.outputs)
        params = [self._param(node, name, value) for name, value in node.params.items()]
        config = OpConfig()
        config.version = 1
        v1 = config.v1
        v1.name, v1.packageName, v1.typeName = node.name.encode(), node.package.encode(), node.type.encode()
        v1.numOfParams, v1.params = len(params), self._array(Param, params)
        v1.numOfInputs, v1.inputTensors = len(inputs), self._array(Tensor, inputs)
        v1.numOfOutputs, v1.outputTensors = len(outputs), self._array(Tensor, outputs)
        self._composer._call(what, "backendValidateOpConfig", self._composer._backend, config)
        self._composer._call(what, "graphAddNode", self._handle, config)

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        """Return a C array that lives as long as the composer; None (a null pointer) if there are no items."""
        return self._composer.keep((kind * len(items))(*items)) if items else None

    def _operands(self, what: str, names: Sequence[str]) -> list[Tensor]:
        """Return the inputs or outputs of a node; an empty name is an optional input that is left out."""
        for name in names:
            if name and name not in self._entries:
                raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"there is no tensor '{name}'")
        return [self._tensor(name) for name in names]

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
        description = self._composer.keep(tensor(entry, self._composer))
        what = f"tensor '{entry.name}'"
        self._composer._call(what, "tensorCreateGraphTensor", self._handle, ctypes.byref(description))
        return description

    def _param(self, node: NodeEntry, name: str, value: Scalar | ComposedTensor) -> Param:
        """Return the C description of a node's parameter; an array becomes a static tensor of the graph."""
        param = Param()
        param.name = name.encode()
        if isinstance(value, ComposedTensor):
            # A tensor of another name is needed if the parameter's own is already taken in the graph.
            taken, free = {*self._entries, *self._tensors}, value.name
            if free in taken:
                free = f"{node.name}_{name}"
            while free in taken:
                free += "_"
            static = ComposedTensor(free, TensorKind.STATIC, value.dtype, value.dims, value.encoding, value.data)
            param.paramType, param.tensorParam = ParamType.TENSOR, self._create(static)
            self._tensors[free] = param.tensorParam
            return param
        kind = node.kinds.get(name) or _kind(value)
        field = SCALAR_FIELDS.get(kind)
        if field is None:
            rule = f"the data type {kind:#06x} of parameter '{name}' is not a data type of a scalar"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"node '{node.name}' ({node.type})", rule)
        param.paramType, param.scalarParam.dataType = ParamType.SCALAR, kind
        setattr(param.scalarParam, field, value.encode() if isinstance(value, str) else value)
        return param


def _kind(value: Scalar) -> int:
    """Choose the data type of a scalar when the file does not declare it."""
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, str):
        return DATATYPE_STRING
    if isinstance(value, float):
        return _FLOAT
    if 0 <= value <= _MAX_UINT32:
        return _UINT
    if -(1 << 31) <= value < 0:
        return _INT
    return _UINT_64 if value > 0 else _INT_64


def tensor(entry: ComposedTensor, keeper: Any) -> Tensor:
    """Return a tensor's C description.

    Parameters
    ----------
    keeper
        An object with a method ``keep`` that keeps alive what the description points to: a `Composer`, say.
    """
    description = Tensor()
    description.version = 2
    fields = description.v2
    fields.name, fields.type, fields.dataType = entry.name.encode(), entry.type, entry.dtype
    fields.rank = len(entry.dims)
    if entry.dims:
        fields.dimensions = keeper.keep((ctypes.c_uint32 * len(entry.dims))(*entry.dims))
    fields.memType = TensorMemType.RAW
    if entry.data is not None:
        if len(entry.data) > _MAX_UINT32:
            rule = f"its {len(entry.data)} bytes are more than QNN's structures hold"
            raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, f"tensor '{entry.name}'", rule)
        if len(entry.data):
            view = keeper.keep(np.frombuffer(entry.data, np.uint8))
            fields.clientBuf.data, fields.clientBuf.dataSize = view.ctypes.data, len(entry.data)
    quantize(fields.quantizeParams, entry.encoding, f"tensor '{entry.name}'", keeper)
    return description


def quantize(params: QuantizeParams, encoding: EncodingEntry | None, what: str, keeper: Any) -> None:
    """Write an encoding into its C description `params`; `what` names the tensor, `keeper` is as for `tensor`."""
    params.encodingDefinition = Definition.UNDEFINED
    params.quantizationEncoding = QuantizationEncoding.UNDEFINED
    if encoding is None:
        return
    if encoding.kind not in range(6) or not len(encoding.scales):
        rule = f"its quantization encoding {encoding.kind} is not supported"
        raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, rule)
    params.encodingDefinition, params.quantizationEncoding = Definition.DEFINED, encoding.kind
    scales, offsets, count = encoding.scales.tolist(), encoding.offsets.tolist(), len(encoding.scales)
    if encoding.kind == QuantizationEncoding.SCALE_OFFSET:
        params.scaleOffsetEncoding = ScaleOffset(scales[0], offsets[0])
    elif encoding.kind == QuantizationEncoding.BW_SCALE_OFFSET:
        params.bwScaleOffsetEncoding = BwScaleOffset(encoding.bits, scales[0], offsets[0])
    elif encoding.kind == QuantizationEncoding.AXIS_SCALE_OFFSET:
        pairs = keeper.keep((ScaleOffset * count)(*map(ScaleOffset, scales, offsets)))
        params.axisScaleOffsetEncoding = AxisScaleOffset(encoding.axis or 0, count, pairs)
    elif encoding.kind == QuantizationEncoding.BLOCK:
        pairs = keeper.keep((ScaleOffset * count)(*map(ScaleOffset, scales, offsets)))
        sizes = keeper.keep((ctypes.c_uint32 * len(encoding.blocks))(*encoding.blocks.tolist()))
        params.blockEncoding = BlockEncoding(sizes, pairs)
    elif encoding.kind == QuantizationEncoding.BLOCKWISE_EXPANSION:
        pairs = keeper.keep((ScaleOffset * count)(*map(ScaleOffset, scales, offsets)))
        factors = encoding.factors.tolist()
        expansion = keeper.keep(BlockwiseExpansion(encoding.axis or 0, pairs, int(encoding.blocks[0]), 4))
        wide = max(factors, default=0) > 255
        expansion.blockScaleStorageType = int(wide)
        kind: Any = ctypes.c_uint16 if wide else ctypes.c_uint8
        setattr(expansion, f"blocksScale{16 if wide else 8}", keeper.keep((kind * len(factors))(*factors)))
        params.blockwiseExpansion = ctypes.pointer(expansion)
    else:
        params.bwAxisScaleOffsetEncoding = BwAxisScaleOffset(
            encoding.bits, encoding.axis or 0, count, keeper.keep((ctypes.c_float * count)(*scales)),
            keeper.keep((ctypes.c_int32 * count)(*offsets)),
        )  # fmt: skip
