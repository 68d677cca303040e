"""C structures of a composed graph, tensors and nodes, for a library that is called.

A structure holds addresses of arrays. Functions that write one append these arrays to a list, which must live until the
library needs it no longer: some libraries read the scales of blocks again when a node is added.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.cabi import types
from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, NodeEntry, Scalar

Keeps = list[Any]
"""What has to stay alive as long as the library may read it."""

# Qnn_DataType_t of scalars.
_BOOL, _FLOAT, _UINT, _INT, _UINT_64, _INT_64 = 0x0508, 0x0232, 0x0132, 0x0032, 0x0164, 0x0064
_MAX_UINT32 = 0xFFFFFFFF
# The bits of a block's factor where the encoding does not say.
_FACTOR_BITS = 4


def write_tensor(entry: ComposedTensor, keeps: Keeps, version: int = 2, number: int = 0) -> types.Tensor:
    """Return a tensor's structure, with its contents if it has any.

    - `number`: The id that the library has given the tensor.
    """
    what = f"tensor '{entry.name}'"
    tensor = types.Tensor()
    keeps.append(tensor)
    tensor.version = version
    # Both versions begin with the same fields.
    fields = tensor.v1
    fields.id, fields.name, fields.type, fields.dataType = number, entry.name.encode(), entry.type, entry.dtype
    fields.rank, fields.dimensions = len(entry.dims), _write_array(ctypes.c_uint32, entry.dims, keeps)
    fields.memType = types.TensorMemType.RAW
    if entry.data is not None and len(entry.data):
        if len(entry.data) > _MAX_UINT32:
            rule = f"its {len(entry.data)} bytes are more than QNN's structures hold"
            raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, rule)
        view = np.frombuffer(entry.data, np.uint8)
        fields.clientBuf.data, fields.clientBuf.dataSize = view.ctypes.data, view.nbytes
        keeps.append(view)
    _write_encoding(fields.quantizeParams, entry.encoding, what, keeps)
    return tensor


def _write_array(kind: Any, items: Sequence[Any], keeps: Keeps) -> Any:
    """Return a C array, or None (a null pointer) if there are no items."""
    if not items:
        return None
    array = (kind * len(items))(*items)
    keeps.append(array)
    return array


def _write_encoding(params: types.QuantizeParams, encoding: EncodingEntry | None, what: str, keeps: Keeps) -> None:
    """Write an encoding into the structure of the tensor that `what` names."""
    params.encodingDefinition = types.Definition.UNDEFINED
    params.quantizationEncoding = types.QuantizationEncoding.UNDEFINED
    if encoding is None:
        return
    if encoding.kind not in range(6) or not len(encoding.scales):
        rule = f"its quantization encoding {encoding.kind} is not supported"
        raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, rule)
    params.encodingDefinition, params.quantizationEncoding = types.Definition.DEFINED, encoding.kind
    kind, axis, bits = encoding.kind, encoding.axis or 0, encoding.bits
    scales, offsets, blocks = encoding.scales.tolist(), encoding.offsets.tolist(), encoding.blocks.tolist()
    if kind == types.QuantizationEncoding.SCALE_OFFSET:
        params.scaleOffsetEncoding = types.ScaleOffset(scales[0], offsets[0])
    elif kind == types.QuantizationEncoding.BW_SCALE_OFFSET:
        params.bwScaleOffsetEncoding = types.BwScaleOffset(bits, scales[0], offsets[0])
    elif kind == types.QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
        arrays = _write_array(ctypes.c_float, scales, keeps), _write_array(ctypes.c_int32, offsets, keeps)
        params.bwAxisScaleOffsetEncoding = types.BwAxisScaleOffset(bits, axis, len(scales), *arrays)
    else:
        pairs = _write_array(types.ScaleOffset, list(map(types.ScaleOffset, scales, offsets)), keeps)
        if kind == types.QuantizationEncoding.AXIS_SCALE_OFFSET:
            params.axisScaleOffsetEncoding = types.AxisScaleOffset(axis, len(scales), pairs)
        elif kind == types.QuantizationEncoding.BLOCK:
            params.blockEncoding = types.BlockEncoding(_write_array(ctypes.c_uint32, blocks, keeps), pairs)
        else:
            factors = encoding.factors.tolist()
            wide = max(factors, default=0) > 255
            array = _write_array(ctypes.c_uint16 if wide else ctypes.c_uint8, factors, keeps)
            expansion = types.BlockwiseExpansion(axis, pairs, blocks[0], bits or _FACTOR_BITS, wide)
            setattr(expansion, f"blocksScale{16 if wide else 8}", array)
            params.blockwiseExpansion = ctypes.pointer(expansion)
            keeps.append(expansion)


def write_node(node: NodeEntry, tensors: Mapping[str, types.Tensor], keeps: Keeps) -> types.OpConfig:
    """Return a node's structure, from the structures of its tensors and of its parameters' tensors, by name."""
    config = types.OpConfig()
    config.version = 1
    fields = config.v1
    fields.name, fields.packageName, fields.typeName = (text.encode() for text in (node.name, node.package, node.type))
    params = [_write_param(node, name, value, tensors) for name, value in node.params.items()]
    fields.numOfParams, fields.params = len(params), _write_array(types.Param, params, keeps)
    inputs, outputs = ([tensors[name] for name in names] for names in (node.inputs, node.outputs))
    fields.numOfInputs, fields.inputTensors = len(inputs), _write_array(types.Tensor, inputs, keeps)
    fields.numOfOutputs, fields.outputTensors = len(outputs), _write_array(types.Tensor, outputs, keeps)
    return config


def _write_param(
    node: NodeEntry, name: str, value: Scalar | ComposedTensor, tensors: Mapping[str, types.Tensor]
) -> types.Param:
    """Return the structure of a node's parameter: one of the tensors, or a scalar."""
    param = types.Param()
    param.name = name.encode()
    if isinstance(value, ComposedTensor):
        param.paramType, param.tensorParam = types.ParamType.TENSOR, tensors[value.name]
        return param
    kind = node.kinds.get(name) or _scalar_type(value)
    field = types.SCALAR_FIELDS.get(kind)
    if field is None:
        rule = f"the data type {kind:#06x} of parameter '{name}' is not a data type of a scalar"
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"node '{node.name}' ({node.type})", rule)
    param.paramType, param.scalarParam.dataType = types.ParamType.SCALAR, kind
    setattr(param.scalarParam, field, value.encode() if isinstance(value, str) else value)
    return param


def _scalar_type(value: Scalar) -> int:
    """Choose the data type of a scalar when nothing declares it."""
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, str):
        return types.DATATYPE_STRING
    if isinstance(value, float):
        return _FLOAT
    if 0 <= value <= _MAX_UINT32:
        return _UINT
    if -(1 << 31) <= value < 0:
        return _INT
    return _UINT_64 if value > 0 else _INT_64
