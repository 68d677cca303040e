"""The writer of split ONNX files: copies nodes with other pads, shares weights by name, slices and joins rows.

The frontend reads and checks the file, infers its shapes and rejects what it does not support. Nodes outside tiles are
not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.importer import Importer
from isthmus.frontends.onnx.layout import OnnxValue as Imported
from isthmus.frontends.onnx.schema import OnnxContents, messages
from isthmus.frontends.onnx.tensors import attribute_value
from isthmus.split.network import Key, Network, SplitStep, SplitValue, constant_nodes
from isthmus.split.onnx_rules import ROW_AXIS, Attributes, NodeFacts, NodeRule, node_rule
from isthmus.split.regions import Compute, CopyRows, Piece, StepInstruction, TileInstruction

# Numbers of ONNX: attribute types INT, TENSOR and INTS, the element type INT64, the data location EXTERNAL.
_INT, _TENSOR, _INTS, _INT64, _EXTERNAL = 2, 4, 7, 7, 1
# From this opset version on, Slice has operands instead of attributes.
_SLICE_OPERANDS = 10
# From this IR version on, a constant need not also be an input.
_CONSTANT_BESIDES_INPUTS = 4
# Nodes with elements of one byte in the result; the names may continue, such as QLinearConv.
_ONE_BYTE = ("QuantizeLinear", "QLinear", "DynamicQuantizeLinear", "Equal", "Greater", "Less", "And", "Or", "Not")
# Nodes with elements of four bytes in the result.
_FOUR_BYTES = ("DequantizeLinear", "ConvInteger", "MatMulInteger")
# Nodes whose results are always constants, since all dimensions are fixed in the split file.
_OF_SHAPES = ("Shape", "Size")
# Nodes that a runtime fuses with a quantized operator before them.
_ACTIVATIONS = ("Relu", "Clip")


class OnnxFile:
    """An ONNX file that can be split.

    - `data`, `name`, `folder`: the bytes of the file, its name for messages, and the folder of its external data.
    - `shapes`: dimensions of inputs that the file leaves open; they are fixed in the split file.
    - `network`: the steps of the file that do not compute constants.
    """

    def __init__(
        self, data: bytes, name: str, folder: Path | None = None, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        importer = Importer(OnnxContents.parse(data, name, folder), name)
        graph = importer.convert(shapes or {}, {})
        self._values: dict[str, Imported | None] = dict(importer.values)
        """What the frontend knows about each name: shape, type, and whether it is a constant."""
        self._model = importer.model
        self._inputs = {tensor.name: tensor.dims for tensor in graph.inputs}
        self._opset = importer.opsets.get("", importer.opsets.get("ai.onnx", 1))
        self._names = set(all_names(self._model.graph))
        """All names in use, so that new ones can differ from them."""
        self._constants: dict[str, Any] = {}
        """The nodes whose results are constants, by the name of the result."""
        self._static = self._static_names()
        outputs = {output.name for output in self._model.graph.output}
        self._nodes: list[Any] = []
        self._units: list[int] = []
        """For each node, the number of its unit."""
        for number, unit in enumerate(units(self._live_nodes(), outputs, self._static)):
            self._nodes += unit
            self._units += [number] * len(unit)
        self._sizes: dict[str, int] = {}
        """The bytes of one element of each value."""
        self.network = self._network()

    @property
    def external(self) -> bool:
        """Whether some of its constants are in other files."""
        return any(tensor.data_location == _EXTERNAL for tensor in self._model.graph.initializer)

    @property
    def fixed(self) -> dict[str, tuple[int, ...]]:
        """The fixed dimensions of each input whose shape the file leaves open; tiles are cut for them."""
        inputs = {entry.name: entry.type.tensor_type.shape.dim for entry in self._model.graph.input}
        declared = {name: tuple(dim.dim_value for dim in dims) for name, dims in inputs.items()}
        return {name: dims for name, dims in self._inputs.items() if declared[name] != tuple(dims)}

    # -- reading -------------------------------------------------------------------------------------------------------

    def _static_names(self) -> set[str]:
        """Collect the names of constants, and of weights that the file stores quantized and dequantizes."""
        # A node's result is one of them if the node reads only such names, or only dimensions. Outputs are excluded,
        # because the file computes them where they are listed.
        graph = self._model.graph
        outputs = {output.name for output in graph.output}
        folded = {name for name, value in self._values.items() if value is not None and value.is_static}
        # Begin with the constants that no node computes.
        static = folded.difference(name for proto in graph.node for name in proto.output)
        for proto in graph.node:
            results = {name for name in proto.output if name}
            is_folded = results <= folded or is_standard(proto, "DequantizeLinear")
            constant = is_standard(proto, *_OF_SHAPES) or static.issuperset(self._read_by(proto))
            if is_folded and constant and not results & outputs:
                static |= results
        return static

    def _read_by(self, proto: Any) -> set[str]:
        """Collect the names of graph values that a node and its subgraphs read."""
        return {name for name in _reads(proto) if name in self._values}

    def _live_nodes(self) -> list[Any]:
        """List the nodes that do not compute constants; each reader of a DequantizeLinear gets its own copy of it."""
        # Runtimes fuse a DequantizeLinear with the node after it, and would not if rows were joined between the two.
        outputs = {output.name for output in self._model.graph.output}
        nodes: list[Any] = []
        # The DequantizeLinear nodes so far, by the name of their result; they are listed only with their readers.
        floats: dict[str, Any] = {}
        for proto in self._model.graph.node:
            results = [name for name in proto.output if name]
            if is_standard(proto, *_OF_SHAPES) and not self._static.issuperset(self._read_by(proto)):
                proto = self._constant_for(proto)
            if results and self._static.issuperset(results):
                self._constants.update(dict.fromkeys(results, proto))
                continue
            if results and proto.op_type == "DequantizeLinear" and not proto.domain and results[0] not in outputs:
                floats[results[0]] = proto
                continue
            copy = copy_node(proto)
            # Names inside subgraphs are not changed, so a node that they read is listed with its own name.
            inner = set(inner_names(copy))
            for name in (name for name in inner if name in floats):
                nodes.append(floats.pop(name))
            for index, name in enumerate(copy.input):
                if name in floats:
                    own = copy_node(floats[name])
                    own.output[0] = self._fresh(name)
                    own.name = own.output[0]
                    self._values[own.output[0]] = self._values[name]
                    copy.input[index] = own.output[0]
                    nodes.append(own)
            nodes.append(copy)
        return nodes

    def _constant_for(self, proto: Any) -> Any:
        """Return a Constant in place of a Shape or Size node, whose operand may exist only in tiles."""
        name = proto.output[0]
        value = self._values[name]
        assert value is not None
        numbers = np.asarray(value.tensor.data).reshape(-1).tolist()
        return constant_node(messages().TensorProto(name=name, data_type=_INT64, dims=value.dims, int64_data=numbers))

    def _network(self) -> Network:
        """Describe the nodes of `_nodes` as steps, with the sizes of all that they read and write."""
        graph = self._model.graph
        outputs = frozenset(output.name for output in graph.output)
        values: dict[Key, SplitValue] = {}
        for name in self._inputs:
            self._sizes[name] = self._itemsize(name, None)
            values[name] = self._value(name, False)
        steps = []
        for index, proto in enumerate(self._nodes):
            reads = [n for n in dict.fromkeys(_reads(proto)) if n in values]
            results = [n for n in proto.output if n]
            for name in results:
                self._sizes[name] = self._itemsize(name, proto)
                values[name] = self._value(name, name not in outputs)
            rule = self._rule(proto) if len(results) == 1 and proto.output[0] else None
            title = proto.name or f"{proto.op_type}_{index}"
            steps.append(SplitStep(title, tuple(reads), tuple(results), rule, self._units[index], proto))
        final = frozenset(name for name in outputs if name in values)
        return Network(tuple(steps), values, tuple(self._inputs), final)

    def _dims(self, name: str) -> tuple[int, ...]:
        """Return the dimensions of a value; () if the frontend does not know it."""
        value = self._values.get(name)
        return () if value is None else value.dims

    def _value(self, name: str, counted: bool) -> SplitValue:
        """Describe a value; one image (N, C, H, W with N = 1) has H rows, any other value none."""
        dims = self._dims(name)
        rows = dims[ROW_AXIS] if len(dims) == 4 and dims[0] == 1 else 0
        return SplitValue(name, prod(dims) * self._sizes[name], rows, counted)

    def _itemsize(self, name: str, proto: Any) -> int:
        """Return the bytes of an element in the file's own type, of an input or of what the node `proto` computes."""
        if proto is not None and proto.op_type.startswith(_ONE_BYTE):
            return 1
        if proto is not None and proto.op_type in _FOUR_BYTES:
            return 4
        value = self._values.get(name)
        if value is None:
            return 0
        dtype = value.tensor.dtype
        if not dtype.is_fixed_point or proto is None:
            return dtype.itemsize
        return max((self._sizes[n] for n in proto.input if n in self._sizes), default=4)

    def _rule(self, proto: Any) -> NodeRule | None:
        """Return how a node is computed by rows; None if it stays whole."""
        if proto.domain not in ("", "ai.onnx", "com.microsoft") or inner_names(proto):
            return None
        names = tuple(proto.input)
        if not names or any(name and self._values.get(name) is None for name in (*names, proto.output[0])):
            return None
        op = f"{proto.domain}:{proto.op_type}" if proto.domain == "com.microsoft" else proto.op_type
        if op == "Softmax" and self._opset < 13:  # merges all axes from its axis on
            return None
        result, dims = self._dims(proto.output[0]), tuple(map(self._dims, names))
        static = tuple(name in self._static for name in names)
        scalars = {name for name, own in zip(names, dims, strict=True) if name and not own}
        # Operands without dimensions must be constants.
        if not result or scalars - self._static:
            return None
        attributes = {a.name: plain_value(a) for a in proto.attribute}
        is_float = self._sizes.get(names[0], 4) > 1
        keys = tuple(name or None for name in names)
        return node_rule(NodeFacts(keys, dims, static, result, ROW_AXIS, op, attributes, is_float))

    def _fresh(self, name_base: str) -> str:
        """Return a new name: the wanted one, with a number if it is in use."""
        count = 0
        name = name_base
        while name in self._names:
            count += 1
            name = f"{name_base}__{count}"
        self._names.add(name)
        return name

    # -- writing -------------------------------------------------------------------------------------------------------

    def write(self, network: Network, instructions: Iterable[TileInstruction]) -> bytes:
        """Write the file with these instructions, whose step numbers refer to `network`."""
        return _OnnxWriter(self, network).write(instructions)


