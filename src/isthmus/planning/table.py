"""Problems and layouts as CSV files, with MiniMalloc's columns.

There is one row for each buffer: ``id``, ``lower``, ``upper`` and ``size``, and if needed ``alignment``, ``gaps`` and
``offset``. ``start`` or ``begin`` may be used for ``lower``, ``end`` for ``upper``, ``buffer`` or ``buffer_id`` for
``id``. With any of these names, a lifetime is half open. (MiniMalloc itself treats ``end`` as the last step inside the
lifetime; write ``upper`` if both must read a file.) Gaps are written ``9-11 12-14``. MiniMalloc's gaps with a window
(``12-14@2:13``), in which part of a buffer stays live, are rejected. An ``offset`` that is not empty is fixed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from isthmus.planning.problem import Gap, PlannerBuffer, PlanningError, Problem
from isthmus.system import reading

ALIASES = {"start": "lower", "begin": "lower", "end": "upper", "buffer": "id", "buffer_id": "id"}
REQUIRED = ("id", "lower", "upper", "size")
OPTIONAL = ("alignment", "gaps", "offset")
MAX_BYTES = 1 << 28
"""The maximum size of a file."""


def read_csv(path: str | Path, *, capacity: int | None = None, alignment: int | None = None) -> Problem:
    """Read a problem from a file.

    Parameters
    ----------
    path
        A CSV file with a header row.
    capacity
        The capacity of the problem; files do not contain one.
    alignment
        The alignment of buffers for which the file gives none.

    Raises
    ------
    PlanningError
        If the file is invalid; the message names the file and the line.
    OSError
        If the file cannot be read.
    """
    try:
        text = reading.contents(path, MAX_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanningError(f"{path}: not a text file: {error.reason}") from None
    rows = csv.reader(io.StringIO(text, newline=""))
    header: list[str] | None = None
    buffers: list[PlannerBuffer] = []
    lines: list[int] = []
    line = 1
    try:
        for row in rows:
            line = rows.line_num
            if not any(field.strip() for field in row):
                continue
            if header is None:
                header = _columns(row)
            else:
                buffers.append(_buffer(header, row, alignment))
                lines.append(line)
    except (PlanningError, csv.Error) as error:
        raise PlanningError(f"{path}:{line}: {error}") from None
    if header is None:
        raise PlanningError(f"{path}:1: the file is empty; expected the columns {', '.join(REQUIRED)}")
    if not buffers:
        raise PlanningError(f"{path}:{line}: no buffers after the header")
    try:
        return Problem(tuple(buffers), capacity)
    except PlanningError as error:
        if error.buffer is None:
            raise
        raise PlanningError(f"{path}:{lines[error.buffer]}: {error}", error.buffer) from None


def csv_text(problem: Problem, offsets: Sequence[int] | None = None) -> str:
    """Return a problem, or with offsets its layout, as the text of a CSV file.

    Columns for alignment and gaps appear only if a buffer has any. Without `offsets`, the offset column holds the fixed
    offsets, if there are any.
    """
    buffers = problem.buffers
    columns = ["id", "lower", "upper", "size"]
    if any(b.alignment != 1 for b in buffers):
        columns.append("alignment")
    if any(b.gaps for b in buffers):
        columns.append("gaps")
    if offsets is not None or any(b.offset is not None for b in buffers):
        columns.append("offset")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for index, b in enumerate(buffers):
        offset = b.offset if offsets is None else int(offsets[index])
        row = {
            "id": b.id,
            "lower": b.start,
            "upper": b.end,
            "size": b.size,
            "alignment": b.alignment,
            "gaps": " ".join(f"{gap.start}-{gap.end}" for gap in b.gaps),
            "offset": "" if offset is None else offset,
        }
        writer.writerow([row[column] for column in columns])
    return text.getvalue()


def write_csv(path: str | Path, problem: Problem, offsets: Sequence[int] | None = None) -> None:
    """Write a problem, or with offsets its layout, as a CSV file."""
    Path(path).write_text(csv_text(problem, offsets), encoding="utf-8", newline="")


def _columns(row: list[str]) -> list[str]:
    """Return the columns of a header row by their own names instead of aliases."""
    names = [field.strip().lower() for field in row]
    columns = [ALIASES.get(name, name) for name in names]
    for name, column in zip(names, columns, strict=True):
        if column not in REQUIRED and column not in OPTIONAL:
            raise PlanningError(f"unknown column {name!r}; expected {', '.join(REQUIRED + OPTIONAL)}")
        if columns.count(column) > 1:
            raise PlanningError(f"column {column!r} appears more than once")
    for column in REQUIRED:
        if column not in columns:
            raise PlanningError(f"column {column!r} is missing; found {', '.join(names)}")
    return columns


def _buffer(columns: list[str], row: list[str], alignment: int | None) -> PlannerBuffer:
    """Read one row; `alignment` is that of a buffer for which the row gives none."""
    if len(row) != len(columns):
        raise PlanningError(f"{len(row)} fields, but the header has {len(columns)}")
    field = dict(zip(columns, (text.strip() for text in row), strict=True))
    if not field["id"]:
        raise PlanningError("id is empty")
    own_alignment = field.get("alignment")
    fixed = field.get("offset")
    return PlannerBuffer(
        id=field["id"],
        start=_number("lower", field["lower"]),
        end=_number("upper", field["upper"]),
        size=_number("size", field["size"]),
        alignment=_number("alignment", own_alignment) if own_alignment else alignment or 1,
        offset=_number("offset", fixed) if fixed else None,
        gaps=tuple(_gap(text) for text in field.get("gaps", "").split()),
    )


def _gap(text: str) -> Gap:
    """Read a gap, written as start and end with a dash between them."""
    if "@" in text:
        raise PlanningError(f"gap {text!r} has a window; only gaps of the whole buffer are supported")
    start, dash, end = text.partition("-")
    if not dash or not start.isdecimal() or not end.isdecimal():
        raise PlanningError(f"gap {text!r} is not of the form start-end")
    return Gap(_number("gap start", start), _number("gap end", end))


def _number(what: str, text: str) -> int:
    """Read an integer; `what` is its name in messages."""
    digits = text[1:] if text[:1] in "+-" else text
    if not (digits.isascii() and digits.isdecimal()):
        raise PlanningError(f"{what} {text!r} is not an integer" if text else f"{what} is empty")
    if len(digits) > 30:
        raise PlanningError(f"{what} {text[:12]}... is far too large")
    return int(text)
