"""Operations of op packages that a client brings: the package says which nodes it takes, and a node says its shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import DataType, TensorType
from isthmus.graph.operation import Call, Dims, Operation
from isthmus.graph.tensor import Tensor
from isthmus.graph.traits import Traits

_INT_32 = (-(1 << 31), (1 << 31) - 1)


def qualify(package: str, op: str) -> str:
    """Return the name that nodes of a graph have for an operation of a client's package.

    >>> qualify("my.ops", "Swish")
    'my.ops::Swish'
    """
    return f"{package}::{op}"


@dataclass(frozen=True)
class PackageOperation(Operation):
    """An operation of a client's package, by its `qualify` name.

    - `validate`: raises a `QnnError` if the package does not take a call. Its tensors and parameters are complete.
    """

    validate: Callable[[Call], None] = lambda call: None

    def complete(self, node: str, params: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters, each as a text, a numpy number or a STATIC tensor, with their data types."""
        return {name: _param(f"parameter '{name}' of node '{node}' ({self.name})", params[name]) for name in params}

    def derive(self, call: Call) -> list[Dims]:
        """Return the dimensions that the node declares."""
        return [call.declared_dims(index) for index in range(len(call.declared or ()))]

    def verify(self, call: Call) -> None:
        """Refuse a call without outputs, and one that the package does not take."""
        self._check_count(call, "outputs", len(call.declared or ()), self.outputs)
        self.validate(call)


def package_operation(package: str, op: str, validate: Callable[[Call], None]) -> PackageOperation:
    """Return the definition of an operation of a client's package."""
    any_number = (0, None)
    # Whether it has the same result in every execution is not known, so that it is never folded.
    traits = Traits(varies=True)
    return PackageOperation(
        qualify(package, op), any_number, (1, None), (), lambda call: [], package=package, traits=traits,
        validate=validate,
    )  # fmt: skip


def number(value: float, dtype: DataType) -> np.generic:
    """Return a number in a data type of QNN."""
    return dtype.numpy.type(value)  # type: ignore[no-any-return]


def _param(what: str, value: Any) -> Any:
    """Return the value of a parameter as a text, a numpy number or a STATIC tensor."""
    # A plain number of Python is BOOL_8, INT_32 or FLOAT_32.
    if isinstance(value, (str, Tensor)):
        return value
    # numpy's own numbers come first: a double is a number of Python too.
    if isinstance(value, np.generic):
        pass
    elif isinstance(value, bool):
        value = np.bool_(value)
    elif isinstance(value, int) and _INT_32[0] <= value <= _INT_32[1]:
        value = np.int32(value)
    elif isinstance(value, float):
        value = np.float32(value)
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype.kind in "biuf":
        if isinstance(value, np.generic) and value.dtype != np.float16:
            return value
        if isinstance(value, np.ndarray):
            return Tensor("parameter", TensorType.STATIC, DataType.of(value.dtype), value.shape, None, value)
    rule = f"{value!r} is no text, number, array or constant"
    raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, what, rule, "Give a number of another type as one of numpy's.")
