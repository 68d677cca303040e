"""Fourier transforms as products with constant matrices: DFT, and STFT as a convolution with windowed waves."""

from __future__ import annotations

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.linear import matmul
from isthmus.frontends.onnx.movement import slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode

MAX_MATRIX = 1 << 24
"""The most elements of a transform's matrix."""


def _waves(length: int, parts: int, bins: int, inverse: bool) -> np.ndarray:
    """Return the matrix [length, parts, bins, 2] from real or complex samples to complex bins."""
    # `parts` is 1 for real and 2 for complex samples.
    turns = np.outer(np.arange(length), np.arange(bins)) % length / length
    angle = 2 * np.pi * turns * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    matrix = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)], axis=1)[:, :parts]
    return matrix / length if inverse else matrix


def _dft(node: OnnxNode) -> OnnxValue:
    """Convert a DFT to one matrix product along its axis, which is moved next to the real and imaginary parts."""
    x = node.value(0)
    axis = node.axis(int(node.attr("axis", 1) if node.opset < 20 else node.number(2, -2)))
    if axis == x.rank - 1 or x.dims[-1] not in (1, 2):
        node.refuse(f"axis {axis} of {list(x.dims)} is not an axis of samples")
    inverse, onesided = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    if inverse and onesided:
        return _real_inverse(node, x, axis)
    length = int(node.number(1, x.dims[axis]))
    bins = length // 2 + 1 if onesided else length
    parts = x.dims[-1]
    if not 0 < length <= MAX_MATRIX or length * parts * bins * 2 > MAX_MATRIX:
        node.unsupported(f"a transform of {length} samples")
    return _transform(node, _fit(node, x, axis, length), axis, _waves(length, parts, bins, inverse))


def _real_inverse(node: OnnxNode, x: OnnxValue, axis: int) -> OnnxValue:
    """Compute real samples from the first half of their spectrum; the other half is its conjugate."""
    length = int(node.number(1, 2 * (x.dims[axis] - 1)))
    bins = length // 2 + 1
    if x.dims[-1] != 2:
        node.refuse("the spectrum must have real and imaginary parts")
    if not 0 < length <= MAX_MATRIX or bins * 2 * length > MAX_MATRIX:
        node.unsupported(f"a transform of {length} samples")
    # Bins and their conjugates add up to real samples, so bins count twice, except the first and that of half the rate.
    waves = _waves(length, 2, length, True)[:bins, :, :, :1]
    counts = np.full((bins, 1, 1, 1), 2.0)
    counts[0] = 1.0
    counts[length // 2 :] = 1.0 if length % 2 == 0 else counts[length // 2 :]
    return _transform(node, _fit(node, x, axis, bins), axis, waves * counts)


def _transform(node: OnnxNode, x: OnnxValue, axis: int, waves: np.ndarray) -> OnnxValue:
    """Multiply an axis and the parts, which are the last axis, by a matrix [length, parts, bins, parts of results]."""
    length, parts, bins, out_parts = waves.shape
    order = (*(a for a in range(x.rank - 1) if a != axis), axis, x.rank - 1)
    moved = x.permute(order)
    flat = node.reshape_to(moved, (*moved.dims[:-2], length * parts))
    matrix = waves.reshape(length * parts, bins * out_parts).astype(x.tensor.dtype.numpy)
    product = matmul(node, flat, node.literal(matrix))
    result = node.reshape_to(product, (*product.dims[:-1], bins, out_parts))
    return result.permute([order.index(a) for a in range(x.rank)])


def _fit(node: OnnxNode, x: OnnxValue, axis: int, length: int) -> OnnxValue:
    """Cut samples, or pad them with zeros, to the length of the transform."""
    if x.dims[axis] >= length:
        return slice_value(node, x, {axis: (0, length, 1)})
    pads = x.by_stored_axis({axis: (0, length - x.dims[axis])}, [(0, 0)] * x.rank)
    return node.apply("Pad", x, {"scheme": 0, "pad_amount": pads})


def _stft(node: OnnxNode) -> OnnxValue:
    """Compute frames times waves as a convolution along time, with the windowed waves as filters."""
    signal = node.value(0)
    step = int(node.number(1))
    window = None if node.optional(2) is None else node.array(2).reshape(-1)
    length = int(node.number(3, len(window) if window is not None else 0))
    if signal.rank == 2:
        signal = node.reshape_to(signal, (*signal.dims, 1))
    if signal.rank != 3 or signal.dims[2] not in (1, 2) or step < 1 or length < 1:
        node.refuse(f"a signal of {list(signal.dims)} cannot be cut to frames of {length} every {step}")
    bins = length // 2 + 1 if node.attr("onesided", 1) else length
    parts = signal.dims[2]
    if length * parts * bins * 2 > MAX_MATRIX:
        node.unsupported(f"frames of {length} samples")
    waves = _waves(length, parts, bins, False)
    if window is not None:
        if len(window) > length:
            node.refuse(f"a window of {len(window)} does not fit frames of {length}")
        # A shorter window is in the middle of a frame.
        start = (length - len(window)) // 2
        centred_window = np.zeros(length)
        centred_window[start : start + len(window)] = window
        waves = waves * centred_window[:, None, None, None]
    filters = node.builder.constant(waves.reshape(length, parts, bins * 2).astype(signal.tensor.dtype.numpy))
    params = {"stride": step, "pad_amount": (0, 0), "dilation": 1}
    frames = node.emit("Conv1d", [node.materialize(signal), filters], params)
    return node.reshape_to(OnnxValue.of(frames), (*frames.dims[:2], bins, 2))


CONVERTERS: dict[str, Converter] = {"DFT": _dft, "STFT": _stft}
