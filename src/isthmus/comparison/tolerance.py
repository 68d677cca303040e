"""Bounds for the difference of two correct computations of one operation, from types, sums and conditioning.

The bound for the elements of a tensor, in real numbers, is::

    roundings * (sensitivity + unit * largest) + steps * scale + activation + rounding

- *unit* is the unit roundoff of the coarsest float type that the operation reads or writes: 2^-24 for float32, 2^-11
  for float16, 2^-8 for bfloat16. It is 2^-24 for fixed point, which is multiplied and rescaled in float32 or better.
- *largest* is the largest magnitude of the reference, at least 1 where a function with values up to 1 is computed
  (Sigmoid, Softmax …), since runtimes approximate these with an absolute error.
- *sensitivity* is measured: the largest change of the result when every float input changes by one unit in the last
  place, up or down at random. Rounding inside the operation has effects of that size, so an operation that amplifies
  errors (a difference of nearly equal numbers, say) gets the tolerance that its data need.
- *roundings* adds up over the operations in a fused group: 16 for each that computes, which is the most that Khronos's
  table of accuracies allows a function of single precision; and 4 sqrt(n) for a sum of n terms, which is four standard
  deviations of n roundings. Operations that only move, select or limit elements add nothing: their results must be
  the same to the last bit.
- *steps* is 1 for each operation that rounds to fixed point, since two roundings of nearly the same number may choose
  neighbouring steps; *scale* is one step of the result, or of the quantizer inside the group that it comes from.
- *rounding* is for fixed-point tensors whose reference has floats: the change of the result when every fixed-point
  input or constant changes by one step, half a step of the result, and for a sum of n products with fixed-point weights
  four standard deviations of their rounding, 4 sqrt(n / 12) steps of the weights, times the largest input. For a hybrid
  operation whose reference has floats it is the same for the rounding of its weights and activations.
- *activation* is for float activations with fixed-point weights, which are rounded to 255 steps while the operation
  runs: one of these steps times the largest weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.comparison.subject import HybridWeights
from isthmus.graph import DataType, Node, Tensor
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.traits import ProductKind

Change = Callable[[np.ndarray, Tensor, np.random.Generator], np.ndarray]
"""Changes the stored elements of a tensor a little, at random."""
FUNCTION_ROUNDINGS = 16.0
"""The largest error that Khronos's accuracy table allows a function of single precision, in units in the last place."""
SUM_DEVIATIONS = 4.0
"""The number of standard deviations of the rounding error of a sum."""
ACTIVATION_STEPS = 255
"""The steps to which float activations are rounded for fixed-point weights."""
UP_TO_ONE = frozenset(("Sigmoid", "Tanh", "Erf", "Softmax", "LogSoftmax", "HardSigmoid", "Gelu", "Silu", "Lstm", "Gru"))
"""Functions that are, or are computed from, approximations of functions with values up to 1."""
SINGLE = DataType.FLOAT_32.roundoff
"""The unit roundoff of FLOAT_32."""


@dataclass(frozen=True)
class Bound:
    """The parts of a tolerance that do not depend on data, for a group of nodes.

    - `roundings`, `unit`, `steps`: as in the description of this module.
    - `least`: the magnitude that counts as the largest if the reference's is smaller.
    """

    roundings: float
    unit: float
    steps: int
    least: float = 0.0

    def tolerance(self, scale: float, largest: float, sensitivity: float) -> float:
        """Return the largest difference of real numbers that is allowed, without *activation* and *rounding*."""
        return self.roundings * (sensitivity + self.unit * max(largest, self.least)) + self.steps * scale


def is_fixed_point(tensor: Tensor) -> bool:
    """Return whether a tensor has fixed-point elements of 8 or 16 bits; those of 32 bits are sums."""
    return tensor.dtype.is_fixed_point and tensor.itemsize < 4


def step_size(tensor: Tensor) -> float:
    """Return one step of a fixed-point tensor, as a real number; 0 for other tensors."""
    return max(tensor.quantization.scales) if is_fixed_point(tensor) and tensor.quantization is not None else 0.0


def bound(nodes: Sequence[Node], coarsest: float = 0.0) -> Bound:
    """Return the bound of a group of nodes.

    - `coarsest`: the unit roundoff of the float type that one of the sides computes in, if that is not its tensors'
      type.
    """
    tensors = [t for node in nodes for t in (*node.inputs, *node.outputs) if t is not None]
    unit = max([SINGLE, coarsest, *(t.dtype.roundoff for t in tensors if t.dtype.is_half)])
    least = float(any(node.op in UP_TO_ONE for node in nodes))
    return Bound(sum(map(roundings, nodes)), unit, sum(map(_rounds_to_fixed_point, nodes)), least)


def roundings(node: Node) -> float:
    """Return by how many units in the last place one node may be off."""
    if _is_exact(node):
        return 0.0
    terms = _terms(node)
    return FUNCTION_ROUNDINGS + (SUM_DEVIATIONS * math.sqrt(terms) if terms > 1 else 0.0)


