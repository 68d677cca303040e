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


def every_operation_qdq(source: Path, feeds: Sequence[Feeds], activations: str, target: Path) -> Path:
    """Write a model in which all operations that ONNX Runtime's quantizer knows have fixed-point tensors.

    `activations` is a name of ONNX Runtime's `QuantType`; weights have 8 bits and one scale.
    """
    tools: Any = importlib.import_module("onnxruntime.quantization")
    tools.quantize_static(
        with_initializers(source), str(target), _Reader(feeds), quant_format=tools.QuantFormat.QDQ,
        activation_type=tools.QuantType[activations], weight_type=tools.QuantType.QInt8,
    )  # fmt: skip
    return target


def dynamic_range(source: Path, target: Path, factor: float = 1.0) -> Path:
    """Write a TFLite file with 8-bit weights and float activations, as LiteRT's dynamic-range quantization does.

    The scales of the first weights are multiplied by `factor`: other factors than 1 make them wrong.
    """
    schema: Any = importlib.import_module("ai_edge_litert.schema_py_generated")
    flatbuffers: Any = importlib.import_module("flatbuffers")
    kinds, types = schema.BuiltinOperator, schema.TensorType
    axes = {kinds.CONV_2D: 0, kinds.DEPTHWISE_CONV_2D: 3, kinds.FULLY_CONNECTED: 0}
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(source.read_bytes(), 0))
    main = model.subgraphs[0]
    codes = [max(code.builtinCode, code.deprecatedBuiltinCode) for code in model.operatorCodes]
    converted = {operator.outputs[0]: operator.inputs[0] for operator in main.operators
                 if codes[operator.opcodeIndex] == kinds.DEQUANTIZE}  # fmt: skip

    def constant(index: int) -> np.ndarray | None:
        stored = main.tensors[converted.get(index, index)]
        dtype = {types.FLOAT32: np.float32, types.FLOAT16: np.float16}.get(stored.type)
        data = model.buffers[stored.buffer].data
        if dtype is None or stored.sparsity is not None or data is None or not len(data):
            return None
        return np.frombuffer(bytes(bytearray(data)), dtype).astype(np.float32).reshape(stored.shape)

    def replaced(index: int, array: np.ndarray, kind: int) -> Any:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), np.uint8)
        model.buffers.append(buffer)
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type = main.tensors[index].name, list(array.shape), kind
        tensor.buffer = len(model.buffers) - 1
        main.tensors.append(tensor)
        return tensor

    for operator in main.operators:
        kind = codes[operator.opcodeIndex]
        weights = constant(operator.inputs[1]) if kind in axes else None
        if weights is None or weights.size < 64 or main.tensors[operator.inputs[0]].type != types.FLOAT32:
            continue
        others = tuple(axis for axis in range(weights.ndim) if axis != axes[kind])
        scales = np.maximum(np.abs(weights).max(others, keepdims=True), 1e-12) / 127
        stored = np.clip(np.rint(weights / scales), -127, 127).astype(np.int8)
        tensor = replaced(operator.inputs[1], stored, types.INT8)
        tensor.quantization = schema.QuantizationParametersT()
        tensor.quantization.scale = (scales.reshape(-1) * factor).astype(np.float32)
        tensor.quantization.zeroPoint = np.zeros(scales.size, np.int64)
        tensor.quantization.quantizedDimension = axes[kind]
        factor = 1.0
        operator.inputs = [*operator.inputs]
        operator.inputs[1] = len(main.tensors) - 1
        if len(operator.inputs) > 2 and operator.inputs[2] in converted:
            bias = constant(operator.inputs[2])
            assert bias is not None
            replaced(operator.inputs[2], bias, types.FLOAT32)
            operator.inputs[2] = len(main.tensors) - 1
    read = {index for operator in main.operators for index in operator.inputs} | set(main.outputs)
    main.operators = [each for each in main.operators if each.outputs[0] in read or each.outputs[0] not in converted]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    target.write_bytes(bytes(builder.Output()))
    return target
