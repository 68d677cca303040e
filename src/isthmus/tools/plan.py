"""``isthmus plan``: the memory that a model needs, why it needs that much, and a picture of it, without running it.

The exit status is 1 if the backend reports that the model does not fit its memory.

Graphs of context binaries are planned together: of one binary with several graphs, of several binaries, or of a Genie
bundle. It says what they share, and what they need where no two of them run at once.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.backends.seam.entry import PlanReport
from isthmus.backends.seam.native import check_target
from isthmus.errors import Code, QnnError, counted, invalid_argument
from isthmus.frontends import SELECTING, NeedsStages, contents, staged_model
from isthmus.graph import Graph, GraphInfo, TensorInfo
from isthmus.prepare.schedule import Plan
from isthmus.prepare.tiling import ScratchLimit
from isthmus.report import draw
from isthmus.report.picture import draw_svg
from isthmus.report.text import fact_lines, heading, limit_line, plan_lines, tabulate, tensor_lines
from isthmus.system import reading
from isthmus.tools.files import file_name, refuse_overwrite, write_whole
from isthmus.tools.messages import print_line, print_lines, print_report
from isthmus.tools.model_options import ModelRequest, add_model_options, open_shapes, refuses_shapes, request_of
from isthmus.tools.options import add_shared
from isthmus.tools.report_options import (
    add_html_argument,
    check_report_options,
    describe_plan,
    limits_of,
    memory_sizes,
    other_report,
    write_report,
)

if TYPE_CHECKING:
    from isthmus.frontends.onnx.staged import StagedModel


MAX_COLUMNS = 160
EACH_ALONE = "each stage is judged alone; in a run, the graphs of all stages take such memory together"
"""What a verdict on a memory of limited size leaves out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser)
    what = "further context binaries, or Genie bundles (genie_config.json, or its folder), to plan together"
    parser.add_argument("others", nargs="*", type=file_name, metavar="BINARY", help=what)
    add_shared(parser, "tcm")
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


def _plan_contexts(options: argparse.Namespace) -> int:
    """Run the part of the command for graphs in context binaries, which loads much that other plans do not need."""
    from isthmus.tools import plan_contexts

    return plan_contexts.main(options)


def _is_vendors(path: Path) -> bool:
    """Return whether a file is a context binary of Qualcomm's tools."""
    if path.suffix != ".bin":
        return False
    from isthmus.tools.context_files import is_vendors

    return is_vendors(path)


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.embed is not None:
        _check_embed(options.model, options.embed)
    check_report_options(options, options.model, options.config, *options.others)
    if options.others or options.model.is_dir() or options.model.suffix == ".json":
        return _plan_contexts(options)
    request = request_of(options)
    check(options, request)
    several = request.binary is not None and len(request.binary.graphs) > 1 and options.graph is None
    if several or (request.binary is None and _is_vendors(options.model)):
        return _plan_contexts(options)
    if refuses_shapes(options, options.model):
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
        other = other_report(options, lambda path: _plan(options, request_of(options, path))[0])
        write_report(options.html, report, other)
    if options.svg is not None:
        write_whole(options.svg, f"--svg {options.svg}", draw_svg(plan, options.model.name).encode())
    if options.embed is not None:
        report["embedded"] = write_embedded(options.model, options.embed)
    status = 0 if section is None or section.fits else 1
    if options.json:
        print(json.dumps(report))
        return status
    _print_plan(report, plan, columns)
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


