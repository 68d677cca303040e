"""Random QDQ graphs with 4-bit weights: two layers in a row, with the exact answer of each.

A layer is a convolution, a transposed convolution or a matrix product. Its weights have one scale, a scale for each
output channel, or one for each block of input channels. Activations have 8 or 16 bits, or are floats. Both layers'
results are outputs, so that each layer is judged by the input that it really had.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """A layer: its operator with attributes, its 4-bit weights as floats, and the scale and zero point of its result.

    `scale` is None if results are floats.
    """

    op: str
    attributes: dict[str, Any]
    weights: Array
    scale: float | None
    zero: int
    dtype: type

    def exact(self, x: Array) -> Array:
        """The layer's exact result for an input, in float64."""
        if self.op == "MatMul":
            return x.astype(np.float64) @ self.weights
        if self.op == "ConvTranspose":
            return _transposed(x.astype(np.float64), self.weights, **self.attributes)
        return _convolved(x.astype(np.float64), self.weights, **self.attributes)


@dataclass(frozen=True)
class FourBitGraph:
    """A model with its layers, the input to feed, and the names of the layers' outputs."""

    model: ModelProto
    layers: tuple[Layer, ...]
    x: Array
    outputs: tuple[str, ...]


def _convolved(x: Array, weights: Array, strides: Any, pads: Any, dilations: Any, group: int) -> Array:
    """A convolution of [batch, channels, height, width] by definition."""
    (sh, sw), (dh, dw) = strides, dilations
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    filters, depth, kh, kw = weights.shape
    rows, columns = (
        (padded.shape[axis] - (k - 1) * d - 1) // s + 1 for axis, k, d, s in ((2, kh, dh, sh), (3, kw, dw, sw))
    )
    result = np.zeros((x.shape[0], filters, rows, columns))
    each = filters // group
    for g in range(group):
        for i in range(kh):
            for j in range(kw):
                patch = padded[:, g * depth : (g + 1) * depth, i * dh :, j * dw :]
                patch = patch[:, :, : (rows - 1) * sh + 1 : sh, : (columns - 1) * sw + 1 : sw]
                part = weights[g * each : (g + 1) * each, :, i, j]
                result[:, g * each : (g + 1) * each] += np.einsum("nchw,fc->nfhw", patch, part)
    return result


def _transposed(x: Array, weights: Array, strides: Any, pads: Any) -> Array:
    """A transposed convolution by definition, with one group."""
    (sh, sw), (batch, _, height, width) = strides, x.shape
    _, filters, kh, kw = weights.shape
    full = np.zeros((batch, filters, (height - 1) * sh + kh, (width - 1) * sw + kw))
    for i in range(kh):
        for j in range(kw):
            part = np.einsum("nchw,cf->nfhw", x, weights[:, :, i, j])
            full[:, :, i : i + (height - 1) * sh + 1 : sh, j : j + (width - 1) * sw + 1 : sw] += part
    return full[:, :, pads[0] : full.shape[2] - pads[2], pads[1] : full.shape[3] - pads[3]]


