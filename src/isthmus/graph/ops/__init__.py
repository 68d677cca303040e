"""Every operation by name, assembled from one table per family."""

from isthmus.graph.operation import Operation
from isthmus.graph.ops import convolution, detection, elementwise, movement, recurrent, reduction, sampling

OPERATIONS: dict[str, Operation] = {
    operation.name: operation
    for family in (convolution, elementwise, movement, sampling, reduction, recurrent, detection)
    for operation in family.OPERATIONS
}

__all__ = ["OPERATIONS"]
