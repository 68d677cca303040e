"""TFLite models in other types: float models with weights in 16 bits, 8-bit models with 16-bit activations or 4-bit
weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

_TYPES, _CODES = schema.TensorType, schema.BuiltinOperator
_PRODUCTS = {_CODES.CONV_2D: 0, _CODES.DEPTHWISE_CONV_2D: 3, _CODES.FULLY_CONNECTED: 0}
"""Operators with weights and a bias as their second and third input, and the axis of the weights' channels."""
_PROBABILITIES = (_CODES.LOGISTIC, _CODES.SOFTMAX)
"""Operators whose 16-bit results have a scale that TFLite prescribes."""
_BYTES = {_TYPES.INT8: np.int8, _TYPES.UINT8: np.uint8}
_MOST_16, _MOST_4 = 32767, 7
_FEW = 16
"""Float constants of at most this number of elements stay as they are."""


class _Model:
    """A model under change."""

    def __init__(self, content: bytes) -> None:
        self.model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))

    def written(self) -> bytes:
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def code(self, operator: Any) -> int:
        code = self.model.operatorCodes[operator.opcodeIndex]
        return int(max(code.builtinCode, code.deprecatedBuiltinCode))

    def data(self, tensor: Any, dtype: Any) -> np.ndarray | None:
        """The contents of a constant; None for other tensors."""
        data = self.model.buffers[tensor.buffer].data
        return None if data is None or len(data) == 0 else np.frombuffer(bytes(data), dtype).reshape(tensor.shape)

    def put(self, tensor: Any, array: np.ndarray) -> None:
        """Give a tensor contents of its own."""
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), np.uint8)
        tensor.buffer = len(self.model.buffers)
        self.model.buffers.append(buffer)


def retyped(content: bytes, form: str) -> bytes:
    """A model in another form: ``float16``, ``a16w8``, ``a8w4`` or ``a16w4``."""
    model = _Model(content)
    if form == "float16":
        _weights_of_16_bits(model)
        return model.written()
    for subgraph in model.model.subgraphs:
        products = [op for op in subgraph.operators if model.code(op) in _PRODUCTS]
        weights = {int(op.inputs[1]) for op in products}
        reals = [_bias_reals(model, subgraph, op) for op in products]
        if form.endswith("w4"):
            axes = {int(op.inputs[1]): _PRODUCTS[model.code(op)] for op in products}
            for index, axis in axes.items():
                _narrow(model, subgraph.tensors[index], axis)
        if form.startswith("a16"):
            prescribed = {int(o) for op in subgraph.operators if model.code(op) in _PROBABILITIES for o in op.outputs}
            for index, tensor in enumerate(subgraph.tensors):
                if index not in weights and tensor.type in _BYTES:
                    _widen(model, tensor, index in prescribed)
        for operator, bias in zip(products, reals, strict=True):
            if bias is not None:
                _set_bias(model, subgraph, operator, bias, wide=form.startswith("a16"))
    return model.written()


def _scales(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.quantization.scale, np.float64)


def _narrow(model: _Model, tensor: Any, axis: int) -> None:
    """Round 8-bit weights to 4 bits, with a scale for each channel."""
    data = model.data(tensor, np.int8)
    assert data is not None
    shape = [-1 if a == axis else 1 for a in range(data.ndim)]
    reals = data * np.broadcast_to(_scales(tensor), data.shape[axis]).reshape(shape)
    largest = np.abs(reals).max(tuple(a for a in range(data.ndim) if a != axis))
    scales = np.where(largest > 0, largest / _MOST_4, 1).astype(np.float32)
    elements = np.rint(reals / scales.reshape(shape)).astype(np.int8).reshape(-1)
    nibbles = np.resize(elements, elements.size + elements.size % 2).view(np.uint8) & 15
    model.put(tensor, nibbles[0::2] | nibbles[1::2] << 4)
    tensor.type = _TYPES.INT4
    tensor.quantization.scale, tensor.quantization.zeroPoint = scales, np.zeros(len(scales), np.int64)
    tensor.quantization.quantizedDimension = axis


