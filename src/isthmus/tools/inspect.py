"""``isthmus inspect``: describe a model or a context binary: its graphs with inputs, outputs and operations.

With ``--backend``, the memory of each graph of a model is described too, as that backend would prepare it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from isthmus import frontends
from isthmus.backends.vendor.library import is_installed
from isthmus.errors import QnnError, counted
from isthmus.graph import BinaryInfo, GraphInfo, TensorInfo
from isthmus.report.text import memory_line
from isthmus.system import reading
from isthmus.tools import inspect_composed, inspect_vendor
from isthmus.tools.inspect_composed import print_tensors
from isthmus.tools.messages import print_line
from isthmus.tools.model_options import ModelRequest, add_model_options, requested
from isthmus.tools.report_options import memory_sizes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    request = requested(options)
    description, show = _describe(request)
    if request.binary is None and options.backend is not None:
        for graph in description["graphs"]:
            graph |= _memory(replace(request, source=replace(request.source, graph=graph["name"])))
    report = {"file": str(options.model), **description}
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


def _describe(request: ModelRequest) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], None]]:
    """Describe a file as plain data, and return how that is printed.

    For a file that nothing here reads, raise an error that says what it looks like.
    """
    source, path = request.source, request.source.path
    if request.binary is not None:
        graphs = request.binary.graphs if source.graph is None else source.select(request.binary.graphs)
        for graph in graphs:
            # This refuses options that would need another preparation.
            replace(request, source=replace(source, graph=graph.name)).prepared()
        return describe(replace(request.binary, graphs=tuple(graphs))), print_report
    composed = inspect_composed.inspect(source)
    if composed is not None:
        return composed, inspect_composed.print_report
    if path.suffix in (".onnx", ".tflite") or not path.exists():
        return inspect_composed.inspect_file(source), inspect_composed.print_report
    found = inspect_vendor.inspect(path)
    if found is not None:
        return found, inspect_vendor.print_report
    head = reading.beginning(path, 16)
    if frontends.is_model(head):
        return inspect_composed.inspect_file(source), inspect_composed.print_report
    unknown = frontends.unknown_format(path, head)
    if not is_installed():
        unknown = QnnError(unknown.code, unknown.what, unknown.rule, f"{unknown.hint} {inspect_vendor.HINT}")
    raise unknown


def _memory(request: ModelRequest) -> dict[str, int]:
    """Return the memory of a model's graph as the backend prepares it."""
    sizes = memory_sizes(request.plan(request.load()).info)
    # The graph's description has the bytes of constants in the file.
    sizes["prepared_constant_bytes"] = sizes.pop("constant_bytes")
    return sizes


def describe(info: BinaryInfo) -> dict[str, Any]:
    """Return a binary's description as plain data."""
    return {
        "backend": info.backend,
        "version": info.version,
        "producer": info.producer,
        "bytes": info.nbytes,
        "graphs": [_graph(graph) for graph in info.graphs],
    }


def _graph(graph: GraphInfo) -> dict[str, Any]:
    """Return the description of a graph as plain data."""
    return {
        "name": graph.name,
        "target": graph.target,
        "inputs": [_tensor(tensor) for tensor in graph.inputs],
        "outputs": [_tensor(tensor) for tensor in graph.outputs],
        **memory_sizes(graph),
        "alignment": graph.memory.alignment,
    }


def _tensor(tensor: TensorInfo) -> dict[str, Any]:
    """Return the description of an input or output as plain data."""
    return {
        "name": tensor.name,
        "datatype": tensor.dtype.name,
        "shape": list(tensor.dims),
        "bytes": tensor.nbytes,
        "mem_type": tensor.mem_type.name.lower(),
        "quantization": None if tensor.quantization is None else asdict(tensor.quantization),
    }


def print_report(report: Mapping[str, Any]) -> None:
    """Print the description as text."""
    graphs = report["graphs"]
    print_line(
        f"{report['file']}: {counted(len(graphs), 'graph')} for {report['backend']}, "
        f"{report['bytes']:,} bytes, format {report['version']}, made by {report['producer']}"
    )
    for graph in graphs:
        print_line(f"graph '{graph['name']}'" + f" ({graph['target']})" * bool(graph["target"]))
        print_tensors(graph, lambda tensor: f", {counted(tensor['bytes'], 'byte')}, {tensor['mem_type']}")
        print(f"{memory_line(graph)}; aligned to {graph['alignment']}")
