"""Small ONNX models with random weights, each of another kind of network, to compare compilers' figures with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17


class Network:
    """A model under construction: nodes are added one after the other, each on the result of the last by default."""

    def __init__(self, dims: Sequence[int], seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.input = helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))
        self.last = "x"

    def constant(self, value: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def weights(self, *dims: int) -> str:
        return self.constant((self.rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs) or [self.last], [out], **attributes))
        self.last = out
        return out

    def conv(self, inputs: int, outputs: int, size: int = 3, group: int = 1, stride: int = 1) -> str:
        weights, bias = self.weights(outputs, inputs // group, size, size), self.weights(outputs)
        return self.add(
            "Conv", self.last, weights, bias, pads=[size // 2] * 4, group=group, strides=[stride] * 2,
            kernel_shape=[size, size],
        )  # fmt: skip

    def save(self, path: Path, dims: Sequence[int]) -> Path:
        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, list(dims))
        graph = helper.make_graph(self.nodes, "network", [self.input], [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        model.ir_version = 8
        onnx.checker.check_model(model)
        onnx.save(model, str(path))
        return path


def conv_chain(path: Path) -> Path:
    """Convolutions at one size: more live bytes than a small VTCM holds."""
    net = Network((1, 16, 96, 96))
    for _ in range(4):
        net.conv(16, 16)
        net.add("Relu")
    return net.save(path, (1, 16, 96, 96))


def separable(path: Path) -> Path:
    """Depth-wise and point-wise convolutions with strides."""
    net = Network((1, 8, 64, 64), 1)
    for inputs, outputs in ((8, 16), (16, 32), (32, 64)):
        net.conv(inputs, inputs, group=inputs, stride=2)
        net.add("Relu")
        net.conv(inputs, outputs, 1)
        net.add("Relu")
    return net.save(path, (1, 64, 8, 8))


def residual(path: Path) -> Path:
    """Sums over skip connections."""
    net = Network((1, 16, 32, 32), 2)
    for _ in range(3):
        before = net.last
        net.conv(16, 16)
        net.add("Relu")
        after = net.conv(16, 16)
        net.add("Add", before, after)
        net.add("Relu")
    return net.save(path, (1, 16, 32, 32))


def pooled(path: Path) -> Path:
    """Maxima between convolutions."""
    net = Network((1, 8, 48, 48), 3)
    net.conv(8, 16)
    net.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.conv(16, 24)
    net.add("AveragePool", kernel_shape=[2, 2], strides=[2, 2])
    return net.save(path, (1, 24, 12, 12))


def branches(path: Path) -> Path:
    """Results joined along channels."""
    net = Network((1, 16, 24, 24), 4)
    source = net.last
    ends = []
    for size in (1, 3, 5):
        net.last = source
        net.conv(16, 8, size)
        ends.append(net.add("Relu"))
    net.add("Concat", *ends, axis=1)
    net.conv(24, 16, 1)
    return net.save(path, (1, 16, 24, 24))


def attention(path: Path) -> Path:
    """Products of two activations, and a softmax."""
    net = Network((1, 4, 32, 16), 5)
    turned = net.add("Transpose", "x", perm=[0, 1, 3, 2])
    net.add("MatMul", "x", turned)
    soft = net.add("Softmax", axis=-1)
    net.add("MatMul", soft, "x")
    return net.save(path, (1, 4, 32, 16))


def activations(path: Path) -> Path:
    """Functions of single elements after a convolution."""
    net = Network((1, 16, 32, 32), 6)
    net.conv(16, 16)
    net.add("Sigmoid")
    net.conv(16, 16)
    net.add("Tanh")
    net.conv(16, 8, 1)
    return net.save(path, (1, 8, 32, 32))


def gated(path: Path) -> Path:
    """A product of two activations."""
    net = Network((1, 16, 40, 40), 7)
    value = net.conv(16, 16)
    net.last = "x"
    net.conv(16, 16)
    gate = net.add("Sigmoid")
    net.add("Mul", value, gate)
    net.conv(16, 16, 1)
    return net.save(path, (1, 16, 40, 40))


def large_chain(path: Path) -> Path:
    """Convolutions whose results do not fit into a small VTCM together."""
    net = Network((1, 32, 192, 192), 8)
    for _ in range(3):
        net.conv(32, 32)
        net.add("Relu")
    return net.save(path, (1, 32, 192, 192))


MODELS: dict[str, Callable[[Path], Path]] = {
    each.__name__: each
    for each in (conv_chain, separable, residual, pooled, branches, attention, activations, gated, large_chain)
}
