"""DLC files of version 4 with float graphs, as QNN's tools compose them."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence

import numpy as np

from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry
from isthmus.frontends.dlc import version4 as form
from isthmus.tools.sample_models.flatbuffer import Field, Table, flatbuffer

_BEGINNING = struct.pack("<HHI", 0x0AD5, 4, 0)
"""How an entry begins: a fixed number, the version, and that bytes of tensors are inline."""
_UINT_32 = 0x0132
_NO_ENCODING = 0x7FFFFFFF
_DATE = (2020, 1, 1, 0, 0, 0)
"""The same for every file, so that files are the same every time."""


def dlc_file(graphs: Sequence[GraphEntry]) -> bytes:
    """Return the bytes of a DLC with these graphs, whose scalar parameters are integers and truth values."""
    entries = {
        "model": flatbuffer({0: ("tables", [_graph(graph) for graph in graphs])}, form.MODEL),
        "model.params": flatbuffer({0: ("tables", [_contents(graph) for graph in graphs])}, form.PARAMS),
    }
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), _BEGINNING + content)
    return stream.getvalue()


def _graph(graph: GraphEntry) -> Table:
    """Describe a graph: its nodes and tensors, without the bytes of tensors."""
    return {
        form.GraphField.NAME: ("text", graph.name),
        form.GraphField.NODES: ("tables", [_node(node) for node in graph.nodes]),
        form.GraphField.TENSORS: ("tables", [_tensor(tensor) for tensor in graph.tensors]),
    }


def _node(node: NodeEntry) -> Table:
    attributes: list[Table] = []
    for name, value in node.params.items():
        fields: dict[int, Field] = {form.AttributeField.NAME: ("text", name)}
        fields[form.AttributeField.FLAG] = ("u8", form.PARAMETER)
        if isinstance(value, ComposedTensor):
            fields[form.AttributeField.KIND] = ("i32", form.TENSOR)
            fields[form.AttributeField.TENSOR] = ("table", _tensor(value))
        else:
            kind = form.BOOL if isinstance(value, bool) else _UINT_32
            scalar = {form.ScalarField.DATA_TYPE: ("u32", kind), form.ScalarField.INTEGER: ("i64", int(value))}
            fields[form.AttributeField.SCALAR] = ("table", scalar)
        attributes.append(fields)
    return {
        form.NodeField.NAME: ("text", node.name),
        form.NodeField.TYPE: ("text", node.type),
        form.NodeField.INPUTS: ("texts", node.inputs),
        form.NodeField.OUTPUTS: ("texts", node.outputs),
        form.NodeField.ATTRIBUTES: ("tables", attributes),
    }


def _tensor(tensor: ComposedTensor) -> Table:
    encoding = {form.QuantizationField.ENCODING: ("u32", _NO_ENCODING), form.QuantizationField.DEFINED: ("u8", 0)}
    return {
        form.TensorField.NAME: ("text", tensor.name),
        form.TensorField.TYPE: ("u32", tensor.type),
        form.TensorField.DIMS: ("array", np.array(tensor.dims, np.uint32)),
        form.TensorField.QUANTIZATION: ("table", encoding),
        form.TensorField.DATA_TYPE: ("u32", tensor.dtype),
    }


def _contents(graph: GraphEntry) -> Table:
    """Return the bytes of a graph's constants, and of the parameters of each node."""

    def held(tensors: Sequence[object]) -> Field:
        found = [each for each in tensors if isinstance(each, ComposedTensor) and each.data is not None]
        return "tables", [
            {
                form.TensorDataField.NAME: ("text", tensor.name),
                form.TensorDataField.BYTES: ("array", np.frombuffer(tensor.data or b"", np.uint8)),
            }
            for tensor in found
        ]

    return {
        form.GraphDataField.NAME: ("text", graph.name),
        form.GraphDataField.TENSORS: held(graph.tensors),
        form.GraphDataField.NODES: ("tables", [{0: held(list(node.params.values()))} for node in graph.nodes]),
    }
