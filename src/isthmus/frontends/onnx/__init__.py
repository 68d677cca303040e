"""Conversion of ONNX files to graphs: all operator sets, channel-last layout, constants folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.frontends import contents
from isthmus.frontends.onnx.importer import Importer
from isthmus.frontends.onnx.schema import OnnxContents
from isthmus.graph import Graph

__all__ = ["load", "load_with_importer"]


def load(
    source: str | Path | bytes | OnnxContents,
    name: str | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    whole_rows: bool = False,
) -> Graph:
    """Convert an ONNX model.

    - `name`: The name of the graph; by default the file's.
    - `shapes`: Dimensions of inputs, by name, where the file leaves some open. Open dimensions with the same symbolic
      name get the same size; the others are 1.
    - `constants`: Inputs to be bound to these values; they become constants of the graph instead of inputs.
    - `folder`: The folder of external data if `source` is bytes; without it external data is refused.
    - `whole_rows`: Whether rows whose number depends on the data must be complete, see `isthmus.frontends.ModelSource`.

    Raises `QnnError` if the file is not a well-formed ONNX model, or uses unsupported features; the error then lists
    all of them.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        source = OnnxContents.parse(contents(path), path.name, path.parent)
        name = name or path.stem
    graph, importer = load_with_importer(source, name or "model", shapes, constants, folder)
    if whole_rows:
        importer.check_rows()
    return graph


def load_with_importer(
    source: bytes | OnnxContents,
    name: str,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> tuple[Graph, Importer]:
    """Convert an ONNX model as `load` does; also return the importer, which knows what became of the model's values."""
    importer = Importer(OnnxContents.parse(source, name, folder) if isinstance(source, bytes) else source, name)
    return importer.convert(shapes or {}, constants or {}), importer
