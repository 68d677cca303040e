"""A small decoder for onnxruntime-genai, in a folder as that package wants it.

The provider takes only what has fixed shapes. So the prompt is processed token by token (`chunk_size` 1), and the cache
of keys and values has room for all tokens from the beginning: its inputs and outputs are the same memory
(`past_present_share_buffer`). The graph puts the new keys and values in their place and masks what is behind it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from make_decoder import BOS, EOS
from model import FLOAT32, ROPE_THETA, GraphWriter, Shape, weights
from onnx import TensorProto, helper, numpy_helper

LENGTH = 64


def model(shape: Shape) -> onnx.ModelProto:
    """Return the decoder for one token."""
    graph = GraphWriter({name: numpy_helper.from_array(each, name) for name, each in weights(shape).items()}, FLOAT32)
    width, kv, group = shape.head_width, shape.kv_heads, shape.heads // shape.kv_heads
    for name in ("input_ids", "position_ids"):
        graph.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, (1, 1)))
    graph.outputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, (1, 1, shape.vocabulary)))
    half = width // 2
    turns = np.arange(LENGTH)[:, None] / ROPE_THETA ** (np.arange(half) / half)
    places = np.arange(LENGTH)
    tables = {
        "cos": np.cos(turns),
        "sin": np.sin(turns),
        # Row by position: which place it writes, and what it does not see.
        "writes": np.eye(LENGTH),
        "hidden": -1000.0 * (places[None, :] > places[:, None]),
    }
    constants = {**tables, "half": np.array(0.5)}
    graph.constants |= {
        name: numpy_helper.from_array(value.astype(np.float32), name) for name, value in constants.items()
    }
    cosines, sines, writes, hidden = (graph.add("Gather", name, "position_ids") for name in tables)
    angles = [graph.add("Reshape", rows, graph.ints(1, 1, 1, half)) for rows in (cosines, sines)]
    chosen = graph.add("Greater", graph.add("Reshape", writes, graph.ints(1, 1, LENGTH, 1)), "half")
    mask = graph.add("Reshape", hidden, graph.ints(1, 1, 1, LENGTH))
    x = graph.add("Gather", "embedding", "input_ids")
    for layer in range(shape.layers):
        normed = graph.normed(x, f"{layer}.norm")
        q, k, v = (graph.add("MatMul", normed, f"{layer}.{name}") for name in "qkv")
        q = graph.rotate(graph.heads(q, shape.heads, width), width, *angles)
        caches = []
        for name, new in (
            ("key", graph.rotate(graph.heads(k, kv, width), width, *angles)),
            ("value", graph.heads(v, kv, width)),
        ):
            past, present = f"past_{name}_{layer}", f"present_{name}_{layer}"
            dims = (1, kv, LENGTH, width)
            graph.inputs.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, dims))
            graph.outputs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, dims))
            caches.append(graph.add("Where", chosen, new, past, output=present))
        keys = graph.add("Reshape", graph.add("Transpose", caches[0], perm=[1, 0, 3, 2]), graph.ints(kv, width, LENGTH))
        values = graph.add("Reshape", caches[1], graph.ints(kv, LENGTH, width))
        scores = graph.add("MatMul", graph.add("Reshape", q, graph.ints(kv, group, width)), keys)
        scores = graph.add("Add", scores, graph.add("Reshape", mask, graph.ints(1, 1, LENGTH)))
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
        mixed = graph.add("Reshape", mixed, graph.ints(1, 1, shape.heads * width))
        x = graph.feed_forward(graph.add("Add", x, graph.add("MatMul", mixed, f"{layer}.o")), layer)
    graph.add("MatMul", graph.normed(x, "norm"), "head", output="logits")
    return graph.model("token")


def config(shape: Shape, backend: Path | None, options: Mapping[str, str]) -> dict[str, Any]:
    """Return genai_config.json; without a backend everything runs on the CPU."""
    provider = [] if backend is None else [{"qnn": {"backend_path": str(backend), **options}}]
    decoder = {
        "session_options": {"log_id": "genai", "provider_options": provider},
        "filename": "model.onnx",
        "head_size": shape.head_width,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "position_ids": "position_ids",
            "past_key_names": "past_key_%d",
            "past_value_names": "past_value_%d",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present_key_%d",
            "present_value_names": "present_value_%d",
        },
    }
    return {
        "model": {
            "type": "llama",
            "bos_token_id": BOS,
            "eos_token_id": EOS,
            "pad_token_id": 0,
            "context_length": LENGTH,
            "vocab_size": shape.vocabulary,
            "decoder": decoder,
        },
        "search": {"max_length": LENGTH, "do_sample": False, "past_present_share_buffer": True, "chunk_size": 1},
    }


def write(folder: Path, backend: Path | None, options: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write the model and the configuration, with options of the provider."""
    shape = Shape()
    onnx.save(model(shape), str(folder / "model.onnx"))
    (folder / "genai_config.json").write_text(json.dumps(config(shape, backend, options), indent=1))
