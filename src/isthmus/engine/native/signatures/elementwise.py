"""Signatures of the kernels in `kernels.elementwise`, and the words that describe what other kernels store."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from isthmus.engine.native.signatures.rounding import UP, with_ties
from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Real, Signature, Word, Write, flags, signed
from isthmus.graph import DataType
from isthmus.graph.operation import Operation
from isthmus.graph.ops.elementwise import FUNCTIONS

_LETTERS = {"FLOAT": "f", "BFLOAT": "bf", "INT": "i", "UINT": "u"}
KINDS: dict[DataType, str] = {DataType.BOOL_8: "bool"} | {
    dtype: _LETTERS[name] + bits
    for dtype in DataType
    for name, _, bits in [dtype.name.rpartition("_")]
    if name in _LETTERS
}
"""The kernels' names of the plain types, such as f32 for FLOAT_32."""
SIZES = {kind: dtype.itemsize for dtype, kind in KINDS.items()}
"""The size in bytes of an element of each kind."""
HALVES = tuple(KINDS[dtype] for dtype in KINDS if dtype.is_half)
"""The kinds of floats that are converted to float32 as they are read, and rounded as they are written."""
FLOATS = ("f32", *HALVES)
"""The kinds that kernels compute in float32."""
UNSIGNED = ("u8", "u16", "u32", "u64")
INTEGERS = ("i8", "i16", "i32", "i64", *UNSIGNED)

# Functions whose kernels have shorter names.
_SHORT = {"ElementWiseSquareRoot": "sqrt", "IsNan": "isnan", "IsNaN": "isnan", "IsInf": "isinf"}


def kernel_of(function: str) -> str:
    """Return the name of a function's kernel.

    >>> kernel_of("ElementWiseSquaredDifference")
    'squared_difference'
    """
    name = function.removeprefix("ElementWise")
    return _SHORT.get(function) or re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def _kinds_of(function: Operation) -> Iterator[str]:
    """Return the kinds that a function accepts, of those in the table of operations."""
    for kind in (KINDS[dtype] for dtype in function.input_types[0] if dtype in KINDS):
        # Unsigned kinds have no negative numbers.
        negates = function.name == "ElementWiseNeg" and kind in UNSIGNED
        if not negates and not (function.traits.activation and kind == "f64"):
            yield kind


KINDS_OF: dict[str, tuple[str, ...]] = {name: tuple(_kinds_of(function)) for name, function in FUNCTIONS.items()}
"""The kinds that each elementwise function accepts."""
# Functions whose kernels have another form, at least in single precision.
_OTHERWISE = ("ElementWiseSelect", "ReluMinMax", "ElementWiseSin", "ElementWiseCos")


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
# The kernels whose results are booleans.
_TO_BOOL = frozenset(
    kernel_of(name) for name, f in FUNCTIONS.items() if DataType.BOOL_8 in (f.output_types.get(0), f.input_types[0][0])
)


def _functions(kinds: dict[str, tuple[str, ...]], to_bool: Collection[str]) -> dict[str, dict[str, int]]:
    """Return the variants, one for each function and kind, with the sizes of elements of operands and results."""
    return {
        f"{name}_{kind}": {"size": SIZES[kind], "out_size": 1 if name in to_bool else SIZES[kind]}
        for name, kinds_of_function in kinds.items()
        for kind in kinds_of_function
    }


def outer_of(operands: str, strides: int = 0) -> tuple[Word, ...]:
    """Return the words of outer dimensions, innermost first, and of each operand's bytes along them, from `strides` on.

    The names of the operands are separated by spaces.
    """
    lists = (Numbers(f"{operand}_strides", "rank", strides) for operand in operands.split())
    return Count("rank"), Numbers("dims", "rank", 1), *lists


def rows_of(operands: str, *words: Word, elements: int = 0, strides: int = 0) -> tuple[Word, ...]:
    """Return the words of rows of `inner` elements: `words` of a kernel's own, and where rows begin (see `outer_of`).

    There are at least this many `elements` in all.
    """
    return Number("elements", elements), Number("inner", 1), *words, *outer_of(operands, strides)


_INT32 = 1 << 31


