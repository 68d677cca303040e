"""Convolutions: plain, grouped and transposed ones as products of windows, depth-wise ones with their own kernel.

A transposed convolution becomes one plain convolution for each phase of its stride; each writes every stride-th pixel.
Quantized operands are multiplied as their stored integers, with one factor for each channel at the end.
"""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.backends.gpu.compile.lowering import product
from isthmus.backends.gpu.compile.lowering.chains import limit_links, reals_of
from isthmus.backends.gpu.compile.lowering.depthwise import emit_depth_wise
from isthmus.backends.gpu.compile.lowering.elementwise import is_real
from isthmus.backends.gpu.compile.lowering.emitter import KernelEmitter, KernelLowering, Link
from isthmus.backends.gpu.compile.lowering.matmul import factor_links, whole_biases, zero_of
from isthmus.graph import Tensor
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.geometry.phases import phases
from isthmus.prepare.geometry.windows import ConvWindow, triple, window_of
from isthmus.prepare.schedule import Step


def filters_of(step: Step) -> tuple[np.ndarray, np.ndarray | None, list[Link]]:
    """Return the filters and biases for the sums, and the links that turn sums into results.

    For a quantized operand these are integers, and the first link multiplies the sums by the scales of operand and
    filters.
    """
    x, weights, bias = operand(step, 0), operand(step, 1), step.inputs[2] if len(step.inputs) > 2 else None
    assert weights.data is not None
    biases = None if bias is None else reals_of(bias).reshape(-1)
    if not x.dtype.is_fixed_point:
        return reals_of(weights), biases, limit_links(step.clamp)
    assert x.quantization is not None
    filters = weights.dims[-1] * (int(step.params["group"]) if step.op.startswith("Transpose") else 1)
    factors = np.full(filters, x.quantization.scale, np.float32)
    values = np.asarray(weights.data, np.float32)
    if weights.dtype.is_fixed_point:
        quantization = weights.quantization
        assert quantization is not None
        offsets = np.array(quantization.offsets, np.float32)
        values = values + (offsets if quantization.axis is not None else offsets[0])
        factors = factors * np.array(quantization.scales, np.float32)
    if bias is not None:
        assert biases is not None
        unit = factors.astype(np.float64)
        biases = np.rint(biases / unit) if bias.dtype.is_float else whole_biases(bias, unit)
    return values, biases, factor_links(factors, step.outputs[0], step.clamp)


