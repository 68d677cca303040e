"""Random small networks as files, and what is alive in a file, counted apart from what wrote it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from frontends.tflite.build import Op, Subgraph, T, model, options
from onnx import helper, shape_inference
from support import tiny

from isthmus.frontends.tflite.model import ModelFile
from isthmus.frontends.tflite.schema import NUMPY_TYPES


def onnx_network(folder: Path, seed: int) -> bytes:
    """Windows with strides, dilations and padding of all kinds, pools, enlargements, residuals and concatenations."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    height, width, channels = rng.randint(20, 40), rng.choice([12, 20, 33]), 3
    nodes: list[Any] = []
    constants: dict[str, np.ndarray] = {}
    x, first = "x", (height, width)

    def add(op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(*dims: int) -> str:
        name = f"c{len(constants)}"
        constants[name] = (values.standard_normal(dims) / max(np.prod(dims[1:]), 1) ** 0.5).astype(np.float32)
        return name

    for _ in range(rng.randint(4, 8)):
        kind = rng.choice(["conv", "conv", "conv", "same", "depth", "pool", "mean", "norm", "skip", "join", "larger"])
        if kind in ("conv", "depth", "same"):
            k, d = rng.choice([(1, 1), (3, 1), (3, 2), (5, 1), (2, 1)]) if min(height, width) > 6 else (1, 1)
            s = rng.choice([1, 1, 2]) if min(height, width) > 12 else 1
            groups = channels if kind == "depth" else 1
            new = channels if kind == "depth" else rng.choice([4, 8, 24])
            how: dict[str, Any] = {"strides": [s, s], "dilations": [d, d], "group": groups}
            reach = (k - 1) * d + 1
            if kind == "same":
                how["auto_pad"], how["dilations"] = rng.choice(["SAME_UPPER", "SAME_LOWER"]), [1, 1]
                height, width = -(-height // s), -(-width // s)
            else:
                pads = [rng.randint(0, reach // 2) for _ in range(4)]
                how["pads"] = pads
                height = (height + pads[0] + pads[2] - reach) // s + 1
                width = (width + pads[1] + pads[3] - reach) // s + 1
            x = add("Conv", [x, constant(new, channels // groups, k, k), constant(new)], **how)
            channels = new
            x = add(rng.choice(["Relu", "Sigmoid", "HardSigmoid"]), [x])
        elif kind in ("pool", "mean") and min(height, width) > 8:
            op = "MaxPool" if kind == "pool" else "AveragePool"
            pads = [rng.randint(0, 1) for _ in range(4)]
            x = add(op, [x], kernel_shape=[3, 3], strides=[2, 2], pads=pads)
            height, width = ((n + pads[i] + pads[i + 2] - 3) // 2 + 1 for i, n in enumerate((height, width)))
        elif kind == "norm":
            scale, bias, mean = (constant(channels) for _ in range(3))
            constants["v"] = np.ones(channels, np.float32)
            name = f"v{channels}"
            constants[name] = constants.pop("v")
            x = add("BatchNormalization", [x, scale, bias, mean, name])
        elif kind == "skip":
            y = add("Conv", [x, constant(channels, channels, 3, 3)], pads=[1, 1, 1, 1])
            x = add("Add", [x, add("Relu", [y])])
        elif kind == "join":
            y = add("Conv", [x, constant(4, channels, 1, 1)])
            x, channels = add("Concat", [x, y], axis=1), channels + 4
        elif kind == "larger" and height < 30:
            constants["twice"] = np.array([1, 1, 2, 2], np.float32)
            x = add(
                "Resize", [x, "", "twice"], mode="nearest", nearest_mode="floor",
                coordinate_transformation_mode="asymmetric",
            )  # fmt: skip
            height, width = 2 * height, 2 * width
    outputs = {add("Conv", [x, constant(2, channels, 3, 3)], strides=[2, 2]): ["n", 2, "h", "w"]}
    path = tiny.save(folder / f"random_{seed}.onnx", nodes, {"x": [1, 3, *first]}, outputs, constants)
    return path.read_bytes()


def qdq_network(folder: Path, seed: int, unsigned: bool) -> bytes:
    """Quantized operators as ONNX writes them: floats between DequantizeLinear and QuantizeLinear."""
    rng, values = random.Random(seed), np.random.default_rng(seed)
    dtype = np.uint8 if unsigned else np.int8
    nodes: list[Any] = []
    constants: dict[str, np.ndarray] = {}

    def add(op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{op.lower()}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def constant(value: Any) -> str:
        constants[f"c{len(constants)}"] = np.asarray(value)
        return f"c{len(constants) - 1}"

    def quantized(x: str, scale: float, zero: int | None = None) -> tuple[str, list[str]]:
        zero = rng.randint(100, 150) if zero is None else zero
        how = [constant(np.float32(scale)), constant(np.array(zero if unsigned else zero - 128, dtype))]
        return add("QuantizeLinear", [x, *how]), how

    def floats(x: tuple[str, list[str]]) -> str:
        return add("DequantizeLinear", [x[0], *x[1]])

    def weights(array: np.ndarray, scale: np.ndarray) -> str:
        zeros = constant(np.zeros(scale.shape, array.dtype))
        return add("DequantizeLinear", [constant(array), constant(scale), zeros], axis=0)

    x, height, channels = quantized("x", 0.01), rng.choice([32, 40]), 4
    first, images = height, [(x, height, channels)]
    for _ in range(rng.randint(4, 6)):
        kind = rng.choice(["conv", "conv", "limited", "depth", "sum", "largest", "average", "sigmoid"])
        if kind in ("conv", "limited", "depth"):
            groups, new = (channels, channels) if kind == "depth" else (1, rng.choice([4, 8, 16]))
            stride = rng.choice([1, 2]) if height > 12 else 1
            scales = values.uniform(0.002, 0.01, new).astype(np.float32)
            filters = weights(values.integers(-127, 128, (new, channels // groups, 3, 3)).astype(np.int8), scales)
            bias = weights(values.integers(-999, 999, new).astype(np.int32), scales * constants[x[1][0]])
            y = add("Conv", [floats(x), filters, bias], pads=[1] * 4, strides=[stride] * 2, group=groups)
            x = quantized(add("Relu", [y]), 0.03, 0) if kind == "limited" else quantized(y, 0.03)
            height, channels = -(-height // stride), new
        elif kind == "sum":
            others = [image for image, *shape in images if shape == [height, channels]]
            x = quantized(add("Add", [floats(x), floats(rng.choice(others))]), 0.04)
        elif kind == "sigmoid":
            x = quantized(add("Sigmoid", [floats(x)]), 1 / 256, 0)
        elif height > 12:
            op = "MaxPool" if kind == "largest" else "AveragePool"
            x = quantized(add(op, [floats(x)], kernel_shape=[2, 2], strides=[2, 2]), constants[x[1][0]].item())
            height //= 2
        images.append((x, height, channels))
    nodes.append(helper.make_node("DequantizeLinear", [x[0], *x[1]], ["y"], name="end"))
    result = {"y": [1, channels, height, height]}
    return tiny.save(folder / "qdq.onnx", nodes, {"x": [1, 4, first, first]}, result, constants, 13).read_bytes()


def tflite_network(seed: int, quantized: bool, first: int = 0, also_middle: bool = False) -> bytes:
    """The same in TFLite: SAME and VALID windows, pools, pads, residuals, joins, floats or 8 bits.

    Tensors are counted from `first` on, in a circle. A result from the middle may be an output too.
    """
    rng, values = random.Random(seed), np.random.default_rng(seed)
    kind, scale = ("i8", 0.05) if quantized else ("f32", None)
    height, width, channels = rng.randint(20, 40), rng.choice([12, 20, 33]), 3
    tensors = [T(kind, [1, height, width, channels], scale=scale, zero=-3, name="x")]
    operators: list[Op] = []
    x = 0

    def new(t: T) -> int:
        tensors.append(t)
        return len(tensors) - 1

    def result(*, like: bool = True) -> int:
        return new(T(kind, [1, height, width, channels], scale=scale, zero=-3))

    def weights(shape: list[int], axis: int) -> tuple[int, int]:
        if not quantized:
            count = float(np.prod(shape[1:3]) * (shape[3] if axis == 0 else 1))
            data = (values.standard_normal(shape) / count**0.5).astype(np.float32)
            bias = values.standard_normal(shape[axis]).astype(np.float32)
            return new(T("f32", shape, data=data)), new(T("f32", [shape[axis]], data=bias))
        data = values.integers(-60, 60, shape).astype(np.int8)
        scales = np.full(shape[axis], 0.01, np.float32)
        w = new(T("i8", shape, data=data, scale=scales, zero=np.zeros(shape[axis], np.int64), axis=axis))
        bias = values.integers(-200, 200, shape[axis]).astype(np.int32)
        return w, new(T("i32", [shape[axis]], data=bias, scale=scales * 0.05, zero=np.zeros(shape[axis], np.int64)))

    for _ in range(rng.randint(4, 8)):
        what = rng.choice(["conv", "conv", "depth", "pool", "mean", "pad", "skip", "join"])
        source, (h, w) = x, (height, width)
        if what in ("conv", "depth"):
            k, s = rng.choice([1, 3, 5]), rng.choice([1, 2]) if min(h, w) > 12 else 1
            padding = rng.choice([0, 1]) if min(h, w) > 6 else 0
            height, width = ((-(-n // s) if padding == 0 else (n - k) // s + 1) for n in (h, w))
            activation = rng.choice([0, 1, 3])
            if what == "conv":
                old, channels = channels, rng.choice([4, 8, 24])
                made = options(
                    "Conv2D",
                    padding=padding,
                    strideW=s,
                    strideH=s,
                    fusedActivationFunction=activation,
                    dilationWFactor=1,
                    dilationHFactor=1,
                )
                operands = weights([channels, k, k, old], 0)
            else:
                made = options(
                    "DepthwiseConv2D",
                    padding=padding,
                    strideW=s,
                    strideH=s,
                    depthMultiplier=1,
                    fusedActivationFunction=activation,
                    dilationWFactor=1,
                    dilationHFactor=1,
                )
                operands = weights([1, k, k, channels], 3)
            x = result()
            operators.append(Op("CONV_2D" if what == "conv" else "DEPTHWISE_CONV_2D", [source, *operands], [x], made))
        elif what in ("pool", "mean") and min(h, w) > 8:
            padding = 0 if what == "pool" else 1
            height, width = ((-(-n // 2) if padding == 0 else (n - 3) // 2 + 1) for n in (h, w))
            made = options("Pool2D", padding=padding, strideW=2, strideH=2, filterWidth=3, filterHeight=3)
            x = result()
            operators.append(Op("MAX_POOL_2D" if what == "pool" else "AVERAGE_POOL_2D", [source], [x], made))
        elif what == "pad":
            amounts = np.array([[0, 0], [1, 2], [0, 1], [0, 0]], np.int32)
            height, width = h + 3, w + 1
            x = result()
            operators.append(Op("PAD", [source, new(T("i32", [4, 2], data=amounts))], [x], options("Pad")))
        elif what == "skip":
            y = result()
            made = options("Conv2D", padding=0, strideW=1, strideH=1, dilationWFactor=1, dilationHFactor=1)
            operators.append(Op("CONV_2D", [source, *weights([channels, 3, 3, channels], 0)], [y], made))
            x = result()
            operators.append(Op("ADD", [source, y], [x], options("Add")))
        elif what == "join":
            old, channels = channels, 4
            y = result()
            made = options("Conv2D", padding=0, strideW=1, strideH=1, dilationWFactor=1, dilationHFactor=1)
            operators.append(Op("CONV_2D", [source, *weights([4, 1, 1, old], 0)], [y], made))
            channels = old + 4
            x = result()
            operators.append(Op("CONCATENATION", [source, y], [x], options("Concatenation", axis=3)))
    old, channels, source = channels, 2, x
    height, width = -(-height // 2), -(-width // 2)
    x = result()
    made = options("Conv2D", padding=0, strideW=2, strideH=2, dilationWFactor=1, dilationHFactor=1)
    operators.append(Op("CONV_2D", [source, *weights([2, 3, 3, old], 0)], [x], made))

    def counted(numbers: Sequence[int]) -> list[int]:
        return [(number - first) % len(tensors) for number in numbers]

    turned = [Op(op.code, counted(op.inputs), counted(op.outputs), op.options) for op in operators]
    ends = [x, *operators[len(operators) // 2].outputs] if also_middle else [x]
    return model(Subgraph([*tensors[first:], *tensors[:first]], turned, counted([0]), counted(ends)))


def alive_in_onnx(data: bytes) -> int:
    """The most bytes alive when the nodes run in the order of the file, without inputs, outputs and constants."""
    proto = shape_inference.infer_shapes(onnx.load_model_from_string(data), data_prop=True)
    graph = proto.graph
    known = {v.name: v.type.tensor_type for v in (*graph.input, *graph.value_info, *graph.output)}
    outside = {v.name for v in (*graph.input, *graph.output)}
    static = {t.name for t in graph.initializer}
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        if static.issuperset(n for n in node.input if n):
            static.update(node.output)
            continue
        for name in node.output:
            first[name] = last[name] = index
        last.update(dict.fromkeys(node.input, index))
    most = 0
    for index in range(len(graph.node)):
        now = 0
        for name, begin in first.items():
            if begin <= index <= last[name] and name not in outside:
                kind = known[name]
                size = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type)).itemsize
                now += int(np.prod([d.dim_value for d in kind.shape.dim])) * size
        most = max(most, now)
    return most


def alive_in_tflite(data: bytes) -> int:
    """The most bytes alive when the operators of a TFLite file run in order, with inputs and outputs."""
    file = ModelFile(data, "model")
    main = file.subgraph(0)
    static = {i for i in range(main.tensor_count) if len(file.buffer(main.tensor(i).buffer))}
    first = dict.fromkeys(main.inputs, 0)
    last = dict(first)
    count = 0
    for index, operator in enumerate(main.operators()):
        count = index
        if static.issuperset(i for i in operator.inputs if i >= 0):
            static.update(operator.outputs)
            continue
        for tensor in operator.outputs:
            first[tensor] = last[tensor] = index
        last.update({i: index for i in operator.inputs if i >= 0 and i not in static})
    last.update(dict.fromkeys(main.outputs, count))

    def size(index: int) -> int:
        entry = main.tensor(index)
        return int(np.prod(entry.shape)) * np.dtype(NUMPY_TYPES[entry.type]).itemsize

    return max(sum(size(i) for i in first if first[i] <= t <= last[i]) for t in range(count + 1))