class _OnnxWriter:
    """A split ONNX file that is being written.

    - `network`: its steps, in the order to which the step numbers of instructions refer.
    """

    def __init__(self, source: OnnxFile, network: Network) -> None:
        self._file, self._network = source, network
        self._written: set[int] = set()
        """The ids of the constant nodes written so far."""
        self._model = messages().ModelProto()
        self._model.CopyFrom(source._model)
        self._out: list[Any] = []
        """The nodes of the new file."""
        self._names: dict[Piece, str] = {}
        self._numbers: dict[tuple[int, ...], str] = {}
        """The names of new constants, by their contents."""
        self._tensors: list[Any] = []
        """The new constants."""

    def write(self, instructions: Iterable[TileInstruction]) -> bytes:
        """Return the bytes of the file with these instructions as its nodes."""
        for one in instructions:
            if isinstance(one, StepInstruction):
                node = self._network.steps[one.step].source
                self._out += constant_nodes(_reads(node), self._file._constants, _reads, self._written)
                self._out.append(self._tile(one, node) if isinstance(one, Compute) else node)
            elif isinstance(one, CopyRows):
                self._slice(one)
            else:
                parts = [self._name(part) for part in one.reads]
                self._node("Concat", parts, self._name(one.result), {"axis": ROW_AXIS})
        graph = self._model.graph
        self._fix_inputs(graph)
        del graph.node[:]
        if self._model.ir_version < _CONSTANT_BESIDES_INPUTS:
            graph.node.extend(constant_node(tensor) for tensor in self._tensors)
        else:
            graph.initializer.extend(self._tensors)
        graph.node.extend(self._out)
        # Shapes are declared only for values that still exist.
        results = {name for node in self._out for name in node.output}
        infos = [info for info in graph.value_info if info.name in results]
        del graph.value_info[:]
        graph.value_info.extend(infos)
        try:
            return bytes(self._model.SerializeToString())
        except Exception as error:  # protobuf's exception class depends on its implementation
            raise QnnError(
                Code.COMMON_NOT_SUPPORTED, "the split model", f"it cannot be written as one file ({error})"
            ) from error

    def _fix_inputs(self, graph: Any) -> None:
        """Fix the shapes of inputs, since tiles are cut for them."""
        for entry in graph.input:
            dims = self._file._inputs.get(entry.name)
            if dims is None:
                # A constant, which old files list among the inputs.
                continue
            shape = entry.type.tensor_type.shape
            del shape.dim[:]
            for size in dims:
                shape.dim.add().dim_value = size

    def _name(self, piece: Piece) -> str:
        """Return the name of a piece: that of its value in the file, or a new one for some of its rows."""
        if piece.whole:
            return str(piece.value)
        if piece not in self._names:
            self._names[piece] = self._file._fresh(f"{piece.value}__rows_{piece.rows[0]}_{piece.rows[1]}")
        return self._names[piece]

    def _tile(self, one: Compute, node: Any) -> Any:
        """Return a node that computes some rows of a node of the file."""
        proto = copy_node(node)
        rule = self._network.steps[one.step].rule
        assert isinstance(rule, NodeRule)
        # The operands that are read by rows come first among the reads.
        rows = dict(zip(rule.sliced, one.reads, strict=False))
        for index, name in enumerate(proto.input):
            if name in rows:
                proto.input[index] = self._name(rows[name])
        for index, numbers in rule.constants(one.rows, one.source).items():
            proto.input[index] = self._number(tuple(numbers))
        proto.output[0] = self._name(one.result)
        proto.name = proto.output[0]
        change_attributes(proto, rule.attributes(one.rows, one.source))
        return proto

    def _slice(self, one: CopyRows) -> None:
        """Append a Slice node for a copy of rows; its numbers count from the first row of the piece that it reads."""
        low, high = (row - one.reads[0].rows[0] for row in one.result.rows)
        source, result = self._name(one.reads[0]), self._name(one.result)
        if self._file._opset < _SLICE_OPERANDS:
            self._node("Slice", [source], result, {"starts": [low], "ends": [high], "axes": [ROW_AXIS]})
        else:
            self._node("Slice", [source, *(self._number((n,)) for n in (low, high, ROW_AXIS))], result, {})

    def _node(self, op: str, inputs: list[str], output: str, attributes: dict[str, int | list[int]]) -> None:
        """Append a new node."""
        node = messages().NodeProto(op_type=op, input=inputs, output=[output], name=output)
        for name, value in attributes.items():
            if isinstance(value, int):
                node.attribute.add(name=name, type=_INT, i=value)
            else:
                node.attribute.add(name=name, type=_INTS, ints=value)
        self._out.append(node)

    def _number(self, numbers: tuple[int, ...]) -> str:
        """Return the name of a constant with these integers; equal ones are shared."""
        if numbers not in self._numbers:
            name = self._file._fresh("rows_" + "_".join(map(str, numbers)))
            self._numbers[numbers] = name
            self._tensors.append(
                messages().TensorProto(name=name, data_type=_INT64, dims=[len(numbers)], int64_data=numbers)
            )
        return self._numbers[numbers]


