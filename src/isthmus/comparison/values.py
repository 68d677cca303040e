"""The reference's values of a graph's tensors, as the graph stores them, and how far other values are from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from isthmus.comparison.execution import to_stored
from isthmus.comparison.report import Deviation, deviation
from isthmus.comparison.subject import Arrays, ModelComposition, ModelOperation
from isthmus.comparison.tolerance import is_fixed_point, step_size
from isthmus.graph import Graph, Tensor

CONVERSIONS = frozenset(("QuantizeLinear", "DequantizeLinear", "QUANTIZE", "DEQUANTIZE"))
"""Operators whose result stands for the same numbers as their first input."""


def holders(composition: ModelComposition, operations: Iterable[ModelOperation]) -> dict[str, list[str]]:
    """Return, by the graph's tensors, the model's tensors that each holds, in the order in which they are computed."""
    inputs = (tensor.name for tensor in composition.graph.inputs)
    held: dict[str, list[str]] = {}
    for name in dict.fromkeys((*inputs, *(name for operation in operations for name in operation.outputs))):
        if name in composition.stored:
            held.setdefault(composition.stored[name].tensor, []).append(name)
    return held


def with_conversions(values: Arrays, operations: Sequence[ModelOperation]) -> tuple[Arrays, dict[str, str]]:
    """Add values of quantized and dequantized tensors that the reference lacks: those of the tensors they stand for.

    A tensor stands for the one that it is converted from. Tools that quantize a model keep the names of its outputs and
    rename what is converted to them, so a tensor also stands for the one that it is converted to. The second result has
    the name of the tensor that each of the added ones stands for.
    """
    origins: dict[str, str] = {}
    conversions = [operation for operation in operations if operation.kind in CONVERSIONS]
    for operation in conversions:
        for name in operation.outputs:
            if name not in values and (origin := origins.get(operation.inputs[0], operation.inputs[0])) in values:
                origins[name] = origin
    for operation in reversed(conversions):
        name, result = operation.inputs[0], operation.outputs[0]
        if name not in values and name not in origins and (origin := origins.get(result, result)) in values:
            origins[name] = origin
    return {**values, **{name: values[origin] for name, origin in origins.items()}}, origins


def numbers(tensor: Tensor, stored: np.ndarray) -> np.ndarray:
    """Return stored floats as numbers; elements of other types as they are."""
    return tensor.dtype.decode(stored) if tensor.dtype.is_float else stored


def reals(tensor: Tensor, stored: np.ndarray) -> np.ndarray:
    """Return stored elements as real numbers, those of 8 or 16 bits by their quantization."""
    if is_fixed_point(tensor) and tensor.quantization is not None:
        return tensor.quantization.dequantize(stored)
    return numbers(tensor, stored)


def distance(tensor: Tensor, one: np.ndarray, other: np.ndarray) -> Deviation:
    """Measure how far two values of a tensor are apart, given as stored elements."""
    return deviation(numbers(tensor, one), numbers(tensor, other), tensor)


def rounded_deviation(tensor: Tensor, own: np.ndarray, expected: np.ndarray) -> Deviation:
    """Measure how far stored elements of a tensor are from real numbers; in steps, too, if it is fixed point."""
    found = deviation(reals(tensor, own), expected)
    return replace(found, steps=found.max_abs / step_size(tensor)) if is_fixed_point(tensor) else found


class ReferenceValues:
    """The reference's values of a graph's tensors.

    - `composition`: the graph, and where it has the model's tensors.
    - `held`: the model's tensors that each of the graph's tensors holds.
    """

    def __init__(self, composition: ModelComposition, held: Mapping[str, Sequence[str]], arrays: Arrays) -> None:
        self.arrays = arrays
        self._graph: Graph = composition.graph
        self._places = composition.stored
        self._held = held
        self._stored: dict[str, np.ndarray | None] = {}

    def as_stored(self, tensor: str) -> np.ndarray | None:
        """Return the reference's value of a graph's tensor as stored elements; None if it has none of that shape."""
        if tensor not in self._stored:
            described, array = self._graph.tensors[tensor], self.in_stored_order(tensor)
            usable = array is not None and array.shape == described.dims
            self._stored[tensor] = to_stored(array, described) if usable and array is not None else None
        return self._stored[tensor]

    def is_rounded(self, tensor: Tensor) -> bool:
        """Return whether the reference has floats where the graph has fixed point, so that its values are rounded."""
        array = self.arrays.get(self._held[tensor.name][0]) if tensor.name in self._held else None
        return is_fixed_point(tensor) and array is not None and array.dtype.kind == "f"

    def deviation(self, tensor: Tensor, own: np.ndarray) -> Deviation:
        """Measure how far a value of a graph's tensor is from the reference, which is not rounded for this."""
        if not self.is_rounded(tensor):
            stored = self.as_stored(tensor.name)
            assert stored is not None
            return distance(tensor, own, stored)
        array = self.in_stored_order(tensor.name)
        assert array is not None
        return rounded_deviation(tensor, own, array)

    def in_stored_order(self, tensor: str) -> np.ndarray | None:
        """Return the reference's array for a graph's tensor, in the stored axis order; None if it has none."""
        place = self._places[self._held[tensor][0]]
        array = self.arrays.get(self._held[tensor][0])
        if array is None or array.ndim != len(place.perm) or array.dtype.kind not in "fiub":
            return None
        return place.to_stored(array)
