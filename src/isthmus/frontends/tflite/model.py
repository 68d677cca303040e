"""A TFLite file as a model. Each item is read and checked when it is requested."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from isthmus.frontends.flatbuffer import File, Table
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
from isthmus.frontends.tflite.schema import (
    CUSTOM,
    DENSE,
    EXTENDED,
    IDENTIFIER,
    OPERATORS,
    OPTIONS,
    SPARSE_CSR,
    SPARSE_INDEX_TYPES,
    VERSION,
    BufferField,
    DimensionField,
    ElementType,
    ModelField,
    OperatorCodeField,
    OperatorField,
    OptionsTable,
    QuantizationField,
    SparsityField,
    SubgraphField,
    TensorField,
)

MAX_OPERANDS = 4096
"""The most inputs or outputs of one operator or subgraph."""
MAX_RANK = 8
"""The most dimensions of a tensor."""
MAX_CHANNELS = 1 << 16
"""The most scales of one tensor."""
# The most stored dimensions of a sparse tensor that are read. One more is read to find that there are too many.
_MAX_LEVELS = 64


class SharedTables:
    """Data that the subgraphs of a file share: its bytes, the names of its operators, its buffers.

    Subgraphs refer to this object instead of the file's model, because the model refers to them and a cycle would keep
    both alive.
    """

    def __init__(self, root: Table) -> None:
        self.file = root.file
        self._buffers = root.tables(ModelField.BUFFERS, "buffer")
        self._codes = root.tables(ModelField.OPERATOR_CODES, "operator code")
        # The operators' names that were read so far, by the number of the operator code.
        self._names: dict[int, str] = {}

    def operator_name(self, index: int) -> str:
        """Return the name for an operator code; a custom operator's name follows "CUSTOM:"."""
        name = self._names.get(index)
        if name is None:
            table = self._codes[index]
            # Old files have only the 8-bit code. New files have both, and the larger one is valid.
            code = max(
                table.integer(OperatorCodeField.DEPRECATED_BUILTIN_CODE, "i8"),
                table.integer(OperatorCodeField.BUILTIN_CODE, "i32"),
            )
            if not 0 <= code < len(OPERATORS) or code == EXTENDED:
                name = f"operator number {code}"
            elif code == CUSTOM:
                name = f"CUSTOM:{table.text(OperatorCodeField.CUSTOM_CODE) or 'without a name'}"
            else:
                name = OPERATORS[code]
            self._names[index] = name
        return name

    def buffer(self, index: int) -> memoryview:
        """Return the bytes of buffer `index`; empty if it has none."""
        # By convention, buffer 0 is empty.
        if index == 0:
            return self.file.data[:0]
        table = self._buffers[index]
        data = table.array(BufferField.DATA, np.uint8)
        if data is not None and data.size:
            return data.data
        offset, size = table.integer(BufferField.OFFSET, "u64"), table.integer(BufferField.SIZE, "u64")
        if offset <= 1:  # writers that fill in offsets later leave 1 for "nowhere"
            return self.file.data[:0]
        self.file.check(offset, size, table.what)
        return self.file.data[offset : offset + size]