def _widen(model: _Model, tensor: Any, prescribed: bool) -> None:
    """Give an activation, or the first value of a state, 16 bits around zero that hold its range."""
    [scale], [zero], dtype = _scales(tensor), tensor.quantization.zeroPoint, _BYTES[tensor.type]
    limits = np.iinfo(dtype)
    wide = np.float32(max(zero - limits.min, limits.max - zero) * scale / _MOST_16)
    if prescribed:
        wide = np.float32(1 / 32768)
    data = model.data(tensor, dtype)
    if data is not None:
        steps = np.rint((data.astype(np.float64) - zero) * scale / wide)
        model.put(tensor, np.clip(steps, -_MOST_16, _MOST_16).astype(np.int16))
    tensor.type = _TYPES.INT16
    tensor.quantization.scale, tensor.quantization.zeroPoint = np.array([wide], np.float32), np.zeros(1, np.int64)


def _bias_reals(model: _Model, subgraph: Any, operator: Any) -> np.ndarray | None:
    """The real values of a product's bias, if it has one."""
    if len(operator.inputs) < 3 or operator.inputs[2] < 0:
        return None
    tensor = subgraph.tensors[operator.inputs[2]]
    data = model.data(tensor, np.int32)
    return None if data is None else data * _scales(tensor)


def _set_bias(model: _Model, subgraph: Any, operator: Any, reals: np.ndarray, wide: bool) -> None:
    """Write a bias in units of the product of an input's and the weights' scales."""
    x, weights, bias = (subgraph.tensors[index] for index in operator.inputs[:3])
    scales = (_scales(x) * _scales(weights)).astype(np.float32)
    model.put(bias, np.rint(reals / scales.astype(np.float64)).astype(np.int64 if wide else np.int32))
    bias.type = _TYPES.INT64 if wide else _TYPES.INT32
    bias.quantization.scale, bias.quantization.zeroPoint = scales, np.zeros(len(scales), np.int64)
    bias.quantization.quantizedDimension = 0


def _weights_of_16_bits(model: _Model) -> None:
    """Store float constants in 16 bits, with an operator that makes them floats again."""
    code = schema.OperatorCodeT()
    code.builtinCode = code.deprecatedBuiltinCode = _CODES.DEQUANTIZE
    code.version = 3
    model.model.operatorCodes.append(code)
    for subgraph in model.model.subgraphs:
        added = []
        for index, tensor in enumerate(list(subgraph.tensors)):
            data = model.data(tensor, np.float32) if tensor.type == _TYPES.FLOAT32 else None
            if data is None or data.size <= _FEW or tensor.sparsity is not None:
                continue
            stored = schema.TensorT()
            stored.name, stored.shape, stored.type = bytes(tensor.name) + b"/half", tensor.shape, _TYPES.FLOAT16
            model.put(stored, data.astype(np.float16))
            tensor.buffer = 0
            operator = schema.OperatorT()
            operator.opcodeIndex = len(model.model.operatorCodes) - 1
            operator.inputs, operator.outputs = [len(subgraph.tensors)], [index]
            added.append(operator)
            subgraph.tensors.append(stored)
        subgraph.operators = [*added, *subgraph.operators]


def converted(content: bytes, form: str) -> tuple[bytes, Callable[[np.ndarray, int], np.ndarray]]:
    """A model in another form, and a function that gives the stored numbers of an old input (by its position)."""
    old, new = (_Model(c).model.subgraphs[0] for c in (content, retyped(content, form)))

    def stored(array: np.ndarray, position: int) -> np.ndarray:
        before, after = old.tensors[old.inputs[position]], new.tensors[new.inputs[position]]
        if before.type == after.type:
            return array
        reals = (array.astype(np.float64) - before.quantization.zeroPoint[0]) * _scales(before)[0]
        return np.clip(np.rint(reals / _scales(after)[0]), -_MOST_16, _MOST_16).astype(np.int16)

    return retyped(content, form), stored
