"""C structures of a library that is called: HTP's configs, memory of tensors, and what it says of a context binary."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from ctypes import POINTER, c_void_p
from typing import Any

from isthmus.backends.htp.blobs import figures_of
from isthmus.backends.htp.c import HtpGraphOption
from isthmus.backends.htp.headers import CONTEXT_METADATA, DEVICE_CONFIG, GRAPH_CONFIG, HtpDeviceOption
from isthmus.backends.vendor.target import PRECISIONS
from isthmus.cabi.objects import DeviceConfig, GraphConfig
from isthmus.cabi.system import BinaryInfo
from isthmus.cabi.tensors import tensor_fields
from isthmus.cabi.types import Tensor, TensorMemType
from isthmus.cabi.writer import Keeps

# QNN_HTP_GRAPH_OPTIMIZATION_TYPE_*.
_OPTIMIZATION_LEVEL, _OPTIMIZATION_DLBC = 3, 4


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
    return _list(GraphConfig, [_custom(GRAPH_CONFIG(), *each) for each in values], keeps)


def device_configs(target: Mapping[str, Any], keeps: Keeps) -> Any:
    """Build the list of a device's configs for a target; without a chip the list is empty."""
    socs = [] if target.get("soc") is None else [target["soc"]]
    return _list(DeviceConfig, [_custom(DEVICE_CONFIG(), HtpDeviceOption.SOC, "socModel", n) for n in socs], keeps)


def _custom(config: Any, option: int, field: str, value: Any) -> Any:
    """Fill in a custom config of HTP: its option, and one member of its union."""
    config.option = option
    if isinstance(value, tuple):
        member = getattr(config, field)
        member.type, member.floatValue = value
    else:
        setattr(config, field, value)
    return config


def _list(kind: Any, customs: Iterable[Any], keeps: Keeps) -> Any:
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


# The first version of a binary's description with HTP's metadata.
_METADATA_VERSION = 3
# The first version of a graph's description with HTP's figures.
_GRAPH_BLOB_VERSION = 3


def describe(info: BinaryInfo) -> dict[str, Any]:
    """Describe a binary: versions, chip, graphs with their tensors and figures."""
    fields = getattr(info, f"contextBinaryInfoV{info.version}")
    return {
        "backend_id": fields.backendId,
        "build": (fields.buildId or b"").decode(errors="replace"),
        "core": str(fields.coreApiVersion),
        "backend": str(fields.backendApiVersion),
        "blob": str(fields.contextBlobVersion),
        "blob_bytes": fields.contextBlobSize,
        "soc": getattr(fields, "socModel", None),
        "arch": _architecture(info),
        "graphs": [_graph(fields.graphs[index]) for index in range(fields.numGraphs)],
    }


def _architecture(info: BinaryInfo) -> int:
    """Return the version of the processor that a description in version 3 has; 0 without one."""
    fields = info.contextBinaryInfoV3
    if info.version < _METADATA_VERSION or fields.contextMetadataSize < ctypes.sizeof(CONTEXT_METADATA):
        return 0
    return int(CONTEXT_METADATA.from_address(fields.contextMetadata).dspArch)


def _graph(info: Any) -> dict[str, Any]:
    graph = info.graphInfoV3
    figures = None
    if info.version >= _GRAPH_BLOB_VERSION and graph.graphBlobInfo:
        figures = figures_of(ctypes.string_at(graph.graphBlobInfo, graph.graphBlobInfoSize))
    return {
        "name": (graph.graphName or b"").decode(errors="replace"),
        "inputs": [_tensor(graph.graphInputs[index]) for index in range(graph.numGraphInputs)],
        "outputs": [_tensor(graph.graphOutputs[index]) for index in range(graph.numGraphOutputs)],
        "figures": None if figures is None else figures.to_json(),
    }


def _tensor(tensor: Tensor) -> dict[str, Any]:
    fields = tensor_fields(tensor)
    encoding = fields.encoding
    return {
        "id": fields.id,
        "name": fields.name,
        "dtype": fields.dtype,
        "dims": list(fields.dims),
        "scales": [] if encoding is None else encoding.scales.tolist(),
        "offsets": [] if encoding is None else encoding.offsets.tolist(),
        "axis": None if encoding is None else encoding.axis,
    }
