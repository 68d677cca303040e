"""Variables of a model: their values during the walk, and the graph states that keep them between executions."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import TfliteModel, TfliteTensor
from isthmus.frontends.tflite.operator_context import MAX_CONSTANT_BYTES, Resource, data_type, declared_quantization
from isthmus.frontends.unsupported import unsupported
from isthmus.graph import Graph, Tensor, TensorType


@dataclass
class Variable:
    """A variable during the walk.

    `initial` is the value stored by an initialization. `state` is the graph's state, if the variable is read before it
    is assigned. `value` is what it holds at this point of the walk.
    """

    initial: Tensor | None = None
    state: Tensor | None = None
    value: Tensor | None = None


class Variables:
    """All variables of a model. Keys are handles (`Resource`), or the names of variable tensors."""

    def __init__(self, graph: Graph, model: TfliteModel) -> None:
        self.graph = graph
        self._variables: dict[Hashable, Variable] = {}
        # The handles that an execution may assign; None if they are not known.
        self._assigned = _assigned_handles(model)

    def _variable(self, key: Hashable) -> Variable:
        """Return the variable with this key; create it on first use."""
        return self._variables.setdefault(key, Variable())

    def initialize(self, key: Hashable, value: Tensor) -> None:
        """Store the value of a variable before the first execution."""
        if not value.is_static:
            raise unsupported(f"variable '{_name(key)}'", "its initial value must be a constant")
        self._variable(key).initial = value

    def assign(self, key: Hashable, value: Tensor) -> None:
        """Store a value during an execution."""
        self._variable(key).value = value

    def read(self, key: Hashable, entry: TfliteTensor, dims: tuple[int, ...]) -> Tensor:
        """Return a variable's value; `entry` gives its type, `dims` its shape if it has no initial value."""
        variable = self._variable(key)
        if variable.value is None:
            # A variable that only an initialization assigns is a constant; any other needs a state.
            if variable.initial is not None and self._assigned is not None and key not in self._assigned:
                variable.value = variable.initial
            else:
                variable.value = variable.state = self._state(key, variable.initial, entry, dims)
        value = variable.value
        if value.dtype is not data_type(entry):
            rule = f"it holds {value.describe()} and is read as {entry.type.name}"
            raise QnnError(Code.GRAPH_INVALID_TENSOR, f"variable '{_name(key)}'", rule)
        return value

    def _state(self, key: Hashable, initial: Tensor | None, entry: TfliteTensor, dims: tuple[int, ...]) -> Tensor:
        """Create the graph's state for a variable, with its initial value or 0."""
        dtype = data_type(entry)
        if initial is not None and initial.data is not None:
            if initial.dtype is not dtype:
                rule = f"it starts as {initial.describe()} and is read as {entry.type.name}"
                raise QnnError(Code.GRAPH_INVALID_TENSOR, f"variable '{_name(key)}'", rule)
            data = np.array(initial.data)
        elif int(np.prod(dims, dtype=object)) * dtype.itemsize > MAX_CONSTANT_BYTES:
            rule = f"dimensions {list(dims)} are too large"
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"variable '{_name(key)}'", rule)
        else:
            # In LiteRT a variable without an initial value is undefined; here it is 0.0.
            quantization = declared_quantization(entry)
            data = np.full(dims, 0 if quantization is None else quantization.zero_point, dtype.numpy)
        name, quantization = self.graph.fresh(_name(key)), declared_quantization(entry)
        return self.graph.create_tensor(name, TensorType.APP_READWRITE, dtype, data.shape, quantization, data)

    def finish(self) -> None:
        """Set the value that each state has after an execution."""
        for variable in self._variables.values():
            if variable.state is not None and variable.value is not None and variable.value is not variable.state:
                self.graph.update_state(variable.state, variable.value)


def _name(key: Hashable) -> str:
    """Return the name of a variable, for its state and for messages."""
    return key.shared_name or "variable" if isinstance(key, Resource) else str(key)


def _assigned_handles(model: TfliteModel) -> set[Resource] | None:
    """Return the handles assigned outside of initializations, or None if the file alone does not determine them."""
    # A variable that only an initialization assigns is a constant.
    assigned: set[Resource] = set()
    for subgraph in model.reachable(initializers=False):
        handles: dict[int, Resource] = {}
        for operator in subgraph.operators():
            if operator.code == "VAR_HANDLE" and operator.outputs:
                handles[operator.outputs[0]] = handle(operator.options)
            elif operator.code == "ASSIGN_VARIABLE":
                target = handles.get(operator.inputs[0]) if operator.inputs else None
                if target is None:
                    return None
                assigned.add(target)
    return assigned


def handle(options: dict[str, Any]) -> Resource:
    """Return the variable that a VAR_HANDLE names."""
    return Resource(options["container"], options["shared_name"])
