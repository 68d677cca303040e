"""``isthmus inspect``: describe a model or a context binary: its graphs with inputs, outputs and operations.

With ``--backend``, the memory of each graph of a model is described too, as that backend would prepare it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from isthmus import frontends, qnn
from isthmus.backends.vendor.figures import figures_from_json
from isthmus.backends.vendor.library import find, is_installed
from isthmus.backends.vendor.measurement import describe_file
from isthmus.backends.vendor.target import chips
from isthmus.errors import QnnError, counted
from isthmus.frontends import ModelSource, dlc
from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry
from isthmus.frontends.dlc.operations import operation
from isthmus.graph import BinaryInfo, DataType, GraphInfo, GraphSizes, Tensor, TensorInfo, TensorType
from isthmus.graph.figures import GraphFigures, total_ram
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.sharing import UnsharedConstants
from isthmus.qnn import model_library
from isthmus.report.text import memory_line
from isthmus.system import reading
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import ModelRequest, add_model_options, request_of
from isthmus.tools.report_options import memory_sizes

# What to do about a file that no reader here knows.
_HINT = "If Qualcomm's tools made it, their library can read it: pip install 'isthmus[qnn]'."
_DATATYPES = {int(each): each.name for each in DataType}
Data = dict[str, Any]
"""A description as plain data."""
Lines = Callable[[Mapping[str, Any]], Iterator[str]]
"""Returns a description as lines of text."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    request = request_of(options)
    description, lines = _describe(request)
    if request.binary is None and options.backend is not None:
        for graph in description["graphs"]:
            graph |= _memory(replace(request, source=replace(request.source, graph=graph["name"])))
    report = {"file": str(options.model), **description}
    print_report(options, report, lines(report))
    return 0


def _describe(request: ModelRequest) -> tuple[Data, Lines]:
    """Describe a file, and return how that is printed; refuse a file that nothing here reads."""
    source, path = request.source, request.source.path
    if request.binary is not None:
        graphs = request.binary.graphs if source.graph is None else source.select(request.binary.graphs)
        for graph in graphs:
            # This refuses options that would need another preparation.
            replace(request, source=replace(source, graph=graph.name)).prepared()
        description = _binary(replace(request.binary, graphs=tuple(graphs)))
        if description["weights"] is not None:
            listed = qnn.SystemContext().get_unshared_constants(path)
            description["weights"]["unshared"] = [asdict(each) for each in listed]
        return description, _binary_lines
    stored = _stored_model(source)
    if stored is not None:
        return stored, _model_lines
    if path.suffix in (".onnx", ".tflite") or not path.exists():
        return _model(source), _model_lines
    found = _vendor_binary(path)
    if found is not None:
        return found, _vendor_lines
    head = reading.beginning(path, 16)
    if frontends.is_model(head):
        return _model(source), _model_lines
    unknown = frontends.unknown_format(path, head)
    if not is_installed():
        unknown = QnnError(unknown.code, unknown.what, unknown.rule, f"{unknown.hint} {_HINT}")
    raise unknown


def _memory(request: ModelRequest) -> dict[str, int]:
    """Return the memory of a model's graph as the backend prepares it."""
    sizes = memory_sizes(request.plan(request.load()).info)
    # The graph's description has the bytes of constants in the file.
    sizes["prepared_constant_bytes"] = sizes.pop("constant_bytes")
    return sizes


def _tensor(tensor: Tensor | TensorInfo) -> Data:
    """Describe an input or output."""
    quantization = None if tensor.quantization is None else asdict(tensor.quantization)
    return {
        "name": tensor.name, "datatype": tensor.dtype.name, "shape": list(tensor.dims), "quantization": quantization,
    }  # fmt: skip


def _datatype(number: int) -> str:
    """Return the name of a data type; one that is not known is shown as its number."""
    return _DATATYPES.get(number, f"{number:#06x}")


