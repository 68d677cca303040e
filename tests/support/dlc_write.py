"""A small writer of DLC files, for forms that no tool at hand makes: older ones, several graphs, narrow weights."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.frontends import flatbuffer_writer
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry
from isthmus.graph import DataType, TensorType

RAW, OLD, OLDER = "raw", "old", "older"
"""Forms of version 4: weights in an entry of their own; weights in line; and that with scalars of 32 bits."""

Field = tuple[str, Any]
Table = Mapping[int, Field]
"""A flatbuffer table: kind and value by field. Kinds are scalars ("u32" …), "text", "texts", "bytes", "u32s", "i32s",
"f32s", "table" and "tables"."""

_VECTORS = {"u32s": np.uint32, "i32s": np.int32, "f32s": np.float32, "bytes": np.uint8}


# --- flatbuffers and archives ---------------------------------------------------------------------------------------


def flatbuffer(root: Table, identifier: bytes) -> bytes:
    return flatbuffer_writer.flatbuffer(_fields(root), identifier)


def _fields(table: Table) -> flatbuffer_writer.TableFields:
    """The table with kinds as the writer has them."""
    return {number: _field(kind, value) for number, (kind, value) in table.items()}


def _field(kind: str, value: Any) -> Field:
    if kind in _VECTORS:
        return "array", np.frombuffer(value, np.uint8) if kind == "bytes" else np.asarray(value, _VECTORS[kind])
    if kind == "table":
        return kind, _fields(value)
    return kind, [_fields(each) for each in value] if kind == "tables" else value


def record(version: int, content: bytes, minor: int = 1) -> bytes:
    return struct.pack("<HHI", 0x0AD5, version, minor) + content


def archive(entries: Mapping[str, bytes], wide: bool = True) -> bytes:
    """A zip of stored entries without checksums, as DLCs are; `wide` ones have 64-bit sizes."""
    content, directory = b"", b""
    for name, data in entries.items():
        raw = name.encode()
        at = len(content)
        padding = -(at + 30 + len(raw) + 4) % 8
        content += struct.pack("<4s5H3I2H", b"PK\3\4", 45, 0, 0, 0, 0, 0, len(data), len(data), len(raw), 4 + padding)
        content += raw + struct.pack("<HH", 0xD935, padding) + bytes(padding) + data
        sizes = (0xFFFFFFFF,) * 3 if wide else (len(data), len(data), at)
        extra = struct.pack("<HHQQQ", 1, 24, len(data), len(data), at) if wide else b""
        directory += struct.pack("<4s6H3I5H2I", b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, *sizes[:2], len(raw), len(extra),
                                 0, 0, 0, 0, sizes[2]) + raw + extra  # fmt: skip
    start, count = len(content), len(entries)
    end = b""
    if wide:
        end = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(directory), start)
        end += struct.pack("<4sIQI", b"PK\6\7", 0, start + len(directory), 1)
    sizes = (0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF) if wide else (count, count, len(directory), start)
    return content + directory + end + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, *sizes, 0)


# --- graphs of version 4 --------------------------------------------------------------------------------------------


def tensor(
    name: str,
    type: TensorType,
    dims: Sequence[int],
    dtype: int = DataType.FLOAT_32,
    data: np.ndarray | bytes | None = None,
    scale: float | Sequence[float] | None = None,
    offset: int = 0,
    axis: int | None = None,
    bits: int = 0,
) -> ComposedTensor:
    encoding = None
    if scale is not None:
        scales = np.atleast_1d(np.float32(scale))
        kind = (axis is not None) + 2 * bool(bits)
        encoding = EncodingEntry(scales, np.full(len(scales), offset, np.int32), axis, bits, kind)
    held = None if data is None else memoryview(data if isinstance(data, bytes) else data.tobytes())
    return ComposedTensor(name, int(type), int(dtype), tuple(dims), encoding, held)


def static(name: str, array: np.ndarray, **more: Any) -> ComposedTensor:
    """A constant of the plain data type of an array, or of another one."""
    more.setdefault("dtype", DataType.of(array.dtype))
    return tensor(name, TensorType.STATIC, array.shape, data=array, **more)


def node(
    name: str, type: str, inputs: Sequence[str], outputs: Sequence[str], params: Mapping[str, Any] | None = None,
    **extras: Any,
) -> NodeEntry:  # fmt: skip
    values = {
        key: static(f"{name}_{key}", value) if isinstance(value, np.ndarray) else value
        for key, value in (params or {}).items()
    }
    return NodeEntry(name, type, tuple(inputs), tuple(outputs), values, extras)


def dlc(graphs: Sequence[GraphEntry], layout: str = RAW, more: Mapping[str, bytes] | None = None) -> bytes:
    """A DLC of version 4 with these graphs, and more entries."""
    wide = layout != OLDER
    raw = bytearray()

    def bytes_of(one: ComposedTensor) -> dict[int, Field]:
        content = bytes(one.data or b"")
        if layout != RAW:
            return {0: ("text", one.name), 1: ("bytes", content)}
        raw.extend(bytes(-len(raw) % 8))
        place = {0: ("u64", len(raw)), 1: ("u64", len(content))}
        raw.extend(content)
        return {0: ("text", one.name), 3: ("table", place)}

    def params_of(graph: GraphEntry) -> dict[int, Field]:
        held = [bytes_of(one) for one in graph.tensors if one.data is not None]
        nodes = [
            {0: ("tables", [bytes_of(v) for v in node.params.values() if isinstance(v, ComposedTensor)])}
            for node in graph.nodes
        ]
        return {0: ("text", graph.name), 1: ("tables", held), 2: ("tables", nodes)}

    params = {0: ("tables", [params_of(graph) for graph in graphs])}
    model = {0: ("tables", [_graph(graph, wide) for graph in graphs])}
    entries = {
        "model": record(4, flatbuffer(model, b"NETD"), minor=int(layout == RAW)),
        "model.params": record(4, flatbuffer(params, b"NETP"), minor=int(layout == RAW)),
    }
    if layout == RAW:
        entries["model.params.bin"] = bytes(raw)
    return archive({**entries, **(more or {})})


def _graph(graph: GraphEntry, wide: bool) -> dict[int, Field]:
    nodes = [
        {
            0: ("text", node.name),
            1: ("text", node.type),
            2: ("texts", node.inputs),
            3: ("texts", node.outputs),
            4: (
                "tables",
                [_attribute(name, value, 1, wide) for name, value in node.params.items()]
                + [_attribute(name, value, 2, wide) for name, value in node.extras.items()]
                + [_attribute("packageName", node.package, 2, wide)],
            ),
        }
        for node in graph.nodes
    ]
    tensors = [_tensor(tensor, index) for index, tensor in enumerate(graph.tensors)]
    return {0: ("text", graph.name), 1: ("tables", nodes), 2: ("tables", tensors), 4: ("text", graph.name)}


def _attribute(name: str, value: Any, flag: int, wide: bool) -> dict[int, Field]:
    fields: dict[int, Field] = {0: ("text", name), 2: ("u8", flag)}
    if isinstance(value, ComposedTensor):
        return {**fields, 1: ("i32", 1), 4: ("table", _tensor(value, 0))}
    if isinstance(value, str):
        scalar = {0: ("u32", 0x0608 if wide else 0x7FFFFFFF), 3: ("text", value)}
    elif isinstance(value, bool):
        scalar = {0: ("u32", 0x0508), 1: ("i64" if wide else "i32", int(value))}
    elif isinstance(value, float):
        scalar = {0: ("u32", 0x0232), 2: ("f64" if wide else "f32", value)}
    else:
        scalar = {0: ("u32", 0x0132 if value >= 0 else 0x0032), 1: ("i64" if wide else "i32", value)}
    return {**fields, 1: ("i32", 0), 3: ("table", scalar)}


def _tensor(one: ComposedTensor, index: int) -> dict[int, Field]:
    return {
        0: ("u32", index),
        1: ("text", one.name),
        2: ("u32", one.type),
        3: ("u32s", one.dims),
        4: ("u32", 0),
        5: ("table", _quantization(one.encoding)),
        6: ("u32", one.dtype),
        7: ("u32", one.dtype),
        8: ("u8", int(one.encoding is not None)),
    }


def _quantization(encoding: EncodingEntry | None) -> dict[int, Field]:
    if encoding is None:
        return {0: ("u32", 0x7FFFFFFF), 1: ("u8", 0)}
    each = [
        {0: ("u32", encoding.bits or 8), 1: ("f32", 0.0), 2: ("f32", 1.0), 3: ("f32", float(scale)),
         4: ("i32", int(offset)), 5: ("u8", 0)}
        for scale, offset in zip(encoding.scales, encoding.offsets, strict=True)
    ]  # fmt: skip
    head = {0: ("u32", encoding.kind), 1: ("u8", 1)}
    if encoding.kind in (0, 2):
        return {**head, 2: ("table", each[0])}
    if encoding.kind in (1, 3):
        return {**head, 3: ("table", {0: ("i32", encoding.axis), 1: ("tables", each)})}
    return head


# --- layers of version 3 --------------------------------------------------------------------------------------------


def layer(
    name: str, kind: str, inputs: Sequence[str], outputs: Sequence[str], dims: Sequence[Sequence[int]] = (),
    **attributes: Any,
) -> dict[int, Field]:  # fmt: skip
    """A layer, with the dimensions of its outputs and other attributes."""
    reported = {"OutputDims": {str(index): list(each) for index, each in enumerate(dims)}, **attributes}
    return {
        0: ("i32", 0),
        1: ("text", name),
        2: ("text", kind),
        3: ("texts", inputs),
        4: ("texts", outputs),
        5: ("tables", [_attribute3(key, value) for key, value in reported.items()]),
    }


def _attribute3(name: str, value: Any) -> dict[int, Field]:
    if isinstance(value, dict):
        return {0: ("text", name), 1: ("u8", 11), 12: ("tables", [_attribute3(k, v) for k, v in value.items()])}
    kind, field, form = {
        bool: (1, 2, "bool"), int: (2, 3, "i32"), float: (4, 5, "f32"), str: (5, 6, "text"), list: (8, 9, "i32s"),
    }[type(value)]  # fmt: skip
    return {0: ("text", name), 1: ("u8", kind), field: (form, value)}


def dlc3(layers: Sequence[Table], weights: Mapping[str, Mapping[str, np.ndarray]] | None = None) -> bytes:
    """A DLC of version 3: layers, and their weights by the layers' names. Floats are weights, bytes quantized ones."""
    held = []
    for name, arrays in (weights or {}).items():
        tables = []
        for key, array in arrays.items():
            quantized = array.dtype == np.uint8
            data = {0: ("u8", 6), 1: ("bytes", array.tobytes())} if quantized else {0: ("u8", 9), 2: ("f32s", array)}
            tables.append({0: ("text", key), 1: ("i32s", array.shape), 2: ("table", data)})
        held.append({0: ("text", name), 1: ("tables", tables)})
    return archive(
        {
            "model": record(3, flatbuffer({0: ("i32", 0), 1: ("tables", layers)}, b"NETD"), minor=0),
            "model.params": record(3, flatbuffer({0: ("tables", held)}, b"NETP"), minor=0),
            "dlc.metadata": b"converter-command=snpe-onnx-to-dlc --input x\nconverter-version=1.68.0\n",
        }
    )
