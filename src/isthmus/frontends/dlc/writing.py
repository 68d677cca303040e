"""Writing of DLC files of version 4: graphs of QNN's operations, with the bytes of tensors in an entry of their own."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry, Scalar
from isthmus.frontends.dlc import archive, version4
from isthmus.frontends.dlc.version4 import (
    AttributeField,
    AxisField,
    GraphDataField,
    GraphField,
    NodeField,
    PlaceField,
    QuantizationField,
    ScalarField,
    ScaleOffsetField,
    TensorDataField,
    TensorField,
)
from isthmus.frontends.flatbuffer_writer import Field, flatbuffer
from isthmus.graph import DataType, TensorType

# The header of a record: the magic number, the version, and a number that QNN's own files have.
_RECORD = struct.pack("<HHI", 0x0AD5, 4, 1)
# The flag of an attribute that is not a parameter of the operation.
_EXTRA = 2
# The version of the metadata.
_METADATA = "2.3.0"
_NO_ENCODING = 0x7FFFFFFF
# The alignment of a tensor's bytes in their entry.
_ALIGNMENT = 8


def dlc(graphs: Sequence[GraphEntry], tool: str, version: str) -> bytes:
    """Return a DLC file with these graphs. Static tensors that no node reads are left out.

    - `tool`, `version`: the program that makes it, and its version, for the metadata.

    Raises `QnnError`: COMMON_NOT_SUPPORTED if a tensor has an encoding whose form in a DLC is not known, or a scalar is
    2**63 or more.
    """
    contents = _Contents()
    written = [_without_unused(graph) for graph in graphs]
    model = flatbuffer({0: ("tables", [_graph(graph) for graph in written])}, version4.MODEL)
    params = flatbuffer({0: ("tables", [contents.graph(graph) for graph in written])}, version4.PARAMS)
    command = {"tool": tool, "converterVersion": version}
    history = {**_header("DLC_METADATA_HISTORY"), "dlcGenerationInfo": [{"converterCommand": command}]}
    return archive.write(
        {
            f"dlc.metadata.history.{_METADATA}": json.dumps(history).encode(),
            f"dlc.metadata{_METADATA}": json.dumps(_header("DLC_METADATA")).encode(),
            "model": _RECORD + model,
            "model.params": _RECORD + params,
            "model.params.bin": bytes(contents.raw),
        }
    )


def _header(kind: str) -> dict[str, Any]:
    """Return the header of an entry of metadata, without which QNN's own reader finds no graph."""
    numbers = dict(zip(("major", "minor", "patch"), map(int, _METADATA.split(".")), strict=True))
    header_version = {"major": 0, "minor": 1, "patch": 0}
    return {"header": {"artifact_type": kind, "header_version": header_version, "version": numbers}}


class _Contents:
    """The bytes of all tensors, one after the other in `raw`, and the position of each."""

    def __init__(self) -> None:
        self.raw = bytearray()

    def graph(self, graph: GraphEntry) -> dict[int, Field]:
        """Describe the bytes of a graph's tensors and of the parameters of its nodes."""
        nodes = [[value for value in node.params.values() if isinstance(value, ComposedTensor)] for node in graph.nodes]
        return {
            GraphDataField.NAME: ("text", graph.name),
            GraphDataField.TENSORS: ("tables", [self._tensor(each) for each in graph.tensors if each.data is not None]),
            GraphDataField.NODES: ("tables", [{0: ("tables", list(map(self._tensor, each)))} for each in nodes]),
        }

    def _tensor(self, tensor: ComposedTensor) -> dict[int, Field]:
        """Append the bytes of a tensor; return the fields of a table with its name and their position."""
        data = b"" if tensor.data is None else tensor.data
        self.raw += bytes(-len(self.raw) % _ALIGNMENT)
        place = {PlaceField.OFFSET: ("u64", len(self.raw)), PlaceField.LENGTH: ("u64", len(data))}
        self.raw += data
        return {TensorDataField.NAME: ("text", tensor.name), TensorDataField.PLACE: ("table", place)}


def _without_unused(graph: GraphEntry) -> GraphEntry:
    """Leave out static tensors that are read by no node, such as those that clients create for parameters."""
    read = {name for node in graph.nodes for name in node.inputs}
    tensors = tuple(each for each in graph.tensors if each.type != TensorType.STATIC or each.name in read)
    return GraphEntry(graph.name, tensors, graph.nodes)


def _graph(graph: GraphEntry) -> dict[int, Field]:
    """Return the fields of a graph's table, by field number."""
    return {
        GraphField.NAME: ("text", graph.name),
        GraphField.NODES: ("tables", [_node(node) for node in graph.nodes]),
        GraphField.TENSORS: ("tables", [_tensor(tensor, number) for number, tensor in enumerate(graph.tensors)]),
        4: ("text", graph.name),  # QNN's files have the name twice
    }


