"""Our graphs as QNN's own tools compose them: plain data, which the child process passes to the vendor's library.

State becomes an input and an output. Float operations between Dequantize and Quantize become operations on the
quantized tensors, so that 8-bit models stay 8-bit on the chip.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError, counted
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry, GraphEntry, NodeEntry, Scalar
from isthmus.frontends.composed.serialization import write
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType
from isthmus.graph.operation import ISTHMUS, Call
from isthmus.graph.ops import OPERATIONS

# QNN's data types of parameters.
_KINDS = {"u32": DataType.UINT_32, "i32": DataType.INT_32, "f32": DataType.FLOAT_32, "bool": DataType.BOOL_8}
# Parameters that the vendor's operations lack, with the value that changes nothing.
_NEUTRAL = {"dynamic_input_data": False, "dynamic_output_data": False}
# Operations of our package that QNN's package has, with their names there.
_NAMES = {"IsNaN": "IsNan", "IsInf": "IsInf"}
_ABSENT = "absent operand"
# Operations that only change the order or the shape of elements, so that it does not matter whether they are
# quantized.
_LAYOUT = ("Reshape", "Transpose", "Squeeze", "ExpandDims")
# How many refused nodes a message names.
_MAX_NAMED = 5
# The bits of a block's factor.
_FACTOR_BITS = 4
# Data types of constants that the library does not take, with those that replace them.
_STORED = {DataType.INT_64: DataType.INT_32}


@dataclass(frozen=True)
class Composition:
    """A graph for the vendor's library.

    - `entry`: The graph.
    - `states`: For each state its name, which is that of an input, and the name of the output with its next value.
    """

    entry: GraphEntry
    states: tuple[tuple[str, str], ...] = ()

    def to_bytes(self) -> bytes:
        """Return the graph as it is sent to the child process."""
        stream = io.BytesIO()
        write([self.entry], stream)
        return stream.getvalue()


def compose(graph: Graph) -> Composition:
    """Compose a graph for the vendor's library, with its quantized operations folded.

    Raises COMMON_NOT_SUPPORTED with the nodes that QNN's package of operations lacks.
    """
    lacking = [f"{node.name} ({node.op})" for node in graph.nodes if is_lacking(node.op)]
    if lacking:
        shown = ", ".join(lacking[:_MAX_NAMED]) + (", ..." if len(lacking) > _MAX_NAMED else "")
        rule = f"QNN's package of operations lacks {counted(len(lacking), 'of its node')}: {shown}"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"graph '{graph.name}'", rule)
    return _Composer(graph).composition()


def is_lacking(op: str) -> bool:
    """Return whether QNN's package lacks an operation of ours."""
    return OPERATIONS[op].package == ISTHMUS and op not in _NAMES


class _Composer:
    """The conversion of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.tensors: dict[str, ComposedTensor] = {}
        self._names: dict[Tensor, str] = {}

    def composition(self) -> Composition:
        """Convert the graph. Inputs and outputs come first, in their order."""
        graph = self._graph
        for tensor in (*graph.inputs, *graph.states, *graph.outputs):
            self.name_of(tensor)
        nodes = []
        for node in graph.nodes:
            nodes.append(self.node_of(node.name, node.op, node.inputs, node.outputs, node.params))
        states = []
        for name, value in graph.state_updates.items():
            after = self._fresh(f"{name}.next")
            source = self.name_of(value)
            self.tensors[after] = replace(self.tensors[source], name=after, type=int(TensorType.APP_READ), data=None)
            nodes.append(NodeEntry(f"{after}.update", "Reshape", (source,), (after,), {}))
            states.append((name, after))
        entry = fold_quantization(GraphEntry(graph.name, tuple(self.tensors.values()), tuple(nodes)))
        entry = with_fully_connected(entry)
        return Composition(entry, tuple(states))

    def _fresh(self, name: str) -> str:
        """Return a name that no tensor has."""
        while name in self.tensors or name in self._graph.tensors:
            name += "_"
        return name

    def name_of(self, tensor: Tensor | None) -> str:
        """Return the name of a tensor, after adding it if it is new. An absent operand is a tensor too."""
        if tensor is None:
            self.tensors.setdefault(_ABSENT, ComposedTensor(_ABSENT, TensorType.NULL, DataType.FLOAT_32, ()))
            return _ABSENT
        if tensor not in self._names:
            # The next value of a state has the state's name.
            is_named = self._graph.tensors.get(tensor.name, tensor) is tensor and tensor.name not in self.tensors
            name = tensor.name if is_named else self._fresh(f"{tensor.name}.value")
            self._names[tensor] = name
            self.tensors[name] = replace(_compose(tensor), name=name)
        return self._names[tensor]

    def node_of(
        self,
        name: str,
        op: str,
        inputs: Sequence[Tensor | None],
        outputs: Sequence[Tensor],
        params: Mapping[str, Any],
    ) -> NodeEntry:
        """Convert a node, and add its tensors."""
        read, written = tuple(map(self.name_of, inputs)), tuple(map(self.name_of, outputs))
        converted, kinds = self._params(name, op, params, _scalar_type(inputs, outputs))
        return NodeEntry(name, _NAMES.get(op, op), read, written, converted, kinds=kinds)

    def _params(
        self, node: str, op: str, values: Mapping[str, Any], scalar: DataType
    ) -> tuple[dict[str, Scalar | ComposedTensor], dict[str, int]]:
        """Return the parameters that QNN's operation has, and the data types of the scalar ones."""
        # `scalar` is the data type of parameters of kind "scalar", which have the type of the node's tensors.
        params: dict[str, Scalar | ComposedTensor] = {}
        kinds: dict[str, int] = {}
        for param in OPERATIONS[op].params:
            value = values.get(param.name)
            if value is None or param.is_own or (param.name in _NEUTRAL and value == _NEUTRAL[param.name]):
                continue
            if param.kind.endswith("[]"):
                dtype = _KINDS[param.kind[:-2]]
                array = np.ascontiguousarray(value, dtype.numpy)
                name = self._fresh(f"{node}.{param.name}")
                dims = array.shape or (1,)
                params[param.name] = ComposedTensor(name, TensorType.STATIC, dtype, dims, data=_bytes(array))
                continue
            dtype = scalar if param.kind == "scalar" else _KINDS[param.kind]
            params[param.name] = float(value) if dtype.is_float else int(value)
            kinds[param.name] = int(dtype)
        return params, kinds


