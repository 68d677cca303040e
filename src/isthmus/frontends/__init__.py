"""Conversion of model files to graphs. TFLite, ONNX and DLC files are recognized by their contents."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.formats import reading_errors, unknown_format
from isthmus.frontends.model_source import ModelSource
from isthmus.frontends.unsupported import NeedsStages
from isthmus.system import reading

if TYPE_CHECKING:
    from isthmus.frontends.onnx.schema import OnnxContents
    from isthmus.frontends.onnx.staged import StagedModel
    from isthmus.graph import Graph

__all__ = [
    "DLC_MAGIC",
    "LIBRARY_MAGIC",
    "SELECTING",
    "ModelSource",
    "NeedsStages",
    "assumed_shapes",
    "contents",
    "is_library",
    "is_model",
    "is_onnx",
    "is_self_contained",
    "is_tflite",
    "load",
    "load_all",
    "load_data",
    "open_dims",
    "staged_model",
    "unknown_format",
    "with_contents",
]

LIBRARY_MAGIC = b"\x7fELF"
"""The first bytes of a compiled model library. Such a file is not read but run, by `isthmus.qnn.model_library`."""

_TFLITE_IDENTIFIER = b"TFL3"
# The first bytes of a protobuf message that has the fields of ONNX's ModelProto.
_ONNX_TAGS = frozenset(b"\x08\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca\xd2")

DLC_MAGIC = b"PK\x03\x04"
"""The first bytes of a DLC, which is a zip archive. No ONNX model begins with any of these bytes."""

SELECTING = ("NonZero", "NonMaxSuppression")
"""The operations whose number of rows depends on the data. Where a backend has not all of them, they are computed on
the host, between stages of a model.
"""

# The largest file that is read. Neither flatbuffers nor protobuf messages can be longer.
_MAX_BYTES = 1 << 31


def load(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    graph: str | None = None,
) -> Graph:
    """Read a model file and convert one of its graphs to a finalized graph. The parameters are those of `ModelSource`.

    Raises `QnnError` if the file cannot be read, has another format, is damaged, or uses an unsupported feature.
    """
    source = ModelSource(Path(path), shapes, constants, graph)
    return source.only(load_all(source))


@np.errstate(all="ignore")
def load_all(source: ModelSource) -> list[Graph]:
    """Read a model file and convert all its graphs, or the requested one, to finalized graphs."""
    path = source.path
    if source.model is not None:
        from isthmus.frontends import onnx

        graph = onnx.load(source.model, path.stem, source.shapes, source.constants, whole_rows=source.whole_rows)
        return source.select([graph])
    if reading.begins(path, DLC_MAGIC):
        _refuse_constants(source, "DLC")
        from isthmus.frontends import dlc

        return dlc.load(source)
    return source.select([load_data(contents(path), source)])


@np.errstate(all="ignore")
def load_data(data: bytes, source: ModelSource) -> Graph:
    """Convert the contents of a TFLite or ONNX file, which may differ from those of the source's file, to a graph.

    Weights that an ONNX model keeps in other files are read from the folder of the source.
    """
    path = source.path
    if is_tflite(data):
        _refuse_constants(source, "TFLite model")
        from isthmus.frontends import tflite

        return tflite.load(data, path.name, source.shapes)
    if data[0] in _ONNX_TAGS:
        from isthmus.frontends import onnx

        model = _onnx_contents(path, data)
        return onnx.load(model, path.stem, source.shapes, source.constants, whole_rows=source.whole_rows)
    raise unknown_format(path, data)


def with_contents(source: ModelSource) -> ModelSource:
    """Return the source with the contents of its file, if that is an ONNX file; return other sources unchanged.

    A model with open dimensions may be converted again, for other shapes, so its external weights are read too.
    """
    if source.model is not None or not is_onnx(reading.beginning(source.path, 8)):
        return source
    model = _onnx_contents(source.path, contents(source.path))
    source = replace(source, model=model)
    if any(map(any, open_dims(source).values())):
        model.keep_external_data()
    return source


def _onnx_contents(path: Path, data: bytes) -> OnnxContents:
    """Parse the bytes of an ONNX file."""
    from isthmus.frontends.onnx.schema import OnnxContents

    return OnnxContents.parse(data, path.name, path.parent)


def staged_model(source: ModelSource, bounds: Mapping[str, Any] | None = None, selects: bool = True) -> StagedModel:
    """Read an ONNX file as a model that is converted in stages, at the greatest shapes that the source has.

    The parameters are those of `isthmus.frontends.onnx.staged.StagedModel`.
    """
    from isthmus.frontends.onnx.staged import StagedModel

    model = source.model or _onnx_contents(source.path, contents(source.path))
    # Each stage reads the weights again.
    model.keep_external_data()
    return StagedModel(model, source.path.stem, source.shapes, source.constants, bounds, selects)


def open_dims(source: ModelSource) -> dict[str, tuple[bool, ...]]:
    """Return which dimensions of each input the ONNX file of an opened source leaves open; empty for other formats."""
    if source.model is None:
        return {}
    from isthmus.frontends.onnx import signature

    return signature.open_dims(source.model.message.graph)


def assumed_shapes(source: ModelSource) -> dict[str, list[int | str]]:
    """Return the shapes of an ONNX file's inputs of which open dimensions become 1; these are given as their names.

    The result is empty for other formats, and for a file that cannot be read: loading it reports why.
    """
    if not is_onnx(reading.beginning(source.path, 8)):
        return {}
    from isthmus.frontends.onnx import schema, signature

    try:
        graph = schema.parse_model(contents(source.path), source.path.name).graph
        return signature.assumed_shapes(graph, source.shapes or {})
    except QnnError:
        return {}


def _refuse_constants(source: ModelSource, kind: str) -> None:
    """Refuse values for inputs, which only ONNX models can bind; `kind` names the format."""
    if source.constants:
        rule = f"inputs of a {kind} cannot be constants"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"model file '{source.path}'", rule)


def is_library(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a shared library (ELF) does."""
    return reading.begins(path, LIBRARY_MAGIC)


def is_tflite(data: bytes) -> bool:
    """Return whether these are the bytes of a TFLite file; if not, they may be an ONNX file's."""
    return data[4:8] == _TFLITE_IDENTIFIER


def is_model(head: bytes) -> bool:
    """Return whether these first eight bytes are those of a model file or a model library."""
    return head.startswith((DLC_MAGIC, LIBRARY_MAGIC)) or is_tflite(head) or is_onnx(head)


def is_onnx(head: bytes) -> bool:
    """Return whether these first eight bytes are those of an ONNX file."""
    return head != b"" and not is_tflite(head) and head[0] in _ONNX_TAGS


def is_self_contained(data: bytes) -> bool:
    """Return whether a model needs no other file than its own; an ONNX model may keep weights in other files.

    A damaged file counts as self-contained; loading it reports the damage.
    """
    if not data or is_tflite(data) or data[0] not in _ONNX_TAGS:
        return True
    from isthmus.frontends.onnx.schema import parse_model
    from isthmus.frontends.onnx.tensors import has_external_data

    try:
        return not has_external_data(parse_model(data, ""))
    except QnnError:
        return True


def contents(path: Path) -> bytes:
    """Read the bytes of a TFLite or ONNX file."""
    with reading_errors(path):
        data = reading.contents(path, _MAX_BYTES)
    if not data:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"model file '{path}'", "it is empty")
    return data
