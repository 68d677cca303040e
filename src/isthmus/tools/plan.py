"""``isthmus plan``: the memory that a model needs, why it needs that much, and a picture of it, without running it.

The exit status is 1 if the backend reports that the model does not fit its memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.backends.seam.entry import PlanReport
from isthmus.backends.seam.native import check_target
from isthmus.errors import Code, QnnError
from isthmus.frontends import NeedsStages, contents
from isthmus.graph import GraphInfo
from isthmus.prepare.schedule import Plan
from isthmus.report import draw, tabulate
from isthmus.report.picture import draw_svg
from isthmus.report.text import fact_lines, plan_lines
from isthmus.system import reading
from isthmus.tools.files import file_name, refuse_overwrite, written_whole
from isthmus.tools.library import add_tcm_argument
from isthmus.tools.messages import print_line, print_lines
from isthmus.tools.model_options import ModelRequest, add_model_options, requested
from isthmus.tools.plan_stages import print_stages
from isthmus.tools.report_options import (
    add_html_argument,
    check_report_options,
    describe_plan,
    is_saved,
    memory_sizes,
    read_saved,
    write_report,
)
from isthmus.tools.shapes import open_shapes, refused_shapes

MAX_COLUMNS = 160


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser)
    add_tcm_argument(parser)
    what = "instruction set to plan for, of any machine; plans for simulated devices do not depend on it"
    parser.add_argument("--target", metavar="NAME", help=what)
    add_html_argument(parser)
    parser.add_argument("--svg", type=file_name, metavar="FILE", help="write the memory map as a picture")
    parser.add_argument("--table", action="store_true", help="print every block of scratch")
    parser.add_argument(
        "--embed",
        type=Path,
        metavar="OUT.tflite",
        help="write a copy of a .tflite file with a memory plan for TFLite Micro in it; its operators stay as they are "
        "(isthmus split --embed-plan adds one to a model in tiles)",
    )


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.embed is not None:
        _check_embed(options.model, options.embed)
    check_report_options(options, options.model, options.config)
    request = requested(options)
    check(options, request)
    if refused_shapes(options, options.model):
        return 1
    stored = request.prepared()
    if stored is not None:
        return _print_stored(options, request.entry.name, stored)
    columns = min(shutil.get_terminal_size((80, 24)).columns, MAX_COLUMNS)
    try:
        report, prepared = _plan(options, request)
    except NeedsStages:
        return print_stages(options, request, columns)
    report["open_shapes"] = open_shapes(options, options.model)
    plan, section = prepared.plan, prepared.section
    if options.html is not None:
        write_report(options.html, report, _other(options))
    if options.svg is not None:
        with written_whole(options.svg, f"--svg {options.svg}") as stream:
            stream.write(draw_svg(plan, options.model.name).encode())
    if options.embed is not None:
        report["embedded"] = write_embedded(options.model, options.embed)
    status = 0 if section is None or section.fits else 1
    if options.json:
        print(json.dumps(report))
        return status
    print_report(report, plan, columns)
    if section is not None:
        print("\n" + "\n".join(section.lines()))
    if options.table and plan.rows:
        print(f"\n{tabulate(plan.rows, columns)}")
    return status


def check(options: argparse.Namespace, request: ModelRequest) -> None:
    """Refuse values of this command's own options that are wrong for every model."""
    check_target(options.target)


def _print_stored(options: argparse.Namespace, backend: str, info: GraphInfo) -> int:
    """Print the memory of a graph in a context binary, whose plan is fixed; return the exit status."""
    drawn = "--html" if options.html is not None else "--svg" if options.svg is not None else ""
    if drawn:
        rule, hint = "a context binary has sizes, but no map of its memory", "Draw the model that it was made from."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"{drawn} of '{options.model}'", rule, hint)
    if options.tcm is not None:
        rule = "a context binary is judged when it is run"
        hint = "Plan the model that it was made from with --tcm, or run the binary in TCM with --tcm."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--tcm of '{options.model}'", rule, hint)
    sizes = memory_sizes(info)
    if options.json:
        report = {"model": str(options.model), "backend": backend, "target": info.target, "graph": info.name}
        print(json.dumps({**report, **sizes, "status": "fixed"}))
        return 0
    print_line(f"{options.model} on {backend}, graph '{info.name}' of a context binary: its plan is fixed")
    for line in fact_lines((name.removesuffix("_bytes"), size, "") for name, size in sizes.items()):
        print(line)
    return 0


def _plan(options: argparse.Namespace, request: ModelRequest) -> tuple[dict[str, Any], PlanReport]:
    """Plan a model as the options say; return the description of the plan, and the plan."""
    began = time.perf_counter()
    prepared = request.plan(request.load(), options.target)
    report = describe(request.source.path, request.entry.name, prepared, time.perf_counter() - began)
    if request.limit is not None and request.limit.bytes is not None:
        report["scratch_limit_bytes"] = request.limit.bytes
    if prepared.section is not None:
        report[request.entry.name] = prepared.section.to_json()
    return report, prepared


def _other(options: argparse.Namespace) -> dict[str, Any] | None:
    """Return the report that ``--compare`` names, or plan the model that it names; None without the option."""
    if options.compare is None:
        return None
    if is_saved(options.compare):
        return read_saved(options.compare)
    return _plan(options, requested(options, options.compare))[0]


def describe(model: Path, backend: str, prepared: PlanReport, seconds: float) -> dict[str, Any]:
    """Return the description of a plan as plain data."""
    return {
        "model": str(model),
        "backend": backend,
        "target": prepared.info.target,
        "threads": prepared.threads,
        **describe_plan(prepared.plan, prepared.info),
        "seconds": seconds,
    }


def print_report(report: Mapping[str, Any], plan: Plan, columns: int) -> None:
    """Print the description as text, with the picture."""
    unicode = "utf" in (sys.stdout.encoding or "").lower()
    color = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    print_lines(plan_lines(report, plan.io_inside, columns, unicode))
    # Not part of the plan, which is the same every time.
    spent = f"  planned in {report['plan_seconds'] * 1e3:.1f} ms; {report['seconds']:.2f} s with loading the model"
    print(spent, file=sys.stderr)
    print(f"\n{draw(plan, columns=columns, color=color, unicode=unicode)}")


def write_embedded(model: Path, out: Path) -> dict[str, Any]:
    """Plan TFLite Micro's arena for a TFLite file, and write a copy of the file with that plan.

    Returns the path of the copy and the facts of `embedded`.
    """
    from isthmus.tools.embedding import embedded

    planned, facts = embedded(contents(model), model.name)
    with written_whole(out, f"--embed {out}") as stream:
        stream.write(planned)
    return {"path": str(out), **facts}


def _check_embed(model: Path, out: Path) -> None:
    """Refuse impossible values of ``--embed`` before planning."""
    what = f"--embed {out}"
    try:
        with reading.opened(model) as stream:
            head = stream.read(8)
    except OSError:
        return  # loading the model reports what is wrong
    if head[4:] != b"TFL3":
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, f"only a TFLite file can hold a plan, '{model}' is none")
    refuse_overwrite(what, out, model)
    if out.is_dir():
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, what, "it is a directory, not a file")
