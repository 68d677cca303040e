"""Reference computations of the operations in numpy, one table per family. They are simple and correct, not fast.

A computation takes the values of the inputs (fixed-point ones as float64 reals), the complete parameters and the output
tensors. It returns the values of the outputs, which `isthmus.graph.evaluate` stores in the outputs' types.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from isthmus.graph.operation import Params
from isthmus.graph.tensor import Tensor

Values = Sequence[Any]
"""One numpy array per input, None for an absent optional one."""
Outputs = Sequence[Tensor]
"""The output tensors."""
Computation = Callable[[Values, Params, Outputs], "np.ndarray | list[np.ndarray]"]


def wide(values: np.ndarray) -> np.ndarray:
    """Convert values to the type of sums: float64 for reals, int64 for integers."""
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64)


def absent(values: Values, index: int) -> bool:
    """Return whether an optional input is absent."""
    return index >= len(values) or values[index] is None
