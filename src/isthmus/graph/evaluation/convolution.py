"""Reference computations of convolutions, matrix products and pooling, one filter tap at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, absent, wide

Summed = Callable[[np.ndarray], np.ndarray]
"""A conversion of operands to the type of sums: float64 or int64, unless the caller prefers speed."""


def tap_positions(tap: Sequence[int], counts: Sequence[int], stride: np.ndarray) -> tuple[slice, ...]:
    """Return the positions that one filter tap reads, over all windows.

    - `tap`: the tap's offset in the input along each spatial axis.
    - `counts`: the number of windows along each spatial axis.
    - `stride`: the step between windows along each spatial axis.
    """
    slices = (slice(t, t + (c - 1) * int(s) + 1, int(s)) for t, c, s in zip(tap, counts, stride, strict=True))
    return (slice(None), *slices)


def taps_of(kernel: Sequence[int], dilation: np.ndarray) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return each tap's index in the filter and its offset in the input."""
    return [
        (index, tuple(i * int(d) for i, d in zip(index, dilation, strict=True)))
        for index in product(*map(range, kernel))
    ]


def spatial_of(params: Params, name: str, rank: int) -> np.ndarray:
    """Return a parameter with one number per spatial axis, 1 if it is absent; `rank` counts the spatial axes."""
    return np.broadcast_to(np.asarray(params.get(name, 1), np.int64), (rank,))


def pads_of(params: Params, rank: int) -> np.ndarray:
    """Return the padding before and after each of `rank` spatial axes."""
    return np.asarray(params["pad_amount"], np.int64).reshape(rank, 2)


