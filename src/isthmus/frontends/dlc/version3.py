"""Version 3 of the format: layers of an older runtime, with their weights as floats.

The structure of its tables and the names of its common layers are public; the names of most layers' attributes are not.
So everything is read and can be inspected, but a layer becomes a QNN operation only if its name, dimensions and weights
determine it: inputs, Neuron (ReLU, sigmoid), Reshape, SoftMax, Concat, Slice, Permute, FullyConnected. The other layers
keep their names and are refused, rather than run by guesses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

import numpy as np

from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry
from isthmus.frontends.dlc.contents import Reading
from isthmus.frontends.flatbuffer import Table
from isthmus.graph import DataType, TensorType

MAX_RANK = 16
"""The most dimensions for which a permutation is searched."""
MAX_DEPTH = 8
"""The deepest nesting of attributes."""
# Functions of a Neuron layer, by the number in its type attribute.
_ACTIVATIONS = {1: "Relu", 3: "Sigmoid"}
# The encoding of quantized weights. It is unknown because the names of its attributes are not public.
_UNKNOWN = EncodingEntry(np.zeros(0, np.float32), np.zeros(0, np.int32), kind=0x7FFFFFFF)

# Fields of tables, by number.
ModelField = IntEnum("ModelField", {"LAYERS": 1})
LayerField = IntEnum("LayerField", {"NAME": 1, "TYPE": 2, "INPUTS": 3, "OUTPUTS": 4, "ATTRIBUTES": 5})

AttributeField = IntEnum("AttributeField", {
    "NAME": 0, "KIND": 1, "BOOL": 2, "INT": 3, "UINT": 4, "FLOAT": 5, "TEXT": 6, "BYTES": 8, "INTS": 9,
    "FLOATS": 10, "ATTRIBUTES": 12,
})  # fmt: skip
"""Fields of an attribute; its kind says which of them is used."""


class Kind(IntEnum):
    """Kinds of attributes."""

    BOOL = 1
    INT = 2
    UINT = 3
    FLOAT = 4
    TEXT = 5
    BYTES = 7
    INTS = 8
    FLOATS = 9
    ATTRIBUTES = 11


WeightField = IntEnum("WeightField", "NAME DIMS DATA", start=0)
DataField = IntEnum("DataField", "TYPE BYTES FLOATS", start=0)
# Types of a weight's elements: bytes and floats.
_BYTES, _FLOATS = 6, 9


def read(model: Reading, params: Reading | None) -> tuple[GraphEntry, ...]:
    """Read the only graph of a file; it has no name.

    `model` are the layers; `params` their weights, if the file has any. A tensor that no layer reads is an output.
    """
    weights = {} if params is None else _weights(params)
    layers = [_layer(model, table) for table in model.root.tables(ModelField.LAYERS, "layer")]
    dims: dict[str, tuple[int, ...]] = {}
    for layer in layers:
        for output, shape in zip(layer.outputs, _shapes(layer), strict=False):
            dims.setdefault(output, shape)
    inputs = {name for layer in layers if layer.type == "Input" for name in layer.outputs}
    computed_layers = [layer for layer in layers if layer.type != "Input"]
    read_names = {name for layer in computed_layers for name in layer.inputs}
    tensors: dict[str, ComposedTensor] = {}
    for name in dict.fromkeys(name for layer in layers for name in (*layer.inputs, *layer.outputs)):
        kind = TensorType.NATIVE if name in read_names else TensorType.APP_READ
        kind = TensorType.APP_WRITE if name in inputs else kind
        tensors[name] = ComposedTensor(name, kind, DataType.FLOAT_32, dims.get(name, ()))
    nodes = []
    for layer in computed_layers:
        layer_weights = [replace(weight, name=f"{layer.name}/{weight.name}") for weight in weights.get(layer.name, ())]
        node, used = _node(layer, dims, layer_weights)
        tensors.update({weight.name: weight for weight in used})
        nodes.append(node)
    return (GraphEntry("", tuple(tensors.values()), tuple(nodes)),)


def _layer(model: Reading, table: Table) -> NodeEntry:
    """Read a layer as a node whose attributes are extras; its weights and parameters are added later."""
    model.count()
    inputs, outputs = table.texts(LayerField.INPUTS), table.texts(LayerField.OUTPUTS)
    model.count(len(inputs) + len(outputs))
    attributes = _attributes(model, table, LayerField.ATTRIBUTES, 0)
    name, kind = table.text(LayerField.NAME) or "", table.text(LayerField.TYPE) or ""
    return NodeEntry(name, kind, tuple(inputs), tuple(outputs), {}, attributes)


def _attributes(model: Reading, table: Table, field: int, depth: int) -> dict[str, Any]:
    """Read a vector of attributes as a dictionary; `depth` is their nesting."""
    if depth > MAX_DEPTH:
        table.refuse(f"attributes hold attributes more than {MAX_DEPTH} deep")
    attributes = {}
    for attribute in table.tables(field, "attribute"):
        model.count()
        attributes[attribute.text(AttributeField.NAME) or ""] = _value(model, attribute, depth)
    return attributes


def _value(model: Reading, attribute: Table, depth: int) -> Any:
    """Read the value of an attribute: a number, text, list or dictionary; None if its kind is unknown."""
    kind = attribute.integer(AttributeField.KIND, "u8")
    if kind == Kind.ATTRIBUTES:
        return _attributes(model, attribute, AttributeField.ATTRIBUTES, depth + 1)
    if kind == Kind.TEXT:
        return attribute.text(AttributeField.TEXT) or ""
    if kind in _NUMBERS:
        return attribute.number(*_NUMBERS[Kind(kind)])
    if kind in _LISTS:
        array = attribute.array(*_LISTS[Kind(kind)])
        model.count(0 if array is None else len(array))
        return [] if array is None else array.tolist()
    return None


# For each kind of attribute, the field that holds its value and the type of that field.
_NUMBERS: Mapping[Kind, tuple[int, str]] = {
    Kind.BOOL: (AttributeField.BOOL, "bool"),
    Kind.INT: (AttributeField.INT, "i32"),
    Kind.UINT: (AttributeField.UINT, "u32"),
    Kind.FLOAT: (AttributeField.FLOAT, "f32"),
}
_LISTS: Mapping[Kind, tuple[int, type]] = {
    Kind.BYTES: (AttributeField.BYTES, np.int8),
    Kind.INTS: (AttributeField.INTS, np.int32),
    Kind.FLOATS: (AttributeField.FLOATS, np.float32),
}


def _shapes(layer: NodeEntry) -> list[tuple[int, ...]]:
    """Return the dimensions of a layer's outputs, as far as the layer states them."""
    dims: Any = layer.extras.get("OutputDims")
    lists = list(dims.values()) if isinstance(dims, dict) else [dims]
    return [tuple(dims) for dims in lists if isinstance(dims, list) and all(_is_size(d) for d in dims)]


