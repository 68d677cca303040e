"""The networks of the samples. Weights are random, and the same every time: no model here is trained.

- The filter is one convolution. It is the model of most examples, because its figures can be checked by hand.
- The camera network finds one of ten classes in a picture of 64 x 64 pixels. Its first layers need most of the memory.
- The wake word model takes three frames of audio features at a time, and keeps earlier ones in variables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from isthmus.frontends.composed.entries import ComposedTensor, GraphEntry, NodeEntry, Scalar
from isthmus.frontends.dlc.writing import dlc
from isthmus.frontends.tflite.schema import Activation, ElementType, Padding
from isthmus.graph import DataType, TensorType
from isthmus.tools.sample_models.onnx import OnnxGraph, onnx_file
from isthmus.tools.sample_models.tflite import TfliteSubgraph, tflite_file
from isthmus.version import __version__

CLASSES = 10
SIDE = 64
"""Height and width of the camera network's picture."""
FRAMES, FEATURES = 3, 40
"""Frames of one inference of the wake word model, and the features of each."""
# The largest value that quantized activations can have.
_RANGE = 6.0


@dataclass(frozen=True)
class Layer:
    """A layer of the camera network.

    - `kind`: "conv", "depthwise", "pool", "add" (the layer two before is added), "mean" or "dense".
    - `channels`, `size`, `stride`: the channels of the result, and the window.
    """

    kind: str
    name: str
    channels: int
    size: int = 1
    stride: int = 1


CAMERA = (
    Layer("conv", "edges", 16, 3),
    Layer("depthwise", "texture", 16, 3),
    Layer("conv", "parts", 24),
    Layer("pool", "half", 24, 2, 2),
    Layer("conv", "shapes", 32, 3),
    Layer("conv", "again", 32, 3),
    Layer("add", "sum", 32),
    Layer("conv", "wide", 48, 3, 2),
    Layer("depthwise", "blend", 48, 3),
    Layer("conv", "objects", 64),
    Layer("mean", "average", 64),
    Layer("dense", "scores", CLASSES),
)


