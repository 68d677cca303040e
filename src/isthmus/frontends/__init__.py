"""Conversion of model files to graphs. TFLite, ONNX and DLC files are recognized by their contents."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.errors import Code, QnnError, code_of
from isthmus.frontends.formats import unknown_format
from isthmus.frontends.model_source import ModelSource
from isthmus.system import reading

if TYPE_CHECKING:
    from isthmus.graph import Graph

__all__ = [
    "DLC_MAGIC",
    "LIBRARY_MAGIC",
    "ModelSource",
    "contents",
    "is_model",
    "is_self_contained",
    "is_tflite",
    "load",
    "load_all",
    "load_data",
    "unknown_format",
]

LIBRARY_MAGIC = b"\x7fELF"
"""The first bytes of a compiled model library. Such a file is not read but run, by `isthmus.qnn.model_library`."""

_TFLITE_IDENTIFIER = b"TFL3"
_ONNX_TAGS = frozenset(b"\x08\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca\xd2")
"""The first bytes of a protobuf message that has the fields of ONNX's ModelProto."""

DLC_MAGIC = b"PK\x03\x04"
"""The first bytes of a DLC, which is a zip archive. No ONNX model begins with any of these bytes."""

_MAX_BYTES = 1 << 31
"""The largest file that is read. Neither flatbuffers nor protobuf messages can be longer."""


def load(
    path: str | os.PathLike[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    graph: str | None = None,
) -> Graph:
    """Read a model file and convert one of its graphs to a finalized graph. The parameters are those of `ModelSource`.

    Raises
    ------
    QnnError
        If the file cannot be read, has another format, is damaged, or uses an unsupported feature.
    """
    source = ModelSource(Path(path), shapes, constants, graph)
    return source.only(load_all(source))


@np.errstate(all="ignore")
def load_all(source: ModelSource) -> list[Graph]:
    """Read a model file and convert all its graphs, or the requested one, to finalized graphs."""
    path = source.path
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

        return tflite.load(data, path.stem, source.shapes)
    if data[0] in _ONNX_TAGS:
        from isthmus.frontends import onnx

        return onnx.load(data, path.stem, source.shapes, source.constants, folder=path.parent)
    raise unknown_format(path, data)


def _refuse_constants(source: ModelSource, kind: str) -> None:
    """Refuse values for inputs, which only ONNX models can bind; `kind` names the format."""
    if source.constants:
        rule = f"inputs of a {kind} cannot be constants"
        raise QnnError(Code.GRAPH_INVALID_ARGUMENT, f"model file '{source.path}'", rule)


def is_tflite(data: bytes) -> bool:
    """Return whether these are the bytes of a TFLite file; if not, they may be an ONNX file's."""
    return data[4:8] == _TFLITE_IDENTIFIER


def is_model(head: bytes) -> bool:
    """Return whether these first eight bytes are those of a model file or a model library."""
    return head.startswith((DLC_MAGIC, LIBRARY_MAGIC)) or is_tflite(head) or (head != b"" and head[0] in _ONNX_TAGS)


def is_self_contained(data: bytes) -> bool:
    """Return whether a model's file is all that it needs: an ONNX model may keep weights in other files.

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
    what = f"model file '{path}'"
    try:
        data = reading.contents(path, _MAX_BYTES)
    except FileNotFoundError:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "there is no such file") from None
    except OSError as problem:
        code = code_of(problem, Code.COMMON_INVALID_ARGUMENT)
        raise QnnError(code, what, f"it cannot be read: {problem.strerror}") from None
    except MemoryError:
        raise QnnError(Code.COMMON_MEM_ALLOC, what, "there is not enough memory to read it") from None
    if not data:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it is empty")
    return data