def _node(node: NodeEntry) -> dict[int, Field]:
    """Return the fields of a node's table."""
    attributes = [
        *(_attribute(name, value, version4.PARAMETER, node.kinds) for name, value in node.params.items()),
        *(_attribute(name, value, _EXTRA, node.kinds) for name, value in node.extras.items()),
        _attribute("packageName", node.package, _EXTRA, {}),
    ]
    return {
        NodeField.NAME: ("text", node.name),
        NodeField.TYPE: ("text", node.type),
        NodeField.INPUTS: ("texts", node.inputs),
        NodeField.OUTPUTS: ("texts", node.outputs),
        NodeField.ATTRIBUTES: ("tables", attributes),
    }


def _attribute(name: str, value: Scalar | ComposedTensor, flag: int, kinds: Mapping[str, int]) -> dict[int, Field]:
    """Return the fields of an attribute's table; `flag` tells parameters from extras, `kinds` are types of scalars."""
    fields: dict[int, Field] = {AttributeField.NAME: ("text", name), AttributeField.FLAG: ("u8", flag)}
    if isinstance(value, ComposedTensor):
        tensor = ("table", _tensor(value, 0))
        return {**fields, AttributeField.KIND: ("i32", version4.TENSOR), AttributeField.TENSOR: tensor}
    scalar: dict[int, Field] = {ScalarField.DATA_TYPE: ("u32", kinds.get(name) or _kind(value))}
    if isinstance(value, str):
        scalar[ScalarField.TEXT] = ("text", value)
    elif isinstance(value, float):
        scalar[ScalarField.FLOAT] = ("f64", value)
    else:
        if value >= 1 << 63:
            rule = f"{value} has no form in a DLC, whose integers are signed and of 64 bits"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"parameter '{name}'", rule)
        scalar[ScalarField.INTEGER] = ("i64", int(value))
    return {**fields, AttributeField.KIND: ("i32", 0), AttributeField.SCALAR: ("table", scalar)}


def _kind(value: Scalar) -> int:
    """Return the data type of a scalar whose type is not given."""
    if isinstance(value, str):
        return version4.STRINGS[0]
    if isinstance(value, bool):
        return version4.BOOL
    if isinstance(value, float):
        return int(DataType.FLOAT_32)
    return int(DataType.UINT_32 if value >= 0 else DataType.INT_32)


def _tensor(tensor: ComposedTensor, number: int) -> dict[int, Field]:
    """Return the fields of a tensor's table, by field number."""
    return {
        0: ("u32", number),
        TensorField.NAME: ("text", tensor.name),
        TensorField.TYPE: ("u32", tensor.type),
        TensorField.DIMS: ("array", np.array(tensor.dims, np.uint32)),
        TensorField.QUANTIZATION: ("table", _quantization(tensor)),
        TensorField.DATA_TYPE: ("u32", tensor.dtype),
        # QNN's files have the data type twice, and then whether there is an encoding.
        7: ("u32", tensor.dtype),
        8: ("u8", int(tensor.encoding is not None)),
    }


def _quantization(tensor: ComposedTensor) -> dict[int, Field]:
    """Return the fields of the table of a tensor's quantization."""
    encoding = tensor.encoding
    if encoding is None:
        return {QuantizationField.ENCODING: ("u32", _NO_ENCODING), QuantizationField.DEFINED: ("u8", 0)}
    head: dict[int, Field] = {QuantizationField.ENCODING: ("u32", encoding.kind), QuantizationField.DEFINED: ("u8", 1)}
    # The lower byte of a data type, read as hexadecimal digits, is the number of bits: 0x0316 has 16.
    bits = encoding.bits or int(f"{tensor.dtype & 0xFF:x}")
    pairs = [_pair(bits, scale, offset) for scale, offset in zip(encoding.scales, encoding.offsets, strict=True)]
    if encoding.kind in (version4.SCALE_OFFSET, version4.BW_SCALE_OFFSET):
        return {**head, QuantizationField.SCALE_OFFSET: ("table", pairs[0])}
    if encoding.kind in (version4.AXIS_SCALE_OFFSET, version4.BW_AXIS_SCALE_OFFSET):
        axis = {AxisField.AXIS: ("i32", encoding.axis or 0), AxisField.SCALE_OFFSETS: ("tables", pairs)}
        return {**head, QuantizationField.AXIS_SCALE_OFFSET: ("table", axis)}
    rule = f"its quantization encoding {encoding.kind} has no known form in a DLC"
    raise QnnError(Code.COMMON_NOT_SUPPORTED, f"tensor '{tensor.name}'", rule)


def _pair(bits: int, scale: Any, offset: Any) -> dict[int, Field]:
    """Return a scale and offset; the limits of the range, which QNN's reader does not use, are left out."""
    return {
        ScaleOffsetField.BITS: ("u32", bits),
        ScaleOffsetField.SCALE: ("f32", float(scale)),
        ScaleOffsetField.OFFSET: ("i32", int(offset)),
    }
