"""FLOAT_32 tensors that are stored as fp16, and a graph whose tensors are replaced by such.

The declared type stays what it is, so every rule of an operation holds as before; only the bytes are fewer. Planning
counts those, and an engine that knows `Fp16Tensor` converts on loads and stores.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from isthmus.graph import Tensor, TensorType
from isthmus.prepare.work import Work


class Fp16Tensor(Tensor):
    """A FLOAT_32 tensor whose elements are stored as fp16; the data of a constant are values that fp16 can hold."""

    @property
    def itemsize(self) -> int:
        """How many bytes one element takes."""
        return 2


def to_fp16(array: np.ndarray) -> np.ndarray:
    """Convert to fp16; what is too large becomes the largest."""
    limit = np.finfo(np.float16).max
    return np.clip(array, -limit, limit).astype(np.float16)


def round_to_fp16(array: np.ndarray) -> np.ndarray:
    """Round to values that fp16 can hold."""
    return to_fp16(array).astype(np.float32)


def is_exact_in_fp16(array: np.ndarray) -> bool:
    """Whether fp16 holds all values without a loss."""
    return bool(np.array_equal(round_to_fp16(array), array))


def store_as_fp16(work: Work, tensors: Collection[Tensor]) -> None:
    """Store intermediates and constants as fp16; new values of states are stored as states are."""
    replaced: dict[Tensor, Tensor] = {}

    def stored(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or tensor not in tensors:
            return tensor
        assert tensor.type in (TensorType.NATIVE, TensorType.STATIC)
        assert tensor not in work.updates.values()
        if tensor not in replaced:
            data = None if tensor.data is None else round_to_fp16(tensor.data)
            replaced[tensor] = Fp16Tensor(tensor.name, tensor.type, tensor.dtype, tensor.dims, None, data)
        return replaced[tensor]

    for step in list(work.steps):
        if not any(tensor in tensors for tensor in (*step.inputs, *step.outputs)):
            continue
        outputs = [tensor for tensor in map(stored, step.outputs) if tensor is not None]
        work.change(step, inputs=[stored(tensor) for tensor in step.inputs], outputs=outputs)
