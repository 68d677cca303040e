"""A graph of QNN operations, built in QNN's order: create tensors, add nodes, finalize.

A graph is always well-formed: every tensor and node is checked when it is added, and an error has QNN's code and names
the node. State is functional: a state tensor (APP_READWRITE) is read like an input, and the graph records its value
after an execution. That value is what a node writes to the state, or what `update_state` sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

import numpy as np

from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.graph.datatypes import DataType, TensorType
from isthmus.graph.operation import Call, Dims, Operands, Operation, Params
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.quantization import Quantization
from isthmus.graph.tensor import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack


class OutputOptions(TypedDict, total=False):
    """What a caller of `Graph.emit` may say of the outputs, for each of them in order.

    `dims` is needed only if the operation's rule cannot derive shapes (Reshape, Resize …). Data types and quantizations
    default to those that the operation defines, usually those of in[0]. An operation with any number of outputs (Split,
    UnPack) gets all of them; another one gets `outputs`, or one for each output name.
    """

    dims: Sequence[Dims] | None
    dtypes: Sequence[DataType | None] | None
    quantizations: Sequence[Quantization | None] | None
    outputs: int
    output_names: Sequence[str] | None


@dataclass(eq=False)
class Node:
    """An operation in a graph.

    - `op`: The name of the operation, a key of the graph's operations.
    - `params`: All parameters, with defaults filled in.
    """

    name: str
    op: str
    inputs: list[Tensor | None]
    outputs: list[Tensor]
    params: Params


class Graph:
    """A graph under construction, then finalized.

    - `operations`: The operations that its nodes may have, by name. By default those of QNN's package and ours.
    - `tensors`: All tensors by name, in order of creation.
    - `nodes`: The nodes in an order in which they can be computed.
    - `state_updates`: The tensor with the value that a state has after an execution, by the state's name.

    >>> import numpy as np
    >>> from isthmus.graph import DataType, Graph, TensorType
    >>> g = Graph("halves")
    >>> x = g.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    >>> y = g.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    >>> half = g.constant("half", np.float32([0.5]))
    >>> node = g.add_node("mul", "ElementWiseMultiply", [x, half], [y])
    >>> g.finalize()
    >>> [t.name for t in g.inputs], [n.op for n in g.nodes]
    (['x'], ['ElementWiseMultiply'])
    """

    def __init__(self, name: str, operations: Mapping[str, Operation] | None = None) -> None:
        if not name:
            raise QnnError(Code.GRAPH_INVALID_NAME, "graph", "a graph needs a name")
        self.name = name
        # Those that every backend has are left out: their definitions cannot be pickled.
        self._operations = None if operations is OPERATIONS else operations
        # The rounding of fixed-point results: "exact" to the nearest, "litert" or "onnxruntime" as these runtimes.
        self.numerics = "exact"
        self.tensors: dict[str, Tensor] = {}
        self.nodes: list[Node] = []
        self.state_updates: dict[str, Tensor] = {}
        # The names in the model file of intermediate tensors that are called otherwise here.
        self.source_names: dict[str, str] = {}
        self.finalized = False
        # The names of the tensors that nodes write.
        self._written: set[str] = set()
        self._node_names: set[str] = set()
        # The number that was last appended to a name that was taken, by that name.
        self._counts: dict[str, int] = {}

    @property
    def operations(self) -> Mapping[str, Operation]:
        """The operations that its nodes may have, by name."""
        return OPERATIONS if self._operations is None else self._operations

    @property
    def inputs(self) -> list[Tensor]:
        """The graph inputs, in order of creation."""
        return [t for t in self.tensors.values() if t.type is TensorType.APP_WRITE]

    @property
    def outputs(self) -> list[Tensor]:
        """The graph outputs, in order of creation."""
        return [t for t in self.tensors.values() if t.type is TensorType.APP_READ]

    @property
    def states(self) -> list[Tensor]:
        """The tensors kept between executions, in order of creation."""
        return [t for t in self.tensors.values() if t.type is TensorType.APP_READWRITE]

    def create_tensor(
        self,
        name: str,
        type: TensorType,
        dtype: DataType,
        dims: Iterable[int],
        quantization: Quantization | None = None,
        data: np.ndarray | None = None,
        **more: Any,
    ) -> Tensor:
        """Create a tensor (QnnTensor_createGraphTensor). `more` are further fields of `Tensor`."""
        return self.add_tensor(Tensor(name, type, dtype, tuple(dims), quantization, data, **more))

    def add_tensor(self, tensor: Tensor) -> Tensor:
        """Add a tensor to the graph under its name."""
        self._check_open()
        if tensor.name in self.tensors:
            rule = f"graph '{self.name}' has one of that name"
            raise QnnError(Code.TENSOR_ALREADY_EXISTS, f"tensor '{tensor.name}'", rule)
        self.tensors[tensor.name] = tensor
        return tensor

    def constant(
        self, name: str, value: np.ndarray, quantization: Quantization | None = None, dtype: DataType | None = None
    ) -> Tensor:
        """Create a STATIC tensor with these contents; it is fixed point if a quantization is given."""
        value = np.asarray(value)
        if dtype is None:
            dtype = DataType.of(value.dtype) if quantization is None else DataType.fixed_point(value.dtype)
        return self.create_tensor(self.fresh(name), TensorType.STATIC, dtype, value.shape, quantization, value)

    def fresh(self, name: str, taken: Collection[str] = ()) -> str:
        """Return a tensor name derived from `name` that is neither in the graph nor in `taken`."""
        return self._fresh(name, lambda candidate: candidate in self.tensors or candidate in taken)

    def add_node(
        self, name: str, op: str, inputs: Operands, outputs: Sequence[Tensor], params: Params | None = None
    ) -> Node:
        """Add a node whose tensors exist already (QnnGraph_addNode).

        A node may write a state; the state has that value in the next execution. Nodes added before it, and the node
        itself, read the value of the previous execution; nodes added later read the new one.
        """
        self._check_open()
        what = f"node '{name}' ({op})"

        operation = self._operation(name, op)
        if not name or name in self._node_names:
            raise QnnError(Code.GRAPH_INVALID_NAME, what, f"a node needs a name that is new in graph '{self.name}'")
        inputs = [None if t is None or t.type is TensorType.NULL else t for t in inputs]
        self._check_operands(what, inputs, outputs)
        call = Call(name, op, inputs, operation.complete(name, params or {}), outputs)
        operation.verify(call)
        values = [None if t is None else _with_scales(call, i, self._value(t)) for i, t in enumerate(inputs)]
        results = [_next_value(t) if t.type is TensorType.APP_READWRITE else t for t in outputs]
        node = Node(name, op, values, results, call.params)
        self.nodes.append(node)
        self._node_names.add(name)
        self._written.update(t.name for t in outputs)
        self.state_updates.update(
            {state.name: value for state, value in zip(outputs, results, strict=True) if value is not state}
        )
        return node

    def remove_last_node(self) -> None:
        """Remove the node that was added last and that nothing reads yet."""
        node = self.nodes.pop()
        self._node_names.discard(node.name)
        self._written.difference_update(tensor.name for tensor in node.outputs)
        for tensor in node.outputs:
            if self.state_updates.get(tensor.name) is tensor:
                del self.state_updates[tensor.name]

    @contextmanager
    def all_or_none(self, outputs: Sequence[Tensor]) -> Iterator[None]:
        """Undo the block if it raises: remove its tensors and nodes, and restore outputs that became constants.

        - `outputs`: The tensors that the nodes of the block write and that existed before it.
        """
        # Tensors and nodes are kept in order of creation, so those of the block are the last ones.
        tensor_count, node_count = len(self.tensors), len(self.nodes)
        before = [(tensor, tensor.type, tensor.data) for tensor in outputs]
        try:
            yield
        except BaseException:
            while len(self.nodes) > node_count:
                self.remove_last_node()
            while len(self.tensors) > tensor_count:
                self.tensors.popitem()
            for tensor, type, data in before:
                tensor.type, tensor.data = type, data
            raise

    def emit(
        self, op: str, inputs: Operands, params: Params | None = None, *, name: str | None = None,
        **options: Unpack[OutputOptions],
    ) -> list[Tensor]:  # fmt: skip
        """Add a node and create its outputs as NATIVE tensors; the operation's rule derives their shapes.

        `options` are those of `OutputOptions`: dims, dtypes, quantizations, outputs, output_names.
        """
        name = self.fresh_node(name or op)
        created = [self.add_tensor(tensor) for tensor in self.describe_outputs(name, op, inputs, params, **options)]
        try:
            self.add_node(name, op, inputs, created, params)
        except QnnError:
            for tensor in created:
                del self.tensors[tensor.name]
            raise
        return created

    def describe_outputs(
        self, node: str, op: str, inputs: Operands, params: Params | None, **options: Unpack[OutputOptions]
    ) -> list[Tensor]:
        """Return the outputs that `emit` would create, without adding them to the graph.

        The parameters are those of `emit`; `node` is the name that the outputs' names are derived from.
        """
        operation = self._operation(node, op)
        call = Call(node, op, inputs, operation.complete(node, params or {}))
        dims, output_names = options.get("dims"), options.get("output_names")
        if dims is None:
            dims = operation.derive(call)
            # A rule returns the dimensions of all outputs; optional ones that nobody asks for are dropped.
            if operation.outputs[1] is not None:
                dims = dims[: max(options.get("outputs", 1), len(output_names or ()), operation.outputs[0])]
        names: set[str] = set()
        described = []
        for index, shape in enumerate(dims):
            dtype = _at(options.get("dtypes"), index) or operation.output_type(call, index)[1]
            if dtype is None:
                call.refuse(f"out[{index}] needs a data type")
            quantization = _at(options.get("quantizations"), index)
            if quantization is None and dtype.is_fixed_point:
                quantization = _carry_quantization(call, shape)
            unique = self.fresh(_at(output_names, index) or (node if index == 0 else f"{node}:{index}"), names)
            names.add(unique)
            described.append(Tensor(unique, TensorType.NATIVE, dtype, shape, quantization))
        return described

    def fresh_node(self, name: str) -> str:
        """Return an unused node name derived from `name`."""
        return self._fresh(name, self._node_names.__contains__)

    def _fresh(self, name: str, taken: Callable[[str], bool]) -> str:
        """Return `name`, or `name` with a number appended if `taken` returns true for it."""
        if not taken(name):
            return name
        # Continuing from the last number tried avoids quadratic time for many equal names.
        count = self._counts.get(name, 0) + 1
        while taken(f"{name}.{count}"):
            count += 1
        self._counts[name] = count
        return f"{name}.{count}"

    def update_state(self, state: Tensor, value: Tensor) -> None:
        """Set the value that a state tensor has after an execution; all nodes read the previous value."""
        self._check_open()
        if state.type is not TensorType.APP_READWRITE or self.tensors.get(state.name) is not state:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"tensor '{state.name}'", "it is not a state of this graph")
        if state.name in self._written:
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"state '{state.name}'", "a node writes its next value already")
        if value.dims != state.dims or value.dtype is not state.dtype:
            rule = f"cannot take the value {value.describe()}"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"state {state.describe()}", rule)
        self._check_readable(f"state '{state.name}'", 0, value)
        self.state_updates[state.name] = self._value(value)

    def rename(self, names: Mapping[str, str]) -> None:
        """Give tensors other names, all of them or none: `names` has the new name of each by its old one.

        >>> from isthmus.graph import DataType, Graph, TensorType
        >>> g = Graph("one")
        >>> _ = g.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
        >>> g.rename({"x": "image"})
        >>> list(g.tensors)
        ['image']
        """
        renamed = {names.get(old, old): tensor for old, tensor in self.tensors.items()}
        if len(renamed) < len(self.tensors):
            raise QnnError(Code.GRAPH_INVALID_NAME, f"graph '{self.name}'", "two of its tensors would have one name")
        for name, tensor in renamed.items():
            tensor.name = name
        self.tensors = renamed
        self._written = {names.get(name, name) for name in self._written}

    def finalize(self) -> None:
        """Close the graph; refuse an empty graph and one with outputs that no node writes."""
        self._check_open()
        what = f"graph '{self.name}'"
        if not self.nodes:
            raise QnnError(Code.GRAPH_FINALIZE_FAILED, what, "an empty graph cannot be finalized")
        for tensor in self.outputs:
            if tensor.name not in self._written:
                raise QnnError(Code.GRAPH_FINALIZE_FAILED, what, f"no node writes the output '{tensor.name}'")
        self.finalized = True

    def _check_open(self) -> None:
        """Refuse to change a finalized graph."""
        if self.finalized:
            raise QnnError(Code.GRAPH_FINALIZED, f"graph '{self.name}'", "a finalized graph cannot be changed")

    def _value(self, tensor: Tensor) -> Tensor:
        """Return the tensor that a new node reads: for a state that a node has written, the new value."""
        if tensor.type is TensorType.APP_READWRITE and tensor.name in self._written:
            return self.state_updates[tensor.name]
        return tensor

    def _operation(self, name: str, op: str) -> Operation:
        """Return the definition of operation `op`; refuse an unknown one in the name of node `name`."""
        operation = self.operations.get(op)
        if operation is None:
            what, hint = f"node '{name}' ({op})", did_you_mean(op, self.operations)
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, "there is no such operation", hint)
        return operation

    def _check_operands(self, what: str, inputs: Operands, outputs: Sequence[Tensor]) -> None:
        """Refuse operands that a new node cannot read or write. `what` names the node in errors."""

        def refuse(rule: str) -> NoReturn:
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)

        for index, tensor in enumerate(inputs):
            if tensor is not None:
                self._check_readable(what, index, tensor)
        written: set[str] = set()
        for index, out in enumerate(outputs):
            if self.tensors.get(out.name) is not out:
                refuse(f"out[{index}] '{out.name}' is not a tensor of this graph")
            if out.type not in (TensorType.NATIVE, TensorType.APP_READ, TensorType.APP_READWRITE):
                refuse(f"out[{index}] '{out.name}', {out.type.name}, is not writable")
            if out.name in self._written or out.name in written:
                refuse(f"out[{index}] '{out.name}' is written by another node")
            if out.name in self.state_updates:
                refuse(f"the next value of state '{out.name}' is given by update_state")
            written.add(out.name)

    def _check_readable(self, what: str, index: int, tensor: Tensor) -> None:
        """Refuse input `index` if it is not a tensor of this graph or has no value yet."""
        if self.tensors.get(tensor.name) is not tensor:
            rule = f"in[{index}] '{tensor.name}' is not a tensor of this graph"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule)
        if tensor.type in (TensorType.NATIVE, TensorType.APP_READ) and tensor.name not in self._written:
            rule = f"in[{index}] '{tensor.name}' is not written by an earlier node"
            hint = "Add nodes in the order of their data; a cycle has no such order."
            raise QnnError(Code.GRAPH_UNCONNECTED_NODE, what, rule, hint)


def _next_value(state: Tensor) -> Tensor:
    """Create the value that a node writes to a state. Clients cannot name it, so it shares the state's name."""
    return Tensor(state.name, TensorType.NATIVE, state.dtype, state.dims, state.quantization)


