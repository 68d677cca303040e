"""Small ONNX models made on the spot, for tests of what surrounds the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def save(path: Path, nodes: list, inputs: dict, outputs: dict, constants: dict | None = None, opset: int = 17) -> Path:
    """Write a model with float inputs and outputs of the given shapes."""

    def info(name, spec):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(spec))

    graph = helper.make_graph(
        nodes,
        "tiny",
        [info(n, s) for n, s in inputs.items()],
        [info(n, s) for n, s in outputs.items()],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, str(path))
    return path


def wide(path: Path) -> Path:
    """Two convolutions with a large tensor between them, which tiles make smaller, and a pool."""
    generator = np.random.default_rng(0)
    constants = {
        "a": generator.standard_normal((32, 3, 3, 3)).astype(np.float32),
        "b": generator.standard_normal((4, 32, 3, 3)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["wide"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["wide", "b"], ["narrow"], name="second", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", ["narrow"], ["y"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    return save(path, nodes, {"x": [1, 3, 64, 64]}, {"y": [1, 4, 32, 32]}, constants)


def convolution(path: Path, height: int | str = 8, width: int | str = 8) -> Path:
    """A convolution with relu on an NCHW image, height and width possibly dynamic."""
    generator = np.random.default_rng(1)
    constants = {
        "w": generator.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "b": generator.standard_normal(4).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], name="conv_1"),
        helper.make_node("Relu", ["c"], ["y"], name="relu_1"),
    ]
    return save(path, nodes, {"x": [1, 3, height, width]}, {"y": [1, 4, height, width]}, constants)


def gate(path: Path, size: int = 1000) -> Path:
    """Elementwise: y = sigmoid(x) * x + s with a second input."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["g"]),
        helper.make_node("Mul", ["g", "x"], ["m"]),
        helper.make_node("Add", ["m", "s"], ["y"]),
    ]
    return save(path, nodes, {"x": [1, size], "s": [1, size]}, {"y": [1, size]})


def in_stages(path: Path) -> Path:
    """The sum of the elements that are not zero: how many there are is known only at run time."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Transpose", ["n"], ["t"]),
        helper.make_node("GatherND", ["x", "t"], ["v"]),
        helper.make_node("ReduceSum", ["v"], ["y"], keepdims=0),
    ]
    return save(path, nodes, {"x": [2, 3]}, {"y": []})