def _print_plan(report: Mapping[str, Any], plan: Plan, columns: int) -> None:
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

    Returns the path of the copy and the facts of `embed_plan`.
    """
    from isthmus.tools.embedding import embed_plan

    planned, facts = embed_plan(contents(model), model.name)
    write_whole(out, f"--embed {out}", planned)
    return {"path": str(out), **facts}


def _check_embed(model: Path, out: Path) -> None:
    """Refuse impossible values of ``--embed`` before planning."""
    what = f"--embed {out}"
    try:
        with reading.open_file(model) as stream:
            head = stream.read(8)
    except OSError:
        return  # loading the model reports what is wrong
    if head[4:] != b"TFL3":
        raise invalid_argument(what, f"only a TFLite file can hold a plan, '{model}' is none")
    refuse_overwrite(what, out, model)
    if out.is_dir():
        raise invalid_argument(what, "it is a directory, not a file")


def print_stages(options: argparse.Namespace, request: ModelRequest, columns: int) -> int:
    """Plan all stages of a model and print them; return the exit status."""
    for name in ("html", "svg", "embed", "compare"):
        if getattr(options, name) is not None:
            rule = "the model runs in stages, and a picture shows one graph"
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--{name} of '{options.model}'", rule)
    report, plans = plan_stages(options, request)
    report["open_shapes"] = open_shapes(options, options.model)
    status = 0 if all(each.section is None or each.section.fits for each in plans) else 1
    print_report(options, report, _lines(report, plans, columns if options.table else 0))
    return status


def _lines(report: Mapping[str, Any], plans: Sequence[PlanReport], columns: int) -> Iterator[str]:
    """Yield the description as text, with the blocks of each stage in tables of so many columns; none for 0."""
    yield f"{heading(report)}, {counted(len(plans), 'stage')}; shapes are the greatest"
    for number, (stage, plan) in enumerate(zip(report["stages"], plans, strict=True), 1):
        steps = counted(stage["steps"], "step")
        yield from fact_lines([(f"stage {number}", stage["scratch_bytes"], f"bytes of scratch, {steps}")])
        yield from tensor_lines(stage, "    ")
        for name in stage["waits_for"]:
            yield f"    then    {name} is read, and decides the shapes behind it"
        for limit in limits_of(plan):
            yield f"    {limit_line(limit)}"
            yield from (f"      {remedy}" for remedy in limit["remedies"])
        if columns and plan.plan.rows:
            yield from ("", *tabulate(plan.plan.rows, columns).splitlines(), "")
    facts = (
        ("scratch", report["scratch_bytes"], "the most of any stage; all stages use it"),
        ("between", report["between_bytes"], "values between stages"),
        ("io", report["io_bytes"], "inputs and outputs"),
        ("constants", report["constant_bytes"], "weights of all stages, once for each combination of shapes in use"),
    )
    yield from fact_lines(facts)
    if any(map(limits_of, plans)):
        yield f"  {EACH_ALONE}"


def plan_stages(options: argparse.Namespace, request: ModelRequest) -> tuple[dict[str, Any], list[PlanReport]]:
    """Plan all stages of a model at their greatest shapes; return the description as plain data, and the plans."""
    began = time.perf_counter()
    model = _model_in_stages(request)
    found = list(model.greatest())
    plans = plan_graphs([stage.graph for stage in found if stage.graph is not None], request, options.target)
    stages: list[dict[str, Any]] = []
    sizes: dict[str, int] = {}
    for stage in found:
        for name, value in stage.stored.items():
            sizes[name] = max(sizes.get(name, 0), value.nbytes)
        for name, array in stage.constants.items():
            sizes[name] = max(sizes.get(name, 0), array.nbytes)
        if stage.graph is None:
            continue
        report = plans[len(stages)]
        info = report.info
        stages.append(
            {
                "steps": len(report.plan.steps),
                "scratch_bytes": info.memory.scratch_bytes,
                "inputs": _describe_tensors(info.inputs),
                "outputs": _describe_tensors(info.outputs),
                "waits_for": [*stage.needed, *sorted(stage.rows)],
                **({} if report.section is None else {request.entry.name: report.section.to_json()}),
            }
        )
    ends = {each.name: math.prod(each.dims) * each.dtype.itemsize for each in model.inputs}
    ends |= {name: sizes.get(name, 0) for name in model.output_names}
    description = {
        "model": str(options.model),
        "backend": request.entry.name,
        "target": plans[0].info.target if plans else "",
        "threads": request.threads,
        "stages": stages,
        "scratch_bytes": max((stage["scratch_bytes"] for stage in stages), default=0),
        "between_bytes": sum(nbytes for name, nbytes in sizes.items() if name not in ends),
        "io_bytes": sum(ends.values()),
        "constant_bytes": sum(plan.info.memory.constant_bytes for plan in plans),
        "seconds": time.perf_counter() - began,
    }
    return description, plans


def graphs_of_stages(request: ModelRequest) -> list[Graph]:
    """Return the graphs of all stages of a model, at their greatest shapes."""
    return [stage.graph for stage in _model_in_stages(request).greatest() if stage.graph is not None]


def _model_in_stages(request: ModelRequest) -> StagedModel:
    """Read a model that runs in stages."""
    accepted = request.entry.accepted
    selects = accepted is None or all(op in accepted.types for op in SELECTING)
    return staged_model(request.source, request.bounds, selects)


def plan_graphs(graphs: Sequence[Graph], request: ModelRequest, target: str | None = None) -> list[PlanReport]:
    """Plan the graphs of all stages. A limit on scratch that is a share is that of the stage with most."""
    if len(graphs) == 1:
        return [request.plan(graphs[0], target)]
    plans = [replace(request, limit=None).plan(graph, target) for graph in graphs]
    limit = request.limit
    if limit is None:
        return plans
    sizes = [plan.info.memory.scratch_bytes for plan in plans]
    most = limit.bytes_of(max(sizes, default=0))
    within = replace(request, limit=limit if most is None else ScratchLimit(most, slower=limit.slower))
    return [
        plan if most is not None and size <= most else within.plan(graph, target)
        for graph, plan, size in zip(graphs, plans, sizes, strict=True)
    ]


def _describe_tensors(infos: tuple[TensorInfo, ...]) -> dict[str, Any]:
    """Return the shapes and types of tensors by name."""
    return {info.name: {"shape": list(info.dims), "dtype": str(info.dtype.numpy)} for info in infos}
