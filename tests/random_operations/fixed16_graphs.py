"""Random ONNX graphs of 16-bit operations between QuantizeLinear and DequantizeLinear, with exact answers.

The answers come from integers and fractions: each operation is computed on the exact real values of its operands and
rounded once, half to even.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper
from support import exact

from isthmus.graph import Quantization

ACTIVATIONS = [np.uint16, np.int16]
WEIGHTS = [np.int8, np.uint8, np.int16, np.uint16]
FOUR_BITS = [ml_dtypes.int4, ml_dtypes.uint4]
OPSET = 21


@dataclass(frozen=True)
class Value:
    """A quantized value: its name, its exact contents and its quantization."""

    name: str
    stored: np.ndarray
    quantization: Quantization

    @property
    def steps(self) -> np.ndarray:
        """Numbers of steps above the zero point."""
        return self.stored.astype(np.int64) - self.quantization.zero_point

    @property
    def scale(self) -> Fraction:
        """The scale, exactly."""
        return exact.fraction(self.quantization.scale)

    @property
    def reals(self) -> np.ndarray:
        """The exact real values."""
        return np.asarray(self.steps.astype(object) * self.scale)


@dataclass
class GraphMaker:
    """A random graph under construction, with weights of some types."""

    rng: np.random.Generator
    kinds: Sequence[Any]
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    names: int = 0

    def name(self) -> str:
        """A new name."""
        self.names += 1
        return f"t{self.names}"

    def constant(self, value: Any) -> str:
        """The name of a new constant."""
        name = self.name()
        self.constants[name] = np.asarray(value)
        return name

    def numbers(self, kind: Any, *dims: int) -> np.ndarray:
        """Stored numbers of the whole range."""
        info = ml_dtypes.iinfo(kind)
        return np.asarray(self.rng.integers(info.min, info.max + 1, dims)).astype(kind)

    def scale(self, about: float) -> float:
        """A scale of about this size; every third one is a power of two, so that there are ties."""
        if self.rng.integers(3) == 0:
            return float(2.0 ** np.rint(np.log2(about)))
        return float(np.float32(about * self.rng.uniform(0.7, 1.4)))

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Add a node with one output; return that."""
        output = self.name()
        self.nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    def real(self, value: Value) -> str:
        """The name of a dequantized value."""
        q = value.quantization
        scale, point = self.constant(np.float32(q.scale)), self.constant(value.stored.dtype.type(q.zero_point))
        return self.node("DequantizeLinear", [value.name, scale, point])

    def quantized(self, real: str, exact_reals: np.ndarray, kind: Any = None, scale: float | None = None) -> Value:
        """Quantize a real; its scale suits the exact contents."""
        kind = kind or self.rng.choice(ACTIVATIONS)
        info = np.iinfo(kind)
        largest = max((abs(float(x)) for x in exact_reals.reshape(-1)), default=1.0) or 1.0
        scale = scale or self.scale(largest / (info.max - info.min) * 2)
        zero = int(self.rng.integers(info.min // 2 + info.max // 4, info.max // 2 + 1))
        q = Quantization.per_tensor(scale, zero)
        steps = np.frompyfunc(round, 1, 1)(exact_reals / exact.fraction(scale))
        stored = exact.stored_values(np.asarray(steps), q, kind)
        name = self.node("QuantizeLinear", [real, self.constant(np.float32(scale)), self.constant(kind(zero))])
        return Value(name, stored.reshape(exact_reals.shape), q)

    def weights(self, *dims: int, axis: int) -> tuple[str, np.ndarray, np.ndarray]:
        """The name of dequantized weights, their steps, and the scale of each index along the axis of columns."""
        kind = self.rng.choice(np.array(self.kinds, object))
        data, columns = self.numbers(kind, *dims), dims[axis]
        symmetric = ml_dtypes.iinfo(kind).min < 0
        count = columns if self.rng.integers(2) else 1
        about = 1.0 / ml_dtypes.iinfo(kind).max
        scales = np.array([self.scale(about) for _ in range(count)], np.float32)
        zeros = np.zeros(count, kind) if symmetric else self.numbers(kind, count)
        shaped = zeros.astype(np.int64).reshape([-1 if d == axis else 1 for d in range(len(dims))])
        if count == 1:
            operands = [self.constant(data), self.constant(scales[0]), self.constant(zeros[0])]
            name = self.node("DequantizeLinear", operands)
        else:
            operands = [self.constant(data), self.constant(scales), self.constant(zeros)]
            name = self.node("DequantizeLinear", operands, axis=axis)
        return name, data.astype(np.int64) - shaped, np.broadcast_to(scales, columns)

    def bias(self, x: Value, scales: np.ndarray) -> tuple[str, np.ndarray]:
        """The name of a dequantized 32-bit bias in units of a product, and its integers."""
        data = self.rng.integers(-(1 << 24), 1 << 24, len(scales)).astype(np.int32)
        units = np.float32(x.quantization.scale) * scales
        operands = [self.constant(data), self.constant(units), self.constant(np.zeros(len(scales), np.int32))]
        return self.node("DequantizeLinear", operands, axis=0), data.astype(np.int64)

    def product(self, x: Value, real: str, sums: np.ndarray, scales: np.ndarray, axis: int) -> Value:
        """Quantize the whole sums of a product; each index along the axis has its own scale."""
        factors = np.array([x.scale * exact.fraction(s) for s in scales], object)
        shape = [-1 if d == axis else 1 for d in range(sums.ndim)]
        return self.quantized(real, sums.astype(object) * factors.reshape(shape))


def _convolution(make: GraphMaker, x: Value) -> Value:
    """A convolution, perhaps in groups or depth-wise, with padding, strides and a bias."""
    batch, channels, height, width = x.stored.shape
    group = int(make.rng.choice([g for g in (1, 2, channels) if channels % g == 0]))
    filters = channels if group == channels else group * int(make.rng.integers(1, 20 // group + 1))
    kernel = [int(make.rng.integers(1, min(4, size) + 1)) for size in (height, width)]
    pads = [int(make.rng.integers(0, min(k, 2))) for k in (*kernel, *kernel)]
    strides = [int(s) for s in make.rng.integers(1, 3, 2)]
    name, weights, scales = make.weights(filters, channels // group, *kernel, axis=0)
    inputs = [make.real(x), name]
    padded = np.pad(x.steps, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    out = [(padded.shape[2 + d] - kernel[d]) // strides[d] + 1 for d in range(2)]
    sums = np.zeros((batch, filters, *out), np.int64)
    for i, j, g in product(range(kernel[0]), range(kernel[1]), range(group)):
        rows, columns = (slice(k, k + (n - 1) * s + 1, s) for k, n, s in zip((i, j), out, strides, strict=True))
        inner, outer = channels // group, filters // group
        patch = padded[:, g * inner : (g + 1) * inner, rows, columns]
        part = slice(g * outer, (g + 1) * outer)
        sums[:, part] += np.einsum("nchw,fc->nfhw", patch, weights[part, :, i, j])
    if make.rng.integers(2):
        bias, numbers = make.bias(x, scales)
        # The unit of a bias is rounded to single precision; sums are exact only where it is not.
        units = np.float32(x.quantization.scale) * scales
        if all(Fraction(float(u)) == x.scale * exact.fraction(s) for u, s in zip(units, scales, strict=True)):
            inputs.append(bias)
            sums += numbers[:, None, None]
    real = make.node("Conv", inputs, group=group, kernel_shape=kernel, pads=pads, strides=strides)
    return make.product(x, real, sums, scales, 1)


def _transposed(make: GraphMaker, x: Value) -> Value:
    """A transposed convolution."""
    batch, channels, height, width = x.stored.shape
    filters, kernel = int(make.rng.integers(1, 9)), [int(k) for k in make.rng.integers(1, 4, 2)]
    strides = [int(s) for s in make.rng.integers(1, 3, 2)]
    name, weights, scales = make.weights(channels, filters, *kernel, axis=1)
    size = [(n - 1) * s + k for n, s, k in zip((height, width), strides, kernel, strict=True)]
    sums = np.zeros((batch, filters, *size), np.int64)
    for i, j in product(*map(range, kernel)):
        rows, columns = (
            slice(k, k + (n - 1) * s + 1, s) for k, n, s in zip((i, j), (height, width), strides, strict=True)
        )
        sums[:, :, rows, columns] += np.einsum("nchw,cf->nfhw", x.steps, weights[:, :, i, j])
    real = make.node("ConvTranspose", [make.real(x), name], kernel_shape=kernel, strides=strides)
    return make.product(x, real, sums, scales, 1)


def _matrix(make: GraphMaker, x: Value) -> Value:
    """A product of the last axis with constant weights."""
    columns = int(make.rng.integers(1, 40))
    name, weights, scales = make.weights(x.stored.shape[-1], columns, axis=1)
    real = make.node("MatMul", [make.real(x), name])
    return make.product(x, real, x.steps @ weights, scales, x.stored.ndim - 1)


def _attention(make: GraphMaker, x: Value) -> Value:
    """A product of a value and its transpose, both known at run time."""
    axes = [*range(x.stored.ndim - 2), x.stored.ndim - 1, x.stored.ndim - 2]
    other = make.node("Transpose", [make.real(x)], perm=axes)
    real = make.node("MatMul", [make.real(x), other])
    return make.quantized(real, (x.steps @ x.steps.transpose(axes)).astype(object) * x.scale * x.scale)


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b, "Max": np.maximum,
    "Min": np.minimum,
}  # fmt: skip


def _binary(make: GraphMaker, x: Value) -> Value:
    """Arithmetic with another value of the same type, perhaps a constant that is broadcast."""
    op = str(make.rng.choice([*_BINARY]))
    dims = [d if make.rng.integers(2) else 1 for d in x.stored.shape]
    kind = x.stored.dtype.type
    data = make.numbers(kind, *dims)
    q = Quantization.per_tensor(make.scale(x.quantization.scale), int(make.numbers(kind)))
    other = Value(make.constant(data), data, q)
    real = make.node(op, [make.real(x), make.real(other)])
    return make.quantized(real, np.asarray(_BINARY[op](x.reals, other.reals)), kind)


def _function(make: GraphMaker, x: Value) -> Value:
    """A limit or a change of sign."""
    if make.rng.integers(2):
        return make.quantized(make.node("Relu", [make.real(x)]), np.maximum(x.reals, 0), x.stored.dtype.type)
    return make.quantized(make.node("Neg", [make.real(x)]), -x.reals, x.stored.dtype.type)


def _mean(make: GraphMaker, x: Value) -> Value:
    """A mean over some axes."""
    axes = sorted({int(a) for a in make.rng.integers(0, x.stored.ndim, 2)})
    count = prod(x.stored.shape[a] for a in axes)
    real = make.node("ReduceMean", [make.real(x), make.constant(np.int64(axes))], keepdims=1)
    total = x.steps.sum(tuple(axes), keepdims=True).astype(object)
    return make.quantized(real, total * x.scale / count, x.stored.dtype.type)


def _pool(make: GraphMaker, x: Value) -> Value:
    """An average or the maximum of windows."""
    kernel = [int(make.rng.integers(1, min(3, n) + 1)) for n in x.stored.shape[2:]]
    out = [n - k + 1 for n, k in zip(x.stored.shape[2:], kernel, strict=True)]
    windows = np.stack(
        [x.steps[:, :, i : i + out[0], j : j + out[1]] for i, j in product(range(kernel[0]), range(kernel[1]))]
    )
    if make.rng.integers(2):
        real = make.node("MaxPool", [make.real(x)], kernel_shape=kernel)
        return make.quantized(real, windows.max(0).astype(object) * x.scale, x.stored.dtype.type)
    real = make.node("AveragePool", [make.real(x)], kernel_shape=kernel)
    return make.quantized(real, windows.sum(0).astype(object) * x.scale / prod(kernel), x.stored.dtype.type)


def _converted(make: GraphMaker, x: Value) -> Value:
    """A conversion to 8 bits and back, to another scale or another sign."""
    if make.rng.integers(2):
        x = make.quantized(make.real(x), x.reals, make.rng.choice([np.uint8, np.int8]))
    return make.quantized(make.real(x), x.reals)


def _joined(make: GraphMaker, x: Value) -> Value:
    """A concatenation with a conversion of itself."""
    other = _converted(make, x)
    axis = int(make.rng.integers(0, x.stored.ndim))
    real = make.node("Concat", [make.real(x), make.real(other)], axis=axis)
    return make.quantized(real, np.concatenate([x.reals, other.reals], axis))


_OF_WEIGHTS = (_convolution, _convolution, _convolution, _transposed, _matrix)
_OF_IMAGES = (_convolution, _convolution, _convolution, _transposed, _pool)
_OF_ANYTHING = (_matrix, _attention, _binary, _binary, _function, _mean, _converted, _joined)


def random_graph(seed: int, weights: Sequence[Any] = WEIGHTS) -> tuple[ModelProto, dict[str, np.ndarray], np.ndarray]:
    """A model of a few operations, its input, and its exact output; with 4-bit weights, one operation has weights."""
    make = GraphMaker(np.random.default_rng(seed), weights)
    kind = make.rng.choice(ACTIVATIONS)
    dims = [int(n) for n in (make.rng.integers(1, 3), make.rng.integers(1, 20), *make.rng.integers(2, 7, 2))]
    feed = make.numbers(kind, *dims)
    q = Quantization.per_tensor(make.scale(1e-4), int(make.numbers(kind)))
    value = Value("x", feed, q)
    if weights is FOUR_BITS:
        value = make.rng.choice(np.array(_OF_WEIGHTS, object))(make, value)
    for _ in range(int(make.rng.integers(1, 5))):
        operation = make.rng.choice(np.array([*_OF_IMAGES, *_OF_ANYTHING], object))
        if value.stored.size < 4000:
            value = operation(make, value)
    if value.name == "x":
        value = _converted(make, value)
    made = helper.make_graph(
        make.nodes, "random", [helper.make_tensor_value_info("x", _type(feed), dims)],
        [helper.make_tensor_value_info(value.name, _type(value.stored), value.stored.shape)],
        [numpy_helper.from_array(array, name) for name, array in make.constants.items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)])
    model.ir_version = 10
    return model, {"x": feed}, value.stored


def _type(array: np.ndarray) -> int:
    """ONNX's number of an array's type."""
    return {"uint16": TensorProto.UINT16, "int16": TensorProto.INT16}[array.dtype.name]
