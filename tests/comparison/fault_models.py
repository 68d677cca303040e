"""Models in which faults are planted: a network of floats, the same network quantized, and ways to damage them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from support import tiny

from isthmus.comparison.subject import open_model
from isthmus.engine.native import lower
from isthmus.engine.native.lowering import quantized
from isthmus.frontends import ModelSource


def network(path: Path, seed: int = 0) -> Path:
    """A small convolutional network with a residual, a gate and a head of matrices, all in floats."""
    rng = np.random.default_rng(seed)

    def weights(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32) / np.float32(np.sqrt(np.prod(shape[1:])))

    constants = {
        "conv1.w": weights(8, 3, 3, 3), "conv1.b": weights(8), "dw.w": weights(8, 1, 3, 3), "dw.b": weights(8),
        "conv2.w": weights(8, 8, 1, 1), "conv2.b": weights(8), "mm.w": weights(8, 9), "norm.scale": weights(9) + 1,
        "norm.bias": weights(9), "shape": np.array([1, 9, 8]), "slope": np.float32([[[0.3]]] * 8),
    }  # fmt: skip
    node = helper.make_node
    pads = [1, 1, 1, 1]
    nodes = [
        node("Conv", ["x", "conv1.w", "conv1.b"], ["conv1.y"], name="conv1", pads=pads),
        node("Relu", ["conv1.y"], ["relu1.y"], name="relu1"),
        node("MaxPool", ["relu1.y"], ["pool1.y"], name="pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["pool1.y", "dw.w", "dw.b"], ["dw.y"], name="dw", pads=pads, group=8),
        node("Sigmoid", ["dw.y"], ["gate.y"], name="gate"),
        node("Mul", ["dw.y", "gate.y"], ["mul.y"], name="mul"),
        node("Add", ["mul.y", "pool1.y"], ["add.y"], name="add"),
        node("Conv", ["add.y", "conv2.w", "conv2.b"], ["conv2.y"], name="conv2"),
        node("PRelu", ["conv2.y", "slope"], ["prelu.y"], name="prelu"),
        node("AveragePool", ["prelu.y"], ["pool2.y"], name="pool2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Transpose", ["pool2.y"], ["turn.y"], name="turn", perm=[0, 2, 3, 1]),
        node("Reshape", ["turn.y", "shape"], ["rows.y"], name="rows"),
        node("MatMul", ["rows.y", "mm.w"], ["mm.y"], name="mm"),
        node("LayerNormalization", ["mm.y", "norm.scale", "norm.bias"], ["norm.y"], name="norm"),
        node("Softmax", ["norm.y"], ["soft.y"], name="soft", axis=-1),
        node("Transpose", ["soft.y"], ["flip.y"], name="flip", perm=[0, 2, 1]),
        node("MatMul", ["flip.y", "norm.y"], ["mix.y"], name="mix"),
        node("ReduceMean", ["mix.y"], ["mean.y"], name="mean", axes=[2], keepdims=1),
        node("Sub", ["mix.y", "mean.y"], ["sub.y"], name="sub"),
        node("Concat", ["sub.y", "soft.y"], ["y"], name="join", axis=1),
    ]
    return tiny.save(path, nodes, {"x": [1, 3, 12, 12]}, {"y": [1, 18, 9]}, constants)


def calibration() -> dict[str, np.ndarray]:
    """The inputs by which the quantized network gets its ranges."""
    return {"x": np.random.default_rng(5).uniform(-1, 1, (1, 3, 12, 12)).astype(np.float32)}


QUANTIZED_WEIGHTS = ("conv1.w", "dw.w", "conv2.w", "mm.w")


def quantized_network(path: Path, source: Path) -> Path:
    """The network with QuantizeLinear and DequantizeLinear behind every tensor, and weights of 8 bits."""
    ranges = open_model(ModelSource(source)).reference(calibration())
    model = onnx.load(source)
    graph = model.graph
    nodes, constants, renamed = [], [], {}

    def pair(name: str, stored: str, scale: float, zero: np.generic) -> None:
        constants.extend((numpy_helper.from_array(np.float32(scale), f"{name}/scale"),
                          numpy_helper.from_array(np.asarray(zero), f"{name}/zero")))  # fmt: skip
        operands = [f"{name}/scale", f"{name}/zero"]
        if stored == f"{name}/q":
            nodes.append(helper.make_node("QuantizeLinear", [name, *operands], [stored], name=f"{name}/quantize"))
        renamed[name] = f"{name}/d"
        nodes.append(helper.make_node("DequantizeLinear", [stored, *operands], [renamed[name]], f"{name}/dequantize"))

    for tensor in list(graph.initializer):
        if tensor.name in QUANTIZED_WEIGHTS:
            array = numpy_helper.to_array(tensor)
            scale = float(np.abs(array).max()) / 127
            stored = np.clip(np.rint(array / scale), -127, 127).astype(np.int8)
            graph.initializer.remove(tensor)
            constants.append(numpy_helper.from_array(stored, f"{tensor.name}/stored"))
            pair(tensor.name, f"{tensor.name}/stored", scale, np.int8(0))

    def activation(name: str) -> None:
        low, high = min(float(ranges[name].min()), 0.0), max(float(ranges[name].max()), 0.0)
        scale = (high - low) / 255
        pair(name, f"{name}/q", scale, np.uint8(round(-low / scale)))

    activation("x")
    outputs = {value.name for value in graph.output}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = renamed.get(name, name)
        nodes.append(node)
        if node.output[0] not in outputs:
            activation(node.output[0])
    made = helper.make_graph(nodes, "quantized", graph.input, graph.output, [*graph.initializer, *constants])
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def transformer(path: Path) -> Path:
    """Attention and a feed-forward part on a sequence of 12 rows."""
    rng = np.random.default_rng(3)
    constants = {name: (rng.standard_normal((16, 16)) / 4).astype(np.float32) for name in "qkvofg"}
    constants |= {"one": np.ones(16, np.float32), "zero": np.zeros(16, np.float32), "root": np.float32(4)}
    node = helper.make_node
    nodes = [
        *(node("MatMul", ["x", name], [f"{name}.y"], name=f"{name}_proj") for name in ("q", "k", "v")),
        node("Transpose", ["k.y"], ["kt"], name="turn", perm=[0, 2, 1]),
        node("MatMul", ["q.y", "kt"], ["scores"], name="scores"),
        node("Div", ["scores", "root"], ["scaled"], name="scale"),
        node("Softmax", ["scaled"], ["p"], name="soft"),
        node("MatMul", ["p", "v.y"], ["context"], name="context"),
        node("MatMul", ["context", "o"], ["o.y"], name="o_proj"),
        node("Add", ["o.y", "x"], ["residual"], name="residual"),
        node("LayerNormalization", ["residual", "one", "zero"], ["n"], name="norm"),
        node("MatMul", ["n", "f"], ["f.y"], name="f_proj"),
        node("Erf", ["f.y"], ["e"], name="erf"),
        node("Mul", ["f.y", "e"], ["act"], name="act"),
        node("MatMul", ["act", "g"], ["g.y"], name="g_proj"),
        node("Add", ["g.y", "residual"], ["y"], name="last"),
    ]
    return tiny.save(path, nodes, {"x": [1, 12, 16]}, {"y": [1, 12, 16]}, constants)


# -- faults in files ---------------------------------------------------------------------------------------------------


def constant(change: Callable[[np.ndarray], np.ndarray], name: str) -> Callable[[onnx.ModelProto], None]:
    """A fault that changes a constant of a model."""

    def damage(model: onnx.ModelProto) -> None:
        tensor = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(change(array), array.dtype), name))

    return damage


def clipped(name: str) -> Callable[[onnx.ModelProto], None]:
    """Weights limited to a quarter of their range, as by a wrong calibration."""
    return constant(lambda array: np.clip(array, -np.abs(array).max() / 4, np.abs(array).max() / 4), name)


def scaled(name: str, factor: float) -> Callable[[onnx.ModelProto], None]:
    """A scale multiplied by a factor."""
    return constant(lambda array: array * np.float32(factor), f"{name}/scale")


def shifted(name: str, steps: int) -> Callable[[onnx.ModelProto], None]:
    """A zero point that is off by some steps."""
    return constant(lambda array: array + array.dtype.type(steps), f"{name}/zero")


def attribute(node: str, name: str, value: object) -> Callable[[onnx.ModelProto], None]:
    """A fault that changes an attribute of a node."""

    def damage(model: onnx.ModelProto) -> None:
        found = next(each for each in model.graph.node if each.name == node)
        kept = [each for each in found.attribute if each.name != name]
        del found.attribute[:]
        found.attribute.extend([*kept, helper.make_attribute(name, value)])

    return damage


def operands(node: str, *order: int) -> Callable[[onnx.ModelProto], None]:
    """A fault that reorders the operands of a node."""

    def damage(model: onnx.ModelProto) -> None:
        found = next(each for each in model.graph.node if each.name == node)
        found.input[:] = [found.input[index] for index in order]

    return damage


def damaged(path: Path, source: Path, damage: Callable[[onnx.ModelProto], None]) -> Path:
    """Write a damaged copy of a model."""
    model = onnx.load(source)
    damage(model)
    onnx.save(model, path)
    return path


# -- faults in kernels -------------------------------------------------------------------------------------------------


@contextmanager
def wrong_kernel(op: str, change: Callable, in_8_bits: bool = False) -> Iterator[None]:
    """Let the engine lower an operation of floats, or of 8 bits, to a changed step."""
    table = quantized.QUANTIZED if in_8_bits else lower._PLAIN
    right = table[op]
    covers, entry = right if in_8_bits else (None, right)
    wrong = replace(entry, emit=lambda step, emitter: entry.emit(replace(step, **change(step)), emitter))
    table[op] = (covers, wrong) if in_8_bits else wrong
    try:
        yield
    finally:
        table[op] = right


def parameter(**values: object) -> Callable:
    """A change of a step's parameters."""
    return lambda step: {"params": {**step.params, **values}}


