"""Ranges of quantizers: what a fixed-point tensor can represent, how many values exceed it, and inputs inside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.comparison.tolerance import is_fixed_point
from isthmus.graph import Graph, Node, Tensor
from isthmus.graph.ops import OPERATIONS


@dataclass(frozen=True)
class Saturation:
    """The values of a tensor that its quantizer cannot represent.

    - `count`, `elements`: how many values exceed the range by more than half a step, and how many there are.
    - `excess`: how far the farthest exceeds it; infinite if a value is.
    - `span`: the range of the values and of the quantizer together, as a multiple of that of the quantizer; infinite if
      a value is.
    """

    count: int
    elements: int
    excess: float
    low: float
    high: float
    span: float


def value_range(tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return the least and the greatest number that a fixed-point tensor can represent.

    Each is one number, or an array that broadcasts with a tensor that has several scales.
    """
    quantization = tensor.quantization
    assert quantization is not None
    scale = np.asarray(quantization.spread(quantization.scales, tensor.dims), np.float64)
    offset = quantization.spread(quantization.offsets, tensor.dims)
    low, high = ((limit + offset) * scale for limit in quantization.limits(tensor.dtype.numpy))
    return low, high


def limit_to_range(tensor: Tensor, values: np.ndarray) -> np.ndarray:
    """Limit real numbers to what a fixed-point tensor can represent."""
    return np.clip(values, *value_range(tensor))


def saturation(tensor: Tensor, values: np.ndarray) -> Saturation | None:
    """Count the real numbers that a fixed-point tensor cannot represent; return None if there are none."""
    assert tensor.quantization is not None
    low, high = value_range(tensor)
    half = np.asarray(tensor.quantization.spread(tensor.quantization.scales, tensor.dims)) / 2
    numbers = np.nan_to_num(values.astype(np.float64), posinf=np.inf, neginf=-np.inf)
    beyond = np.maximum(low - numbers, numbers - high)
    count = int(np.count_nonzero(beyond > half))
    if not count:
        return None
    least, most = float(np.min(low)), float(np.max(high))
    span = (max(most, float(numbers.max())) - min(least, float(numbers.min()))) / (most - least)
    return Saturation(count, values.size, float(beyond.max()), least, most, span)


def own_quantizer(target: Tensor, nodes: Sequence[Node]) -> Tensor | None:
    """Return the fixed-point tensor whose steps and range a result of these nodes has, or None.

    It is the result itself, or a tensor inside that is only converted, moved or limited on the way to the result and
    has one scale for all its elements.
    """
    writers = {tensor: node for node in nodes for tensor in node.outputs}
    found: Tensor | None = target
    while found is not None and found in writers:
        if is_fixed_point(found) and found.quantization is not None:
            return found if found is target or found.quantization.axis is None else None
        node = writers[found]
        found = node.inputs[0] if _keeps_numbers(node) else None
    return None


def input_range(graph: Graph, tensor: Tensor) -> tuple[float, float] | None:
    """Return the range that the quantizers of an input of floats have in common; None if no quantizer reads it.

    The input may be moved or converted on the way to a quantizer.
    """
    found: list[tuple[float, float]] = []
    pending, seen = [tensor], {tensor}
    while pending:
        read = pending.pop()
        for node in graph.nodes:
            if not node.inputs or node.inputs[0] is not read or not _keeps_numbers(node):
                continue
            for result in node.outputs:
                if is_fixed_point(result) and result.quantization is not None:
                    low, high = value_range(result)
                    found.append((float(np.max(low)), float(np.min(high))))
                elif result.dtype.is_float and result not in seen:
                    pending.append(result)
                    seen.add(result)
    least, most = max((low for low, _ in found), default=0.0), min((high for _, high in found), default=0.0)
    return (least, most) if least < most else None


def _keeps_numbers(node: Node) -> bool:
    """Return whether a node only converts, moves or limits the numbers of its first operand."""
    traits = OPERATIONS[node.op].traits
    is_moved = traits.moves is not None and traits.moves.of_one
    return node.op in ("Quantize", "Dequantize", "Convert") or is_moved or traits.limits is not None
