"""Conversion of a graph of QNN operations to a graph of ours, node by node.

Unsupported nodes and tensors are collected and their results are marked as lost. The conversion continues, so that one
error can list all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed import arrays
from isthmus.frontends.composed.entries import PACKAGE, ComposedTensor, GraphEntry, NodeEntry
from isthmus.frontends.composed.recurrent import RECURRENT, add_recurrent
from isthmus.frontends.unsupported import Unsupported
from isthmus.graph import DataType, Graph, Tensor, TensorMemType, TensorType
from isthmus.graph.neutral import without_neutral
from isthmus.graph.operation import ISTHMUS, Operation, names_of
from isthmus.graph.package import PackageOperation, number, qualify

MAX_NODES = 100_000
PACKAGES = frozenset(("", PACKAGE, ISTHMUS))
"""The packages whose operations are supported."""
_IO = (TensorType.APP_WRITE, TensorType.APP_READ)


class ComposedBuilder:
    """The conversion of one graph.

    - `operations`: the operations that its nodes may have. By default those that every backend has.
    """

    def __init__(self, entry: GraphEntry, name: str, operations: Mapping[str, Operation] | None = None) -> None:
        self.entry = entry
        self.graph = Graph(name, operations)
        self.unsupported = Unsupported(name)
        self._copies = arrays.Copies()
        # The tensors by name; None for those that are absent or lost.
        self._tensors: dict[str, Tensor | None] = {}
        # The names that stand for an absent optional operand.
        self._absent = {"", *(tensor.name for tensor in entry.tensors if tensor.type == TensorType.NULL)}

    def build(self) -> Graph:
        """Return the finalized graph."""
        if len(self.entry.nodes) > MAX_NODES:
            rule = f"it has {len(self.entry.nodes)} nodes, above the limit of {MAX_NODES}"
            raise QnnError(Code.GRAPH_CREATE_FAILED, f"graph '{self.graph.name}'", rule)
        # Create inputs and outputs first, as QNN's reader does, so that they get their names before other tensors.
        for tensor in sorted(self.entry.tensors, key=lambda tensor: tensor.type not in _IO):
            if tensor.name in self._tensors:
                raise QnnError(Code.TENSOR_ALREADY_EXISTS, f"tensor '{tensor.name}'", "the file has two of that name")
            self._tensors[tensor.name] = self._tensor(tensor)
        for node in self.entry.nodes:
            self._node(node)
        self.unsupported.check()
        self.graph.finalize()
        return self.graph

    def _tensor(self, entry: ComposedTensor) -> Tensor | None:
        """Create a tensor of the graph; return None if it is absent or not supported."""
        dtype = arrays.data_type(entry)
        encoding = entry.encoding
        if entry.type == TensorType.NULL:
            return None
        if entry.type not in tuple(TensorType):
            self.unsupported.add(f"tensor type {entry.type}", entry.name)
        elif dtype is None or (entry.dtype in arrays.FOUR_BITS and entry.type != TensorType.STATIC):
            self.unsupported.add(f"data type {entry.dtype:#06x}", entry.name)
        elif encoding is not None and dtype.is_fixed_point and not len(encoding.scales):
            self.unsupported.add(f"quantization encoding {encoding.kind}", entry.name)
        elif encoding is not None and len(encoding.blocks) and entry.type != TensorType.STATIC:
            self.unsupported.add(f"quantization encoding {encoding.kind} of a tensor that is not static", entry.name)
        else:
            arrays.check_size(entry, dtype)
            # A state may have an initial value, a constant must have one.
            filled = entry.type == TensorType.STATIC or (entry.type == TensorType.APP_READWRITE and bool(entry.data))
            contents = arrays.elements(entry, dtype, self._copies) if filled else None
            mem_type = entry.mem_type if entry.type in _IO else TensorMemType.RAW
            kind, quantization = TensorType(entry.type), arrays.quantization(entry, dtype, contents)
            return self.graph.create_tensor(
                entry.name, kind, dtype, entry.dims, quantization, contents, mem_type=mem_type
            )
        return None

    def _node(self, node: NodeEntry) -> None:
        """Add a node. If it is not supported, record why and mark its outputs as lost."""
        op = node.type if node.package in PACKAGES else qualify(node.package, node.type)
        operation = self.graph.operations.get(op)
        what = f"node '{node.name}' ({op})"
        inputs = [self._operand(what, name) for name in node.inputs]
        outputs = [self._operand(what, name) for name in node.outputs]
        # Absent operands at the end are dropped; operations count only those that are present.
        while inputs and node.inputs[len(inputs) - 1] in self._absent:
            inputs.pop()
        while outputs and node.outputs[len(outputs) - 1] in self._absent:
            outputs.pop()
        written = [tensor for tensor in outputs if tensor is not None]
        # A node that reads the result of an unsupported node is skipped without an error of its own.
        reads_lost = any(t is None and name not in self._absent for t, name in zip(inputs, node.inputs, strict=False))
        if operation is None:
            self.unsupported.add(op or "an operation without a name", node.name)
        elif self._absent.intersection(node.outputs[: len(outputs)]):
            self.unsupported.add(op, node.name, "an output before another is absent")
        elif reads_lost or len(written) != len(outputs):
            pass
        elif isinstance(operation, PackageOperation):
            values = {name: self._package_param(node, name) for name in node.params}
            self._add(node.name or node.type, op, inputs, written, values)
            return
        else:
            params = {name: self._param(value) for name, value in node.params.items()}
            params = params if op in RECURRENT else without_neutral(op, params)
            lacking = _lacking(operation, inputs, written, params)
            if not lacking:
                self._add(node.name or op, op, inputs, written, params)
                return
            self.unsupported.add(op, node.name, lacking)
        self._tensors.update(dict.fromkeys(node.outputs))

    def _add(
        self, name: str, op: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], params: dict[str, Any]
    ) -> None:
        """Add a supported node to the graph under a name that is not taken."""
        name = self.graph.fresh_node(name)
        if op in RECURRENT:
            add_recurrent(self.graph, name, op, inputs, outputs, params)
        else:
            self.graph.add_node(name, op, inputs, outputs, params)

    def _operand(self, what: str, name: str) -> Tensor | None:
        """Return a tensor by name; None if it is absent or lost. Refuse an unknown name."""
        if name and name not in self._tensors:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, what, f"there is no tensor '{name}'")
        return self._tensors.get(name)

    def _package_param(self, node: NodeEntry, name: str) -> Any:
        """Return a parameter of a package's operation in the type that the file gives it."""
        value = node.params[name]
        if isinstance(value, ComposedTensor):
            contents, dtype = self._param(value), arrays.data_type(value)
            assert dtype is not None
            quantization = arrays.quantization(value, dtype, contents)
            return Tensor(value.name or name, TensorType.STATIC, dtype, value.dims, quantization, contents)
        kind = node.kinds.get(name)
        return value if kind is None or isinstance(value, str) else number(value, DataType(kind))

    def _param(self, value: Any) -> Any:
        """Return a parameter as a scalar or, if the file gives it as a tensor, as an array."""
        if not isinstance(value, ComposedTensor):
            return value
        dtype = arrays.data_type(value)
        if dtype is None:
            rule = f"its data type {value.dtype:#06x} is none"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"parameter tensor '{value.name}'", rule)
        return arrays.elements(value, dtype, self._copies)


def _lacking(
    operation: Operation, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], params: dict[str, Any]
) -> str:
    """Describe what a node needs that its operation does not offer here; return "" if there is nothing."""
    unknown = params.keys() - {param.name for param in operation.params} - RECURRENT.get(operation.name, frozenset())
    if unknown:
        return f"parameter {', '.join(map(repr, sorted(unknown)))}"
    for kind, tensors, most in (("inputs", inputs, operation.inputs[1]), ("outputs", outputs, operation.outputs[1])):
        if most is not None and len(tensors) > most:
            return f"{len(tensors)} {kind}, at most {most}"
    for index, allowed in operation.input_types.items():
        tensor = inputs[index] if index < len(inputs) else None
        if tensor is not None and tensor.dtype not in allowed:
            return f"in[{index}] as {tensor.dtype.name}; it takes {names_of(allowed)}"
    return ""
