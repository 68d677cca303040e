"""Signatures of the kernels in `kernels.reduction`. Lists of axes are innermost first, strides in bytes."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import FLOATS, HALVES, SIZES
from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Real, Signature, Write, flag, flags

KINDS = {
    **dict.fromkeys(("sum", "prod"), (*FLOATS, "i32", "i64", "u32", "u64", "f64")),
    **dict.fromkeys(("max", "min"), (*FLOATS, "i32", "i64", "i8", "u8", "i16", "u16", "u32", "u64", "f64")),
}
"""The functions, and the kinds that each accepts."""


def sums_in_float32(name: str, kind: str) -> bool:
    """Return whether the kernels of columns write results as float32: sums of 16 bits would be rounded repeatedly."""
    return kind in HALVES and name in ("sum", "prod")


_VARIANTS = {
    f"{name}_{kind}": {"size": SIZES[kind], "out_size": 4 if sums_in_float32(name, kind) else SIZES[kind]}
    for name, kinds in KINDS.items()
    for kind in kinds
}
_LISTS = (
    Real("factor"),
    *Count.each("kept_rank reduced_rank"),
    Numbers("kept", "kept_rank", 1),
    Numbers("kept_strides", "kept_rank"),
    Numbers("reduced", "reduced_rank", 1),
    Numbers("reduced_strides", "reduced_rank"),
)
_EXTENT = "sum_of(outer({}, kept, kept_strides), outer({}, reduced, reduced_strides), (0, {} * size))"

ROWS = Signature(
    "reduction:rows",
    (
        Write("output", "outputs * size"),
        ReadOperand("x", "whole"),
        Number("outputs", 1),
        *Number.each("run runs"),
        *_LISTS,
    ),
    variants=_VARIANTS,
    where={"whole": _EXTENT.format("outputs", "runs", "run")},
    # Each element is read once, which bounds how long an instruction runs.
    rules=("outputs * runs * run * size <= whole[1]", "runs <= 1 or run >= 1"),
)
COLUMNS = Signature(
    "reduction:columns",
    (
        Write("output", "outer_outputs * inner * out_size"),
        ReadOperand("x", "whole"),
        *Number.each("outer_outputs inner", 1),
        Number("elements"),
        # Whether the results of earlier elements are in the output already, from another tile.
        flag("goes_on"),
        *_LISTS,
    ),
    variants=_VARIANTS,
    where={"whole": _EXTENT.format("outer_outputs", "elements", "inner") + " if elements else (0, 0)"},
    rules=("outer_outputs * inner * elements * size <= whole[1]",),
)
RUNNING_SUM = Signature(
    "reduction:running_sum",
    (
        Write("output", "outer_count * length * inner * size"),
        ReadOperand("x", "outer_count * length * inner * size"),
        Number("outer_count"),
        Number("length", 1),
        Number("inner"),
        *flags("exclusive reverse"),
    ),
    variants={kind: {"size": SIZES[kind]} for kind in KINDS["sum"]},
)
