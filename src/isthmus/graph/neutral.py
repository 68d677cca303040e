"""Parameters that releases of QNN have added to operations, taken where they ask for what is done without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "Conv2d": {"reuse_sparse_indices": False},
    "Conv3d": {"reuse_sparse_indices": False},
    "Gru": {"time_major": True},
    "Lstm": {"time_major": True},
    "Resize": {"antialias": False},
    "ResizeBilinear": {"antialias": False},
}
"""By operation and parameter, the value that changes nothing."""


def without_neutral(op: str, params: Mapping[str, Any], dims: Sequence[int] = ()) -> dict[str, Any]:
    """Parameters without those that change nothing; one that asks for something else is left, to be refused.

    Parameters
    ----------
    dims
        The dimensions of the first input. The order of time and batch is no question where both are 1, or time is not
        one of them.

    Examples
    --------
    >>> without_neutral("Conv2d", {"group": 2, "reuse_sparse_indices": 0})
    {'group': 2}
    >>> without_neutral("Gru", {"time_major": 0}, (1, 1, 400)), without_neutral("Gru", {"time_major": 0}, (1, 8, 400))
    ({}, {'time_major': 0})
    """
    neutral = NEUTRAL.get(op, {})
    either = {"time_major"} if len(dims) == 2 or tuple(dims[:2]) == (1, 1) else set()
    return {
        name: value
        for name, value in params.items()
        if name not in neutral or (name not in either and not _equal(value, neutral[name]))
    }


def _equal(value: Any, neutral: Any) -> bool:
    return bool(np.array_equal(np.asarray(value), np.asarray(neutral)))