def _tensor_lines(graph: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each input and output of a graph's description; of a prepared one with its memory."""
    for kind in ("inputs", "outputs"):
        for tensor in graph[kind]:
            memory = f", {counted(tensor['bytes'], 'byte')}, {tensor['mem_type']}" if "mem_type" in tensor else ""
            text = f"{tensor['name']}: {tensor['datatype']}{tensor['shape']}{memory}"
            yield f"  {kind[:-1]:7} {text}{_scale(tensor['quantization'])}"


def _scale(quantization: Mapping[str, Any] | None) -> str:
    """Describe how stored integers map to reals, in a few words."""
    if quantization is None or not quantization["scales"]:
        return ""
    if quantization["axis"] is not None:
        return f", {len(quantization['scales'])} scales along axis {quantization['axis']}"
    return f", scale {quantization['scales'][0]:g}, offset {quantization['offsets'][0]}"


# -- context binaries --------------------------------------------------------------------------------------------------


def _binary(info: BinaryInfo) -> Data:
    """Describe a context binary."""
    graphs = [_prepared_graph(graph) for graph in info.graphs]
    facts = {"backend": info.backend, "version": info.version, "producer": info.producer, "bytes": info.nbytes}
    figures = {graph.name: graph.figures for graph in info.graphs if graph.figures is not None}
    sizes = {graph.name: graph.sizes for graph in info.graphs if graph.sizes is not None}
    device = _device(info.soc, info.arch, figures) if info.arch else {}
    return {**facts, **device, "weights": _weights(sizes), "graphs": graphs}


def _device(soc: int, arch: int, figures: Mapping[str, GraphFigures]) -> Data:
    """Describe the device of a context binary, and the memory that the binary's graphs, by name, need on it."""
    chip = {each.soc: each for each in chips()}.get(soc)
    return {
        "soc": soc, "chip": None if chip is None else chip.title, "arch": arch or (None if chip is None else chip.arch),
        "total_ram": total_ram(figures.values()),
    }  # fmt: skip


def _weights(figures: Mapping[str, GraphFigures] | Mapping[str, GraphSizes]) -> Data | None:
    """Describe the constants of several graphs: those of each alone, and those that they share, which count once."""
    if len(figures) < 2:
        return None
    own = {name: each.constants for name, each in figures.items()}
    shared = max(each.shared_weights for each in figures.values())
    return {"own": own, "shared": shared, "total": sum(own.values()) + shared}


def _weights_lines(weights: Data | None) -> Iterator[str]:
    """Yield a table of the constants of several graphs."""
    if weights is not None:
        rows = {"weights": "bytes", **{f"  {name}": f"{nbytes:,}" for name, nbytes in weights["own"].items()}}
        rows |= {"  shared, once": f"{weights['shared']:,}", "  in all": f"{weights['total']:,}"}
        width = max(map(len, rows))
        yield from (f"{name:{width}}{value:>16}" for name, value in rows.items())
        yield from unshared_lines(weights.get("unshared", ()))


def unshared_lines(listed: Sequence[Data]) -> Iterator[str]:
    """Yield the reasons why graphs do not share constants, the most bytes first."""
    if listed:
        yield "not shared:"
        yield from (f"  {UnsharedConstants(**each)}" for each in sorted(listed, key=lambda each: -each["nbytes"]))


def _on_device(report: Mapping[str, Any]) -> str:
    """Describe the device of a context binary in a few words."""
    if report["chip"] is None:
        name = f"chip {report['soc']}" if report["soc"] else "any chip"
        return f"{name} (v{report['arch']})" if report["arch"] else name
    return f"{report['chip']} (v{report['arch']})"


def _figures_lines(graph: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line of a graph's figures on a chip, if it has any."""
    if graph["figures"] is not None:
        yield "  on chip  " + "  ".join(f"{name} {value:,}" for name, value in graph["figures"].items())


def _prepared_graph(graph: GraphInfo) -> Data:
    """Describe a graph of a context binary."""

    def tensors(listed: Sequence[TensorInfo]) -> list[Data]:
        return [{**_tensor(each), "bytes": each.nbytes, "mem_type": each.mem_type.name.lower()} for each in listed]

    sides = {"inputs": tensors(graph.inputs), "outputs": tensors(graph.outputs)}
    return {
        "name": graph.name, "target": graph.target, **sides, **memory_sizes(graph), "alignment": graph.memory.alignment,
        "figures": None if graph.figures is None else graph.figures.to_json(),
    }  # fmt: skip


def _binary_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description of a context binary as text."""
    graphs = report["graphs"]
    yield (
        f"{report['file']}: {counted(len(graphs), 'graph')} for {report['backend']}, "
        f"{report['bytes']:,} bytes, format {report['version']}, made by {report['producer']}"
    )
    if "soc" in report:
        yield f"for {_on_device(report)}, total RAM {report['total_ram']:,} bytes"
    for graph in graphs:
        yield f"graph '{graph['name']}'" + f" ({graph['target']})" * bool(graph["target"])
        yield from _tensor_lines(graph)
        yield f"{memory_line(graph)}; aligned to {graph['alignment']}"
        yield from _figures_lines(graph)
    yield from _weights_lines(report.get("weights"))


# -- models ------------------------------------------------------------------------------------------------------------


def _stored_model(source: ModelSource) -> Data | None:
    """Describe a DLC or a model library as it is stored, even if it cannot be run; None for another file."""

    def choose(graphs: Sequence[GraphEntry]) -> list[Data]:
        return [_stored_graph(graph) for graph in (graphs if source.graph is None else source.select(graphs))]

    if reading.begins(source.path, dlc.MAGIC):
        contents = dlc.read(source.path)
        return {
            "format": "dlc",
            "version": contents.version,
            "producer": contents.producer,
            "bytes": contents.nbytes,
            "entries": dict(contents.entries),
            "caches": list(contents.caches),
            "graphs": choose(contents.graphs),
        }
    if not frontends.is_library(source.path):
        return None
    graphs = choose(model_library.compose_source(source))
    return {"format": "model library", "bytes": source.path.stat().st_size, "graphs": graphs}


def _model(source: ModelSource) -> Data:
    """Describe a TFLite or ONNX file."""
    graph = source.only(frontends.load_all(source))
    constants = [tensor.data for tensor in graph.tensors.values() if tensor.type is TensorType.STATIC]
    ends = {"inputs": list(map(_tensor, graph.inputs)), "outputs": list(map(_tensor, graph.outputs))}
    sizes = [0 if data is None else data.nbytes for data in constants]
    name = "TFLite model" if frontends.is_tflite(reading.beginning(source.path, 8)) else "ONNX model"
    graphs = [_describe_graph(graph.name, ends, Counter(node.op for node in graph.nodes), sizes)]
    return {"format": name, "bytes": source.path.stat().st_size, "graphs": graphs}


def _stored_graph(graph: GraphEntry) -> Data:
    """Describe a graph as a DLC or a model library stores it."""
    ends = {
        side: [_stored_tensor(each) for each in graph.tensors if each.type == kind]
        for side, kind in (("inputs", TensorType.APP_WRITE), ("outputs", TensorType.APP_READ))
    }
    static = [tensor.data for tensor in graph.tensors if tensor.type == TensorType.STATIC]
    sizes = [0 if data is None else len(data) for data in static]
    return _describe_graph(graph.name, ends, Counter(operation(node)[0] for node in graph.nodes), sizes)


def _describe_graph(name: str, ends: Data, operations: Counter[str], constants: Sequence[int]) -> Data:
    """Describe a graph by its tensors, its operations and the bytes of its constants."""
    return {
        "name": name, **ends, "nodes": operations.total(), "operations": dict(operations.most_common()),
        "unknown_operations": sorted(op for op in operations if op not in OPERATIONS),
        "constants": len(constants), "constant_bytes": sum(constants),
    }  # fmt: skip


def _stored_tensor(tensor: ComposedTensor) -> Data:
    """Describe an input or output as a DLC or a model library stores it."""
    encoding = None
    if tensor.encoding is not None:
        scales, offsets = tensor.encoding.scales.tolist(), tensor.encoding.offsets.tolist()
        encoding = {"axis": tensor.encoding.axis, "scales": scales, "offsets": offsets}
    datatype = _datatype(tensor.dtype)
    return {"name": tensor.name, "datatype": datatype, "shape": list(tensor.dims), "quantization": encoding}


def _model_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description of a model as text."""
    graphs = report["graphs"]
    kind = f"DLC of version {report['version']}" if report["format"] == "dlc" else report["format"]
    producer = f", made by {report['producer']}" if report.get("producer") else ""
    yield f"{report['file']}: {kind}, {counted(len(graphs), 'graph')}, {report['bytes']:,} bytes{producer}"
    for name in report.get("caches", ()):
        size = report["entries"][name]
        yield f"  {name}: {size:,} bytes prepared for another machine; shown here, not executed"
    for graph in graphs:
        yield f"graph '{graph['name']}'"
        yield from _tensor_lines(graph)
        listed = ", ".join(f"{op} x{count}" for op, count in graph["operations"].items())
        yield f"  {counted(graph['nodes'], 'node')}: {listed}"
        if graph["unknown_operations"]:
            yield f"  not supported: {', '.join(graph['unknown_operations'])}"
        yield f"  {counted(graph['constants'], 'constant')}, {counted(graph['constant_bytes'], 'byte')}"
        if "scratch_bytes" in graph:
            yield memory_line(graph, "prepared_constant_bytes")


# -- context binaries of Qualcomm's tools, which Qualcomm's system library reads ---------------------------------------


def _vendor_binary(path: Path) -> Data | None:
    """Describe a context binary of Qualcomm's tools; None if their library is missing or does not know the file."""
    description = describe_file(path, find()) if is_installed() else None
    if description is None:
        return None
    listed = [graph for graph in description["graphs"] if graph["figures"] is not None]
    figures = {graph["name"]: figures_from_json(graph["figures"]) for graph in listed}
    return {
        "made_by": description["build"],
        "versions": {name: description[name] for name in ("core", "backend", "blob")},
        "backend_id": description["backend_id"],
        **_device(description["soc"] or 0, description["arch"], figures),
        "weights": _weights(figures),
        "bytes": description["bytes"],
        "graphs": [_vendor_graph(graph) for graph in description["graphs"]],
    }


def _vendor_graph(graph: Mapping[str, Any]) -> Data:
    """Describe a graph of a context binary of Qualcomm's tools."""

    def describe_tensor(tensor: Mapping[str, Any]) -> Data:
        quantization = {name: tensor[name] for name in ("scales", "offsets", "axis")} if tensor["scales"] else None
        facts = {"name": tensor["name"], "id": tensor["id"], "datatype": _datatype(tensor["dtype"])}
        return {**facts, "shape": tensor["dims"], "quantization": quantization}

    sides = {side: [describe_tensor(tensor) for tensor in graph[side]] for side in ("inputs", "outputs")}
    return {"name": graph["name"], **sides, "figures": graph["figures"]}


def _vendor_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the description of a context binary of Qualcomm's tools as text."""
    graphs, versions = report["graphs"], report["versions"]
    count = counted(len(graphs), "graph")
    size = f"{report['bytes']:,} bytes, total RAM {report['total_ram']:,}"
    yield f"{report['file']}: {count} for {_on_device(report)}, {size}"
    yield (
        f"made by Qualcomm's library {report['made_by']}: core {versions['core']}, "
        f"backend {report['backend_id']} {versions['backend']}, blob {versions['blob']}"
    )
    for graph in graphs:
        yield f"graph '{graph['name']}'"
        yield from _tensor_lines(graph)
        yield from _figures_lines(graph)
    yield from _weights_lines(report["weights"])
