"""The sections of a report: of a plan, of runs, or of both. A report is what a command prints with ``--json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.errors import counted
from isthmus.report import page
from isthmus.report.memory_map import size
from isthmus.report.names import shorten

Report = Mapping[str, Any]
# Maximum characters of a name in a sentence.
_NAME = 60
# The part of the peak from which its largest blocks are named as its cause, and of all memory that weights take.
_MAIN_PART = 0.5


def sections_of(report: Report, number: int | None = 0) -> list[page.Section]:
    """Return the sections of a report, of whatever it has: figures, map, bounds, pools, advice, times, audit.

    - `number`: the report's number on the page, for its map; None for no map.
    """
    found: list[page.Section] = [_figures(report)]
    if number is not None and report.get("tensors"):
        found.append(page.MemoryMap("Scratch over time", number))
    advice = _advice(report)
    if advice:
        found.append(page.Notes("What would help", advice))
    if "greedy_bytes" in report:
        found.append(_bounds(report))
    found.append(_pools(report))
    if _own(report).get("moved"):
        found.append(_movement(report))
    if report.get("operations"):
        found.append(operation_times(report))
    if "audit" in report:
        found += audit_sections(report["audit"])
    return found


def subtitle(report: Report) -> str:
    """Describe in a line for what a report was made."""
    threads = counted(report["threads"], "thread") if report.get("threads") else ""
    steps = counted(report["steps"], "step") if report.get("steps") else ""
    return " · ".join(filter(None, (report.get("backend"), report.get("target"), threads, steps)))


def _figures(report: Report) -> page.Figures:
    """Return the figures at the head: how much memory, where the peak is, and how long a run takes."""
    scratch, constants = report["scratch_bytes"], report["constant_bytes"]
    total = scratch + report["state_bytes"] + constants + _io_outside(report)
    whole = max(total, 1)
    figures = [
        page.Figure("Scratch", scratch, page.BYTES, _proof(report), "", scratch / whole),
        page.Figure("Constants", constants, page.BYTES, "weights", "", constants / whole),
    ]
    if report["state_bytes"]:
        state = report["state_bytes"]
        figures.append(page.Figure("State", state, page.BYTES, "kept from run to run", "", state / whole))
    inside = report["io_bytes"] and not _io_outside(report)
    note = "inside scratch" if inside else "beside scratch"
    figures.append(
        page.Figure("Inputs and outputs", report["io_bytes"], page.BYTES, note, "", _io_outside(report) / whole)
    )
    figures.append(page.Figure("All memory", total, page.BYTES, f"{total:,} bytes"))
    if "latency_ms" in report:
        latency = report["latency_ms"]
        note = f"{latency['p99']:.3f} at p99, {counted(report['runs'], 'run')}"
        figures.append(page.Figure("Time of a run", latency["p50"], page.MILLISECONDS, note))
    if "backend_copied_bytes" in report:
        copied = report["copied_bytes"] + report["backend_copied_bytes"]
        note = "used in place" if not copied else f"by {counted(report['runs'], 'run')}"
        figures.append(page.Figure("Copied", copied, page.BYTES, note, page.GOOD if not copied else page.BAD))
    return page.Figures(figures, note=_summary(report))


def _io_outside(report: Report) -> int:
    """Return the bytes of inputs and outputs that are not in scratch."""
    # Inputs and outputs in scratch live before the first step or after the last one.
    steps = report.get("steps", 0)
    inside = any(each["first"] < 0 or each["last"] >= steps for each in report.get("tensors", ()))
    return 0 if inside else int(report["io_bytes"])


def _proof(report: Report) -> str:
    proofs = {"optimal": "proved optimal", "feasible": f"not proved; bound {report.get('lower_bound', 0):,}"}
    return proofs.get(report.get("status", ""), "")


def _summary(report: Report) -> str:
    """Say in two sentences where the peak is and what causes it."""
    peak = report.get("peak")
    if not peak:
        return ""
    live = sorted(peak["live"], key=lambda each: -each["bytes"])
    part, cause = 0, []
    for each in live:
        part += each["bytes"]
        cause.append(each["name"])
        if part >= _MAIN_PART * peak["live_bytes"]:
            break
    step = shorten([peak["name"]], _NAME)[0]
    text = f"Peak: step {peak['step']} of {report['steps']}, {peak['op']} {step}."
    largest = " and ".join(shorten([name], _NAME)[0] for name in cause)
    share = f"{part / max(peak['live_bytes'], 1):.0%}"
    if len(cause) <= 2:
        return f"{text} {largest} {'holds' if len(cause) == 1 else 'hold'} {share} of it."
    return f"{text} Of {counted(len(live), 'live block')}, the {len(cause)} largest hold {share}."


def _advice(report: Report) -> list[page.Note]:
    """Return what would reduce the memory, as far as the report shows it."""
    notes: list[page.Note] = []
    model = report.get("model", "MODEL")
    for limit in _limits(report):
        if not limit["fits"]:
            # Memory that is not in use is a remark only, and so is what would help to fit it.
            remedies = [f"{remedy[:1].upper()}{remedy[1:]}." for remedy in limit["remedies"]]
            text, own = f"{limit['name']}: {limit['note']}.", limit["applies"]
            notes.append(page.Note(text, "" if own else " ".join(remedies), page.BAD if own else ""))
            notes += [page.Note(remedy) for remedy in remedies if own]
    peak = report.get("peak")
    if peak and report.get("status") == "optimal" and not report.get("regions"):
        notes.append(
            page.Note(
                "No other layout of these blocks is smaller: less scratch needs smaller or fewer tensors at the peak.",
                f"isthmus fit {model} tries tiles and reports what they cost; smaller inputs or data types help too.",
            )
        )
    elif peak and report.get("status") == "feasible":
        gap = report["scratch_bytes"] - report["lower_bound"]
        notes.append(page.Note(f"At most {gap:,} bytes could be saved by another layout of these blocks."))
    for region in report.get("regions", ()):
        tiles = f"{counted(len(region['steps']), 'step')} are computed in {counted(region['tiles'], 'tile')}"
        notes.append(
            page.Note(f"{tiles}; {region['carried_bytes']:,} bytes are carried between tiles.", tone=page.GOOD)
        )
    whole = report["scratch_bytes"] + report["state_bytes"] + report["constant_bytes"] + _io_outside(report)
    if report["constant_bytes"] > _MAIN_PART * whole:
        share = report["constant_bytes"] / whole
        text = f"Weights take {share:.0%} of all memory: smaller weights save more than any plan of scratch."
        notes.append(page.Note(text))
    if report.get("in_float"):
        count = counted(len(report["in_float"]), "step")
        names = ", ".join(shorten([each["name"]], _NAME)[0] for each in report["in_float"][:3])
        notes.append(page.Note(f"{count} of the quantized model compute in float: {names}", tone=page.BAD))
    return notes


def _bounds(report: Report) -> page.Bars:
    """Compare this plan with the lower bound, greedy and no sharing."""
    scratch = report["scratch_bytes"]

    def beside(other: int) -> str:
        return f"{other / scratch:.2f} times this plan" if scratch and other != scratch else "the same as this plan"

    bars = [
        page.Bar("Lower bound", report["lower_bound"], note="no layout of these blocks needs less"),
        page.Bar("This plan", scratch, tone="accent", note=_proof(report)),
        page.Bar("Greedy by size", report["greedy_bytes"], note=beside(report["greedy_bytes"])),
        page.Bar("Without sharing", report["unshared_bytes"], note=beside(report["unshared_bytes"])),
    ]
    note = (
        f"The order of operations saves {report['order_saved_bytes']:,} live bytes at the peak, tensors that share "
        f"memory save {report['aliased_bytes']:,} bytes."
    )
    return page.Bars("This plan and others", bars, note=note)


def _limits(report: Report) -> list[Mapping[str, Any]]:
    """Return the limits of memory that the backend checks, from its own section of the report."""
    return list(_own(report).get("limits", ()))


def _own(report: Report) -> Mapping[str, Any]:
    """Return the backend's own section of the report."""
    own = report.get(report.get("backend", ""), {})
    return own if isinstance(own, Mapping) else {}


