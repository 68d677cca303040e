"""The replacement of a graph's FLOAT_32 tensors by tensors that are stored as fp16, and values that fp16 can hold."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from isthmus.graph import Tensor, TensorType
from isthmus.prepare.fp16 import Fp16Tensor, to_fp16
from isthmus.prepare.work import Work


def round_to_fp16(array: np.ndarray) -> np.ndarray:
    """Round to values that fp16 can hold."""
    return to_fp16(array).astype(np.float32)


def is_exact_in_fp16(array: np.ndarray) -> bool:
    """Return whether fp16 holds all values exactly."""
    return bool(np.array_equal(round_to_fp16(array), array))


def store_as_fp16(work: Work, tensors: Collection[Tensor]) -> None:
    """Replace tensors in all steps by fp16 ones; constants are rounded.

    - `tensors`: Intermediates and constants, but no new values of states, which are stored as the states are.
    """
    replaced: dict[Tensor, Tensor] = {}

    def replacement(tensor: Tensor | None) -> Tensor | None:
        """Return the fp16 tensor for one of `tensors`, or any other tensor itself."""
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
        outputs = [tensor for tensor in map(replacement, step.outputs) if tensor is not None]
        work.change(step, inputs=[replacement(tensor) for tensor in step.inputs], outputs=outputs)
