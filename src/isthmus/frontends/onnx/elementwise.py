"""Elementwise operators: arithmetic, comparison, logic, activations, casts. They keep their operands' axis order."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.frontends.onnx.tensors import FOUR_BITS, data_type, element_type
from isthmus.graph import DataType
from isthmus.graph.ops.elementwise import NEURON_OPERATIONS, UNARY_OPERATIONS

RECIPROCAL = UNARY_OPERATIONS.index("Reciprocal")
HARD_SIGMOID = NEURON_OPERATIONS.index("HardSigmoid")


def unary(op: str) -> Converter:
    """Return a converter to an operation with one operand."""
    return lambda node: node.elementwise(op, node.value(0))


def binary(op: str) -> Converter:
    """Return a converter to an operation with two operands."""
    return lambda node: node.elementwise(op, node.value(0), node.value(1))


def _chain(node: OnnxNode, op: str) -> OnnxValue:
    """Apply an operation with two operands in a chain to any number of operands."""
    values = [node.value(index) for index in range(max(len(node.inputs), 1))]
    return reduce(lambda a, b: node.elementwise(op, a, b), values)


def variadic(op: str) -> Converter:
    """Return a converter to a chain of operations with two operands."""
    return lambda node: _chain(node, op)


def identity(node: OnnxNode) -> OnnxValue:
    """Return the operand itself."""
    return node.value(0)


def _dropout(node: OnnxNode) -> list[OnnxValue | None]:
    """Return the operand itself, and a mask that keeps all elements if it is wanted."""
    if node.optional(2) is not None and node.number(2, greatest=False) and node.number(1, 0.5, greatest=0.5):
        node.unsupported("training mode, which drops elements at random")
    x = node.value(0)
    if not node.wants(1):
        return [x]
    return [x, node.literal(np.ones(x.dims, np.bool_))]


def reciprocal(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Emit 1 / x."""
    return node.elementwise("ElementWiseUnary", x, params={"operation": RECIPROCAL})


def _power(node: OnnxNode) -> OnnxValue:
    """Convert to a power, or to a cheaper operation if the exponent is a constant in `_POWERS`."""
    x, exponent = node.value(0), node.value(1)
    constant = node.builder.array(exponent)
    if constant is not None and constant.size == 1 and exponent.rank <= x.rank and x.tensor.dtype.is_float:
        number = float(constant.reshape(()))
        if number in _POWERS:
            return _POWERS[number](node, x)
    return node.elementwise("ElementWisePower", x, node.cast(exponent, x.tensor.dtype))


# Constant exponents with a cheaper operation than a power.
_POWERS: dict[float, Callable[[OnnxNode, OnnxValue], OnnxValue]] = {
    1.0: lambda node, x: x,
    2.0: lambda node, x: node.times(x, x),
    0.5: lambda node, x: node.elementwise("ElementWiseSquareRoot", x),
    -1.0: reciprocal,
    -0.5: lambda node, x: node.elementwise("ElementWiseRsqrt", x),
}


def _modulo(node: OnnxNode) -> OnnxValue:
    op = "ElementWiseFmod" if node.attr("fmod", 0) else "ElementWiseMod"
    return node.elementwise(op, node.value(0), node.value(1))


