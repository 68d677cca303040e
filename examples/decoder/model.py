"""A Llama-like decoder with random weights as ONNX models, in the shapes and with the names of tensors of Genie.

A layer has RMSNorm, attention with fewer heads for keys and values than for queries, rotary positions, and SwiGLU. With
a sliding window, every second layer sees only that many tokens. The keys and values of earlier tokens (the cache) are
inputs; those of the new tokens are outputs, which the client puts among the others.

All graphs of a decoder have the same weights, which are in one file beside them. Precisions:

- `float16`: weights, activations and the cache;
- `float32`: the same in float32;
- `a16w8`: activations of 16 bits, weights and the cache of 8 bits. Every result is quantized, as a quantizer's tools
  write it (QDQ). Scales are fixed: random weights have results of a known size, so nothing needs to be calibrated.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

FLOAT16, FLOAT32, A16W8 = PRECISIONS = ("float16", "float32", "a16w8")
EPSILON = 1e-5
ROPE_THETA = 10000
WEIGHTS = "weights.data"
"""The file of the weights, in the folder of the models."""
MIN_EXTERNAL = 1024
"""The least bytes of a constant that is in that file."""
ENCODINGS = {
    "past": (np.uint8, 16 / 255, 128),
    "attention_mask": (np.uint16, 1000 / 65535, 65535),
    "window_attention_mask": (np.uint16, 1000 / 65535, 65535),
    "position": (np.uint16, 2 / 65535, 32768),
    "logits": (np.uint16, 64 / 65535, 32768),
    "scores": (np.uint16, 128 / 65535, 32768),
    "share": (np.uint16, 1 / 65535, 0),
    "activation": (np.uint16, 64 / 65535, 32768),
}
"""Data type, scale and zero point in a16w8: of inputs and outputs by the beginning of their names, and of results."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; a window of 0 means that all layers see all tokens."""

    vocabulary: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 16
    hidden: int = 64
    inner: int = 128
    window: int = 0
    seed: int = 10

    @property
    def masks(self) -> dict[str, int]:
        """The masks that are inputs, each with the number of tokens that it shows (0: all)."""
        masks = {"attention_mask": 0}
        return masks | {"window_attention_mask": self.window} if self.window else masks


def weights(shape: Shape) -> dict[str, np.ndarray]:
    """Return the weights by name; the same for the same shape."""
    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    # Attention on random weights is nearly even over all tokens; large queries make it choose.
    query_scale = np.float32(4 / np.sqrt(shape.head_width))
    made = {"embedding": random.standard_normal((shape.vocabulary, shape.hidden)).astype(np.float32)}
    for layer in range(shape.layers):
        made |= {
            f"{layer}.norm": np.ones(shape.hidden, np.float32),
            f"{layer}.q": query_scale * matrix(shape.hidden, queries),
            f"{layer}.k": matrix(shape.hidden, keys),
            f"{layer}.v": matrix(shape.hidden, keys),
            f"{layer}.o": matrix(queries, shape.hidden),
            f"{layer}.inner_norm": np.ones(shape.hidden, np.float32),
            f"{layer}.gate": matrix(shape.hidden, shape.inner),
            f"{layer}.up": matrix(shape.hidden, shape.inner),
            f"{layer}.down": matrix(shape.inner, shape.hidden),
        }
    head = 3 * matrix(shape.hidden, shape.vocabulary)
    # The end of a sentence is unlikely, so that sentences are as long as they are asked for.
    head[:, :3] /= 100
    return made | {"norm": np.ones(shape.hidden, np.float32), "head": head}


def name_of(tokens: int, context: int) -> str:
    """Return the name of a graph."""
    return f"ar{tokens}_cl{context}"