def _is_exact(node: Node) -> bool:
    """Return whether a node's results are elements of its operands, or plain integers and truth values."""
    traits = OPERATIONS[node.op].traits
    if traits.limits is not None or traits.orders or (traits.moves is not None and not node.params.get("reduction")):
        return True
    return not any(t.dtype.is_float or t.dtype.is_fixed_point for t in node.outputs)


def _rounds_to_fixed_point(node: Node) -> bool:
    """Return whether a node computes numbers and rounds them to fixed point."""
    if not any(map(is_fixed_point, node.outputs)):
        return False
    traits = OPERATIONS[node.op].traits
    inputs = [t for t in node.inputs if t is not None and t.dtype.is_fixed_point]
    encodings = {(t.dtype, t.quantization) for t in (*inputs, *node.outputs)}
    return not ((traits.moves is not None or traits.limits is not None) and len(encodings) == 1)


def _terms(node: Node) -> int:
    """Return the most terms that a node may add up for one element of its result."""
    traits = OPERATIONS[node.op].traits
    x, weights = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    if x is None or traits.element_wise:
        return 1
    if traits.product is not None and weights is not None:
        if traits.product in (ProductKind.MATRIX, ProductKind.INTEGERS):
            return max(x.dims[-2:], default=1)
        return weights.dims[-1] if traits.product is ProductKind.ROWS else math.prod(weights.dims[:-1])
    for name in ("axes", "axis"):
        if node.params.get(name) is not None:
            axes = np.atleast_1d(node.params[name]).tolist()
            return math.prod(x.dims[axis] for axis in axes if -x.rank <= axis < x.rank)
    if node.params.get("filter_size") is not None:
        return int(np.prod(node.params["filter_size"]))
    return x.elements


def activation_step(nodes: Iterable[Node], values: Mapping[str, np.ndarray]) -> float:
    """Return what one step of an activation changes at most, where float activations meet fixed-point weights.

    `values` are arrays of the tensors that the nodes read, by name; activations that are not there count as 0.
    """
    step = 0.0
    for node in nodes:
        if OPERATIONS[node.op].traits.product is None or len(node.inputs) < 2:
            continue
        x, weights = node.inputs[0], node.inputs[1]
        if x is None or weights is None or not x.dtype.is_float or not is_fixed_point(weights) or weights.data is None:
            continue
        assert weights.quantization is not None
        reach = np.abs(values[x.name]).max(initial=0) if x.name in values else 0.0
        largest = np.abs(weights.quantization.dequantize(weights.data)).max(initial=0)
        step += 2 * float(reach) / ACTIVATION_STEPS * float(largest)
    return step


def hybrid_step(weights: HybridWeights, reach: float) -> float:
    """Return what one step of an activation changes at most in a hybrid operation, for activations up to `reach`."""
    return 2 * reach / ACTIVATION_STEPS * weights.largest


def hybrid_rounding(weights: HybridWeights, reach: float) -> float:
    """Return how far rounding weights and activations up to `reach` may change a hybrid operation's result."""
    one_term = weights.step * reach + hybrid_step(weights, reach)
    return SUM_DEVIATIONS * math.sqrt(weights.terms / 12) * one_term


def weight_rounding(nodes: Iterable[Node], reach: float) -> float:
    """Return how far rounding weights to fixed point may change a group's products, for inputs up to `reach`."""
    sources = {node.outputs[0]: node.inputs[0] for node in nodes if node.op == "Dequantize"}
    total = 0.0
    for node in nodes:
        if OPERATIONS[node.op].traits.product is not None and len(node.inputs) > 1 and node.inputs[1] is not None:
            weights = sources.get(node.inputs[1], node.inputs[1])
            if weights is not None and weights.is_static and is_fixed_point(weights):
                total += SUM_DEVIATIONS * math.sqrt(_terms(node) / 12) * step_size(weights) * reach
    return total


def nudge_steps(array: np.ndarray, tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    """Return stored fixed-point elements with each changed by one step, up or down at random; others as they are."""
    if not is_fixed_point(tensor) or tensor.quantization is None:
        return array
    changed = array.astype(np.int32) + generator.integers(0, 2, array.shape) * 2 - 1
    return np.clip(changed, *tensor.quantization.limits(array.dtype)).astype(array.dtype)


def nudge_floats(array: np.ndarray, tensor: Tensor, generator: np.random.Generator) -> np.ndarray:
    """Return stored floats with every element changed by one unit in the last place, up or down at random.

    Elements of other types, zeros, infinities and NaN stay as they are.
    """
    if not tensor.dtype.is_float:
        return array
    bits = array.view(f"u{array.dtype.itemsize}").copy()
    numbers = tensor.dtype.decode(array)
    moves = np.isfinite(numbers) & (numbers != 0)
    # The bits of floats of one sign are ordered as the floats are.
    bits[moves] += generator.integers(0, 2, array.shape, np.int8)[moves].astype(bits.dtype) * 2 - bits.dtype.type(1)
    changed = bits.view(array.dtype)
    return np.where(np.isfinite(tensor.dtype.decode(changed)), changed, array)