def _movement(report: Report) -> page.SortableTable:
    """Show the tensors that move between the fast memory and the slow one because they do not fit the fast one."""
    own = _own(report)
    units = {
        "tensor": page.TEXT, "kind": page.TEXT, "bytes": page.BYTES, "spilled": page.BYTES, "filled": page.BYTES,
        "from": page.TEXT, "to": page.TEXT,
    }  # fmt: skip
    keys = ("name", "kind", "bytes", "spilled", "filled", "first", "last")
    rows = [tuple(each[key] for key in keys) for each in own["moved"]]
    note = (
        f"With {own['vtcm']:,} bytes of VTCM it takes {own['spill_fill']:,} bytes of spill-fill memory, and none with "
        f"{own['enough']:,}. This is a plan of Isthmus: the vendor's compiler plans VTCM in another way."
    )
    return page.SortableTable(
        "Tensors that move between VTCM and DDR memory", page.columns_of(units, ["bytes"]), rows, note
    )


def _pools(report: Report) -> page.Bars:
    """Show the pools, against their limits where they have one."""
    limit = report.get("scratch_limit_bytes")
    bars = [page.Bar("Scratch", report["scratch_bytes"], limit, "" if limit is None else "limit of --scratch-limit")]
    bars += [
        page.Bar(title, report[name])
        for title, name in (("Constants", "constant_bytes"), ("State", "state_bytes"), ("IO", "io_bytes"))
    ]
    bars += [page.Bar(each["name"], each["bytes"], each["limit"], each.get("note", "")) for each in _limits(report)]
    figures = report.get("device", {}).items()
    bars += [page.Bar(f"Device: {name}", value) for name, value in figures if isinstance(value, int)]
    return page.Bars("Pools", bars, note="Bytes of each pool; a mark shows a limit.")


