"""A builder of ONNX files in the forms in which exporters of PyTorch and TensorFlow write them, with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL, HALF = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16
Feeds = dict[str, np.ndarray]


@dataclass
class Network:
    """A kind of network as a file.

    Parameters
    ----------
    model
        The file.
    runs
        Inputs for it, the greatest first.
    greatest
        The greatest shapes of inputs with open dimensions.
    tolerance
        How far results may be from ONNX Runtime's, as a part of the greatest.
    """

    model: ModelProto
    runs: list[Feeds]
    greatest: dict[str, tuple[int, ...]]
    tolerance: float


@dataclass
class Kind:
    """A kind of network: what builds it, and the form in which it is written."""

    build: Callable[..., Any]
    options: dict[str, Any]
    form: dict[str, Any] = field(default_factory=dict)


KINDS: dict[str, Kind] = {}
_FORM = ("opset", "constant_nodes", "inputs_too", "tolerance", "half")


def kind(name: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a builder under a name; options that are not of the form are the builder's own."""

    def register(build: Callable[..., Any]) -> Callable[..., Any]:
        assert name not in KINDS, name
        form = {key: options[key] for key in options if key in _FORM}
        KINDS[name] = Kind(build, {key: options[key] for key in options if key not in _FORM}, form)
        return build

    return register


def network(name: str) -> Network:
    """Build a kind of network. Weights and inputs depend on the name only."""
    made = KINDS[name]
    b = Builder(seed=sum(map(ord, name)), **made.form)
    results = made.build(b, **made.options)
    return b.finish(results)


