"""Storage of a FLOAT_32 graph's floats in 16 bits: a rewriting after all passes, for backends that ask for it.

Inputs, outputs and states keep their type and are cast. Steps on fixed-point tensors stay as they are. The passes
before this one have recognized operations and folded constants in full precision.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work


def store_floats_as(work: Work, dtype: DataType) -> None:
    """Replace FLOAT_32 intermediates and constants by ones of a type of 16 bits, and cast where both types meet.

    A finite constant that is too large becomes the largest number of the type: models use such constants as masks,
    which are multiplied by 0. A computed number that is too large becomes infinite.
    """
    _Conversion(work, dtype).run()


class _Conversion:
    """The conversion of one graph.

    Attributes
    ----------
    halves
        The tensor of 16 bits with the numbers of a FLOAT_32 tensor.
    singles
        The FLOAT_32 tensor with the numbers of a tensor that is computed in 16 bits.
    """

    def __init__(self, work: Work, dtype: DataType) -> None:
        self.work, self.dtype = work, dtype
        self.halves: dict[Tensor, Tensor] = {}
        self.singles: dict[Tensor, Tensor] = {}
        # FLOAT_32 tensors that no step writes any more.
        self._replaced: set[Tensor] = set()

    def run(self) -> None:
        for step in self.work.ordered():
            if _has_fixed_point(step):
                self.work.change(step, inputs=[self._single(t, step) for t in step.inputs])
                continue
            inputs = [self._half(t, step) for t in step.inputs]
            if step.op == "Cast":
                # A number that exists in 32 bits is cast from there.
                inputs = [t if t not in self._replaced else half for t, half in zip(step.inputs, inputs, strict=True)]
            outputs = step.outputs
            self.work.change(step, inputs=inputs, outputs=[self._result(t) for t in outputs])
            for tensor in outputs:
                if tensor in self._replaced and self.work.is_kept(tensor):
                    half = self.halves[tensor]
                    self.work.add("Cast", tensor.name, [half], [tensor], near=step)
                    self._replaced.discard(tensor)

    def _half(self, tensor: Tensor | None, reader: Step) -> Tensor | None:
        """Return a tensor as a step in 16 bits reads it."""
        if tensor is None or tensor.dtype is not DataType.FLOAT_32:
            return tensor
        if tensor not in self.halves:
            if tensor.is_static:
                assert tensor.data is not None
                self.halves[tensor] = self.work.floats(tensor.name, _limited(tensor.data, self.dtype), self.dtype)
            else:
                self.halves[tensor] = self._cast(tensor, self.dtype, reader)
        return self.halves[tensor]

    def _single(self, tensor: Tensor | None, reader: Step) -> Tensor | None:
        """Return a tensor as a step in its own types reads it."""
        if tensor not in self._replaced:
            return tensor
        if tensor not in self.singles:
            self.singles[tensor] = self._cast(self.halves[tensor], DataType.FLOAT_32, reader)
        return self.singles[tensor]

    def _result(self, tensor: Tensor) -> Tensor:
        """Return the tensor that a step in 16 bits writes in place of another."""
        if tensor.dtype is not DataType.FLOAT_32:
            return tensor
        half = self.halves[tensor] = self.work.native(tensor.name, tensor.dims, self.dtype)
        self._replaced.add(tensor)
        return half

    def _cast(self, tensor: Tensor, dtype: DataType, reader: Step) -> Tensor:
        """Add a cast before the step that reads its result."""
        result = self.work.native(tensor.name, tensor.dims, dtype)
        self.work.add("Cast", result.name, [tensor], [result], near=reader)
        return result


def _has_fixed_point(step: Step) -> bool:
    """Return whether a step reads or writes a fixed-point tensor."""
    return any(t is not None and t.dtype.is_fixed_point for t in (*step.inputs, *step.outputs))


def _limited(numbers: np.ndarray, dtype: DataType) -> np.ndarray:
    """Limit finite numbers to the range of a type."""
    largest = dtype.decode(np.array([0x7BFF if dtype is DataType.FLOAT_16 else 0x7F7F], np.uint16).view(dtype.numpy))[0]
    return np.where(np.isfinite(numbers), np.clip(numbers, -largest, largest), numbers)
