"""Element by element: unary, binary, comparison, logic, selection, activations, and conversions of type.

Convert, Quantize and Dequantize keep the real number; Cast keeps the stored one, also of fixed-point tensors.
"""

from __future__ import annotations

from functools import partial

from isthmus.graph.datatypes import FIXED_POINTS, FLOATS, NUMBERS, REALS, DataType
from isthmus.graph.operation import ISTHMUS, QTI, Call, Dims, Operation, Param, Rule, Types, like, optional
from isthmus.graph.ops.broadcasting import broadcast

BOOL = (DataType.BOOL_8,)

UNARY_OPERATIONS = (
    "ElementWiseAbs", "ElementWiseAsin", "ElementWiseAtan", "ElementWiseCeil", "ElementWiseCos", "ElementWiseExp",
    "ElementWiseFloor", "ElementWiseLog", "ElementWiseNeg", "ElementWiseNot", "Reciprocal", "ElementWiseRound",
    "ElementWiseRsqrt", "ElementWiseSign", "ElementWiseSin", "ElementWiseSquareRoot",
)
"""What the operation number of ElementWiseUnary means."""

BINARY_OPERATIONS = (
    "ElementWiseAdd", "ElementWiseAnd", "ElementWiseDivide", "ElementWiseEqual", "ElementWiseFloorDiv",
    "ElementWiseFmod", "ElementWiseGreater", "ElementWiseGreaterEqual", "ElementWiseLess", "ElementWiseLessEqual",
    "ElementWiseMaximum", "ElementWiseMinimum", "ElementWiseMod", "ElementWiseMultiply", "ElementWiseNotEqual",
    "ElementWiseOr", "ElementWisePower", "ElementWiseSquaredDifference", "ElementWiseSubtract", "ElementWiseXor",
)
"""What the operation number of ElementWiseBinary means."""

NEURON_OPERATIONS = (
    "Elu", "Gelu", "HardSigmoid", "HardSwish", "Relu", "ReluMinMax", "Sigmoid", "ElementWiseSoftplus", "Tanh",
)
"""What the operation number of ElementWiseNeuron means."""

COMPARISONS = frozenset(
    f"ElementWise{n}" for n in ("Equal", "Greater", "GreaterEqual", "Less", "LessEqual", "NotEqual")
)
LOGIC = frozenset(f"ElementWise{n}" for n in ("And", "Or", "Xor"))

_NEURON_DEFAULTS = {
    "Elu": {"alpha": 1.0}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}, "ElementWiseSoftplus": {"beta": 1.0},
}

# NOT and NEG of ElementWiseUnary ask for different types than its transcendental functions.
_UNARY_TYPES: dict[str, Types] = {
    "ElementWiseNot": BOOL, "ElementWiseAbs": NUMBERS, "ElementWiseNeg": NUMBERS, "ElementWiseSign": NUMBERS,
}


def _unary(call: Call) -> list[Dims]:
    return [call.dims(0)]


def _check_type(call: Call, allowed: Types, name: str) -> None:
    tensor = call.tensor(0)
    if tensor.dtype not in allowed:
        call.refuse(f"in[0] {tensor.describe()} has a data type that {name} does not take")


def _numbered_unary(call: Call) -> list[Dims]:
    name = UNARY_OPERATIONS[call.number("operation", below=len(UNARY_OPERATIONS))]
    _check_type(call, _UNARY_TYPES.get(name, REALS), name)
    return [call.dims(0)]


def _binary(call: Call) -> list[Dims]:
    call.same_type(0, 1)
    return [broadcast(call, call.dims(0), call.dims(1))]


def _numbered_binary(call: Call) -> list[Dims]:
    name = BINARY_OPERATIONS[call.number("operation", below=len(BINARY_OPERATIONS))]
    _check_type(call, BOOL if name in LOGIC else (*NUMBERS, *BOOL) if name in COMPARISONS else NUMBERS, name)
    return _binary(call)


def _numbered_binary_type(call: Call) -> DataType:
    name = BINARY_OPERATIONS[call.number("operation", below=len(BINARY_OPERATIONS))]
    return DataType.BOOL_8 if name in COMPARISONS else call.tensor(0).dtype


def _select(call: Call) -> list[Dims]:
    call.same_type(1, 2)
    return [broadcast(call, call.dims(0), call.dims(1), call.dims(2))]


