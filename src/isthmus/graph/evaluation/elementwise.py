"""Elementwise reference computations: the numpy functions of the operations' own table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.graph.datatypes import REALS
from isthmus.graph.evaluation import Computation, Values
from isthmus.graph.operation import Operation
from isthmus.graph.ops.elementwise import NUMBERED, OPERATIONS, numbered
from isthmus.graph.tensor import Tensor


def _computed(operation: Operation, values: Values, params: dict[str, Any]) -> np.ndarray:
    """Apply an operation's numpy function; a function of one real gets float64, for an exact result in float32."""
    assert operation.function is not None
    if operation.inputs == (1, 1) and operation.input_types.get(0) == REALS:
        values = [values[0].astype(np.float64)]
    return operation.function(*values, **{p.name: params[p.name] for p in operation.params})


def _by_table(operation: Operation) -> Computation:
    """Return the computation of an operation with a numpy function of its own."""
    return lambda values, params, outputs: _computed(operation, values, params)


def _by_number(op: str) -> Computation:
    """Return the computation of an operation whose function is selected by a number."""

    def computation(values: Values, params: dict[str, Any], outputs: Sequence[Tensor]) -> np.ndarray:
        return _computed(numbered(op, params["operation"]), values, params)

    return computation


COMPUTATIONS: dict[str, Computation] = {
    **{operation.name: _by_table(operation) for operation in OPERATIONS if operation.function is not None},
    **{op: _by_number(op) for op in NUMBERED},
    "BitCast": lambda values, params, outputs: np.ascontiguousarray(values[0]).view(outputs[0].dtype.numpy),
}
