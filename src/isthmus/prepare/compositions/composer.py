"""The means to write an operation as a composition of others: steps whose shapes follow from the operations' rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isthmus.graph import DataType, Tensor, TensorType
from isthmus.graph.operation import Call
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

Composition = Callable[["StepComposer"], "Sequence[Tensor] | None"]
"""A function that adds the steps of a composition and returns their results, one for each output of the step.

It returns None if an engine executes the step as it is.
"""

_CONVERT = {"dynamic_input_data": False, "dynamic_output_data": False}
FLOAT, INTEGER = DataType.FLOAT_32, DataType.INT_32


class StepComposer:
    """The composition of one step.

    A composition computes reals in FLOAT_32 and indices in INT_32. `real` and `whole` convert operands, `finish`
    converts results to the types of the step's outputs; so it works for all data types that can be converted.

    - `work`, `step`: the graph, and the step that is replaced.
    """

    def __init__(self, work: Work, step: Step) -> None:
        self.work = work
        self.step = step
        self.params = step.params
        self.outputs = step.outputs

    def __call__(
        self,
        op: str,
        *inputs: Tensor | None,
        dims: Sequence[int] | None = None,
        dtype: DataType | None = None,
        **params: Any,
    ) -> Tensor:
        """Add a step with one result and return the result.

        `dims` is needed only if the operation's rule cannot derive them; the data type defaults to the operation's.
        """
        return self.all(op, *inputs, dims=None if dims is None else [dims], dtype=dtype, **params)[0]

    def all(
        self,
        op: str,
        *inputs: Tensor | None,
        dims: Sequence[Sequence[int]] | None = None,
        dtype: DataType | None = None,
        **params: Any,
    ) -> list[Tensor]:
        """Add a step and return all its results; `dtype` is the type of the first."""
        operation, name = OPERATIONS[op], self.step.name
        complete = operation.complete(name, params)
        declared = None if dims is None else [Tensor(name, TensorType.NATIVE, FLOAT, tuple(d)) for d in dims]
        call = Call(name, op, inputs, complete, declared)
        fixed = next((t for t in inputs if t is not None and t.dtype.is_fixed_point), None)
        results = []
        for index, shape in enumerate(operation.derive(call)):
            result_type = dtype if dtype is not None and index == 0 else operation.output_type(call, index)[1]
            assert result_type is not None, op
            quantization = fixed.quantization if fixed is not None and result_type.is_fixed_point else None
            results.append(self.work.native(name, shape, result_type, quantization))
        self.work.add(op, results[0].name, inputs, results, call.params, near=self.step)
        return results

    def given(self, index: int) -> Tensor | None:
        """Return input `index`, or None if it is absent."""
        return self.step.inputs[index] if index < len(self.step.inputs) else None

    def input(self, index: int) -> Tensor:
        """Return input `index`, which the operation requires."""
        tensor = self.given(index)
        assert tensor is not None
        return tensor

    def real(self, index: int) -> Tensor:
        """Return input `index` as FLOAT_32."""
        return self.as_real(self.input(index))

    def as_real(self, tensor: Tensor) -> Tensor:
        """Return a tensor as FLOAT_32."""
        if tensor.dtype is FLOAT:
            return tensor
        return self("Dequantize" if tensor.dtype.is_fixed_point else "Cast", tensor, dtype=FLOAT)

    def movable(self, index: int) -> Tensor:
        """Return input `index` as it is stored, for compositions that only move it.

        A tensor with a scale for each channel becomes FLOAT_32, since its channels may end up in other places.
        """
        tensor = self.input(index)
        by_channel = tensor.quantization is not None and tensor.quantization.axis is not None
        return self.as_real(tensor) if by_channel else tensor

    def whole(self, index: int) -> Tensor:
        """Return input `index`, indices, as INT_32."""
        tensor = self.input(index)
        return tensor if tensor.dtype is INTEGER else self("Cast", tensor, dtype=INTEGER)

    def not_zero(self, tensor: Tensor) -> Tensor:
        """Return booleans: which elements differ from 0."""
        if tensor.dtype is DataType.BOOL_8:
            return tensor
        tensor = tensor if tensor.dtype.is_integer else self.as_real(tensor)
        return self("ElementWiseNotEqual", tensor, self.zeros([1] * tensor.rank, tensor))

    def constant(self, value: Any, dtype: DataType = FLOAT) -> Tensor:
        """Return a constant, FLOAT_32 unless another type is given."""
        return self.work.constant(self.step.name, np.asarray(value, dtype.numpy))

    def zeros(self, dims: Sequence[int], like: Tensor) -> Tensor:
        """Return a constant that is 0 everywhere, stored as another tensor is."""
        zero = Tensor("zero", TensorType.APP_READWRITE, like.dtype, tuple(dims), like.quantization).initial()
        return self.work.constant(self.step.name, zero, like.quantization, like.dtype)

    def reshape(self, tensor: Tensor, *dims: int) -> Tensor:
        """Return a tensor with other dimensions."""
        return self("Reshape", tensor, dims=dims)

    def slice(self, tensor: Tensor, axis: int, first: int, last: int, stride: int = 1) -> Tensor:
        """Return the elements from `first` up to `last` along an axis."""
        ranges = np.array([[0, d, 1] for d in tensor.dims], np.int64)
        ranges[axis] = first, last, stride
        return self("StridedSlice", tensor, ranges=ranges)

    def finish(self, results: Sequence[Tensor]) -> None:
        """Replace the step: write its outputs, in their own types, from the results of the composition."""
        step, outputs = self.step, list(self.step.outputs)
        for index, (result, output) in enumerate(zip(results, outputs, strict=False)):
            op, params = _conversion(result, output)
            if index == 0:
                self.work.change(step, op=op, inputs=[result], outputs=[output], params=params)
            else:
                self.work.add(op, output.name, [result], [output], params, near=step)


def _conversion(result: Tensor, output: Tensor) -> tuple[str, dict[str, Any]]:
    """Return the operation that writes a result to an output, and its parameters."""
    if result.dtype is output.dtype:
        return "Reshape", {}
    if output.dtype.is_fixed_point:
        return ("Convert", _CONVERT) if result.dtype.is_fixed_point else ("Quantize", {})
    return "Cast", {}
