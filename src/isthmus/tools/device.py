"""``isthmus device``: the memory of models on chips, as Qualcomm's own compiler reports it, beside our plan.

The compiler is Qualcomm's and not part of this project: ``pip install 'isthmus[qnn]'`` installs it, under its own
licence. It compiles every model for every chip, VTCM size and level, in processes of their own. Results are kept, so an
interrupted or repeated sweep compiles only what is missing.

Total RAM is op data, constants, DDR tensors, spill-fill, IO and VTCM of all graphs, and shared weights once. For a
context binary (.bin) the figures are read from the file; nothing is compiled.

A CI farm divides a sweep by ``--shard 1/4 --json`` and joins the parts by ``--merge``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import PlanRequest
from isthmus.backends.vendor.chip import chip, chips, library_build
from isthmus.backends.vendor.composition import Composition, compose
from isthmus.backends.vendor.library import VendorLibrary, find
from isthmus.backends.vendor.measurement import (
    Measurement,
    MeasurementCache,
    describe,
    described,
    prepared,
)
from isthmus.backends.vendor.sweep import FarmRunner, Job, LocalRunner, Runner, build_of, sweep
from isthmus.backends.vendor.target import PRECISIONS, ChipTarget
from isthmus.errors import Code, QnnError, counted
from isthmus.frontends import ModelSource
from isthmus.graph import Graph
from isthmus.log import Log
from isthmus.qnn import models
from isthmus.report.device_table import is_row, to_csv, to_text
from isthmus.report.page.tradeoffs import device_sections
from isthmus.system import reading
from isthmus.system.progress import progress
from isthmus.tools.farm import add_farm_options, check_jobs, merged, numbers_of, parse_shard, part_report
from isthmus.tools.files import file_name, written_whole
from isthmus.tools.messages import print_line
from isthmus.tools.report_options import check_report_options, write_page
from isthmus.tools.shapes import add_shape_argument, parse_shape

DEFAULT_CHIP = "SM8750"
DEFAULT_LEVELS = (2, 3)
"""Both are shown unless levels are given: the higher one does not always need less memory."""
MAX_BINARY = 1 << 34


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    kinds = ".onnx, .tflite and .dlc files, model libraries (.so), context binaries (.bin)"
    parser.add_argument("models", nargs="*", type=file_name, metavar="MODEL", help=kinds)
    add_target_arguments(parser)
    add_shape_argument(parser)
    parser.add_argument("--graph", metavar="NAME", help="which graph of a file that holds several (default: all)")
    add_farm_options(parser)
    parser.add_argument("--chips", action="store_true", help="list the chips and their VTCM")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def add_target_arguments(parser: argparse._ActionsContainer) -> None:
    """Add the options that select chips and compiler options to a parser."""
    parser.add_argument("--soc", metavar="CHIP,...", help=f"chips by name or number (default {DEFAULT_CHIP})")
    what = "VTCM sizes in MB, which are 1,048,576 bytes as in QNN (default: all that a chip has)"
    parser.add_argument("--vtcm", metavar="MB,...", help=what)
    levels = ",".join(map(str, DEFAULT_LEVELS))
    parser.add_argument("--level", metavar="N,...", help=f"optimization levels, 1 to 3 (default {levels})")
    parser.add_argument("--precision", choices=list(PRECISIONS), help="of floats (default: the library's)")
    parser.add_argument("--hvx", type=int, metavar="N", help="vector threads (default: the library's)")
    parser.add_argument("--dlbc", action="store_true", help="compress activations in DDR memory")
    parser.add_argument("--library", type=file_name, metavar="FILE", help="Qualcomm's libQnnHtp.so, or its folder")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.chips:
        print_chips(options.json)
        return 0
    if not options.models:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "isthmus device", "names no model", "--chips lists the chips.")
    check_report_options(options, *options.models)
    report = merged(options.models, "device", "library", is_row) if options.merge else measured(options)
    rows = report["rows"]
    if options.csv is not None:
        with written_whole(options.csv, f"'{options.csv}'") as stream:
            stream.write(to_csv(rows).encode())
    if options.html is not None:
        note = f"Compiled by Qualcomm's library, build {report['library']}"
        write_page(options.html, "Memory on the chip", device_sections(rows), note, [{"rows": rows}])
    if options.json:
        print(json.dumps(report))
    else:
        for line in to_text(rows):
            print_line(line)
        print(f"compiled by Qualcomm's library, build {report['library']}; memory in bytes")
    return 1 if any(row["problem"] for row in rows) else 0


def print_chips(as_json: bool) -> None:
    """Print the chips that models can be compiled for."""
    listed = [each for each in chips() if each.vtcm_mb]
    if as_json:
        print(json.dumps({"library": library_build(), "chips": [vars(each) for each in listed]}))
        return
    print(f"{counted(len(listed), 'chip')} with HTP, as known to Qualcomm's library, build {library_build()}")
    print(f"{'number':>8}  {'name':<14}{'arch':>5}{'VTCM':>8}")
    for each in sorted(listed, key=lambda each: (each.arch, each.vtcm_mb, each.soc)):
        print(f"{each.soc:>8}  {each.name or '(no name)':<14}{'v' + str(each.arch):>5}{each.vtcm_mb:>5} MB")


# -- targets -----------------------------------------------------------------------------------------------------------


def targets(options: argparse.Namespace) -> list[ChipTarget]:
    """Return the targets that the options mean, all of them possible."""
    found = []
    for name in (options.soc or DEFAULT_CHIP).split(","):
        known = chip(name)
        for vtcm in _numbers(options.vtcm, "--vtcm") or [known.vtcm_mb]:
            for level in _numbers(options.level, "--level") or DEFAULT_LEVELS:
                target = ChipTarget(known.soc, vtcm, level, options.precision, options.hvx, options.dlbc)
                # A chip without HTP has no VTCM either; the more helpful of both refusals comes first.
                replace(target, vtcm_mb=None).check()
                target.check()
                found.append(target)
    return list(dict.fromkeys(found))


def check(options: argparse.Namespace) -> None:
    """Refuse targets that no chip has, and dimensions that no input has."""
    targets(options)
    for text in options.shape:
        parse_shape(text)


def _numbers(text: str | None, option: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        rule = "must be numbers with commas between them"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"{option} {text}", rule) from None


# -- models ------------------------------------------------------------------------------------------------------------


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the models of a command line for its targets; return the report as plain data."""
    wanted, shard = targets(options), parse_shard(options.shard)
    check_jobs(options)
    library = find(options.library)
    runner: Runner = LocalRunner(library, options.jobs)
    if options.scheduler is not None:
        runner = FarmRunner(options.scheduler, options.library)
    build = build_of(library)
    shapes = dict(parse_shape(text) for text in options.shape)
    jobs: list[Job] = []
    rows: dict[int, dict[str, Any]] = {}
    for path in options.models:
        found = _of_binary(path, library) if _may_be_binary(path) else None
        if found is not None:
            rows[len(rows)] = {"model": str(path), **_row(*found)}
            continue
        graphs = models.load_all(ModelSource(path, shapes or None, graph=options.graph))
        plan = plan_of(graphs)
        compositions, problem = composed(graphs)
        for target in wanted:
            number = len(rows)
            rows[number] = {"model": str(path), **plan, **_row(target, Measurement(build, problem=problem))}
            if not problem:
                jobs.append(Job(number, path.name, prepared(compositions), target))
    sweep_id = hashlib.sha256("".join(job.key(build) for job in jobs).encode()).hexdigest()[:16]
    mine = numbers_of(shard, rows)
    jobs = [job for job in jobs if job.number in mine]
    cache = _NoCache() if options.no_cache else MeasurementCache()
    with progress("compilations", len(jobs)) as work:
        for job, measurement in sweep(jobs, build, cache, runner):
            rows[job.number].update(_row(job.target, measurement))
            work.step(job.title)
    return part_report(shard, sweep_id, {"library": build}, {number: rows[number] for number in mine})