def swap(step) -> dict:
    """A change of the order of the first two operands."""
    return {"inputs": [step.inputs[1], step.inputs[0], *step.inputs[2:]]}


def turned(step) -> dict:
    """A product with the transpose of a square second operand."""
    x, weights = step.inputs[:2]
    square = weights.dims[-1] == weights.dims[-2] == x.dims[-1]
    return {"params": {**step.params, "transpose_in1": square != bool(step.params["transpose_in1"])}}


def without_bias(step) -> dict:
    """A product that forgets its bias."""
    return {"inputs": [*step.inputs[:2], None]}


def clamped(step) -> dict:
    """A result that is limited although it must not be."""
    return {"clamp": (-0.05, 0.05)}


def quantized_relu(path: Path, low: float, high: float) -> tuple[Path, Path]:
    """A model that limits its input to the range of a quantizer, and that model without the quantizer."""
    node = onnx.helper.make_node
    scale = np.float32((high - low) / 255)
    constants = {"scale": scale, "zero": np.uint8(round(-low / scale))}
    operands = ["scale", "zero"]
    nodes = [
        node("QuantizeLinear", ["turn.y", *operands], ["q"], name="quantize"),
        node("DequantizeLinear", ["q", *operands], ["d"], name="dequantize"),
    ]
    turn = node("Transpose", ["x"], ["turn.y"], name="turn", perm=[0, 2, 1])
    shape = {"x": [1, 8, 64]}, {"y": [1, 64, 8]}
    float_model = path.with_name("float.onnx")
    tiny.save(float_model, [turn, node("Relu", ["turn.y"], ["y"], name="relu")], *shape, {})
    tiny.save(path, [turn, *nodes, node("Relu", ["d"], ["y"], name="relu")], *shape, constants)
    return path, float_model
