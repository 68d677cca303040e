"""Gradients, one operation backwards at a time: how a small change of an operand affects the outputs.

The reference of an operation computes results from operands. This module computes how a weighted sum of the results
changes with one operand. Products, data movement, resizing, means and element-wise operations are differentiated
exactly, to single precision. For all others the magnitude is measured by random changes of the operand and spread
evenly, which is good enough to compare the importance of operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from isthmus.graph.evaluate import evaluate
from isthmus.graph.evaluation.convolution import pads_of, spatial_of, tap_positions, taps_of
from isthmus.graph.evaluation.sampling import axis_taps
from isthmus.graph.ops import OPERATIONS
from isthmus.graph.tensor import Tensor
from isthmus.graph.traits import Picks, ProductKind
from isthmus.prepare.geometry.resize import RESIZES, resize_params

# The fraction of its value by which an element is changed to measure the effect.
_STEP = 2.0**-8
# Random changes whose effects are averaged.
_SAMPLES = 2
# The largest value up to which all integers are exact in single precision.
_MAX_EXACT_INT = 1 << 24


@dataclass(frozen=True)
class Computed:
    """An operation that was computed.

    - `inputs`, `arrays`: The operands and their values; None for an optional operand that is absent.
    - `outputs`, `results`: The results and their values.
    """

    op: str
    inputs: Sequence[Tensor | None]
    arrays: Sequence[np.ndarray | None]
    params: dict[str, Any]
    outputs: Sequence[Tensor]
    results: Sequence[np.ndarray]

    def again(self, index: int, array: np.ndarray) -> list[np.ndarray]:
        """Return the results with another value of one operand."""
        arrays = [array if i == index else value for i, value in enumerate(self.arrays)]
        return evaluate(self.op, self.inputs, arrays, dict(self.params), self.outputs)


def backward(
    done: Computed, index: int, gradients: Sequence[np.ndarray | None], random: np.random.Generator
) -> np.ndarray:
    """Return the gradient of operand `index`: how a weighted sum of the results changes with each of its elements.

    - `gradients`: The gradient of each result; None for a result that does not matter.
    - `random`: The source of random changes, for operations that are not differentiated exactly.
    """
    value = done.arrays[index]
    assert value is not None
    traits, gradient = OPERATIONS[done.op].traits, gradients[0]
    if not value.size or all(g is None for g in gradients):
        return np.zeros(value.shape, np.float32)
    if len(gradients) == 1 and gradient is not None:
        if traits.product is not None and traits.product in _PRODUCTS and index < 2:  # a factor, not the bias
            exact = _PRODUCTS[traits.product](done, index, gradient)
            if exact is not None:
                return exact.reshape(value.shape)
        if traits.element_wise:
            return _element_wise(done, index, value, gradient)
        if done.op in RESIZES and index == 0:
            return _resize(done, value, gradient)
        if done.op in ("ReduceMean", "ReduceSum") and index == 0:
            return _reduction(done, value, gradient)
        if done.op == "PoolAvg2d":
            return _pooling(done, value, gradient)
    # Element numbers are moved as floats, so they must be exact.
    moves = traits.moves
    if moves is not None and moves.picks is Picks.PLACE and value.size < _MAX_EXACT_INT and value.dtype == np.float32:
        return _movement(done, index, value, gradients)
    return _measure(done, index, value, gradients, random)


def _along(shape: Sequence[int], gradient: np.ndarray) -> np.ndarray:
    """Sum a gradient over the axes along which an operand of this shape was broadcast."""
    lead = gradient.ndim - len(shape)
    total = gradient.sum(tuple(range(lead))) if lead else gradient
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and total.shape[axis] != 1)
    return total.sum(repeated, keepdims=True) if repeated else total


def _element_wise(done: Computed, index: int, value: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Multiply the gradient by each element's slope, measured by a change of all elements at once."""
    # The change is relative to an element's value, but not smaller than relative to a typical one (the root mean
    # square).
    size = float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) or 1.0
    change = (_STEP * np.maximum(np.abs(value), size)).astype(np.float32)
    slope = (done.again(index, value + change)[0] - done.results[0]) / change
    return _along(value.shape, gradient * np.nan_to_num(slope, posinf=0, neginf=0))


