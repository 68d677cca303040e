"""Lowering of 8-bit depthwise convolutions: one filter for each channel."""

from __future__ import annotations

import numpy as np

from isthmus.engine.lowering.emitter import Emitter, Lowering
from isthmus.engine.lowering.fixed_point import (
    STORED,
    bias_of,
    centred_weights,
    quantization_of,
    stored_limits,
    weight_scales,
)
from isthmus.engine.lowering.quantized_convolution import covers_convolution
from isthmus.graph import Tensor
from isthmus.prepare.schedule import Step

_EXACT_IN_FLOAT = 1 << 24


def _operand(step: Step, index: int) -> Tensor:
    tensor = step.inputs[index]
    assert tensor is not None
    return tensor


def _covers(step: Step) -> bool:
    if not covers_convolution(step) or _operand(step, 0).dims[3] != step.outputs[0].dims[3]:
        return False
    weights = _operand(step, 1)
    largest = weights.dims[0] * weights.dims[1] * 255 * 128 + int(np.abs(bias_of(step, weights.dims[3])).max(initial=0))
    return largest < _EXACT_IN_FLOAT


def _emit(step: Step, e: Emitter) -> None:
    x, weights, output = _operand(step, 0), _operand(step, 1), step.outputs[0]
    qx, qy = quantization_of(x), quantization_of(output)
    batch, height, width, channels = x.dims
    kernel, taps = weights.dims[:2], weights.dims[0] * weights.dims[1]
    stride, dilation = (np.asarray(step.params[n]).reshape(2).tolist() for n in ("stride", "dilation"))
    (top, _), (left, _) = np.asarray(step.params["pad_amount"]).reshape(2, 2).tolist()
    padded = -(-channels // e.target.lanes) * e.target.lanes
    centred = centred_weights(weights)
    assert centred is not None
    # One row of zeros follows the taps, for outputs that no tap reaches.
    factors = np.zeros((taps + 1, padded), np.float32)
    factors[:-1, :channels] = centred.reshape(taps, channels)
    bias, inner, scales = (np.zeros(padded, np.float32) for _ in range(3))
    bias[:channels] = bias_of(step, channels)
    inner[:] = bias - np.float32(qx.zero_point) * factors.sum(0)
    scales[:channels] = np.float32(qx.scale) * weight_scales(weights, channels) / np.float32(qy.scale)
    variant = STORED[x.dtype]
    if kernel[1] in (3, 5) and stride[1] in (1, 2) and dilation[1] == 1:
        variant += f"_{kernel[1]}_{stride[1]}"
    e.emit(
        f"quantized_depthwise:convolve.{variant}",
        e.at(x), e.at(output), *map(e.constant, (factors, bias, inner, scales)),
        batch, height, width, channels, *output.dims[1:3], *kernel, *stride, *dilation, top, left, padded * 4,
        float(qx.zero_point), float(qy.zero_point), *map(float, stored_limits(step, output)),
    )  # fmt: skip


QUANTIZED = {"DepthWiseConv2d": (_covers, Lowering(_emit))}
"""For each operation, which steps its 8-bit lowering covers, and that lowering."""
