"""Version 4 of the format: graphs of QNN tensors and nodes in ``model``, locations of bytes in ``model.params``.

Older files store the bytes inline, newer ones in a separate entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum

import numpy as np

from isthmus.frontends.composed.entries import PACKAGE, ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar
from isthmus.frontends.dlc.contents import Reading
from isthmus.frontends.flatbuffer import Table

MODEL, PARAMS = b"NETD", b"NETP"
"""The flatbuffer identifiers of the entries ``model`` and ``model.params``."""

MAX_RANK = 16
"""The most dimensions that are read; a graph has its own limit."""
TENSOR = 1
"""The kind of an attribute that is a tensor; other attributes are scalars."""
PARAMETER = 1
"""The flag of an attribute that is a parameter of the operation; others carry additional information."""
# QNN's numbers of data types that decide how a scalar is stored.
STRINGS = (0x0608, 0x7FFFFFFF)
FLOATS = (0x0216, 0x0232, 0x0264)
BOOL = 0x0508
SCALE_OFFSET, AXIS_SCALE_OFFSET, BW_SCALE_OFFSET, BW_AXIS_SCALE_OFFSET = range(4)
"""QNN's numbers of encodings. An encoding's bits are used only in the last two, because QNN's own reader ignores them
in the others.
"""

# Fields of tables, by number.
GraphField = IntEnum("GraphField", "NAME NODES TENSORS", start=0)
NodeField = IntEnum("NodeField", "NAME TYPE INPUTS OUTPUTS ATTRIBUTES", start=0)
AttributeField = IntEnum("AttributeField", "NAME KIND FLAG SCALAR TENSOR", start=0)
ScalarField = IntEnum("ScalarField", "DATA_TYPE INTEGER FLOAT TEXT", start=0)
"""Fields of a scalar; its QNN data type says which of them is used. An absent field is 0."""
TensorField = IntEnum("TensorField", {"NAME": 1, "TYPE": 2, "DIMS": 3, "QUANTIZATION": 5, "DATA_TYPE": 6})
QuantizationField = IntEnum("QuantizationField", "ENCODING DEFINED SCALE_OFFSET AXIS_SCALE_OFFSET", start=0)
ScaleOffsetField = IntEnum("ScaleOffsetField", {"BITS": 0, "SCALE": 3, "OFFSET": 4})
AxisField = IntEnum("AxisField", "AXIS SCALE_OFFSETS", start=0)
GraphDataField = IntEnum("GraphDataField", "NAME TENSORS NODES", start=0)
"""Fields of the parameters of a graph: its static tensors, and the parameter tensors of each node."""
TensorDataField = IntEnum("TensorDataField", {"NAME": 0, "BYTES": 1, "PLACE": 3})
"""Fields of a tensor's bytes: inline, or a location in the entry for bytes."""
PlaceField = IntEnum("PlaceField", "OFFSET LENGTH", start=0)