def operation_times(report: Report) -> page.SortableTable:
    """Return the time of each operation, the longest first."""
    times = sorted(report["operations"], key=lambda each: -each["us"])
    total = sum(each["us"] for each in times) or 1.0
    columns = page.columns_of({"operation": page.TEXT, "µs": page.MICROSECONDS, "share": "percent"}, ["µs"])
    rows = [(each["name"], each["us"], each["us"] / total * 100) for each in times]
    note = f"{total / 1e3:.3f} ms in all, measured with a clock between operations."
    return page.SortableTable("Time per operation", columns, rows, note)


def audit_sections(audit: Mapping[str, Any]) -> list[page.Section]:
    """Return what was done with memory, what was copied and why, and the mistakes."""
    done = page.SortableTable(
        "Audit",
        page.columns_of({"event": page.TEXT, "count": page.COUNT, "bytes": page.BYTES}),
        [(each["action"], each["count"], each["bytes"]) for each in audit["totals"]],
        f"{audit['copied_bytes']:,} bytes were copied.",
    )
    found: list[page.Section] = [done]
    if audit["copies"]:
        units = {"tensor": page.TEXT, "bytes": page.BYTES, "copies": page.COUNT, "why": page.TEXT, "remedy": page.TEXT}
        keys = ("tensor", "nbytes", "count", "reason", "remedy")
        rows = [tuple(each[key] for key in keys) for each in audit["copies"]]
        found.append(page.SortableTable("What was copied, and why", page.columns_of(units, ["bytes"]), rows))
    mistakes = [
        page.Note(
            f"{each['kind']}: {each['what']}: {each['rule']}", f"{each['where']} {each['remedy']}".strip(), page.BAD
        )
        for each in audit["mistakes"]
    ]
    found.append(page.Notes("Mistakes", mistakes or [page.Note("None.", tone=page.GOOD)]))
    return found


# -- two reports -------------------------------------------------------------------------------------------------------

