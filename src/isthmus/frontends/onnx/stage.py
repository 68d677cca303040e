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
from isthmus.frontends.onnx.finish import finished
from isthmus.frontends.onnx.layout import OnnxValue, Perm, identity
from isthmus.graph import DataType, Graph, Quantization, Tensor, TensorType

MAX_ELEMENTS = 64
"""The most elements of a value that a later stage takes as a constant: shapes are short."""
ROWS = "rows"
"""What is added to the path of a result, behind a mark, whose real rows are stored. They are not the result itself,
which may be an output of the model, in another order.
"""
PENDING = OnnxValue(Tensor("pending", TensorType.NATIVE, DataType.FLOAT_32, ()), ())
"""Stands for a value that a later stage computes."""


def unused_mark(names: Iterable[str]) -> str:
    """Return what separates the parts of a path, so that no path is the name of another value: it is in no name.

    >>> unused_mark(["x", "y"]), unused_mark(["x:0", "y"])
    (':', '::')
    """
    mark, known = ":", "\0".join(names)
    while mark in known:
        mark += ":"
    return mark


class Extreme(Enum):
    """A value to plan with that is inferred."""

    LOWEST = "lowest"
    HIGHEST = "highest"


class Choices(tuple[object, ...]):
    """Values to plan with, one after the other, where no single one leads to the greatest shapes."""


class Deferred(Exception):
    """A node reads a value that a later stage computes, or has a subgraph that does."""


class NeedsValue(Deferred):
    """A node needs a value that is known only at run time.

    Parameters
    ----------
    value
        The operand.
    what, rule
        The node, and what it lacks, for messages.
    greatest
        A value to plan with, or `Choices`, if the operator bounds it by itself. None for the greatest.
    kept
        Values that the node reads besides its operands.
    """

    def __init__(
        self, value: OnnxValue, what: str, rule: str, greatest: object = None, kept: Sequence[OnnxValue] = ()
    ) -> None:
        super().__init__(rule)
        self.value, self.what, self.rule, self.greatest, self.kept = value, what, rule, greatest, kept
        self.others: Sequence[tuple[OnnxValue, object]] = ()
        """Other operands that the node needs at the same time, each with its value to plan with."""


class NeedsRows(Deferred):
    """A node needs the number of its rows; `is_result` says whether it computes nothing else from its operands."""

    def __init__(self, is_result: bool) -> None:
        super().__init__("the number of rows")
        self.is_result = is_result


def first_filled(rows: np.ndarray) -> int:
    """Return how many rows are real: those behind them begin with -1.

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

    Parameters
    ----------
    dtype, dims, quantization
        The tensor as it is stored.
    perm
        The permutation that gives ONNX's view of it.
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

    Parameters
    ----------
    known
        Values that have become constants, by their paths.
    stored
        Values in memory, by their paths.
    outputs
        The model's outputs that are complete.
    """

    known: Mapping[str, np.ndarray] = field(default_factory=dict)
    stored: Mapping[str, StoredValue] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class NeededValue:
    """A value that the next stage needs as a constant.

    Parameters
    ----------
    value
        How it is stored.
    what, rule
        The node that needs it, and what that lacks, for messages.
    choices
        The values to plan with: one, or several if none of them leads to the greatest shapes. None if the operator that
        needs it does not say.
    extremes
        The least and the greatest values that its elements can have, each if it can be inferred.
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

    Parameters
    ----------
    progress
        What earlier stages have computed.
    graph
        What it computes; None if nothing.
    selection
        What is computed behind `graph` on the host: rows whose number depends on the data, where the backend has no
        such operations. None if nothing.
    stored
        The values that it leaves in memory, by their paths; those among them that are outputs of the model are
        complete.
    rows
        The paths of stored values of which only the first rows are real. The first number of every other row is -1.
    needed
        Values that the next stage needs, by their paths: stored ones, or inputs of the model.
    constants
        Outputs of the model that are constants.
    aliases
        Outputs of the model that are stored values of earlier stages: the paths, by the name of the output.
    is_last
        Whether all outputs of the model are complete then.
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

        Parameters
        ----------
        counts
            The number of real rows, by path.
        values
            The needed values, by path.
        """
        before = self.progress
        stored = {
            path: replace(value, dims=(counts[path], *value.dims[1:])) if path in counts else value
            for path, value in self.stored.items()
        }
        return StageProgress({**before.known, **values}, {**before.stored, **stored}, before.outputs | self.outputs)


