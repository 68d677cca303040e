"""Words of the kernels in `kernels.elementwise`."""

from __future__ import annotations

from isthmus.engine.native.words import Count, Number, Numbers, Read, Real, Signature, Write, flag

SIZES = {"f32": 4, "f64": 8, "bool": 1} | {f"{s}{8 * n}": n for s in "iu" for n in (1, 2, 4, 8)}
"""Bytes of an element of each kind."""
SIGNED = ("i8", "i16", "i32", "i64")
INTEGERS = (*SIGNED, "u8", "u16", "u32", "u64")

_TO_BOOL = ("isnan", "isinf")
UNARY_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "clamp", "cosh", "elu", "erf", "exp", "floor",
         "gelu", "hard_sigmoid", "hard_swish", "isinf", "isnan", "log", "mish", "power", "reciprocal", "round", "rsqrt",
         "sigmoid", "silu", "sinh", "softplus", "sqrt", "square", "tan", "tanh"),
        ("f32",),
    ),
    "abs": ("f32", *INTEGERS),
    "neg": ("f32", *SIGNED),
    "not": ("bool",),
    "sign": ("f32", *INTEGERS),
}  # fmt: skip
"""The functions of one element, and the kinds that each takes."""
_COMPARISONS = ("equal", "not_equal", "greater", "greater_equal", "less", "less_equal")
_LOGIC = ("and", "or", "xor")
BINARY_KINDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("add", "subtract", "multiply", "maximum", "minimum", "squared_difference"), ("f32", *INTEGERS)),
    **dict.fromkeys(("divide", "floor_div", "mod", "fmod", "power"), ("f32", *INTEGERS[:-1])),
    **dict.fromkeys(_COMPARISONS, ("f32", *INTEGERS, "bool")),
    **dict.fromkeys(_LOGIC, ("bool",)),
    "prelu": ("f32",),
}
"""The functions of two elements, and the kinds that each takes."""


def _functions(kinds: dict[str, tuple[str, ...]], to_bool: tuple[str, ...]) -> dict[str, dict[str, int]]:
    return {
        f"{name}_{kind}": {"size": SIZES[kind], "out_size": 1 if name in to_bool else SIZES[kind]}
        for name, of in kinds.items()
        for kind in of
    }


UNARY = Signature(
    "elementwise:unary",
    (
        Write("output", "elements * out_size"),
        Read("x", "elements * size"),
        Number("elements"),
        Real("first"),
        Real("second"),
    ),
    variants=_functions(UNARY_KINDS, _TO_BOOL),
)
TRIGONOMETRIC = Signature(
    "elementwise:trigonometric",
    (Write("output", "4 * elements"), Read("x", "4 * elements"), Number("elements")),
    variants={"sin": {}, "cos": {}},
)
BINARY = Signature(
    "elementwise:binary",
    (
        Write("output", "elements * out_size"),
        Read("left", "walk(elements, inner, dims, left_strides, size * (mode != 1), size)"),
        Read("right", "walk(elements, inner, dims, right_strides, size * (mode != 2), size)"),
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
    variants=_functions(BINARY_KINDS, (*_COMPARISONS, *_LOGIC)),
)
CHOOSE = Signature(
    "elementwise:choose",
    (
        Write("output", "elements * size"),
        Read("condition", "walk(elements, inner, dims, condition_strides, condition_step, 1)"),
        Read("yes", "walk(elements, inner, dims, yes_strides, size * yes_step, size)"),
        Read("no", "walk(elements, inner, dims, no_strides, size * no_step, size)"),
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
    (Write("output", "elements * out_size"), Read("x", "elements * size"), Number("elements")),
    variants={
        f"{source}_{goal}": {"size": SIZES[source], "out_size": SIZES[goal]} for source in SIZES for goal in SIZES
    },
)
SIGNATURES = (UNARY, TRIGONOMETRIC, BINARY, CHOOSE, CAST)