def emit_window(
    e: KernelEmitter,
    x: Tensor,
    window: ConvWindow,
    weights: np.ndarray,
    biases: np.ndarray | None,
    target: product.ResultTarget,
    links: list[Link],
) -> None:
    """Emit a convolution as a product of its windows with a matrix of filters.

    - `weights`: The filters, as [depth, height, width, channels / groups, filters].
    """
    groups, filters = window.groups, window.filters // window.groups
    zero, quantized = zero_of(x), x.dtype.is_fixed_point
    # Windows that follow each other in memory are read as plain rows.
    if window.is_product and target.pixels is None:
        left = product.Left(e.at(x), e.storage(x), window.pixels, window.depth, window.depth, zero=zero)
    else:
        left = product.Left(e.at(x), e.storage(x), window.pixels, window.depth, 0, window, zero)
    # [groups, depth of the sum, filters of a group]
    matrices = np.moveaxis(weights.reshape(window.depth, groups, filters), 1, 0)
    width = product.panel_width(e.traits, window.pixels, filters)
    place, stored = e.weights(product.pack(matrices, width))
    padded = -(-filters // width) * width
    right = product.Right(
        place, stored, filters, width,
        None if biases is None else e.constant(product.pad_bias(biases, filters, width)),
    )  # fmt: skip
    batches = None
    if groups > 1:
        # For each group: where its channels, its matrix and its results begin, and its first channel of the result.
        numbers = np.arange(groups)
        batches = np.stack(
            [
                numbers * (window.channels // groups), numbers * (window.depth * padded), numbers * filters,
                numbers * filters,
            ],
            axis=1,
        )  # fmt: skip
    product.emit_product(e, left, right, target, links, batches, quantized)


def _is_depth_wise(window: ConvWindow) -> bool:
    """Return whether every channel has its own filters."""
    return window.groups == window.channels and window.groups > 1


def _emit(step: Step, e: KernelEmitter) -> None:
    """Emit a plain, grouped or depth-wise convolution."""
    x, output, window = operand(step), step.outputs[0], window_of(step)
    weights, biases, links = filters_of(step)
    if _is_depth_wise(window):
        emit_depth_wise(e, x, window, weights.reshape(prod(window.kernel), window.filters), biases, output, links)
    else:
        target = product.ResultTarget(output, window.filters)
        emit_window(e, x, window, weights, biases, target, links)


def _emit_transposed(step: Step, e: KernelEmitter) -> None:
    """Emit a transposed convolution as one plain convolution for each phase of its stride."""
    # Results of one phase are those whose positions leave the same remainder when divided by the stride. They use the
    # same elements of the kernel, and are written every stride-th pixel.
    x, output = operand(step), step.outputs[0]
    weights, biases, links = filters_of(step)
    groups, channels, filters = int(step.params["group"]), x.dims[-1], output.dims[-1]
    kernel, stride = triple(weights.shape[:-2]), triple(step.params["stride"])
    # From [kernel, groups * channels of a group, filters of a group] to the order of `emit_window`.
    grouped = weights.reshape(*kernel, groups, channels // groups, filters // groups)
    plain = np.moveaxis(grouped, 3, 4).reshape(*kernel, channels // groups, filters)
    # Elements from one pixel, row, plane and image of the output to the next.
    _, height, width = triple(output.dims[1:-1])
    pixel, row = filters, width * filters
    plane, batch = height * row, prod(output.dims[1:])
    for phase in phases(step):
        if not phase.window.pixels:
            continue
        if all(phase.kernel_index):
            taps = plain[np.ix_(*phase.kernel_index)]
        else:
            # No element of the kernel reaches these results: they are the bias.
            taps = np.zeros((*phase.window.kernel, channels // groups, filters), np.float32)
        start = phase.first[0] * plane + phase.first[1] * row + phase.first[2] * pixel
        steps = (batch, plane * stride[0], row * stride[1], pixel * stride[2])
        target = product.ResultTarget(output, 0, start, steps)
        emit_window(e, x, phase.window, taps, biases, target, links)


def _refuses(step: Step) -> str | None:
    """Return why a convolution cannot be executed, or None; sums of wider integers would not be exact in floats."""
    x, weights, bias = operand(step, 0), operand(step, 1), step.inputs[2] if len(step.inputs) > 2 else None
    if not all(is_real(t) for t in (x, weights, bias, step.outputs[0]) if t is not None):
        return "only floats and fixed-point operands are supported"
    if x.dtype.is_fixed_point and x.dtype.itemsize > 1:
        return f"{x.describe()}: a convolution takes floats or 8-bit fixed point"
    if not weights.is_static or (bias is not None and not bias.is_static):
        return "weights and bias must be constants"
    if weights.dtype.is_fixed_point and weights.quantization is not None:
        axis = weights.quantization.axis
        # The last axis is that of the filters; in a grouped transposed convolution, that of the filters of one group.
        if axis is not None and (
            axis != weights.rank - 1 or (step.op.startswith("Transpose") and step.params["group"] != 1)
        ):
            return f"{weights.describe()} has scales along another axis than its filters"
    if not weights.elements and step.outputs[0].elements:
        return "a convolution over no elements is not supported"
    return None


_PLAIN = KernelLowering(_emit, refuses=_refuses, takes_chain=True)
_TRANSPOSED = KernelLowering(_emit_transposed, refuses=_refuses)
LOWERINGS: dict[str, KernelLowering] = {
    **dict.fromkeys(("Conv1d", "Conv2d", "Conv3d", "DepthWiseConv1d", "DepthWiseConv2d"), _PLAIN),
    **dict.fromkeys(("TransposeConv1d", "TransposeConv2d", "TransposeConv3d"), _TRANSPOSED),
}
