"""``isthmus inspect``: describe a context binary, a DLC or a model library, without creating a context from it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from isthmus import frontends, qnn
from isthmus.backends.vendor.library import is_installed
from isthmus.errors import Code, QnnError, counted
from isthmus.graph import BinaryInfo, GraphInfo, TensorInfo
from isthmus.qnn.system import UNKNOWN_FORMAT
from isthmus.system import reading
from isthmus.tools import inspect_composed, inspect_vendor
from isthmus.tools.files import file_name
from isthmus.tools.messages import print_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    what = "a context binary, ours or Qualcomm's, a DLC, or a model library"
    parser.add_argument("binary", type=file_name, metavar="FILE", help=what)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    description, show = _described(options.binary)
    report = {"file": str(options.binary), **description}
    if options.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0


def _described(path: Path) -> tuple[dict[str, Any], Callable[[Mapping[str, Any]], None]]:
    """Describe a file as plain data, and return how that is printed.

    For a file that nothing here reads, raise an error that says what it looks like.
    """
    composed = inspect_composed.inspect(path)
    if composed is not None:
        return composed, inspect_composed.print_report
    try:
        return describe(qnn.SystemContext().get_binary_info(path)), print_report
    except QnnError as problem:
        if problem.rule != UNKNOWN_FORMAT:
            raise
    head = reading.beginning(path, 16)
    what, code = f"file '{path}'", Code.COMMON_INVALID_ARGUMENT
    if frontends.is_tflite(head) or path.suffix == ".onnx":
        kind = "a TFLite model" if frontends.is_tflite(head) else "an ONNX model"
        raise QnnError(code, what, f"it is {kind}, which is not prepared yet", "`isthmus plan` shows its memory.")
    found = inspect_vendor.inspect(path)
    if found is not None:
        return found, inspect_vendor.print_report
    rule = f"it is neither a context binary nor a DLC nor a model library: it begins with {head!r}"
    raise QnnError(code, what, rule, "" if is_installed() else inspect_vendor.HINT)


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
        "scratch_bytes": graph.memory.scratch_bytes,
        "state_bytes": graph.memory.state_bytes,
        "constant_bytes": graph.memory.constant_bytes,
        "io_bytes": graph.io_bytes,
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
        for kind in ("inputs", "outputs"):
            for tensor in graph[kind]:
                print_line(
                    f"  {kind[:-1]:7} {tensor['name']}: {tensor['datatype']}{tensor['shape']}, "
                    f"{tensor['bytes']:,} bytes, {tensor['mem_type']}{_scale(tensor['quantization'])}"
                )
        print(
            f"  memory  scratch {graph['scratch_bytes']:,}  state {graph['state_bytes']:,}  "
            f"constants {graph['constant_bytes']:,}  io {graph['io_bytes']:,} bytes; aligned to {graph['alignment']}"
        )


def _scale(quantization: Mapping[str, Any] | None) -> str:
    """Describe how stored integers map to reals, in a few words."""
    if quantization is None:
        return ""
    if quantization["axis"] is not None:
        return f", {len(quantization['scales'])} scales along axis {quantization['axis']}"
    return f", scale {quantization['scales'][0]:g}, offset {quantization['offsets'][0]}"
