"""TFLite operators with options at random, in floats and in signed bytes, alone and in pairs.

LiteRT knows the shape of every result once it has allocated a model, so shapes need not be computed here: a result is
declared with any shape, and the model is built again with the shape that LiteRT gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
from frontends.tflite.build import Op, Subgraph, T, model, options
from frontends.tflite.runners import LiteRtRunner

from random_operations.onnx_model import Refused

Dims = tuple[int, ...]
SAME, VALID = 0, 1


@dataclass
class TfliteModel:
    """Tensors and operators so far; `x` is the tensor that the next operator takes."""

    rng: Random
    kind: str
    tensors: list[T] = field(default_factory=list)
    operators: list[Op] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    x: int = 0

    def __post_init__(self) -> None:
        self.numbers = np.random.default_rng(self.rng.randrange(1 << 30))

    @property
    def dims(self) -> Dims:
        """The shape of the present tensor."""
        return tuple(self.tensors[self.x].shape)

    def tensor(self, made: T) -> int:
        """Add a tensor; its number."""
        self.tensors.append(made)
        return len(self.tensors) - 1

    def real(self, dims: Sequence[int], like: T | None = None) -> T:
        """A float tensor, or a quantized one; with the quantization of another where that is given."""
        if self.kind == "f32":
            return T("f32", tuple(dims))
        if like is not None:
            return T(self.kind, tuple(dims), None, like.scale, like.zero)
        return T(self.kind, tuple(dims), None, self.rng.uniform(0.01, 0.1), self.rng.choice([0, -128, 5, -30, 127]))

    def input(self, dims: Sequence[int], like: T | None = None) -> int:
        """An input."""
        self.inputs.append(self.tensor(self.real(dims, like)))
        return self.inputs[-1]

    def contents(self, made: T) -> Any:
        """Random contents of a tensor."""
        if made.type == "f32":
            return self.numbers.standard_normal(made.shape).astype(np.float32)
        return self.numbers.integers(-128, 128, made.shape)

    def operand(self, dims: Sequence[int], like: T | None = None) -> int:
        """An input or a constant."""
        if self.rng.random() < 0.5:
            return self.input(dims, like)
        made = self.real(dims, like)
        return self.tensor(replace(made, data=self.contents(made)))

    def ints(self, *values: Any) -> int:
        """A constant vector of int32, a scalar where one number stands alone."""
        array = np.asarray(values[0] if len(values) == 1 else values, np.int32)
        return self.tensor(T("i32", array.shape, array))

    def add(self, code: str, inputs: Sequence[int], made: Any = None, result: T | None = None, outputs: int = 1) -> int:
        """Add an operator; its first result is the present tensor then."""
        given = self.tensors[self.x]
        numbers = [self.tensor(replace(result or self.real((1,), given), shape=(1,))) for _ in range(outputs)]
        self.operators.append(Op(code, inputs, numbers, made))
        self.results = [n for n in self.results if n not in inputs] + numbers
        self.x = numbers[0]
        self._learn()
        return self.x

    def build(self) -> bytes:
        """The model file."""
        return model(Subgraph(self.tensors, self.operators, self.inputs, self.results))

    def _learn(self) -> None:
        """Take the shapes of results from LiteRT."""
        try:
            runner = LiteRtRunner(self.build())
        except (RuntimeError, ValueError) as problem:
            raise Refused(str(problem)) from None
        for number, detail in zip(self.results, runner.interpreter.get_output_details(), strict=True):
            self.tensors[number] = replace(self.tensors[number], shape=tuple(int(n) for n in detail["shape"]))

    def describe(self) -> str:
        """The model in few lines."""
        lines = []
        for op in self.operators:
            shown = vars(op.options) if op.options is not None else ""
            lines.append(f"{op.code} {list(op.inputs)} -> {list(op.outputs)} {shown}")
        for number, t in enumerate(self.tensors):
            data = ""
            if t.data is not None:
                data = f" = {np.asarray(t.data).tolist()}" if np.size(t.data) <= 8 else " constant"
            quantized = "" if t.scale is None else f" scale {np.round(t.scale, 5)} zero {t.zero}"
            lines.append(f"{number}: {t.type}{list(t.shape)}{quantized}{data}"[:200])
        return "\n".join(lines)


def _weights(m: TfliteModel, dims: Sequence[int], axis: int) -> tuple[int, Any]:
    """Constant weights, and their scale."""
    if m.kind == "f32":
        return m.tensor(T("f32", tuple(dims), m.numbers.standard_normal(dims).astype(np.float32) * 0.5)), None
    per_channel = m.rng.random() < 0.6
    scale: Any = m.numbers.uniform(0.002, 0.02, dims[axis]).astype(np.float32) if per_channel else 0.01
    return m.tensor(T("i8", tuple(dims), m.numbers.integers(-127, 128, dims), scale, 0, axis)), scale


def _bias(m: TfliteModel, size: int, scale: Any, x: T) -> int:
    if m.kind == "f32":
        return m.tensor(T("f32", (size,), m.numbers.standard_normal(size)))
    unit = np.float32(x.scale) * np.atleast_1d(np.asarray(scale, np.float32))
    return m.tensor(T("i32", (size,), m.numbers.integers(-2000, 2000, size), unit))


def _sums(m: TfliteModel, depth: int) -> T:
    """A result of sums of so many products, with a scale that most of them fit."""
    if m.kind == "f32":
        return T("f32", (1,))
    spread = float(m.tensors[m.x].scale) * 0.01 * 75 * 75 * np.sqrt(depth) / 60 * m.rng.choice([0.5, 1, 1, 2])
    return T("i8", (1,), None, spread, m.rng.choice([0, 7, -128, -20]))


def convolution(m: TfliteModel) -> None:
    """CONV_2D and DEPTHWISE_CONV_2D."""
    rng, x, dims = m.rng, m.tensors[m.x], m.dims
    kernel = [rng.choice([1, 1, 2, 3, 4]) for _ in range(2)]
    window = {
        "padding": rng.choice([SAME, VALID]), "strideH": rng.choice([1, 1, 2, 3]), "strideW": rng.choice([1, 1, 2, 3]),
        "fusedActivationFunction": rng.choice([0, 0, 1, 2, 3]),
    }  # fmt: skip
    spread = rng.choice([1, 1, 1, 2])
    window |= {"dilationHFactor": spread, "dilationWFactor": rng.choice([1, spread])}
    if rng.random() < 0.5:
        filters = rng.choice([1, 3, 8, 17])
        weights, scale = _weights(m, (filters, *kernel, dims[3]), 0)
        bias = _bias(m, filters, scale, x)
        m.add("CONV_2D", [m.x, weights, bias], options("Conv2D", **window), _sums(m, kernel[0] * kernel[1] * dims[3]))
        return
    multiplier = rng.choice([1, 1, 2, 3])
    weights, scale = _weights(m, (1, *kernel, dims[3] * multiplier), 3)
    bias = _bias(m, dims[3] * multiplier, scale, x)
    made = options("DepthwiseConv2D", depthMultiplier=multiplier, **window)
    m.add("DEPTHWISE_CONV_2D", [m.x, weights, bias], made, _sums(m, kernel[0] * kernel[1]))


def transposed_convolution(m: TfliteModel) -> None:
    """TRANSPOSE_CONV."""
    rng, x, dims = m.rng, m.tensors[m.x], m.dims
    kernel, strides = [rng.randint(1, 4) for _ in range(2)], [rng.randint(1, 3) for _ in range(2)]
    padding, filters = rng.choice([SAME, VALID]), rng.choice([1, 3, 8])
    out = [
        size * stride if padding == SAME else (size - 1) * stride + reach + rng.choice([0, 0, stride - 1])
        for size, stride, reach in zip(dims[1:3], strides, kernel, strict=True)
    ]
    weights, scale = _weights(m, (filters, *kernel, dims[3]), 0)
    operands = [m.ints([dims[0], *out, filters]), weights, m.x]
    if rng.random() < 0.5:
        operands.append(_bias(m, filters, scale, x))
    made = options("TransposeConv", padding=padding, strideH=strides[0], strideW=strides[1])
    m.add("TRANSPOSE_CONV", operands, made, _sums(m, kernel[0] * kernel[1] * dims[3] // (strides[0] * strides[1]) + 1))


def product(m: TfliteModel) -> None:
    """FULLY_CONNECTED and BATCH_MATMUL."""
    rng, x, dims = m.rng, m.tensors[m.x], m.dims
    if rng.random() < 0.5:
        units = rng.choice([1, 4, 17])
        weights, scale = _weights(m, (units, dims[-1]), 0)
        operands = [m.x, weights, _bias(m, units, scale, x) if rng.random() < 0.7 else -1]
        activation = rng.choice([0, 1, 3])
        made = options("FullyConnected", fusedActivationFunction=activation, keepNumDims=rng.random() < 0.7)
        m.add("FULLY_CONNECTED", operands, made, _sums(m, dims[-1]))
        return
    turn, flip = rng.random() < 0.4, rng.random() < 0.4
    rows, depth = dims[-2:]
    if turn:
        rows, depth = depth, rows
    width = rng.choice([1, 2, 5, 17])
    batch = [d if rng.random() < 0.7 else 1 for d in dims[:-2]]
    other = m.operand((*batch, width, depth) if flip else (*batch, depth, width))
    made = options("BatchMatMul", adjX=turn, adjY=flip)
    result = _sums(m, depth)
    if result.scale is not None:
        result = replace(result, scale=result.scale * float(m.tensors[other].scale) / 0.01)
    m.add("BATCH_MATMUL", [m.x, other], made, result)


def pool(m: TfliteModel) -> None:
    """AVERAGE_POOL_2D, MAX_POOL_2D, L2_POOL_2D."""
    rng = m.rng
    code = rng.choice(["AVERAGE_POOL_2D", "MAX_POOL_2D", *(["L2_POOL_2D"] if m.kind == "f32" else [])])
    made = options(
        "Pool2D", padding=rng.choice([SAME, VALID]), strideH=rng.randint(1, 3), strideW=rng.randint(1, 3),
        filterHeight=rng.randint(1, 4), filterWidth=rng.randint(1, 4),
        fusedActivationFunction=rng.choice([0, 0, 1, 3]),
    )  # fmt: skip
    m.add(code, [m.x], made)


def _partner(m: TfliteModel) -> Dims:
    rng, dims = m.rng, m.dims
    if rng.random() < 0.4:
        return dims
    return tuple(d if rng.random() < 0.6 else 1 for d in dims[rng.randint(0, max(len(dims) - 1, 0)) :])


def binary(m: TfliteModel) -> None:
    """Arithmetic of two operands with broadcasting and fused activations."""
    rng = m.rng
    kinds = {"ADD": "Add", "SUB": "Sub", "MUL": "Mul", "DIV": "Div"}
    codes = ["ADD", "SUB", "MUL", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE", "PRELU", "LESS", "EQUAL"]
    code = rng.choice(codes)
    x = m.tensors[m.x]
    same = code in ("MAXIMUM", "MINIMUM", "LESS", "EQUAL")
    if code == "PRELU":
        made = m.real(tuple(d if rng.random() < 0.6 else 1 for d in m.dims[1:]))
        other = m.tensor(replace(made, data=m.contents(made)))
    else:
        other = m.operand(_partner(m), x if same else None)
    result = None
    if m.kind != "f32" and not same:
        y = m.tensors[other]
        wide = float(x.scale) + float(y.scale) if code in ("ADD", "SUB") else float(x.scale) * float(y.scale) * 90
        if code == "SQUARED_DIFFERENCE":
            wide = (float(x.scale) + float(y.scale)) ** 2 * 60
        result = T("i8", (1,), None, wide * rng.choice([0.6, 1.0]), rng.choice([0, -10, 20]))
    if code in ("LESS", "EQUAL"):
        result = T("bool", (1,))
    activation = rng.choice([0, 0, 1, 2, 3])
    made_options = options(kinds[code], fusedActivationFunction=activation) if code in kinds else None
    operands = [m.x, other] if rng.random() < 0.7 or code == "PRELU" else [other, m.x]
    m.add(code, operands, made_options, result)


def unary(m: TfliteModel) -> None:
    """Functions of one element, softmax among them."""
    rng = m.rng
    codes = ["RELU", "RELU6", "RELU_N1_TO_1", "LOGISTIC", "TANH", "HARD_SWISH", "LEAKY_RELU", "SOFTMAX", "ABS"]
    codes += ["ELU", "EXP", "NEG", "GELU", "LOG_SOFTMAX"] if m.kind == "f32" else ["QUANTIZE", "DEQUANTIZE"]
    code = rng.choice(codes)
    x = m.tensors[m.x]
    result, made = None, None
    if m.kind != "f32":
        # LiteRT fixes the scales of these results.
        result = {
            "LOGISTIC": T("i8", (1,), None, 1 / 256, -128), "TANH": T("i8", (1,), None, 1 / 128, 0),
            "SOFTMAX": T("i8", (1,), None, 1 / 256, -128), "DEQUANTIZE": T("f32", (1,)), "RELU": None,
        }.get(code, T("i8", (1,), None, float(x.scale) * rng.choice([1.0, 0.7, 1.5]), rng.choice([0, -9])))  # fmt: skip
    if code == "LEAKY_RELU":
        made = options("LeakyRelu", alpha=rng.choice([0.1, 0.5, -0.3]))
    elif code == "SOFTMAX":
        made = options("Softmax", beta=rng.choice([1.0, 0.5, 3.0]))
    elif code == "GELU":
        made = options("Gelu", approximate=rng.random() < 0.5)
    m.add(code, [m.x], made, result)


def reduction(m: TfliteModel) -> None:
    """Reductions over any axes."""
    rng, rank = m.rng, len(m.dims)
    codes = ["MEAN", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "SUM"] + (["REDUCE_PROD"] if m.kind == "f32" else [])
    code = rng.choice(codes)
    axes = [a - rank if rng.random() < 0.3 else a for a in rng.sample(range(rank), rng.randint(1, rank))]
    made = options("Reducer", keepDims=rng.random() < 0.5)
    count = int(np.prod([m.dims[a] for a in axes]))
    result = None
    if m.kind != "f32" and code in ("MEAN", "SUM"):
        grow = 1.0 if code == "MEAN" else np.sqrt(count)
        result = T("i8", (1,), None, float(m.tensors[m.x].scale) * rng.choice([1.0, 0.5]) * grow, rng.choice([0, 12]))
    m.add(code, [m.x, m.ints(axes)], made, result)


def resize(m: TfliteModel) -> None:
    """RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR in all their modes."""
    rng = m.rng
    modes = {"ResizeBilinear": "RESIZE_BILINEAR", "ResizeNearestNeighbor": "RESIZE_NEAREST_NEIGHBOR"}
    kind, code = rng.choice(list(modes.items()))
    align, half = rng.choice([(False, False), (True, False), (False, True)])
    size = m.ints([rng.randint(1, 9), rng.randint(1, 9)])
    m.add(code, [m.x, size], options(kind, alignCorners=align, halfPixelCenters=half))


def pad(m: TfliteModel) -> None:
    """PAD, PADV2 and MIRROR_PAD."""
    rng, dims = m.rng, m.dims
    code = rng.choice(["PAD", "PADV2", "MIRROR_PAD"])
    mode = rng.randrange(2)
    most = [min(2, d - 1 + mode) if code == "MIRROR_PAD" else 2 for d in dims]
    amounts = [[rng.randint(0, n) if rng.random() < 0.6 else 0 for _ in range(2)] for n in most]
    operands = [m.x, m.ints(amounts)]
    made = None
    if code == "PADV2":
        fill = m.real((), m.tensors[m.x])
        operands.append(m.tensor(replace(fill, data=1.5 if m.kind == "f32" else 17)))
    elif code == "MIRROR_PAD":
        made = options("MirrorPad", mode=mode)
    m.add(code, operands, made)


def cut(m: TfliteModel) -> None:
    """STRIDED_SLICE with steps of either sign and masks, and SLICE."""
    rng, dims = m.rng, m.dims
    begins, ends, steps = [], [], []
    for size in dims:
        step = rng.choice([1, 1, 2, -1, -2])
        count = rng.randint(1, -(-size // abs(step)))
        first = rng.randint(0, size - 1 - (count - 1) * abs(step))
        last = first + (count - 1) * abs(step)
        begins.append(first if step > 0 else last)
        ends.append(last + 1 if step > 0 else first - 1)
        steps.append(step)
    if rng.random() < 0.25:
        lengths = [rng.randint(1, d) for d in dims]
        starts = [rng.randint(0, d - n) for d, n in zip(dims, lengths, strict=True)]
        m.add("SLICE", [m.x, m.ints(starts), m.ints([-1 if s + n == d and rng.random() < 0.5 else n
              for s, n, d in zip(starts, lengths, dims, strict=True)])])  # fmt: skip
        return
    masks = {"endMask": sum(1 << a for a, (e, s) in enumerate(zip(ends, steps, strict=True)) if s < 0 and e < 0)}
    shrink = [a for a in range(len(dims)) if steps[a] == 1 and rng.random() < 0.15]
    masks["shrinkAxisMask"] = sum(1 << a for a in shrink)
    masks["beginMask"] = sum(1 << a for a in range(len(dims)) if a not in shrink and rng.random() < 0.15)
    m.add("STRIDED_SLICE", [m.x, *map(m.ints, (begins, ends, steps))], options("StridedSlice", **masks))


def join(m: TfliteModel) -> None:
    """CONCATENATION and PACK."""
    rng, dims, x = m.rng, m.dims, m.tensors[m.x]
    if rng.random() < 0.3 and len(dims) < 4:
        parts = [m.x, *(m.operand(dims, x) for _ in range(rng.randint(0, 2)))]
        m.add("PACK", parts, options("Pack", axis=rng.randint(-len(dims) - 1, len(dims)), valuesCount=len(parts)))
        return
    axis = rng.randrange(len(dims))
    parts = [m.x]
    for _ in range(rng.randint(1, 3)):
        shape = (*dims[:axis], rng.randint(1, 3), *dims[axis + 1 :])
        parts.append(m.x if rng.random() < 0.2 else m.operand(shape, x))
    rng.shuffle(parts)
    m.add("CONCATENATION", parts, options("Concatenation", axis=axis, fusedActivationFunction=0))


def move(m: TfliteModel) -> None:
    """TRANSPOSE, GATHER, RESHAPE, TILE, REVERSE_V2, SPACE_TO_DEPTH, SPACE_TO_BATCH_ND and their likes."""
    rng, dims = m.rng, m.dims
    rank = len(dims)
    codes = ["TRANSPOSE", "TRANSPOSE", "GATHER", "RESHAPE", "TILE", "REVERSE_V2", "EXPAND_DIMS", "SPLIT", "UNPACK"]
    if rank == 4:
        codes += ["SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND"]
    code, axis = rng.choice(codes), rng.randrange(rank)
    if code == "TRANSPOSE":
        m.add(code, [m.x, m.ints(rng.sample(range(rank), rank))])
    elif code == "GATHER":
        picks = m.ints([rng.randrange(dims[axis]) for _ in range(rng.randint(1, 4))])
        m.add(code, [m.x, picks], options("Gather", axis=axis))
    elif code == "RESHAPE":
        shape = rng.sample(list(dims), rank)
        m.add(code, [m.x, m.ints(shape)], options("Reshape", newShape=shape))
    elif code == "TILE":
        m.add(code, [m.x, m.ints([rng.choice([1, 1, 2]) for _ in dims])])
    elif code == "REVERSE_V2":
        m.add(code, [m.x, m.ints([axis])])
    elif code == "EXPAND_DIMS":
        m.add(code, [m.x, m.ints(axis)])
    elif code == "SPLIT":
        parts = rng.choice([n for n in (1, 2, 3) if dims[axis] % n == 0])
        m.add(code, [m.ints(axis), m.x], options("Split", numSplits=parts), outputs=parts)
    elif code == "UNPACK":
        m.add(code, [m.x], options("Unpack", axis=axis, num=dims[axis]), outputs=dims[axis])
    elif code == "SPACE_TO_DEPTH":
        block = rng.choice([b for b in (1, 2, 3) if dims[1] % b == 0 and dims[2] % b == 0])
        m.add(code, [m.x], options("SpaceToDepth", blockSize=block))
    elif code == "DEPTH_TO_SPACE":
        block = rng.choice([b for b in (1, 2, 3) if dims[3] % (b * b) == 0])
        m.add(code, [m.x], options("DepthToSpace", blockSize=block))
    elif code == "SPACE_TO_BATCH_ND":
        blocks = [rng.randint(1, 3) for _ in range(2)]
        pads = [[before, -(size + before) % b] for size, b in zip(dims[1:3], blocks, strict=True)
                for before in [rng.randint(0, 2)]]  # fmt: skip
        m.add(code, [m.x, m.ints(blocks), m.ints(pads)])
    else:
        blocks = rng.choice([(a, b) for a in (1, 2, 3) for b in (1, 2) if dims[0] % (a * b) == 0])
        crops = [[rng.randint(0, b - 1), rng.randint(0, b - 1)] if b * size > 4 else [0, 0]
                 for b, size in zip(blocks, dims[1:3], strict=True)]  # fmt: skip
        m.add(code, [m.x, m.ints(list(blocks)), m.ints(crops)])


FAMILIES: dict[str, tuple[tuple[int, ...], Callable[[TfliteModel], None]]] = {
    "convolution": ((4,), convolution),
    "transposed convolution": ((4,), transposed_convolution),
    "product": ((2, 3), product),
    "pool": ((4,), pool),
    "binary": ((1, 2, 3, 4), binary),
    "unary": ((1, 2, 4), unary),
    "reduction": ((1, 2, 3, 4), reduction),
    "resize": ((4,), resize),
    "pad": ((2, 3, 4), pad),
    "slice": ((1, 2, 3, 4), cut),
    "join": ((1, 2, 3, 4), join),
    "move": ((2, 3, 4), move),
}
"""Ranks that an operator's operand may have, and the operator, by the name of its kind."""
MOVEMENTS = ("pad", "slice", "join", "move")


def random_model(rng: Random, kind: str, *families: str) -> TfliteModel:
    """A chain of operators on floats ("f32") or signed bytes ("i8")."""
    m = TfliteModel(rng, kind)
    fitting = [r for r in FAMILIES[families[0]][0] if all(r in FAMILIES[f][0] for f in families)]
    rank = rng.choice(fitting or FAMILIES[families[0]][0])
    m.x = m.input(tuple(rng.choice([1, 2, 3, 4, 5, 6, 8, 9, 17]) for _ in range(rank)))
    for family in families:
        if len(m.dims) in FAMILIES[family][0] and m.tensors[m.x].type == kind and 0 not in m.dims:
            FAMILIES[family][1](m)
    return m