def _is_size(value: object) -> bool:
    """Return whether a value from the file can be a dimension."""
    return isinstance(value, int) and value >= 0


def _weights(params: Reading) -> dict[str, list[ComposedTensor]]:
    """Return the weights of all layers, by the layers' names."""
    weights = {}
    for layer in params.root.tables(0, "layer's weights"):
        params.count()
        weights[layer.text(0) or ""] = [_weight(params, table) for table in layer.tables(1, "weight")]
    return weights


def _weight(params: Reading, table: Table) -> ComposedTensor:
    """Read a weight as a static tensor: floats, or bytes with an unknown encoding."""
    params.count()
    dims = table.array(WeightField.DIMS, np.int32)
    data = table.table(WeightField.DATA, "the elements of a weight")
    kind = None if data is None else data.integer(DataField.TYPE, "u8")
    array_field = {_BYTES: (DataField.BYTES, np.uint8), _FLOATS: (DataField.FLOATS, np.float32)}.get(kind or 0)
    elements = None if data is None or array_field is None else data.array(*array_field)
    name, sizes = table.text(WeightField.NAME) or "", tuple(() if dims is None else np.maximum(dims, 0).tolist())
    content = None if elements is None else elements.view(np.uint8).data
    dtype, encoding = (DataType.FLOAT_32, None) if kind == _FLOATS else (DataType.UFIXED_POINT_8, _UNKNOWN)
    return ComposedTensor(name, TensorType.STATIC, dtype, sizes, encoding, content)


# --- layers that become operations ----------------------------------------------------------------------------------

# A converter takes a layer, the dimensions of all tensors, and the layer's weights. It returns None if the name,
# dimensions and weights do not determine the operation.
Dims = Mapping[str, tuple[int, ...]]
"""Dimensions of tensors by name; those that the file does not state are missing."""
Converted = tuple[NodeEntry, Sequence[ComposedTensor]]
"""A node and the weights that it reads."""


