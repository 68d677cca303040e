"""QNN's C structures of a composed graph: tensors and nodes, for a library that is called.

A structure holds addresses of arrays. Functions that build one append these arrays to a list, which must live until the
library needs it no longer: some libraries read scales of blocks again when a node is added.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, c_float, c_int32, c_uint32
from typing import Any

import numpy as np

from isthmus.cabi.types import (
    SCALAR_FIELDS,
    UNDEFINED,
    Definition,
    OpConfig,
    Param,
    ParamType,
    QuantizationEncoding,
    QuantizeParams,
    ScaleOffset,
    Tensor,
    TensorMemType,
)
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, NodeEntry

Keeps = list[Any]
"""What has to stay alive as long as the library may read it."""


def tensor_structure(entry: ComposedTensor, number: int, keeps: Keeps) -> Tensor:
    """Build a tensor with its contents, if it has any; `number` is the id that the library has given it."""
    tensor = Tensor()
    tensor.version = 1
    fields = tensor.v1
    fields.id, fields.name, fields.type, fields.dataType = number, entry.name.encode(), entry.type, entry.dtype
    _encode(fields.quantizeParams, entry.encoding, keeps)
    dims = (c_uint32 * max(1, len(entry.dims)))(*entry.dims)
    fields.rank, fields.dimensions, fields.memType = len(entry.dims), dims, TensorMemType.RAW
    keeps.append(dims)
    if entry.data is not None:
        data = np.frombuffer(entry.data, np.uint8)
        fields.clientBuf.data, fields.clientBuf.dataSize = data.ctypes.data, data.nbytes
        keeps.append(data)
    return tensor


def _encode(params: QuantizeParams, entry: EncodingEntry | None, keeps: Keeps) -> None:
    """Write an encoding into the structure of a tensor."""
    if entry is None:
        params.encodingDefinition = params.quantizationEncoding = UNDEFINED
        return
    params.encodingDefinition, params.quantizationEncoding = Definition.DEFINED, entry.kind
    scales, offsets = entry.scales.tolist(), entry.offsets.tolist()
    if entry.kind == QuantizationEncoding.SCALE_OFFSET:
        params.scaleOffsetEncoding.scale, params.scaleOffsetEncoding.offset = scales[0], offsets[0]
    elif entry.kind == QuantizationEncoding.BW_SCALE_OFFSET:
        one = params.bwScaleOffsetEncoding
        one.bitwidth, one.scale, one.offset = entry.bits, scales[0], offsets[0]
    elif entry.kind == QuantizationEncoding.AXIS_SCALE_OFFSET:
        by_axis = params.axisScaleOffsetEncoding
        pairs = (ScaleOffset * len(scales))(*(ScaleOffset(*pair) for pair in zip(scales, offsets, strict=True)))
        by_axis.axis, by_axis.numScaleOffsets = entry.axis, len(scales)
        by_axis.scaleOffset = ctypes.cast(pairs, POINTER(ScaleOffset))
        keeps.append(pairs)
    elif entry.kind == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
        narrow = params.bwAxisScaleOffsetEncoding
        first, second = (c_float * len(scales))(*scales), (c_int32 * len(offsets))(*offsets)
        narrow.bitwidth, narrow.axis, narrow.numElements = entry.bits, entry.axis, len(scales)
        narrow.scales, narrow.offsets = first, second
        keeps += (first, second)
    else:
        raise ValueError(f"encoding {entry.kind} cannot be passed on")


def node_structure(node: NodeEntry, tensors: Mapping[str, Tensor], keeps: Keeps) -> OpConfig:
    """Build a node from the structures of its tensors, by name; tensors of parameters are named after node and
    parameter.
    """
    config = OpConfig()
    config.version = 1
    fields = config.v1
    fields.name, fields.packageName, fields.typeName = (text.encode() for text in (node.name, node.package, node.type))
    params = (Param * max(1, len(node.params)))()
    for slot, (name, value) in zip(params, node.params.items(), strict=False):
        slot.name = name.encode()
        if isinstance(value, ComposedTensor):
            slot.paramType, slot.tensorParam = ParamType.TENSOR, tensors[value.name]
        else:
            slot.paramType, slot.scalarParam.dataType = ParamType.SCALAR, node.kinds[name]
            field = SCALAR_FIELDS[node.kinds[name]]
            setattr(slot.scalarParam, field, value.encode() if isinstance(value, str) else value)
    fields.numOfParams, fields.params = len(node.params), params
    inputs, outputs = _array(node.inputs, tensors), _array(node.outputs, tensors)
    fields.numOfInputs, fields.inputTensors = len(node.inputs), inputs
    fields.numOfOutputs, fields.outputTensors = len(node.outputs), outputs
    keeps += (params, inputs, outputs)
    return config


def _array(names: Sequence[str], tensors: Mapping[str, Tensor]) -> Any:
    array = (Tensor * max(1, len(names)))()
    for index, name in enumerate(names):
        array[index] = tensors[name]
    return array
