"""Stages of a model whose shapes are known only at run time.

A node may need the value of an operand (a shape, a number of turns, a condition), or have a result whose length depends
on the data. If such a value is not known, the node is left to a later stage, with all nodes that read its results. A
stage is what can be computed without them: its graph has the values that are waited for, and the values that later
stages read, as outputs. When it has run, the model is converted again with these values as constants and these
tensors as inputs at their true shapes, and so on until all outputs are computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import numpy as np

from isthmus.frontends.onnx.bounds import extremes
from isthmus.frontends.onnx.builder import OnnxBuilder
from isthmus.frontends.onnx.finish import finish_graph
from isthmus.frontends.onnx.layout import OnnxValue, Perm
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType

MAX_ELEMENTS = 64
"""The most elements of a value that a later stage takes as a constant: shapes are short."""
ROWS = "rows"
"""The part of a path, behind that of a result, under which the result's rows are stored. They need not be the result
itself: an output of the model may have another axis order.
"""
PENDING = OnnxValue(Tensor("pending", TensorType.NATIVE, DataType.FLOAT_32, ()), ())
"""Stands for a value that a later stage computes."""


def unused_mark(names: Iterable[str]) -> str:
    """Return a separator for the parts of a path that no name contains, so that no path equals a name.

    >>> unused_mark(["x", "y"]), unused_mark(["x:0", "y"])
    (':', '::')
    """
    mark, text = ":", "\0".join(names)
    while mark in text:
        mark += ":"
    return mark


class Extreme(Enum):
    """A value to plan with that is inferred: the least or the greatest that an operand can have."""

    LOWEST = "lowest"
    HIGHEST = "highest"


class Choices(tuple[object, ...]):
    """Values to plan with, each in its turn, because no single one leads to the greatest of all shapes."""


class Deferred(Exception):
    """A node reads a value that a later stage computes, or has a subgraph that does."""


class NeedsValue(Deferred):
    """A node needs values that are known only at run time.

    - `needs`: the operands, each with a value or `Choices` to plan with; None for the greatest value that can be
      inferred.
    - `reads`: values that the node reads besides its operands.
    """

    def __init__(
        self, needs: Sequence[tuple[OnnxValue, object]], what: str, rule: str, reads: Sequence[OnnxValue] = ()
    ) -> None:
        super().__init__(rule)
        self.needs, self.what, self.rule, self.reads = needs, what, rule, reads


class NeedsRows(Deferred):
    """A node needs the number of its rows. If `is_result`, the rows are all that it computes from its operands."""

    def __init__(self, is_result: bool) -> None:
        super().__init__("the number of rows")
        self.is_result = is_result


def first_filled(rows: np.ndarray) -> int:
    """Return the number of rows in use: the index of the first that is filled with -1, as all behind it are.

    >>> first_filled(np.array([[0, 3], [2, 1], [-1, -1]]))
    2
    """
    low, high = 0, len(rows)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rows[middle, 0] >= 0 else (low, middle)
    return low


@dataclass(frozen=True)
class StoredValue:
    """A value in memory between stages.

    - `perm`: the permutation that gives ONNX's view of it.
    """

    dtype: DataType
    dims: tuple[int, ...]
    quantization: Quantization | None
    perm: Perm

    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
        return math.prod(self.dims) * self.dtype.itemsize

    @staticmethod
    def of(value: OnnxValue) -> StoredValue:
        """Return how a value is stored."""
        tensor = value.tensor
        return StoredValue(tensor.dtype, tensor.dims, tensor.quantization, value.perm)


@dataclass(frozen=True)
class StageProgress:
    """What earlier stages have computed.

    - `constants`: values that have become constants, by their paths.
    - `stored`: values in memory, by their paths.
    - `outputs`: the model's outputs that are complete.
    """

    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    stored: Mapping[str, StoredValue] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NeededValue:
    """A value that the next stage needs as a constant.

    - `what`, `rule`: the node that needs it, and what that lacks, for messages.
    - `choices`: the values to plan with: one, or several if none of them leads to the greatest shapes. None if the
      operator that needs it does not say.
    - `extremes`: the least and the greatest values that its elements can have, each if it can be inferred.
    """

    value: StoredValue
    what: str
    rule: str
    choices: Choices | None
    extremes: Mapping[Extreme, np.ndarray | None]

    @property
    def is_condition(self) -> bool:
        """Whether it is a single truth value."""
        return self.value.dtype is DataType.BOOL_8 and int(np.prod(self.value.dims)) == 1


@dataclass(frozen=True)
class ModelStage:
    """One stage of a model, for given shapes and values.

    - `progress`: what earlier stages have computed.
    - `graph`: what it computes; None if nothing.
    - `selection`: what is computed behind `graph` on the host: rows whose number depends on the data, where the backend
      has no such operations. None if nothing.
    - `stored`: the values that it leaves in memory, by their paths; those among them that are outputs of the model are
      complete.
    - `rows`: the paths of stored values whose last rows may be unused; an unused row begins with -1.
    - `needed`: values that the next stage needs, by their paths: stored ones, or inputs of the model.
    - `constants`: outputs of the model that are constants.
    - `aliases`: outputs of the model that are stored values of earlier stages: the paths, by the name of the output.
    - `is_last`: whether all outputs of the model are complete after this stage.
    """

    progress: StageProgress
    graph: Graph | None
    selection: Graph | None
    stored: Mapping[str, StoredValue]
    rows: frozenset[str]
    needed: Mapping[str, NeededValue]
    constants: Mapping[str, np.ndarray]
    aliases: Mapping[str, str]
    outputs: frozenset[str]
    is_last: bool

    def next(self, counts: Mapping[str, int], values: Mapping[str, np.ndarray]) -> StageProgress:
        """Return what is known when the stage has run.

        - `counts`: the number of rows in use, by path.
        - `values`: the needed values, by path.
        """
        before = self.progress
        stored = {
            path: replace(value, dims=(counts[path], *value.dims[1:])) if path in counts else value
            for path, value in self.stored.items()
        }
        return StageProgress({**before.constants, **values}, {**before.stored, **stored}, before.outputs | self.outputs)


@dataclass(eq=False)
class StageRecord:
    """What the conversion of a stage is given, and what it finds.

    - `selects`: whether graphs can have operations whose number of rows depends on the data. Otherwise these operations
      get a graph of their own, for the host.
    - `bounds`: upper bounds of values that decide shapes, and of the turns of loops, by name.
    - `mark`: what separates the parts of a path, see `unused_mark`.
    """

    progress: StageProgress
    selects: bool = True
    bounds: Mapping[str, Any] = field(default_factory=dict)
    mark: str = ":"
    _inputs: dict[str, OnnxValue] = field(default_factory=dict)
    _stored: dict[str, OnnxValue] = field(default_factory=dict)
    _needed: dict[str, tuple[OnnxValue, NeedsValue, object]] = field(default_factory=dict)
    _rows: dict[str, OnnxValue] = field(default_factory=dict)
    _selection: Graph = field(default_factory=lambda: Graph("selection"))

    def declare(self, builder: OnnxBuilder) -> None:
        """Create the inputs that are values of earlier stages; values without elements are constants."""
        for path, stored in self.progress.stored.items():
            if path in self.progress.constants:
                continue
            if 0 in stored.dims:
                tensor = builder.empty(stored.dtype, stored.dims, stored.quantization)
            else:
                tensor = builder.graph.create_tensor(
                    path, TensorType.APP_WRITE, stored.dtype, stored.dims, stored.quantization
                )
            self._inputs[path] = OnnxValue(tensor, stored.perm)

    def has(self, path: str) -> bool:
        """Return whether an earlier stage has computed a value."""
        return path in self.progress.constants or path in self._inputs or self.part(path, ROWS) in self._inputs

    def part(self, path: str, name: str) -> str:
        """Return the path of something that belongs to a value."""
        return f"{path}{self.mark}{name}"

    def value_at(self, path: str, builder: OnnxBuilder) -> OnnxValue | None:
        """Return a value that an earlier stage has computed; None if none has."""
        if path in self.progress.constants:
            return builder.literal(self.progress.constants[path])
        return self._inputs.get(path) or self._inputs.get(self.part(path, ROWS))

    def need(self, path: str, value: OnnxValue, reason: NeedsValue, greatest: object) -> None:
        """Record that the next stage needs a value, for a reason; `greatest` is a value to plan with."""
        self._needed.setdefault(path, (value, reason, greatest))
        self.keep(path, value)

    def keep(self, path: str, value: OnnxValue) -> None:
        """Record that later stages read a value. Inputs and values of earlier stages are in memory already."""
        if value.tensor.type is TensorType.NATIVE:
            self._stored[path] = value

    def add_rows(self, path: str, value: OnnxValue) -> None:
        """Record a value whose last rows may be unused."""
        self._rows[path] = self._stored[path] = value

    def select(self, path: str, op: str, operands: Sequence[Tensor], perm: Perm, **more: object) -> None:
        """Add an operation whose number of rows depends on the data to the graph for the host; `more` are arguments of
        `Graph.emit`.
        """
        inputs = []
        for index, tensor in enumerate(operands):
            name = self.part(path, str(index))
            if tensor.is_static and tensor.data is not None:
                inputs.append(self._selection.constant(name, tensor.data, tensor.quantization, tensor.dtype))
                continue
            if tensor.type is TensorType.NATIVE:
                self._stored[name] = OnnxValue.of(tensor)
            else:
                name = tensor.name
            if name not in self._selection.tensors:
                self._selection.create_tensor(
                    name, TensorType.APP_WRITE, tensor.dtype, tensor.dims, tensor.quantization
                )
            inputs.append(self._selection.tensors[name])
        result = self._selection.emit(op, inputs, **more)[0]  # type: ignore[arg-type]
        self._rows[path] = OnnxValue(result, perm)

    def finish(self, builder: OnnxBuilder, ready: Mapping[str, OnnxValue], more: bool) -> ModelStage:
        """Return the stage.

        - `ready`: the model's outputs that this stage completes.
        - `more`: whether the model has outputs that later stages complete.
        """
        constants, aliases, exported = {}, {}, dict(self._stored)
        stored_inputs = {value.tensor.name: path for path, value in self._inputs.items()}
        for name, value in ready.items():
            builder.node = name
            tensor = builder.materialize(value)
            array = tensor.data if tensor.is_static else None
            if array is not None:
                constants[name] = array
            elif tensor.name in stored_inputs:
                aliases[name] = stored_inputs[tensor.name]
            else:
                exported[name] = OnnxValue.of(tensor)
        device = {path: value for path, value in exported.items() if path not in self._rows or self.selects}
        host = {path: value for path, value in self._rows.items() if not self.selects}
        graphs = [
            finish_graph(work, [(path, value.tensor) for path, value in values.items()], needed_inputs=True)[0]
            if values
            else None
            for work, values in ((builder.graph, device), (self._selection, host))
        ]
        for graph in graphs:
            if graph is not None:
                graph.name = builder.graph.name
        needed = {
            path: NeededValue(
                StoredValue.of(device.get(path, value)),
                reason.what,
                reason.rule,
                greatest if greatest is None or isinstance(greatest, Choices) else Choices([greatest]),
                dict(zip(Extreme, extremes(builder.graph, value.tensor), strict=True)),
            )
            for path, (value, reason, greatest) in self._needed.items()
        }
        stored = {path: StoredValue.of(value) for path, value in {**device, **host}.items()}
        return ModelStage(
            self.progress, graphs[0], graphs[1], stored, frozenset(self._rows), needed, constants, aliases,
            frozenset(ready), not more,
        )  # fmt: skip
