"""The writer of split TFLite files: puts a new root and main subgraph before the old content with its weights.

Tensors keep their numbers, so that signatures stay valid; tensors of tiles follow them. Operators outside tiles use the
file's own tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Any

import numpy as np

from isthmus.frontends import tflite
from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.flatbuffer_writer import Field, TableFields
from isthmus.frontends.tflite.entries import OperatorEntry
from isthmus.frontends.tflite.file_patch import check_root, old_references, old_tables, put_before
from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.offline_plan import METADATA_NAME
from isthmus.frontends.tflite.schema import (
    EXTENDED,
    NUMPY_TYPES,
    OPERATORS,
    OPTIONS,
    VERSION,
    BufferField,
    ElementType,
    MetadataField,
    ModelField,
    OperatorCodeField,
    OperatorField,
    SubgraphField,
    TensorField,
)
from isthmus.split.network import Key, Network, SplitStep, SplitValue, constant_nodes
from isthmus.split.regions import Compute, CopyRows, Piece, PrepareOperand, StepInstruction, TileInstruction
from isthmus.split.tflite_rules import ROW_AXIS, OperatorRule, operator_rule

# The number of the padding VALID.
_VALID = 1
# The field of an operator code that holds the version in which it supports its types.
_CODE_VERSION = 2
# The number of the type of a concatenation's options.
_CONCATENATION_OPTIONS = 10
# Options that only the file needs: the type of a quantized bias and the depth multiplier, as field and kind.
_OTHER_OPTIONS = {"CONV_2D": (6, "i8"), "DEPTHWISE_CONV_2D": (3, "i32")}
# Operators that have effects beyond their operands, so that the order of the file is kept.
_ORDERED = ("ASSIGN_VARIABLE", "CALL", "CALL_ONCE", "IF", "READ_VARIABLE", "VAR_HANDLE", "WHILE")


class TfliteFile:
    """A TFLite file that can be split.

    - `model`, `main`: the tables of the file, and its main subgraph.
    - `static`: the numbers of tensors that are constants.
    - `network`: the steps of the file that do not compute constants.
    """

    def __init__(self, data: bytes, name: str) -> None:
        tflite.load(data, name)  # raises an error for what the frontend does not support
        self.model = ModelFile(data, name)
        self.main = self.model.subgraph(0)
        check_root(self.model)
        self.static = {
            index for index in range(self.main.tensor_count) if len(self.model.buffer(self.main.tensor(index).buffer))
        }
        self.makers: dict[int, OperatorEntry] = {}
        """The operators whose results are constants, by result."""
        self.network = self._network()

    def _network(self) -> Network:
        """Describe the operators as steps; those that compute constants become `makers` instead."""
        main = self.main
        inputs = [index for index in main.inputs if index >= 0]
        outputs = {index for index in main.outputs if index >= 0}
        entries = list(main.operators())
        variables = {i for i in range(main.tensor_count) if main.tensor(i).is_variable}
        fixed = bool(variables) or any(entry.code in _ORDERED for entry in entries)
        values: dict[Key, SplitValue] = {index: self._value(index) for index in inputs}
        steps = []
        for entry in entries:
            reads = [i for i in entry.inputs if i >= 0]
            results = [i for i in entry.outputs if i >= 0]
            if reads and not fixed and self.static.issuperset(reads) and not outputs & set(results):
                self.static.update(results)
                self.makers.update(dict.fromkeys(results, entry))
                continue
            values.update({index: self._value(index) for index in results})
            dynamic = tuple(dict.fromkeys(i for i in reads if i in values))
            rule = operator_rule(entry, main, self.static)
            steps.append(SplitStep(main.operator_name(entry), dynamic, tuple(results), rule, source=entry))
        final = frozenset(index for index in outputs if index in values)
        return Network(tuple(steps), values, tuple(inputs), final, fixed)

    def _value(self, index: int) -> SplitValue:
        """Describe a tensor; one image (N, H, W, C with N = 1) has H rows, any other tensor none."""
        entry = self.main.tensor(index)
        kind = NUMPY_TYPES.get(entry.type)
        size = prod(entry.shape) * (np.dtype(kind).itemsize if kind is not None else 0)
        rows = entry.shape[ROW_AXIS] if len(entry.shape) == 4 and entry.shape[0] == 1 else 0
        return SplitValue(entry.name, size, rows)

    def write(self, network: Network, instructions: Iterable[TileInstruction]) -> bytes:
        """Write the file with these instructions, whose step numbers refer to `network`."""
        return _TfliteWriter(self, network).write(instructions)


class _TfliteWriter:
    """A split TFLite file that is being written: first lists of new tensors, buffers and operators, then their
    tables.

    - `network`: its steps, in the order to which the step numbers of instructions refer.
    """

    def __init__(self, source: TfliteFile, network: Network) -> None:
        self._network, self._makers = network, source.makers
        self._model, self._main = source.model, source.main
        self._written: set[int] = set()
        """The ids of the operators of constants written so far."""
        self._old_tensors = source.main.tensor_count
        """The number of tensors in the file; new ones are numbered from there on."""
        self._tensors: list[tuple[str, ElementType, tuple[int, ...], int, int | None]] = []
        """New tensors: name, type, shape, buffer, and the old tensor whose quantization they share."""
        self._buffers: list[bytes] = []
        """The contents of new buffers."""
        self._codes: list[tuple[int, int]] = []
        """New operator codes: operator and version."""
        self._operators: list[_Operator] = []
        """All operators of the new main subgraph."""
        self._pieces: dict[Piece, int] = {}
        """The numbers of the new tensors of rows."""
        self._constants: dict[tuple[Any, ...], int] = {}
        """The numbers of new constants, by type, shape, bytes and the tensor whose quantization they share."""
        self._root = source.model.root
        self._subgraph = self._root.tables(ModelField.SUBGRAPHS, "subgraph")[0]
        self._old_operators = self._subgraph.tables(SubgraphField.OPERATORS, "operator")
        self._old_codes = self._root.tables(ModelField.OPERATOR_CODES, "operator code")
        self._old_buffers = self._root.tables(ModelField.BUFFERS, "buffer")

    def write(self, instructions: Iterable[TileInstruction]) -> bytes:
        """Return the bytes of the file with these instructions as its operators."""
        for one in instructions:
            if isinstance(one, CopyRows):
                self._slice(one)
            elif isinstance(one, PrepareOperand):
                self._pad(one)
            elif isinstance(one, StepInstruction):
                entry = self._network.steps[one.step].source
                self._add_constants(entry.inputs)
                self._operators.append(self._tile(one, entry) if isinstance(one, Compute) else _Operator(old=entry))
            else:
                inputs = [self._number(part) for part in one.reads]
                code = self._code("CONCATENATION", self._type(one.result))
                self._operators.append(_Operator(code, inputs, [self._number(one.result)], axis=ROW_AXIS))
        self._add_constants(self._main.outputs)
        return put_before(self._model, self._new_root())

    # -- instructions --------------------------------------------------------------------------------------------------

    def _add_constants(self, keys: Iterable[int]) -> None:
        """Add the operators that compute constants, before the first reader of each."""
        nodes = constant_nodes(keys, self._makers, lambda entry: entry.inputs, self._written)
        self._operators += [_Operator(old=entry) for entry in nodes]

    def _rule(self, step: int) -> OperatorRule:
        """Return the rule of a step in a region, where every step has one."""
        rule = self._network.steps[step].rule
        assert isinstance(rule, OperatorRule)
        return rule

    def _type(self, piece: Piece) -> ElementType:
        """Return the element type of a piece."""
        return self._main.tensor(self._old(piece)).type

    def _old(self, piece: Piece) -> int:
        """Return the number of the file's tensor of which a piece has rows."""
        assert isinstance(piece.value, int)
        return piece.value

    def _number(self, piece: Piece, shape: tuple[int, ...] | None = None) -> int:
        """Return the number of a piece's tensor; a new one has this shape, or by default that of the piece's rows."""
        old = self._old(piece)
        if piece.whole:
            return old
        if piece not in self._pieces:
            entry = self._main.tensor(old)
            rows = piece.rows[1] - piece.rows[0]
            shape = shape or (entry.shape[0], rows, *entry.shape[2:])
            name = f"{entry.name}/rows_{piece.rows[0]}_{piece.rows[1]}"
            self._pieces[piece] = self._new(name, entry.type, shape, 0, old)
        return self._pieces[piece]

    def _new(self, name: str, kind: ElementType, shape: tuple[int, ...], buffer: int, like: int | None) -> int:
        """Add a tensor with the quantization of tensor `like`; return its number. Buffer 0 means that it is empty."""
        self._tensors.append((name, kind, shape, buffer, like))
        return self._old_tensors + len(self._tensors) - 1

    def _array(self, array: np.ndarray, kind: ElementType = ElementType.INT32, like: int | None = None) -> int:
        """Return the number of a constant tensor with the quantization of tensor `like`; equal ones are shared."""
        key = (kind, array.shape, array.tobytes(), like)
        if key not in self._constants:
            self._buffers.append(array.tobytes())
            number = len(self._old_buffers) + len(self._buffers) - 1
            self._constants[key] = self._new(f"rows_{len(self._constants)}", kind, array.shape, number, like)
        return self._constants[key]

    def _code(self, name: str, kind: ElementType) -> int:
        """Return the number of an operator code; a new one has the first version that supports this type."""
        for index in range(len(self._old_codes)):
            if self._model.shared.operator_name(index) == name:
                return index
        code = OPERATORS.index(name), 1 if kind is ElementType.FLOAT32 else 2
        if code not in self._codes:
            self._codes.append(code)
        return len(self._old_codes) + self._codes.index(code)

    def _slice(self, one: CopyRows) -> None:
        """Append a SLICE for a copy of rows; its numbers count from the first row of the piece that it reads."""
        shape = self._main.tensor(self._old(one.result)).shape
        low, high = (row - one.reads[0].rows[0] for row in one.result.rows)
        begin = self._array(np.array([0, low, 0, 0], "<i4"))
        size = self._array(np.array([shape[0], high - low, *shape[2:]], "<i4"))
        code = self._code("SLICE", self._type(one.result))
        self._operators.append(_Operator(code, [self._number(one.reads[0]), begin, size], [self._number(one.result)]))

    def _pad(self, one: PrepareOperand) -> None:
        """Append a PAD or PADV2 for an operand whose padding an operator of a tile cannot express."""
        rule, (source,) = self._rule(one.step), one.reads
        assert rule.padding is not None
        old = self._old(source)
        entry = self._main.tensor(old)
        (above, below), (left, right) = rule.padding(one.rows, source.rows)
        amounts = self._array(np.array([(0, 0), (above, below), (left, right), (0, 0)], "<i4"))
        rows = source.rows[1] - source.rows[0]
        shape = (entry.shape[0], rows + above + below, entry.shape[2] + left + right, entry.shape[3])
        inputs = [self._number(source), amounts]
        if rule.lowest:
            inputs.append(self._array(_lowest(NUMPY_TYPES[entry.type]), entry.type, old))
        code = self._code("PADV2" if rule.lowest else "PAD", entry.type)
        self._operators.append(_Operator(code, inputs, [self._number(one.result, shape)]))

    def _tile(self, one: Compute, entry: OperatorEntry) -> _Operator:
        """Return an operator that computes some rows of an operator of the file."""
        rule = self._rule(one.step)
        # The operands that are read by rows come first among the reads.
        rows = {key: self._number(piece) for key, piece in zip(rule.sliced, one.reads, strict=False)}
        inputs = [rows.get(index, index) for index in entry.inputs]
        for index, array in rule.constants(one.rows, one.source).items():
            inputs[index] = self._array(array.astype("<i4"))
        return _Operator(None, inputs, [self._number(one.result)], old=entry, valid=rule.valid)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _new_root(self) -> TableFields:
        """Return the new root, which refers to the old content for all that did not change."""
        entries = list(self._root.tables(ModelField.METADATA, "metadata entry"))
        # A memory plan in the file does not apply to the new tensors.
        metadata = [entry for entry in entries if entry.text(MetadataField.NAME) != METADATA_NAME]
        others = old_tables(self._root.tables(ModelField.SUBGRAPHS, "subgraph"))[1:]
        buffers = [{BufferField.DATA: ("array", np.frombuffer(content, np.uint8))} for content in self._buffers]
        fields = [field for field in ModelField if field not in (ModelField.VERSION, ModelField.METADATA)]
        return {
            **old_references(self._root, fields),
            ModelField.VERSION: ("u32", VERSION),
            ModelField.OPERATOR_CODES: ("tables", [*old_tables(self._old_codes), *map(_code_table, self._codes)]),
            ModelField.SUBGRAPHS: ("tables", [self._main_table(), *others]),
            ModelField.BUFFERS: ("tables", [*old_tables(self._old_buffers), *buffers]),
            **({ModelField.METADATA: ("tables", old_tables(metadata))} if metadata else {}),
        }

    def _main_table(self) -> TableFields:
        """Return the main subgraph: old and new tensors, and the operators in their new order."""
        tables = self._subgraph.tables(SubgraphField.TENSORS, "tensor")
        tensors = old_tables(tables)
        for name, kind, shape, buffer, like in self._tensors:
            quantization = {} if like is None else old_references(tables[like], [TensorField.QUANTIZATION])
            tensors.append({
                TensorField.SHAPE: ("array", np.array(shape, "<i4")),
                TensorField.TYPE: ("i8", kind),
                TensorField.BUFFER: ("u32", buffer),
                TensorField.NAME: ("text", name),
                **quantization,
            })  # fmt: skip
        return {
            **old_references(self._subgraph, [SubgraphField.INPUTS, SubgraphField.OUTPUTS, SubgraphField.NAME]),
            SubgraphField.TENSORS: ("tables", tensors),
            SubgraphField.OPERATORS: ("tables", [self._operator_table(one) for one in self._operators]),
        }

    def _operator_table(self, one: _Operator) -> Any:
        """Return an operator; an old one on rows keeps its options except the padding."""
        fields: dict[int, Field] = {OperatorField.OPCODE_INDEX: ("u32", one.code)}
        if one.old is not None:
            table = self._old_operators[one.old.index]
            if one.inputs is None:
                return old_tables([table])[0]
            fields = {OperatorField.OPCODE_INDEX: ("u32", table.integer(OperatorField.OPCODE_INDEX, "u32"))}
            for field in (OperatorField.OPTIONS_TYPE, OperatorField.OPTIONS_2_TYPE):
                if kind := table.integer(field, "u8"):
                    fields[field] = ("u8", kind)
            fields |= old_references(table, [OperatorField.OPTIONS, OperatorField.OPTIONS_2])
            if one.valid:
                fields[OperatorField.OPTIONS] = ("table", _valid_options(one.old, table))
        if one.axis is not None:
            fields[OperatorField.OPTIONS_TYPE] = ("u8", _CONCATENATION_OPTIONS)
            fields[OperatorField.OPTIONS] = ("table", {0: ("i32", one.axis)})
        fields[OperatorField.INPUTS] = ("array", np.array(one.inputs, "<i4"))
        fields[OperatorField.OUTPUTS] = ("array", np.array(one.outputs, "<i4"))
        return fields


