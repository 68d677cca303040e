"""Real models, quantized by ONNX Runtime's own tools: 8-bit activations with 8-bit or 4-bit weights, or 4-bit weights
alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from support.oracles import Feeds

STATIC = ("kws_fp32", "ppocr_cls", "ppocr_rec", "nsnet2", "minilm_l3")
"""Models of floats that ONNX Runtime's static quantization accepts."""


class _Reader:
    """The inputs for calibration, one after the other, as ONNX Runtime asks for them."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self._feeds, None)


def with_initializers(path: Path) -> Any:
    """The model in a file, with constants as initializers: only those count as weights for ONNX Runtime's tools."""
    onnx: Any = importlib.import_module("onnx")
    model = onnx.load(path)
    constants = [node for node in model.graph.node if node.op_type == "Constant" and node.attribute[0].name == "value"]
    for node in constants:
        tensor = node.attribute[0].t
        tensor.name = node.output[0]
        model.graph.initializer.append(tensor)
        model.graph.node.remove(node)
    return model


def static_qdq(source: Path, feeds: Sequence[Feeds], bits: int, target: Path) -> Path:
    """Write a model with 8-bit activations and weights of 8 or 4 bits, one scale for each channel.

    `feeds` are inputs by which ranges of activations are found.
    """
    tools: Any = importlib.import_module("onnxruntime.quantization")
    types = {8: tools.QuantType.QInt8, 4: tools.QuantType.QInt4}
    tools.quantize_static(
        with_initializers(source), str(target), _Reader(feeds), quant_format=tools.QuantFormat.QDQ, per_channel=True,
        activation_type=tools.QuantType.QUInt8, weight_type=types[bits],
        op_types_to_quantize=["Conv", "MatMul", "Gemm", "ConvTranspose"],
    )  # fmt: skip
    return target


def weight_only(source: Path, target: Path, block: int = 32, symmetric: bool = True) -> Path:
    """Write a model whose products with constants have 4-bit weights in blocks (MatMulNBits) and float activations.

    The weights are rounded and packed by the function that ONNX Runtime's quantizer of such products calls.
    """
    onnx: Any = importlib.import_module("onnx")
    pack: Any = importlib.import_module("onnxruntime.capi._pybind_state").quantize_matmul_4bits
    model = onnx.load(source)
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type != "MatMul" or node.input[1] not in constants or len(constants[node.input[1]].dims) != 2:
            continue
        weights = np.ascontiguousarray(onnx.numpy_helper.to_array(constants[node.input[1]]), np.float32)
        depth, columns = weights.shape
        blocks = -(-depth // block)
        packed = np.zeros((columns, blocks, block // 2), np.uint8)
        scales = np.zeros(columns * blocks, np.float32)
        zeros = np.zeros(columns * ((blocks + 1) // 2), np.uint8)
        pack(packed, weights, scales, zeros, block, columns, depth, symmetric)
        arrays = [packed, scales] if symmetric else [packed, scales, zeros]
        names = [f"{node.output[0]}/{part}" for part in ("packed", "scales", "zeros")][: len(arrays)]
        graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, names, strict=True))
        attributes = {"K": depth, "N": columns, "bits": 4, "block_size": block, "accuracy_level": 1}
        replaced = onnx.helper.make_node(
            "MatMulNBits", [node.input[0], *names], [node.output[0]], node.name, domain="com.microsoft", **attributes
        )
        node.CopyFrom(replaced)
    used = {name for node in graph.node for name in node.input}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, target)
    return target