def _with_scales(call: Call, index: int, tensor: Tensor) -> Tensor:
    """Return operand `index`; a bias without scales has those of the products that it is added to."""
    if not tensor.lacks_scales or call.op not in OPERATIONS:
        return tensor  # what an operation of a package does with it, the package knows
    x, weights = (call.tensor(0).quantization, call.tensor(1).quantization) if index == 2 else (None, None)
    if OPERATIONS[call.op].traits.product is None or x is None or weights is None or weights.block:
        call.refuse(f"in[{index}] {tensor.describe()} has no scales, and is not the bias of a fixed-point product")
    # A transposed convolution in groups has the same scales for each group.
    count = 1 if weights.axis is None else tensor.elements // len(weights.scales) * len(weights.scales)
    scales = np.resize(np.asarray(weights.scales, np.float32) * np.float32(x.scale), count)
    axis = None if weights.axis is None else 0
    return replace(tensor, quantization=Quantization(tuple(scales.tolist()), (0,) * count, axis))


_Item = TypeVar("_Item")


def _at(items: Sequence[_Item | None] | None, index: int) -> _Item | None:
    """Return the item for one output, if the list has it."""
    return items[index] if items is not None and index < len(items) else None


def _carry_quantization(call: Call, dims: Dims) -> Quantization | None:
    """Return the quantization that an output inherits from the first fixed-point input; its axis follows the data."""
    source = next((t for t in call.inputs if t is not None and t.dtype.is_fixed_point), None)
    quantization = source.quantization if source else None
    if source is None or quantization is None or quantization.axis is None or call.op not in ("Transpose", "Reshape"):
        return quantization
    axis = quantization.axis
    if call.op == "Transpose":
        return replace(quantization, axis=call.params["perm"].tolist().index(axis))
    # After a Reshape, the quantized axis is the one of equal size with as many elements before it.
    elements_before = math.prod(source.dims[:axis])
    for new_axis, size in enumerate(dims):
        if size == source.dims[axis] and math.prod(dims[:new_axis]) == elements_before:
            return replace(quantization, axis=new_axis)
    return call.refuse(f"the quantized axis {axis} of {source.describe()} is lost in {list(dims)}")
