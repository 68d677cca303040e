"""Quantized ONNX models at random: float ones with QuantizeLinear and DequantizeLinear put around every node, and the
operators that compute on integers themselves."""

from __future__ import annotations

from random import Random

import numpy as np
from onnx import NodeProto

from random_operations import onnx_operations
from random_operations.onnx_model import OnnxModel, Refused

MOVEMENTS = ("pad", "slice", "concat", "split", "transpose", "gather", "reshape")
COMPUTED = ("conv", "conv_transpose", "pool", "matmul", "gemm", "binary", "unary", "reduce", "norm", "resize")
_WEIGHTED = {"Conv": 0, "ConvTranspose": 1, "MatMul": -1, "Gemm": 0}
"""Operators whose second operand is quantized as weights are, and the axis of their channels there."""

_KEEPING = frozenset((
    "Relu", "Pad", "Slice", "Concat", "Split", "Transpose", "Gather", "GatherElements", "GatherND", "ScatterElements",
    "ScatterND", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand", "Tile", "DepthToSpace", "SpaceToDepth",
    "MaxPool",
))  # fmt: skip
"""Operators whose results are elements of their operands."""


def encoding(m: OnnxModel, array: np.ndarray, signed: bool, least: float = 0.0) -> tuple[np.float32, np.generic]:
    """A scale (of at least `least`) and zero point that fit these numbers, or nearly do."""
    low, high = min(float(array.min(initial=0)), 0.0), max(float(array.max(initial=0)), 0.0)
    scale = np.float32(max(high - low, 1e-3) / 255 * m.rng.choice([1.0, 1.0, 1.3, 0.8]))
    info = np.iinfo(np.int8 if signed else np.uint8)
    centred = m.rng.random() < 0.25
    if centred:
        scale = np.float32(max(high, -low, 1e-3) / 127)
    scale = max(scale, np.float32(least))
    if centred:
        point = 0 if signed else 128
    else:
        point = int(np.clip(round(info.min - low / float(scale)), info.min, info.max))
    return scale, (np.int8 if signed else np.uint8)(point)