def _relu(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    if x.tensor.dtype.is_float:
        return node.elementwise("Relu", x)
    return node.elementwise("ElementWiseMaximum", x, 0)


def _prelu(node: OnnxNode) -> OnnxValue:
    x, slope = node.value(0), node.value(1)
    if not x.tensor.dtype.is_float:
        node.unsupported("integer operands")
    return node.elementwise("Prelu", x, slope)


def leaky_relu(node: OnnxNode, x: OnnxValue, alpha: float) -> OnnxValue:
    """Emit x where x is positive, alpha * x elsewhere."""
    slope = node.builder.numbers(np.full(1, alpha), x.tensor.dtype)
    return node.apply("Prelu", x, None, slope)


def _clip(node: OnnxNode) -> OnnxValue:
    """Convert to one clamp if both limits are constant floats, otherwise to a maximum and a minimum."""
    # Limits are attributes before operator set 11 and inputs since then.
    x = node.value(0)
    if node.opset < 11:
        low, high = node.attr("min", -math.inf), node.attr("max", math.inf)
    else:
        low, high = (
            limit if node.optional(index) is None else node.builder.array(node.value(index))
            for index, limit in ((1, -math.inf), (2, math.inf))
        )
    if low is not None and high is not None and x.tensor.dtype.is_float:
        low, high = (float(np.asarray(v).reshape(())) for v in (low, high))
        if low <= high:
            return clamp(node, x, low, high)
    for op, index, limit in (("ElementWiseMaximum", 1, low), ("ElementWiseMinimum", 2, high)):
        if node.optional(index) is not None:
            x = node.elementwise(op, x, node.value(index))
        elif node.opset < 11 and math.isfinite(limit):
            x = node.elementwise(op, x, limit)
    return x


def clamp(node: OnnxNode, x: OnnxValue, low: float, high: float) -> OnnxValue:
    """Limit a float value to the range from `low` to `high`."""
    if low == -math.inf and high == math.inf:
        return x
    if low == 0 and high == math.inf:
        return node.elementwise("Relu", x)
    # The bounds are float32 parameters, which should be finite.
    limits = np.finfo(np.float32)
    bounds = {"min_value": max(low, float(limits.min)), "max_value": min(high, float(limits.max))}
    return node.elementwise("ReluMinMax", x, params=bounds)


def _hard_sigmoid(node: OnnxNode) -> OnnxValue:
    params = {"operation": HARD_SIGMOID, "alpha": node.attr("alpha", 0.2), "beta": node.attr("beta", 0.5)}
    return node.elementwise("ElementWiseNeuron", node.value(0), params=params)


def _celu(node: OnnxNode) -> OnnxValue:
    """Compute max(0, x) + alpha * min(0, exp(x / alpha) - 1)."""
    alpha = node.attr("alpha", 1.0)
    scaled = node.over(node.value(0), alpha)
    negative = node.elementwise("Elu", node.elementwise("ElementWiseMinimum", scaled, 0.0))
    positive = node.elementwise("Relu", node.value(0))
    return node.plus(positive, node.times(negative, alpha))


def _selu(node: OnnxNode) -> OnnxValue:
    """Compute gamma * x for positive x and gamma * alpha * (exp(x) - 1) elsewhere."""
    alpha, gamma = node.attr("alpha", 1.6732631921768188), node.attr("gamma", 1.0507010221481323)
    unscaled = node.elementwise("Elu", node.value(0), params={"alpha": alpha})
    return node.times(unscaled, gamma)


def gelu(node: OnnxNode) -> OnnxValue:
    """Emit Gelu: the exact form, or the tanh approximation."""
    return (gelu_of if node.attr("approximate", "none") == "none" else tanh_gelu_of)(node, node.value(0))


def gelu_of(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Return the Gelu of a value, which is one operation."""
    return node.elementwise("Gelu", x)


def tanh_gelu_of(node: OnnxNode, x: OnnxValue) -> OnnxValue:
    """Return the approximation of a value's Gelu by tanh, which is composed of several operations."""
    mul, add = "ElementWiseMultiply", "ElementWiseAdd"
    cubic = node.elementwise(mul, node.elementwise(mul, node.elementwise(mul, x, x), x), 0.044715)
    inner = node.elementwise(mul, node.elementwise(add, x, cubic), math.sqrt(2 / math.pi))
    gate = node.elementwise(add, node.elementwise("Tanh", inner), 1.0)
    return node.elementwise(mul, node.elementwise(mul, x, 0.5), gate)


def _swish(node: OnnxNode) -> OnnxValue:
    x, alpha = node.value(0), node.attr("alpha", 1.0)
    if alpha == 1.0:
        return node.elementwise("Silu", x)
    gate = node.elementwise("Sigmoid", node.times(x, alpha))
    return node.times(x, gate)


def _softsign(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    bottom = node.plus(node.elementwise("ElementWiseAbs", x), 1.0)
    return node.over(x, bottom)


def _thresholded_relu(node: OnnxNode) -> OnnxValue:
    x = node.value(0)
    above = node.elementwise("ElementWiseGreater", x, node.attr("alpha", 1.0))
    return node.choose(above, x, 0.0)


def _shrink(node: OnnxNode) -> OnnxValue:
    """Compute x + bias below -lambd, x - bias above lambd, and 0 between them."""
    x, bias, lambd = node.value(0), node.attr("bias", 0.0), node.attr("lambd", 0.5)
    below = node.elementwise("ElementWiseLess", x, -lambd)
    above = node.elementwise("ElementWiseGreater", x, lambd)
    low = node.choose(below, node.plus(x, bias), 0)
    return node.choose(above, node.minus(x, bias), low)


def _is_inf(node: OnnxNode) -> OnnxValue:
    params = {name: bool(node.attr(name, 1)) for name in ("detect_negative", "detect_positive")}
    return node.elementwise("IsInf", node.value(0), params=params)


def _bit_shift(node: OnnxNode) -> OnnxValue:
    operations = {"LEFT": "BitShiftLeft", "RIGHT": "BitShiftRight"}
    direction = node.attr("direction", "")
    if direction not in operations:
        node.refuse(f"direction '{direction}' must be LEFT or RIGHT")
    return node.elementwise(operations[direction], node.value(0), node.value(1))


def _bit_cast(node: OnnxNode) -> OnnxValue:
    x, dtype = node.value(0), data_type(element_type(node.attr("to", 0), node.what))
    return node.apply("BitCast", x, dtypes=[dtype])


def _cast(node: OnnxNode) -> OnnxValue:
    number = node.attr("to", 0)
    dtype = data_type(element_type(number, node.what))
    x = node.value(0)
    return node.cast_to_four_bits(x, dtype) if number in FOUR_BITS else node.cast(x, dtype)


def _cast_like(node: OnnxNode) -> OnnxValue:
    x, like = node.builder.plain(node.value(0)), node.value(1).tensor
    # The integers that fixed point is stored in; bfloat16 has no type of its own in numpy.
    dtype = DataType.of(like.dtype.numpy) if like.dtype.is_fixed_point else like.dtype
    narrow = like.quantization is not None and like.quantization.bits > 0
    return node.cast_to_four_bits(x, dtype) if narrow else node.cast(x, dtype)


CONVERTERS: dict[str, Converter] = {
    **{
        name: unary(op)
        for name, op in {
            "Abs": "ElementWiseAbs", "Neg": "ElementWiseNeg", "Ceil": "ElementWiseCeil", "Floor": "ElementWiseFloor",
            "Round": "ElementWiseRound", "Sqrt": "ElementWiseSquareRoot", "Exp": "ElementWiseExp",
            "Log": "ElementWiseLog", "Sign": "ElementWiseSign", "Not": "ElementWiseNot", "Sin": "ElementWiseSin",
            "Cos": "ElementWiseCos", "Asin": "ElementWiseAsin", "Atan": "ElementWiseAtan", "Tan": "Tan",
            "Acos": "Acos", "Sinh": "Sinh", "Cosh": "Cosh", "Asinh": "Asinh", "Acosh": "Acosh", "Atanh": "Atanh",
            "Erf": "Erf", "Sigmoid": "Sigmoid", "Tanh": "Tanh", "Softplus": "ElementWiseSoftplus",
            "HardSwish": "HardSwish", "IsNaN": "IsNan", "Mish": "Mish",
            "BitwiseNot": "BitwiseNot",
        }.items()
    },
    **{
        name: binary(op)
        for name, op in {
            "Add": "ElementWiseAdd", "Sub": "ElementWiseSubtract", "Mul": "ElementWiseMultiply",
            "Div": "ElementWiseDivide", "And": "ElementWiseAnd", "Or": "ElementWiseOr", "Xor": "ElementWiseXor",
            "Equal": "ElementWiseEqual", "Greater": "ElementWiseGreater", "Less": "ElementWiseLess",
            "GreaterOrEqual": "ElementWiseGreaterEqual", "LessOrEqual": "ElementWiseLessEqual",
            "BitwiseAnd": "BitwiseAnd", "BitwiseOr": "BitwiseOr", "BitwiseXor": "BitwiseXor",
        }.items()
    },
    "Sum": variadic("ElementWiseAdd"),
    "Max": variadic("ElementWiseMaximum"),
    "Min": variadic("ElementWiseMinimum"),
    "Mean": lambda node: node.times(_chain(node, "ElementWiseAdd"), 1.0 / len(node.inputs)),
    "Pow": _power,
    "Mod": _modulo,
    "Where": lambda node: node.choose(node.value(0), node.value(1), node.value(2)),
    "Reciprocal": lambda node: reciprocal(node, node.value(0)),
    "Relu": _relu,
    "PRelu": _prelu,
    "LeakyRelu": lambda node: leaky_relu(node, node.value(0), node.attr("alpha", 0.01)),
    "Clip": _clip,
    "HardSigmoid": _hard_sigmoid,
    "Elu": lambda node: node.elementwise("Elu", node.value(0), params={"alpha": node.attr("alpha", 1.0)}),
    "Celu": _celu,
    "Selu": _selu,
    "Gelu": gelu,
    "com.microsoft:Gelu": gelu,
    "Swish": _swish,
    "Softsign": _softsign,
    "ThresholdedRelu": _thresholded_relu,
    "Shrink": _shrink,
    "IsInf": _is_inf,
    "BitShift": _bit_shift,
    "BitCast": _bit_cast,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Identity": identity,
    "Dropout": _dropout,
}  # fmt: skip
