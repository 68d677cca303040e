"""Elementwise operators: arithmetic, comparison, logic, activations, type conversions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.frontends.tflite.integer_arithmetic import combine, doubles, in_range_of, rescale, wide_softmax
from isthmus.frontends.tflite.operator_context import OperatorContext, data_type
from isthmus.graph import DataType, Quantization, Tensor

Converter = Callable[[OperatorContext], list[Tensor]]
"""Converts one operator: emits operations by its context, which is `node` in converters, and returns the results."""


def _one(op: str, **params: Any) -> Converter:
    """Return a converter to an operation with one operand and these parameters."""
    return lambda node: [node.emit(op, [node.input(0)], params)]


def _two(op: str) -> Converter:
    """Return a converter to an operation with two broadcasting operands, followed by the fused activation."""
    return lambda node: node.emit_activated(op, [node.input(0), node.input(1)])


def _add_n(node: OperatorContext) -> list[Tensor]:
    """Convert a sum of any number of operands to a chain of additions; the last one writes the result."""
    tensors = [node.input(i) for i in range(len(node.inputs))]
    if len(tensors) == 1:
        return node.finish(node.input(0))
    total = node.input(0)
    for tensor in tensors[1:-1]:
        total = node.step("ElementWiseAdd", [total, tensor])
    return [node.emit("ElementWiseAdd", [total, node.input(len(tensors) - 1)])]


def _slope(node: OperatorContext, x: Tensor, alpha: float) -> Tensor:
    """Return a slope with one element, in the type of the tensor that it is applied to."""
    if not x.dtype.is_fixed_point:
        return node.constant(np.full(1, alpha, x.dtype.numpy), "slope")
    limit = np.iinfo(x.dtype.numpy).max
    if alpha < 0 and x.dtype.numpy.kind == "u":
        node.unsupported("a negative slope on an unsigned tensor is not supported")
    # The slope is stored as the largest integer, with a scale that makes it `alpha`.
    scale = abs(alpha) / limit or 1.0
    stored = np.full(1, math.copysign(limit, alpha) if alpha else 0).astype(x.dtype.numpy)
    quantization = Quantization.per_tensor(scale)
    return node.graph.constant(f"{node.name}/slope", stored, quantization, x.dtype)


def _leaky_relu(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    return [node.emit("Prelu", [x, _slope(node, x, float(node.options["alpha"]))])]


def _gelu(node: OperatorContext) -> list[Tensor]:
    """Convert to a Gelu, or its tanh approximation to several operations."""
    x = node.input(0)
    if not node.options["approximate"]:
        return [node.emit("Gelu", [x])]
    if x.dtype is not DataType.FLOAT_32:
        node.unsupported("the approximate form is supported for float32 only")

    def number(value: float) -> Tensor:
        return node.constant(np.full(1, value, np.float32))

    # x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
    square = node.step("ElementWiseMultiply", [x, x])
    inner = node.step("ElementWiseMultiply", [square, number(0.044715 * math.sqrt(2 / math.pi))])
    inner = node.step("ElementWiseAdd", [inner, number(math.sqrt(2 / math.pi))])
    tanh = node.step("Tanh", [node.step("ElementWiseMultiply", [inner, x])])
    half = node.step("ElementWiseMultiply", [x, number(0.5)])
    return [node.emit("ElementWiseMultiply", [half, node.step("ElementWiseAdd", [tanh, number(1.0)])])]


def _cast(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    if x.dtype.is_fixed_point or data_type(node.output()).is_fixed_point:
        node.unsupported("a cast that reads or writes quantized values is not supported")
    return [node.emit("Cast", [x])]


def _quantize(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    dtype = data_type(node.output())
    if dtype.is_fixed_point and (x.dtype.is_fixed_point or x.dtype.is_float):
        return [node.emit("Convert" if x.dtype.is_fixed_point else "Quantize", [x])]
    return [_requantize(node, x, dtype)]


def _requantize(node: OperatorContext, x: Tensor, dtype: DataType) -> Tensor:
    """Convert from or to 32-bit integers with a scale, which the graph has as plain integers; floats are too short."""
    before, after = (None if e is None else e.quantization() for e in (node.declared[0], node.output()))
    wide = DataType.INT_32 in (x.dtype, dtype) and not x.dtype.is_float
    if not wide or before is None or after is None or before.axis is not None or after.axis is not None:
        node.unsupported(f"quantizing {x.dtype.name} to {node.output().type.name} is not supported")
    scale = float(np.float32(before.scale)) / float(np.float32(after.scale))
    numbers = combine(node, "Subtract", doubles(node, x), float(before.zero_point))
    numbers = combine(node, "Add", rescale(node, numbers, scale), float(after.zero_point))
    return node.emit("Cast", [in_range_of(node, numbers, dtype)])


def _dequantize(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    if x.dtype.is_fixed_point:
        return [node.emit("Dequantize", [x])]
    if not x.dtype.is_float:
        node.unsupported(f"dequantizing {x.dtype.name} is not supported")
    return [node.emit("Cast", [x])]


def _select(node: OperatorContext) -> list[Tensor]:
    condition, yes, no = (node.input(i) for i in range(3))
    # The first version of SELECT takes one condition per row of its operands.
    if node.entry.code == "SELECT" and condition.rank == 1 and yes.rank > 1 and condition.dims[0] == yes.dims[0]:
        condition = node.reshape(condition, (condition.dims[0],) + (1,) * (yes.rank - 1))
    return [node.emit("ElementWiseSelect", [condition, yes, no])]


def _zeros_like(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    return node.emit_constant(np.zeros(node.check_size(x.dims), x.dtype.numpy))


def _softmax(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    axis, beta = node.axis(-1, x.rank), float(node.options["beta"])
    dtype = data_type(node.output())
    if x.dtype.is_fixed_point and x.dtype.itemsize == 1 and dtype is DataType.SFIXED_POINT_16:
        return [wide_softmax(node, x, axis, beta)]
    return [node.emit("Softmax", [x], {"axis": axis, "beta": beta})]


def _log_softmax(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    return [node.emit("LogSoftmax", [x], {"axis": node.axis(-1, x.rank)})]


def _l2_normalization(node: OperatorContext) -> list[Tensor]:
    x = node.input(0)
    return node.emit_activated("L2Norm", [x], {"axis": node.axis(-1, x.rank), "epsilon": 1e-12})


_UNARY = {
    "ABS": "ElementWiseAbs", "CEIL": "ElementWiseCeil", "COS": "ElementWiseCos", "ELU": "Elu", "EXP": "ElementWiseExp",
    "FLOOR": "ElementWiseFloor", "HARD_SWISH": "HardSwish", "LOG": "ElementWiseLog", "LOGICAL_NOT": "ElementWiseNot",
    "LOGISTIC": "Sigmoid", "NEG": "ElementWiseNeg", "RELU": "Relu", "RELU6": "Relu6", "ROUND": "ElementWiseRound",
    "RSQRT": "ElementWiseRsqrt", "SIGN": "ElementWiseSign", "SIN": "ElementWiseSin", "SQRT": "ElementWiseSquareRoot",
    "TANH": "Tanh",
}  # fmt: skip
_BINARY = {
    "ADD": "ElementWiseAdd", "DIV": "ElementWiseDivide", "EQUAL": "ElementWiseEqual",
    "FLOOR_DIV": "ElementWiseFloorDiv", "FLOOR_MOD": "ElementWiseMod", "GREATER": "ElementWiseGreater",
    "GREATER_EQUAL": "ElementWiseGreaterEqual", "LESS": "ElementWiseLess", "LESS_EQUAL": "ElementWiseLessEqual",
    "LOGICAL_AND": "ElementWiseAnd", "LOGICAL_OR": "ElementWiseOr", "MAXIMUM": "ElementWiseMaximum",
    "MINIMUM": "ElementWiseMinimum", "MUL": "ElementWiseMultiply", "NOT_EQUAL": "ElementWiseNotEqual",
    "POW": "ElementWisePower", "PRELU": "Prelu", "SQUARED_DIFFERENCE": "ElementWiseSquaredDifference",
    "SUB": "ElementWiseSubtract",
}  # fmt: skip

CONVERTERS: dict[str, Converter] = {
    **{code: _one(op) for code, op in _UNARY.items()},
    **{code: _two(op) for code, op in _BINARY.items()},
    "ADD_N": _add_n,
    "CAST": _cast,
    "DEQUANTIZE": _dequantize,
    "GELU": _gelu,
    "L2_NORMALIZATION": _l2_normalization,
    "LEAKY_RELU": _leaky_relu,
    "LOG_SOFTMAX": _log_softmax,
    "QUANTIZE": _quantize,
    "RELU_0_TO_1": _one("ReluMinMax", min_value=0.0, max_value=1.0),
    "RELU_N1_TO_1": _one("ReluMinMax", min_value=-1.0, max_value=1.0),
    "SELECT": _select,
    "SELECT_V2": _select,
    "SOFTMAX": _softmax,
    "SQUARE": lambda node: [node.emit("ElementWiseMultiply", [node.input(0), node.input(0)])],
    "ZEROS_LIKE": _zeros_like,
}