# The figures of two reports that are compared: the title and the unit of each.
_COMPARED = {
    "scratch_bytes": ("Scratch", page.BYTES),
    "lower_bound": ("Lower bound", page.BYTES),
    "greedy_bytes": ("Greedy by size", page.BYTES),
    "state_bytes": ("State", page.BYTES),
    "io_bytes": ("Inputs and outputs", page.BYTES),
    "constant_bytes": ("Constants", page.BYTES),
    "steps": ("Steps", page.COUNT),
    "backend_copied_bytes": ("Copied by the backend", page.BYTES),
}


def sections_of_both(first: Report, second: Report) -> list[page.Section]:
    """Return the sections that show two reports side by side: their figures, maps of one scale, what changed."""
    rows: list[Sequence[float | str | None]] = []
    for key, (title, _) in _COMPARED.items():
        if key in first and key in second:
            a, b = first[key], second[key]
            rows.append((title, a, b, b - a, f"{(b - a) / a:+.1%}" if a and b != a else ""))
    for a, b in _latencies(first, second):
        rows.append(("Time of a run, µs", a, b, b - a, f"{(b - a) / a:+.1%}" if a else ""))
    names = names_of(first, second)
    columns = [
        page.Column("figure"),
        *(page.Column(name, page.COUNT) for name in (*names, "difference")),
        page.Column("relative"),
    ]
    found: list[page.Section] = [
        page.Figures([
            page.Figure(names[0], first["scratch_bytes"], page.BYTES, "scratch"),
            page.Figure(names[1], second["scratch_bytes"], page.BYTES, "scratch", _tone(first, second)),
        ], note=_difference(first, second, names)),
        page.SortableTable("Figures", columns, rows, "Memory in bytes."),
    ]  # fmt: skip
    scale = max(first["scratch_bytes"], second["scratch_bytes"])
    sides: list[list[page.Section]] = [
        [page.MemoryMap("", number, scale)] if report.get("tensors") else []
        for number, report in enumerate((first, second))
    ]
    if all(sides):
        found.append(page.SideBySide("Scratch over time, on one scale", names, *sides))
    if first.get("operations") and second.get("operations"):
        found.append(_times_beside(first, second, names))
    return found


def names_of(first: Report, second: Report) -> tuple[str, str]:
    """Return names that tell two reports apart: the models, with the backends if the models are the same."""
    names = [str(report["model"]).rpartition("/")[2] for report in (first, second)]
    if names[0] == names[1]:
        names = [f"{name} on {report.get('backend')}" for name, report in zip(names, (first, second), strict=True)]
    if names[0] == names[1]:
        names = [f"{names[0]} (first)", f"{names[1]} (second)"]
    return names[0], names[1]


def _latencies(first: Report, second: Report) -> list[tuple[float, float]]:
    """Return the median times of two reports in microseconds, if both have one."""
    if "latency_ms" in first and "latency_ms" in second:
        return [(first["latency_ms"]["p50"] * 1e3, second["latency_ms"]["p50"] * 1e3)]
    return []


def _tone(first: Report, second: Report) -> str:
    a, b = first["scratch_bytes"], second["scratch_bytes"]
    return "" if a == b else page.GOOD if b < a else page.BAD


def _difference(first: Report, second: Report, names: tuple[str, str]) -> str:
    """Say which of two reports needs less scratch."""
    a, b = first["scratch_bytes"], second["scratch_bytes"]
    if a == b:
        return "Both need the same scratch."
    less = names[0] if a < b else names[1]
    return f"{less} needs {abs(b - a):,} bytes ({size(abs(b - a))}) less scratch."


def _times_beside(first: Report, second: Report, names: tuple[str, str]) -> page.SortableTable:
    """Return the times of operations of two reports beside each other, by name."""
    times = [{each["name"]: each["us"] for each in report["operations"]} for report in (first, second)]
    rows = [(name, times[0].get(name), times[1].get(name)) for name in dict.fromkeys((*times[0], *times[1]))]
    rows.sort(key=lambda row: -max(row[1] or 0, row[2] or 0))
    columns = page.Column("operation"), *(page.Column(f"{name}, µs", page.MICROSECONDS, bar=True) for name in names)
    return page.SortableTable("Time per operation", columns, rows)
