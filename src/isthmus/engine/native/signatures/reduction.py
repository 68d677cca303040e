"""Signatures of the kernels in `kernels.reduction`. Lists of axes are innermost first, strides in bytes."""

from __future__ import annotations

from isthmus.engine.native.words import Count, Number, Numbers, ReadOperand, Real, Signature, Write, flag

_SIZES = {"f32": 4, "i32": 4, "i64": 8, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "u32": 4, "u64": 8, "f64": 8}
KINDS = {
    **dict.fromkeys(("sum", "prod"), ("f32", "i32", "i64", "u32", "u64", "f64")),
    **dict.fromkeys(("max", "min"), tuple(_SIZES)),
}
"""The functions, and the kinds that each accepts."""
_VARIANTS = {f"{name}_{kind}": {"size": _SIZES[kind]} for name, kinds in KINDS.items() for kind in kinds}
_LISTS = (
    Real("factor"),
    Count("kept_rank"),
    Count("reduced_rank"),
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
        Number("run"),
        Number("runs"),
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
        Write("output", "outer_outputs * inner * size"),
        ReadOperand("x", "whole"),
        Number("outer_outputs", 1),
        Number("inner", 1),
        Number("elements"),
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
        flag("exclusive"),
        flag("reverse"),
    ),
    variants={kind: {"size": _SIZES[kind]} for kind in KINDS["sum"]},
)
SIGNATURES = (ROWS, COLUMNS, RUNNING_SUM)
