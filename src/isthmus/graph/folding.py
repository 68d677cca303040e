"""Constant folding while a graph is built: an operation on constants becomes a constant at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.graph.datatypes import DataType
from isthmus.graph.evaluate import evaluate
from isthmus.graph.graph import Graph
from isthmus.graph.operation import Dims
from isthmus.graph.quantization import Quantization
from isthmus.graph.tensor import Tensor

MAX_FOLDED_BYTES = 256 << 20
"""Constants beyond this size may be folded only from inputs of at least an eighth of it."""


def emit(
    graph: Graph,
    op: str,
    inputs: Sequence[Tensor | None],
    params: dict[str, Any] | None = None,
    *,
    name: str | None = None,
    dims: Sequence[Dims] | None = None,
    dtypes: Sequence[DataType | None] | None = None,
    quantizations: Sequence[Quantization | None] | None = None,
    outputs: int = 1,
    output_names: Sequence[str] | None = None,
) -> list[Tensor]:
    """`Graph.emit`, except that an operation whose inputs are all constants is computed and gives constants.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.graph import Graph
    >>> graph = Graph("g")
    >>> three = emit(graph, "ElementWiseAdd", [graph.constant("a", np.int32([1])), graph.constant("b", np.int32([2]))])
    >>> three[0].data, graph.nodes
    (array([3], dtype=int32), [])
    """
    given = [t for t in inputs if t is not None]
    if not given or not all(t.is_static for t in given):
        return graph.emit(
            op, inputs, params, name=name, dims=dims, dtypes=dtypes, quantizations=quantizations, outputs=outputs,
            output_names=output_names,
        )
    node = name or op
    described = graph.describe_outputs(
        node, op, inputs, params, dims=dims, dtypes=dtypes, quantizations=quantizations, outputs=outputs,
        output_names=output_names,
    )
    size = sum(t.nbytes for t in described)
    if size > max(MAX_FOLDED_BYTES, 8 * sum(t.nbytes for t in given)):
        raise QnnError(
            Code.COMMON_MEM_ALLOC, f"node '{node}' ({op})", f"folding it would make a constant of {size} bytes",
            "Such a size out of small constants is a mistake in the model.",
        )
    arrays = [None if t is None else t.data for t in inputs]
    results = evaluate(op, inputs, arrays, params or {}, described)
    return [
        graph.constant(output.name, result, output.quantization, output.dtype)
        for output, result in zip(described, results, strict=True)
    ]
