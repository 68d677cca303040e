"""Parameters that newer releases of QNN added to operations. They are accepted if they change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "Buffer": {"buffer_padding": 0},
    "Conv2d": {"reuse_sparse_indices": False},
    # QNN spells it so.
    "Conv3d": {"reuse_sparse_indicies": False},
    "Gru": {"time_major": True},
    "Lstm": {"time_major": True},
    "Resize": {"antialias": False},
    "ResizeBilinear": {"antialias": False},
}
"""The value that changes nothing, by operation and parameter."""


def without_neutral(op: str, params: Mapping[str, Any], dims: Sequence[int] = ()) -> dict[str, Any]:
    """Remove parameters that change nothing. Others are kept, so that unsupported ones are refused later.

    - `dims`: the dimensions of the first input. The order of time and batch does not matter if both are 1 or there is
      no time axis.

    >>> without_neutral("Conv2d", {"group": 2, "reuse_sparse_indices": 0})
    {'group': 2}
    >>> without_neutral("Gru", {"time_major": 0}, (1, 1, 400)), without_neutral("Gru", {"time_major": 0}, (1, 8, 400))
    ({}, {'time_major': 0})
    """
    neutral = NEUTRAL.get(op, {})
    irrelevant = {"time_major"} if len(dims) == 2 or tuple(dims[:2]) == (1, 1) else set()
    return {
        name: value
        for name, value in params.items()
        if name not in neutral or (name not in irrelevant and not _equal(value, neutral[name]))
    }


def _equal(value: Any, neutral: Any) -> bool:
    """Return whether a parameter, a scalar or an array, has its neutral value."""
    return bool(np.array_equal(np.asarray(value), np.asarray(neutral)))