class _NoCache(MeasurementCache):
    """A cache that never has anything, and still keeps what is measured."""

    def get(self, key: str) -> Measurement | None:
        return None


def composed(graphs: Sequence[Graph]) -> tuple[list[Composition], str]:
    """Return the graphs as the compiler takes them, or why it cannot take them."""
    try:
        return [compose(graph) for graph in graphs], ""
    except QnnError as problem:
        return [], problem.rule


def plan_of(graphs: Sequence[Graph]) -> dict[str, Any]:
    """Return what our own plans of the graphs need, as columns of a row; all None if we cannot plan one of them."""
    entry = registry.entry(registry.DEFAULT)
    assert entry.prepare is not None
    try:
        infos = [entry.prepare(graph, entry.read_config(None, Log()), PlanRequest()).info for graph in graphs]
    except QnnError as problem:
        return {"plan_scratch": None, "plan_problem": problem.rule}
    return {
        "plan_scratch": sum(info.memory.scratch_bytes for info in infos),
        "plan_state": sum(info.memory.state_bytes for info in infos),
        "plan_constants": sum(info.memory.constant_bytes for info in infos),
        "plan_io": sum(info.io_bytes for info in infos),
    }


def _may_be_binary(path: Path) -> bool:
    """Return whether a file is none of the model formats that are read here, so that it may be a context binary."""
    if path.suffix.lower() not in (".bin", ""):
        return False
    return not (models.model_library.is_library(path) or frontends.is_tflite(reading.beginning(path, 8)))


def _of_binary(path: Path, library: VendorLibrary) -> tuple[ChipTarget, Measurement] | None:
    """Read the figures of a context binary; return None if the library does not know the file."""
    try:
        description = describe(reading.contents(path, MAX_BINARY), library)
    except QnnError as problem:
        # A library that the file has ended is worth a message; one that refuses it is not.
        if problem.code is Code.COMMON_SYSTEM_COMMUNICATION:
            raise
        return None
    measurement = described(description)
    known = {each.soc for each in chips()}
    figures = measurement.graphs[0].figures if measurement.graphs else None
    target = ChipTarget(
        description["soc"] if description["soc"] in known else None,
        None if figures is None else figures.vtcm >> 20,
        None if figures is None else figures.level,
    )
    return target, measurement


def _row(target: ChipTarget, measurement: Measurement) -> dict[str, Any]:
    """Return the columns of a target and its result."""
    known = target.chip
    row: dict[str, Any] = {
        "chip": "?" if known is None else known.title,
        "arch": None if known is None else known.arch,
        "vtcm_mb": target.vtcm_mb,
        "level": target.level,
        "problem": measurement.problem,
    }
    if not measurement.graphs:
        return row
    figures = [graph.figures for graph in measurement.graphs]
    row |= {
        name: sum(getattr(each, name) for each in figures)
        for name in ("spill_fill", "op_data", "constants", "ddr", "io", "vtcm")
    }
    return row | {
        "shared_weights": max(each.shared_weights for each in figures),
        "total_ram": measurement.total_ram,
        "file_bytes": measurement.file_bytes,
        "finalize_seconds": measurement.finalize_seconds,
        "graphs": [{"name": graph.name, **graph.figures.to_json()} for graph in measurement.graphs],
    }
