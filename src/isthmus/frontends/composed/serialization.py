"""Composed graphs as bytes, to hand from one process to another: a JSON header, then the bytes of tensors.

Whoever reads them believes nothing: the other process may have run foreign code.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar

MAGIC = b"ISTHMCMP"
MAX_HEADER = 1 << 26
"""What no graph's description exceeds without its arrays. Read as JSON it takes some ten times as much."""
ALIGNMENT = 64
_PREFIX = struct.Struct("<8sQ")
_ENCODED = {"scales": "<f4", "offsets": "<i4"}
_MALFORMED = (struct.error, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def write(graphs: Sequence[GraphEntry], stream: BinaryIO) -> None:
    """Write graphs."""
    blobs: list[memoryview] = []
    place = 0

    def blob(data: memoryview) -> list[int]:
        nonlocal place
        blobs.append(data)
        told = [place, len(data)]
        place += _padded(len(data))
        return told

    def encoding(entry: EncodingEntry | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        arrays = {name: memoryview(getattr(entry, name).astype(kind).tobytes()) for name, kind in _ENCODED.items()}
        return {**{name: blob(data) for name, data in arrays.items()}, "axis": entry.axis, "bits": entry.bits,
                "kind": entry.kind}  # fmt: skip

    def tensor(entry: ComposedTensor) -> dict[str, Any]:
        return {"name": entry.name, "type": entry.type, "dtype": entry.dtype, "dims": list(entry.dims),
                "mem_type": entry.mem_type, "encoding": encoding(entry.encoding),
                "data": None if entry.data is None else blob(entry.data)}  # fmt: skip

    def node(entry: NodeEntry) -> dict[str, Any]:
        params = {
            name: {"tensor": tensor(value)} if isinstance(value, ComposedTensor) else {"scalar": value}
            for name, value in entry.params.items()
        }
        return {"name": entry.name, "type": entry.type, "package": entry.package, "inputs": entry.inputs,
                "outputs": entry.outputs, "params": params}  # fmt: skip

    header = [
        {"name": graph.name, "tensors": [tensor(t) for t in graph.tensors], "nodes": [node(n) for n in graph.nodes]}
        for graph in graphs
    ]
    text = json.dumps(header).encode()
    stream.write(_PREFIX.pack(MAGIC, len(text)))
    stream.write(text)
    stream.write(bytes(_padded(_PREFIX.size + len(text)) - _PREFIX.size - len(text)))
    for data in blobs:
        stream.write(data)
        stream.write(bytes(_padded(len(data)) - len(data)))


def read(data: memoryview, what: str) -> list[GraphEntry]:
    """The graphs that were written; their bytes are views of `data`."""
    try:
        magic, length = _PREFIX.unpack_from(data)
        if magic != MAGIC or length > min(MAX_HEADER, len(data)):
            raise ValueError("it has no header")
        header = json.loads(bytes(data[_PREFIX.size : _PREFIX.size + length]))
        blobs = _Blobs(data[_padded(_PREFIX.size + length) :])
        return [_graph(graph, blobs) for graph in header]
    except _MALFORMED as problem:
        rule = f"the graphs that it answers are not well-formed: {problem}"
        raise QnnError(Code.COMMON_LOADING_BINARIES, what, rule) from None


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _Blobs:
    """The bytes of tensors. All that is taken of them is no more than there is: what is told twice is no small file."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._left = data, len(data)

    def take(self, told: Any) -> memoryview:
        """A part, by its place and length."""
        start, length = (_whole(number) for number in told)
        if start + length > len(self._data):
            raise ValueError("a tensor lies outside")
        self._left -= length
        if self._left < 0:
            raise ValueError("tensors lie in one another")
        return self._data[start : start + length]


def _graph(told: dict[str, Any], blobs: _Blobs) -> GraphEntry:
    return GraphEntry(
        _text(told["name"]),
        tuple(_tensor(tensor, blobs) for tensor in told["tensors"]),
        tuple(_node(node, blobs) for node in told["nodes"]),
    )


def _node(told: dict[str, Any], blobs: _Blobs) -> NodeEntry:
    params: dict[str, Scalar | ComposedTensor] = {
        name: _tensor(value["tensor"], blobs) if "tensor" in value else _scalar(value["scalar"])
        for name, value in told["params"].items()
    }
    inputs, outputs = (tuple(_text(name) for name in told[side]) for side in ("inputs", "outputs"))
    return NodeEntry(_text(told["name"]), _text(told["type"]), inputs, outputs, params, {}, _text(told["package"]))


def _tensor(told: dict[str, Any], blobs: _Blobs) -> ComposedTensor:
    data = None if told["data"] is None else blobs.take(told["data"])
    name, dims = _text(told["name"]), tuple(_whole(d) for d in told["dims"])
    numbers = (_whole(told["type"]), _whole(told["dtype"]))
    return ComposedTensor(name, *numbers, dims, _encoding(told["encoding"], blobs), data, _whole(told["mem_type"]))


def _encoding(told: dict[str, Any] | None, blobs: _Blobs) -> EncodingEntry | None:
    if told is None:
        return None
    scales, offsets = (np.frombuffer(blobs.take(told[name]), kind) for name, kind in _ENCODED.items())
    if len(scales) != len(offsets):
        raise ValueError("as many offsets as scales")
    axis = None if told["axis"] is None else int(told["axis"])
    return EncodingEntry(scales, offsets, axis, _whole(told["bits"]), _whole(told["kind"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise TypeError(f"{value!r} is not a size")
    return value


def _scalar(value: object) -> Scalar:
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"{value!r} is no scalar")
    return value
