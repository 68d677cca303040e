"""An ONNX node during conversion: its attributes, operands and the builder, as the converters use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.builder import OnnxBuilder
from isthmus.frontends.onnx.layout import OnnxValue, identity
from isthmus.frontends.onnx.stage import MAX_ELEMENTS, ROWS, NeedsRows, NeedsValue, StageRecord, first_filled
from isthmus.frontends.unsupported import NeedsStages, unsupported
from isthmus.graph import DataType, Tensor

Results = OnnxValue | Sequence[OnnxValue | None]
"""The results of a node: the only one, or all of them in order, None for one that was not computed."""
Converter = Callable[["OnnxNode"], Results]
"""Converts a node of one operator: adds operations to the node's builder and returns the results."""


_TAKES_FLOATS = ("Resize", "Upsample", "Range")
"""Operators whose shapes may depend on floats."""


@dataclass
class OnnxNode:
    """A node during conversion.

    Parameters
    ----------
    builder
        The builder that receives converted operations.
    run
        Converts a subgraph of this node: (graph, values of its inputs) returns the values of its outputs.
    opset
        The version of the operator set that the node belongs to.
    inputs
        Operands; None for an optional one that is absent.
    outputs
        Names of the results; empty for one that is not used.
    scope
        What distinguishes its results from others of the same names: the path of its scope.
    stage
        The stage that is converted; None if the model becomes one graph.
    filled
        Where to record a tensor whose last rows are filled, if the model becomes one graph: by its name, the node.
    """

    name: str
    op: str
    opset: int
    attributes: dict[str, Any]
    inputs: list[OnnxValue | None]
    outputs: list[str]
    builder: OnnxBuilder
    run: Callable[[Any, Sequence[OnnxValue]], list[OnnxValue]] = field(repr=False)
    scope: str = ""
    stage: StageRecord | None = None
    filled: dict[str, str] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """The name of the node in messages."""
        return f"node '{self.name}' ({self.op})"

    def unsupported(self, reason: str) -> NoReturn:
        """Refuse this node because it has a form that is not supported."""
        raise unsupported(self.what, reason)

    def refuse(self, rule: str) -> NoReturn:
        """Refuse a node that breaks a rule of ONNX."""
        raise QnnError(Code.GRAPH_INVALID_OP_CONFIG, self.what, rule)

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute, or its default."""
        return self.attributes.get(name, default)

    def value(self, index: int) -> OnnxValue:
        """Return operand `index`, which must be present."""
        value = self.optional(index)
        if value is None:
            self.refuse(f"input {index} is missing")
        return value

    def optional(self, index: int) -> OnnxValue | None:
        """Return operand `index`, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def wants(self, index: int) -> bool:
        """Return whether result `index` has a name."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def array(self, index: int, greatest: object = None) -> np.ndarray:
        """Return operand `index`, which must be a constant, or be known when this stage begins, as an array.

        `greatest` is a value to plan with, or `Choices`, if the operator bounds the operand by itself; otherwise it is
        the greatest that the operand can have.
        """
        array = self.builder.array(self.value(index))
        if array is None:
            self.need(self.value(index), f"input {index} is not a constant", greatest)
        return array

    def need(self, value: OnnxValue, rule: str, greatest: object = None, kept: Sequence[OnnxValue] = ()) -> NoReturn:
        """Leave the node to a stage in which a value is known, or refuse it by a rule if there are no stages.

        `greatest` is as for `array`; `kept` are values that the node reads besides its operands.
        """
        is_number = value.tensor.dtype.is_float and greatest is None and self.op not in _TAKES_FLOATS
        if value.tensor.elements > MAX_ELEMENTS or is_number:
            self.unsupported(rule)
        if self.stage is None:
            raise NeedsStages(Code.COMMON_NOT_SUPPORTED, self.what, rule)
        raise NeedsValue(value, self.what, rule, greatest, kept)

    def need_all(self, greatest: Mapping[int, object]) -> None:
        """Leave the node to a stage in which all these operands are known; by index, with a value to plan with."""
        unknown = [(i, v) for i in greatest if (v := self.optional(i)) is not None and self.builder.array(v) is None]
        if not unknown:
            return
        try:
            self.need(unknown[0][1], f"input {unknown[0][0]} is not a constant", greatest[unknown[0][0]])
        except NeedsValue as need:
            need.others = [(value, greatest[index]) for index, value in unknown[1:]]
            raise

    def rows(
        self, op: str, operands: Sequence[Tensor], perm: tuple[int, ...], params: dict[str, Any] | None = None,
        is_result: bool = True, **more: Any,
    ) -> OnnxValue:  # fmt: skip
        """Add an operation whose first result has rows, of which only the first are real; return the real ones.

        The node is left to a later stage in which their number is known. If the model becomes one graph, all rows are
        returned, and nodes that read them are refused. `is_result` says whether the rows are all that the node
        computes; `more` are further arguments of `OnnxBuilder.emit`.
        """
        stage = self.stage
        if stage is None:
            value = OnnxValue(self.builder.emit(op, operands, params, **more)[0], perm)
            self.filled[value.tensor.name] = self.what
            return value
        path = stage.part(f"{self.scope}{self.outputs[0]}", ROWS if is_result else "positions")
        known = stage.given(path, self.builder)
        if known is not None:
            return known
        if all(tensor.is_static for tensor in operands):
            result = self.builder.emit(op, operands, params, **more)[0]
            assert result.data is not None
            rows = result.data[: first_filled(result.data)]
            return OnnxValue(self.builder.constant(rows), perm)
        if stage.selects:
            stage.add_rows(path, OnnxValue(self.builder.emit(op, operands, params, **more)[0], perm))
        else:
            stage.select(path, op, operands, perm, params=params, **more)
        raise NeedsRows(is_result)

    def number(self, index: int, default: float | None = None, greatest: object = None) -> Any:
        """Return operand `index`, a constant with one element, as a number; `default` if it is absent.

        `greatest` is as for `array`.
        """
        if default is not None and self.optional(index) is None:
            return default
        array = self.array(index, greatest)
        if array.size != 1:
            self.refuse(f"input {index} must have one element, has {array.size}")
        return array.reshape(()).item()

    def ints(self, index: int, attribute: str | None = None, greatest: object = None) -> list[int] | None:
        """Return a list from an attribute (older operator sets) or operand `index` (newer ones); None if absent.

        `greatest` is as for `array`.
        """
        if attribute is not None and attribute in self.attributes:
            return [int(v) for v in np.atleast_1d(self.attributes[attribute])]
        if self.optional(index) is None:
            return None
        return [int(v) for v in self.array(index, greatest).reshape(-1)]

    def axis(self, axis: int, rank: int | None = None) -> int:
        """Return an axis of ONNX's view; negative axes count from the end.

        `rank` is the number of axes to choose from if it is not the first operand's.
        """
        rank = self.value(0).rank if rank is None else rank
        if not -rank <= axis < rank:
            self.refuse(f"axis {axis} is outside rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int | None = None) -> list[int]:
        """Return axes of ONNX's view; refuse duplicates."""
        result = [self.axis(axis, rank) for axis in axes]
        if len(set(result)) != len(result):
            self.refuse(f"axes {list(axes)} name one axis twice")
        return result

    # --- short ways to emit -------------------------------------------------------------------------------------

    def emit(
        self, op: str, inputs: Sequence[Tensor | None], params: dict[str, Any] | None = None, **more: Any
    ) -> Tensor:
        """Add an operation with one output; `more` are further arguments of `OnnxBuilder.emit`."""
        return self.builder.one(op, inputs, params, **more)

    def elementwise(
        self, op: str, *operands: OnnxValue | float, params: dict[str, Any] | None = None, **more: Any
    ) -> OnnxValue:
        """Emit an elementwise operation on values and numbers (numbers take the type of the first value).

        `more` are further arguments of `OnnxBuilder.emit`.
        """
        dtype = next(v.tensor.dtype for v in operands if isinstance(v, OnnxValue))
        values = [v if isinstance(v, OnnxValue) else OnnxValue(self.builder.scalar(v, dtype), ()) for v in operands]
        tensors, perm = self.builder.aligned(values)
        return OnnxValue(self.emit(op, tensors, params, **more), perm)

    def cast(self, value: OnnxValue, dtype: DataType) -> OnnxValue:
        """Cast a value to another data type."""
        if value.tensor.dtype is dtype:
            return value
        return OnnxValue(self.emit("Cast", [value.tensor], dtypes=[dtype]), value.perm)

    def cast_to_four_bits(self, value: OnnxValue, dtype: DataType) -> OnnxValue:
        """Cast a value to the low four bits of integers, stored in this type; of INT_8 the highest is the sign."""
        whole = self.cast(self.cast(value, DataType.INT_32), DataType.FLOAT_32)
        shifted = self.elementwise("ElementWiseAdd", whole, 8.0) if dtype is DataType.INT_8 else whole
        rounds = self.elementwise("ElementWiseFloor", self.elementwise("ElementWiseMultiply", shifted, 1 / 16))
        multiple = self.elementwise("ElementWiseMultiply", rounds, 16.0)
        return self.cast(self.elementwise("ElementWiseSubtract", whole, multiple), dtype)

    def unmoved(self, tensor: Tensor) -> OnnxValue:
        """Return the value of a tensor that is stored in ONNX's axis order."""
        return OnnxValue(tensor, identity(tensor.rank))