def zero_and_flip(name: str) -> tuple[Word, ...]:
    """Return the words of an operand's zero point and flip.

    Flipping the bits of a stored number that `flip` has gives a signed number; the zero point is one of those.
    """
    return signed(f"{name}_zero", _INT32), Number(f"{name}_flip", 0, 1 << 15)


RESULT: tuple[Word, ...] = (*zero_and_flip("out"), signed("least", _INT32), signed("most", _INT32))
"""Zero point, flip and limits of results as signed numbers."""
BYTE_STEPS, STEPS = "q8", "q16"
"""The kinds of fixed point of 8 and 16 bits, signed or not: kernels compute with steps above the zero point."""
# Functions of two numbers of fixed point whose result is one.
_STEPS_FUNCTIONS = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "squared_difference", "floor_div", "power", "prelu",
)  # fmt: skip
COMPARISONS = tuple(name for name, kinds in BINARY_KINDS.items() if name in _TO_BOOL and "f32" in kinds)
"""Functions of two numbers whose result is a boolean."""

_ELEMENTS: tuple[Word, ...] = (
    Write("output", "elements * out_size"),
    ReadOperand("x", "elements * size"),
    Number("elements"),
)
_FUNCTION: tuple[Word, ...] = (*_ELEMENTS, *Real.each("first second"))
UNARY = Signature("elementwise:unary", _FUNCTION, _functions(UNARY_KINDS, _TO_BOOL))
UNARY_OF_STEPS = Signature(
    "elementwise:unary",
    # The real of a step of the operand, and steps of the result in 1.0.
    (*_FUNCTION, *Real.each("scale inverse"), *zero_and_flip("in"), *RESULT),
    {
        f"{name}_{STEPS}": {"size": 2, "out_size": 2}
        for name, kinds in UNARY_KINDS.items()
        if "f32" in kinds and name not in _TO_BOOL
    },
)
TRIGONOMETRIC = Signature(
    "elementwise:trigonometric",
    _ELEMENTS,
    {f"{name}_{kind}": {"size": SIZES[kind], "out_size": SIZES[kind]} for name in ("sin", "cos") for kind in FLOATS},
)
_PAIRS: tuple[Word, ...] = (
    Write("output", "elements * out_size"),
    ReadOperand("left", "walk(elements, inner, dims, left_strides, size * (mode != 1), size)"),
    ReadOperand("right", "walk(elements, inner, dims, right_strides, size * (mode != 2), size)"),
)
_MODE = Number("mode", 0, 2)
BINARY = Signature(
    "elementwise:binary",
    (*_PAIRS, *rows_of("left right", _MODE, *Real.each("low high"))),
    _functions(BINARY_KINDS, _TO_BOOL),
)
BINARY_OF_STEPS = Signature(
    "elementwise:binary",
    (
        *_PAIRS,
        *rows_of(
            "left right",
            _MODE,
            # What the operands and then the result of the function are multiplied by.
            *Real.each("left_factor right_factor factor"),
            *(*zero_and_flip("left"), *zero_and_flip("right"), *RESULT),
        ),
    ),
    {
        **with_ties({f"{name}_{STEPS}": {"size": 2, "out_size": 2} for name in _STEPS_FUNCTIONS}, UP),
        **{f"{name}_{STEPS}": {"size": 2, "out_size": 1} for name in COMPARISONS},
    },
)
CHOOSE = Signature(
    "elementwise:choose",
    (
        Write("output", "elements * size"),
        ReadOperand("condition", "walk(elements, inner, dims, condition_strides, condition_step, 1)"),
        ReadOperand("yes", "walk(elements, inner, dims, yes_strides, size * yes_step, size)"),
        ReadOperand("no", "walk(elements, inner, dims, no_strides, size * no_step, size)"),
        *rows_of("condition yes no"),
        *flags("condition_step yes_step no_step"),
    ),
    {str(size): {"size": size} for size in (1, 2, 4, 8)},
)
CAST = Signature(
    "elementwise:cast",
    _ELEMENTS,
    {f"{source}_{goal}": {"size": SIZES[source], "out_size": SIZES[goal]} for source in SIZES for goal in SIZES},
)
