"""One ONNX node while it is converted: its attributes, operands and the builder, as the converters see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.builder import OnnxBuilder
from isthmus.frontends.onnx.layout import OnnxValue, identity
from isthmus.frontends.unsupported import unsupported
from isthmus.graph import DataType, Tensor

Results = OnnxValue | Sequence[OnnxValue | None]
Converter = Callable[["OnnxNode"], Results]


@dataclass
class OnnxNode:
    """A node at work.

    Parameters
    ----------
    builder
        Where converted operations go.
    run
        Converts a subgraph of this node: (graph, its inputs' values) gives its outputs' values.
    opset
        The version of the operator set the node belongs to.
    inputs
        Operands; None where an optional one is absent.
    outputs
        Names of the results; empty where one is not wanted.
    """

    name: str
    op: str
    opset: int
    attributes: dict[str, Any]
    inputs: list[OnnxValue | None]
    outputs: list[str]
    builder: OnnxBuilder
    run: Callable[[Any, Sequence[OnnxValue]], list[OnnxValue]] = field(repr=False)

    @property
    def what(self) -> str:
        """How messages name the node."""
        return f"node '{self.name}' ({self.op})"

    def unsupported(self, reason: str) -> NoReturn:
        """Give up on this node because of a form that is not supported."""
        raise unsupported(self.what, reason)

    def refuse(self, rule: str) -> NoReturn:
        """Refuse a node that breaks a rule of ONNX."""
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, self.what, rule)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def value(self, index: int) -> OnnxValue:
        """Operand `index`, which must be there."""
        value = self.optional(index)
        if value is None:
            self.refuse(f"input {index} is missing")
        return value

    def optional(self, index: int) -> OnnxValue | None:
        """Operand `index`, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def wants(self, index: int) -> bool:
        """Whether result `index` has a name."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def array(self, index: int) -> np.ndarray:
        """Operand `index`, which must be a constant, as an array."""
        array = self.builder.array(self.value(index))
        if array is None:
            self.unsupported(f"input {index} is not a constant")
        return array

    def number(self, index: int, default: float | None = None) -> Any:
        """Operand `index`, a constant of one element, as a number; `default` if it is absent."""
        if default is not None and self.optional(index) is None:
            return default
        array = self.array(index)
        if array.size != 1:
            self.refuse(f"input {index} must have one element, has {array.size}")
        return array.reshape(()).item()

    def ints(self, index: int, attribute: str | None = None) -> list[int] | None:
        """A list that older operator sets keep in an attribute and newer ones in operand `index`; None if absent."""
        if attribute is not None and attribute in self.attributes:
            return [int(v) for v in np.atleast_1d(self.attributes[attribute])]
        if self.optional(index) is None:
            return None
        return [int(v) for v in self.array(index).reshape(-1)]

    def axis(self, axis: int, rank: int | None = None) -> int:
        """An axis of ONNX's view, negative ones counted from the end."""
        rank = self.value(0).rank if rank is None else rank
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is outside rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int | None = None) -> list[int]:
        """Axes of ONNX's view, each once."""
        result = [self.axis(axis, rank) for axis in axes]
        if len(set(result)) != len(result):
            self.refuse(f"axes {list(axes)} name one axis twice")
        return result

    # --- short ways to emit -------------------------------------------------------------------------------------

    def emit(
        self, op: str, inputs: Sequence[Tensor | None], params: dict[str, Any] | None = None, **more: Any
    ) -> Tensor:
        """Add an operation with one output."""
        return self.builder.one(op, inputs, params, **more)

    def elementwise(
        self, op: str, *operands: OnnxValue | float, params: dict[str, Any] | None = None, **more: Any
    ) -> OnnxValue:
        """An elementwise operation over values and numbers (numbers take the type of the first value)."""
        dtype = next(v.tensor.dtype for v in operands if isinstance(v, OnnxValue))
        values = [
            v if isinstance(v, OnnxValue) else OnnxValue(self.builder.scalar(v, dtype), ()) for v in operands
        ]
        tensors, perm = self.builder.aligned(values)
        return OnnxValue(self.emit(op, tensors, params, **more), perm)

    def cast(self, value: OnnxValue, dtype: DataType) -> OnnxValue:
        """A value in another data type."""
        if value.tensor.dtype is dtype:
            return value
        return OnnxValue(self.emit("Cast", [value.tensor], dtypes=[dtype]), value.perm)

    def unmoved(self, tensor: Tensor) -> OnnxValue:
        """A tensor that is stored as ONNX sees it."""
        return OnnxValue(tensor, identity(tensor.rank))
