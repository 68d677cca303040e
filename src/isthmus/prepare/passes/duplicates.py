"""Common subexpression elimination: steps that compute the same result from the same operands become one."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from isthmus.graph import Tensor
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

_SMALL = 256
"""Constants of at most this many bytes are compared by contents, larger ones by identity."""


def merge_duplicates(work: Work) -> None:
    """Keep only the first of several steps with equal operation, operands and parameters.

    A step that writes a graph output is kept, because every output has memory of its own.
    """
    known: dict[Hashable, Step] = {}
    for step in work.ordered():
        first = known.setdefault(_signature(step), step)
        if first is step or any(work.is_output(t) for t in step.outputs):
            continue
        work.remove(step)
        for mine, other in zip(step.outputs, first.outputs, strict=True):
            work.reread(mine, other)


def _signature(step: Step) -> Hashable:
    """Return all that determines the results of a step; steps with equal signatures compute the same."""
    return (
        step.op,
        step.clamp,
        tuple(_operand(t) for t in step.inputs),
        tuple((t.dims, t.dtype, t.quantization) for t in step.outputs),
        tuple((name, _frozen(value)) for name, value in sorted(step.params.items())),
    )


def _operand(tensor: Tensor | None) -> Hashable:
    """Return what identifies an operand: its contents if it is a small constant, otherwise the tensor itself."""
    if tensor is not None and tensor.is_static and tensor.data is not None and tensor.nbytes <= _SMALL:
        return (tensor.dtype, tensor.dims, tensor.quantization, tensor.data.tobytes())
    return tensor


def _frozen(value: Any) -> Hashable:
    """Return a parameter's value in a hashable form."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    return tuple(_frozen(v) for v in value) if isinstance(value, (list, tuple)) else value