def _movement(done: Computed, index: int, value: np.ndarray, gradients: Sequence[np.ndarray | None]) -> np.ndarray:
    """Move element numbers instead of values; an element's gradient is the sum over the results that it became."""
    # Numbers begin at 1; 0 stands for padding and for elements of other operands, whose sum is dropped.
    places = np.arange(1, value.size + 1, dtype=np.float32).reshape(value.shape)
    arrays = [
        places if i == index else np.zeros_like(a) if a is not None and a.dtype == np.float32 else a
        for i, a in enumerate(done.arrays)
    ]
    params = {**done.params, "pad_constant_value": 0} if "pad_constant_value" in done.params else dict(done.params)
    total = np.zeros(value.size + 1)
    for moved, gradient in zip(evaluate(done.op, done.inputs, arrays, params, done.outputs), gradients, strict=True):
        if gradient is not None:
            numbers = moved.reshape(-1).astype(np.int64)
            total += np.bincount(numbers, gradient.reshape(-1), value.size + 1)
    return total[1:].reshape(value.shape).astype(np.float32)


def _convolution(done: Computed, index: int, gradient: np.ndarray) -> np.ndarray | None:
    """Return the gradient of a convolution's image: each tap spreads the results' gradients over its input pixels."""
    # None for the other operands, whose gradients are measured.
    x, weights = done.arrays[:2]
    if index or x is None or weights is None:
        return None
    # `spatial` axes, `counts` output pixels along each, input `channels` of a group, `group` groups.
    spatial, counts, channels = x.ndim - 2, done.outputs[0].dims[1:-1], weights.shape[-2]
    pads = pads_of(done.params, spatial)
    group = x.shape[-1] // channels
    # The gradient of the padded image, of which the padding is cut off in the end.
    sizes = [size + int(pad.sum()) for size, pad in zip(x.shape[1:-1], pads, strict=True)]
    total = np.zeros((x.shape[0], *sizes, group, channels), np.float32)
    each = gradient.reshape(*gradient.shape[:-1], group, -1)
    for tap, offset in taps_of(weights.shape[:spatial], spatial_of(done.params, "dilation", spatial)):
        at = tap_positions(offset, counts, spatial_of(done.params, "stride", spatial))
        total[at] += _by_group(each, weights[tap].reshape(channels, group, -1).transpose(1, 2, 0))
    inside = (slice(None), *(slice(int(p[0]), int(p[0]) + n) for p, n in zip(pads, x.shape[1:-1], strict=True)))
    return total[inside]