class SubgraphEntry(Subgraph):
    """A subgraph of a file; its tensors and operators are read when they are first requested, and kept."""

    def __init__(self, shared: SharedTables, index: int, table: Table) -> None:
        self.shared = shared
        self.index = index
        self.name = table.text(SubgraphField.NAME) or f"subgraph {index}"
        self._tensors = table.tables(SubgraphField.TENSORS, f"tensor of subgraph {index}, number")
        self._operators = table.tables(SubgraphField.OPERATORS, f"operator of subgraph {index}, number")
        if len(self._operators) > MAX_OPERATORS:
            shared.file.refuse(f"{table.what} has {len(self._operators)} operators, more than {MAX_OPERATORS}")
        self._tensors_read: dict[int, TfliteTensor] = {}
        self._operators_read: dict[int, OperatorEntry] = {}
        self.inputs = self._indices(table, SubgraphField.INPUTS, "inputs")
        self.outputs = self._indices(table, SubgraphField.OUTPUTS, "outputs")

    def _indices(self, table: Table, field: int, what: str) -> tuple[int, ...]:
        """Read a vector of tensor numbers, -1 for an absent operand; refuse numbers that no tensor has."""
        array = table.array(field, np.int32)
        if array is None:
            return ()
        if array.size > MAX_OPERANDS:
            table.refuse(f"{table.what} has {array.size} {what}, more than {MAX_OPERANDS}")
        wrong = array[(array < -1) | (array >= len(self._tensors))]
        if wrong.size:
            count = len(self._tensors)
            table.refuse(f"the {what} of {table.what} name tensor {wrong[0]}, subgraph {self.index} has {count}")
        return tuple(int(i) for i in array)

    @property
    def tensor_count(self) -> int:
        """The number of tensors."""
        return len(self._tensors)

    @property
    def operator_count(self) -> int:
        """The number of operators."""
        return len(self._operators)

    def tensor(self, index: int) -> TfliteTensor:
        """Return tensor `index`."""
        entry = self._tensors_read.get(index)
        if entry is None:
            entry = self._tensors_read[index] = self._tensor(index, self._tensors[index])
        return entry

    def _tensor(self, index: int, table: Table) -> TfliteTensor:
        """Read tensor `index`; refuse a type, shape or quantization that no valid file has."""
        number = table.integer(TensorField.TYPE, "i8")
        try:
            type_ = ElementType(number)
        except ValueError:
            table.refuse(f"{table.what} has the unknown type {number}")
        if table.integer(TensorField.EXTERNAL_BUFFER, "u32"):
            table.refuse(f"{table.what} keeps its data in another file")
        shape = self._shape(table, TensorField.SHAPE)
        signature = self._shape(table, TensorField.SHAPE_SIGNATURE) or shape
        if any(d < 0 for d in shape):
            shape = tuple(max(d, 1) for d in shape)
        if len(signature) != len(shape):
            table.refuse(f"{table.what} has a shape of rank {len(shape)} and a signature of rank {len(signature)}")
        quantization = table.table(TensorField.QUANTIZATION, f"the quantization of {table.what}")
        scales, zero_points, axis = None, None, 0
        if quantization is not None and not quantization.integer(QuantizationField.DETAILS_TYPE, "u8"):
            scales = quantization.array(QuantizationField.SCALE, np.float32)
            zero_points = quantization.array(QuantizationField.ZERO_POINT, np.int64)
            axis = quantization.integer(QuantizationField.QUANTIZED_DIMENSION, "i32")
            if scales is not None and scales.size > MAX_CHANNELS:
                table.refuse(f"{table.what} has {scales.size} scales, more than {MAX_CHANNELS}")
        scales = np.zeros(0, np.float32) if scales is None else scales
        zero_points = np.zeros(0, np.int64) if zero_points is None else zero_points
        name, buffer = table.text(TensorField.NAME) or f"tensor_{index}", table.integer(TensorField.BUFFER, "u32")
        is_variable = bool(table.number(TensorField.IS_VARIABLE, "bool", False))
        sparsity = table.table(TensorField.SPARSITY, f"the sparsity of {table.what}")
        return TfliteTensor(
            index, name, type_, shape, signature, buffer, is_variable, scales, zero_points, axis, sparsity
        )

    def _shape(self, table: Table, field: int) -> tuple[int, ...]:
        """Read a vector of dimensions, -1 for an open one; () if it is absent."""
        array = table.array(field, np.int32)
        if array is None:
            return ()
        if array.size > MAX_RANK:
            table.refuse(f"{table.what} has rank {array.size}, above {MAX_RANK}")
        if array.size and array.min() < -1:
            table.refuse(f"{table.what} has the dimension {array.min()}")
        return tuple(int(d) for d in array)

    def operators(self) -> Iterator[OperatorEntry]:
        """Yield the operators in execution order."""
        for index in range(len(self._operators)):
            entry = self._operators_read.get(index)
            if entry is None:
                entry = self._operators_read[index] = self._operator(index, self._operators[index])
            yield entry

    def _operator(self, index: int, table: Table) -> OperatorEntry:
        """Read operator `index`; one whose custom options are too large gets a name that no converter has."""
        code = self.shared.operator_name(table.integer(OperatorField.OPCODE_INDEX, "u32"))
        custom = table.array(OperatorField.CUSTOM_OPTIONS, np.uint8)
        if custom is not None and custom.size > MAX_CUSTOM_OPTIONS:
            code, custom = oversized_name(code, custom.size), None
        inputs = self._indices(table, OperatorField.INPUTS, "inputs")
        outputs = self._indices(table, OperatorField.OUTPUTS, "outputs")
        options = _options(table, OPTIONS.get(code))
        return OperatorEntry(index, code, inputs, outputs, options, b"" if custom is None else custom.tobytes())


