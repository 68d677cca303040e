"""Reference computations of reductions and normalizations, with sums in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, absent, wide
from isthmus.graph.ops.reduction import ACROSS_ALL, ACROSS_CHANNEL, LRN_ACROSS_CHANNEL, RMS


def _reduce(values: Values, params: Params, outputs: Outputs, function: Callable[..., Any]) -> np.ndarray:
    """Reduce over axes by a numpy function."""
    return np.asarray(function(wide(values[0]), axis=tuple(params["axes"])))


def _argument(values: Values, params: Params, outputs: Outputs, function: Callable[..., Any]) -> np.ndarray:
    """Find the largest or smallest along an axis by a numpy function."""
    return np.asarray(function(values[0], axis=params["axis"]))


def _softmax(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    return np.exp(_log_softmax(values, params, outputs))


def _log_softmax(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    axis = params["axis"]
    x = wide(values[0]) * params["beta"]
    x = x - x.max(axis, keepdims=True, initial=-np.inf)
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def _top_k(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    x = values[0]
    # The sort is stable, so that the first of equal elements comes first, also for the largest elements.
    if params["largest"]:
        order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    else:
        order = np.argsort(x, axis=-1, kind="stable")
    order = order[..., : params["k"]]
    return [np.take_along_axis(x, order, -1), order]


def _cumulative_sum(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    axis = params["axis"]
    x = wide(values[0])
    x = np.flip(x, axis) if params["reverse"] else x
    total = np.cumsum(x, axis)
    if params["exclusive"]:
        # The sums are shifted, since a subtraction would turn infinities into NaN.
        total = np.roll(total, 1, axis)
        np.moveaxis(total, axis, 0)[:1] = 0
    return np.flip(total, axis) if params["reverse"] else total


def _affine(x: np.ndarray, values: Values, shape: Sequence[int]) -> np.ndarray:
    """Return x times in[1] plus in[2], each if present, reshaped to `shape`."""
    x = x if absent(values, 1) else x * wide(values[1]).reshape(shape)
    return x if absent(values, 2) else x + wide(values[2]).reshape(shape)


def _batchnorm(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    return _affine(wide(values[0]), values, [-1])


def _normalize(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    """Return x with mean 0 and variance 1 over these axes."""
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def _norm_shape(params: Params, rank: int, dims: Sequence[int]) -> list[int]:
    """Return the shape in which coefficients with the dimensions of the normalized axes broadcast to the operand."""
    return [d if i in params["axes"] else 1 for i, d in zip(range(rank), dims, strict=True)]


def _layer_norm(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x = wide(values[0])
    y = _normalize(x, tuple(params["axes"]), params["epsilon"])
    return _affine(y, values, _norm_shape(params, x.ndim, x.shape))


def _rms_norm(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x = wide(values[0])
    y = x / np.sqrt(np.square(x).mean(tuple(params["axes"]), keepdims=True) + params["epsilon"])
    return _affine(y, values, _norm_shape(params, x.ndim, x.shape))


def _instance_norm(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x = wide(values[0])
    spatial = tuple(range(1, x.ndim - 1))
    axes = {ACROSS_CHANNEL: (x.ndim - 1,), ACROSS_ALL: (*spatial, x.ndim - 1)}.get(params["region"], spatial)
    if params["mode"] == RMS:
        y = x / np.sqrt(np.square(x).mean(axes, keepdims=True) + params["epsilon"])
    elif params["normalize_variance"]:
        y = _normalize(x, axes, params["epsilon"])
    else:
        y = x - x.mean(axes, keepdims=True)
    return _affine(y, values, [-1])


def _group_norm(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Normalize each group of channels over the group and all pixels."""
    x = wide(values[0])
    spatial, group = math.prod(x.shape[1:-1]), params["group"]
    grouped = x.reshape(x.shape[0], spatial, group, x.shape[-1] // group)
    return _affine(_normalize(grouped, (1, 3), params["epsilon"]).reshape(x.shape), values, [-1])


def _l2_norm(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x = wide(values[0])
    norm = np.sqrt(np.square(x).sum(tuple(params["axes"]), keepdims=True))
    return x / np.maximum(norm, params["epsilon"])


def _lrn(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Divide by a power of the sum of squares in a window over channels, or over height and width."""
    x = wide(values[0])
    axes = (x.ndim - 1,) if params["region"] == LRN_ACROSS_CHANNEL else (x.ndim - 3, x.ndim - 2)
    total = np.square(x)
    # The sum over a window is the difference of two running sums.
    for axis in axes:
        radius = min(params["radius"], x.shape[axis])
        sums = np.cumsum(np.pad(total, [(radius + 1, radius) if a == axis else (0, 0) for a in range(x.ndim)]), axis)
        size = x.shape[axis]
        total = np.take(sums, np.arange(2 * radius + 1, 2 * radius + 1 + size), axis) - np.take(
            sums, np.arange(size), axis
        )
    return x / np.power(params["bias"] + params["alpha"] * total, params["beta"])


COMPUTATIONS: dict[str, Computation] = {
    "ReduceSum": partial(_reduce, function=np.sum),
    "ReduceProd": partial(_reduce, function=np.prod),
    "ReduceMean": partial(_reduce, function=np.mean),
    "ReduceMax": partial(_reduce, function=np.max),
    "ReduceMin": partial(_reduce, function=np.min),
    "Argmax": partial(_argument, function=np.argmax),
    "Argmin": partial(_argument, function=np.argmin),
    "Softmax": _softmax,
    "LogSoftmax": _log_softmax,
    "TopK": _top_k,
    "CumulativeSum": _cumulative_sum,
    "Batchnorm": _batchnorm,
    "LayerNorm": _layer_norm,
    "RmsNorm": _rms_norm,
    "InstanceNorm": _instance_norm,
    "GroupNorm": _group_norm,
    "L2Norm": _l2_norm,
    "Lrn": _lrn,
}
