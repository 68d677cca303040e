"""The options ``--html``, ``--compare`` and ``--svg``, and the pages that commands write for them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import invalid_argument
from isthmus.report.links import step_links
from isthmus.tools.files import (
    file_name,
    refuse_overwrite,
    refuse_shared,
    refuse_unreadable,
    refuse_unwritable,
    write_whole,
)

if TYPE_CHECKING:
    from isthmus.backends.seam.entry import PlanReport
    from isthmus.graph import GraphInfo
    from isthmus.memory.auditing import AuditLog
    from isthmus.prepare.schedule import Plan
    from isthmus.report.page import Section

MAX_REPORT = 1 << 28
"""Maximum size of a saved report in bytes."""
SAVED_ONLY = "a saved page or the output of --json (.html, .json)"
ANY = f"another model, or {SAVED_ONLY},"
"""What ``--compare`` may name."""
SAVED = (".html", ".htm", ".json")
"""The endings of saved reports; any other file that ``--compare`` names is a model."""


def add_html_argument(
    parser: argparse.ArgumentParser, compare: str = ANY, shown: str = "figures and the memory map"
) -> None:
    """Add ``--html`` and ``--compare`` to a parser.

    - `compare`: with what ``--compare`` compares, empty if the command cannot compare.
    - `shown`: what the page has.
    """
    parser.add_argument("--html", type=file_name, metavar="FILE", help=f"write a page with {shown}")
    if compare:
        text = f"with --html: show {compare} side by side"
        parser.add_argument("--compare", type=file_name, metavar="OTHER", help=text)


# The options of commands that name a file to write.
_WRITTEN = ("html", "svg", "trace", "csv", "outputs", "embed", "out")


def check_report_options(options: argparse.Namespace, *inputs: Path | None) -> None:
    """Refuse ``--compare`` without ``--html``, and a page or another file that cannot be written.

    Neither may a file overwrite an input, or another output.
    """
    compare = getattr(options, "compare", None)
    if compare is not None and options.html is None:
        raise invalid_argument(f"--compare {compare}", "needs --html FILE")
    outputs = {f"--{name}": getattr(options, name, None) for name in _WRITTEN}
    refuse_shared(outputs)
    for option, path in outputs.items():
        refuse_overwrite(f"{option} {path}", path, *inputs, compare)
        refuse_unwritable(f"{option} {path}", path)


def is_saved(path: Path) -> bool:
    """Return whether a file that ``--compare`` names is a saved report, by its ending."""
    return path.suffix.lower() in SAVED


def read_saved(path: Path) -> dict[str, Any]:
    """Return the report of a saved page or of a command's JSON."""
    from isthmus.report.page.saved import saved_report
    from isthmus.system import reading

    what = f"--compare {path}"
    with refuse_unreadable(what, path):
        text = reading.contents(path, MAX_REPORT).decode(errors="replace")
    return saved_report(text, what)


def other_report(options: argparse.Namespace, describe: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
    """Return the report that ``--compare`` names, or that of the model that it names; None without the option."""
    if options.compare is None:
        return None
    return read_saved(options.compare) if is_saved(options.compare) else describe(options.compare)


def write_page(
    path: Path, title: str, sections: Sequence[Section], subtitle: str = "", reports: Sequence[Mapping[str, Any]] = ()
) -> None:
    """Write a page of sections."""
    from isthmus.report.page import page

    write_whole(path, f"--html {path}", page(title, sections, subtitle=subtitle, reports=reports).encode())


def write_report(path: Path, report: Mapping[str, Any], other: Mapping[str, Any] | None = None) -> None:
    """Write the page of a report, or of a report and another one beside it."""
    from isthmus.report.page.reports import names_of, sections_of, sections_of_both, subtitle

    if other is None:
        write_page(path, Path(report["model"]).name, sections_of(report), subtitle(report), [report])
        return
    # The maps are side by side already.
    is_drawn = bool(report.get("tensors") and other.get("tensors"))
    sections = [*sections_of_both(report, other), *sections_of(report, None if is_drawn else 0)]
    write_page(path, " and ".join(names_of(report, other)), sections, subtitle(report), [report, other])


def limits_of(prepared: PlanReport) -> list[dict[str, Any]]:
    """Return the limits of memory in the backend's own section of a plan."""
    return [] if prepared.section is None else list(prepared.section.limits)


def memory_sizes(info: GraphInfo) -> dict[str, int]:
    """Return the bytes of a graph's pools as a report has them."""
    return {
        "scratch_bytes": info.memory.scratch_bytes,
        "state_bytes": info.memory.state_bytes,
        "io_bytes": info.io_bytes,
        "constant_bytes": info.memory.constant_bytes,
    }


def describe_plan(plan: Plan, info: GraphInfo) -> dict[str, Any]:
    """Return the description of a plan as plain data."""
    peak = None
    if 0 <= plan.peak_step < len(plan.steps):
        live = [row for row in plan.rows if row.first <= plan.peak_step <= row.last]
        op, name = plan.steps[plan.peak_step]
        peak = {
            "step": plan.peak_step,
            "op": op,
            "name": name,
            "live_bytes": sum(row.bytes for row in live),
            "live": [{"name": row.name, "bytes": row.bytes, "offset": row.offset} for row in live],
        }
    links = [asdict(each) for each in step_links(plan)] or [{} for _ in plan.steps]
    sizes = ("greedy_bytes", "unshared_bytes", "order_saved_bytes", "aliased_bytes", "fp16_bytes", "float_bytes")
    return {
        "steps": len(plan.steps),
        **memory_sizes(info),
        "scratch_bytes": plan.bytes,
        "status": plan.status,
        **{name: getattr(plan, name) for name in ("lower_bound", *sizes)},
        "in_float": [{"op": op, "name": name} for op, name in plan.in_float],
        "peak": peak,
        "regions": [
            {
                "steps": [name for _, name in region.steps],
                "tiles": len(region.tiles),
                "repeated": region.repeated[1],
                "carried_bytes": region.carried_bytes,
                "first": region.first,
                "last": region.last,
            }
            for region in plan.regions
        ],
        "rematerialized": list(plan.rematerialized),
        "search_bounded": plan.bounded,
        "plan_seconds": plan.seconds,
        # What each step computes, after which steps, and which blocks of scratch it uses.
        "order": [{"op": op, "name": name, **more} for (op, name), more in zip(plan.steps, links, strict=True)],
        "tensors": [dict(vars(row)) for row in plan.rows],
    }


def describe_audit(log: AuditLog) -> dict[str, Any]:
    """Return an audit as plain data, with sums instead of single events."""
    totals: dict[str, tuple[int, int]] = {}
    for event in log.events:
        count, nbytes = totals.get(event.action.value, (0, 0))
        totals[event.action.value] = count + 1, nbytes + event.nbytes
    data = log.as_data()
    del data["events"]
    return {**data, "totals": [{"action": name, "count": c, "bytes": b} for name, (c, b) in totals.items()]}