def _node(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted:
    """Convert a layer to a node, with the weights that it reads."""
    converter = _LAYERS.get(layer.type)
    converted = None if converter is None else converter(layer, dims, weights)
    # No operation has this name, so the layer will be refused as unsupported.
    return converted or (replace(layer, type=f"{layer.type} (of version 3)"), ())


def _as(layer: NodeEntry, op: str, **params: Any) -> NodeEntry:
    """Return a layer as a node of a QNN operation."""
    return replace(layer, type=op, params=params, extras={})


def _neuron(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted | None:
    kind: Any = layer.extras.get("type")
    op = _ACTIVATIONS.get(kind) if isinstance(kind, int) else None
    return None if op is None else (_as(layer, op), ())


def _reshape(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted:
    return _as(layer, "Reshape"), ()


def _softmax(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted:
    return _as(layer, "Softmax"), ()


def _concat(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted | None:
    """Convert to a Concat along the only axis on which the output is longer than its inputs."""
    out = dims.get(layer.outputs[0], ()) if layer.outputs else ()
    parts = [dims.get(name, ()) for name in layer.inputs]
    if not parts or any(len(part) != len(out) for part in parts):
        return None
    axes = [axis for axis, size in enumerate(out) if any(part[axis] != size for part in parts)]
    return (_as(layer, "Concat", axis=axes[0]), ()) if len(axes) == 1 else None


def _slice(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted | None:
    """Convert to a Split along the only axis on which the outputs are shorter than the input and add up to it."""
    source = dims.get(layer.inputs[0], ()) if len(layer.inputs) == 1 else ()
    parts = [dims.get(name, ()) for name in layer.outputs]
    if len(parts) < 2 or any(len(part) != len(source) for part in parts):
        return None
    axes = [axis for axis, size in enumerate(source) if any(part[axis] != size for part in parts)]
    if len(axes) != 1 or sum(part[axes[0]] for part in parts) != source[axes[0]]:
        return None
    ends = np.cumsum([part[axes[0]] for part in parts])[:-1].astype(np.uint32)
    return _as(layer, "Split", axis=axes[0], split_index=_indices(layer, "split_index", ends)), ()


def _permute(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted | None:
    """Convert to a Transpose if the dimensions allow only one permutation; axes of size 1 may go anywhere."""
    if len(layer.inputs) != 1 or len(layer.outputs) != 1:
        return None
    x, y = dims.get(layer.inputs[0], ()), dims.get(layer.outputs[0], ())
    larger = [size for size in x if size > 1]
    if not 0 < len(x) <= MAX_RANK or sorted(x) != sorted(y) or len(set(larger)) != len(larger):
        return None
    ones = [axis for axis, size in enumerate(x) if size == 1]
    order = np.array([ones.pop(0) if size == 1 else x.index(size) for size in y], np.uint32)
    return _as(layer, "Transpose", perm=_indices(layer, "perm", order)), ()


def _indices(layer: NodeEntry, name: str, indices: np.ndarray) -> ComposedTensor:
    """Return a parameter of a layer that is a list of indices."""
    data = indices.view(np.uint8).data
    return ComposedTensor(f"{layer.name}/{name}", TensorType.STATIC, DataType.UINT_32, (len(indices),), None, data)


def _fully_connected(layer: NodeEntry, dims: Dims, weights: Sequence[ComposedTensor]) -> Converted | None:
    """Convert to a FullyConnected with weights [out, in]; the dimensions must rule out [in, out]."""
    matrices, biases = ([w for w in weights if len(w.dims) == rank] for rank in (2, 1))
    if len(matrices) != 1 or len(biases) > 1 or len(layer.inputs) != 1 or len(layer.outputs) != 1:
        return None
    rows, columns = matrices[0].dims
    x, y = dims.get(layer.inputs[0], ()), dims.get(layer.outputs[0], ())
    if rows == columns or not x or not y or (y[-1], x[-1]) != (rows, columns):
        return None
    used = [matrices[0], *biases]
    return _as(replace(layer, inputs=(*layer.inputs, *(w.name for w in used))), "FullyConnected"), used


_LAYERS: Mapping[str, Callable[[NodeEntry, Dims, Sequence[ComposedTensor]], Converted | None]] = {
    "Concat": _concat,
    "FullyConnected": _fully_connected,
    "Neuron": _neuron,
    "Permute": _permute,
    "Reshape": _reshape,
    "Slice": _slice,
    "SoftMax": _softmax,
}
