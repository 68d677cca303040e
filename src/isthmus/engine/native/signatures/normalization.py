"""Signatures of the kernels in `kernels.normalization`."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import FLOATS, HALVES, SIZES
from isthmus.engine.native.signatures.matmul import halves
from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Word, WorkSpace, Write

COLUMN_WORK = 8 * 128
"""The size in bytes of a thread's work space for a block of columns: two floats per column."""
_NORMS = {name: {"item": 4} for name in ("moments", "mean", "rms", "l2")}
_NORMS |= halves(_NORMS, HALVES)
_SOFTMAXES = {name: {"item": 4} for name in ("plain", "log")}
_SOFTMAXES |= halves(_SOFTMAXES, HALVES)


def _both(extent: str, coefficients: str = "") -> tuple[Word, ...]:
    """Return the words of the output and the input, which have the same size, and of as many scales and offsets."""
    scales = (ReadOperand(name, f"4 * {coefficients}") for name in ("scales", "offsets") if coefficients)
    return Write("output", extent), ReadOperand("x", extent), *scales


SOFTMAX_ROWS = Signature(
    "normalization:softmax_rows",
    (*_both("item * rows * length"), Number("rows", 1), Number("length", 1), Real("beta")),
    variants=_SOFTMAXES,
)
SOFTMAX_COLUMNS = Signature(
    "normalization:softmax_columns",
    (
        *_both("item * outer_count * length * columns"),
        *Number.each("outer_count length columns", 1),
        Real("beta"),
        WorkSpace("work", f"shares * {COLUMN_WORK}"),
    ),
    variants=_SOFTMAXES,
)
NORM_ROWS = Signature(
    "normalization:norm_rows",
    (
        *_both("item * outer_count * rows * groups * run", "groups * run"),
        *Number.each("outer_count rows groups run", 1),
        Real("epsilon"),
    ),
    variants=_NORMS,
)
NORM_COLUMNS = Signature(
    "normalization:norm_columns",
    (
        *_both("item * outer_count * rows * columns", "columns"),
        *Number.each("outer_count rows columns", 1),
        Real("epsilon"),
        WorkSpace("work", f"shares * {COLUMN_WORK}"),
    ),
    variants=_NORMS,
)
AFFINE = Signature(
    "normalization:affine",
    (
        *_both("item * elements", "channels"),
        Number("elements"),
        Number("channels", 1),
        *Real.each("low high"),
    ),
    variants={kind: {"item": SIZES[kind]} for kind in FLOATS},
)
LOCAL_RESPONSE = Signature(
    "normalization:local_response",
    (
        *_both("4 * rows * channels"),
        *Number.each("rows channels", 1),
        Number("radius"),
        *Real.each("alpha beta bias"),
    ),
)