def _reads(proto: Any) -> list[str]:
    """List the names that a node and its subgraphs read."""
    return [*proto.input, *inner_names(proto)]


def units(nodes: list[Any], outputs: Collection[str], static: Collection[str]) -> list[list[Any]]:
    """Group nodes that a runtime may compute as one quantized operator; any other node is a group by itself.

    Such a group is a node that reads the result of a DequantizeLinear, that DequantizeLinear, and a QuantizeLinear that
    is the only reader of the node's result, possibly after an activation. Groups are in the order of their central
    nodes. No value of `outputs` is inside a group; `static` are the names of constants.
    """
    readers: dict[str, list[Any]] = {}
    for proto in nodes:
        for name in {*proto.input, *inner_names(proto)}:
            readers.setdefault(name, []).append(proto)

    def only_reader(proto: Any) -> Any:
        """Return the only node that reads the only result of a node; None if there are more, or none."""
        own = readers.get(proto.output[0], []) if len(proto.output) == 1 else []
        return own[0] if len(own) == 1 and proto.output[0] not in outputs else None

    def follows(proto: Any, *ops: str) -> bool:
        """Return whether a node is one of these operators, with constants as its other operands."""
        return proto is not None and is_standard(proto, *ops) and all(n in static for n in proto.input[1:] if n)

    floats = {proto.output[0]: proto for proto in nodes if is_standard(proto, "DequantizeLinear")}
    # For the id of a central node, the nodes before and behind it in its group.
    around: dict[int, tuple[list[Any], list[Any]]] = {}
    for proto in nodes:
        before = [floats[name] for name in dict.fromkeys(proto.input) if name in floats]
        before = [one for one in before if only_reader(one) is proto]
        if before:
            behind, following = [], only_reader(proto)
            if follows(following, *_ACTIVATIONS):
                behind, following = [following], only_reader(following)
            around[id(proto)] = before, [*behind, following] if follows(following, "QuantizeLinear") else []
    taken = {id(one) for before, behind in around.values() for one in (*before, *behind)}
    groups = ((proto, *around.get(id(proto), ([], []))) for proto in nodes if id(proto) not in taken)
    return [[*before, proto, *behind] for proto, before, behind in groups]


