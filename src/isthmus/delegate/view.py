"""A running interpreter's model: nodes, tensors and constants, read from the interpreter's own structures.

Nodes can be queried only while a delegate prepares, and do not change: they are read once, then. Tensors are read
whenever needed, since inputs may be resized.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from isthmus.delegate import parameters, structures
from isthmus.delegate.structures import Allocation
from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite import next_value
from isthmus.frontends.tflite.contents import contents
from isthmus.frontends.tflite.entries import (
    MAX_CUSTOM_OPTIONS,
    MAX_OPERATORS,
    OperatorEntry,
    SparseDimension,
    Subgraph,
    TfliteModel,
    TfliteSparsity,
    TfliteTensor,
    oversized_name,
)
from isthmus.frontends.tflite.schema import CUSTOM, OPERATORS, ElementType
from isthmus.frontends.unsupported import unsupported

DELEGATE = "DELEGATE"
"""The operator of a node that a delegate has put in the place of others."""
_DELEGATE_CODE = OPERATORS.index(DELEGATE)


@dataclass(frozen=True)
class Nodes:
    """The nodes of one subgraph in execution order, read while a delegate prepares.

    - `context`: The address of the subgraph's context.
    - `operators`: Its operators; `index` of each is the interpreter's number for the node.
    - `delegated`: The numbers of nodes that belong to a delegate.
    - `names`: A unique name for each tensor.
    - `called`: The subgraphs that CALL_ONCE runs, by number.
    - `elsewhere`: The variables that other subgraphs use, by container and name.
    """

    context: int
    index: int
    operators: tuple[OperatorEntry, ...]
    delegated: frozenset[int]
    names: tuple[str, ...]
    called: Mapping[int, Nodes] = field(default_factory=dict)
    elsewhere: frozenset[tuple[str, str]] = frozenset()

    @property
    def structure(self) -> structures.Context:
        """The context structure; its tensors may have moved since the last access."""
        return structures.Context.from_address(self.context)

    def tensor(self, index: int) -> structures.Tensor:
        """Return the current structure of a tensor."""
        context = self.structure
        if not 0 <= index < context.tensors_size:
            rule = f"there is no tensor {index}, the interpreter has {context.tensors_size}"
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "interpreter", rule)
        tensor: structures.Tensor = context.tensors[index]
        return tensor

    def dims(self, index: int) -> tuple[int, ...]:
        """Return the current dimensions of a tensor."""
        return structures.integers(self.tensor(index).dims)

    def is_constant(self, index: int) -> bool:
        """Return whether a tensor is a constant of the model."""
        return bool(self.tensor(index).allocation_type == Allocation.MMAP_RO)

    def entry(self, index: int) -> TfliteTensor:
        """Return a tensor's current description. Its current shape is its signature too: no dimension is open."""
        tensor = self.tensor(index)
        name = self.names[index] if index < len(self.names) else f"tensor_{index}"
        kind = structures.TYPES.get(tensor.type)
        if kind is None:
            raise unsupported(f"tensor '{name}'", f"type {tensor.type} is not known")
        shape = structures.integers(tensor.dims)
        scales, zero_points, axis = _quantization(tensor, name)
        return TfliteTensor(
            index, name, kind, shape, shape, 0, bool(tensor.is_variable), scales, zero_points, axis, tensor.sparsity
        )

    def contents(self, entry: TfliteTensor) -> np.ndarray | None:
        """Return the contents of a constant: a view of the interpreter's memory unless they must be unpacked."""
        tensor = self.tensor(entry.index)
        if tensor.allocation_type != Allocation.MMAP_RO:
            return None
        nbytes = int(tensor.bytes)
        data = memoryview(b"")
        if nbytes and tensor.data:
            data = memoryview((ctypes.c_ubyte * nbytes).from_address(tensor.data)).cast("B")
        address = tensor.sparsity
        return contents(entry, data, (lambda: _sparsity(address)) if address else None)


def read(address: int) -> Nodes:
    """Return the nodes of the subgraph that a delegate is to prepare, and of those that it calls once.

    `address` is that of the subgraph's context.
    """
    every = list(subgraphs(address))
    [own] = [nodes for nodes in every if nodes.context == address]
    numbers = {o.options.get("init_subgraph") for o in own.operators if o.code == "CALL_ONCE"}
    called = {nodes.index: nodes for nodes in every if nodes.index in numbers}
    elsewhere = {
        (operator.options["container"], operator.options["shared_name"])
        for nodes in every
        for operator in nodes.operators
        if nodes is not own and nodes.index not in called and operator.code == "VAR_HANDLE"
    }
    return replace(own, called=called, elsewhere=frozenset(elsewhere))


