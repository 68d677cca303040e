"""Elementwise reference computations: the numpy functions of the operations' own table."""

from __future__ import annotations

import numpy as np

from isthmus.graph.datatypes import REALS
from isthmus.graph.evaluation import Computation, Outputs, Params, Values, absent
from isthmus.graph.operation import Operation
from isthmus.graph.ops.elementwise import NUMBERED, OPERATIONS, numbered_function


def _apply(operation: Operation, values: Values, params: Params) -> np.ndarray:
    """Apply an operation's numpy function; a function of one real gets float64, for an exact result in float32."""
    assert operation.function is not None
    if operation.inputs == (1, 1) and operation.input_types.get(0) == REALS:
        values = [values[0].astype(np.float64)]
    return operation.function(*values, **{p.name: params[p.name] for p in operation.params})


def _by_table(operation: Operation) -> Computation:
    """Return the computation of an operation with a numpy function of its own."""
    return lambda values, params, outputs: _apply(operation, values, params)


def _by_number(op: str) -> Computation:
    """Return the computation of an operation whose function is selected by a number."""

    def computation(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
        return _apply(numbered_function(op, params["operation"]), values, params)

    return computation


def _multiplex(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Return elements of the operand that the selector names; the nearest one if there is none of that number."""
    selector, *choices = np.broadcast_arrays(*values)
    return np.choose(np.clip(selector.astype(np.int64), 0, len(choices) - 1), np.stack(choices))


def _logit(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Compute log(x / (1 - x)), with x kept at a distance from 0 and 1 if in[1] is given."""
    x = values[0].astype(np.float64)
    if not absent(values, 1):
        epsilon = float(np.reshape(values[1], ()))
        x = np.clip(x, epsilon, 1 - epsilon)
    return np.log(x / (1 - x))


COMPUTATIONS: dict[str, Computation] = {
    **{operation.name: _by_table(operation) for operation in OPERATIONS if operation.function is not None},
    **{op: _by_number(op) for op in NUMBERED},
    "BitCast": lambda values, params, outputs: np.ascontiguousarray(values[0]).view(outputs[0].dtype.numpy),
    "ElementWiseMux": _multiplex,
    "Logit": _logit,
}