def copy_node(proto: Any) -> Any:
    """Copy a node."""
    copy = messages().NodeProto()
    copy.CopyFrom(proto)
    return copy


def plain_value(attribute: Any) -> Any:
    """Return the value of an attribute that a rule may need; text as bytes."""
    string_type = 3
    return bytes(attribute.s) if attribute.type == string_type else attribute_value(attribute, None)


def change_attributes(proto: Any, attributes: Attributes) -> None:
    """Set attributes of a node; None removes one."""
    for name, value in attributes.items():
        for old in [a for a in proto.attribute if a.name == name]:
            proto.attribute.remove(old)
        if value is not None:
            proto.attribute.add(name=name, type=_INTS, ints=value)


def constant_node(tensor: Any) -> Any:
    """Return a node that holds a constant."""
    node = messages().NodeProto(op_type="Constant", output=[tensor.name], name=tensor.name)
    node.attribute.add(name="value", type=_TENSOR, t=tensor)
    return node


def is_standard(proto: Any, *ops: str) -> bool:
    """Return whether a node is one of these operators in ONNX's own domain."""
    return proto.domain in ("", "ai.onnx") and proto.op_type in ops


def inner_names(proto: Any) -> list[str]:
    """Collect the names that the subgraphs of a node read, at any depth."""
    names: list[str] = []
    graphs = [a.g for a in proto.attribute if a.HasField("g")] + [g for a in proto.attribute for g in a.graphs]
    while graphs:
        graph = graphs.pop()
        names += [output.name for output in graph.output]
        for node in graph.node:
            names += node.input
            graphs += [a.g for a in node.attribute if a.HasField("g")] + [g for a in node.attribute for g in a.graphs]
    return names


def all_names(graph: Any) -> list[str]:
    """Collect all names that a graph uses."""
    names = [entry.name for part in (graph.input, graph.output, graph.initializer, graph.value_info) for entry in part]
    for node in graph.node:
        names += [*node.input, *node.output, *inner_names(node)]
    return names