class Data:
    """The bytes of a file's tensors, found by graph, node and name.

    - `params`: the entry ``model.params``, if the file has it: bytes of tensors, or their locations in `raw`.
    - `raw`: the entry ``model.params.bin``; empty in older files.
    """

    def __init__(self, params: Reading | None, raw: memoryview) -> None:
        self._params = params
        self._raw = raw
        # The table of each graph's bytes, by the graph's name.
        self._graphs: dict[str, Table] = {}
        if params is not None:
            for graph in params.root.tables(0, "graph"):
                params.count()
                self._graphs.setdefault(graph.text(GraphDataField.NAME) or "", graph)

    def of_graph(self, graph: str) -> dict[str, memoryview]:
        """Return the bytes of the static tensors of a graph."""
        table = self._graphs.get(graph)
        return {} if table is None else self._tensors(table, GraphDataField.TENSORS)

    def of_nodes(self, graph: str) -> Iterator[dict[str, memoryview]]:
        """Yield the bytes of the parameters of each node in turn; empty dictionaries after the listed nodes."""
        table = self._graphs.get(graph)
        if table is not None:
            for node in table.tables(GraphDataField.NODES, "node parameters"):
                assert self._params is not None
                self._params.count()
                yield self._tensors(node, 0)
        while True:
            yield {}

    def _tensors(self, table: Table, field: int) -> dict[str, memoryview]:
        """Return the bytes of the tensors in a vector field, by their names."""
        assert self._params is not None
        contents = {}
        for tensor in table.tables(field, "tensor data"):
            self._params.count()
            contents[tensor.text(TensorDataField.NAME) or ""] = self._bytes(tensor)
        return contents

    def _bytes(self, tensor: Table) -> memoryview:
        """Return the bytes of one tensor: those at its location, or those stored inline."""
        location = tensor.table(TensorDataField.PLACE, "the place of tensor data")
        if location is None:
            content = tensor.blob(TensorDataField.BYTES)
            return memoryview(b"") if content is None else content
        start, length = location.integer(PlaceField.OFFSET, "u64"), location.integer(PlaceField.LENGTH, "u64")
        if start + length > len(self._raw):
            rule = f"a tensor's bytes {start} to {start + length} are outside the {len(self._raw)} there are"
            tensor.file.refuse(rule)
        return self._raw[start : start + length]


def read(model: Reading, data: Data) -> tuple[GraphEntry, ...]:
    """Read the graphs of a file."""
    return tuple(_graph(model, table, data) for table in model.root.tables(0, "graph"))


def _graph(model: Reading, table: Table, data: Data) -> GraphEntry:
    """Read a graph. The parameters of its nodes are listed in the order of the nodes."""
    model.count()
    name = table.text(GraphField.NAME) or ""
    static = data.of_graph(name)
    tensors = tuple(_tensor(model, tensor, static) for tensor in table.tables(GraphField.TENSORS, "tensor"))
    nodes = table.tables(GraphField.NODES, "node")
    return GraphEntry(
        name,
        tensors,
        tuple(_node(model, node, node_data) for node, node_data in zip(nodes, data.of_nodes(name), strict=False)),
    )


def _node(model: Reading, table: Table, data: Mapping[str, memoryview]) -> NodeEntry:
    """Read a node. `data` are the bytes of its parameter tensors by name."""
    model.count()
    params: dict[str, Scalar | ComposedTensor] = {}
    extras: dict[str, Scalar] = {}
    kinds: dict[str, int] = {}
    for attribute in table.tables(NodeField.ATTRIBUTES, "attribute"):
        model.count()
        name = attribute.text(AttributeField.NAME) or ""
        value, dtype = _value(model, attribute, data)
        if dtype:
            kinds[name] = dtype
        if isinstance(value, ComposedTensor) or attribute.integer(AttributeField.FLAG, "u8") == PARAMETER:
            params[name] = value
        else:
            extras[name] = value
    inputs, outputs = table.texts(NodeField.INPUTS), table.texts(NodeField.OUTPUTS)
    model.count(len(inputs) + len(outputs))
    name, kind = table.text(NodeField.NAME) or "", table.text(NodeField.TYPE) or ""
    package = str(extras.pop("packageName", PACKAGE))
    return NodeEntry(name, kind, tuple(inputs), tuple(outputs), params, extras, package, kinds)


