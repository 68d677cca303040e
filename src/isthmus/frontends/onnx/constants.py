"""Operators whose result is known when the model is loaded: constants, shapes, ranges, windows."""

from __future__ import annotations

import math

import numpy as np

from isthmus.frontends.onnx.builder import MAX_CONSTANT_BYTES
from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.stage import Choices, Extreme
from isthmus.frontends.onnx.tensors import FLOAT, element_type
from isthmus.graph import DataType


def _check_size(node: OnnxNode, elements: float) -> None:
    """Refuse a constant whose elements, 8 bytes each, exceed the limit."""
    if not 0 <= elements * 8 <= MAX_CONSTANT_BYTES:
        node.refuse(f"a constant of {elements:.0f} elements is too large")


def _constant(node: OnnxNode) -> OnnxValue:
    for name, dtype in (
        ("value_float", np.float32), ("value_floats", np.float32), ("value_int", np.int64), ("value_ints", np.int64),
    ):  # fmt: skip
        if name in node.attributes:
            return node.literal(np.array(node.attributes[name], dtype))
    if "value" not in node.attributes:
        node.unsupported(f"a constant given as {', '.join(node.attributes) or 'nothing'}")
    return OnnxValue.of(node.builder.constant(node.attributes["value"], node.attr("encoding")))


def _constant_of_shape(node: OnnxNode) -> OnnxValue:
    """Repeat an element. It is stored once, so the constant may be as large as weights are."""
    dims = node.ints(0) or []
    if any(d < 0 for d in dims) or math.prod(dims) >= 1 << 31:
        node.refuse(f"the shape {dims[:8]} must not be negative, and must have less than {1 << 31} elements")
    fill = node.attr("value", np.zeros(1, np.float32))
    return node.literal(np.broadcast_to(fill.reshape(-1)[0], dims))


def _shape(node: OnnxNode) -> OnnxValue:
    dims = node.value(0).dims
    return node.literal(np.array(dims[node.attr("start", 0) : node.attr("end", len(dims))], np.int64))


def _range(node: OnnxNode) -> OnnxValue:
    node.need_all(_longest_range(node))
    start, limit, delta = (node.array(index).reshape(()) for index in range(3))
    if delta == 0:
        node.refuse("a step of 0 never ends")
    count = math.ceil((limit.item() - start.item()) / delta.item())
    _check_size(node, max(count, 0))
    steps = np.arange(max(count, 0)).astype(start.dtype)
    tensor = node.builder.numbers((start + steps * delta).astype(start.dtype), node.value(0).tensor.dtype)
    return OnnxValue.of(tensor)


def _longest_range(node: OnnxNode) -> dict[int, object]:
    """Return the operands with which a Range is longest, to plan with: extreme ends, and a step of 1 or -1."""
    step = node.builder.array(node.value(2))
    ends = (Extreme.LOWEST, Extreme.HIGHEST)
    if step is not None:
        first, last = ends if step.reshape(()) > 0 else ends[::-1]
        return {0: Choices([first]), 1: Choices([last])}
    steps = None if node.value(2).tensor.dtype.is_float else Choices([1, -1])
    return {0: Choices(ends), 1: Choices(ends), 2: steps}


def _eye_like(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    if x.rank != 2:
        node.refuse(f"an operand of rank {x.rank} is not a matrix")
    _check_size(node, math.prod(x.dims))
    number = node.attr("dtype")
    dtype = x.tensor.dtype.numpy if number is None else element_type(number, node.what)
    return node.literal(np.eye(x.dims[0], x.dims[1], k=node.attr("k", 0), dtype=dtype))


def _non_zero(node: OnnxNode) -> OnnxValue:
    """Convert to a constant, or to a NonZero with a row for every element; rows after the last result are -1."""
    x = node.value(0)
    array = node.builder.array(x)
    if array is not None:
        return node.literal(np.array(np.nonzero(np.atleast_1d(array)), np.int64))
    tensor = node.materialize(x if x.rank else node.reshape_to(x, (1,)))
    dims = (tensor.elements, tensor.rank)
    return node.rows("NonZero", [tensor], (1, 0), dims=[dims], dtypes=[DataType.INT_64])


def _window(*terms: float) -> Converter:
    """Return a converter to a window of cosines: the sum of terms[k] * cos(2 pi k n / size)."""

    def convert(node: OnnxNode) -> OnnxValue:
        size = int(node.number(0))
        _check_size(node, size)
        period = size if node.attr("periodic", 1) else size - 1
        phase = 2 * np.pi * np.arange(size) / max(period, 1)
        values = sum(term * np.cos(k * phase) for k, term in enumerate(terms))
        return node.literal(np.asarray(values, element_type(node.attr("output_datatype", FLOAT), node.what)))

    return convert


def _mel_weight_matrix(node: OnnxNode) -> OnnxValue:
    """Return triangles over the bins of a spectrum, at equal distances on the mel scale: [bins, bands]."""
    bands, length = int(node.number(0)), int(node.number(1))
    rate, low, high = (float(node.number(index)) for index in (2, 3, 4))
    if bands < 1 or length < 1 or rate <= 0 or not 0 <= low < high:
        node.refuse(f"{bands} bands from {low} to {high} in a spectrum of {length} make no matrix")
    bins = length // 2 + 1
    _check_size(node, bins * bands)
    mel = np.linspace(2595 * math.log10(1 + low / 700), 2595 * math.log10(1 + high / 700), bands + 3)[: bands + 2]
    # The first and last bin and the peak of each triangle.
    edges = np.floor((length + 1) * 700 * (np.power(10, mel / 2595) - 1) / rate).astype(np.int64)
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    places = np.arange(bins)[:, None]
    rising = np.where(peak > left, (places - left) / np.maximum(peak - left, 1), 1.0)
    falling = (right - places) / np.maximum(right - peak, 1)
    matrix = np.where((places >= left) & (places <= peak), rising, 0.0)
    matrix = np.where((places >= peak) & (places < right), falling, matrix)
    return node.literal(matrix.astype(element_type(node.attr("output_datatype", FLOAT), node.what)))


CONVERTERS: dict[str, Converter] = {
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Shape": _shape,
    "Size": lambda node: node.literal(np.array(math.prod(node.value(0).dims), np.int64)),
    "Range": _range,
    "EyeLike": _eye_like,
    "NonZero": _non_zero,
    "MelWeightMatrix": _mel_weight_matrix,
    "OptionalHasElement": lambda node: node.literal(np.array(node.optional(0) is not None)),
    "OptionalGetElement": lambda node: node.value(0),
    "HannWindow": _window(0.5, -0.5),
    "HammingWindow": _window(25 / 46, -21 / 46),
    "BlackmanWindow": _window(0.42, -0.5, 0.08),
}