class ModelFile(TfliteModel):
    """A TFLite file: its subgraphs, the names of its operators, the bytes of its buffers.

    - `data`: the bytes of the file; constants are views of them.
    - `name`: the name of the model, that of its file without the suffix. Messages name the file.
    """

    def __init__(self, data: bytes | memoryview, name: str) -> None:
        view = memoryview(data)
        if not view.contiguous:
            view = memoryview(bytes(view))
        self.name = Path(name).stem
        self.file = File(view.cast("B"), name)
        self.nbytes = len(self.file.data)
        self.root = self.file.root(IDENTIFIER)
        version = self.root.integer(ModelField.VERSION, "u32")
        if version != VERSION:
            self.file.refuse(f"the schema version is {version}, expected {VERSION}")
        self._subgraphs = self.root.tables(ModelField.SUBGRAPHS, "subgraph")
        self.shared = SharedTables(self.root)
        self._subgraphs_read: dict[int, SubgraphEntry] = {}
        if not len(self._subgraphs):
            self.file.refuse("it has no subgraph")

    @property
    def subgraph_count(self) -> int:
        """The number of subgraphs."""
        return len(self._subgraphs)

    def subgraph(self, index: int) -> SubgraphEntry:
        """Return subgraph `index`."""
        entry = self._subgraphs_read.get(index)
        if entry is None:
            entry = self._subgraphs_read[index] = SubgraphEntry(self.shared, index, self._subgraphs[index])
        return entry

    def refuse(self, rule: str) -> NoReturn:
        """Refuse the file."""
        self.file.refuse(rule)

    def contents(self, subgraph: Subgraph, entry: TfliteTensor) -> np.ndarray | None:
        """Return the array that a tensor holds initially, or None if it has no contents."""
        sparsity = None if entry.sparsity is None else lambda: _sparsity(entry.sparsity, f"tensor '{entry.name}'")
        return contents(entry, self.buffer(entry.buffer), sparsity)

    def buffer(self, index: int) -> memoryview:
        """Return the bytes of buffer `index`; empty if it has none."""
        return self.shared.buffer(index)


def _options(operator: Table, schema: OptionsTable | None) -> dict[str, Any]:
    """Return the options of an operator, or defaults if the file has none or another operator's.

    `schema` describes the options that are read; None if the operator has none.
    """
    if schema is None:
        return {}
    kind, field = OperatorField.OPTIONS_TYPE, OperatorField.OPTIONS
    if schema.second:
        kind, field = OperatorField.OPTIONS_2_TYPE, OperatorField.OPTIONS_2
    table = None
    if operator.integer(kind, "u8") == schema.union:
        table = operator.table(field, f"the options of {operator.what}")
    values: dict[str, Any] = {}
    for name, option in schema.fields.items():
        if table is None:
            values[name] = option.default
        elif option.kind == "text":
            values[name] = table.text(option.field) or option.default
        elif option.kind == "i32[]":
            array = table.array(option.field, np.int32)
            if array is not None and array.size > MAX_RANK:
                table.refuse(f"{name} of {table.what} has {array.size} elements, above {MAX_RANK}")
            values[name] = option.default if array is None else [int(v) for v in array]
        else:
            values[name] = table.number(option.field, option.kind, option.default)  # type: ignore[arg-type]
    return values


def _sparsity(table: Table, what: str) -> TfliteSparsity:
    """Return how a sparse tensor is stored. Consistency is checked when the tensor is expanded."""
    tables = table.tables(SparsityField.DIM_METADATA, f"sparse dimension of {what}, number")
    dimensions = [_sparse_dimension(tables[level]) for level in range(min(len(tables), _MAX_LEVELS + 1))]
    order, block_map = (_integers(table, field) for field in (SparsityField.TRAVERSAL_ORDER, SparsityField.BLOCK_MAP))
    return TfliteSparsity(order, block_map, dimensions)


def _sparse_dimension(table: Table) -> SparseDimension:
    """Read one stored dimension of a sparse tensor; an unknown format is refused when it is expanded."""
    kind = table.integer(DimensionField.FORMAT, "i8")
    if kind == DENSE:
        return SparseDimension(kind, table.integer(DimensionField.DENSE_SIZE, "i32"))
    if kind != SPARSE_CSR:
        return SparseDimension(kind)
    return SparseDimension(
        kind,
        segments=_index_vector(table, DimensionField.SEGMENTS_TYPE, DimensionField.SEGMENTS),
        indices=_index_vector(table, DimensionField.INDICES_TYPE, DimensionField.INDICES),
    )


def _integers(table: Table, field: int) -> list[int]:
    """Read a vector of integers, cut at `_MAX_LEVELS`."""
    array = table.array(field, np.int32)
    return [] if array is None else [int(v) for v in array[:_MAX_LEVELS]]


def _index_vector(table: Table, kind: int, field: int) -> np.ndarray:
    """Read a vector whose element type is a field (`kind`) of its own."""
    dtype = SPARSE_INDEX_TYPES.get(table.integer(kind, "u8"))
    vector = table.table(field, f"an index vector of {table.what}")
    array = None if dtype is None or vector is None else vector.array(0, dtype)
    if array is None:
        table.refuse(f"{table.what} lacks an index vector")
    return array