@cache
def _weights(layer: Layer, channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of a layer for so many input channels, channels of the result first, and its biases."""
    generator = np.random.default_rng([CAMERA.index(layer), channels])
    shape = {
        "conv": (layer.channels, layer.size, layer.size, channels),
        "depthwise": (layer.channels, layer.size, layer.size, 1),
        "dense": (layer.channels, channels),
    }[layer.kind]
    scale = np.sqrt(1.5 / np.prod(shape[1:]))
    weights = (generator.standard_normal(shape) * scale).astype(np.float32)
    return weights, (generator.standard_normal(layer.channels) / 8).astype(np.float32)


# -- ONNX --------------------------------------------------------------------------------------------------------------


def filter_onnx(height: int | str = 8, width: int | str = 8) -> bytes:
    """Return a convolution with a ReLU, of x [1, 3, height, width] to y; names leave dimensions open."""
    generator = np.random.default_rng(1)
    graph = OnnxGraph("filter", {"x": [1, 3, height, width]}, {"y": [1, 4, height, width]})
    weights = graph.constant("w", generator.standard_normal((4, 3, 3, 3)).astype(np.float32))
    bias = graph.constant("b", generator.standard_normal(4).astype(np.float32))
    graph.add("Conv", ["x", weights, bias], "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    graph.add("Relu", ["c"], "y")
    return onnx_file(graph)


def camera_onnx(bits: int = 0) -> bytes:
    """Return the camera network in floats, or with activations of 8 or 16 bits and weights of 8 (QDQ)."""
    graph = OnnxGraph("camera", {"image": [1, 3, SIDE, SIDE]}, {"scores": [1, CLASSES]})
    quantize = _quantizer(graph, bits)
    value, channels = quantize("image", "image", 1.0), 3
    before: list[str] = [value]
    for layer in CAMERA:
        made = layer.name if layer.kind == "dense" and not bits else f"{layer.name}_out"
        if layer.kind in ("conv", "depthwise", "dense"):
            inputs = [value, *_onnx_weights(graph, layer, channels, bits)]
            linear = f"{layer.name}_sum"
            if layer.kind == "dense":
                graph.add("Gemm", inputs, linear, transB=1)
                graph.add("Softmax", [quantize(linear, linear, 4 * _RANGE, signed=True)], made, axis=1)
            else:
                pad, group = [layer.size // 2] * 4, channels if layer.kind == "depthwise" else 1
                window = {"kernel_shape": [layer.size] * 2, "strides": [layer.stride] * 2}
                graph.add("Conv", inputs, linear, pads=pad, group=group, **window)
                graph.add("Relu", [linear], made)
        elif layer.kind == "pool":
            graph.add("MaxPool", [value], made, kernel_shape=[layer.size] * 2, strides=[layer.stride] * 2)
        elif layer.kind == "add":
            graph.add("Add", [value, before[-2]], made)
        else:
            graph.add("GlobalAveragePool", [value], f"{layer.name}_whole")
            graph.add("Flatten", [f"{layer.name}_whole"], made, axis=1)
        largest = 1.0 if layer.kind == "dense" else _RANGE
        value = quantize(made, layer.name, largest)
        before.append(value)
        channels = layer.channels
    return onnx_file(graph)


def _quantizer(graph: OnnxGraph, bits: int) -> Callable[..., str]:
    """Return a function that adds the nodes which quantize a value and return it to floats; without bits, none."""
    kind = np.dtype(f"uint{bits or 8}")

    def quantize(value: str, name: str, largest: float, signed: bool = False) -> str:
        if not bits:
            return value
        levels = np.iinfo(kind).max
        zero = (levels + 1) // 2 if signed else 0
        scale = np.float32((2 if signed else 1) * largest / levels)
        operands = [graph.constant(f"{name}_scale", np.array(scale)), graph.constant(f"{name}_zero", kind.type(zero))]
        graph.add("QuantizeLinear", [value, *operands], f"{name}_q")
        result = name if name in graph.outputs else f"{name}_dq"
        return graph.add("DequantizeLinear", [f"{name}_q", *operands], result)

    return quantize


def _onnx_weights(graph: OnnxGraph, layer: Layer, channels: int, bits: int) -> list[str]:
    """Add the weights and biases of a layer, with weights of 8 bits for each channel if bits are given."""
    weights, bias = _weights(layer, channels)
    if layer.kind != "dense":
        weights = weights.transpose(0, 3, 1, 2)
    weights = np.ascontiguousarray(weights)
    name = f"{layer.name}_w"
    if not bits:
        return [graph.constant(name, weights), graph.constant(f"{layer.name}_b", bias)]
    scales = np.abs(weights.reshape(len(weights), -1)).max(1) / np.float32(127)
    stored = np.rint(weights / scales.reshape(-1, *[1] * (weights.ndim - 1))).astype(np.int8)
    operands = [
        graph.constant(f"{name}_q", stored),
        graph.constant(f"{name}_scale", scales.astype(np.float32)),
        graph.constant(f"{name}_zero", np.zeros(len(scales), np.int8)),
    ]
    return [graph.add("DequantizeLinear", operands, name, axis=0), graph.constant(f"{layer.name}_b", bias)]


# -- TFLite ------------------------------------------------------------------------------------------------------------


def camera_tflite() -> bytes:
    """Return the camera network in floats."""
    net = TfliteSubgraph("camera")
    value, side, channels = net.tensor("image", (1, SIDE, SIDE, 3)), SIDE, 3
    net.inputs = [value]
    before = [value]
    for layer in CAMERA:
        side //= layer.stride
        made = net.tensor(f"{layer.name}_out", (1, side, side, layer.channels))
        window = {"padding": Padding.SAME, "stride_w": layer.stride, "stride_h": layer.stride}
        if layer.kind == "conv":
            operands = _tflite_weights(net, layer, channels)
            net.add("CONV_2D", [value, *operands], [made], **window, activation=Activation.RELU)
        elif layer.kind == "depthwise":
            operands = _tflite_weights(net, layer, channels)
            net.add("DEPTHWISE_CONV_2D", [value, *operands], [made], **window, activation=Activation.RELU)
        elif layer.kind == "pool":
            net.add("MAX_POOL_2D", [value], [made], **window, filter_w=layer.size, filter_h=layer.size)
        elif layer.kind == "add":
            net.add("ADD", [value, before[-2]], [made])
        elif layer.kind == "mean":
            net.tensors[made] = net.tensors[made].with_shape(1, layer.channels)
            net.add("MEAN", [value, net.constant("axes", np.array([1, 2], np.int32))], [made], keep_dims=False)
        else:
            net.tensors[made] = net.tensors[made].with_shape(1, layer.channels)
            net.add("FULLY_CONNECTED", [value, *_tflite_weights(net, layer, channels)], [made])
            scores = net.tensor(layer.name, (1, layer.channels))
            net.add("SOFTMAX", [made], [scores], beta=1.0)
            made = scores
        value, channels = made, layer.channels
        before.append(value)
    net.outputs = [value]
    return tflite_file(net)


def _tflite_weights(net: TfliteSubgraph, layer: Layer, channels: int) -> list[int]:
    """Add the weights and biases of a layer; those of a depthwise convolution have the channels last."""
    weights, bias = _weights(layer, channels)
    if layer.kind == "depthwise":
        weights = weights.transpose(3, 1, 2, 0)
    weights = np.ascontiguousarray(weights)
    return [net.constant(f"{layer.name}_w", weights), net.constant(f"{layer.name}_b", bias)]


# The scale of the wake word model's activations.
_STEP = 1 / 16


class _Stream:
    """The wake word model in the making: layers that see earlier frames keep those in a variable."""

    def __init__(self) -> None:
        self.main, self.initial = TfliteSubgraph("main"), TfliteSubgraph("initialize")
        self._generator = np.random.default_rng(7)

    def activations(self, name: str, shape: Sequence[int], zero: int = -128, scale: float = _STEP) -> int:
        """Add a tensor of activations."""
        return self.main.tensor(name, shape, np.int8, scale=[scale], zero=zero)

    def with_earlier(self, value: int, rows: int, name: str) -> int:
        """Return the last `rows` rows of earlier inferences and those of a value, and keep the last ones."""
        _, fresh, width, channels = self.main.tensors[value].shape
        state_dims, all_rows = (1, rows, width, channels), (1, rows + fresh, width, channels)
        handles = [net.tensor(f"{name}_handle", (), element=ElementType.RESOURCE) for net in (self.main, self.initial)]
        for net, handle in zip((self.main, self.initial), handles, strict=True):
            net.add("VAR_HANDLE", [], [handle], container="", shared_name=name)
        empty = np.full(state_dims, -128, np.int8)
        zeros = self.initial.tensor(f"{name}_zeros", state_dims, np.int8, data=empty, scale=[_STEP], zero=-128)
        self.initial.add("ASSIGN_VARIABLE", [handles[1], zeros], [])
        earlier, joined = self.activations(f"{name}_earlier", state_dims), self.activations(f"{name}_joined", all_rows)
        self.main.add("READ_VARIABLE", [handles[0]], [earlier])
        self.main.add("CONCATENATION", [earlier, value], [joined], axis=1, activation=Activation.NONE)
        last = self.activations(f"{name}_last", state_dims)
        bounds = [
            self.main.constant(f"{name}_begin", np.array([0, fresh, 0, 0], np.int32)),
            self.main.constant(f"{name}_end", np.array([1, rows + fresh, width, channels], np.int32)),
            self.main.constant(f"{name}_step", np.array([1, 1, 1, 1], np.int32)),
        ]
        self.main.add("STRIDED_SLICE", [joined, *bounds], [last], begin_mask=0)
        self.main.add("ASSIGN_VARIABLE", [handles[0], last], [])
        return joined

    def weights(self, name: str, shape: Sequence[int], axis: int = 0) -> list[int]:
        """Add weights and biases of a layer."""
        fan = int(np.prod(shape)) // shape[axis]
        stored = np.clip(self._generator.standard_normal(shape) * 48, -127, 127).astype(np.int8)
        scale = float(np.float32(np.sqrt(2 / fan) / 48))
        bias = self._generator.integers(-200, 200, shape[axis]).astype(np.int32)
        return [self.main.constant(name, stored, [scale]), self.main.constant(f"{name}_bias", bias, [scale * _STEP])]

    def convolution(self, value: int, rows: int, channels: int, stride: int, name: str) -> int:
        """Add a convolution over so many rows, with a ReLU."""
        _, height, _, depth = self.main.tensors[value].shape
        made = self.activations(name, (1, (height - rows) // stride + 1, 1, channels))
        options = {"padding": Padding.VALID, "stride_w": 1, "stride_h": stride, "activation": Activation.RELU}
        self.main.add("CONV_2D", [value, *self.weights(f"{name}_w", (channels, rows, 1, depth))], [made], **options)
        return made


def wake_word_tflite() -> bytes:
    """Return the wake word model: int8 features [1, 3, 40] to a uint8 probability, with three variables."""
    stream = _Stream()
    net = stream.main
    features = stream.activations("features", (1, FRAMES, FEATURES))
    net.inputs = [features]
    net.add("CALL_ONCE", [], [], init_subgraph=1)
    rows = stream.activations("rows", (1, FRAMES, 1, FEATURES))
    net.add("RESHAPE", [features, net.constant("rows_shape", np.array([1, FRAMES, 1, FEATURES], np.int32))], [rows])
    value = stream.convolution(stream.with_earlier(rows, 2, "audio"), 5, 32, 1, "sounds")
    value = stream.convolution(stream.with_earlier(value, 4, "sounds"), 5, 48, 1, "syllables")
    value = stream.convolution(value, 1, 48, 1, "mixed")
    joined = stream.with_earlier(value, 9, "words")
    flat = stream.activations("flat", (1, 10 * 48))
    net.add("RESHAPE", [joined, net.constant("flat_shape", np.array([1, 10 * 48], np.int32))], [flat])
    evidence = stream.activations("evidence", (1, 1), zero=0)
    net.add("FULLY_CONNECTED", [flat, *stream.weights("evidence_w", (1, 10 * 48))], [evidence])
    signed = stream.activations("probability_signed", (1, 1), scale=1 / 256)
    net.add("LOGISTIC", [evidence], [signed])
    probability = net.tensor("probability", (1, 1), np.uint8, scale=[1 / 256], zero=0)
    net.add("QUANTIZE", [signed], [probability])
    net.outputs = [probability]
    return tflite_file(net, stream.initial)


# -- DLC ---------------------------------------------------------------------------------------------------------------


def filter_dlc(*names: str) -> bytes:
    """Return a DLC with a convolution of in/x:0 [1, 6, 6, 2] to y for each name of a graph."""
    return dlc([_filter_entry(name) for name in names], "isthmus samples", __version__)


def _filter_entry(name: str) -> GraphEntry:
    weights = ((np.arange(72) * 37 % 17 - 8) / 32).astype(np.float32).reshape(3, 3, 2, 4)

    def tensor(name: str, kind: TensorType, dims: Sequence[int], data: np.ndarray | None = None) -> ComposedTensor:
        dtype = DataType.FLOAT_32 if data is None else DataType.of(data.dtype)
        held = None if data is None else memoryview(data.tobytes())
        return ComposedTensor(name, int(kind), int(dtype), tuple(dims), None, held)

    def static(name: str, data: np.ndarray) -> ComposedTensor:
        return tensor(name, TensorType.STATIC, data.shape, data)

    tensors = (
        tensor("in/x:0", TensorType.APP_WRITE, (1, 6, 6, 2)),
        static("conv/w:0", weights),
        static("conv/b:0", np.array([0.5, -0.25, 0.125, 0], np.float32)),
        tensor("c", TensorType.NATIVE, (1, 6, 6, 4)),
        tensor("y", TensorType.APP_READ, (1, 6, 6, 4)),
    )
    params: dict[str, Scalar | ComposedTensor] = {
        "stride": static("conv_stride", np.array([1, 1], np.uint32)),
        "pad_amount": static("conv_pad_amount", np.array([[1, 1], [1, 1]], np.uint32)),
        "group": 1,
    }
    nodes = (
        NodeEntry("conv", "Conv2d", ("in/x:0", "conv/w:0", "conv/b:0"), ("c",), params),
        NodeEntry("relu", "Relu", ("c",), ("y",), {}),
    )
    return GraphEntry(name, tensors, nodes)
