"""Conversion of a graph's floats to another type, after all passes: FLOAT_32 stored in 16 bits, or FLOAT_16 in 32.

Inputs, outputs and states keep their type and are cast. Steps on fixed-point tensors stay as they are. The passes
before this one have recognized operations and folded constants in full precision.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def store_floats_as(work: Work, dtype: DataType) -> None:
    """Replace FLOAT_32 intermediates and constants by ones of a type of 16 bits, and cast where both types meet.

    A finite constant that is too large becomes the largest number of the type: models use such constants as masks,
    which are multiplied by 0. A computed number that is too large becomes infinite.
    """
    of_model = _steps_of_float_tensors(work)
    _Conversion(work, DataType.FLOAT_32, dtype).run(lambda step: _has_fixed_point(step) or step not in of_model)


def widen_halves(work: Work) -> None:
    """Replace FLOAT_16 intermediates and constants by FLOAT_32 ones, for an engine with a storage of its own."""
    _Conversion(work, DataType.FLOAT_16, DataType.FLOAT_32).run()


class _Conversion:
    """The conversion of one graph from one type of floats to another.

    - `converted`: for a tensor of the old type, the one of the new type with the same numbers.
    - `restored`: for a tensor that is only computed in the new type, one of the old type with the same numbers.
    """

    def __init__(self, work: Work, old: DataType, new: DataType) -> None:
        self.work, self.old, self.new = work, old, new
        self.converted: dict[Tensor, Tensor] = {}
        self.restored: dict[Tensor, Tensor] = {}
        # Tensors of the old type that no step writes any more.
        self._replaced: set[Tensor] = set()

    def run(self, keeps: Callable[[Step], bool] = lambda step: False) -> None:
        """Convert all steps but those that `keeps` selects."""
        for step in self.work.ordered():
            if keeps(step):
                self.work.change(step, inputs=[self._restore(t, step) for t in step.inputs])
                continue
            if step.op == "Cast":
                # A tensor that still exists in its own type is cast from that type, not from the new one.
                inputs = [self._convert(t, step) if t in self._replaced else t for t in step.inputs]
            else:
                inputs = [self._convert(t, step) for t in step.inputs]
            outputs = step.outputs
            self.work.change(step, inputs=inputs, outputs=[self._result(t) for t in outputs])
            for tensor in outputs:
                if tensor in self._replaced and self.work.is_kept(tensor):
                    self.work.add("Cast", step.name, [self.converted[tensor]], [tensor], near=step)
                    self._replaced.discard(tensor)

    def _convert(self, tensor: Tensor | None, reader: Step) -> Tensor | None:
        """Return a tensor in the type in which a converted step reads it."""
        if tensor is None or tensor.dtype is not self.old:
            return tensor
        if tensor not in self.converted:
            if tensor.is_static:
                assert tensor.data is not None
                numbers = _limit(self.old.decode(tensor.data), self.new)
                self.converted[tensor] = self.work.floats(tensor.name, numbers, self.new)
            else:
                self.converted[tensor] = self._cast(tensor, self.new, reader)
        return self.converted[tensor]

    def _restore(self, tensor: Tensor | None, reader: Step) -> Tensor | None:
        """Return a tensor in the type in which a step that is not converted reads it."""
        if tensor is None or tensor not in self._replaced:
            return tensor
        if tensor not in self.restored:
            self.restored[tensor] = self._cast(self.converted[tensor], self.old, reader)
        return self.restored[tensor]

    def _result(self, tensor: Tensor) -> Tensor:
        """Return the tensor that a converted step writes in place of another."""
        if tensor.dtype is not self.old:
            return tensor
        result = self.converted[tensor] = self.work.native(tensor.name, tensor.dims, self.new)
        self._replaced.add(tensor)
        return result

    def _cast(self, tensor: Tensor, dtype: DataType, reader: Step) -> Tensor:
        """Add a cast before the step that reads its result."""
        result = self.work.native(tensor.name, tensor.dims, dtype)
        self.work.add("Cast", reader.name, [tensor], [result], near=reader)
        return result


def _steps_of_float_tensors(work: Work) -> set[Step]:
    """Return the steps that compute with floats of the model."""
    # The others belong to operations on fixed-point tensors that are composed of steps in floats: their results have
    # more digits than 16 bits.
    found: set[Step] = set()
    near = [tensor for step in work.steps for tensor in _floats(step) if work.is_of_model(tensor)]
    while near:
        tensor = near.pop()
        steps = [step for step in (work.producer(tensor), *work.consumers(tensor)) if step not in found]
        for step in filter(None, steps):
            found.add(step)
            near += _floats(step)
    return found


def _floats(step: Step) -> list[Tensor]:
    """Return the FLOAT_32 tensors of a step that are computed."""
    return [tensor for tensor in (*step.operands, *step.outputs) if tensor.dtype is DataType.FLOAT_32]


def _has_fixed_point(step: Step) -> bool:
    """Return whether a step reads or writes a fixed-point tensor."""
    return any(t is not None and t.dtype.is_fixed_point for t in (*step.inputs, *step.outputs))


def _limit(numbers: np.ndarray, dtype: DataType) -> np.ndarray:
    """Limit finite numbers to the range of a type."""
    if dtype is DataType.FLOAT_32:
        return numbers
    return np.where(np.isfinite(numbers), np.clip(numbers, -dtype.largest, dtype.largest), numbers)
