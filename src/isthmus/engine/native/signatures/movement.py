"""Signatures of the kernels in `kernels.movement`. Outer dimensions are innermost first, strides in bytes."""

from __future__ import annotations

from typing import Any

from isthmus.engine.native.signatures.arithmetic import Reach
from isthmus.engine.native.signatures.elementwise import outer_of, rows_of
from isthmus.engine.native.words import (
    MAX_COUNT,
    Bits,
    Count,
    Number,
    Numbers,
    OffsetTable,
    OffsetTables,
    ReadOperand,
    Signature,
    Write,
    signed,
)

_SIZES = {str(size): {"size": size} for size in (1, 2, 4, 8)}
# Each element is written once, so the destination must be at least as large as all of them. This bounds how long an
# instruction runs.
_EACH_ONCE = "goal[1] - goal[0] >= {}"


def _interleaving(direction: str) -> Signature:
    """Return the signature for interleaving rows into a dense run ("join"), or separating them again ("part").

    The first word is the dense run in both directions, so only which of the two is written differs.
    """
    dense, rows, written = (Write, ReadOperand, "dense") if direction == "join" else (ReadOperand, Write, "rows")
    return Signature(
        "movement:interleave",
        (
            dense("dense", "dense_reach"),
            rows("rows", "rows_reach"),
            Number("count", 1),
            signed("stride"),
            Number("batches", 1),
            signed("dense_stride"),
            signed("rows_stride"),
        ),
        variants={
            f"{direction}_{size}_{parts}": {"size": size, "parts": parts}
            for size in (1, 2, 4, 8)
            for parts in (2, 3, 4)
        },
        where={
            "dense_reach": "reach([batches], [dense_stride], count * size * parts)",
            "rows_reach": "reach([batches, parts], [rows_stride, stride], count * size)",
            "goal": f"{written}_reach",
        },
        rules=(_EACH_ONCE.format("batches * count * size * parts"),),
    )


def _remapped(table: Any, tables: list[Any], length: int) -> Reach:
    """Return the reach of reads of `length` bytes at sums of one entry from each table."""
    every = [table, *tables]
    return sum(t.least for t in every), sum(t.most for t in every) + length


COPY = Signature(
    "movement:copy",
    (
        Write("destination", "goal"),
        ReadOperand("source", "walk(elements, inner, dims, from_strides, from_step, size)"),
        *rows_of("to from", signed("to_step"), signed("from_step"), elements=1, strides=-MAX_COUNT),
    ),
    _SIZES,
    where={"goal": "walk(elements, inner, dims, to_strides, to_step, size)"},
    rules=(_EACH_ONCE.format("elements * size"),),
)
TRANSPOSE = Signature(
    "movement:transpose",
    (
        Write("destination", "goal"),
        ReadOperand("source", "reach([*dims, columns, rows], [*from_strides, from_stride, size], size)"),
        *Number.each("rows columns", 1),
        signed("to_stride"),
        signed("from_stride"),
        *outer_of("to from", -MAX_COUNT),
    ),
    _SIZES,
    where={"goal": "reach([*dims, rows, columns], [*to_strides, to_stride, size], size)"},
    rules=(_EACH_ONCE.format("product(dims) * rows * columns * size"),),
)
JOIN = _interleaving("join")
PART = _interleaving("part")
FILL = Signature(
    "movement:fill",
    (Write("destination", "elements * size"), Number("elements"), Bits("value")),
    _SIZES,
)
PAD = Signature(
    "movement:pad",
    (
        Write("output", "rows * inner * size"),
        ReadOperand("x", "reach(lengths, strides, kept * size)"),
        Bits("value"),
        Number("rows"),
        Number("inner", 1),
        *Number.each("before kept"),
        Count("rank"),
        Numbers("dims", "rank", 1),
        Numbers("first", "rank"),
        Numbers("lengths", "rank", 1),
        Numbers("strides", "rank"),
    ),
    _SIZES,
    rules=("before + kept <= inner",),
)
REMAP = Signature(
    "movement:remap",
    (
        Write("output", "rows * inner * length"),
        ReadOperand("x", "remapped(table, tables, length)"),
        *Number.each("rows inner", 1),
        OffsetTable("table", "inner"),
        Number("length", 1),
        Count("rank"),
        Numbers("counts", "rank", 1),
        OffsetTables("tables", "rank", "counts"),
    ),
    variants={**_SIZES, "run": {"size": 0}},
    rules=("size in (0, length)",),
    functions={"remapped": _remapped},
)
