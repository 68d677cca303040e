"""A context binary as the vendor's system library describes it, turned into plain data."""

from __future__ import annotations

import ctypes
from typing import Any

from isthmus.backends.vendor.figures import VendorFigures
from isthmus.cabi.system import BinaryInfo
from isthmus.cabi.tensors import tensor_fields
from isthmus.cabi.types import Tensor

_GRAPH_BLOB_VERSION = 3
"""The first version of a graph's description with HTP's figures."""


def described(info: BinaryInfo) -> dict[str, Any]:
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
        "graphs": [_graph(fields.graphs[index]) for index in range(fields.numGraphs)],
    }


def _graph(info: Any) -> dict[str, Any]:
    graph = info.graphInfoV3
    figures = None
    if info.version >= _GRAPH_BLOB_VERSION and graph.graphBlobInfo:
        figures = VendorFigures.of_blob(ctypes.string_at(graph.graphBlobInfo, graph.graphBlobInfoSize))
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
