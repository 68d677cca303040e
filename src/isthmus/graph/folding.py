"""Constant folding while a graph is built: an operation on constants becomes a constant immediately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import TensorType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.graph import Graph, OutputOptions
from isthmus.graph.operation import Operands, Params
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.tensor import Tensor
from isthmus.graph.traits import Picks

if TYPE_CHECKING:
    from typing_extensions import Unpack

MAX_FOLDED_BYTES = 256 << 20
"""The largest size of the constants that replace one node. More is allowed up to eight times the size of its inputs."""


def is_repeated(array: np.ndarray) -> bool:
    """Return whether an array is one element that is repeated and stored once, as `np.broadcast_to` returns it.

    >>> is_repeated(np.broadcast_to(np.float32(1), (2, 3))), is_repeated(np.ones((2, 3)))
    (True, False)
    """
    return array.size > 1 and not any(s for s, d in zip(array.strides, array.shape, strict=True) if d > 1)


def held_bytes(array: np.ndarray) -> int:
    """Return the memory that an array takes; that of a repeated element is one element."""
    return array.itemsize if is_repeated(array) else array.nbytes


def emit(
    graph: Graph, op: str, inputs: Operands, params: Params | None = None, *,
    name: str | None = None, **options: Unpack[OutputOptions],
) -> list[Tensor]:  # fmt: skip
    """Emit an operation as `Graph.emit` does, but compute one whose inputs are all constants and return constants.

    >>> import numpy as np
    >>> from isthmus.graph import Graph
    >>> graph = Graph("g")
    >>> three = emit(graph, "ElementWiseAdd", [graph.constant("a", np.int32([1])), graph.constant("b", np.int32([2]))])
    >>> three[0].data, graph.nodes
    (array([3], dtype=int32), [])
    """
    if not _is_constant(op, inputs):
        return graph.emit(op, inputs, params, name=name, **options)
    node = name or op
    described = graph.describe_outputs(node, op, inputs, params, **options)
    results = _compute(node, op, inputs, params, described)
    return [
        graph.constant(output.name, result, output.quantization, output.dtype)
        for output, result in zip(described, results, strict=True)
    ]


def add_node(
    graph: Graph, name: str, op: str, inputs: Operands, outputs: Sequence[Tensor], params: Params | None = None
) -> None:
    """Add a node as `Graph.add_node` does, but compute one on constants; its NATIVE outputs become constants.

    >>> import numpy as np
    >>> from isthmus.graph import DataType, Graph, TensorType
    >>> graph = Graph("g")
    >>> flat = graph.create_tensor("flat", TensorType.NATIVE, DataType.FLOAT_32, (4,))
    >>> add_node(graph, "reshape", "Reshape", [graph.constant("square", np.eye(2, dtype=np.float32))], [flat])
    >>> flat.type.name, flat.data.tolist()
    ('STATIC', [1.0, 0.0, 0.0, 1.0])
    """
    graph.add_node(name, op, inputs, outputs, params)
    if not _is_constant(op, inputs) or any(t.type is not TensorType.NATIVE for t in outputs):
        return
    node = graph.nodes[-1]
    try:
        results = _compute(name, op, inputs, node.params, outputs)
    finally:
        # Whether it was computed or refused, the node does not stay in the graph.
        graph.remove_last_node()
    for output, result in zip(outputs, results, strict=True):
        output.type, output.data = TensorType.STATIC, np.ascontiguousarray(result, output.dtype.numpy)


def _is_constant(op: str, inputs: Operands) -> bool:
    """Return whether an operation on these operands has the same result in every execution."""
    present = [t for t in inputs if t is not None]
    # An operation of a client's package is not listed, and may vary.
    varies = op not in OPERATIONS or OPERATIONS[op].traits.varies
    return bool(present) and not varies and all(t.is_static for t in present)


def _compute(
    node: str, op: str, inputs: Operands, params: Params | None, outputs: Sequence[Tensor]
) -> list[np.ndarray]:
    """Compute a node on constants; refuse results that are far larger than the inputs."""
    # Movement of a repeated element gives the same element, repeated.
    arrays = [None if t is None else t.data for t in inputs]
    moves = OPERATIONS[op].traits.moves if op in OPERATIONS else None
    first = arrays[0]
    if moves is not None and moves.of_one and moves.picks is Picks.PLACE and first is not None and is_repeated(first):
        quantization = inputs[0].quantization if inputs[0] is not None else None
        if all(t.dtype.numpy == first.dtype and t.quantization == quantization for t in outputs):
            element = first[(0,) * first.ndim]
            return [np.broadcast_to(element, t.dims) for t in outputs]
    size = sum(t.nbytes for t in outputs)
    if size > max(MAX_FOLDED_BYTES, 8 * sum(held_bytes(array) for array in arrays if array is not None)):
        rule = f"folding it would make a constant of {size} bytes"
        hint = "Such a size out of small constants is a mistake in the model."
        raise QnnError(Code.COMMON_MEM_ALLOC, f"node '{node}' ({op})", rule, hint)
    return evaluate(op, inputs, arrays, params or {}, outputs)