class Decoder:
    """The models of a decoder: one for each number of tokens at once and each context length.

    Parameters
    ----------
    folder
        Where the models and their weights are written.
    shape
        The sizes.
    precision
        One of `PRECISIONS`.
    """

    def __init__(self, folder: Path, shape: Shape, precision: str = A16W8) -> None:
        self.folder, self.shape, self.precision = folder, shape, precision
        self.weights: dict[str, TensorProto] = {}
        with (folder / WEIGHTS).open("wb") as file:
            for name, value in weights(shape).items():
                if precision != A16W8:
                    self._store(file, name, value.astype(precision))
                else:
                    # One scale for each column of a matrix.
                    scale = (np.abs(value).max(axis=0 if value.ndim == 2 else None) / 127).astype(np.float32)
                    self._store(file, name, np.rint(value / scale).astype(np.int8))
                    self._store(file, f"{name}.scale", scale)
                    self._store(file, f"{name}.zero", np.zeros(scale.shape, np.int8))

    def _store(self, file: Any, name: str, value: np.ndarray) -> None:
        """Write a constant into the file of the weights, or keep it where it is small."""
        if value.nbytes < MIN_EXTERNAL:
            self.weights[name] = onnx.numpy_helper.from_array(value, name)
            return
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(value.dtype), dims=value.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, text in (("location", WEIGHTS), ("offset", file.tell()), ("length", value.nbytes)):
            tensor.external_data.add(key=key, value=str(text))
        file.write(value.tobytes())
        self.weights[name] = tensor

    def write(self, tokens: int, context: int) -> Path:
        """Write the model for a number of tokens at once and a context length; return its path.

        With as many tokens as the context has, there are no earlier ones, and no cache is an input.
        """
        graph = GraphWriter(self.weights, self.precision)
        _add_layers(graph, self.shape, tokens, context)
        path = self.folder / f"{name_of(tokens, context)}.onnx"
        path.write_bytes(graph.model(path.stem).SerializeToString())
        return path


