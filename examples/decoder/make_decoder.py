"""Make a small Llama-like decoder with random weights for Genie, Qualcomm's runtime of language models.

    python make_decoder.py FOLDER

writes into FOLDER

- `ar32_cl512.onnx`, `ar1_cl512.onnx`: the decoder for 32 tokens at once (the prompt) and for one, in the shapes and
  with the names of tensors that Genie expects. A layer has RMSNorm, attention with fewer heads for keys and values than
  for queries, rotary positions, and SwiGLU. Inputs and outputs are quantized as in models for devices: Genie leaves the
  cache of keys and values uninitialized where nothing is seen yet, and random floats there could be NaN;
- `decoder.bin`: both graphs in one context binary for our `libQnnHtp.so`;
- `tokenizer.json`: a vocabulary of made-up words, one for each token;
- `genie_config.json`: what Genie reads, with paths relative to the folder.

`run_genie.py` lets Genie generate tokens with it. Other sizes: `--ar 128 32 1 --context 512 1024 --layers 4 ...`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from isthmus import frontends, qnn

EPSILON = 1e-5
ROPE_THETA = 10000
ENCODINGS = {
    "past": (np.uint8, 16 / 255, 128),
    "attention_mask": (np.uint16, 1000 / 65535, 65535),
    "position": (np.uint16, 2 / 65535, 32768),
    "logits": (np.uint16, 16 / 65535, 32768),
}
"""Data type, scale and zero point of inputs and outputs, by the beginning of their names."""
SAMPLER = {"version": 1, "type": "basic", "seed": 1, "temp": 1.0, "top-k": 1, "top-p": 1.0, "greedy": True}
SPECIAL = ("<unk>", "<s>", "</s>")
BOS, EOS = 1, 2


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    vocabulary: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_width: int = 16
    hidden: int = 64
    inner: int = 128
    seed: int = 7


def weights(shape: Shape) -> dict[str, np.ndarray]:
    """Return the weights by name; the same for the same shape."""
    random = np.random.default_rng(shape.seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)

    queries, keys = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    made = {"embedding": random.standard_normal((shape.vocabulary, shape.hidden)).astype(np.float32)}
    for layer in range(shape.layers):
        made |= {
            f"{layer}.norm": np.ones(shape.hidden, np.float32),
            # Attention on random weights is nearly even over all tokens; large queries make it choose.
            f"{layer}.q": 4 * matrix(shape.hidden, queries),
            f"{layer}.k": matrix(shape.hidden, keys),
            f"{layer}.v": matrix(shape.hidden, keys),
            f"{layer}.o": matrix(queries, shape.hidden),
            f"{layer}.inner_norm": np.ones(shape.hidden, np.float32),
            f"{layer}.gate": matrix(shape.hidden, shape.inner),
            f"{layer}.up": matrix(shape.hidden, shape.inner),
            f"{layer}.down": matrix(shape.inner, shape.hidden),
        }
    return made | {"norm": np.ones(shape.hidden, np.float32), "head": matrix(shape.hidden, shape.vocabulary)}


class GraphWriter:
    """A list of ONNX nodes with the constants that they use."""

    def __init__(self, constants: dict[str, np.ndarray]) -> None:
        self.constants = dict(constants)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Append a node and return the name of its output."""
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def ints(self, *values: int) -> str:
        """Return the name of a constant of integers."""
        name = "_".join(("ints", *map(str, values)))
        self.constants[name] = np.array(values, np.int64)
        return name

    def encoding(self, name: str) -> tuple[int, list[str]]:
        """Return ONNX's data type of an input or output, and the names of its scale and zero point."""
        start, (dtype, scale, zero) = next(item for item in ENCODINGS.items() if name.startswith(item[0]))
        self.constants |= {f"{start}.scale": np.float32(scale), f"{start}.zero": dtype(zero)}
        return helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [f"{start}.scale", f"{start}.zero"]

    def read(self, name: str, *dims: int) -> str:
        """Declare a quantized input and return the name of its values as floats."""
        dtype, encoding = self.encoding(name)
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return self.add("DequantizeLinear", name, *encoding)

    def write(self, x: str, name: str, *dims: int) -> str:
        """Declare a quantized output and return the name of its values as floats."""
        dtype, encoding = self.encoding(name)
        self.outputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *encoding, output=name), *encoding)

    def normed(self, x: str, gamma: str) -> str:
        """Return RMSNorm of the last axis."""
        return self.add("RMSNormalization", x, gamma, axis=-1, epsilon=EPSILON)

    def feed_forward(self, x: str, layer: int) -> str:
        """Return the result of a layer's SwiGLU, added to its input."""
        normed = self.normed(x, f"{layer}.inner_norm")
        gate = self.add("MatMul", normed, f"{layer}.gate")
        gate = self.add("Mul", gate, self.add("Sigmoid", gate))
        gated = self.add("Mul", gate, self.add("MatMul", normed, f"{layer}.up"))
        return self.add("Add", x, self.add("MatMul", gated, f"{layer}.down"))

    def model(self, name: str) -> onnx.ModelProto:
        """Return all of it as a model."""
        constants = [numpy_helper.from_array(np.asarray(value), key) for key, value in self.constants.items()]
        proto = helper.make_graph(self.nodes, name, self.inputs, self.outputs, constants)
        return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 23)], ir_version=10)

    def heads(self, x: str, count: int, width: int) -> str:
        """Return [1, tokens, count * width] as [1, count, tokens, width]."""
        split = self.add("Reshape", x, self.ints(1, -1, count, width))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def rotate(self, x: str, width: int, cosines: str, sines: str) -> str:
        """Turn the pairs (first half, second half) of each head by the positions' angles."""
        halves = [
            self.add("Slice", x, self.ints(start), self.ints(start + width // 2), self.ints(3))
            for start in (0, width // 2)
        ]
        a, b = halves
        first = self.add("Sub", self.add("Mul", a, cosines), self.add("Mul", b, sines))
        second = self.add("Add", self.add("Mul", b, cosines), self.add("Mul", a, sines))
        return self.add("Concat", first, second, axis=3)


def add_layers(graph: GraphWriter, shape: Shape, tokens: int, context: int, mask: str, angles: Sequence[str]) -> None:
    """Append all layers, from `input_ids` to `logits`.

    The keys and values of earlier tokens are inputs; those of the new tokens are outputs, which the runtime puts among
    the others. The mask is added to the scores: 0 for what a token sees. `angles` are the cosines and sines of
    positions.
    """
    width, kv, group = shape.head_width, shape.kv_heads, shape.heads // shape.kv_heads
    graph.constants["scale"] = np.float32(1 / np.sqrt(width))
    past = context - tokens
    graph.inputs.append(helper.make_tensor_value_info("input_ids", TensorProto.INT32, (1, tokens)))
    x = graph.add("Gather", "embedding", "input_ids")
    for layer in range(shape.layers):
        normed = graph.normed(x, f"{layer}.norm")
        q, k, v = (graph.add("MatMul", normed, f"{layer}.{name}") for name in "qkv")
        q = graph.rotate(graph.heads(q, shape.heads, width), width, *angles)
        q = graph.add("Reshape", graph.add("Mul", q, "scale"), graph.ints(kv, group, tokens, width))
        k = graph.rotate(graph.heads(k, kv, width), width, *angles)
        k = graph.add("Transpose", k, perm=[1, 0, 3, 2])
        k = graph.write(k, f"past_key_{layer}_out", kv, 1, width, tokens)
        v = graph.add("Transpose", graph.heads(v, kv, width), perm=[1, 0, 2, 3])
        v = graph.write(v, f"past_value_{layer}_out", kv, 1, tokens, width)
        keys = graph.add("Concat", graph.read(f"past_key_{layer}_in", kv, 1, width, past), k, axis=3)
        values = graph.add("Concat", graph.read(f"past_value_{layer}_in", kv, 1, past, width), v, axis=2)
        scores = graph.add("Add", graph.add("MatMul", q, keys), mask)
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
        mixed = graph.add("Reshape", mixed, graph.ints(1, shape.heads, tokens, width))
        mixed = graph.add("Reshape", graph.add("Transpose", mixed, perm=[0, 2, 1, 3]), graph.ints(1, tokens, -1))
        x = graph.feed_forward(graph.add("Add", x, graph.add("MatMul", mixed, f"{layer}.o")), layer)
    graph.write(graph.add("MatMul", graph.normed(x, "norm"), "head"), "logits", 1, tokens, shape.vocabulary)


def decoder(shape: Shape, tokens: int, context: int) -> onnx.ModelProto:
    """Return the decoder for a number of tokens at once and a context length."""
    graph = GraphWriter(weights(shape))
    mask = graph.read("attention_mask", 1, 1, tokens, context)
    angles = [graph.read(f"position_ids_{name}", 1, 1, tokens, shape.head_width // 2) for name in ("cos", "sin")]
    add_layers(graph, shape, tokens, context, mask, angles)
    return graph.model(name_of(tokens, context))


def name_of(tokens: int, context: int) -> str:
    """Return the name of a graph."""
    return f"ar{tokens}_cl{context}"


def context_binary(files: Sequence[Path]) -> bytes:
    """Return a context binary for HTP with a graph for each file."""
    with qnn.Backend("libQnnHtp.so") as backend:
        context = backend.create_context()
        for file in files:
            context.add_graph(frontends.load(file))
        return context.prepare_offline()


def tokenizer(shape: Shape) -> dict[str, Any]:
    """Return a tokenizer whose words are w3, w4, …"""
    words = [*SPECIAL, *(f"w{token}" for token in range(len(SPECIAL), shape.vocabulary))]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: token for token, word in enumerate(words)},
            "unk_token": SPECIAL[0],
        },
    }


def genie_config(shape: Shape, contexts: Sequence[int]) -> dict[str, Any]:
    """Return the configuration of a dialog, which always takes the likeliest token."""
    engine = {
        "version": 1,
        "n-threads": 1,
        "backend": {
            "version": 1,
            "type": "QnnHtp",
            "QnnHtp": {
                "version": 1,
                "use-mmap": False,
                "mmap-budget": 0,
                "spill-fill-bufsize": 0,
                "poll": False,
                "cpu-mask": "0x3",
                "kv-dim": shape.head_width,
                "allow-async-init": False,
            },
        },
        "model": {
            "version": 1,
            "type": "binary",
            "binary": {"version": 1, "ctx-bins": ["decoder.bin"]},
            "positional-encoding": {"type": "rope", "rope-dim": shape.head_width // 2, "rope-theta": ROPE_THETA},
        },
    }
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "max-num-tokens": 24,
            "context": {
                "version": 1,
                "size": max(contexts),
                "n-vocab": shape.vocabulary,
                "bos-token": BOS,
                "eos-token": EOS,
            },
            "sampler": SAMPLER,
            "tokenizer": {"version": 1, "path": "tokenizer.json"},
            "engine": engine,
        }
    }


def make(folder: Path, shape: Shape, tokens: Sequence[int] = (32, 1), contexts: Sequence[int] = (512,)) -> None:
    """Write the graphs, their context binary, the tokenizer and the configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for context in contexts:
        for count in tokens:
            files.append(folder / f"{name_of(count, context)}.onnx")
            onnx.save(decoder(shape, count, context), str(files[-1]))
    (folder / "decoder.bin").write_bytes(context_binary(files))
    for name, content in (("tokenizer", tokenizer(shape)), ("genie_config", genie_config(shape, contexts))):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n")


def main() -> None:
    """Read the command line and write the files."""
    parser = argparse.ArgumentParser(description="Make a small decoder with random weights for Genie.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ar", type=int, nargs="+", default=[32, 1], help="tokens at once, one graph each")
    parser.add_argument("--context", type=int, nargs="+", default=[512], help="context lengths")
    for name, value in Shape().__dict__.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    given = vars(parser.parse_args())
    shape = Shape(**{name: given[name] for name in Shape.__dataclass_fields__})
    make(given["folder"], shape, given["ar"], given["context"])


if __name__ == "__main__":
    main()