def _transposed_convolution(done: Computed, index: int, gradient: np.ndarray) -> np.ndarray | None:
    """Return the gradient of a transposed convolution's image: each pixel collects the gradients of the results that it
    was spread over, which is a plain convolution of them.

    None for the other operands, whose gradients are measured.
    """
    x, weights = done.arrays[:2]
    if index or x is None or weights is None:
        return None
    spatial, group, sizes = x.ndim - 2, int(done.params["group"]), x.shape[1:-1]
    kernel, before = weights.shape[:spatial], pads_of(done.params, spatial)[:, 0]
    stride, dilation = (spatial_of(done.params, name, spatial) for name in ("stride", "dilation"))
    # Pixels reach results that padding cuts off: these have a gradient of 0, `before` and behind the others.
    reach = (np.asarray(sizes) - 1) * stride + (np.asarray(kernel) - 1) * dilation + 1
    room = np.maximum(reach, before + gradient.shape[1:-1]).tolist()
    zeros = [(int(b), r - int(b) - n) for b, r, n in zip(before, room, gradient.shape[1:-1], strict=True)]
    full = np.pad(gradient, [(0, 0), *zeros, (0, 0)]).reshape(x.shape[0], *room, group, -1)
    total = np.zeros((*x.shape[:-1], group, x.shape[-1] // group), np.float32)
    for tap, offset in taps_of(kernel, dilation):
        each = weights[tap].reshape(group, -1, weights.shape[-1]).transpose(0, 2, 1)
        total += _by_group(full[tap_positions(offset, sizes, stride)], each)
    return total


def _by_group(rows: np.ndarray, matrices: np.ndarray) -> np.ndarray:
    """Multiply [..., group, a] by [group, a, b], with as few matrix products as possible."""
    if matrices.shape[0] == 1:
        return np.tensordot(rows[..., 0, :], matrices[0], 1)[..., None, :]
    if matrices.shape[1] == matrices.shape[2] == 1:
        return rows * matrices[:, 0]
    return np.einsum("...ga,gab->...gb", rows, matrices, optimize=True)


def _rows(done: Computed, index: int, gradient: np.ndarray) -> np.ndarray | None:
    """Return the gradient of a fully connected operation's data, whose weights are [outputs, inputs]."""
    # None for the other operands and for quantized weights, whose gradients are measured.
    weights = done.arrays[1]
    if index or weights is None or weights.dtype != np.float32:
        return None
    return gradient.reshape(-1, weights.shape[0]) @ weights


def _matrix(done: Computed, index: int, gradient: np.ndarray) -> np.ndarray | None:
    """Return the gradient of either factor of a matrix product; None, to be measured, if one is not a float."""
    left, right = done.arrays[0], done.arrays[1]
    if left is None or right is None or left.dtype != np.float32 or right.dtype != np.float32:
        return None
    flipped = [bool(done.params.get(name)) for name in ("transpose_in0", "transpose_in1")]
    a, b = (m.swapaxes(-1, -2) if flip else m for m, flip in zip((left, right), flipped, strict=True))
    if index == 0:
        factor = _along(a.shape, gradient @ b.swapaxes(-1, -2))
    else:
        factor = _along(b.shape, a.swapaxes(-1, -2) @ gradient)
    return factor.swapaxes(-1, -2) if flipped[index] else factor


# Functions that differentiate products exactly; they return None for what is to be measured.
_PRODUCTS = {
    ProductKind.CONVOLUTION: _convolution,
    ProductKind.DEPTH_WISE: _convolution,
    ProductKind.TRANSPOSED: _transposed_convolution,
    ProductKind.ROWS: _rows,
    ProductKind.MATRIX: _matrix,
}


def _resize(done: Computed, value: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the gradient of a resized image: along each axis, resizing is a matrix, here applied transposed."""
    params = resize_params(done.op, done.params)
    for axis, (size, count) in enumerate(zip(value.shape, done.outputs[0].dims, strict=True)):
        if size != count:
            places, weights = axis_taps(size, count, params)
            matrix = np.zeros((size, count), np.float32)
            np.add.at(matrix, (places, np.arange(count)[:, None]), weights)
            gradient = np.moveaxis(np.tensordot(matrix, gradient, (1, axis)), 0, axis)
    return gradient


def _reduction(done: Computed, value: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Return the gradient of what was summed or averaged: the result's, repeated, and divided for a mean."""
    axes = [int(axis) for axis in np.asarray(done.params["axes"]).reshape(-1)]
    shape = [1 if axis in axes else size for axis, size in enumerate(value.shape)]
    count = prod(value.shape[axis] for axis in axes) if done.op == "ReduceMean" else 1
    return np.broadcast_to(gradient.reshape(shape) / np.float32(count), value.shape)


def _pooling(done: Computed, value: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    """Treat pooling as a convolution of every channel with equal taps; windows at edges count their padding."""
    kernel = [int(n) for n in done.params["filter_size"]]
    channels = value.shape[-1]
    taps = np.full((*kernel, 1, channels), 1 / prod(kernel), np.float32)
    pads, stride = pads_of(done.params, 2).copy(), done.params["stride"]
    for axis, count in enumerate(done.outputs[0].dims[1:-1]):
        # Rounding up the output size lets the last window extend beyond the padding.
        reach = (count - 1) * int(stride[axis]) + kernel[axis]
        pads[axis, 1] = max(pads[axis, 1], reach - value.shape[axis + 1] - pads[axis, 0])
    params = {"pad_amount": pads, "stride": stride}
    pooled = _convolution(Computed(done.op, done.inputs, [value, taps], params, done.outputs, []), 0, gradient)
    assert pooled is not None
    return pooled.reshape(value.shape)


def _measure(
    done: Computed, index: int, value: np.ndarray, gradients: Sequence[np.ndarray | None], random: np.random.Generator
) -> np.ndarray:
    """Return a gradient of the measured magnitude with random signs."""
    # The mean square of the effect of unit noise is the sum of the gradient's squares; all elements get an equal share.
    # An effect is how much the weighted sum of the results changes.
    size = _STEP * (float(np.sqrt(np.mean(np.square(value, dtype=np.float64)))) or 1.0)
    power = 0.0
    for _ in range(_SAMPLES):
        noise = random.standard_normal(value.shape, np.float32)
        results = zip(done.again(index, value + np.float32(size) * noise), done.results, gradients, strict=True)
        effect = sum(float(np.vdot(np.nan_to_num(a - b), g)) for a, b, g in results if g is not None)
        power += (effect / size) ** 2 / _SAMPLES
    signs = random.integers(0, 2, value.shape).astype(np.float32) * 2 - 1
    return signs * np.float32(np.sqrt(power / value.size))
