"""A trial of a graph in numpy on generated inputs: its outputs in fp32, and their errors with fp16.

The inputs of a graph are not known in advance. Three are generated: noise, and two that resemble pictures, with soft
colours and sharp edges. They are always the same, so that a graph is always prepared in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from isthmus.backends.gpu.mixed_precision.backward import Computed, backward
from isthmus.backends.gpu.mixed_precision.fp16 import round_to_fp16
from isthmus.graph import DataType, Tensor
from isthmus.graph.evaluate import evaluate
from isthmus.graph.evaluation.convolution import PRODUCTS, single
from isthmus.graph.ops import OPERATIONS
from isthmus.prepare.schedule import Step
from isthmus.prepare.work import Work

Values = dict[Tensor, np.ndarray]
# The smallest number that errors of an output are divided by, even if its largest value is smaller.
_TINY = 1e-6


@dataclass
class PrecisionTrial:
    """One generated input, and the values computed from it.

    - `steps`: All steps in order.
    - `ends`: Tensors that the client or the next execution sees.
    - `values`: The values of all tensors, computed with floats.
    - `seed`: The seed of the random numbers that `losses` uses.
    """

    steps: list[Step]
    ends: list[Tensor]
    values: Values
    seed: int
    # The largest magnitude of each float end, which errors are fractions of.
    _scales: dict[Tensor, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # Ends of integers, and those with an infinite value, have no error that could be compared.
        for tensor in self.ends:
            largest = np.abs(self.values[tensor].astype(np.float64)).max(initial=0)
            if tensor.dtype.is_float and np.isfinite(largest):
                self._scales[tensor] = max(float(largest), _TINY)

    def errors(self, fp16: Collection[Tensor]) -> Values:
        """Compute the error of every element of the float ends with some tensors as fp16.

        An error is a fraction of the largest value of the same end.
        """
        computed = {tensor for step in self.steps for tensor in step.outputs}
        sources = {tensor: value for tensor, value in self.values.items() if tensor not in computed}
        results = _run(self.steps, sources, set(self._scales), fp16)
        return {
            tensor: np.nan_to_num((results[tensor].astype(np.float64) - self.values[tensor]) / scale, nan=np.inf)
            for tensor, scale in self._scales.items()
        }

    def losses(self, off: Values, tensors: Collection[Tensor]) -> dict[Tensor, float]:
        """Estimate what rounding each tensor to fp16 adds to squared errors.

        Gradients of a weighted sum of all end elements are computed backwards through the steps. The weights are the
        elements' errors with random signs, so that elements that are off count most, and errors do not cancel.

        - `off`: The errors of the ends with all tensors as fp16, from `errors`.
        - `tensors`: The tensors to estimate.
        """
        random = np.random.default_rng(self.seed)
        gradients: Values = {}
        for tensor, error in off.items():
            signs = random.integers(0, 2, error.shape) * 2 - 1
            gradients[tensor] = (signs * np.minimum(np.abs(error), 1) / self._scales[tensor]).astype(np.float32)
        losses = dict.fromkeys(tensors, 0.0)
        for step in reversed(self.steps):
            results = [self.values[tensor] for tensor in step.outputs]
            arriving = [gradients.pop(tensor, None) for tensor in step.outputs]
            for tensor, result, gradient in zip(step.outputs, results, arriving, strict=True):
                if gradient is not None and tensor in losses:
                    losses[tensor] += _loss(result, gradient)
            if step.clamp is not None and arriving[0] is not None:
                # Where a result is limited, a small change of an operand changes nothing.
                low, high = step.clamp
                arriving[0] = np.where((results[0] > low) & (results[0] < high), arriving[0], np.float32(0))
            if all(gradient is None for gradient in arriving):
                continue
            arrays = [None if t is None else self.values[t] for t in step.inputs]
            done = Computed(step.op, step.inputs, arrays, step.params, step.outputs, results)
            for index, source in enumerate(step.inputs):
                if source is None or source.dtype is not DataType.FLOAT_32:
                    continue
                if source.is_static:
                    if source in losses:
                        losses[source] += _weights_loss(done, index, arriving)
                else:
                    gradient = backward(done, index, arriving, random).astype(np.float32)
                    gradients[source] = gradients[source] + gradient if source in gradients else gradient
        return losses


def trials(work: Work) -> list[PrecisionTrial]:
    """Try a graph with each of the generated inputs."""
    steps = work.ordered()
    ends = [*work.outputs, *(value for value in work.updates.values() if not value.is_static)]
    tried = []
    for seed, generate in enumerate(_INPUTS):
        random = np.random.default_rng(seed)
        sources = {}
        for tensor in work.inputs:
            # Integers are 0 or 1: small enough for an index, and as good as any for a mask.
            is_real = tensor.elements and tensor.dtype.is_float
            value = generate(tensor.dims, random) if is_real else random.integers(0, 2, tensor.dims)
            sources[tensor] = np.asarray(value, tensor.dtype.numpy)
        for state in work.states:
            sources[state] = state.initial()
        sources.update({t: t.data for s in steps for t in s.inputs if t is not None and t.data is not None})
        tried.append(PrecisionTrial(steps, ends, _run(steps, sources, None, ()), seed))
    return tried


def _picture(dims: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return a picture from 0 to 1: soft colours, and in places black and white strokes a few elements wide."""
    colours, places, strokes = (_field(dims, widest, random) for widest in (None, None, 4))
    # Places and strokes are the same for all channels: a short axis is taken for the channels.
    colourless = tuple(axis for axis, size in enumerate(dims) if 1 < size <= 4)
    places, strokes = (np.broadcast_to(f.mean(colourless, keepdims=True), dims) for f in (places, strokes))
    return (colours + ((places > np.median(places)) & (strokes > np.median(strokes)))) / 2


