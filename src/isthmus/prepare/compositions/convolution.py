"""Convolutions whose weights or bias are known only at run time, as products of matrices.

The patches that the filters see become rows of one matrix for each group, and the filters its columns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from isthmus.graph import Tensor
from isthmus.graph.evaluation.convolution import pads_of, spatial_of, taps_of
from isthmus.graph.ops.movement import CONSTANT
from isthmus.prepare.compositions.composer import FLOAT, Composition, StepComposer
from isthmus.prepare.schedule import Step


def _convolution(c: StepComposer) -> list[Tensor] | None:
    """Compute Conv and DepthWiseConv."""
    if _is_constant(c):
        return None
    x, weights = c.real(0), c.real(1)
    spatial, depth = x.rank - 2, weights.dims[-2]
    # A depth-wise convolution has as many groups as channels.
    group = c.params["group"] if "group" in c.params else x.dims[-1] // depth
    filters = c.reshape(weights, math.prod(weights.dims[:spatial]), depth, group, weights.dims[-1] // group)
    filters = c("Transpose", filters, perm=[2, 0, 1, 3])
    offsets = [offset for _, offset in taps_of(weights.dims[:spatial], spatial_of(c.params, "dilation", spatial))]
    x = _pad(c, x, pads_of(c.params, spatial))
    return [_multiply(c, x, filters, offsets, spatial_of(c.params, "stride", spatial))]


def _transpose_convolution(c: StepComposer) -> list[Tensor] | None:
    """Compute TransposeConv: a convolution with mirrored filters over the input with zeros between its elements."""
    if _is_constant(c):
        return None
    x, weights = c.real(0), c.real(1)
    spatial, group = x.rank - 2, c.params["group"]
    kernel, dilation = weights.dims[:spatial], spatial_of(c.params, "dilation", spatial)
    reach = (np.asarray(kernel) - 1) * dilation
    for axis, stride in enumerate(spatial_of(c.params, "stride", spatial).tolist(), 1):
        x = _spread(c, x, axis, stride)
    extra = np.broadcast_to(np.asarray(c.params["output_padding"], np.int64), (spatial,))
    pads = reach[:, None] - pads_of(c.params, spatial)
    pads[:, 1] += extra
    filters = c.reshape(weights, math.prod(kernel), group, weights.dims[-2] // group, weights.dims[-1])
    filters = c("Transpose", filters, perm=[1, 0, 2, 3])
    offsets = [tuple((reach - offset).tolist()) for _, offset in taps_of(kernel, dilation)]
    return [_multiply(c, _pad(c, x, pads), filters, offsets, np.ones(spatial, np.int64))]


def _is_constant(c: StepComposer) -> bool:
    """Return whether weights and bias are constants, or computed from constants, which later passes fold."""
    pending, seen = list(c.step.inputs[1:]), set[Step]()
    while pending:
        tensor = pending.pop()
        if tensor is None or tensor.is_static:
            continue
        producer = c.work.producer(tensor)
        if producer is None or not producer.inputs:
            return False
        if producer not in seen:
            seen.add(producer)
            pending += producer.inputs
    return True


def _spread(c: StepComposer, x: Tensor, axis: int, stride: int) -> Tensor:
    """Put zeros between the elements along an axis, so that they are `stride` apart."""
    dims = x.dims
    if stride == 1:
        return x
    pads = np.zeros((x.rank + 1, 2), np.int64)
    pads[axis + 1, 1] = stride - 1
    x = c("Pad", c.reshape(x, *dims[: axis + 1], 1, *dims[axis + 1 :]), scheme=CONSTANT, pad_amount=pads)
    x = c.reshape(x, *dims[:axis], dims[axis] * stride, *dims[axis + 1 :])
    return c.slice(x, axis, 0, (dims[axis] - 1) * stride + 1)


def _pad(c: StepComposer, x: Tensor, pads: np.ndarray) -> Tensor:
    """Pad the spatial axes with zeros; negative amounts crop them."""
    for axis, (before, after) in enumerate(pads.tolist(), 1):
        if min(before, after) < 0:
            x = c.slice(x, axis, max(0, -before), x.dims[axis] + min(0, after))
    amounts = [[0, 0], *np.maximum(pads, 0).tolist(), [0, 0]]
    return c("Pad", x, scheme=CONSTANT, pad_amount=amounts) if (pads > 0).any() else x


def _multiply(
    c: StepComposer, x: Tensor, filters: Tensor, offsets: Sequence[Sequence[int]], stride: np.ndarray
) -> Tensor:
    """Multiply patches with filters and add the bias."""
    # - `filters`: [group, tap, channels in of a group, channels out of a group].
    # - `offsets`: where each tap reads, relative to its window.
    # - `stride`: the step between windows along each spatial axis.
    out = c.outputs[0].dims
    (group, taps, depth, columns), rows = filters.dims, math.prod(out[:-1])
    seen = []
    for offset in offsets:
        ranges = [[o, o + (n - 1) * s + 1, s] for o, n, s in zip(offset, out[1:-1], stride.tolist(), strict=True)]
        patch = c("StridedSlice", x, ranges=[[0, x.dims[0], 1], *ranges, [0, x.dims[-1], 1]])
        seen.append(c.reshape(patch, rows, group, depth))
    patches = c("Transpose", c("Concat", *seen, axis=2), perm=[1, 0, 2])
    result = c("MatMul", patches, c.reshape(filters, group, taps * depth, columns))
    result = c.reshape(c("Transpose", result, perm=[1, 0, 2]), *out)
    bias = _bias(c)
    return result if bias is None else c("ElementWiseAdd", result, bias)


def _bias(c: StepComposer) -> Tensor | None:
    """Return the bias in reals; integers without scales are in units of products."""
    bias, x, weights = c.given(2), c.input(0).quantization, c.input(1).quantization
    if bias is None or bias.dtype.is_fixed_point or bias.dtype.is_float or x is None or weights is None:
        return None if bias is None else c.as_real(bias)
    units = np.asarray(weights.scales, np.float32) * np.float32(x.scale)
    return c("ElementWiseMultiply", c.as_real(bias), c.constant(np.resize(units, bias.elements), FLOAT))


COMPOSITIONS: dict[str, Composition] = {
    **{f"{kind}{n}d": _convolution for kind, n in (*product(["Conv"], (1, 2, 3)), *product(["DepthWiseConv"], (1, 2)))},
    **{f"TransposeConv{n}d": _transpose_convolution for n in (1, 2, 3)},
}