def weights(m: OnnxModel, array: np.ndarray, axis: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Signed bytes with a scale for each channel, or one for all where `axis` is None, zero points of 0."""
    rest = None if axis is None else tuple(a for a in range(array.ndim) if a != axis % array.ndim)
    scales = np.maximum(np.abs(array).max(axis=rest), 1e-4).astype(np.float32) / np.float32(127)
    wide = scales if axis is None else np.expand_dims(scales, rest or ())
    stored = np.clip(np.rint(array / wide), -127, 127).astype(np.int8)
    return stored, np.asarray(scales), np.zeros(np.shape(scales), np.int8)


_OWN = (
    "QLinearAdd", "QLinearMul", "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat", "QLinearLeakyRelu",
    "QLinearSigmoid", "QLinearSoftmax",
)  # fmt: skip
"""Operators of ONNX Runtime's own domain."""


class _Wrapped:
    """A float model that becomes one with QuantizeLinear and DequantizeLinear around each node."""

    def __init__(self, plain: OnnxModel) -> None:
        self.plain = plain
        self.made = m = OnnxModel(plain.rng, plain.opset)
        self.signed = m.rng.random() < 0.6
        self.names: dict[str, str] = {}
        self.stored: dict[str, str] = {}
        self.scales: dict[str, float] = {}

    def wrap(self) -> OnnxModel:
        m, plain = self.made, self.plain
        for name, array in plain.feeds.items():
            given = m.input(array)
            self.names[name] = self._around(given, array) if array.dtype == np.float32 else given
        for step in plain.nodes:
            self._node(step)
        m.outputs = [self.stored.get(name, self.names[name]) for name in plain.outputs]
        return m

    def _around(self, name: str, array: np.ndarray, least: float = 0.0) -> str:
        m = self.made
        chosen = encoding(m, array, self.signed, least)
        scale, point = (m.constant(v) for v in chosen)
        stored = m.add("QuantizeLinear", f"{name} {scale} {point}")
        real = m.add("DequantizeLinear", f"{stored} {scale} {point}")
        self.stored[real] = stored
        self.scales[real] = float(chosen[0])
        return real

    def _constant(self, step: NodeProto, index: int) -> str:
        m, array = self.made, self.plain.constants[step.input[index]]
        if array.dtype != np.float32 or step.op_type in ("Resize", "Clip", "Pad"):
            return m.constant(array)
        if step.op_type in _WEIGHTED and index == 1 and array.ndim > 1:
            axis = _WEIGHTED[step.op_type]
            if step.op_type == "Gemm" and not _attribute(step, "transB"):
                axis = 1
            grouped = step.op_type == "ConvTranspose" and _attribute(step, "group", 1) != 1
            chosen = axis % array.ndim if m.rng.random() < 0.5 and not grouped else None
            stored, scales, points = weights(m, array, chosen)
            names = [m.constant(v) for v in (stored, scales, points)]
            return m.add("DequantizeLinear", " ".join(names), axis=chosen)
        if index == 2 or step.op_type.endswith("Normalization"):
            return m.constant(array)
        scale, point = encoding(m, array, self.signed)
        info = np.iinfo(point.dtype)
        stored = np.clip(np.rint(array / scale) + int(point), info.min, info.max).astype(point.dtype)
        return m.add("DequantizeLinear", " ".join(m.constant(v) for v in (stored, scale, point)))

    def _node(self, step: NodeProto) -> None:
        m, plain = self.made, self.plain
        operands = []
        for index, name in enumerate(step.input):
            if not name:
                operands.append("-")
            else:
                operands.append(self._constant(step, index) if name in plain.constants else self.names[name])
        made = m.add(step.op_type, " ".join(operands), len(step.output))
        m.nodes[-1].attribute.extend(step.attribute)
        for number, name in enumerate(step.output):
            result = made if number == 0 else f"{made}_{number}"
            value = plain.value(name)
            if value.dtype == np.float32:
                # A finer scale than the operand's would make several steps of one.
                coarsest = max((self.scales.get(o, 0.0) for o in operands), default=0.0)
                least = coarsest if step.op_type in _KEEPING else 0.0
                self.names[name] = self._around(result, value, least)
                self.stored[name] = self.stored[self.names[name]]
            else:
                self.names[name] = result


def _attribute(step: NodeProto, name: str, default: int = 0) -> int:
    return next((int(a.i) for a in step.attribute if a.name == name), default)


def wrapped(rng: Random, *families: str) -> OnnxModel:
    """A chain of operations between DequantizeLinear and QuantizeLinear."""
    plain = OnnxModel(rng, exact=False)
    ranks = onnx_operations.FAMILIES[families[0]][0]
    fitting = [r for r in ranks if all(r in onnx_operations.FAMILIES[f][0] for f in families)] or list(ranks)
    x = plain.input(plain.floats(onnx_operations.first_dims(rng, rng.choice(fitting))))
    for family in families:
        if len(plain.dims(x)) not in onnx_operations.FAMILIES[family][0] or not plain.value(x).size:
            break
        x = onnx_operations.FAMILIES[family][1](plain, x)
        if plain.value(x).dtype != np.float32 or not np.isfinite(plain.value(x)).all():
            raise Refused("no reals to quantize")
        if rng.random() < 0.2:
            x = plain.add("Relu", x)
    return _Wrapped(plain).wrap()


def _byte_input(m: OnnxModel, dims: tuple[int, ...], signed: bool) -> tuple[str, str, np.float32, int]:
    """An input of bytes: its name, with those of its scale and zero point; scale and zero point themselves."""
    dtype = np.int8 if signed else np.uint8
    info = np.iinfo(dtype)
    array = m.numbers.integers(info.min, info.max + 1, dims).astype(dtype)
    scale = np.float32(m.rng.uniform(0.005, 0.1))
    point = m.rng.choice([0, 0, 3, 100]) + (0 if signed else m.rng.choice([0, 128]))
    name = m.input(array)
    return name, f"{name} {m.constant(scale)} {m.constant(dtype(point))}", scale, int(point)


def integer_convolution(rng: Random) -> OnnxModel:
    """QLinearConv and ConvInteger."""
    m = OnnxModel(rng)
    dims = onnx_operations.first_dims(rng, rng.choice([3, 4, 4]))
    x, operand, scale, _ = _byte_input(m, dims, rng.random() < 0.5)
    plain = OnnxModel(rng)
    onnx_operations.conv(plain, plain.input(np.ones(dims, np.float32)))
    step = plain.nodes[0]
    stored, scales, points = weights(m, plain.constants[step.input[1]], rng.choice([0, None]))
    kernel = m.constant(stored)
    if rng.random() < 0.2:
        point = operand.split()[2]
        m.add("ConvInteger", f"{x} {kernel} {point}")
    else:
        spread = float(scale) * float(np.max(scales)) * 40 * np.sqrt(stored[0].size) * rng.choice([0.3, 1, 1])
        bias = m.constant(m.numbers.integers(-3000, 3000, stored.shape[0]).astype(np.int32))
        bias = bias if rng.random() < 0.6 else ""
        signed = m.feeds[x].dtype == np.int8
        result = f"{m.constant(np.float32(spread))} {m.constant((np.int8 if signed else np.uint8)(17))}"
        names = f"{operand} {kernel} {m.constant(scales)} {m.constant(points)} {result} {bias}"
        m.add("QLinearConv", names)
    m.nodes[-1].attribute.extend(step.attribute)
    return m


def integer_product(rng: Random) -> OnnxModel:
    """QLinearMatMul, MatMulInteger, QGemm, and the product after DynamicQuantizeLinear."""
    m = OnnxModel(rng)
    rank = rng.choice([2, 2, 3, 4])
    dims = onnx_operations.first_dims(rng, rank)
    signed = rng.random() < 0.5
    op = rng.choice(["QLinearMatMul", "MatMulInteger", "QGemm", "dynamic"])
    width = rng.randint(1, 20)
    right = m.floats((dims[-1], width))
    if op == "QGemm":
        dims = dims[-2:]
        right = m.floats((width, dims[-1]) if rng.random() < 0.5 else (dims[-1], width))
        flip = int(right.shape[0] == width and right.shape[1] == dims[-1])
        stored, scales, points = weights(m, right, None if rng.random() < 0.5 else (0 if flip else 1))
        _, operand, scale, _ = _byte_input(m, dims, signed)
        bias = m.constant(m.numbers.integers(-500, 500, width).astype(np.int32)) if rng.random() < 0.5 else "-"
        out = np.float32(float(scale) * float(np.max(scales)) * 40 * np.sqrt(dims[-1]))
        result = f"{m.constant(out)} {m.constant((np.int8 if signed else np.uint8)(9))}"
        names = f"{operand} {m.constant(stored)} {m.constant(scales)} {m.constant(points)} {bias} {result}"
        m.add("QGemm", names, domain="com.microsoft", transB=flip)
        return m
    if op == "dynamic":
        x = m.input(m.floats(dims, 3.0))
        stored_x = m.add("DynamicQuantizeLinear", x, 3)
        stored, scales, points = weights(m, right, None)
        product = m.add("MatMulInteger", f"{stored_x} {m.constant(stored)} {stored_x}_2 {m.constant(points)}")
        scale_name = m.add("Mul", f"{stored_x}_1 {m.constant(scales)}")
        m.add("Mul", f"{m.add('Cast', product, to=1)} {scale_name}")
        return m
    axis = rng.choice([None, 1]) if op == "QLinearMatMul" else None
    stored, scales, points = weights(m, right, axis)
    x, operand, scale, _ = _byte_input(m, dims, signed)
    if op == "MatMulInteger":
        point = operand.split()[2] if rng.random() < 0.7 else "-"
        # Behind u8, s8 must be a constant: the reference is not exact on every processor otherwise.
        as_input = stored if signed else (stored.astype(np.int16) + 128).astype(np.uint8)
        m.add(op, f"{x} {m.constant(stored) if rng.random() < 0.5 else m.input(as_input)} {point}")
        return m
    out = np.float32(float(scale) * float(np.max(scales)) * 40 * np.sqrt(dims[-1]))
    result = f"{m.constant(out)} {m.constant((np.int8 if signed else np.uint8)(9))}"
    m.add(op, f"{operand} {m.constant(stored)} {m.constant(scales)} {m.constant(points)} {result}")
    return m


def integer_operators(rng: Random) -> OnnxModel:
    """ONNX Runtime's own operators on bytes."""
    m = OnnxModel(rng)
    op = rng.choice(_OWN)
    dims = onnx_operations.first_dims(rng, 4)
    signed = rng.random() < 0.5
    dtype = np.int8 if signed else np.uint8
    _, operand, scale, _ = _byte_input(m, dims, signed)
    result = f"{m.constant(np.float32(scale * np.float32(rng.choice([0.7, 1.0, 2.0]))))} {m.constant(dtype(11))}"
    more: dict[str, object] = {}
    if op in ("QLinearAdd", "QLinearMul"):
        shape = tuple(d if rng.random() < 0.7 else 1 for d in dims[rng.randint(0, 2) :])
        _, other, other_scale, _ = _byte_input(m, shape, signed)
        if op == "QLinearMul":
            result = f"{m.constant(np.float32(scale * other_scale * 100))} {m.constant(dtype(11))}"
        operand = f"{operand} {other}"
    elif op == "QLinearConcat":
        axis = rng.randrange(4)
        more["axis"] = axis
        _, other, _, _ = _byte_input(m, (*dims[:axis], 2, *dims[axis + 1 :]), signed)
        m.add(op, f"{result} {operand} {other}", domain="com.microsoft", **more)
        return m
    elif op == "QLinearAveragePool":
        kernel = [rng.randint(1, min(4, d)) for d in dims[2:]]
        more |= {
            "kernel_shape": kernel, "strides": [rng.randint(1, 3) for _ in kernel],
            "pads": onnx_operations.pads(rng, 2, [k - 1 for k in kernel]), "ceil_mode": rng.randrange(2),
            "count_include_pad": rng.randrange(2),
        }  # fmt: skip
    elif op == "QLinearSoftmax":
        axes = [a for a in (-1, -1, 1, 2) if dims[a] > 1]
        if not axes:
            raise Refused("ONNX Runtime says 0 for the 1 that a row of one element has")
        more |= {"axis": rng.choice(axes), "opset": 13}
        result = f"{m.constant(np.float32(1 / 256))} {m.constant(dtype(-128 if signed else 0))}"
    elif op == "QLinearSigmoid":
        result = f"{m.constant(np.float32(1 / 256))} {m.constant(dtype(-128 if signed else 0))}"
    elif op == "QLinearLeakyRelu":
        more["alpha"] = rng.choice([0.01, 0.3])
    m.add(op, f"{operand} {result}", domain="com.microsoft", **more)
    return m