# Functions that generate inputs: noise, a picture from 0 to 1, and one from -1 to 1.
_INPUTS: tuple[Callable[[tuple[int, ...], np.random.Generator], np.ndarray], ...] = (
    lambda dims, random: random.uniform(-1, 1, dims),
    _picture,
    lambda dims, random: _picture(dims, random) * 2 - 1,
)


def _field(dims: tuple[int, ...], widest: int | None, random: np.random.Generator) -> np.ndarray:
    """Return random values from 0 to 1 whose neighbours along every long axis are nearly equal."""
    # `widest` limits how many neighbours are averaged; None for no limit but an eighth of the axis.
    value = np.asarray(random.standard_normal(dims))
    for axis, size in enumerate(dims):
        if size > 8:
            value = _blur(value, axis, min(size // 8, widest or size))
    low, high = value.min(initial=0), value.max(initial=0)
    return (value - low) / (high - low or 1.0)


def _blur(value: np.ndarray, axis: int, width: int) -> np.ndarray:
    """Return the sums of `width` neighbours along an axis, which wraps around at its end."""
    size = value.shape[axis]
    sums = np.cumsum(np.concatenate([value, np.take(value, range(width), axis)], axis), axis)
    return np.take(sums, range(width, width + size), axis) - np.take(sums, range(size), axis)


def _run(steps: list[Step], sources: Values, needed: Collection[Tensor] | None, fp16: Collection[Tensor]) -> Values:
    """Compute a graph with some tensors rounded to fp16."""
    # - `needed`: The tensors whose values are returned, besides `sources`; the others are dropped after their last use.
    #   None for all tensors.
    values = {tensor: round_to_fp16(value) if tensor in fp16 else value for tensor, value in sources.items()}
    last = {tensor: step for step in steps for tensor in step.inputs if tensor is not None}
    for step in steps:
        arrays = [None if tensor is None else values[tensor] for tensor in step.inputs]
        for tensor, result in zip(step.outputs, _compute(step, arrays), strict=True):
            if step.clamp is not None and tensor.dtype.is_float:
                result = np.clip(result, *step.clamp).astype(result.dtype)
            values[tensor] = round_to_fp16(result) if tensor in fp16 else result
        if needed is not None:
            for tensor in {t for t in (*step.inputs, *step.outputs) if t is not None}:
                if last.get(tensor) in (step, None) and tensor not in needed and tensor not in sources:
                    del values[tensor]
    return values


def _compute(step: Step, arrays: list[np.ndarray | None]) -> list[np.ndarray]:
    """Return the results of a step without its clamp; products are summed in single precision, which is faster."""
    if step.op in PRODUCTS and all(array is None or array.dtype == np.float32 for array in arrays):
        params = OPERATIONS[step.op].complete(step.name, step.params)
        return [single(step.op, arrays, params, step.outputs)]
    return evaluate(step.op, step.inputs, arrays, dict(step.params), step.outputs)


def _loss(value: np.ndarray, gradient: np.ndarray) -> float:
    """Return the loss from rounding a tensor: the sum of its elements' squared effects."""
    # Each element has a random error of up to half of its last digit, whose mean square is a twelfth of the digit's
    # square. The digit is that of fp16, which has 11 bits, and no smaller digits below 2^-14.
    digit = np.ldexp(np.float32(1), np.frexp(np.maximum(np.abs(value), np.float32(2.0**-14)))[1] - 11)
    return float(np.square(gradient * digit, dtype=np.float64).sum()) / 12


def _weights_loss(done: Computed, index: int, gradients: list[np.ndarray | None]) -> float:
    """Return the loss from rounding a constant, measured by computing the operation with it."""
    # Its rounding changes all results together, so the results' errors may cancel or add up: besides the sum of their
    # squares, the square of their sum counts.
    value = done.arrays[index]
    assert value is not None
    total = 0.0
    for rounded, exact, gradient in zip(done.again(index, round_to_fp16(value)), done.results, gradients, strict=True):
        if gradient is not None:
            shares = np.nan_to_num(rounded - exact).astype(np.float64) * gradient
            total += float(np.square(shares).sum() + shares.sum() ** 2)
    return total
