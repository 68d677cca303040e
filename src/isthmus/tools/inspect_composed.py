"""The part of ``isthmus inspect`` for models. Graphs of DLCs and model libraries are described as they are stored, even
if they cannot be run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from isthmus import frontends
from isthmus.errors import counted
from isthmus.frontends import ModelSource, dlc
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry
from isthmus.frontends.dlc.contents import DlcContents
from isthmus.frontends.dlc.operations import operation
from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.ops import OPERATIONS
from isthmus.qnn import model_library
from isthmus.report.text import memory_line
from isthmus.system import reading
from isthmus.tools.messages import print_line

_DATATYPES = {int(each): each.name for each in DataType}


def inspect(source: ModelSource) -> dict[str, Any] | None:
    """Return a file's description as plain data, or None if it is neither a DLC nor a model library."""
    path = source.path
    if reading.begins(path, dlc.MAGIC):
        contents = dlc.read(path)
        return describe(replace(contents, graphs=tuple(_choose(source, contents.graphs))))
    if not model_library.is_library(path):
        return None
    return {
        "format": "model library",
        "bytes": path.stat().st_size,
        "graphs": [_graph(graph) for graph in _choose(source, model_library.compose_source(source))],
    }


def _choose(source: ModelSource, graphs: Sequence[GraphEntry]) -> Sequence[GraphEntry]:
    """Return the graph that is asked for, or all, which may be none."""
    return graphs if source.graph is None else source.select(graphs)


def inspect_file(source: ModelSource) -> dict[str, Any]:
    """Return the description of a TFLite or ONNX file as plain data."""
    graph = source.only(frontends.load_all(source))

    def tensors(listed: Iterable[Tensor]) -> list[dict[str, Any]]:
        return [
            {
                "name": tensor.name,
                "datatype": tensor.dtype.name,
                "shape": list(tensor.dims),
                "quantization": None if tensor.quantization is None else asdict(tensor.quantization),
            }
            for tensor in listed
        ]

    constants = [tensor.data for tensor in graph.tensors.values() if tensor.type is TensorType.STATIC]
    return {
        "format": "TFLite model" if frontends.is_tflite(reading.beginning(source.path, 8)) else "ONNX model",
        "bytes": source.path.stat().st_size,
        "graphs": [
            {
                "name": graph.name,
                "inputs": tensors(graph.inputs),
                "outputs": tensors(graph.outputs),
                "nodes": len(graph.nodes),
                "operations": dict(Counter(node.op for node in graph.nodes).most_common()),
                "unknown_operations": [],
                "constants": len(constants),
                "constant_bytes": sum(0 if data is None else data.nbytes for data in constants),
            }
        ],
    }


def describe(contents: DlcContents) -> dict[str, Any]:
    """Return a DLC's description."""
    return {
        "format": "dlc",
        "version": contents.version,
        "producer": contents.producer,
        "bytes": contents.nbytes,
        "entries": dict(contents.entries),
        "caches": list(contents.caches),
        "graphs": [_graph(graph) for graph in contents.graphs],
    }


def _graph(graph: GraphEntry) -> dict[str, Any]:
    """Return the description of a stored graph as plain data."""

    def tensors_of(kind: TensorType) -> list[dict[str, Any]]:
        return [_tensor(tensor) for tensor in graph.tensors if tensor.type == kind]

    counts = Counter(operation(node)[0] for node in graph.nodes)
    static = [tensor for tensor in graph.tensors if tensor.type == TensorType.STATIC]
    return {
        "name": graph.name,
        "inputs": tensors_of(TensorType.APP_WRITE),
        "outputs": tensors_of(TensorType.APP_READ),
        "nodes": len(graph.nodes),
        "operations": dict(counts.most_common()),
        "unknown_operations": sorted(op for op in counts if op not in OPERATIONS),
        "constants": len(static),
        "constant_bytes": sum(0 if tensor.data is None else len(tensor.data) for tensor in static),
    }


def _tensor(tensor: ComposedTensor) -> dict[str, Any]:
    """Return the description of a stored input or output."""
    return {
        "name": tensor.name,
        "datatype": datatype_name(tensor.dtype),
        "shape": list(tensor.dims),
        "quantization": _encoding(tensor.encoding),
    }


def _encoding(encoding: EncodingEntry | None) -> dict[str, Any] | None:
    """Return a tensor's quantization as plain data."""
    if encoding is None:
        return None
    return {"axis": encoding.axis, "scales": encoding.scales.tolist(), "offsets": encoding.offsets.tolist()}


def print_report(report: Mapping[str, Any]) -> None:
    """Print the description as text."""
    graphs = report["graphs"]
    kind = f"DLC of version {report['version']}" if report["format"] == "dlc" else report["format"]
    producer = f", made by {report['producer']}" if report.get("producer") else ""
    count = counted(len(graphs), "graph")
    print_line(f"{report['file']}: {kind}, {count}, {report['bytes']:,} bytes{producer}")
    for name in report.get("caches", ()):
        size = report["entries"][name]
        print_line(f"  {name}: {size:,} bytes prepared for another machine; shown here, not executed")
    for graph in graphs:
        print_line(f"graph '{graph['name']}'")
        print_tensors(graph)
        listed = ", ".join(f"{op} x{count}" for op, count in graph["operations"].items())
        print_line(f"  {counted(graph['nodes'], 'node')}: {listed}")
        if graph["unknown_operations"]:
            print_line(f"  not supported: {', '.join(graph['unknown_operations'])}")
        print_line(f"  {counted(graph['constants'], 'constant')}, {counted(graph['constant_bytes'], 'byte')}")
        if "scratch_bytes" in graph:
            print(memory_line(graph, "prepared_constant_bytes"))


def datatype_name(number: int) -> str:
    """Return the name of a data type; one that is not known is shown as its number."""
    return _DATATYPES.get(number, f"{number:#06x}")


def print_tensors(graph: Mapping[str, Any], details: Callable[[Mapping[str, Any]], str] = lambda tensor: "") -> None:
    """Print a line for each input and output of a graph's description; `details` returns what follows the shape."""
    for kind in ("inputs", "outputs"):
        for tensor in graph[kind]:
            text = f"{tensor['name']}: {tensor['datatype']}{tensor['shape']}{details(tensor)}"
            print_line(f"  {kind[:-1]:7} {text}{_scale(tensor['quantization'])}")


def _scale(quantization: Mapping[str, Any] | None) -> str:
    """Describe how stored integers map to reals, in a few words."""
    if quantization is None or not quantization["scales"]:
        return ""
    if quantization["axis"] is not None:
        return f", {len(quantization['scales'])} scales along axis {quantization['axis']}"
    return f", scale {quantization['scales'][0]:g}, offset {quantization['offsets'][0]}"
