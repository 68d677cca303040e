"""Elementwise operators: arithmetic, comparison, logic, activations, type conversions.

Functions in `CONVERTERS` take an operator's context, emit operations, and return the results (see `Converter`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from isthmus.frontends.tflite.integer_arithmetic import combined, doubles, in_range_of, rescaled, wide_softmax
from isthmus.frontends.tflite.operator_context import OperatorContext, data_type
from isthmus.graph import DataType, Quantization, Tensor

Converter = Callable[[OperatorContext], list[Tensor]]
"""Converts one operator: emits operations by its context, which converters call `site`, and returns the results."""


def _one(op: str, **params: Any) -> Converter:
    """Return a converter to an operation with one operand and these parameters."""
    return lambda site: [site.emit(op, [site.input(0)], params)]


def _two(op: str) -> Converter:
    """Return a converter to an operation with two broadcasting operands, followed by the fused activation."""
    return lambda site: site.activated(op, [site.input(0), site.input(1)])


def _add_n(site: OperatorContext) -> list[Tensor]:
    """Convert a sum of any number of operands to a chain of additions; the last one writes the result."""
    tensors = [site.input(i) for i in range(len(site.inputs))]
    if len(tensors) == 1:
        return site.finish(site.input(0))
    total = site.input(0)
    for tensor in tensors[1:-1]:
        total = site.step("ElementWiseAdd", [total, tensor])
    return [site.emit("ElementWiseAdd", [total, site.input(len(tensors) - 1)])]


def _square(site: OperatorContext) -> list[Tensor]:
    return [site.emit("ElementWiseMultiply", [site.input(0), site.input(0)])]


def _slope(site: OperatorContext, x: Tensor, alpha: float) -> Tensor:
    """Return a slope with one element, in the type of the tensor that it is applied to."""
    if not x.dtype.is_fixed_point:
        return site.constant(np.full(1, alpha, x.dtype.numpy), "slope")
    limit = np.iinfo(x.dtype.numpy).max
    if alpha < 0 and x.dtype.numpy.kind == "u":
        site.unsupported("a negative slope on an unsigned tensor is not supported")
    # The slope is stored as the largest integer, with a scale that makes it `alpha`.
    scale = abs(alpha) / limit or 1.0
    stored = np.full(1, math.copysign(limit, alpha) if alpha else 0).astype(x.dtype.numpy)
    quantization = Quantization.per_tensor(scale)
    return site.graph.constant(f"{site.name}/slope", stored, quantization, x.dtype)


def _leaky_relu(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    return [site.emit("Prelu", [x, _slope(site, x, float(site.options["alpha"]))])]


def _gelu(site: OperatorContext) -> list[Tensor]:
    """Convert to a Gelu, or its tanh approximation to several operations."""
    x = site.input(0)
    if not site.options["approximate"]:
        return [site.emit("Gelu", [x])]
    if x.dtype is not DataType.FLOAT_32:
        site.unsupported("the approximate form is supported for float32 only")

    def number(value: float) -> Tensor:
        return site.constant(np.full(1, value, np.float32))

    # x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))
    square = site.step("ElementWiseMultiply", [x, x])
    inner = site.step("ElementWiseMultiply", [square, number(0.044715 * math.sqrt(2 / math.pi))])
    inner = site.step("ElementWiseAdd", [inner, number(math.sqrt(2 / math.pi))])
    tanh = site.step("Tanh", [site.step("ElementWiseMultiply", [inner, x])])
    half = site.step("ElementWiseMultiply", [x, number(0.5)])
    return [site.emit("ElementWiseMultiply", [half, site.step("ElementWiseAdd", [tanh, number(1.0)])])]


def _cast(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    if x.dtype.is_fixed_point or data_type(site.output()).is_fixed_point:
        site.unsupported("a cast that reads or writes quantized values is not supported")
    return [site.emit("Cast", [x])]


def _quantize(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    dtype = data_type(site.output())
    if dtype.is_fixed_point and (x.dtype.is_fixed_point or x.dtype.is_float):
        return [site.emit("Convert" if x.dtype.is_fixed_point else "Quantize", [x])]
    return [_requantized(site, x, dtype)]


def _requantized(site: OperatorContext, x: Tensor, dtype: DataType) -> Tensor:
    """Convert from or to 32-bit integers with a scale, which the graph has as plain integers; floats are too short."""
    before, after = (None if e is None else e.quantization() for e in (site.declared[0], site.output()))
    wide = DataType.INT_32 in (x.dtype, dtype) and not x.dtype.is_float
    if not wide or before is None or after is None or before.axis is not None or after.axis is not None:
        site.unsupported(f"quantizing {x.dtype.name} to {site.output().type.name} is not supported")
    scale = float(np.float32(before.scale)) / float(np.float32(after.scale))
    numbers = combined(site, "Subtract", doubles(site, x), float(before.zero_point))
    numbers = combined(site, "Add", rescaled(site, numbers, scale), float(after.zero_point))
    return site.emit("Cast", [in_range_of(site, numbers, dtype)])


def _dequantize(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    if x.dtype.is_fixed_point:
        return [site.emit("Dequantize", [x])]
    if not x.dtype.is_float:
        site.unsupported(f"dequantizing {x.dtype.name} is not supported")
    return [site.emit("Cast", [x])]


def _select(site: OperatorContext) -> list[Tensor]:
    condition, yes, no = (site.input(i) for i in range(3))
    # The first version of SELECT takes one condition per row of its operands.
    if site.entry.code == "SELECT" and condition.rank == 1 and yes.rank > 1 and condition.dims[0] == yes.dims[0]:
        condition = site.reshape(condition, (condition.dims[0],) + (1,) * (yes.rank - 1))
    return [site.emit("ElementWiseSelect", [condition, yes, no])]


def _zeros_like(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    return site.known(np.zeros(site.limited(x.dims), x.dtype.numpy))


def _softmax(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    axis, beta = site.axis(-1, x.rank), float(site.options["beta"])
    dtype = data_type(site.output())
    if x.dtype.is_fixed_point and x.dtype.itemsize == 1 and dtype is DataType.SFIXED_POINT_16:
        return [wide_softmax(site, x, axis, beta)]
    return [site.emit("Softmax", [x], {"axis": axis, "beta": beta})]


def _log_softmax(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    return [site.emit("LogSoftmax", [x], {"axis": site.axis(-1, x.rank)})]


def _l2_normalization(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    return site.activated("L2Norm", [x], {"axis": site.axis(-1, x.rank), "epsilon": 1e-12})


_UNARY = {
    "ABS": "ElementWiseAbs",
    "CEIL": "ElementWiseCeil",
    "COS": "ElementWiseCos",
    "EXP": "ElementWiseExp",
    "FLOOR": "ElementWiseFloor",
    "LOG": "ElementWiseLog",
    "LOGICAL_NOT": "ElementWiseNot",
    "NEG": "ElementWiseNeg",
    "ROUND": "ElementWiseRound",
    "RSQRT": "ElementWiseRsqrt",
    "SIGN": "ElementWiseSign",
    "SIN": "ElementWiseSin",
    "SQRT": "ElementWiseSquareRoot",
    "ELU": "Elu",
    "HARD_SWISH": "HardSwish",
    "LOGISTIC": "Sigmoid",
    "RELU": "Relu",
    "RELU6": "Relu6",
    "TANH": "Tanh",
}
_BINARY = {
    "ADD": "ElementWiseAdd",
    "DIV": "ElementWiseDivide",
    "EQUAL": "ElementWiseEqual",
    "FLOOR_DIV": "ElementWiseFloorDiv",
    "FLOOR_MOD": "ElementWiseMod",
    "GREATER": "ElementWiseGreater",
    "GREATER_EQUAL": "ElementWiseGreaterEqual",
    "LESS": "ElementWiseLess",
    "LESS_EQUAL": "ElementWiseLessEqual",
    "LOGICAL_AND": "ElementWiseAnd",
    "LOGICAL_OR": "ElementWiseOr",
    "MAXIMUM": "ElementWiseMaximum",
    "MINIMUM": "ElementWiseMinimum",
    "MUL": "ElementWiseMultiply",
    "NOT_EQUAL": "ElementWiseNotEqual",
    "POW": "ElementWisePower",
    "PRELU": "Prelu",
    "SQUARED_DIFFERENCE": "ElementWiseSquaredDifference",
    "SUB": "ElementWiseSubtract",
}

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
    "SQUARE": _square,
    "ZEROS_LIKE": _zeros_like,
}
