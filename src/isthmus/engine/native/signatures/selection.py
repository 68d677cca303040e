"""Signatures of the kernels in `kernels.selection`. The kernels themselves limit indices in data, and report them."""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.engine.native.words import Bits, Count, Number, Numbers, ReadOperand, Signature, Word, Write, flag

_INDEX = {"i32": 4, "u32": 4, "i64": 8}
_ORDERED = {"f32": 4, "i32": 4, "i64": 8, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "u32": 4, "u64": 8, "f64": 8}
_SCATTERED = {"u8": 1, "u16": 2, "i32": 4, "i64": 8}
# Sums and products of integers have the same bits with and without a sign.
_COMBINED = _SCATTERED | {"f32": 4, "f64": 8}
_SCATTER_KINDS = {"none": _SCATTERED, "add": _COMBINED, "mul": _COMBINED, "max": _ORDERED, "min": _ORDERED}


def _with_indices(variants: Mapping[str, int], form: str = "{index}_{variant}") -> dict[str, dict[str, int]]:
    """Return variants, each with the bytes of an element, for each kind of indices; `form` is that of their names."""
    return {
        form.format(index=index, variant=variant): {"index_size": index_size, "size": size}
        for index, index_size in _INDEX.items()
        for variant, size in variants.items()
    }


_INDICES = _with_indices({"": 0}, "{index}")
_SIZES = _with_indices({str(size): size for size in (1, 2, 4, 8)})
_SCATTERS = _with_indices(
    {f"{kind}_{name}": size for name, kinds in _SCATTER_KINDS.items() for kind, size in kinds.items()}
)
_EXTREMES = _with_indices(
    {f"{name}_{kind}": size for name in ("max", "min") for kind, size in _ORDERED.items()}, "{variant}_{index}"
)
# One element of the axis for each element of the indices, whose dimensions are innermost first.
_ALONG_AXIS = "sum_of(outer(elements, dims, strides), (0, (axis_size - 1) * axis_stride + size))"
_ELEMENT_WALK: tuple[Word, ...] = (
    *Number.each("elements axis_size", 1),
    Number("axis_stride"),
    flag("from_end"),
    Count("rank"),
    Numbers("dims", "rank", 1),
    Numbers("strides", "rank"),
)
# Slices of `length` at tuples of indices.
_TUPLES: tuple[Word, ...] = (
    Number("length", 1),
    flag("from_end"),
    Count("depth"),
    Numbers("sizes", "depth", 1),
    Numbers("strides", "depth"),
)

GATHER = Signature(
    "selection:gather",
    (
        Write("output", "outer_count * count * length"),
        ReadOperand("x", "outer_count * axis_size * length"),
        ReadOperand("indices", "count * index_size"),
        *Number.each("outer_count count axis_size length", 1),
        flag("from_end"),
    ),
    _SIZES | _with_indices({"run": 0}),
    rules=("size in (0, length)",),
)
GATHER_ELEMENTS = Signature(
    "selection:gather_elements",
    (
        Write("output", "elements * size"),
        ReadOperand("x", _ALONG_AXIS),
        ReadOperand("indices", "elements * index_size"),
        *_ELEMENT_WALK,
    ),
    _SIZES,
)
GATHER_ND = Signature(
    "selection:gather_nd",
    (
        Write("output", "tuples * length"),
        ReadOperand("x", "sum_of((0, (tuples - 1) // batch_tuples * batch_bytes), reach(sizes, strides, length))"),
        ReadOperand("indices", "tuples * depth * index_size"),
        *Number.each("tuples batch_tuples", 1),
        Number("batch_bytes"),
        *_TUPLES,
    ),
    _INDICES,
)
SCATTER_ND = Signature(
    "selection:scatter_nd",
    (
        Write("output", "reach(sizes, strides, length * size)"),
        ReadOperand("indices", "tuples * depth * index_size"),
        ReadOperand("updates", "tuples * length * size"),
        Number("tuples", 1),
        *_TUPLES,
    ),
    _SCATTERS,
)
SCATTER_ELEMENTS = Signature(
    "selection:scatter_elements",
    (
        Write("output", _ALONG_AXIS),
        ReadOperand("indices", "elements * index_size"),
        ReadOperand("updates", "elements * size"),
        *_ELEMENT_WALK,
    ),
    _SCATTERS,
)
ONE_HOT = Signature(
    "selection:one_hot",
    (
        Write("output", "outer_count * depth * inner * size"),
        ReadOperand("indices", "outer_count * inner * index_size"),
        *Number.each("outer_count depth inner", 1),
        *Bits.each("on off"),
        flag("from_end"),
    ),
    _SIZES,
)
REVERSE_SEQUENCE = Signature(
    "selection:reverse_sequence",
    (
        Write("output", "outer_count * first * middle * second * length"),
        ReadOperand("x", "outer_count * first * middle * second * length"),
        ReadOperand("lengths", "(second if time_first else first) * index_size"),
        *Number.each("outer_count first middle second length", 1),
        flag("time_first"),
    ),
    _INDICES,
)
ARGUMENT = Signature(
    "selection:argument",
    (
        Write("output", "outer_count * inner * index_size"),
        ReadOperand("x", "outer_count * length * inner * size"),
        *Number.each("outer_count length inner", 1),
    ),
    _EXTREMES,
)
TOP_K = Signature(
    "selection:top_k",
    (
        Write("values", "rows * k * size"),
        Write("indices", "rows * k * index_size"),
        ReadOperand("x", "rows * length * size"),
        *Number.each("rows length k", 1),
    ),
    _EXTREMES,
)
NON_ZERO = Signature(
    "selection:non_zero",
    (
        Write("output", "room * rank * 4"),
        ReadOperand("x", "elements"),
        *Number.each("elements room", 1),
        Count("rank"),
        Numbers("dims", "rank", 1),
    ),
)