def _code_table(code: tuple[int, int]) -> TableFields:
    """Return a new operator code: an operator and its version."""
    operator, version = code
    return {
        OperatorCodeField.DEPRECATED_BUILTIN_CODE: ("i8", min(operator, EXTENDED)),
        _CODE_VERSION: ("i32", version),
        OperatorCodeField.BUILTIN_CODE: ("i32", operator),
    }


def _valid_options(entry: OperatorEntry, table: Table) -> TableFields:
    """Return the options of an operator of the file, with the padding VALID."""
    options: dict[int, Field] = {}
    old = table.table(OperatorField.OPTIONS, f"the options of {table.what}")
    if old is not None and entry.code in _OTHER_OPTIONS:
        field, kind = _OTHER_OPTIONS[entry.code]
        options[field] = (kind, old.integer(field, kind, 0))
    for name, option in OPTIONS[entry.code].fields.items():
        options[option.field] = (option.kind, int(entry.options[name]))
    return options | {0: ("i8", _VALID)}


class _Operator:
    """An operator to write: an unchanged old one (no inputs given), an old one on rows, or a new one.

    - `code`: the number of a new operator's code.
    - `axis`: the axis of a concatenation; None for other operators.
    - `valid`: whether its padding becomes VALID.
    """

    def __init__(
        self, code: int | None = None, inputs: list[int] | None = None, outputs: list[int] | None = None,
        axis: int | None = None, old: OperatorEntry | None = None, valid: bool = False,
    ) -> None:  # fmt: skip
        self.code, self.inputs, self.outputs = code, inputs, outputs or []
        self.axis, self.old, self.valid = axis, old, valid


def _lowest(kind: type) -> np.ndarray:
    """Return the lowest number of a type."""
    dtype: Any = np.dtype(kind)
    return np.array([np.finfo(dtype).min if dtype.kind == "f" else np.iinfo(dtype).min], dtype)
