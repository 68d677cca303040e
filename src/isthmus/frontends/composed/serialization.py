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
from isthmus.frontends.composed.entries import EncodingEntry, GraphEntry, NodeEntry, Scalar, TensorEntry

MAGIC = b"ISTHMCMP"
MAX_HEADER = 1 << 28
ALIGNMENT = 64
_PREFIX = struct.Struct("<8sQ")
_MALFORMED = (struct.error, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)


def write(graphs: Sequence[GraphEntry], stream: BinaryIO) -> None:
    """Write graphs."""
    blobs: list[memoryview] = []
    place = 0

    def tensor(entry: TensorEntry) -> dict[str, Any]:
        nonlocal place
        told = {"name": entry.name, "type": entry.type, "dtype": entry.dtype, "dims": list(entry.dims),
                "mem_type": entry.mem_type, "encoding": _told(entry.encoding), "data": None}  # fmt: skip
        if entry.data is not None:
            told["data"] = [place, len(entry.data)]
            blobs.append(entry.data)
            place += _padded(len(entry.data))
        return told

    def node(entry: NodeEntry) -> dict[str, Any]:
        params = {
            name: {"tensor": tensor(value)} if isinstance(value, TensorEntry) else {"scalar": value}
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
    for blob in blobs:
        stream.write(blob)
        stream.write(bytes(_padded(len(blob)) - len(blob)))


def read(data: memoryview, what: str) -> list[GraphEntry]:
    """The graphs that were written; their bytes are views of `data`."""
    try:
        magic, length = _PREFIX.unpack_from(data)
        if magic != MAGIC or length > min(MAX_HEADER, len(data)):
            raise ValueError("it has no header")
        header = json.loads(bytes(data[_PREFIX.size : _PREFIX.size + length]))
        blobs = data[_padded(_PREFIX.size + length) :]
        return [_graph(graph, blobs) for graph in header]
    except _MALFORMED as problem:
        rule = f"the graphs that it answers are not well-formed: {problem}"
        raise QnnError(Code.COMMON_LOADING_BINARIES, what, rule) from None


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _told(encoding: EncodingEntry | None) -> dict[str, Any] | None:
    if encoding is None:
        return None
    return {"scales": encoding.scales.tolist(), "offsets": encoding.offsets.tolist(), "axis": encoding.axis,
            "bits": encoding.bits, "kind": encoding.kind}  # fmt: skip


def _graph(told: dict[str, Any], blobs: memoryview) -> GraphEntry:
    return GraphEntry(
        _text(told["name"]),
        tuple(_tensor(tensor, blobs) for tensor in told["tensors"]),
        tuple(_node(node, blobs) for node in told["nodes"]),
    )


def _node(told: dict[str, Any], blobs: memoryview) -> NodeEntry:
    params: dict[str, Scalar | TensorEntry] = {
        name: _tensor(value["tensor"], blobs) if "tensor" in value else _scalar(value["scalar"])
        for name, value in told["params"].items()
    }
    inputs, outputs = (tuple(_text(name) for name in told[side]) for side in ("inputs", "outputs"))
    return NodeEntry(_text(told["name"]), _text(told["type"]), inputs, outputs, params, {}, _text(told["package"]))


def _tensor(told: dict[str, Any], blobs: memoryview) -> TensorEntry:
    data = None
    if told["data"] is not None:
        start, length = (_whole(number) for number in told["data"])
        if start + length > len(blobs):
            raise ValueError("a tensor lies outside")
        data = blobs[start : start + length]
    name, dims = _text(told["name"]), tuple(_whole(d) for d in told["dims"])
    numbers = (_whole(told["type"]), _whole(told["dtype"]))
    return TensorEntry(name, *numbers, dims, _encoding(told["encoding"]), data, _whole(told["mem_type"]))


def _encoding(told: dict[str, Any] | None) -> EncodingEntry | None:
    if told is None:
        return None
    scales = np.array([float(s) for s in told["scales"]], np.float32)
    offsets = np.array([int(o) for o in told["offsets"]], np.int32)
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
