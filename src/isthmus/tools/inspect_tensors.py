"""The inputs and outputs of a graph as ``isthmus inspect`` shows them, for every kind of file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isthmus.graph import DataType
from isthmus.tools.messages import print_line

_DATATYPES = {int(each): each.name for each in DataType}


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
