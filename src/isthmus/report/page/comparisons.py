"""The sections of a comparison: which operations differ, by how much, and which is the first that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import counted
from isthmus.report import page
from isthmus.report.findings import apart, beyond, reasons, saturation_remark
from isthmus.report.names import shorten
from isthmus.report.page.reports import operation_times

# Maximum characters of a name in a sentence, and in a figure.
_NAME, _BRIEF = 80, 20
# How many operations that saturate are described.
_MAX_SATURATED = 10
# The largest difference, as a fraction of the reference's largest value, that a profile draws.
_MAX_DRAWN = 1e3


def comparison_sections(data: Mapping[str, Any]) -> list[page.Section]:
    """Return the sections of what ``isthmus compare --json`` prints."""
    suspects = {row["tensor"]: row for row in data["suspects"]}
    # An operation inside a fused one has its own figures only if it is wrong.
    rows = [suspects.get(row["tensor"], row) for row in data["tensors"]]
    names = {row["operation"] for row in data["suspects"]}
    tones = [page.BAD if row["tensor"] in suspects or names.intersection(row["fused"]) else "" for row in rows]
    found: list[page.Section] = [_figures(data)]
    if data["suspects"]:
        found.append(page.Notes("Operations that are wrong", [_suspect(row) for row in data["suspects"]]))
    saturated = [row for row in data["tensors"] if row["saturation"] and row not in data["suspects"]]
    if saturated:
        found.append(_saturation_notes(saturated))
    points = [_point(row, tone) for row, tone in zip(rows, tones, strict=True) if row["in_model"] or row["alone"]]
    if any(point.value or point.alone for point in points):
        note = "The largest difference as a fraction of the reference's largest value, in the order of the model."
        found.append(page.ErrorProfile("Differences along the model", points, note))
    if data.get("reduced"):
        found.append(_reduction_notes(data["reduced"]))
    if data.get("operations"):
        found.append(operation_times(data))
    found.append(_tensors(rows, tones))
    return found


def comparison_subtitle(data: Mapping[str, Any]) -> str:
    """Describe in a line what was compared."""
    return f"{data['backend']}, compared with {data['reference']}"


def _figures(data: Mapping[str, Any]) -> page.Figures:
    """Return the figures at the head: the first operation that is wrong, how many are, the largest difference."""
    suspects, inside = data["suspects"], data["fused"]
    if suspects:
        first = suspects[0]
        summary = f"{_operation(first)} is the first operation that is wrong. {_how(first)}"
        figures = [
            page.Figure(
                "First wrong operation", _short(first["operation"], _BRIEF), note=first["verdict"], tone=page.BAD
            )
        ]
    else:
        summary = "Every operation alone computes what the reference computes."
        figures = [page.Figure("Verdict", "agrees", note="within the tolerance of each operation", tone=page.GOOD)]
    figures.append(page.Figure("Wrong operations", len(suspects), page.COUNT, tone=page.BAD if suspects else page.GOOD))
    note = f"{counted(inside, 'other')} inside fused operations" if inside else ""
    figures.append(page.Figure("Tensors compared", data["compared"], page.COUNT, note))
    measured = [row for row in data["tensors"] if row["in_model"]]
    if measured:
        largest = max(measured, key=lambda row: float(row["in_model"]["relative"]))
        value, where = _number(largest["in_model"]["relative"]), f"in {_short(largest['tensor'], _BRIEF)}"
        note = where if isinstance(value, str) else f"of the largest value, {where}"
        figures.append(page.Figure("Largest difference", value, page.REAL, note))
    return page.Figures(figures, note=summary)


def _suspect(row: Mapping[str, Any]) -> page.Note:
    """Describe one wrong operation."""
    fused = ", ".join(_short(name, _NAME) for name in row["fused"])
    together = f" It is computed in one step with {fused}." if fused else ""
    return page.Note(f"{_operation(row)}: {row['verdict']}", f"{_how(row)}{together}", page.BAD)


def _how(row: Mapping[str, Any]) -> str:
    """Say why an operation is wrong, in sentences."""
    return " ".join(f"{reason[:1].upper()}{reason[1:]}." for reason in reasons(row))


def _saturation_notes(rows: Sequence[Mapping[str, Any]]) -> page.Notes:
    """Describe operations that saturate without being at fault, those that exceed their range most first."""
    rows = sorted(rows, key=lambda row: -float(row["saturation"]["span"]))
    notes = [page.Note(f"{_operation(row)}: {beyond(row['saturation'])}") for row in rows[:_MAX_SATURATED]]
    more = len(rows) - len(notes)
    rest = [page.Note(f"and {more:,} more, which the table of tensors has")] if more else []
    return page.Notes("Operations that saturate", [page.Note(f"{saturation_remark(len(rows))}."), *notes, *rest])


def _point(row: Mapping[str, Any], tone: str) -> page.ErrorPoint:
    """Return a tensor as a point of the profile."""
    lines = [f"tensor {row['tensor']}: {row['verdict']}"]
    lines += [f"in the model: {apart(row['in_model'])}"] if row["in_model"] else []
    lines += [f"alone: {apart(row['alone'])}"] if row["alone"] else []
    value, alone = (
        min(float(each["relative"]), _MAX_DRAWN) if each else None for each in (row["in_model"], row["alone"])
    )
    return page.ErrorPoint(_operation(row), lines, value, alone, tone)


def _reduction_notes(reduced: Mapping[str, Sequence[str]]) -> page.Notes:
    """Name the smallest model that differs."""
    names = ", ".join(_short(name, _NAME) for name in reduced["operations"])
    return page.Notes("Reduced model", [page.Note(f"{counted(len(reduced['operations']), 'operation')}: {names}",
                                        f"Written: {', '.join(reduced['files'])}")])  # fmt: skip


def _tensors(rows: Sequence[Mapping[str, Any]], tones: Sequence[str]) -> page.SortableTable:
    """Return all tensors as a table; the rows of operations that are wrong stand out."""
    reals = dict.fromkeys(("relative", "max abs", "rms", "steps", "alone", "tolerance"), page.REAL)
    texts = dict.fromkeys(("operation", "tensor", "verdict"), page.TEXT)
    columns = page.columns_of({**texts, **reals, "beyond": page.COUNT, "type": page.TEXT})
    cells = []
    for row in rows:
        there, alone, saturation = (row[key] or {} for key in ("in_model", "alone", "saturation"))
        numbers = [_number(there.get(key)) for key in ("relative", "max_abs", "rms", "steps")]
        numbers += [_number(alone.get("max_abs")), row["tolerance"] if alone else None, saturation.get("count")]
        kind = f"{row['dtype']} {'x'.join(map(str, row['shape']))}"
        operation = f"{row['operation']} ({row['kind']})"
        cells.append((operation, row["tensor"], row["verdict"], *numbers, kind))
    used = [k for k in range(len(columns)) if any(row[k] is not None for row in cells)]
    note = "In the order of the model. Differences are of the whole run; alone is max abs of the operation alone."
    if any(row["saturation"] for row in rows):
        note += " Beyond counts the values that the operation's quantizer cannot represent."
    return page.SortableTable(
        "Tensors", [columns[k] for k in used], [[row[k] for k in used] for row in cells], note, tones
    )


def _operation(row: Mapping[str, Any]) -> str:
    """Name an operation and its kind."""
    return f"{_short(row['operation'], _NAME)} ({row['kind']})"


def _short(name: str, length: int) -> str:
    return shorten([name], length)[0]


def _number(value: Any) -> Any:
    """Return a number as a page shows it; one that JSON lacks is a text."""
    return "infinite" if isinstance(value, str) else value
