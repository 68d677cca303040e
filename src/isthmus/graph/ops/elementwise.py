"""Elementwise operations: unary, binary, comparison, logic, selection, activations, and type conversions.

Convert, Quantize and Dequantize keep the real number; Cast keeps the stored one, even of fixed-point tensors.

An operation is one entry here: its types and parameters, its numpy function, and its traits. Evaluation, passes and the
lowering to kernels use this entry.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from isthmus.graph.datatypes import FIXED_POINTS, FLOATS, INDICES, INTEGERS, NUMBERS, REALS, UNSIGNED, DataType
from isthmus.graph.operation import (
    ISTHMUS,
    Call,
    Dims,
    Operation,
    Param,
    Rule,
    TypeRule,
    Types,
    define,
    like,
    optional,
    options,
    required,
)
from isthmus.graph.ops import functions
from isthmus.graph.ops.functions import erf, sigmoid, softplus
from isthmus.graph.traits import Traits

Function = Callable[..., np.ndarray]

BOOL = (DataType.BOOL_8,)

UNARY_OPERATIONS = (
    "ElementWiseAbs", "ElementWiseAsin", "ElementWiseAtan", "ElementWiseCeil", "ElementWiseCos", "ElementWiseExp",
    "ElementWiseFloor", "ElementWiseLog", "ElementWiseNeg", "ElementWiseNot", "Reciprocal", "ElementWiseRound",
    "ElementWiseRsqrt", "ElementWiseSign", "ElementWiseSin", "ElementWiseSquareRoot",
)  # fmt: skip
"""The functions of ElementWiseUnary, by operation number."""

BINARY_OPERATIONS = (
    "ElementWiseAdd", "ElementWiseAnd", "ElementWiseDivide", "ElementWiseEqual", "ElementWiseFloorDiv",
    "ElementWiseFmod", "ElementWiseGreater", "ElementWiseGreaterEqual", "ElementWiseLess", "ElementWiseLessEqual",
    "ElementWiseMaximum", "ElementWiseMinimum", "ElementWiseMod", "ElementWiseMultiply", "ElementWiseNotEqual",
    "ElementWiseOr", "ElementWisePower", "ElementWiseSquaredDifference", "ElementWiseSubtract", "ElementWiseXor",
)  # fmt: skip
"""The functions of ElementWiseBinary, by operation number."""

NEURON_OPERATIONS = (
    "Elu", "Gelu", "HardSigmoid", "HardSwish", "Relu", "ReluMinMax", "Sigmoid", "ElementWiseSoftplus", "Tanh",
)  # fmt: skip
"""The functions of ElementWiseNeuron, by operation number."""


def _unary(call: Call) -> list[Dims]:
    return [call.dims(0)]


def _binary(call: Call) -> list[Dims]:
    call.check_same_type(0, 1)
    return [call.broadcast(call.dims(0), call.dims(1))]


def _power(call: Call) -> list[Dims]:
    """Check a power; the exponent of a base in fixed point may have any type of numbers."""
    if not call.tensor(0).dtype.is_fixed_point or call.tensor(1).dtype not in NUMBERS:
        call.check_same_type(0, 1)
    return [call.broadcast(call.dims(0), call.dims(1))]


def _select(call: Call) -> list[Dims]:
    call.check_same_type(1, 2)
    return [call.broadcast(call.dims(0), call.dims(1), call.dims(2))]


def _multiplex(call: Call) -> list[Dims]:
    """Check a selector and any number of operands; each element of the result comes from the operand it names."""
    call.check_same_type(*range(1, len(call.inputs)))
    return [call.broadcast(*(call.dims(index) for index in range(len(call.inputs))))]


def _logit(call: Call) -> list[Dims]:
    epsilon = call.optional(1)
    if epsilon is not None and epsilon.elements != 1:
        call.refuse(f"in[1] {epsilon.describe()} must be one number, the distance kept from 0 and 1")
    return [call.dims(0)]


def _prelu(call: Call) -> list[Dims]:
    """Check slopes that broadcast to in[0]."""
    # Slopes of rank 1 are those of the last axis; further ones are not used. Those of 16-bit data may have 8 bits.
    (x, slopes), dims = (call.tensor(0), call.tensor(1)), call.dims(0)
    if not (x.dtype.is_fixed_point and slopes.dtype.is_fixed_point and slopes.itemsize < x.itemsize == 2):
        call.check_same_type(0, 1)
    by_channel = slopes.quantization is not None and slopes.quantization.axis is not None
    further = dims and len(slopes.dims) == 1 and slopes.dims[0] > dims[-1] > 0 and not by_channel
    if not further and call.broadcast(dims, slopes.dims) != dims:
        call.refuse(f"slopes {list(slopes.dims)} must broadcast to in[0] {list(dims)}")
    return [dims]


def _leaky(x: np.ndarray, slope: np.ndarray) -> np.ndarray:
    slope = slope[: x.shape[-1]] if slope.ndim == 1 and x.ndim else slope
    return np.where(x < 0, x * slope, x)


def _clamp(call: Call) -> list[Dims]:
    low, high = call.params["min_value"], call.params["max_value"]
    if low is None or high is None or low > high:
        call.refuse(f"min_value {low} and max_value {high} must be given, in this order")
    return [call.dims(0)]


def _softplus(call: Call) -> list[Dims]:
    if call.params["beta"] == 0:
        call.refuse("beta must not be 0")
    return [call.dims(0)]


_ELEMENT_WISE = Traits(element_wise=True)
_FUNCTION = Traits(element_wise=True, fixed_point=True)
_ACTIVATION = Traits(element_wise=True, fixed_point=True, activation=True)
_COMMUTATIVE = Traits(element_wise=True, commutative=True)
_EXTREME = Traits(element_wise=True, commutative=True, fixed_point=True)
_SUM = Traits(element_wise=True, commutative=True, fixed_point=True, takes_clamp=True)
_DIFFERENCE = Traits(element_wise=True, fixed_point=True, takes_clamp=True)


def _limit(low: float, high: float) -> Traits:
    """Return the traits of an operation that only limits its operand to a range."""
    return Traits(element_wise=True, fixed_point=True, limits=(low, high))


def _one(
    name: str, function: Function, types: Types = REALS, *params: Param, rule: Rule = _unary, **more: Any
) -> Operation:
    """Define a function of one operand; `more` are further fields of `Operation`."""
    return define(name, rule, *params, types=(types,), function=function, **{"traits": _FUNCTION, **more})


def _two(
    name: str, function: Function, traits: Traits = _ELEMENT_WISE, types: Types = NUMBERS, rule: Rule = _binary,
    **more: Any,
) -> Operation:  # fmt: skip
    """Define arithmetic or logic on two operands, which have the same type unless the rule allows others."""
    return define(name, rule, inputs=2, types=(types,), function=function, traits=traits, **more)


def _test(name: str, function: Function, traits: Traits = _ELEMENT_WISE) -> Operation:
    """Define a comparison of two operands of the same type."""
    return _two(name, function, traits, (*NUMBERS, *BOOL), output_types={0: DataType.BOOL_8})


# Functions of one operand that QNN's package lacks.
_extra = partial(_one, package=ISTHMUS)
# Functions that only networks use.
_activation = partial(_one, traits=_ACTIVATION)
_on_bits = partial(_two, package=ISTHMUS)
# What tests of one operand have in common.
_IS: dict[str, Any] = {"output_types": {0: DataType.BOOL_8}, "traits": _ELEMENT_WISE}
_alpha = partial(optional, "alpha", "f32")
_beta = partial(optional, "beta", "f32")

_NAMED = (
    _one("ElementWiseAbs", np.abs, NUMBERS),
    _one("ElementWiseAsin", np.arcsin),
    _one("ElementWiseAtan", np.arctan),
    _one("ElementWiseCeil", np.ceil),
    _one("ElementWiseCos", np.cos),
    _one("ElementWiseExp", np.exp),
    _one("ElementWiseFloor", np.floor),
    _one("ElementWiseLog", np.log),
    _one("ElementWiseNeg", functions.negative, NUMBERS),
    _one("ElementWiseNot", np.logical_not, BOOL, traits=_ELEMENT_WISE),
    _one("ElementWiseRound", np.rint),
    _one("ElementWiseRsqrt", lambda x: 1.0 / np.sqrt(x)),
    _one("ElementWiseSign", np.sign, NUMBERS),
    _one("ElementWiseSin", np.sin),
    _one("ElementWiseSquareRoot", np.sqrt),
    _two("ElementWiseAdd", np.add, _SUM),
    _two("ElementWiseAnd", np.logical_and, _COMMUTATIVE, BOOL),
    _two("ElementWiseDivide", functions.divide, _DIFFERENCE),
    _test("ElementWiseEqual", np.equal, _COMMUTATIVE),
    _two("ElementWiseFloorDiv", functions.floor_divide),
    _two("ElementWiseFmod", np.fmod),
    _test("ElementWiseGreater", np.greater),
    _test("ElementWiseGreaterEqual", np.greater_equal),
    _test("ElementWiseLess", np.less),
    _test("ElementWiseLessEqual", np.less_equal),
    _two("ElementWiseMaximum", np.maximum, _EXTREME),
    _two("ElementWiseMinimum", np.minimum, _EXTREME),
    _two("ElementWiseMod", np.mod),
    _two("ElementWiseMultiply", np.multiply, _SUM),
    _test("ElementWiseNotEqual", np.not_equal, _COMMUTATIVE),
    _two("ElementWiseOr", np.logical_or, _COMMUTATIVE, BOOL),
    _two("ElementWisePower", functions.power, rule=_power),
    _two("ElementWiseSquaredDifference", lambda a, b: np.square(a - b), _COMMUTATIVE),
    _two("ElementWiseSubtract", np.subtract, _DIFFERENCE),
    _two("ElementWiseXor", np.logical_xor, _COMMUTATIVE, BOOL),
    _one("Relu", lambda x: np.maximum(x, 0), NUMBERS, traits=_limit(0.0, math.inf)),
    _one(
        "Relu1",
        lambda x: np.clip(x, -1, 1) if x.dtype.kind != "u" else np.minimum(x, 1),
        NUMBERS,
        traits=_limit(-1.0, 1.0),
    ),
    _one("Relu6", lambda x: np.clip(x, 0, 6), NUMBERS, traits=_limit(0.0, 6.0)),
    _activation("Gelu", lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))),
    _activation("HardSwish", lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0),
    _one("Sigmoid", sigmoid),
    _one("Tanh", np.tanh),
    _activation("Elu", lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0))), REALS, _alpha(1.0)),
    _one(
        "ReluMinMax",
        lambda x, min_value, max_value: np.clip(x, np.float32(min_value), np.float32(max_value)),
        REALS,
        *required("f32", "min_value", "max_value"),
        rule=_clamp,
    ),
    _activation("ElementWiseSoftplus", softplus, REALS, _beta(1.0), optional("threshold", "f32", -1.0), rule=_softplus),
    _extra("Erf", erf),
    _extra("Tan", np.tan),
    _extra("Acos", np.arccos),
    _extra("Sinh", np.sinh),
    _extra("Cosh", np.cosh),
    _extra("Asinh", np.arcsinh),
    _extra("Acosh", np.arccosh),
    _extra("Atanh", np.arctanh),
    _activation("Silu", lambda x: x * sigmoid(x), package=ISTHMUS),
    _activation("Mish", lambda x: x * np.tanh(softplus(x)), package=ISTHMUS),
    _extra("BitwiseNot", np.invert, INTEGERS, traits=_ELEMENT_WISE),
    _on_bits("BitwiseAnd", np.bitwise_and, _COMMUTATIVE, INTEGERS),
    _on_bits("BitwiseOr", np.bitwise_or, _COMMUTATIVE, INTEGERS),
    _on_bits("BitwiseXor", np.bitwise_xor, _COMMUTATIVE, INTEGERS),
    _on_bits("BitShiftLeft", np.left_shift, types=UNSIGNED),
    _on_bits("BitShiftRight", np.right_shift, types=UNSIGNED),
    _two("Prelu", _leaky, replace(_ACTIVATION, coefficients=True), REALS, _prelu),
    define(
        "ElementWiseSelect",
        _select,
        inputs=3,
        types=(BOOL,),
        output_types={0: like(1)},
        traits=_ELEMENT_WISE,
        function=lambda condition, yes, no: np.asarray(np.where(condition, yes, no)),
    ),
    # QNN's name, and the name that the package of this project had before QNN had one.
    _one("IsNan", np.isnan, FLOATS, **_IS),
    _extra("IsNaN", np.isnan, FLOATS, **_IS),
    _one("IsInf", functions.is_infinite, FLOATS, *options("bool", detect_negative=True, detect_positive=True), **_IS),
)
# Functions that can be selected only by an operation number.
_NAMELESS = (
    _one("Reciprocal", lambda x: 1.0 / x),
    _activation(
        "HardSigmoid", lambda x, alpha, beta: np.clip(alpha * x + beta, 0.0, 1.0), REALS, _alpha(0.2), _beta(0.5)
    ),
)

FUNCTIONS: dict[str, Operation] = {operation.name: operation for operation in (*_NAMED, *_NAMELESS)}
"""All elementwise functions, including those that are not operations by themselves."""

NUMBERED: dict[str, tuple[str, ...]] = {
    "ElementWiseUnary": UNARY_OPERATIONS,
    "ElementWiseBinary": BINARY_OPERATIONS,
    "ElementWiseNeuron": NEURON_OPERATIONS,
}
"""Operations whose function is selected by a number."""


def numbered_function(op: str, operation: int) -> Operation:
    """Return the function with this operation number."""
    return FUNCTIONS[NUMBERED[op][operation]]


def _pick(call: Call) -> Operation:
    """Return the function that a call of ElementWiseUnary, -Binary or -Neuron selects by its number."""
    return numbered_function(call.op, call.number("operation", below=len(NUMBERED[call.op])))


def _by_number(call: Call) -> list[Dims]:
    """Apply the rule of the function with this number, after filling in its defaults."""
    function, tensor = _pick(call), call.tensor(0)
    if tensor.dtype not in function.input_types[0]:
        call.refuse(f"in[0] {tensor.describe()} has a data type that {function.name} does not take")
    for param in function.params:
        if call.params[param.name] is None:
            call.params[param.name] = param.default
    return function.rule(call)


def _type_by_number(call: Call) -> DataType:
    """Return the data type of the result of the function with this number."""
    dtype = _pick(call).output_type(call, 0)[1]
    assert dtype is not None
    return dtype


def _define_numbered(name: str, operands: int, types: Types | None, *params: Param) -> Operation:
    """Define an operation whose function is selected by a number; `types` are those of in[0], None for any."""
    return define(
        name,
        _by_number,
        Param("operation", "u32"),
        *params,
        inputs=operands,
        types=(types,),
        output_types={0: _type_by_number},
        traits=_FUNCTION if operands == 1 else _ELEMENT_WISE,
    )


def _same_bits(call: Call) -> list[Dims]:
    if call.declared and call.declared[0].dtype.itemsize != call.tensor(0).dtype.itemsize:
        call.refuse(f"out[0] {call.declared[0].describe()} must have elements as wide as in[0]'s")
    return [call.dims(0)]


def _conversion(name: str, types: Types | None, results: TypeRule, *params: Param, traits: Traits) -> Operation:
    """Define a conversion from `types` (None for any) to `results`; storing the result converts it."""
    return define(
        name, _unary, *params, types=(types,), output_types={0: results}, traits=traits, function=lambda x, **params: x
    )


_BITS = (*FLOATS, *INTEGERS, *BOOL)

OPERATIONS = (
    *_NAMED,
    _define_numbered("ElementWiseUnary", 1, (*NUMBERS, *BOOL)),
    _define_numbered(
        "ElementWiseNeuron",
        1,
        REALS,
        *options("f32", alpha=None, beta=None, min_value=None, max_value=None, threshold=-1.0),
    ),
    _define_numbered("ElementWiseBinary", 2, None),
    define("ElementWiseMux", _multiplex, inputs=(2, None), types=(INDICES,), output_types={0: like(1)}),
    define("Logit", _logit, inputs=(1, 2), types=(REALS, FLOATS)),
    _conversion("Cast", None, None, traits=_ELEMENT_WISE),
    define("BitCast", _same_bits, types=(_BITS,), output_types={0: _BITS}, package=ISTHMUS),
    _conversion(
        "Convert", REALS, REALS, *options("bool", dynamic_input_data=False, dynamic_output_data=False), traits=_FUNCTION
    ),
    _conversion("Quantize", FLOATS, FIXED_POINTS, traits=_ELEMENT_WISE),
    _conversion("Dequantize", FIXED_POINTS, FLOATS, traits=_ELEMENT_WISE),
)