class Builder:
    """A file under construction. Operands are names of values; numbers, lists and arrays become constants.

    Parameters
    ----------
    seed
        For weights and inputs.
    opset
        The operator set.
    constant_nodes
        Whether constants are Constant nodes, as older exporters write them, not initializers.
    inputs_too
        Whether initializers are listed as inputs too, as files of the first ONNX versions do.
    tolerance
        That of the network.
    half
        Whether all floats are float16.
    """

    def __init__(
        self, seed: int, opset: int = 17, constant_nodes: bool = False, inputs_too: bool = False,
        tolerance: float = 1e-4, half: bool = False,
    ) -> None:  # fmt: skip
        self.rng = np.random.default_rng(seed)
        self.opset = opset
        self.half = half
        self._constant_nodes, self._inputs_too, self._tolerance = constant_nodes, inputs_too, tolerance
        self._nodes: list[Any] = []
        self._weights: list[Any] = []
        self._inputs: list[Any] = []
        self._runs: list[Feeds] = []
        self._greatest: dict[str, tuple[int, ...]] = {}
        self.functions: list[Any] = []
        self.domains: set[str] = set()
        self._count = 0

    # --- values -----------------------------------------------------------------------------------------------------

    def float_type(self) -> Any:
        """Return the number of the type of floats."""
        return HALF if self.half else FLOAT

    def input(
        self, name: str, dims: Sequence[int], below: int | None = None, smaller: Sequence[Sequence[int]] = (),
        dtype: Any = None, open_axes: Sequence[int] | None = None, low: float | None = None,
    ) -> str:  # fmt: skip
        """Declare an input: floats, or integers below a number.

        Axes in which a shape of `smaller` differs are open; there is a run with each of these shapes.
        """
        axes = {a for dims2 in smaller for a, d in enumerate(dims2) if d != dims[a]} | set(open_axes or ())
        declared = [f"{name}_{axis}" if axis in axes else size for axis, size in enumerate(dims)]
        kind = INT64 if below is not None else self.float_type()
        dtype = dtype or (np.int64 if below is not None else np.float16 if self.half else np.float32)
        if np.dtype(dtype) == np.bool_:
            kind = BOOL
        self._inputs.append(helper.make_tensor_value_info(name, kind, declared))
        if axes:
            self._greatest[name] = tuple(dims)
        for run, shape in enumerate((dims, *smaller)):
            if run == len(self._runs):
                self._runs.append(dict(self._runs[0]) if self._runs else {})
            if np.dtype(dtype) == np.bool_:
                array = self.rng.random(shape) < 0.5
            elif below is not None:
                array = self.rng.integers(0, below, shape)
            else:
                array = self.rng.standard_normal(shape)
                array = np.abs(array) + low if low is not None else array
            self._runs[run][name] = np.asarray(array, dtype)
        for run in self._runs[1 + len(smaller) :]:
            run[name] = self._runs[0][name]
        return name

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant; integers become INT64, floats the type of floats."""
        array = np.asarray(value)
        if dtype is None and array.dtype.kind in "iu" and not isinstance(value, np.ndarray):
            dtype = np.int64
        if dtype is None and array.dtype.kind == "f" and array.dtype != np.float16:
            dtype = np.float16 if self.half else np.float32
        tensor = numpy_helper.from_array(np.ascontiguousarray(array, dtype or array.dtype).reshape(array.shape))
        if self._constant_nodes:
            return str(self("Constant", value=tensor))
        tensor.name = self._fresh("const")
        self._weights.append(tensor)
        return str(tensor.name)

    def weight(self, *dims: int, scale: float | None = None, positive: bool = False) -> str:
        """Return the name of random weights; by default those that keep the size of their operand."""
        fan = math.prod(dims[1:]) if len(dims) > 1 else 1
        array = self.rng.standard_normal(dims) * (scale if scale is not None else 1 / math.sqrt(fan))
        array = np.abs(array) + 0.5 if positive else array
        tensor = numpy_helper.from_array(np.asarray(array, np.float16 if self.half else np.float32), self._fresh("w"))
        self._weights.append(tensor)
        if self._inputs_too:
            self._inputs.append(helper.make_tensor_value_info(tensor.name, self.float_type(), dims))
        return str(tensor.name)

    def _fresh(self, stem: str) -> str:
        self._count += 1
        return f"/{stem}_{self._count}"

    def name_of(self, value: Any) -> str:
        """Return the name of an operand."""
        return value if isinstance(value, str) else self.constant(value)

    def __call__(self, op: str, *inputs: Any, out: int = 1, domain: str = "", **attributes: Any) -> Any:
        """Add a node; return the name of its result, or the names if there are several."""
        names = [self.name_of(value) for value in inputs]
        results = [self._fresh(op) for _ in range(out)]
        given = {key: value for key, value in attributes.items() if value is not None}
        self._nodes.append(helper.make_node(op, names, results, domain=domain, name=self._fresh(f"{op}_node"), **given))
        if domain:
            self.domains.add(domain)
        return results[0] if out == 1 else results

    # --- operators whose form depends on the operator set -----------------------------------------------------------

    def _axes(self, op: str, x: str, axes: Sequence[int], since: int, **more: Any) -> str:
        if self.opset >= since:
            return str(self(op, x, list(axes), **more))
        return str(self(op, x, axes=list(axes), **more))

    def unsqueeze(self, x: str, *axes: int) -> str:
        return self._axes("Unsqueeze", x, axes, 13)

    def squeeze(self, x: str, *axes: int) -> str:
        return self._axes("Squeeze", x, axes, 13)

    def sum(self, x: str, *axes: int, keep: int = 1) -> str:
        return self._axes("ReduceSum", x, axes, 13, keepdims=keep)

    def mean(self, x: str, *axes: int, keep: int = 1) -> str:
        return self._axes("ReduceMean", x, axes, 18, keepdims=keep)

    def max(self, x: str, *axes: int, keep: int = 1) -> str:
        return self._axes("ReduceMax", x, axes, 18, keepdims=keep)

    def split(self, x: str, parts: Sequence[int], axis: int) -> list[str]:
        if self.opset >= 13:
            return list(self("Split", x, list(parts), out=len(parts), axis=axis))
        return list(self("Split", x, out=len(parts), axis=axis, split=list(parts)))

    def slice(self, x: str, begin: int, end: int, axis: int, step: int = 1) -> str:
        if self.opset < 10:
            return str(self("Slice", x, starts=[begin], ends=[end], axes=[axis]))
        return str(self("Slice", x, [begin], [end], [axis], [step]))

    def clip(self, x: str, low: float, high: float) -> str:
        if self.opset >= 11:
            return str(self("Clip", x, self.constant(float(low)), self.constant(float(high))))
        return str(self("Clip", x, min=float(low), max=float(high)))

    def pad(self, x: str, pads: Sequence[int], mode: str = "constant") -> str:
        if self.opset >= 11:
            return str(self("Pad", x, list(pads), mode=mode))
        return str(self("Pad", x, pads=list(pads), mode=mode))

    # --- layers -----------------------------------------------------------------------------------------------------

    def size(self, x: str, axis: int) -> str:
        """Return a size as the TorchScript exporter does: a Gather of the Shape."""
        return str(self("Gather", self("Shape", x), self.constant(axis), axis=0))

    def reshape(self, x: str, *dims: Any) -> str:
        """Reshape; with sizes that are names, by a Concat of them, as the TorchScript exporter does."""
        if not any(isinstance(d, str) for d in dims):
            return str(self("Reshape", x, list(dims)))
        parts = [self.unsqueeze(d, 0) if isinstance(d, str) else self.constant([d]) for d in dims]
        return str(self("Reshape", x, self("Concat", *parts, axis=0)))

    def transpose(self, x: str, *perm: int) -> str:
        return str(self("Transpose", x, perm=list(perm)))

    def conv(
        self, x: str, ins: int, outs: int, size: int | Sequence[int] = 3, stride: int = 1, group: int = 1,
        dilation: int = 1, pads: Sequence[int] | None = None, bias: bool = True, rank: int = 2, **more: Any,
    ) -> str:  # fmt: skip
        sizes = [size] * rank if isinstance(size, int) else list(size)
        if pads is None and "auto_pad" not in more:
            half = [(k - 1) * dilation // 2 for k in sizes]
            pads = [*half, *half]
        operands = [x, self.weight(outs, ins // group, *sizes)]
        if bias:
            operands.append(self.weight(outs, scale=0.1))
        return str(self("Conv", *operands, kernel_shape=sizes, strides=[stride] * rank, group=group, pads=pads,
                        dilations=[dilation] * rank, **more))  # fmt: skip

    def up_conv(self, x: str, ins: int, outs: int, size: int = 2, stride: int = 2, rank: int = 2, **more: Any) -> str:
        group = more.get("group", 1)
        weights = self.weight(ins, outs // group, *[size] * rank, scale=0.3), self.weight(outs, scale=0.1)
        return str(self("ConvTranspose", x, *weights, kernel_shape=[size] * rank, strides=[stride] * rank, **more))

    def bn(self, x: str, channels: int) -> str:
        stats = [self.weight(channels, positive=True), self.weight(channels, scale=0.1),
                 self.weight(channels, scale=0.1), self.weight(channels, positive=True)]  # fmt: skip
        return str(self("BatchNormalization", x, *stats, epsilon=1e-5, momentum=0.9))

    def activation(self, x: str, name: str) -> str:
        """Add an activation, spelt as exporters spell it."""
        if name == "relu6":
            return self.clip(x, 0.0, 6.0)
        if name == "silu":
            return str(self("Mul", x, self("Sigmoid", x)))
        if name == "hardswish":
            return str(self("Mul", x, self("HardSigmoid", x, alpha=1 / 6, beta=0.5)))
        if name == "hardswish by clip":
            return str(self("Div", self("Mul", x, self.clip(self("Add", x, 3.0), 0.0, 6.0)), 6.0))
        if name == "mish":
            return str(self("Mul", x, self("Tanh", self("Softplus", x))))
        if name == "gelu":
            erf = self("Erf", self("Div", x, math.sqrt(2.0)))
            return str(self("Mul", self("Mul", x, self("Add", erf, 1.0)), 0.5))
        if name == "tanh gelu":
            cube = self("Mul", self("Pow", x, 3.0), 0.044715)
            inner = self("Tanh", self("Mul", self("Add", x, cube), math.sqrt(2 / math.pi)))
            return str(self("Mul", self("Mul", x, 0.5), self("Add", inner, 1.0)))
        if name == "leaky":
            return str(self("LeakyRelu", x, alpha=0.1))
        return x if name == "none" else str(self(name, x))

    def block(self, x: str, ins: int, outs: int, act: str = "Relu", bn: bool = True, **more: Any) -> str:
        """Add convolution, normalization (unless an exporter has folded it), and activation."""
        x = self.conv(x, ins, outs, bias=not bn, **more)
        return self.activation(self.bn(x, outs) if bn else x, act)

    def linear(self, x: str, ins: int, outs: int, gemm: bool = False, bias: bool = True) -> str:
        if gemm:
            return str(self("Gemm", x, self.weight(outs, ins), self.weight(outs, scale=0.1), alpha=1.0, beta=1.0,
                            transB=1))  # fmt: skip
        product = self("MatMul", x, self.weight(ins, outs, scale=1 / math.sqrt(ins)))
        return str(self("Add", self.weight(outs, scale=0.1), product)) if bias else str(product)

    def flat(self, x: str, shapes: bool = False) -> str:
        """Flatten all but the batch, by a Flatten or by shape arithmetic."""
        return self.reshape(x, self.size(x, 0), -1) if shapes else str(self("Flatten", x, axis=1))

    def head(self, x: str, channels: int, classes: int = 5, shapes: bool = False) -> str:
        """Add the head of a classifier."""
        return self.linear(self.flat(self("GlobalAveragePool", x), shapes), channels, classes, gemm=True)

    def layer_norm(self, x: str, width: int, fused: bool = False, epsilon: float = 1e-5) -> str:
        gain, bias = self.weight(width, positive=True), self.weight(width, scale=0.1)
        if fused:
            return str(self("LayerNormalization", x, gain, bias, axis=-1, epsilon=epsilon))
        centred = self("Sub", x, self.mean(x, -1))
        deviation = self("Sqrt", self("Add", self.mean(self("Pow", centred, 2.0), -1), epsilon))
        return str(self("Add", self("Mul", self("Div", centred, deviation), gain), bias))

    def rms_norm(self, x: str, width: int) -> str:
        square = self.mean(self("Pow", x, 2.0), -1)
        return str(self("Mul", self.weight(width, positive=True),
                        self("Mul", x, self("Reciprocal", self("Sqrt", self("Add", square, 1e-6))))))  # fmt: skip

    def heads(self, x: str, heads: int, width: int, shapes: bool = True) -> str:
        """Return [batch, length, width] as [batch, heads, length, size]."""
        dims = (self.size(x, 0), self.size(x, 1)) if shapes else (0, -1)
        return self.transpose(self.reshape(x, *dims, heads, width // heads), 0, 2, 1, 3)

    def joined(self, x: str, width: int, shapes: bool = True) -> str:
        """Return [batch, heads, length, size] as [batch, length, width]."""
        x = self.transpose(x, 0, 2, 1, 3)
        return self.reshape(x, self.size(x, 0), self.size(x, 1), width) if shapes else self.reshape(x, 0, -1, width)

    def attend(self, q: str, k: str, v: str, size: int, mask: str | None = None, scale_first: bool = False) -> str:
        """Return the attention of queries to keys and values that are split into heads."""
        if scale_first:
            q = self("Mul", q, size**-0.5)
        scores = self("MatMul", q, self.transpose(k, 0, 1, 3, 2))
        if not scale_first:
            scores = self("Div", scores, math.sqrt(size))
        if mask is not None:
            scores = self("Add", scores, mask)
        return str(self("MatMul", self("Softmax", scores, axis=-1), v))

    def attention(
        self, x: str, width: int, heads: int, context: str | None = None, mask: str | None = None, shapes: bool = True
    ) -> str:
        """Add the attention of a sequence to itself or to a context."""
        context = context or x
        q, k, v = (self.heads(self.linear(each, width, width), heads, width, shapes) for each in (x, context, context))
        return self.linear(self.joined(self.attend(q, k, v, width // heads, mask), width, shapes), width, width)

    def encoder_layer(
        self, x: str, width: int, heads: int, fused: bool = False, act: str = "gelu", shapes: bool = True,
        mask: str | None = None, first: bool = True,
    ) -> str:  # fmt: skip
        """Add a layer of a transformer; `first` says whether the normalizations are before attention and products."""
        if first:
            x = self("Add", x, self.attention(self.layer_norm(x, width, fused), width, heads, mask=mask, shapes=shapes))
            inner = self.activation(self.linear(self.layer_norm(x, width, fused), width, 2 * width), act)
            return str(self("Add", x, self.linear(inner, 2 * width, width)))
        x = self.layer_norm(self("Add", self.attention(x, width, heads, mask=mask, shapes=shapes), x), width, fused)
        inner = self.linear(self.activation(self.linear(x, width, 2 * width), act), 2 * width, width)
        return self.layer_norm(self("Add", inner, x), width, fused)

    def squeeze_excite(self, x: str, channels: int, gate: str = "Sigmoid") -> str:
        pooled = self("GlobalAveragePool", x)
        inner = self("Relu", self.conv(pooled, channels, max(channels // 4, 2), size=1))
        inner = self.conv(inner, max(channels // 4, 2), channels, size=1)
        weights = self("HardSigmoid", inner, alpha=1 / 6, beta=0.5) if gate == "hard" else self("Sigmoid", inner)
        return str(self("Mul", x, weights))

    def shuffle(self, x: str, channels: int, groups: int, size: int) -> str:
        """Shuffle channels, by Reshape and Transpose."""
        x = self.transpose(self.reshape(x, -1, groups, channels // groups, size, size), 0, 2, 1, 3, 4)
        return self.reshape(x, -1, channels, size, size)

    def pool(self, x: str, kind: str = "MaxPool", size: int = 2, stride: int = 2, rank: int = 2, **more: Any) -> str:
        return str(self(kind, x, kernel_shape=[size] * rank, strides=[stride] * rank, **more))

    def resize(self, x: str, factor: float, mode: str = "nearest", rank: int = 2, **more: Any) -> str:
        """Resize by a factor in the form of the operator set."""
        scales = np.float32([1, 1, *[factor] * rank])
        if self.opset < 9:
            return str(self("Upsample", x, mode=mode, scales=scales.tolist()))
        if self.opset == 9:
            return str(self("Upsample", x, scales, mode=mode))
        if self.opset == 10:
            return str(self("Resize", x, scales, mode=mode))
        if mode == "nearest":
            more = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", **more}
        return str(self("Resize", x, self.constant(np.zeros(0, np.float32)), scales, mode=mode, **more))

    def resize_like(self, x: str, like: str, mode: str = "linear", align: bool = False) -> str:
        """Resize to the height and width of another value, by the shape arithmetic of exporters."""
        size = self("Concat", *(self.unsqueeze(self.size(like, axis), 0) for axis in (2, 3)), axis=0)
        first = self.slice(self("Shape", x), 0, 2, 0)
        sizes = self("Concat", first, self("Cast", size, to=INT64), axis=0)
        nothing = self.constant(np.zeros(0, np.float32))
        more = {"coordinate_transformation_mode": "align_corners" if align else "half_pixel"}
        if mode == "nearest":
            more = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return str(self("Resize", x, nothing if self.opset < 13 else "", nothing if self.opset < 13 else "", sizes,
                        mode=mode, **more))  # fmt: skip

    # --- quantization -----------------------------------------------------------------------------------------------

    def qdq(self, x: str, scale: float = 0.05, zero: int = 0, dtype: Any = np.int8) -> str:
        """Quantize and dequantize a value."""
        stored = self("QuantizeLinear", x, scale, np.asarray(zero, dtype))
        return str(self("DequantizeLinear", stored, scale, np.asarray(zero, dtype)))

    def q_weight(self, *dims: int, per_channel: bool = False) -> str:
        """Return the dequantized value of random 8-bit weights."""
        stored = self.constant(self.rng.integers(-127, 128, dims).astype(np.int8))
        fan = math.sqrt(math.prod(dims[1:])) * 64
        if not per_channel:
            return str(self("DequantizeLinear", stored, 1 / fan, np.asarray(0, np.int8)))
        scales = np.asarray((self.rng.random(dims[0]) + 0.5) / fan, np.float32)
        return str(self("DequantizeLinear", stored, scales, np.zeros(dims[0], np.int8), axis=0))

    # --- the file ---------------------------------------------------------------------------------------------------

    def graph(self, body: Callable[[Builder], tuple[list[Any], list[str]]]) -> Any:
        """Return a subgraph: `body` takes a builder for it, and returns its inputs and the names of its outputs."""
        inner = Builder(int(self.rng.integers(1 << 30)), self.opset, constant_nodes=True, half=self.half)
        inner._count = self._count + 1000
        inputs, outputs = body(inner)
        self._count = inner._count + 1000
        values = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
        return helper.make_graph(inner._nodes, self._fresh("body"), inputs, values, inner._weights)

    def finish(self, results: Any) -> Network:
        """Return the network with these results: names of floats, or pairs of a name and a type."""
        results = results if isinstance(results, list) else [results]
        outputs = [each if isinstance(each, tuple) else (each, self.float_type()) for each in results]
        for index, (name, _) in enumerate(outputs):
            self._nodes.append(helper.make_node("Identity", [name], [f"output{index}"]))
        values = [helper.make_tensor_value_info(f"output{i}", kind, None) for i, (_, kind) in enumerate(outputs)]
        graph = helper.make_graph(self._nodes, "main_graph", self._inputs, values, self._weights)
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(self.domains))]
        ir = 3 if self._inputs_too else 10 if self.opset >= 21 else 8
        made = helper.make_model(graph, opset_imports=opsets, ir_version=ir, functions=self.functions)
        return Network(made, self._runs, self._greatest, 2e-2 if self.half else self._tolerance)