def _prelu(call: Call) -> list[Dims]:
    call.same_type(0, 1)
    if broadcast(call, call.dims(0), call.dims(1)) != call.dims(0):
        call.refuse(f"slopes {list(call.dims(1))} must broadcast to in[0] {list(call.dims(0))}")
    return [call.dims(0)]


def _clamp(call: Call) -> list[Dims]:
    low, high = call.params["min_value"], call.params["max_value"]
    if low is None or high is None or low > high:
        call.refuse(f"min_value {low} and max_value {high} must be given, in this order")
    return [call.dims(0)]


def _neuron(call: Call) -> list[Dims]:
    name = NEURON_OPERATIONS[call.number("operation", below=len(NEURON_OPERATIONS))]
    for param, default in _NEURON_DEFAULTS.get(name, {}).items():
        if call.params[param] is None:
            call.params[param] = default
    if name == "ReluMinMax":
        return _clamp(call)
    if name == "ElementWiseSoftplus":
        return _softplus(call)
    return [call.dims(0)]


def _softplus(call: Call) -> list[Dims]:
    if call.params["beta"] == 0:
        call.refuse("beta must not be 0")
    return [call.dims(0)]


def _one(name: str, types: Types, *params: Param, rule: Rule = _unary, package: str = QTI) -> Operation:
    return Operation(name, (1, 1), (1, 1), params, rule, {0: types}, package=package)


def _two(name: str) -> Operation:
    if name in COMPARISONS:
        types: Types = (*NUMBERS, *BOOL)
        return Operation(name, (2, 2), (1, 1), (), _binary, {0: types}, {0: DataType.BOOL_8})
    return Operation(name, (2, 2), (1, 1), (), _binary, {0: BOOL if name in LOGIC else NUMBERS})


_extra = partial(_one, package=ISTHMUS)
_OPERATION = Param("operation", "u32")

OPERATIONS = (
    *(_one(name, _UNARY_TYPES.get(name, REALS)) for name in UNARY_OPERATIONS if name != "Reciprocal"),
    *(_two(name) for name in BINARY_OPERATIONS),
    *(_one(name, NUMBERS) for name in ("Relu", "Relu1", "Relu6")),
    *(_one(name, REALS) for name in ("Gelu", "HardSwish", "Sigmoid", "Tanh")),
    *(
        _extra(name, REALS)
        for name in ("Erf", "Tan", "Acos", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Silu")
    ),
    _one("Elu", REALS, optional("alpha", "f32", 1.0)),
    _one("ReluMinMax", REALS, Param("min_value", "f32"), Param("max_value", "f32"), rule=_clamp),
    _one(
        "ElementWiseSoftplus", REALS, optional("beta", "f32", 1.0), optional("threshold", "f32", -1.0),
        rule=_softplus,
    ),
    _one("ElementWiseUnary", (*NUMBERS, *BOOL), _OPERATION, rule=_numbered_unary),
    _one(
        "ElementWiseNeuron", REALS, _OPERATION, optional("alpha", "f32"), optional("beta", "f32"),
        optional("min_value", "f32"), optional("max_value", "f32"), optional("threshold", "f32", -1.0), rule=_neuron,
    ),
    Operation(
        "ElementWiseBinary", (2, 2), (1, 1), (_OPERATION,), _numbered_binary, output_types={0: _numbered_binary_type},
    ),
    Operation(
        "ElementWiseSelect", (3, 3), (1, 1), (), _select, {0: BOOL}, {0: like(1)},
    ),
    Operation("Prelu", (2, 2), (1, 1), (), _prelu, {0: REALS}),
    Operation("IsNaN", (1, 1), (1, 1), (), _unary, {0: FLOATS}, {0: DataType.BOOL_8}, ISTHMUS),
    Operation(
        "IsInf", (1, 1), (1, 1),
        (optional("detect_negative", "bool", True), optional("detect_positive", "bool", True)),
        _unary, {0: FLOATS}, {0: DataType.BOOL_8}, ISTHMUS,
    ),
    Operation("Cast", (1, 1), (1, 1), (), _unary, output_types={0: None}),
    Operation(
        "Convert", (1, 1), (1, 1),
        (optional("dynamic_input_data", "bool", False), optional("dynamic_output_data", "bool", False)),
        _unary, {0: REALS}, {0: REALS},
    ),
    Operation("Quantize", (1, 1), (1, 1), (), _unary, {0: FLOATS}, {0: FIXED_POINTS}),
    Operation("Dequantize", (1, 1), (1, 1), (), _unary, {0: FIXED_POINTS}, {0: FLOATS}),
)