class GraphWriter:
    """A list of ONNX nodes with the constants that they use."""

    def __init__(self, weights: dict[str, TensorProto], precision: str) -> None:
        self.constants = dict(weights)
        self.precision, self.quantized = precision, precision == A16W8
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def _node(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def add(self, kind: str, *inputs: str, encoding: str = "activation", output: str = "", **attributes: Any) -> str:
        """Append a node, in a16w8 with the quantization of its result; return the name of the result's real values."""
        if not self.quantized:
            return self._node(kind, *inputs, output=output, **attributes)
        result = self._node(kind, *inputs, **attributes)
        return self._node(
            "DequantizeLinear",
            self._node("QuantizeLinear", result, *self._encoding(encoding), output=output),
            *self._encoding(encoding),
        )

    def _encoding(self, name: str) -> tuple[str, str]:
        """Return the names of a scale and a zero point."""
        dtype, scale, zero = ENCODINGS[name]
        for part, value in (("scale", np.float32(scale)), ("zero", dtype(zero))):
            self.constants[f"{name}.{part}"] = onnx.numpy_helper.from_array(np.asarray(value), f"{name}.{part}")
        return f"{name}.scale", f"{name}.zero"

    def weight(self, name: str) -> str:
        """Return the name of a weight's real values."""
        if not self.quantized or f"{name}.real" in (node.output[0] for node in self.nodes):
            return f"{name}.real" if self.quantized else name
        axis = {"axis": 1} if len(self.constants[name].dims) == 2 else {}
        return self._node("DequantizeLinear", name, f"{name}.scale", f"{name}.zero", output=f"{name}.real", **axis)

    def ints(self, *values: int) -> str:
        """Return the name of a constant of integers."""
        name = "_".join(("ints", *map(str, values)))
        self.constants[name] = onnx.numpy_helper.from_array(np.array(values, np.int64), name)
        return name

    def _declare(self, values: list[onnx.ValueInfoProto], name: str, dims: tuple[int, ...]) -> str:
        """Declare an input or output; return the name of its encoding."""
        encoding = next(each for each in ENCODINGS if name.startswith(each))
        dtype = np.dtype(ENCODINGS[encoding][0] if self.quantized else self.precision)
        values.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), dims))
        return encoding

    def read(self, name: str, *dims: int) -> str:
        """Declare an input and return the name of its real values."""
        encoding = self._declare(self.inputs, name, dims)
        return self._node("DequantizeLinear", name, *self._encoding(encoding)) if self.quantized else name

    def result(self, kind: str, *inputs: str, name: str, dims: tuple[int, ...], **attributes: Any) -> str:
        """Append a node whose result is an output; return the name of its real values."""
        encoding = self._declare(self.outputs, name, dims)
        return self.add(kind, *inputs, encoding=encoding, output=name, **attributes)

    def normed(self, x: str, gamma: str) -> str:
        """Return RMSNorm of the last axis."""
        return self.add("RMSNormalization", x, self.weight(gamma), axis=-1, epsilon=EPSILON)

    def feed_forward(self, x: str, layer: int) -> str:
        """Return the result of a layer's SwiGLU, added to its input."""
        normed = self.normed(x, f"{layer}.inner_norm")
        gate = self.add("MatMul", normed, self.weight(f"{layer}.gate"))
        gate = self.add("Mul", gate, self.add("Sigmoid", gate, encoding="share"))
        gated = self.add("Mul", gate, self.add("MatMul", normed, self.weight(f"{layer}.up")))
        return self.add("Add", x, self.add("MatMul", gated, self.weight(f"{layer}.down")))

    def heads(self, x: str, count: int, width: int) -> str:
        """Return [1, tokens, count * width] as [1, count, tokens, width]."""
        split = self.add("Reshape", x, self.ints(1, -1, count, width))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def rotate(self, x: str, width: int, cosines: str, sines: str) -> str:
        """Turn the pairs (first half, second half) of each head by the positions' angles."""
        a, b = (
            self.add("Slice", x, self.ints(start), self.ints(start + width // 2), self.ints(3))
            for start in (0, width // 2)
        )
        first = self.add("Sub", self.add("Mul", a, cosines), self.add("Mul", b, sines))
        second = self.add("Add", self.add("Mul", b, cosines), self.add("Mul", a, sines))
        return self.add("Concat", first, second, axis=3)

    def model(self, name: str) -> onnx.ModelProto:
        """Return all of it as a model."""
        proto = helper.make_graph(self.nodes, name, self.inputs, self.outputs, list(self.constants.values()))
        return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)


def _add_layers(graph: GraphWriter, shape: Shape, tokens: int, context: int) -> None:
    """Append all layers, from `input_ids` to `logits`.

    A mask is added to the scores: 0 for what a token sees. The positions are given by their cosines and sines.
    """
    width, kv, group = shape.head_width, shape.kv_heads, shape.heads // shape.kv_heads
    past = context - tokens
    graph.inputs.append(helper.make_tensor_value_info("input_ids", TensorProto.INT32, (1, tokens)))
    masks = [graph.read(name, 1, 1, tokens, context) for name in shape.masks]
    angles = [graph.read(f"position_ids_{name}", 1, 1, tokens, width // 2) for name in ("cos", "sin")]
    x = graph.add("Gather", graph.weight("embedding"), "input_ids")
    for layer in range(shape.layers):
        normed = graph.normed(x, f"{layer}.norm")
        q, k, v = (graph.add("MatMul", normed, graph.weight(f"{layer}.{name}")) for name in "qkv")
        q = graph.rotate(graph.heads(q, shape.heads, width), width, *angles)
        q = graph.add("Reshape", q, graph.ints(kv, group, tokens, width))
        k = graph.rotate(graph.heads(k, kv, width), width, *angles)
        key, value = f"past_key_{layer}", f"past_value_{layer}"
        keys = graph.result("Transpose", k, name=f"{key}_out", dims=(kv, 1, width, tokens), perm=[1, 0, 3, 2])
        v = graph.heads(v, kv, width)
        values = graph.result("Transpose", v, name=f"{value}_out", dims=(kv, 1, tokens, width), perm=[1, 0, 2, 3])
        if past:
            old = graph.read(f"{key}_in", kv, 1, width, past)
            keys = graph.add("Concat", old, keys, axis=3, encoding="past")
            old = graph.read(f"{value}_in", kv, 1, past, width)
            values = graph.add("Concat", old, values, axis=2, encoding="past")
        scores = graph.add("MatMul", q, keys, encoding="scores")
        scores = graph.add("Add", scores, masks[layer % len(masks)], encoding="scores")
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1, encoding="share"), values)
        mixed = graph.add("Reshape", mixed, graph.ints(1, shape.heads, tokens, width))
        mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), graph.ints(1, tokens, -1))
        x = graph.add("Add", x, graph.add("MatMul", mixed, graph.weight(f"{layer}.o")))
        x = graph.feed_forward(x, layer)
    head, dims = graph.weight("head"), (1, tokens, shape.vocabulary)
    graph.result("MatMul", graph.normed(x, "norm"), head, name="logits", dims=dims)
