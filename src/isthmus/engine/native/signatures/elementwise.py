"""Signatures of the kernels in `kernels.elementwise`."""

from __future__ import annotations

import re
from collections.abc import Collection

from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Real, Signature, Write, flag
from isthmus.graph import DataType
from isthmus.graph.ops.elementwise import FUNCTIONS

SIZES = {"f32": 4, "f16": 2, "bf16": 2, "f64": 8, "bool": 1} | {f"{s}{8 * n}": n for s in "iu" for n in (1, 2, 4, 8)}
"""The size in bytes of an element of each kind."""
FLOATS = ("f32", "f16", "bf16")
"""The kinds that kernels compute in float32; those of 16 bits are converted as they are read and written."""
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = ("i8", "i16", "i32", "i64", *UNSIGNED)
KINDS: dict[DataType, str] = {
    DataType.FLOAT_32: "f32",
    DataType.FLOAT_16: "f16",
    DataType.BFLOAT_16: "bf16",
    DataType.FLOAT_64: "f64",
    DataType.INT_8: "i8",
    DataType.INT_16: "i16",
    DataType.INT_32: "i32",
    DataType.INT_64: "i64",
    DataType.UINT_8: "u8",
    DataType.UINT_16: "u16",
    DataType.UINT_32: "u32",
    DataType.UINT_64: "u64",
    DataType.BOOL_8: "bool",
}
"""The kernels' names of the plain types."""

_SHORT = {"ElementWiseSquareRoot": "sqrt", "IsNan": "isnan", "IsNaN": "isnan", "IsInf": "isinf"}
"""Functions whose kernels have shorter names."""


def kernel_of(function: str) -> str:
    """Return the name of a function's kernel.

    >>> kernel_of("ElementWiseSquaredDifference")
    'squared_difference'
    """
    name = function.removeprefix("ElementWise")
    return _SHORT.get(function) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


_MISSING: dict[str, tuple[str, ...]] = {
    "ElementWiseNeg": UNSIGNED,
    **dict.fromkeys(
        ("Elu", "Gelu", "HardSigmoid", "HardSwish", "Prelu", "Silu", "Mish", "ElementWiseSoftplus"), ("f64",)
    ),
}
"""Kinds for which a function has no kernel: unsigned kinds have no negative numbers, and activations of networks are
not computed in double precision.
"""
KINDS_OF: dict[str, tuple[str, ...]] = {
    name: tuple(KINDS[t] for t in function.input_types[0] if t in KINDS and KINDS[t] not in _MISSING.get(name, ()))
    for name, function in FUNCTIONS.items()
}
"""The kinds that an elementwise function accepts, of those in the table of operations."""
_OTHERWISE = ("ElementWiseSelect", "ReluMinMax", "ElementWiseSin", "ElementWiseCos")
"""Functions whose kernels have another form, at least in single precision."""


def _by_kernel(operands: int) -> dict[str, tuple[str, ...]]:
    """Return the kinds that each function of this many elements accepts, by the name of its kernel."""
    return {
        kernel_of(name): KINDS_OF[name]
        for name, function in FUNCTIONS.items()
        if function.inputs == (operands, operands) and function.traits.limits is None and name not in _OTHERWISE
    }


UNARY_KINDS: dict[str, tuple[str, ...]] = {
    **_by_kernel(1),
    **dict.fromkeys(("clamp", "power", "square"), FLOATS),
    **dict.fromkeys(("sin", "cos"), ("f64",)),
}
"""The functions of one element, and the kinds that each accepts."""
BINARY_KINDS: dict[str, tuple[str, ...]] = _by_kernel(2)
"""The functions of two elements, and the kinds that each accepts."""
_TO_BOOL = frozenset(
    kernel_of(name) for name, f in FUNCTIONS.items() if DataType.BOOL_8 in (f.output_types.get(0), f.input_types[0][0])
)
"""The kernels whose results are booleans."""


def _functions(kinds: dict[str, tuple[str, ...]], to_bool: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the variants, one for each function and kind, with the sizes of elements of operands and results."""
    return {
        f"{name}_{kind}": {"size": SIZES[kind], "out_size": 1 if name in to_bool else SIZES[kind]}
        for name, kinds_of_function in kinds.items()
        for kind in kinds_of_function
    }


UNARY = Signature(
    "elementwise:unary",
    (
        Write("output", "elements * out_size"),
        ReadOperand("x", "elements * size"),
        Number("elements"),
        Real("first"),
        Real("second"),
    ),
    variants=_functions(UNARY_KINDS, _TO_BOOL),
)
TRIGONOMETRIC = Signature(
    "elementwise:trigonometric",
    (Write("output", "size * elements"), ReadOperand("x", "size * elements"), Number("elements")),
    variants={f"{name}_{kind}": {"size": SIZES[kind]} for name in ("sin", "cos") for kind in FLOATS},
)
BINARY = Signature(
    "elementwise:binary",
    (
        Write("output", "elements * out_size"),
        ReadOperand("left", "walk(elements, inner, dims, left_strides, size * (mode != 1), size)"),
        ReadOperand("right", "walk(elements, inner, dims, right_strides, size * (mode != 2), size)"),
        Number("elements"),
        Number("inner", 1),
        Number("mode", 0, 2),
        Real("low"),
        Real("high"),
        Count("rank"),
        Numbers("dims", "rank", 1),
        Numbers("left_strides", "rank"),
        Numbers("right_strides", "rank"),
    ),
    variants=_functions(BINARY_KINDS, _TO_BOOL),
)
CHOOSE = Signature(
    "elementwise:choose",
    (
        Write("output", "elements * size"),
        ReadOperand("condition", "walk(elements, inner, dims, condition_strides, condition_step, 1)"),
        ReadOperand("yes", "walk(elements, inner, dims, yes_strides, size * yes_step, size)"),
        ReadOperand("no", "walk(elements, inner, dims, no_strides, size * no_step, size)"),
        Number("elements"),
        Number("inner", 1),
        Count("rank"),
        Numbers("dims", "rank", 1),
        Numbers("condition_strides", "rank"),
        Numbers("yes_strides", "rank"),
        Numbers("no_strides", "rank"),
        flag("condition_step"),
        flag("yes_step"),
        flag("no_step"),
    ),
    variants={str(size): {"size": size} for size in (1, 2, 4, 8)},
)
CAST = Signature(
    "elementwise:cast",
    (Write("output", "elements * out_size"), ReadOperand("x", "elements * size"), Number("elements")),
    variants={
        f"{source}_{goal}": {"size": SIZES[source], "out_size": SIZES[goal]} for source in SIZES for goal in SIZES
    },
)
SIGNATURES = (UNARY, TRIGONOMETRIC, BINARY, CHOOSE, CAST)