def subgraphs(address: int) -> Iterator[Nodes]:
    """Yield the nodes of all subgraphs of an interpreter, given the context of any."""
    context = structures.Context.from_address(address)
    subgraph = ctypes.c_void_p()
    index = 0
    # A subgraph can be queried for its nodes only while its context is acquired.
    while _acquire(context, address, index, subgraph):
        try:
            assert subgraph.value is not None
            yield _read(subgraph.value, index)
        finally:
            context.release_subgraph_context(address, index)
        index += 1


# A function that ignores error messages.
_silence = structures.ReportError(lambda context, text: None)


def _acquire(context: structures.Context, address: int, index: int, subgraph: ctypes.c_void_p) -> bool:
    """Acquire the context of a subgraph, write its address to `subgraph`, and return whether the subgraph exists."""
    # LiteRT reports an error for a number that is too large. Its message is suppressed.
    # A function read from a structure refers to the structure's memory; it is not a copy of the pointer.
    reporter = ctypes.c_void_p.from_address(address + structures.Context.report_error.offset)
    before, silence = reporter.value, ctypes.cast(_silence, ctypes.c_void_p).value
    try:
        reporter.value = silence
        return bool(context.acquire_subgraph_context(address, index, ctypes.byref(subgraph)) == structures.OK)
    finally:
        reporter.value = before


def plan(address: int) -> tuple[int, ...]:
    """Return the numbers of a subgraph's nodes in execution order."""
    numbers = ctypes.c_void_p()
    if structures.Context.from_address(address).get_execution_plan(address, ctypes.byref(numbers)) != structures.OK:
        raise QnnError(Code.COMMON_GENERAL, "interpreter", "it does not report its execution plan")
    return structures.integers(numbers.value)


def user_data(address: int) -> frozenset[int]:
    """Return the user data of all nodes in a subgraph's execution plan; of a delegate's node, its block's address."""
    context = structures.Context.from_address(address)
    every = (_node(context, address, number)[0].user_data for number in plan(address))
    return frozenset(data for data in every if data)


def _read(address: int, index: int) -> Nodes:
    """Return the nodes of one subgraph, given its acquired context and its number."""
    context = structures.Context.from_address(address)
    numbers = plan(address)
    if len(numbers) > MAX_OPERATORS:
        raise unsupported("interpreter", f"it has {len(numbers)} nodes, more than {MAX_OPERATORS}")
    operators, delegated = [], set()
    for number in numbers:
        node, registration = _node(context, address, number)
        operators.append(_operator(number, node, registration))
        if node.delegate or registration.builtin_code == _DELEGATE_CODE:
            delegated.add(number)
    return Nodes(address, index, tuple(operators), frozenset(delegated), _names(context))


def _node(context: structures.Context, address: int, number: int) -> tuple[structures.Node, structures.Registration]:
    """Return the structures of a node: its operands, and the operator that it is of."""
    node, registration = ctypes.c_void_p(), ctypes.c_void_p()
    status = context.get_node_and_registration(address, number, ctypes.byref(node), ctypes.byref(registration))
    if status != structures.OK or not node.value or not registration.value:
        raise QnnError(Code.COMMON_GENERAL, "interpreter", f"it does not report what node {number} is")
    return structures.Node.from_address(node.value), structures.Registration.from_address(registration.value)


def _operator(number: int, node: structures.Node, registration: structures.Registration) -> OperatorEntry:
    """Describe a node as the operator of a model file. An unknown operator gets a name that no conversion knows."""
    code = registration.builtin_code
    custom = b""
    if code == CUSTOM:
        name = f"CUSTOM:{(registration.custom_name or b'without a name').decode(errors='replace')}"
        size = max(node.custom_initial_data_size, 0)
        if size > MAX_CUSTOM_OPTIONS:
            name = oversized_name(name, size)
        elif node.custom_initial_data:
            custom = ctypes.string_at(node.custom_initial_data, size)
    else:
        name = OPERATORS[code] if 0 <= code < len(OPERATORS) else f"operator number {code}"
    return OperatorEntry(
        number,
        name,
        structures.integers(node.inputs),
        structures.integers(node.outputs),
        parameters.options(name, node.builtin_data),
        custom,
    )


