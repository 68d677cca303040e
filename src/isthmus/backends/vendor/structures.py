"""QNN's C structures of a composed graph: tensors, nodes and configs, for a library that is called.

A structure holds addresses of arrays. Functions that build one append these arrays to a list, which must live until the
graph is composed: the library reads scales of blocks again when a node is added.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from ctypes import POINTER, c_float, c_int32, c_uint32, c_void_p
from typing import Any

import numpy as np

from isthmus.backends.htp.c import HtpDeviceConfig, HtpDeviceOption, HtpGraphConfig, HtpGraphOption
from isthmus.backends.vendor.target import PRECISIONS
from isthmus.cabi.objects import DeviceConfig, GraphConfig
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
_OPTIMIZATION_LEVEL, _OPTIMIZATION_DLBC = 3, 4
"""QNN_HTP_GRAPH_OPTIMIZATION_TYPE_*."""


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
    fields.name, fields.packageName, fields.typeName = (
        text.encode() for text in (node.name, node.package, node.type)
    )
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


def graph_configs(target: Mapping[str, Any], keeps: Keeps) -> Any:
    """Build the list of a graph's configs for a target."""
    values: list[tuple[HtpGraphOption, str, Any]] = []
    if target.get("level") is not None:
        values.append((HtpGraphOption.OPTIMIZATION, "optimizationOption", (_OPTIMIZATION_LEVEL, target["level"])))
    if target.get("dlbc"):
        values.append((HtpGraphOption.OPTIMIZATION, "optimizationOption", (_OPTIMIZATION_DLBC, 1)))
    if target.get("precision") is not None:
        values.append((HtpGraphOption.PRECISION, "precision", PRECISIONS[target["precision"]]))
    if target.get("vtcm_mb") is not None:
        values.append((HtpGraphOption.VTCM_SIZE_IN_MB, "vtcmSizeInMB", target["vtcm_mb"]))
    if target.get("hvx_threads") is not None:
        values.append((HtpGraphOption.NUM_HVX_THREADS, "numHvxThreads", target["hvx_threads"]))
    return _listed(GraphConfig, [_custom(HtpGraphConfig(), *each) for each in values], keeps)


def device_configs(target: Mapping[str, Any], keeps: Keeps) -> Any:
    """Build the list of a device's configs for a target; without a chip the list is empty."""
    socs = [] if target.get("soc") is None else [target["soc"]]
    return _listed(DeviceConfig, [_custom(HtpDeviceConfig(), HtpDeviceOption.SOC, "socModel", n) for n in socs], keeps)


def _custom(config: Any, option: int, field: str, value: Any) -> Any:
    """Fill in a custom config of HTP: its option, and one member of its union."""
    config.option = option
    if isinstance(value, tuple):
        member = getattr(config, field)
        member.type, member.floatValue = value
    else:
        setattr(config, field, value)
    return config


def _listed(kind: Any, customs: Iterable[Any], keeps: Keeps) -> Any:
    """Return a null-terminated list of pointers to configs (option 0) that point to custom ones."""
    made = []
    for custom in customs:
        config = kind()
        config.option, config.customConfig = 0, ctypes.addressof(custom)
        keeps.append(custom)
        made.append(config)
    listed = (POINTER(kind) * (len(made) + 1))(*(ctypes.pointer(config) for config in made))
    keeps += (made, listed)
    return listed


def handle_memory(tensor: Tensor, handle: int) -> None:
    """Let a tensor use registered memory."""
    tensor.v1.memType, tensor.v1.memHandle = TensorMemType.MEMHANDLE, c_void_p(handle)
