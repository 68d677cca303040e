"""The reference's values of a graph's tensors, as the graph stores them, and how far other values are from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from isthmus.comparison.execution import to_stored
from isthmus.comparison.report import Deviation, deviation
from isthmus.comparison.subject import Arrays, ModelComposition, ModelOperation
from isthmus.comparison.tolerance import fixed
from isthmus.graph import Graph, Tensor

CONVERSIONS = frozenset(("QuantizeLinear", "DequantizeLinear", "QUANTIZE", "DEQUANTIZE"))
"""Operators whose result stands for the same numbers as their first input."""


def holders(composition: ModelComposition, operations: Iterable[ModelOperation]) -> dict[str, list[str]]:
    """Return the model's tensors by the graph's tensor that holds them; the first to be computed comes first."""
    inputs = (tensor.name for tensor in composition.graph.inputs)
    held: dict[str, list[str]] = {}
    for name in dict.fromkeys((*inputs, *(name for operation in operations for name in operation.outputs))):
        if name in composition.stored:
            held.setdefault(composition.stored[name].tensor, []).append(name)
    return held


def with_conversions(values: Arrays, operations: Iterable[ModelOperation]) -> dict[str, np.ndarray]:
    """Add values of quantized and dequantized tensors that the reference lacks: those of the tensors they stand for."""
    found = dict(values)
    for operation in operations:
        if operation.kind in CONVERSIONS and operation.inputs[0] in found:
            for name in operation.outputs:
                found.setdefault(name, found[operation.inputs[0]])
    return found


def numbers(tensor: Tensor, stored: np.ndarray) -> np.ndarray:
    """Return stored floats as numbers; elements of other types as they are."""
    return tensor.dtype.decode(stored) if tensor.dtype.is_float else stored


def reals(tensor: Tensor, stored: np.ndarray) -> np.ndarray:
    """Return stored elements as real numbers, those of 8 or 16 bits by their quantization."""
    if fixed(tensor) and tensor.quantization is not None:
        return tensor.quantization.dequantize(stored)
    return numbers(tensor, stored)


def distance(tensor: Tensor, one: np.ndarray, other: np.ndarray) -> Deviation:
    """Measure how far two values of a tensor are apart, given as stored elements."""
    return deviation(numbers(tensor, one), numbers(tensor, other), tensor)


class ReferenceValues:
    """The reference's values of a graph's tensors.

    Parameters
    ----------
    composition
        The graph, and where it has the model's tensors.
    held
        The model's tensors that each of the graph's tensors holds.
    arrays
        The reference's arrays by the model's names.
    """

    def __init__(self, composition: ModelComposition, held: Mapping[str, Sequence[str]], arrays: Arrays) -> None:
        self.arrays = arrays
        self._graph: Graph = composition.graph
        self._places = composition.stored
        self._held = held
        self._stored: dict[str, np.ndarray | None] = {}

    def stored(self, tensor: str) -> np.ndarray | None:
        """Return the reference's value of a graph's tensor as stored elements; None if it has none of that shape."""
        if tensor not in self._stored:
            described, array = self._graph.tensors[tensor], self._arranged(tensor)
            usable = array is not None and array.shape == described.dims
            self._stored[tensor] = to_stored(array, described) if usable and array is not None else None
        return self._stored[tensor]

    def is_rounded(self, tensor: Tensor) -> bool:
        """Return whether the reference has floats where the graph has fixed point, so that its values are rounded."""
        array = self.arrays.get(self._held[tensor.name][0]) if tensor.name in self._held else None
        return fixed(tensor) and array is not None and array.dtype.kind == "f"

    def deviation(self, tensor: Tensor, own: np.ndarray) -> Deviation:
        """Measure how far a value of a graph's tensor is from the reference, which is not rounded for this."""
        if not self.is_rounded(tensor):
            stored = self.stored(tensor.name)
            assert stored is not None
            return distance(tensor, own, stored)
        array = self._arranged(tensor.name)
        assert array is not None
        assert tensor.quantization is not None
        found = deviation(tensor.quantization.dequantize(own), array)
        steps = found.max_abs / max(tensor.quantization.scales)
        return Deviation(found.max_abs, found.rms, found.relative, steps)

    def _arranged(self, tensor: str) -> np.ndarray | None:
        """Return the reference's array for a graph's tensor, in the stored axis order; None if it has none."""
        place = self._places[self._held[tensor][0]]
        array = self.arrays.get(self._held[tensor][0])
        if array is None or array.ndim != len(place.perm) or array.dtype.kind not in "fiub":
            return None
        return place.to_stored(array)