def _value(model: Reading, attribute: Table, data: Mapping[str, memoryview]) -> tuple[Scalar | ComposedTensor, int]:
    """Return the value of an attribute, and the QNN data type of a scalar; 0 for a tensor."""
    if attribute.integer(AttributeField.KIND, "i32") == TENSOR:
        tensor = attribute.table(AttributeField.TENSOR, "the tensor of an attribute")
        if tensor is None:
            attribute.refuse("an attribute lacks its tensor")
        return _tensor(model, tensor, data), 0
    scalar = attribute.table(AttributeField.SCALAR, "the value of an attribute")
    if scalar is None:
        attribute.refuse("an attribute lacks its value")
    dtype = scalar.integer(ScalarField.DATA_TYPE, "u32")
    if dtype in STRINGS:
        return scalar.text(ScalarField.TEXT) or "", STRINGS[0]
    # Older files have 32-bit fields where newer ones have 64-bit fields.
    if dtype in FLOATS:
        real = scalar.number(ScalarField.FLOAT, "f64" if scalar.room(ScalarField.FLOAT) >= 8 else "f32")
        return float(real), dtype
    number = scalar.integer(ScalarField.INTEGER, "i64" if scalar.room(ScalarField.INTEGER) >= 8 else "i32")
    return bool(number) if dtype == BOOL else number, dtype


def _tensor(model: Reading, table: Table, data: Mapping[str, memoryview]) -> ComposedTensor:
    """Read a tensor. `data` are the bytes of static tensors by name."""
    model.count()
    dims = table.array(TensorField.DIMS, np.uint32)
    dims = np.zeros(0, np.uint32) if dims is None else dims
    name = table.text(TensorField.NAME) or ""
    if len(dims) > MAX_RANK:
        table.refuse(f"tensor '{name}' has {len(dims)} dimensions")
    quantization = table.table(TensorField.QUANTIZATION, f"the quantization of tensor '{name}'")
    encoding = None if quantization is None else _encoding(model, quantization)
    kind, dtype = (table.integer(field, "u32") for field in (TensorField.TYPE, TensorField.DATA_TYPE))
    return ComposedTensor(name, kind, dtype, tuple(dims.tolist()), encoding, data.get(name))


def _encoding(model: Reading, table: Table) -> EncodingEntry | None:
    """Read a quantization: one scale and offset, or one for each element along an axis; None if there is none."""
    # Encodings that begin with BW also have a bit width. Of other kinds only the kind is returned.
    # Tables are counted, because a damaged file may refer to one of them any number of times.
    model.count()
    if not table.integer(QuantizationField.DEFINED, "u8"):
        return None
    kind = table.integer(QuantizationField.ENCODING, "u32")
    if kind in (SCALE_OFFSET, BW_SCALE_OFFSET):
        scale_offset = table.table(QuantizationField.SCALE_OFFSET, "a scale and offset")
        if scale_offset is None:
            table.refuse("a quantization lacks its scale")
        return EncodingEntry(
            np.array([scale_offset.number(ScaleOffsetField.SCALE, "f32")], np.float32),
            np.array([scale_offset.integer(ScaleOffsetField.OFFSET, "i32")], np.int32),
            bits=scale_offset.integer(ScaleOffsetField.BITS, "u32") if kind == BW_SCALE_OFFSET else 0,
            kind=kind,
        )
    if kind in (AXIS_SCALE_OFFSET, BW_AXIS_SCALE_OFFSET):
        axis_table = table.table(QuantizationField.AXIS_SCALE_OFFSET, "scales and offsets")
        if axis_table is None:
            table.refuse("a quantization lacks its scales")
        entries = axis_table.tables(AxisField.SCALE_OFFSETS, "scale and offset")
        model.count(len(entries))
        return EncodingEntry(
            entries.column(ScaleOffsetField.SCALE, np.float32),
            entries.column(ScaleOffsetField.OFFSET, np.int32),
            axis_table.integer(AxisField.AXIS, "i32"),
            _common(table, entries.column(ScaleOffsetField.BITS, np.uint32)) if kind == BW_AXIS_SCALE_OFFSET else 0,
            kind,
        )
    return EncodingEntry(np.zeros(0, np.float32), np.zeros(0, np.int32), kind=kind)


def _common(table: Table, bits: np.ndarray) -> int:
    """Return the number of bits that all scales along an axis share; refuse the file if they differ."""
    if len(bits) and (bits != bits[0]).any():
        table.refuse("the bits of the scales along an axis differ")
    return int(bits[0]) if len(bits) else 0