def _names(context: structures.Context) -> tuple[str, ...]:
    """Return a name for each tensor, such that all names and all names of next values differ."""
    # A graph has a tensor for the next value of each variable, under a name derived from the variable's.
    names: list[str] = []
    taken: set[str] = set()
    for index in range(context.tensors_size):
        name = (context.tensors[index].name or b"").decode(errors="replace") or f"tensor_{index}"
        while not taken.isdisjoint({name, next_value(name)}):
            name = f"{name}/{index}"
        taken |= {name, next_value(name)}
        names.append(name)
    return tuple(names)


def _quantization(tensor: structures.Tensor, name: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the scales, zero points and axis of a tensor; no scales if it is not quantized."""
    kind = tensor.quantization.type
    if not kind or not tensor.quantization.params:
        return np.zeros(0, np.float32), np.zeros(0, np.int64), 0
    if kind != structures.AFFINE_QUANTIZATION:
        raise unsupported(f"tensor '{name}'", f"quantization of kind {kind} is not supported")
    affine = structures.AffineQuantization.from_address(tensor.quantization.params)
    zero_points = np.array(structures.integers(affine.zero_point), np.int64)
    return structures.reals(affine.scale), zero_points, affine.quantized_dimension


def _sparsity(address: int) -> TfliteSparsity:
    """Copy LiteRT's description of a sparse constant."""
    sparsity = structures.Sparsity.from_address(address)
    dimensions = []
    for row in structures.rows(sparsity.dim_metadata, structures.DimensionMetadata, sparsity.dim_metadata_size):
        assert isinstance(row, structures.DimensionMetadata)
        listed = (row.array_segments, row.array_indices)
        segments, indices = (np.array(structures.integers(address), np.int64) for address in listed)
        dimensions.append(SparseDimension(row.format, row.dense_size, segments, indices))
    return TfliteSparsity(
        structures.integers(sparsity.traversal_order), structures.integers(sparsity.block_map), dimensions
    )


class NodesSubgraph(Subgraph):
    """A subgraph made of some nodes, with given inputs and outputs.

    - `inputs`, `outputs`, `kept_variables`: Numbers of tensors, as for `Subgraph`.
    """

    def __init__(
        self,
        nodes: Nodes,
        operators: Sequence[OperatorEntry],
        inputs: Sequence[int] = (),
        outputs: Sequence[int] = (),
        kept_variables: Sequence[int] = (),
    ) -> None:
        self.nodes = nodes
        self.index = nodes.index
        self.name = f"subgraph {nodes.index}"
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self.kept_variables = tuple(kept_variables)
        self._operators = tuple(operators)
        self._entries: dict[int, TfliteTensor] = {}

    def tensor(self, index: int) -> TfliteTensor:
        entry = self._entries.get(index)
        if entry is None:
            entry = self._entries[index] = self.nodes.entry(index)
        return entry

    def operators(self) -> Iterator[OperatorEntry]:
        return iter(self._operators)


class NodesModel(TfliteModel):
    """A model made of some nodes of an interpreter, at its tensors' current shapes.

    - `computed`: Contents of tensors that other nodes compute from constants and shapes alone.
    """

    def __init__(self, name: str, main: NodesSubgraph, computed: Mapping[int, np.ndarray] | None = None) -> None:
        self.name = name
        self._main = main
        self._computed = dict(computed or {})
        self._called = {index: NodesSubgraph(nodes, nodes.operators) for index, nodes in main.nodes.called.items()}
        tensors = main.nodes.structure.tensors
        read = {index for operator in main.operators() for index in operator.inputs if index >= 0}
        self.nbytes = sum(int(tensors[index].bytes) for index in read if main.nodes.is_constant(index))

    def subgraph(self, index: int) -> Subgraph:
        """Return these nodes as subgraph 0, or a subgraph that CALL_ONCE runs."""
        # The walk starts at the model's first subgraph, which these nodes form, wherever they were found.
        if index == 0:
            return self._main
        if index not in self._called:
            rule = f"it calls subgraph {index}, which is not there"
            raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, f"model '{self.name}'", rule)
        return self._called[index]

    def contents(self, subgraph: Subgraph, entry: TfliteTensor) -> np.ndarray | None:
        assert isinstance(subgraph, NodesSubgraph)
        if subgraph is self._main and entry.index in self._computed:
            return self._computed[entry.index]
        return subgraph.nodes.contents(entry)


def is_plain(nodes: Nodes, index: int) -> bool:
    """Return whether a tensor holds numbers, not handles, texts or other objects."""
    kind = structures.TYPES.get(nodes.tensor(index).type)
    return kind not in (None, ElementType.STRING, ElementType.RESOURCE, ElementType.VARIANT)
