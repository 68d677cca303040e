"""Application of rewrite rules until none applies any more, and predicates on operands for such rules.

Only steps near the last change are visited again.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

Rule = Callable[[Work, Step], object]
"""A function that rewrites the graph around a step if it applies, and changes nothing otherwise."""


def rewrite(work: Work, *entries: tuple[Collection[str], Rule]) -> None:
    """Apply rules everywhere, each to steps of some operations; those for the same operation are tried in this order.

    Each rule must simplify the graph, or this does not terminate.
    """
    rules: dict[str, list[Rule]] = {}
    for ops, rule in entries:
        for op in ops:
            rules.setdefault(op, []).append(rule)
    queue = deque(step for step in work.ordered() if step.op in rules)
    waiting = set(queue)
    work.take_touched()  # forget the steps that earlier passes have touched
    while queue:
        step = queue.popleft()
        waiting.discard(step)
        if step not in work.steps:
            continue
        for rule in rules.get(step.op, ()):
            rule(work, step)
            if work.has_changed:
                break
        for near in work.take_touched():
            if near not in waiting and near.op in rules:
                waiting.add(near)
                queue.append(near)


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
    reals: np.ndarray = tensor.dtype.decode(data).astype(np.float64)
    return reals


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
    numbers: np.ndarray = np.broadcast_to(values.reshape(-1), (channels,)).copy()
    return numbers


def is_fusible(tensor: Tensor) -> bool:
    """Return whether a tensor holds floats for which there are fused kernels: all floats but doubles."""
    return tensor.dtype.is_float and tensor.dtype is not DataType.FLOAT_64
