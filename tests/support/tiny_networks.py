"""The networks of MLPerf Tiny with random weights as TFLite files, in float32 and in 8 bits, as its converter has them.

Batch normalization is folded. In 8 bits, weights of convolutions have a step for each filter and those of fully
connected layers one step, and inputs and outputs are 8-bit numbers. Steps of values come from what LiteRT computes for
random inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from frontends.tflite.build import Op, Subgraph, T, model, options

Array = np.ndarray[Any, np.dtype[Any]]
Ranges = Mapping[int, tuple[float, float]]
CALIBRATIONS = 8
"""The number of random inputs that steps come from."""
_RELU = 1  # a fused activation
_LIKE_INPUT = ("AVERAGE_POOL_2D", "RESHAPE")
"""Operators whose results have the step of their first operand."""


@dataclass
class _Weights:
    """The weights or the bias of an operator; `axis` is that of filters with a step each, if they have one."""

    data: Array
    axis: int | None = None


@dataclass
class TinyNetwork:
    """A network in the making: each method adds an operator and returns the index of its result.

    The first value is the input, the last one the output.
    """

    shapes: list[tuple[int, ...]]
    weights: dict[int, _Weights] = field(default_factory=dict)
    operators: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._generator = np.random.default_rng(0)

    @property
    def parameters(self) -> int:
        """The number of weights, biases among them."""
        return sum(each.data.size for each in self.weights.values() if each.data.dtype == np.float32)

    def dense(self, x: int, units: int, relu: bool = True, gain: float = 1.0) -> int:
        """Add a fully connected layer, with weights that are greater by `gain`."""
        depth = self.shapes[x][-1]
        made = options("FullyConnected", fusedActivationFunction=_RELU if relu else 0)
        return self._product(
            "FULLY_CONNECTED", x, _Weights(self._normal((units, depth), depth / gain**2)), (1, units), made
        )

    def conv(self, x: int, filters: int, kernel: tuple[int, int] = (3, 3), stride: int = 1, relu: bool = True) -> int:
        """Add a convolution with padding that keeps the size, divided by the stride."""
        depth = self.shapes[x][3]
        weights = _Weights(self._normal((filters, *kernel, depth), math.prod(kernel) * depth), 0)
        made = options("Conv2D", **self._window(stride, relu))
        return self._product("CONV_2D", x, weights, self._strided(x, stride, filters), made)

    def depthwise(self, x: int, stride: int = 1) -> int:
        """Add a depthwise 3x3 convolution."""
        depth = self.shapes[x][3]
        weights = _Weights(self._normal((1, 3, 3, depth), 9), 3)
        made = options("DepthwiseConv2D", depthMultiplier=1, **self._window(stride, True))
        return self._product("DEPTHWISE_CONV_2D", x, weights, self._strided(x, stride, depth), made)

    def add(self, x: int, y: int) -> int:
        """Add a sum with Relu."""
        return self._append("ADD", [x, y], self.shapes[x], options("Add", fusedActivationFunction=_RELU))

    def classify(self, x: int, classes: int, gain: float = 1.0) -> int:
        """Add the mean over the image, a fully connected layer and softmax."""
        _, height, width, depth = self.shapes[x]
        pool = options("Pool2D", padding=1, strideH=height, strideW=width, filterHeight=height, filterWidth=width,
                       fusedActivationFunction=0)  # fmt: skip
        mean = self._append("AVERAGE_POOL_2D", [x], (1, 1, 1, depth), pool)
        shape = self._constant(_Weights(np.array([1, depth], np.int32)))
        flat = self._append("RESHAPE", [mean, shape], (1, depth), options("Reshape", newShape=[1, depth]))
        scores = self.dense(flat, classes, False, gain)
        return self._append("SOFTMAX", [scores], (1, classes), options("Softmax", beta=1.0))

    def file(self, numbers: str) -> bytes:
        """Return the TFLite file with float32 or int8 numbers."""
        floats = self._file([self._tensor(index) for index in range(len(self.shapes))])
        if numbers == "float32":
            return floats
        scales = self._scales(self._ranges(floats))
        return self._file([self._stored(index, scales) for index in range(len(self.shapes))])

    def _append(self, code: str, inputs: list[int], shape: tuple[int, ...], made: Any) -> int:
        self.shapes.append(shape)
        result = len(self.shapes) - 1
        self.operators.append(Op(code, inputs, [result], made))
        return result

    def _constant(self, weights: _Weights) -> int:
        self.shapes.append(weights.data.shape)
        self.weights[len(self.shapes) - 1] = weights
        return len(self.shapes) - 1

    def _product(self, code: str, x: int, weights: _Weights, shape: tuple[int, ...], made: Any) -> int:
        bias = _Weights(self._generator.normal(0, 0.1, shape[-1]).astype(np.float32))
        return self._append(code, [x, self._constant(weights), self._constant(bias)], shape, made)

    def _normal(self, shape: tuple[int, ...], terms: float) -> Array:
        """Return weights that keep the variance through Relu."""
        return self._generator.normal(0, (2 / terms) ** 0.5, shape).astype(np.float32)

    def _strided(self, x: int, stride: int, depth: int) -> tuple[int, ...]:
        _, height, width, _ = self.shapes[x]
        return 1, -(-height // stride), -(-width // stride), depth

    def _window(self, stride: int, relu: bool) -> dict[str, int]:
        strides = {"strideH": stride, "strideW": stride, "dilationHFactor": 1, "dilationWFactor": 1}
        return {"padding": 0, "fusedActivationFunction": _RELU if relu else 0, **strides}

    def _file(self, tensors: list[T]) -> bytes:
        return model(Subgraph(tensors, self.operators, [0], [len(tensors) - 1]))

    def _tensor(self, index: int) -> T:
        """Return a tensor of the float32 file."""
        weights = self.weights.get(index)
        if weights is None:
            return T("f32", self.shapes[index])
        return T("f32" if weights.data.dtype == np.float32 else "i32", self.shapes[index], weights.data)

    def _ranges(self, floats: bytes) -> Ranges:
        """Return the least and greatest number of each value, with zero among them, for random inputs."""
        interpreter = Interpreter(
            model_content=floats,
            experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=True,
        )
        interpreter.allocate_tensors()
        found: dict[int, tuple[float, float]] = {}
        for _ in range(CALIBRATIONS):
            interpreter.set_tensor(0, self._generator.standard_normal(self.shapes[0]).astype(np.float32))
            interpreter.invoke()
            for index in range(len(self.shapes)):
                if index not in self.weights:
                    value, (least, most) = interpreter.get_tensor(index), found.get(index, (0.0, 0.0))
                    found[index] = min(least, float(value.min())), max(most, float(value.max()))
        return found

    def _scales(self, ranges: Ranges) -> dict[int, tuple[Array, int]]:
        """Return the steps and the zero point of each tensor of the int8 file."""
        scales: dict[int, tuple[Array, int]] = {}
        for index, (least, most) in ranges.items():
            step = max(most - least, 1e-6) / 255
            scales[index] = np.array([step], np.float32), round(-128 - least / step)
        for operator in self.operators:
            result = operator.outputs[0]
            if operator.code in _LIKE_INPUT:
                scales[result] = scales[operator.inputs[0]]
            elif operator.code == "SOFTMAX":
                scales[result] = np.array([1 / 256], np.float32), -128
            elif len(operator.inputs) == 3:
                x, weights, bias = operator.inputs
                data, axis = self.weights[weights].data, self.weights[weights].axis
                others = tuple(each for each in range(data.ndim) if each != axis)
                steps = (np.abs(data).max(axis=others).reshape(-1) / 127).astype(np.float32)
                scales[weights] = steps, 0
                scales[bias] = scales[x][0] * steps, 0
        return scales

    def _stored(self, index: int, scales: Mapping[int, tuple[Array, int]]) -> T:
        """Return a tensor of the int8 file."""
        weights = self.weights.get(index)
        if weights is not None and weights.data.dtype != np.float32:
            return T("i32", self.shapes[index], weights.data)
        steps, zero = scales[index]
        if weights is None:
            return T("i8", self.shapes[index], None, steps, zero)
        axis = weights.axis or 0
        along = steps.reshape([-1 if each == axis else 1 for each in range(weights.data.ndim)])
        data = np.rint(weights.data / along)
        if weights.data.ndim == 1:
            return T("i32", self.shapes[index], data, steps)
        return T("i8", self.shapes[index], np.clip(data, -127, 127), steps, 0, axis)


def ad01() -> TinyNetwork:
    """Return the autoencoder that finds anomalies in sounds."""
    network, x = TinyNetwork([(1, 640)]), 0
    for units in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = network.dense(x, units)
    network.dense(x, 640, relu=False)
    return network


def ds_cnn() -> TinyNetwork:
    """Return the network that spots keywords, of separable convolutions."""
    network = TinyNetwork([(1, 49, 10, 1)])
    x = network.conv(0, 64, (10, 4), 2)
    for _ in range(4):
        x = network.conv(network.depthwise(x), 64, (1, 1))
    network.classify(x, 12)
    return network


def vww() -> TinyNetwork:
    """Return MobileNetV1 with a quarter of the channels, which sees whether a person is in an image."""
    network = TinyNetwork([(1, 96, 96, 3)])
    x = network.conv(0, 8, stride=2)
    steps = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2), (256, 1)]
    for filters, stride in steps:
        x = network.conv(network.depthwise(x, stride), filters, (1, 1))
    network.classify(x, 2)
    return network


def resnet8() -> TinyNetwork:
    """Return the residual network that classifies images of 32 x 32."""
    network = TinyNetwork([(1, 32, 32, 3)])
    x = network.conv(0, 16)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        y = network.conv(network.conv(x, filters, stride=stride), filters, relu=False)
        x = network.add(x if stride == 1 else network.conv(x, filters, (1, 1), stride, relu=False), y)
    # Sums add up variance, and softmax of great numbers says nothing about all but one of them.
    network.classify(x, 10, 0.2)
    return network


BUILDERS: dict[str, Callable[[], TinyNetwork]] = {"ad01": ad01, "ds_cnn": ds_cnn, "vww": vww, "resnet8": resnet8}