def _scalar_type(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> DataType:
    """Return the data type of a parameter of kind "scalar": float or integer, as the first operand or result is."""
    of = next((tensor.dtype for tensor in (*inputs[:1], *outputs) if tensor is not None), DataType.FLOAT_32)
    return DataType.FLOAT_32 if of.is_float or of.is_fixed_point else DataType.INT_32


_TYPES = {TensorType.APP_READWRITE: TensorType.APP_WRITE}


def _compose(tensor: Tensor) -> ComposedTensor:
    """Return a tensor as plain data; a state is an input."""
    data = tensor.data if tensor.is_static else None
    dtype = _STORED.get(tensor.dtype, tensor.dtype) if tensor.is_static else tensor.dtype
    return ComposedTensor(
        tensor.name,
        int(_TYPES.get(tensor.type, tensor.type)),
        int(dtype),
        tensor.dims or (1,),
        _encoding(tensor.quantization, tensor.dims),
        None if data is None else _bytes(data.astype(dtype.numpy, copy=False)),
    )


def _encoding(quantization: Quantization | None, dims: Sequence[int]) -> EncodingEntry | None:
    """Return the encoding of a tensor with these dimensions: the inverse of `frontends.composed.encodings`."""
    if quantization is None:
        return None
    kind, axis = int(quantization.encoding), quantization.axis
    scales, offsets = np.array(quantization.scales), np.array(quantization.offsets)
    if axis is None or not quantization.block:
        return EncodingEntry(scales.astype(np.float32), offsets.astype(np.int32), axis, quantization.bits, kind)
    grid = quantization.grid(dims)
    # Output channels are the last axis, or the first one if the last is divided into blocks.
    channels = len(dims) - 1 if axis != len(dims) - 1 else 0
    scales, offsets = (np.moveaxis(each.reshape(grid), channels, 0) for each in (scales, offsets))
    blocks = np.array([quantization.block if each == axis else 1 for each in range(len(dims))], np.uint32)
    if not quantization.factors:
        pairs = scales.astype(np.float32).reshape(-1), offsets.astype(np.int32).reshape(-1)
        return EncodingEntry(*pairs, kind=kind, blocks=blocks)
    factors = np.moveaxis(np.array(quantization.factors).reshape(grid), channels, 0)
    scales, offsets, factors = (each.reshape(len(each), -1, grid[axis])[:, 0] for each in (scales, offsets, factors))
    return EncodingEntry(
        (scales / factors)[:, 0].astype(np.float32), offsets[:, 0].astype(np.int32), channels, _FACTOR_BITS, kind,
        np.array([grid[axis]], np.uint32), factors.astype(np.uint16).reshape(-1),
    )  # fmt: skip


def _bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def node_alone(call: Call) -> Composition:
    """Compose a single node, for its validation; its tensors need not be part of a graph."""
    graph = Graph("validation")
    composer = _Composer(graph)
    node = composer.node_of(call.node, call.op, call.inputs, call.declared or (), call.params)
    return Composition(GraphEntry(graph.name, tuple(composer.tensors.values()), (node,)))


def fold_quantization(entry: GraphEntry) -> GraphEntry:
    """Let operations between Dequantize and Quantize take and return the quantized tensors themselves.

    An operation is folded if all its inputs come from a Dequantize, and each of its outputs goes to one Quantize and
    nowhere else. A Quantize after a change of layout moves before it, and a Dequantize before one moves behind it, so
    that they meet the operations. A Quantize right after a Dequantize becomes a Convert, or nothing if both have the
    same encoding. Nodes and tensors that nothing reads any more are left out.
    """
    return _without_unread(_Folding(_quantize_early(entry)).fold())


def _only_quantized(entry: GraphEntry) -> dict[str, str]:
    """Return the float tensors that one Quantize reads and nothing else, each with the quantized tensor."""
    outputs = {tensor.name for tensor in entry.tensors if tensor.type == TensorType.APP_READ}
    return {
        name: users[0].outputs[0]
        for name, users in _readers(entry).items()
        if len(users) == 1 and users[0].type == "Quantize" and name not in outputs
    }


def _readers(entry: GraphEntry) -> dict[str, list[NodeEntry]]:
    """Return the nodes that read each tensor."""
    readers: dict[str, list[NodeEntry]] = {}
    for node in entry.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    return readers


def _quantize_early(entry: GraphEntry) -> GraphEntry:
    """Move each Quantize before the changes of layout that lead to it; they are visited from the last to the first."""
    tensors = {tensor.name: tensor for tensor in entry.tensors}
    readers, quantized = _readers(entry), _only_quantized(entry)
    nodes: list[NodeEntry] = []
    for node in reversed(entry.nodes):
        if node.type in _LAYOUT and node.outputs[0] in quantized:
            source, result = node.inputs[0], quantized[node.outputs[0]]
            name = _add_like(tensors, result, source)
            nodes = [each for each in nodes if not (each.type == "Quantize" and each.outputs[0] == result)]
            # The list is in reverse order.
            nodes += [
                replace(node, inputs=(name,), outputs=(result,)),
                NodeEntry(f"{node.name}.quantize", "Quantize", (source,), (name,), {}),
            ]
            if len(readers[source]) == 1 and tensors[source].type == TensorType.NATIVE:
                quantized[source] = name
            continue
        nodes.append(node)
    return replace(entry, tensors=tuple(tensors.values()), nodes=tuple(reversed(nodes)))


def _add_like(tensors: dict[str, ComposedTensor], stored: str, shape: str) -> str:
    """Add a tensor with the type and encoding of one tensor and the dimensions of another; return its name."""
    name = f"{shape}.stored"
    while name in tensors:
        name += "_"
    tensors[name] = replace(tensors[stored], name=name, dims=tensors[shape].dims, type=int(TensorType.NATIVE))
    return name


class _Folding:
    """The folding of one graph, node by node in their order."""

    def __init__(self, entry: GraphEntry) -> None:
        self._entry = entry
        self._tensors = {tensor.name: tensor for tensor in entry.tensors}
        self._stored = {name: name for name, tensor in self._tensors.items() if tensor.type == TensorType.NULL}
        """For the result of each Dequantize, the quantized tensor. An absent operand counts as its own."""
        self._same: dict[str, str] = {}
        """Quantized tensors that equal another one, which is used instead."""
        self._gone: set[str] = set()
        """The float results of folded operations, which nothing computes any more."""
        self._quantized = _only_quantized(entry)

    def fold(self) -> GraphEntry:
        """Return the graph after folding, with nodes that nothing reads any more."""
        nodes: list[NodeEntry] = []
        for node in self._entry.nodes:
            nodes += self._nodes(replace(node, inputs=tuple(self._same.get(name, name) for name in node.inputs)))
        return replace(self._entry, tensors=tuple(self._tensors.values()), nodes=tuple(nodes))

    def _nodes(self, node: NodeEntry) -> list[NodeEntry]:
        """Return what replaces a node."""
        if node.type == "Dequantize":
            self._stored[node.outputs[0]] = node.inputs[0]
        elif node.type == "Quantize":
            return self._quantize(node)
        elif node.inputs and all(name in self._stored for name in node.inputs):
            inputs = tuple(self._stored[name] for name in node.inputs)
            if all(name in self._quantized for name in node.outputs):
                self._gone.update(node.outputs)
                return [replace(node, inputs=inputs, outputs=tuple(self._quantized[name] for name in node.outputs))]
            if node.type in _LAYOUT and self._has_one_scale(inputs[0]):
                return self._move(node, inputs[0])
        return [node]

    def _quantize(self, node: NodeEntry) -> list[NodeEntry]:
        """Return what replaces a Quantize."""
        source, result = node.inputs[0], self._tensors[node.outputs[0]]
        if source in self._gone:
            return []
        before = self._tensors.get(self._stored.get(source, ""))
        if before is None or not (self._has_one_scale(before.name) and self._has_one_scale(result.name)):
            return [node]
        if result.type != TensorType.APP_READ and _meaning(before) == _meaning(result):
            self._same[result.name] = before.name
            return []
        return [replace(node, type="Convert", inputs=(before.name,))]

    def _move(self, node: NodeEntry, stored: str) -> list[NodeEntry]:
        """Return a change of layout on the quantized tensor, and a Dequantize of its result."""
        name = _add_like(self._tensors, stored, node.outputs[0])
        self._stored[node.outputs[0]] = name
        moved = replace(node, inputs=(stored,), outputs=(name,))
        return [moved, NodeEntry(f"{node.name}.dequantize", "Dequantize", (name,), node.outputs, {})]

    def _has_one_scale(self, name: str) -> bool:
        """Return whether a tensor is quantized by one scale and is no constant."""
        tensor = self._tensors[name]
        return tensor.encoding is not None and tensor.encoding.axis is None and tensor.type != TensorType.STATIC


def _meaning(tensor: ComposedTensor) -> tuple[int, float, int]:
    """Return the data type and the encoding of a tensor with one scale."""
    assert tensor.encoding is not None
    return tensor.dtype, float(tensor.encoding.scales[0]), int(tensor.encoding.offsets[0])


def with_fully_connected(entry: GraphEntry) -> GraphEntry:
    """Replace quantized products of a matrix with a constant matrix by FullyConnected, as ONNX Runtime's provider does.

    The compiler needs less memory for it. For floats it needs more, so they stay as they are.
    """
    tensors = {tensor.name: tensor for tensor in entry.tensors}
    nodes = []
    for node in entry.nodes:
        operands = [tensors[name] for name in node.inputs]
        is_plain = node.type == "MatMul" and not any(node.params.values()) and operands[1].encoding is not None
        if is_plain and [len(each.dims) for each in operands] == [2, 2] and operands[1].type == TensorType.STATIC:
            weights = operands[1]
            turned = _transpose(weights, f"{weights.name}.transposed")
            # The same weights may be used twice.
            tensors[turned.name] = turned
            node = replace(node, type="FullyConnected", inputs=(node.inputs[0], turned.name), params={}, kinds={})
        nodes.append(node)
    return _without_unread(replace(entry, tensors=tuple(tensors.values()), nodes=tuple(nodes)))


def _transpose(matrix: ComposedTensor, name: str) -> ComposedTensor:
    """Return a constant matrix with rows and columns exchanged."""
    rows, columns = matrix.dims
    assert matrix.data is not None
    elements = np.frombuffer(matrix.data, np.uint8).reshape(rows, columns, -1).transpose(1, 0, 2)
    encoding = matrix.encoding
    if encoding is not None:
        # Scales of blocks stay in their order, since those of output channels come first either way.
        axis = None if encoding.axis is None else 1 - encoding.axis
        encoding = replace(encoding, axis=axis, blocks=encoding.blocks[::-1])
    return replace(matrix, name=name, dims=(columns, rows), encoding=encoding, data=_bytes(elements))


def _without_unread(entry: GraphEntry) -> GraphEntry:
    """Leave out nodes whose results nothing reads, and tensors that no node has; inputs and outputs stay."""
    types = {tensor.name: tensor.type for tensor in entry.tensors}
    needed = {name for name, kind in types.items() if kind == TensorType.APP_READ}
    nodes = []
    for node in reversed(entry.nodes):
        if needed.intersection(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    used = {name for node in nodes for name in (*node.inputs, *node.outputs)}
    tensors = [t for t in entry.tensors if t.name in used or t.type in (TensorType.APP_WRITE, TensorType.APP_READ)]
    return replace(entry, tensors=tuple(tensors), nodes=tuple(reversed(nodes)))


def specimen() -> Composition:
    """Compose the smallest graph that every chip can run: one Relu on 8-bit numbers."""
    graph = Graph("specimen")
    quantization = Quantization.per_tensor(0.1, 128)
    x, y = (
        graph.create_tensor(name, kind, DataType.UFIXED_POINT_8, (1, 16, 16, 32), quantization)
        for name, kind in (("x", TensorType.APP_WRITE), ("y", TensorType.APP_READ))
    )
    graph.add_node("relu", "Relu", [x], [y])
    graph.finalize()
    return compose(graph)
