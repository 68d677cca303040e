"""Parameters that releases of QNN have added to operations, taken where they ask for what is done without them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

NEUTRAL: Mapping[str, Mapping[str, Any]] = {
    "Conv2d": {"reuse_sparse_indices": False},
    "Conv3d": {"reuse_sparse_indices": False},
}
"""By operation and parameter, the value that changes nothing."""


def without_neutral(op: str, params: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without those that change nothing; one that asks for something else is left, to be refused.

    Examples
    --------
    >>> without_neutral("Conv2d", {"group": 2, "reuse_sparse_indices": 0})
    {'group': 2}
    """
    neutral = NEUTRAL.get(op, {})
    return {name: value for name, value in params.items() if name not in neutral or not _equal(value, neutral[name])}


def _equal(value: Any, neutral: Any) -> bool:
    return bool(np.array_equal(np.asarray(value), np.asarray(neutral)))
