"""Reference computations of the operations in numpy, one table per family: right and plain, not fast.

A computation takes the values of the inputs (fixed-point ones as float64 reals), the complete parameters and the
output tensors, and gives the values of the outputs; `isthmus.graph.evaluate` stores them in the outputs' types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isthmus.graph.tensor import Tensor

Values = Sequence[Any]
"""One numpy array per input, None where an optional one is absent."""
Computation = Callable[[Values, dict[str, Any], Sequence[Tensor]], "np.ndarray | list[np.ndarray]"]


def wide(values: np.ndarray) -> np.ndarray:
    """Values in the type that sums are kept in: float64 for reals, int64 for integers."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def absent(values: Values, index: int) -> bool:
    """Whether an optional input is not given."""
    return index >= len(values) or values[index] is None