def convolution(values: Values, params: Params, outputs: Outputs, summed: Summed = wide) -> np.ndarray:
    """Compute Conv and DepthWiseConv without bias; `summed` converts operands to the type of sums."""
    x, weights = summed(values[0]), summed(values[1])
    spatial = x.ndim - 2
    # A depth-wise convolution has as many groups as channels.
    group = params["group"] if "group" in params else x.shape[-1] // weights.shape[-2]
    counts = outputs[0].dims[1:-1]
    x = np.pad(x, [(0, 0), *pads_of(params, spatial).tolist(), (0, 0)])
    x = x.reshape(*x.shape[:-1], group, weights.shape[-2])
    out = np.zeros((x.shape[0], *counts, group, weights.shape[-1] // group), x.dtype)
    for index, offset in taps_of(weights.shape[:spatial], spatial_of(params, "dilation", spatial)):
        window = x[tap_positions(offset, counts, spatial_of(params, "stride", spatial))]
        tap = weights[index].reshape(weights.shape[-2], *out.shape[-2:])
        if group == 1:
            out[..., 0, :] += np.tensordot(window[..., 0, :], tap[:, 0], 1)
        elif weights.shape[-2] == 1:
            out += window * tap[0]
        else:
            out += np.einsum("...gi,igo->...go", window, tap)
    return out.reshape(outputs[0].dims)


def transpose_convolution(values: Values, params: Params, outputs: Outputs, summed: Summed = wide) -> np.ndarray:
    """Compute TransposeConv without bias; `summed` converts operands to the type of sums."""
    x, weights = summed(values[0]), summed(values[1])
    spatial, group = x.ndim - 2, params["group"]
    stride, dilation = spatial_of(params, "stride", spatial), spatial_of(params, "dilation", spatial)
    kernel, sizes = weights.shape[:spatial], x.shape[1:-1]
    before = pads_of(params, spatial)[:, 0]
    # The filters are scattered over an unpadded result, which is then cropped to the output.
    reach = (np.asarray(sizes) - 1) * stride + (np.asarray(kernel) - 1) * dilation + 1
    full_sizes = np.maximum(reach, before + outputs[0].dims[1:-1]).tolist()
    full = np.zeros((x.shape[0], *full_sizes, group, weights.shape[-1]), x.dtype)
    x = x.reshape(*x.shape[:-1], group, x.shape[-1] // group)
    for index, offset in taps_of(kernel, dilation):
        tap = weights[index].reshape(*x.shape[-2:], weights.shape[-1])
        full[tap_positions(offset, sizes, stride)] += np.einsum("...gi,gio->...go", x, tap)
    spatial_crop = [slice(int(b), int(b) + o) for b, o in zip(before, outputs[0].dims[1:-1], strict=True)]
    crop = (slice(None), *spatial_crop)
    return full[crop].reshape(outputs[0].dims)


def fully_connected(values: Values, params: Params, outputs: Outputs, summed: Summed = wide) -> np.ndarray:
    """Compute FullyConnected without bias; `summed` converts operands to the type of sums."""
    weights = summed(values[1])
    return (summed(values[0]).reshape(-1, weights.shape[1]) @ weights.T).reshape(outputs[0].dims)


def matmul(values: Values, params: Params, outputs: Outputs, summed: Summed = wide) -> np.ndarray:
    """Compute MatMul without bias; `summed` converts operands to the type of sums."""
    left, right = summed(values[0]), summed(values[1])
    left = left.swapaxes(-1, -2) if params.get("transpose_in0") else left
    right = right.swapaxes(-1, -2) if params.get("transpose_in1") else right
    return left @ right


def _matmul_integer(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    left, right = wide(values[0]), wide(values[1])
    if not absent(values, 2):
        left = left - wide(values[2]).reshape(-1, 1)
    if not absent(values, 3):
        right = right - wide(values[3]).reshape(-1)
    return left @ right


def single(op: str, values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Compute a float product with its bias in single precision.

    This takes half the time and is precise enough for trials of mixed precision.
    """
    result: np.ndarray = PRODUCTS[op](values, params, outputs, _as_they_are)
    return result if absent(values, 2) else result + values[2]


def _as_they_are(values: np.ndarray) -> np.ndarray:
    """Return operands unconverted: the `summed` of a product that is added up in their own type."""
    return values


def _with_bias(product_of: Computation) -> Computation:
    """Return a computation that adds bias in[2], if present, to a product."""

    def compute(values: Values, params: Params, outputs: Outputs) -> Any:
        out = product_of(values, params, outputs)
        return out if absent(values, 2) else out + wide(values[2])

    return compute


def _windows(x: np.ndarray, fill: Any, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Return for each tap of a pooling filter the elements that the windows read; `fill` outside the input."""
    kernel, stride = params["filter_size"], params["stride"]
    counts = outputs[0].dims[1:-1]
    pads = pads_of(params, x.ndim - 2).copy()
    # With rounding up, the last window may extend beyond the padding.
    for axis, count in enumerate(counts):
        reach = (count - 1) * int(stride[axis]) + int(kernel[axis])
        pads[axis, 1] = max(pads[axis, 1], reach - x.shape[axis + 1] - pads[axis, 0])
    x = np.pad(x, [(0, 0), *pads.tolist(), (0, 0)], constant_values=fill)
    ones = np.ones(len(counts), np.int64)
    return [x[tap_positions(offset, counts, stride)] for _, offset in taps_of(kernel.tolist(), ones)]


def _pool_max(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    x = values[0]
    lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    out = np.full(outputs[0].dims, lowest, x.dtype)
    for window in _windows(x, lowest, params, outputs):
        out = np.maximum(out, window)
    return out


def _pool_sum(x: np.ndarray, params: Params, outputs: Outputs, edges: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum over each window and its number of elements; padding counts if `edges`."""
    # The sum over ones is the number of elements. Padding that counts is made of ones too.
    inside = np.ones((1, *x.shape[1:-1], 1))
    if edges:
        inside = np.pad(inside, [(0, 0), *pads_of(params, x.ndim - 2).tolist(), (0, 0)], constant_values=1)
        params_of_count = {**params, "pad_amount": np.zeros_like(params["pad_amount"])}
    else:
        params_of_count = params
    return (
        np.sum(_windows(wide(x), 0, params, outputs), axis=0),
        np.sum(_windows(inside, 0, params_of_count, outputs), axis=0),
    )


def _pool_avg(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Return the mean of each window; fixed-point ties are rounded away from 0 if requested."""
    total, count = _pool_sum(values[0], params, outputs, params["count_pad_for_edges"])
    quantization = outputs[0].quantization
    if params.get("ties_away_from_zero") and quantization is not None:
        # Sums of stored integers are divided by the count, and halves are rounded away from 0.
        stored = np.rint(total / quantization.scale) - count * quantization.offset
        mean = np.trunc((stored + np.copysign(count // 2, stored)) / count)
        return (mean + quantization.offset) * quantization.scale
    return total / count


def _pool_l2(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    total, count = _pool_sum(np.square(wide(values[0])), params, outputs, False)
    return np.sqrt(total / count)


PRODUCTS: dict[str, Callable[..., np.ndarray]] = {
    **{f"Conv{n}d": convolution for n in (1, 2, 3)},
    **{f"DepthWiseConv{n}d": convolution for n in (1, 2)},
    **{f"TransposeConv{n}d": transpose_convolution for n in (1, 2, 3)},
    "FullyConnected": fully_connected,
    "MatMul": matmul,
}
"""The operations that multiply in[0] by in[1] and add in[2], here without that addition."""

COMPUTATIONS: dict[str, Callable[..., np.ndarray | list[np.ndarray]]] = {
    **{name: _with_bias(product_of) for name, product_of in PRODUCTS.items()},
    "MatMulInteger": _matmul_integer,
    "PoolAvg2d": _pool_avg,
    "PoolAvg3d": _pool_avg,
    "PoolMax2d": _pool_max,
    "PoolMax3d": _pool_max,
    "L2Pool2d": _pool_l2,
}