class _Maker:
    """Collects the nodes and constants of a model."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, name: str, array: Array) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def rounded(self, x: str, scale: float, zero: int, dtype: type) -> str:
        """A QuantizeLinear and a DequantizeLinear."""
        s, z = self.constant(f"{x}/scale", np.float32(scale)), self.constant(f"{x}/zero", np.array(zero, dtype))
        self.nodes.append(helper.make_node("QuantizeLinear", [x, s, z], [f"{x}/stored"]))
        self.nodes.append(helper.make_node("DequantizeLinear", [f"{x}/stored", s, z], [f"{x}/real"]))
        return f"{x}/real"

    def weights(self, name: str, dims: tuple[int, ...], inputs: int, columns: int) -> tuple[str, Array]:
        """4-bit weights with a DequantizeLinear; `inputs` and `columns` are the axes of input and output channels."""
        random, signed = self.random, bool(self.random.integers(2))
        low, kind = (-8, TensorProto.INT4) if signed else (0, TensorProto.UINT4)
        elements = random.integers(low, low + 16, dims)
        form = str(random.choice(["tensor", "channel", "block"]))
        block = int(random.choice([8, 16, 32, 5]))
        grid = {
            "tensor": (), "channel": (dims[columns],),
            "block": tuple(-(-d // block) if axis == inputs else d for axis, d in enumerate(dims)),
        }[form]  # fmt: skip
        scales = random.uniform(0.01, 0.05, grid).astype(np.float32)
        centred = random.random() < 0.7
        zeros = np.full(grid, low + 8) if centred else random.integers(low, low + 16, grid)
        attributes: dict[str, Any] = {}
        if form != "tensor":
            attributes["axis"] = columns if form == "channel" else inputs
        if form == "block":
            attributes["block_size"] = block
        packed = helper.make_tensor(name, kind, dims, elements.reshape(-1).tolist())
        points = helper.make_tensor(f"{name}/zero", kind, grid, zeros.reshape(-1).tolist())
        self.constants += [packed, points]
        given = [name, self.constant(f"{name}/scale", scales), f"{name}/zero"]
        self.nodes.append(helper.make_node("DequantizeLinear", given, [f"{name}/real"], **attributes))

        def spread(values: Array) -> Array:
            if form == "channel":
                return values.reshape([-1 if axis == columns else 1 for axis in range(len(dims))])
            return values.repeat(block, inputs).take(range(dims[inputs]), inputs) if form == "block" else values

        return f"{name}/real", (elements - spread(zeros)) * spread(scales).astype(np.float64)

    def layer(
        self, number: int, x: str, dims: tuple[int, ...], op: str, dtype: type | None
    ) -> tuple[str, Layer, Array]:
        """A layer on a tensor; returns the name and, as zeros, the shape of its result."""
        random = self.random
        attributes: dict[str, Any] = {}
        filters = int(random.choice([5, 16, 24, 40]))
        if op == "MatMul":
            weights, reals = self.weights(f"w{number}", (dims[-1], filters), 0, 1)
        else:
            kernel = tuple(int(k) for k in random.integers(1, 4, 2))
            pads = random.integers(0, min(kernel), 4).tolist()
            attributes = {"strides": random.integers(1, 3, 2).tolist(), "pads": pads}
            if op == "ConvTranspose":
                weights, reals = self.weights(f"w{number}", (dims[1], filters, *kernel), 0, 1)
            else:
                group = int(random.choice([1, 1, 1, 2])) if dims[1] % 2 == 0 else 1
                attributes |= {"dilations": random.integers(1, 3, 2).tolist(), "group": group}
                filters = -(-filters // group) * group
                weights, reals = self.weights(f"w{number}", (filters, dims[1] // group, *kernel), 1, 0)
        result = f"y{number}"
        self.nodes.append(helper.make_node(op, [x, weights], [result], **attributes))
        scale, zero = None, 0
        plain = Layer(op, attributes, reals, None, 0, np.float32)
        shape = plain.exact(np.zeros(dims))
        if dtype is not None:
            # Wide enough for most results: the spread of a sum of products.
            deviation = float(np.sqrt((reals**2).sum() / reals.shape[1 if op == "MatMul" else 0])) + 1e-3
            info = np.iinfo(dtype)
            steps = 40 if info.bits == 8 else 10000
            scale, zero = float(np.float32(deviation / steps)), int(random.integers(info.min + 90, info.max - 90))
            result = self.rounded(result, scale, zero, dtype)
        return result, Layer(op, attributes, reals, scale, zero, dtype or np.float32), shape


def random_graph(seed: int) -> FourBitGraph:
    """The graph of a number."""
    random = np.random.default_rng(seed)
    maker = _Maker(random)
    dtype = [None, np.uint8, np.int8, np.uint16, np.int16][int(random.integers(5))]
    images = bool(random.integers(2))
    channels = int(random.choice([3, 8, 16, 32, 36, 64]))
    dims: tuple[int, ...] = (int(random.integers(1, 12)), channels)
    if images:
        dims = (1, channels, *(int(n) for n in random.integers(5, 10, 2)))
    x = random.standard_normal(dims).astype(np.float32)
    name, first = "x", "x"
    if dtype is not None:
        info = np.iinfo(dtype)
        scale = 0.03 if info.bits == 8 else 1e-4
        name = maker.rounded("x", scale, int(random.integers(info.min + 90, info.max - 90)), dtype)
        first = name
    layers, outputs = [], []
    for number in range(2):
        op = str(random.choice(["Conv", "Conv", "ConvTranspose"])) if images else "MatMul"
        name, layer, shape = maker.layer(number, name, dims, op, dtype)
        dims = shape.shape
        layers.append(layer)
        outputs.append(name)
        if images and min(dims[2:]) < 5:
            break
    declared = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in (first, *outputs) if n != "x"]
    graph = helper.make_graph(
        maker.nodes, "four_bits", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)], declared,
        maker.constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    return FourBitGraph(model, tuple(layers), x, (first, *outputs))
