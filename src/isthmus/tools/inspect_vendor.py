"""The part of ``isthmus inspect`` for context binaries of Qualcomm's tools, which Qualcomm's system library reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.backends.vendor.figures import VendorFigures, total_ram
from isthmus.backends.vendor.library import find, is_installed
from isthmus.backends.vendor.measurement import describe_file
from isthmus.backends.vendor.target import chips
from isthmus.errors import counted
from isthmus.tools.inspect_composed import datatype_name, print_tensors
from isthmus.tools.messages import print_line

HINT = "If Qualcomm's tools made it, their library can read it: pip install 'isthmus[qnn]'."
"""What to do about a file that no reader here knows."""


def inspect(path: Path) -> dict[str, Any] | None:
    """Describe a context binary of Qualcomm's tools; None if their library is missing or does not know the file."""
    if not is_installed():
        return None
    description = describe_file(path, find())
    if description is None:
        return None
    known = {each.soc: each for each in chips()}
    chip = known.get(description["soc"])
    figures = [VendorFigures.from_json(g["figures"]) for g in description["graphs"] if g["figures"] is not None]
    return {
        "made_by": description["build"],
        "versions": {name: description[name] for name in ("core", "backend", "blob")},
        "backend_id": description["backend_id"],
        "soc": description["soc"],
        "chip": None if chip is None else chip.title,
        "arch": None if chip is None else chip.arch,
        "bytes": description["bytes"],
        "total_ram": total_ram(figures),
        "graphs": [_graph(graph) for graph in description["graphs"]],
    }


def _graph(graph: Mapping[str, Any]) -> dict[str, Any]:
    sides = {side: [_tensor(tensor) for tensor in graph[side]] for side in ("inputs", "outputs")}
    return {"name": graph["name"], **sides, "figures": graph["figures"]}


def _tensor(tensor: Mapping[str, Any]) -> dict[str, Any]:
    quantization = {name: tensor[name] for name in ("scales", "offsets", "axis")} if tensor["scales"] else None
    return {"name": tensor["name"], "id": tensor["id"], "datatype": datatype_name(tensor["dtype"]),
            "shape": tensor["dims"], "quantization": quantization}  # fmt: skip


def print_report(report: Mapping[str, Any]) -> None:
    """Print the description as text."""
    graphs, versions = report["graphs"], report["versions"]
    chip = f"chip {report['soc']}" if report["chip"] is None else f"{report['chip']} (v{report['arch']})"
    print_line(
        f"{report['file']}: {counted(len(graphs), 'graph')} for {chip}, {report['bytes']:,} bytes, "
        f"total RAM {report['total_ram']:,}"
    )
    print_line(
        f"made by Qualcomm's library {report['made_by']}: core {versions['core']}, "
        f"backend {report['backend_id']} {versions['backend']}, blob {versions['blob']}"
    )
    for graph in graphs:
        print_line(f"graph '{graph['name']}'")
        print_tensors(graph)
        if graph["figures"] is not None:
            print("  memory  " + "  ".join(f"{name} {value:,}" for name, value in graph["figures"].items()))
