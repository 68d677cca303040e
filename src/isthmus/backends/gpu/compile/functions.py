"""Element-wise functions in OpenCL C.

``{0}`` and ``{1}`` are operands, ``{a}`` and ``{b}`` parameters, ``{F}`` the type of the result. Functions of reals
also take vectors. Comparing vectors gives a vector of integers, so choices are written with ``?:``, which accepts both.
``x < l ? l : x`` keeps a NaN.
"""

from __future__ import annotations

_ONE, _ZERO = "({F})(1.0f)", "({F})(0.0f)"


def _limit(x: str, low: str, high: str) -> str:
    """Return the expression for `x` limited to a range; a NaN stays a NaN."""
    return f"({x} < {low} ? ({{F}})({low}) : ({x} > {high} ? ({{F}})({high}) : {x}))"


def _extreme(sign: str) -> str:
    """Return the expression for the larger or smaller of two operands; it is NaN if either is."""
    return f"({{0}} {sign} {{1}} ? {{0}} : ({{0}} == {{0}} ? {{1}} : {{0}}))"


REALS: dict[str, str] = {
    "Identity": "{0}",
    "Clamp": _limit("{0}", "{a}", "{b}"),
    "Square": "({0} * {0})",
    "PowerOf": "pow({0}, ({F})({a}))",
    "ElementWiseAbs": "fabs({0})",
    "ElementWiseAsin": "asin({0})",
    "ElementWiseAtan": "atan({0})",
    "ElementWiseCeil": "ceil({0})",
    "ElementWiseCos": "cos({0})",
    "ElementWiseExp": "exp({0})",
    "ElementWiseFloor": "floor({0})",
    "ElementWiseLog": "log({0})",
    "ElementWiseNeg": "(-{0})",
    "ElementWiseRound": "rint({0})",
    "ElementWiseRsqrt": f"({_ONE} / sqrt({{0}}))",
    "ElementWiseSign": f"({{0}} > 0.0f ? {_ONE} : ({{0}} < 0.0f ? -{_ONE} : {{0}} * 0.0f))",
    "ElementWiseSin": "sin({0})",
    "ElementWiseSquareRoot": "sqrt({0})",
    "ElementWiseSoftplus": f"({{a}} * {{0}} > {{b}} ? {{0}} : (log1p(exp(-fabs({{a}} * {{0}})))"
    f" + ({{a}} * {{0}} > 0.0f ? {{a}} * {{0}} : {_ZERO})) / {{a}})",
    "Reciprocal": f"({_ONE} / {{0}})",
    "Acos": "acos({0})",
    "Acosh": "acosh({0})",
    "Asinh": "asinh({0})",
    "Atanh": "atanh({0})",
    "Cosh": "cosh({0})",
    "Elu": f"({{0}} > 0.0f ? {{0}} : {{a}} * expm1({{0}} > 0.0f ? {_ZERO} : {{0}}))",
    "Erf": "erf({0})",
    "Gelu": "(0.5f * {0} * (1.0f + erf({0} * 0.70710678f)))",
    "HardSigmoid": _limit("({a} * {0} + {b})", "0.0f", "1.0f"),
    "HardSwish": f"({{0}} * {_limit('({0} + 3.0f)', '0.0f', '6.0f')} * 0.16666667f)",
    "Mish": "({0} * tanh({0} > 20.0f ? {0} : log1p(exp({0} > 20.0f ? ({F})(20.0f) : {0}))))",
    "Sigmoid": f"({_ONE} / (1.0f + exp(-{{0}})))",
    "Silu": "({0} / (1.0f + exp(-{0})))",
    "Sinh": "sinh({0})",
    "Tan": "tan({0})",
    "Tanh": "tanh({0})",
    "ElementWiseAdd": "({0} + {1})",
    "ElementWiseSubtract": "({0} - {1})",
    "ElementWiseMultiply": "({0} * {1})",
    "ElementWiseDivide": "({0} / {1})",
    "ElementWiseMaximum": _extreme(">"),
    "ElementWiseMinimum": _extreme("<"),
    "ElementWisePower": "pow({0}, {1})",
    "ElementWiseSquaredDifference": "(({0} - {1}) * ({0} - {1}))",
    "ElementWiseFloorDiv": "floor({0} / {1})",
    "ElementWiseFmod": "fmod({0}, {1})",
    "ElementWiseMod": "({0} - floor({0} / {1}) * {1})",
    "Prelu": "({0} < 0.0f ? {0} * {1} : {0})",
}
"""Functions from reals to reals, for scalars and vectors."""

TESTS: dict[str, str] = {
    "ElementWiseEqual": "({0} == {1})",
    "ElementWiseNotEqual": "({0} != {1})",
    "ElementWiseGreater": "({0} > {1})",
    "ElementWiseGreaterEqual": "({0} >= {1})",
    "ElementWiseLess": "({0} < {1})",
    "ElementWiseLessEqual": "({0} <= {1})",
    "ElementWiseAnd": "({0} && {1})",
    "ElementWiseOr": "({0} || {1})",
    "ElementWiseXor": "(!{0} != !{1})",
    "ElementWiseNot": "(!{0})",
    "IsNan": "({0} != {0})",
    "IsNaN": "({0} != {0})",
    "IsInf": "(({a} != 0.0f && {0} == -INFINITY) || ({b} != 0.0f && {0} == INFINITY))",
}
"""Functions from scalars of any type to a boolean."""

# OpenCL C divides integers towards zero; the quotient is one less if there is a remainder and the signs differ.
_FLOOR = "({1} == 0 ? 0 : {0} / {1} - ({0} % {1} != 0 && ({0} < 0) != ({1} < 0)))"
INTEGERS: dict[str, str] = {
    "ElementWiseAbs": "({0} < 0 ? -{0} : {0})",
    "ElementWiseNeg": "(-{0})",
    "ElementWiseSign": "(({0} > 0) - ({0} < 0))",
    "ElementWiseAdd": "({0} + {1})",
    "ElementWiseSubtract": "({0} - {1})",
    "ElementWiseMultiply": "({0} * {1})",
    "ElementWiseDivide": "({1} == 0 ? 0 : {0} / {1})",
    "ElementWiseFloorDiv": _FLOOR,
    "ElementWiseFmod": "({1} == 0 ? 0 : {0} % {1})",
    "ElementWiseMod": f"({{1}} == 0 ? 0 : {{0}} - {_FLOOR} * {{1}})",
    "ElementWiseMaximum": "({0} > {1} ? {0} : {1})",
    "ElementWiseMinimum": "({0} < {1} ? {0} : {1})",
    "ElementWiseSquaredDifference": "(({0} - {1}) * ({0} - {1}))",
    "Relu": "({0} > 0 ? {0} : 0)",
    "Relu6": "({0} < 0 ? 0 : ({0} > 6 ? 6 : {0}))",
}
"""Functions of integers, for scalars."""
