"""An ONNX node during conversion: its attributes, operands and the builder, as the converters use them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.onnx.builder import OnnxBuilder
from isthmus.frontends.onnx.layout import OnnxValue, channel_last
from isthmus.frontends.onnx.stage import MAX_ELEMENTS, ROWS, NeedsRows, NeedsValue, StageRecord, first_filled
from isthmus.frontends.unsupported import NeedsStages, unsupported
from isthmus.graph import DataType, Tensor
from isthmus.graph.operation import Operands, Params

Results = OnnxValue | Sequence[OnnxValue | None]
"""The results of a node: the only one, or all of them in order, None for one that was not computed."""
Converter = Callable[["OnnxNode"], Results]
"""Converts a node of one operator: adds operations to the node's builder and returns the results."""


# Operators whose shapes may depend on floats.
_TAKES_FLOATS = ("Resize", "Upsample", "Range")


WORDS = frozenset({"plus", "minus", "times", "over", "choose"})
"""Methods of `OnnxNode` that stand for one operation each."""


def _arithmetic(op: str) -> Callable[[OnnxNode, OnnxValue, OnnxValue | float], OnnxValue]:
    """Return a method that combines a value with another or with a number."""
    return lambda node, a, b: node.elementwise(op, a, b)


@dataclass
class OnnxNode:
    """A node during conversion.

    - `builder`: the builder that receives converted operations.
    - `run`: converts a subgraph of this node: (graph, values of its inputs) returns the values of its outputs.
    - `opset`: the version of the operator set that the node belongs to.
    - `inputs`: operands; None for an optional one that is absent.
    - `outputs`: names of the results; empty for one that is not used.
    - `scope`: what distinguishes its results from others of the same names: the path of its scope.
    - `stage`: the stage that is converted; None if the model becomes one graph.
    - `filled`: the nodes that made tensors whose unused last rows are -1, by the tensors' names, if the model becomes
      one graph; converters add to it.
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

        `greatest` is the value, or the `Choices`, to plan memory with if the operand is known only at run time. By
        default it is the greatest value that can be inferred.
        """
        array = self.builder.array(self.value(index))
        if array is None:
            self.need(self.value(index), f"input {index} is not a constant", greatest)
        return array

    def need(self, value: OnnxValue, rule: str, greatest: object = None, reads: Sequence[OnnxValue] = ()) -> NoReturn:
        """Leave the node to a stage in which a value is known, or refuse it by a rule if there are no stages.

        `greatest` is as for `array`; `reads` are values that the node reads besides its operands.
        """
        self._need([(value, greatest)], rule, reads)

    def _need(self, needs: Sequence[tuple[OnnxValue, object]], rule: str, reads: Sequence[OnnxValue] = ()) -> NoReturn:
        """Leave the node to a stage in which values are known, each with a value to plan with."""
        value, greatest = needs[0]
        is_number = value.tensor.dtype.is_float and greatest is None and self.op not in _TAKES_FLOATS
        if value.tensor.elements > MAX_ELEMENTS or is_number:
            self.unsupported(rule)
        if self.stage is None:
            self.need_stages(rule)
        raise NeedsValue(needs, self.what, rule, reads)

    def need_all(self, greatest: Mapping[int, object]) -> None:
        """Leave the node to a stage in which these operands are known; `greatest` has values to plan with, by index."""
        unknown = [i for i in greatest if (v := self.optional(i)) is not None and self.builder.array(v) is None]
        if unknown:
            self._need([(self.value(i), greatest[i]) for i in unknown], f"input {unknown[0]} is not a constant")

    def need_stages(self, rule: str) -> NoReturn:
        """Refuse the node because the model becomes one graph."""
        raise NeedsStages(Code.COMMON_NOT_SUPPORTED, self.what, rule)

    def rows(
        self, op: str, operands: Sequence[Tensor], perm: tuple[int, ...], params: Params | None = None,
        is_result: bool = True, **more: Any,
    ) -> OnnxValue:  # fmt: skip
        """Add an operation whose first result has unused last rows; return the rows before these.

        The node is left to a later stage, in which the number of these rows is known. If the model becomes one graph,
        all rows are returned, and nodes that read them are refused. `is_result` says whether the rows are all that the
        node computes; `more` are further arguments of `OnnxBuilder.emit`.
        """
        stage = self.stage
        if stage is None:
            value = OnnxValue(self.builder.emit(op, operands, params, **more)[0], perm)
            self.filled[value.tensor.name] = self.what
            return value
        path = stage.part(f"{self.scope}{self.outputs[0]}", ROWS if is_result else "positions")
        rows_before = stage.value_at(path, self.builder)
        if rows_before is not None:
            return rows_before
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

    def emit(self, op: str, inputs: Operands, params: Params | None = None, **more: Any) -> Tensor:
        """Add an operation with one output; `more` are further arguments of `OnnxBuilder.emit`."""
        return self.builder.one(op, inputs, params, **more)

    def elementwise(
        self, op: str, *operands: OnnxValue | float, params: Params | None = None, **more: Any
    ) -> OnnxValue:
        """Emit an elementwise operation on values and numbers (numbers take the type of the first value).

        `more` are further arguments of `OnnxBuilder.emit`.
        """
        dtype = next(v.tensor.dtype for v in operands if isinstance(v, OnnxValue))
        values = [v if isinstance(v, OnnxValue) else self.scalar(v, dtype) for v in operands]
        tensors, perm = self.builder.align(values)
        return OnnxValue(self.emit(op, tensors, params, **more), perm)

    plus = _arithmetic("ElementWiseAdd")
    minus = _arithmetic("ElementWiseSubtract")
    times = _arithmetic("ElementWiseMultiply")
    over = _arithmetic("ElementWiseDivide")

    def choose(self, condition: OnnxValue, yes: OnnxValue | float, no: OnnxValue | float) -> OnnxValue:
        """Take elements of one of two values by a condition; a number has the type of the other."""
        dtype = next(v.tensor.dtype for v in (yes, no) if isinstance(v, OnnxValue))
        values = (v if isinstance(v, OnnxValue) else self.scalar(v, dtype) for v in (yes, no))
        return self.elementwise("ElementWiseSelect", condition, *values)

    def apply(self, op: str, x: OnnxValue, params: Params | None = None, *others: Tensor, **more: Any) -> OnnxValue:
        """Emit an operation on a value and other tensors, whose result has the axes of the value."""
        return OnnxValue(self.emit(op, [x.tensor, *others], params, **more), x.perm)

    def apply_channel_last(self, op: str, x: OnnxValue, params: Params, *others: Tensor, **more: Any) -> OnnxValue:
        """Emit an operation on images, and other tensors, that has its channels last."""
        return OnnxValue(self.emit(op, [self.builder.channel_last(x), *others], params, **more), channel_last(x.rank))

    def scalar(self, number: float, dtype: DataType) -> OnnxValue:
        """Return a constant of rank 0."""
        return OnnxValue(self.builder.scalar(number, dtype), ())

    def literal(self, value: Any) -> OnnxValue:
        """Return a constant."""
        return self.builder.literal(value)

    def reshape_to(self, value: OnnxValue, dims: Sequence[int]) -> OnnxValue:
        """Apply ONNX's reshape."""
        return self.builder.reshape_to(value, dims)

    def materialize(self, value: OnnxValue) -> Tensor:
        """Return the tensor of a value, stored in ONNX's own axis order."""
        return self.builder.materialize(value)

    def cast(self, value: OnnxValue, dtype: DataType) -> OnnxValue:
        """Cast a value to another data type."""
        return value if value.tensor.dtype is dtype else self.apply("Cast", value, dtypes=[dtype])

    def cast_to_four_bits(self, value: OnnxValue, dtype: DataType) -> OnnxValue:
        """Cast a value to the low four bits of integers, stored in this type; of INT_8 the highest is the sign."""
        whole = self.cast(self.cast(value, DataType.INT_32), DataType.FLOAT_32)
        shifted = self.plus(whole, 8.0) if dtype is DataType.INT_8 else whole
        rounds = self.elementwise("ElementWiseFloor", self.times(shifted, 1 / 16))
        return self.cast(self.minus(whole, self.times(rounds, 16.0)), dtype)