class StageRecord:
    """What the conversion of a stage is given, and what it finds.

    Parameters
    ----------
    progress
        What earlier stages have computed.
    selects
        Whether graphs can have operations whose number of rows depends on the data. Otherwise they become graphs of
        their own, for the host.
    bounds
        The greatest values of values that decide shapes, and the most turns of loops, by name.
    mark
        What separates the parts of a path, see `unused_mark`.
    """

    def __init__(
        self, progress: StageProgress, selects: bool = True, bounds: Mapping[str, Any] | None = None, mark: str = ":"
    ) -> None:
        self.progress = progress
        self.selects = selects
        self.bounds = bounds or {}
        self.mark = mark
        self._inputs: dict[str, OnnxValue] = {}
        self._kept: dict[str, OnnxValue] = {}
        self._needed: dict[str, tuple[OnnxValue, NeedsValue, object]] = {}
        self._rows: dict[str, OnnxValue] = {}
        self._selection = Graph("selection")

    def declare(self, builder: OnnxBuilder) -> None:
        """Create the inputs that are values of earlier stages; values without elements are constants."""
        for path, stored in self.progress.stored.items():
            if path in self.progress.known:
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
        return path in self.progress.known or path in self._inputs or self.part(path, ROWS) in self._inputs

    def part(self, path: str, name: str) -> str:
        """Return the path of something that belongs to a value."""
        return f"{path}{self.mark}{name}"

    def given(self, path: str, builder: OnnxBuilder) -> OnnxValue | None:
        """Return a value that an earlier stage has computed; None if none has."""
        if path in self.progress.known:
            return builder.literal(self.progress.known[path])
        return self._inputs.get(path) or self._inputs.get(self.part(path, ROWS))

    def need(self, path: str, value: OnnxValue, reason: NeedsValue, greatest: object) -> None:
        """Record that the next stage needs a value, for a reason; `greatest` is a value to plan with."""
        self._needed.setdefault(path, (value, reason, greatest))
        self.keep(path, value)

    def keep(self, path: str, value: OnnxValue) -> None:
        """Record that later stages read a value. The model's inputs, and what is in memory already, stay there."""
        if value.tensor.type is TensorType.NATIVE:
            self._kept[path] = value

    def add_rows(self, path: str, value: OnnxValue) -> None:
        """Record a value of which only the first rows are real."""
        self._rows[path] = self._kept[path] = value

    def select(self, path: str, op: str, operands: Sequence[Tensor], perm: Perm, **more: object) -> None:
        """Add an operation whose first result has rows to the graph for the host; `more` are arguments of
        `Graph.emit`.
        """
        inputs = []
        for index, tensor in enumerate(operands):
            name = self.part(path, str(index))
            if tensor.is_static and tensor.data is not None:
                inputs.append(self._selection.constant(name, tensor.data, tensor.quantization, tensor.dtype))
                continue
            if tensor.type is TensorType.NATIVE:
                self._kept[name] = OnnxValue(tensor, identity(tensor.rank))
            else:
                name = tensor.name
            known = self._selection.tensors.get(name)
            inputs.append(
                known
                or self._selection.create_tensor(
                    name, TensorType.APP_WRITE, tensor.dtype, tensor.dims, tensor.quantization
                )
            )
        result = self._selection.emit(op, inputs, **more)[0]  # type: ignore[arg-type]
        self._rows[path] = OnnxValue(result, perm)

    def finish(self, builder: OnnxBuilder, ready: Mapping[str, OnnxValue], more: bool) -> ModelStage:
        """Return the stage.

        Parameters
        ----------
        ready
            The model's outputs that this stage completes.
        more
            Whether the model has outputs that are not complete then.
        """
        constants, aliases, exported = {}, {}, dict(self._kept)
        stored_inputs = {value.tensor.name: path for path, value in self._inputs.items()}
        for name, value in ready.items():
            builder.node = name
            tensor = builder.materialized(value)
            array = tensor.data if tensor.is_static else None
            if array is not None:
                constants[name] = array
            elif tensor.name in stored_inputs:
                aliases[name] = stored_inputs[tensor.name]
            else:
                exported[name] = OnnxValue(tensor, identity(tensor.rank))
        device = {path: value for path, value in exported.items() if path not in self._rows or self.selects}
        host = {path: value for path, value in self._rows.items() if not self.selects}
        graphs = [
            finished(work, [(path, value.tensor) for path, value in values.items()], needed_inputs=True)[0]
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
