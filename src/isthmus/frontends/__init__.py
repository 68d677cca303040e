"""Model files become graphs: TFLite and ONNX, told apart by their contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import reading
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.graph import Graph

__all__ = ["contents", "load"]

_TFLITE_IDENTIFIER = b"TFL3"
_ONNX_TAGS = frozenset(b"\x08\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca\xd2")
"""The first bytes of a protobuf message that has the fields of ONNX's ModelProto."""

_MAX_BYTES = 1 << 31
"""Neither flatbuffers nor protobuf messages are longer."""


def load(
    path: str | Path,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
) -> Graph:
    """Read a model file and convert it to a finalized graph.

    Parameters
    ----------
    path
        A TFLite or ONNX file; what it is, its contents tell.
    shapes
        Dimensions of inputs, by name, where the file leaves some open; open ones become 1 otherwise.
    constants
        Inputs of an ONNX model to be bound to values; they are no longer inputs of the graph.

    Raises
    ------
    QnnError
        If the file cannot be read, is neither format, is damaged, or uses what is not supported.
    """
    path = Path(path)
    data = contents(path)
    if data[4:8] == _TFLITE_IDENTIFIER:
        if constants:
            raise QnnError(
                Code.GRAPH_INVALID_ARGUMENT, f"model file '{path}'", "inputs of a TFLite model cannot be constants"
            )
        from isthmus.frontends import tflite

        return tflite.load(data, path.stem, shapes)
    if data[0] not in _ONNX_TAGS:
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT,
            f"model file '{path}'",
            "it is neither a TFLite nor an ONNX model",
            "TFLite files carry 'TFL3' at byte 4; ONNX files are protobuf messages.",
        )
    from isthmus.frontends import onnx

    return onnx.load(data, path.stem, shapes, constants, folder=path.parent)


def contents(path: Path) -> bytes:
    """The bytes of a model file of either format."""
    what = f"model file '{path}'"
    try:
        data = reading.contents(path, _MAX_BYTES)
    except FileNotFoundError:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "there is no such file") from None
    except OSError as problem:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"it cannot be read: {problem.strerror}") from None
    except MemoryError:
        raise QnnError(Code.COMMON_MEM_ALLOC, what, "there is not enough memory to read it") from None
    if not data:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it is empty")
    return data
