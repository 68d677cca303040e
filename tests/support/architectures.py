"""Well-known networks with random weights as ONNX files, in the form in which an exporter leaves them for inference.

The architectures are complete: `Architecture.parameters` counts what is trained, as publications and PyTorch do, though
batch normalization is folded into the convolution before it where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

OPSET = 17
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Architecture:
    """A network as a file, with what it computes on.

    - `model`: The file.
    - `parameters`: How many numbers are trained.
    - `feeds`: Its inputs.
    """

    model: ModelProto
    parameters: int
    feeds: dict[str, Array]


@dataclass(frozen=True)
class ConvForm:
    """What a convolution has beside its window.

    - `pad`: Zeros around the image; by default as many as keep its size.
    - `bn`: Whether batch normalization is folded into it. Else it has a bias of its own, if `bias`.
    """

    pad: int | None = None
    group: int = 1
    act: str = ""
    bn: bool = True
    bias: bool = True


class Layers:
    """The nodes and weights of a network that is being built; each method adds a layer and returns its result's name.

    Images are [1, channels, height, width]; `shape` has the shape of every value.
    """

    def __init__(self, seed: int = 0) -> None:
        self._generator = np.random.default_rng(seed)
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._inputs: list[Any] = []
        self.feeds: dict[str, Array] = {}
        self.shape: dict[str, tuple[int, ...]] = {}
        self.parameters = 0

    def input(self, *shape: int, most: int = 0) -> str:
        """Add the input: floats, or integers below `most`."""
        value: Array = self._generator.standard_normal(shape).astype(np.float32)
        if most:
            value = self._generator.integers(0, most, shape)
        self.feeds["x"] = value
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        self._inputs.append(helper.make_tensor_value_info("x", kind, shape))
        self.shape["x"] = shape
        return "x"

    def constant(self, array: Any) -> str:
        """Add a constant."""
        name = f"c{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def weights(self, *shape: int, fan_in: int, gain: float = 1.0) -> str:
        """Add random weights that keep the size of numbers."""
        scale = gain / math.sqrt(fan_in)
        return self.constant(self._generator.standard_normal(shape, np.float32) * np.float32(scale))

    def node(self, op: str, inputs: Sequence[str], shape: Sequence[int], outputs: int = 1, **attributes: Any) -> str:
        """Add a node of ONNX; `shape` is that of its first result."""
        names = [f"v{len(self._nodes)}" + (f"_{i}" if i else "") for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, names[0], **attributes))
        self.shape[names[0]] = tuple(shape)
        return names[0]

    # -- layers of convolutional networks ----------------------------------------------------------------------------

    def conv(self, x: str, filters: int, size: int = 1, stride: int = 1, **form: Any) -> str:
        """Add a convolution and an activation; `form` are the fields of a `ConvForm`."""
        return self._conv(x, filters, (size, stride), ConvForm(**form))

    def _conv(self, x: str, filters: int, window: tuple[int, int], form: ConvForm) -> str:
        (size, stride), group, act = window, form.group, form.act
        _, channels, height, width = self.shape[x]
        pad = size // 2 if form.pad is None else form.pad
        fan_in = channels // group * size * size
        weights = self.weights(filters, channels // group, size, size, fan_in=fan_in, gain=1.4 if act else 1.0)
        operands = [x, weights, self.weights(filters, fan_in=100)] if form.bias else [x, weights]
        self.parameters += filters * fan_in + form.bias * (2 * filters if form.bn else filters)
        out = ((height + 2 * pad - size) // stride + 1, (width + 2 * pad - size) // stride + 1)
        y = self.node(
            "Conv", operands, (1, filters, *out), kernel_shape=[size] * 2, strides=[stride] * 2,
            pads=[pad] * 4, group=group,
        )  # fmt: skip
        return self.act(y, act)

    def act(self, x: str, kind: str) -> str:
        """Add an activation by name; none for the empty one."""
        shape = self.shape[x]
        if kind == "":
            return x
        if kind == "Relu6":
            return self.node("Clip", [x, self.constant(np.float32(0)), self.constant(np.float32(6))], shape)
        if kind == "Silu":
            return self.node("Mul", [x, self.node("Sigmoid", [x], shape)], shape)
        if kind == "HardSigmoid":
            return self.node("HardSigmoid", [x], shape, alpha=1 / 6)
        if kind == "LeakyRelu":
            return self.node("LeakyRelu", [x], shape, alpha=0.1)
        if kind == "Gelu":
            scaled = self.node("Div", [x, self.constant(np.float32(math.sqrt(2)))], shape)
            above = self.node("Add", [self.node("Erf", [scaled], shape), self.constant(np.float32(1))], shape)
            return self.node("Mul", [self.node("Mul", [x, above], shape), self.constant(np.float32(0.5))], shape)
        return self.node(kind, [x], shape)

    def batch_norm(self, x: str) -> str:
        """Add a batch normalization that no convolution can take."""
        channels = self.shape[x][1]
        self.parameters += 2 * channels
        mean, noise = self.weights(channels, fan_in=100), self.weights(channels, fan_in=100)
        one, variance = self.constant(np.full(channels, 1, np.float32)), self.constant(np.full(channels, 2, np.float32))
        return self.node("BatchNormalization", [x, one, noise, mean, variance], self.shape[x])

    def pool(self, x: str, size: int = 3, stride: int = 2, pad: int = 0, ceil: bool = False) -> str:
        """Add a pooling by the maximum."""
        _, channels, *sides = self.shape[x]
        out = []
        for side in sides:
            steps = side + 2 * pad - size
            last = -(-steps // stride) if ceil else steps // stride
            # A window that would begin in the padding behind the image is left out.
            out.append(last if ceil and last * stride >= side + pad else last + 1)
        return self.node(
            "MaxPool", [x], (1, channels, *out), kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4,
            ceil_mode=int(ceil),
        )  # fmt: skip

    def add(self, x: str, y: str) -> str:
        """Add the sum of two values."""
        return self.node("Add", [x, y], self.shape[x])

    def concat(self, *values: str) -> str:
        """Add the concatenation of images along their channels."""
        _, _, height, width = self.shape[values[0]]
        return self.node("Concat", values, (1, sum(self.shape[v][1] for v in values), height, width), axis=1)

    def mean(self, x: str) -> str:
        """Add the mean over all pixels."""
        return self.node("GlobalAveragePool", [x], (1, self.shape[x][1], 1, 1))

    def squeeze_excite(self, x: str, squeezed: int, act: str = "Relu", gate: str = "Sigmoid") -> str:
        """Add a squeeze-and-excitation."""
        y = self.conv(self.mean(x), squeezed, act=act, bn=False)
        y = self.conv(y, self.shape[x][1], act=gate, bn=False)
        return self.node("Mul", [x, y], self.shape[x])

    def head(self, x: str, classes: int = 1000) -> str:
        """Add a classifier behind the mean over all pixels."""
        x = self.node("Flatten", [self.mean(x)], (1, self.shape[x][1]), axis=1)
        return self.gemm(x, classes)

    def gemm(self, x: str, features: int) -> str:
        """Add a fully connected layer of one row."""
        depth = self.shape[x][1]
        self.parameters += depth * features + features
        weights = self.weights(features, depth, fan_in=depth)
        return self.node("Gemm", [x, weights, self.weights(features, fan_in=100)], (1, features), transB=1)

    # -- layers of transformers --------------------------------------------------------------------------------------

    def linear(self, x: str, features: int) -> str:
        """Add a linear layer over the last axis."""
        *rest, depth = self.shape[x]
        self.parameters += depth * features + features
        y = self.node("MatMul", [x, self.weights(depth, features, fan_in=depth)], (*rest, features))
        return self.node("Add", [self.weights(features, fan_in=100), y], (*rest, features))

    def layer_norm(self, x: str) -> str:
        """Add a layer normalization over the last axis."""
        size = self.shape[x][-1]
        self.parameters += 2 * size
        scale, bias = self.constant(np.ones(size, np.float32)), self.weights(size, fan_in=100)
        return self.node("LayerNormalization", [x, scale, bias], self.shape[x], axis=-1, epsilon=1e-6)

    def permuted(self, x: str, *axes: int) -> str:
        """Add a transposition."""
        return self.node("Transpose", [x], [self.shape[x][a] for a in axes], perm=axes)

    def reshaped(self, x: str, *shape: int) -> str:
        """Add a reshape."""
        return self.node("Reshape", [x, self.constant(np.array(shape))], shape)

    def attention(self, x: str, heads: int) -> str:
        """Add self-attention of [1, positions, size]."""
        _, count, size = self.shape[x]
        each = size // heads
        joined = self.reshaped(self.linear(x, 3 * size), 1, count, 3, heads, each)
        parts = self.permuted(joined, 2, 0, 3, 1, 4)
        q, k, v = (
            self.node("Gather", [parts, self.constant(np.int64(i))], (1, heads, count, each), axis=0) for i in range(3)
        )
        q = self.node("Mul", [q, self.constant(np.float32(each**-0.5))], self.shape[q])
        scores = self.node("MatMul", [q, self.permuted(k, 0, 1, 3, 2)], (1, heads, count, count))
        weights = self.node("Softmax", [scores], self.shape[scores], axis=-1)
        mixed = self.permuted(self.node("MatMul", [weights, v], self.shape[v]), 0, 2, 1, 3)
        return self.linear(self.reshaped(mixed, 1, count, size), size)

    def finished(self, name: str, *outputs: str) -> Architecture:
        """Return the network with these outputs."""
        infos = [helper.make_tensor_value_info(o, TensorProto.FLOAT, self.shape[o]) for o in outputs]
        graph = helper.make_graph(self._nodes, name, self._inputs, infos, self._weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
        return Architecture(model, self.parameters, self.feeds)


def _divisible(value: float) -> int:
    """Round a number of channels to a multiple of 8, by at most a tenth down, as MobileNets do."""
    rounded = max(8, int(value + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * value else rounded


def _mobilenet_v2(b: Layers) -> list[str]:
    x = b.conv(b.input(1, 3, 224, 224), 32, 3, 2, act="Relu6")
    for expansion, filters, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for i in range(count):
            width = b.shape[x][1] * expansion
            x = _inverted_residual(b, x, _Inverted(width, filters, 3, 1 if i else stride, "Relu6"))
    return [b.head(b.conv(x, 1280, act="Relu6"))]


@dataclass(frozen=True)
class _Inverted:
    """An inverted residual block; `squeezed` is the width inside of squeeze-and-excitation, 0 if it has none."""

    expanded: int
    filters: int
    size: int
    stride: int
    act: str
    squeezed: int = 0
    gates: tuple[str, str] = ("", "")


def _inverted_residual(b: Layers, x: str, block: _Inverted) -> str:
    channels, expanded = b.shape[x][1], block.expanded
    y = x if expanded == channels else b.conv(x, expanded, act=block.act)
    y = b.conv(y, expanded, block.size, block.stride, group=expanded, act=block.act)
    if block.squeezed:
        y = b.squeeze_excite(y, block.squeezed, *block.gates)
    y = b.conv(y, block.filters)
    return b.add(x, y) if block.stride == 1 and channels == block.filters else y


def _mobilenet_v3_small(b: Layers) -> list[str]:
    x = b.conv(b.input(1, 3, 224, 224), 16, 3, 2, act="HardSwish")
    for size, expanded, filters, squeezes, act, stride in (
        (3, 16, 16, 1, "Relu", 2), (3, 72, 24, 0, "Relu", 2), (3, 88, 24, 0, "Relu", 1), (5, 96, 40, 1, "HardSwish", 2),
        (5, 240, 40, 1, "HardSwish", 1), (5, 240, 40, 1, "HardSwish", 1), (5, 120, 48, 1, "HardSwish", 1),
        (5, 144, 48, 1, "HardSwish", 1), (5, 288, 96, 1, "HardSwish", 2), (5, 576, 96, 1, "HardSwish", 1),
        (5, 576, 96, 1, "HardSwish", 1),
    ):  # fmt: skip
        squeezed = _divisible(expanded / 4) if squeezes else 0
        block = _Inverted(expanded, filters, size, stride, act, squeezed, ("Relu", "HardSigmoid"))
        x = _inverted_residual(b, x, block)
    x = b.mean(b.conv(x, 576, act="HardSwish"))
    x = b.act(b.gemm(b.node("Flatten", [x], (1, 576), axis=1), 1024), "HardSwish")
    return [b.gemm(x, 1000)]


def _efficientnet_b0(b: Layers) -> list[str]:
    x = b.conv(b.input(1, 3, 224, 224), 32, 3, 2, act="Silu")
    for expansion, size, stride, filters, count in (
        (1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
        (6, 3, 1, 320, 1),
    ):  # fmt: skip
        for i in range(count):
            channels, stride = b.shape[x][1], 1 if i else stride
            block = _Inverted(channels * expansion, filters, size, stride, "Silu", channels // 4, ("Silu", "Sigmoid"))
            x = _inverted_residual(b, x, block)
    return [b.head(b.conv(x, 1280, act="Silu"))]


def _resnet(counts: Sequence[int], bottleneck: bool) -> Callable[[Layers], list[str]]:
    def build(b: Layers) -> list[str]:
        x = b.pool(b.conv(b.input(1, 3, 224, 224), 64, 7, 2, act="Relu"), pad=1)
        for stage, count in enumerate(counts):
            width = 64 << stage
            filters = 4 * width if bottleneck else width
            for i in range(count):
                stride = 2 if stage and not i else 1
                if bottleneck:
                    y = b.conv(b.conv(x, width, act="Relu"), width, 3, stride, act="Relu")
                    y = b.conv(y, filters)
                else:
                    y = b.conv(b.conv(x, width, 3, stride, act="Relu"), width, 3)
                if stride > 1 or b.shape[x][1] != filters:
                    x = b.conv(x, filters, 1, stride)
                x = b.act(b.add(y, x), "Relu")
        return [b.head(x)]

    return build


def _squeezenet1_1(b: Layers) -> list[str]:
    x = b.conv(b.input(1, 3, 224, 224), 64, 3, 2, pad=0, act="Relu", bn=False)
    for i, (squeezed, filters) in enumerate(
        ((16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256))
    ):
        x = b.pool(x, ceil=True) if i in (0, 2, 4) else x
        x = b.conv(x, squeezed, act="Relu", bn=False)
        x = b.concat(b.conv(x, filters, act="Relu", bn=False), b.conv(x, filters, 3, act="Relu", bn=False))
    return [b.mean(b.conv(x, 1000, act="Relu", bn=False))]


def _shufflenet_v2_x1_0(b: Layers) -> list[str]:
    x = b.pool(b.conv(b.input(1, 3, 224, 224), 24, 3, 2, act="Relu"), pad=1)
    for filters, count in ((116, 4), (232, 8), (464, 4)):
        half = filters // 2
        for i in range(count):
            if i == 0:
                channels = b.shape[x][1]
                left = b.conv(b.conv(x, channels, 3, 2, group=channels), half, act="Relu")
                right, stride = x, 2
            else:
                _, _, height, width = b.shape[x]
                left = b.node("Split", [x, b.constant(np.array([half, half]))], (1, half, height, width), 2, axis=1)
                right, stride = f"{left}_1", 1
                b.shape[right] = b.shape[left]
            right = b.conv(b.conv(right, half, act="Relu"), half, 3, stride, group=half)
            x = b.concat(left, b.conv(right, half, act="Relu"))
            _, _, height, width = b.shape[x]
            x = b.permuted(b.reshaped(x, 1, 2, half, height, width), 0, 2, 1, 3, 4)
            x = b.reshaped(x, 1, filters, height, width)
    return [b.head(b.conv(x, 1024, act="Relu"))]


def _mnasnet1_0(b: Layers) -> list[str]:
    x = b.conv(b.input(1, 3, 224, 224), 32, 3, 2, act="Relu")
    x = b.conv(b.conv(x, 32, 3, group=32, act="Relu"), 16)
    for expansion, size, stride, filters, count in (
        (3, 3, 2, 24, 3), (3, 5, 2, 40, 3), (6, 5, 2, 80, 3), (6, 3, 1, 96, 2), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1),
    ):  # fmt: skip
        for i in range(count):
            width = b.shape[x][1] * expansion
            x = _inverted_residual(b, x, _Inverted(width, filters, size, 1 if i else stride, "Relu"))
    return [b.head(b.conv(x, 1280, act="Relu"))]


def _regnet_y_400mf(b: Layers) -> list[str]:
    x = b.conv(b.input(1, 3, 224, 224), 32, 3, 2, act="Relu")
    for width, count in ((48, 1), (104, 3), (208, 6), (440, 6)):
        for i in range(count):
            stride, channels = 1 if i else 2, b.shape[x][1]
            y = b.conv(b.conv(x, width, act="Relu"), width, 3, stride, group=width // 8, act="Relu")
            y = b.conv(b.squeeze_excite(y, round(channels / 4)), width)
            x = b.act(b.add(x if i else b.conv(x, width, 1, 2), y), "Relu")
    return [b.head(x)]


def _densenet121(b: Layers) -> list[str]:
    x = b.pool(b.conv(b.input(1, 3, 224, 224), 64, 7, 2, act="Relu"), pad=1)
    for stage, count in enumerate((6, 12, 24, 16)):
        if stage:
            y = b.conv(b.act(b.batch_norm(x), "Relu"), b.shape[x][1] // 2, bias=False)
            _, channels, height, width = b.shape[y]
            x = b.node("AveragePool", [y], (1, channels, height // 2, width // 2), kernel_shape=[2, 2], strides=[2, 2])
        for _ in range(count):
            y = b.conv(b.act(b.batch_norm(x), "Relu"), 128, act="Relu")
            x = b.concat(x, b.conv(y, 32, 3, bias=False))
    return [b.head(b.act(b.batch_norm(x), "Relu"))]


def _convnext_tiny(b: Layers) -> list[str]:
    def norm(x: str) -> str:
        return b.permuted(b.layer_norm(b.permuted(x, 0, 2, 3, 1)), 0, 3, 1, 2)

    x = norm(b.conv(b.input(1, 3, 224, 224), 96, 4, 4, pad=0, bn=False))
    for stage, (width, count) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3))):
        if stage:
            x = b.conv(norm(x), width, 2, 2, pad=0, bn=False)
        for _ in range(count):
            y = b.permuted(b.conv(x, width, 7, group=width, bn=False), 0, 2, 3, 1)
            y = b.linear(b.act(b.linear(b.layer_norm(y), 4 * width), "Gelu"), width)
            b.parameters += width
            scale = b.weights(width, 1, 1, fan_in=1)
            y = b.permuted(y, 0, 3, 1, 2)
            x = b.add(b.node("Mul", [y, scale], b.shape[y]), x)
    x = norm(b.mean(x))
    return [b.gemm(b.node("Flatten", [x], (1, 768), axis=1), 1000)]


def _vit_b_16(b: Layers) -> list[str]:
    x = b.reshaped(b.conv(b.input(1, 3, 224, 224), 768, 16, 16, pad=0, bn=False), 1, 768, 196)
    b.parameters += 768 + 197 * 768
    token, positions = b.weights(1, 1, 768, fan_in=1), b.weights(1, 197, 768, fan_in=1)
    x = b.node("Concat", [token, b.permuted(x, 0, 2, 1)], (1, 197, 768), axis=1)
    x = b.add(x, positions)
    for _ in range(12):
        x = b.add(b.attention(b.layer_norm(x), 12), x)
        x = b.add(x, b.linear(b.act(b.linear(b.layer_norm(x), 3072), "Gelu"), 768))
    x = b.node("Gather", [b.layer_norm(x), b.constant(np.int64(0))], (1, 768), axis=1)
    return [b.gemm(x, 1000)]


def _googlenet(b: Layers) -> list[str]:
    x = b.pool(b.conv(b.input(1, 3, 224, 224), 64, 7, 2, act="Relu"), ceil=True)
    x = b.pool(b.conv(b.conv(x, 64, act="Relu"), 192, 3, act="Relu"), ceil=True)
    blocks = (
        (64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64), (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64), (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
        (256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128),
    )  # fmt: skip
    for i, (one, narrow, wide, few, many, pooled) in enumerate(blocks):
        x = b.pool(x, ceil=True) if i == 2 else b.pool(x, size=2, ceil=True) if i == 7 else x
        x = b.concat(
            b.conv(x, one, act="Relu"),
            b.conv(b.conv(x, narrow, act="Relu"), wide, 3, act="Relu"),
            b.conv(b.conv(x, few, act="Relu"), many, 3, act="Relu"),
            b.conv(b.pool(x, stride=1, pad=1, ceil=True), pooled, act="Relu"),
        )
    return [b.head(x)]


def _unet(b: Layers) -> list[str]:
    def double(x: str, filters: int) -> str:
        return b.conv(b.conv(x, filters, 3, act="Relu"), filters, 3, act="Relu")

    x = b.input(1, 3, 224, 224)
    levels = []
    for filters in (64, 128, 256, 512):
        levels.append(double(x, filters))
        x = b.pool(levels[-1], size=2)
    x = double(x, 1024)
    for level in reversed(levels):
        filters = b.shape[level][1]
        weights = b.weights(2 * filters, filters, 2, 2, fan_in=2 * filters)
        b.parameters += 2 * filters * filters * 4 + filters
        bias = b.weights(filters, fan_in=100)
        up = b.node("ConvTranspose", [x, weights, bias], b.shape[level], kernel_shape=[2, 2], strides=[2, 2])
        x = double(b.concat(level, up), filters)
    return [b.conv(x, 2, bn=False)]


def _yolov3_tiny(b: Layers) -> list[str]:
    x = b.input(1, 3, 416, 416)
    for filters in (16, 32, 64, 128):
        x = b.pool(b.conv(x, filters, 3, act="LeakyRelu"), size=2)
    fine = b.conv(x, 256, 3, act="LeakyRelu")
    x = b.conv(b.pool(fine, size=2), 512, 3, act="LeakyRelu")
    # A pooling of stride 1, whose last window of each row and column has one pixel less.
    x = b.node("MaxPool", [x], b.shape[x], kernel_shape=[2, 2], pads=[0, 0, 1, 1])
    middle = b.conv(b.conv(x, 1024, 3, act="LeakyRelu"), 256, act="LeakyRelu")
    coarse = b.conv(b.conv(middle, 512, 3, act="LeakyRelu"), 255, bn=False)
    x = b.conv(middle, 128, act="LeakyRelu")
    scales = b.constant(np.array([1, 1, 2, 2], np.float32))
    x = b.node(
        "Resize", [x, "", scales], (1, 128, 26, 26), mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )  # fmt: skip
    return [coarse, b.conv(b.conv(b.concat(x, fine), 256, 3, act="LeakyRelu"), 255, bn=False)]


def _conformer_block(b: Layers) -> list[str]:
    size, count = 256, 200
    x = b.input(1, count, size)

    def feed_forward(x: str) -> str:
        y = b.linear(b.act(b.linear(b.layer_norm(x), 4 * size), "Silu"), size)
        return b.add(b.node("Mul", [y, b.constant(np.float32(0.5))], b.shape[y]), x)

    def conv(x: str, filters: int, taps: int = 1, group: int = 1, bn: bool = False) -> str:
        depth = size // group * taps
        weights, bias = b.weights(filters, size // group, taps, fan_in=depth), b.weights(filters, fan_in=100)
        b.parameters += filters * depth + filters + (2 * filters if bn else 0)
        return b.node(
            "Conv", [x, weights, bias], (1, filters, count), kernel_shape=[taps], pads=[taps // 2] * 2, group=group
        )

    x = feed_forward(x)
    x = b.add(x, b.attention(b.layer_norm(x), 4))
    y = conv(b.permuted(b.layer_norm(x), 0, 2, 1), 2 * size)
    value = b.node("Split", [y, b.constant(np.array([size, size]))], (1, size, count), 2, axis=1)
    gate = b.node("Sigmoid", [f"{value}_1"], (1, size, count))
    y = b.node("Mul", [value, gate], (1, size, count))
    y = b.act(conv(y, size, 31, size, bn=True), "Silu")
    x = b.add(x, b.permuted(conv(y, size), 0, 2, 1))
    return [b.layer_norm(feed_forward(x))]


def _lstm_tagger(b: Layers) -> list[str]:
    words, size, hidden, count = 10_000, 128, 256, 64
    b.parameters += words * size
    x = b.node("Gather", [b.weights(words, size, fan_in=1), b.input(count, 1, most=words)], (count, 1, size), axis=0)
    for _ in range(2):
        depth = b.shape[x][-1]
        b.parameters += 2 * 4 * hidden * (depth + hidden + 2)
        weights = [
            b.weights(2, 4 * hidden, depth, fan_in=depth), b.weights(2, 4 * hidden, hidden, fan_in=hidden),
            b.weights(2, 8 * hidden, fan_in=100),
        ]  # fmt: skip
        y = b.node("LSTM", [x, *weights], (count, 2, 1, hidden), hidden_size=hidden, direction="bidirectional")
        x = b.reshaped(b.permuted(y, 0, 2, 1, 3), count, 1, 2 * hidden)
    return [b.linear(x, 17)]


BUILDERS: dict[str, Callable[[Layers], list[str]]] = {
    "mobilenet_v2": _mobilenet_v2,
    "mobilenet_v3_small": _mobilenet_v3_small,
    "efficientnet_b0": _efficientnet_b0,
    "resnet18": _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet50": _resnet((3, 4, 6, 3), bottleneck=True),
    "squeezenet1_1": _squeezenet1_1,
    "shufflenet_v2_x1_0": _shufflenet_v2_x1_0,
    "mnasnet1_0": _mnasnet1_0,
    "regnet_y_400mf": _regnet_y_400mf,
    "densenet121": _densenet121,
    "convnext_tiny": _convnext_tiny,
    "vit_b_16": _vit_b_16,
    "googlenet": _googlenet,
    "unet": _unet,
    "yolov3_tiny": _yolov3_tiny,
    "conformer_block": _conformer_block,
    "lstm_tagger": _lstm_tagger,
}
"""Functions that add a network's layers and return its outputs, by name."""


def build(name: str) -> Architecture:
    """Return a network by its name in `BUILDERS`; its weights are the same each time."""
    layers = Layers()
    return layers.finished(name, *BUILDERS[name](layers))
