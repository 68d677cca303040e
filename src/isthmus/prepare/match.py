"""Predicates on operands for rewrite rules: whether one is a constant, one number, or one number per channel."""

from __future__ import annotations

import math

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.prepare.schedule import Step


def operand(step: Step, index: int) -> Tensor | None:
    """Return input `index` of a step, or None if it is absent."""
    return step.inputs[index] if index < len(step.inputs) else None


def static(tensor: Tensor | None) -> np.ndarray | None:
    """Return the contents of a constant; None if the tensor is not one."""
    return tensor.data if tensor is not None and tensor.is_static else None


def floats(tensor: Tensor | None) -> np.ndarray | None:
    """Return the contents of a floating-point constant in double precision; None if the tensor is not one."""
    data = static(tensor)
    if tensor is None or data is None or not tensor.dtype.is_float:
        return None
    return tensor.dtype.decode(data).astype(np.float64)


def number(tensor: Tensor | None) -> float | None:
    """Return the real value of a float or fixed-point constant if all its elements are equal; otherwise None."""
    data = static(tensor)
    if tensor is None or data is None or data.size == 0:
        return None
    if tensor.quantization is not None and tensor.dtype.is_fixed_point:
        data = tensor.quantization.dequantize(data)
    elif not tensor.dtype.is_float:
        return None
    else:
        data = tensor.dtype.decode(data)
    first = data.reshape(-1)[0]
    return float(first) if data.size == 1 or bool((data == first).all()) else None


def is_number(tensor: Tensor | None, value: float) -> bool:
    """Return whether all elements of a constant equal this number, to the precision of their type."""
    own_value = number(tensor)
    if tensor is None or own_value is None:
        return False
    if tensor.dtype.is_half:
        value = float(tensor.dtype.decode(tensor.dtype.encode(np.array(value))))
    return math.isclose(own_value, value, rel_tol=1e-6)


def per_channel(tensor: Tensor | None, like: Tensor) -> np.ndarray | None:
    """Return a float constant as one number per index of `like`'s last axis, if it broadcasts that way."""
    if tensor is None or tensor.rank > like.rank or not like.rank or not tensor.is_static or not is_fusible(tensor):
        return None
    channels = like.dims[-1]
    if math.prod(tensor.dims[:-1]) != 1 or tensor.elements not in (1, channels):
        return None
    values = floats(tensor)
    assert values is not None
    return np.broadcast_to(values.reshape(-1), (channels,)).copy()


def is_fusible(tensor: Tensor) -> bool:
    """Return whether a tensor holds floats for which there are fused kernels: all floats but doubles."""
    return tensor.dtype.is_float and tensor.dtype is not DataType.FLOAT_64
