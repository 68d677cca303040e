"""The table of all operations by name, assembled from one table per family.

Functions of a `Call` are the rules of operations: they check the call and return the dimensions of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.graph.operation import Operation
from isthmus.graph.ops import (
    attention,
    convolution,
    detection,
    elementwise,
    movement,
    random,
    recurrent,
    reduction,
    sampling,
    signal,
    sparse,
)

_FAMILIES = (
    convolution, elementwise, movement, sampling, reduction, recurrent, detection, attention, signal, random, sparse,
)  # fmt: skip
OPERATIONS: dict[str, Operation] = {operation.name: operation for f in _FAMILIES for operation in f.OPERATIONS}


def having(true: Callable[[Operation], object]) -> frozenset[str]:
    """Return the names of the operations for which a predicate is true.

    >>> sorted(having(lambda operation: operation.traits.limits))
    ['Relu', 'Relu1', 'Relu6']
    """
    return frozenset(name for name, operation in OPERATIONS.items() if true(operation))


__all__ = ["OPERATIONS", "having"]
