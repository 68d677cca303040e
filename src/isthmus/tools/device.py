"""``isthmus device``: the memory of a model on chips, as Qualcomm's own compiler reports it, beside our plan.

The compiler is Qualcomm's and not part of this project: ``pip install 'isthmus[qnn]'`` installs it, under its own
licence. It compiles the model for every chip, VTCM size and level, in processes of their own. Results are kept, so an
interrupted or repeated command compiles only what is missing.

Total RAM is op data, constants, DDR tensors, spill-fill, IO and VTCM of all graphs, and shared weights once. For a
context binary (.bin) the figures are read from the file; nothing is compiled.

``isthmus sweep --mode device`` measures many models, and writes CSV and pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from isthmus import frontends
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import PlanRequest
from isthmus.backends.vendor.composition import Composition, compose
from isthmus.backends.vendor.library import VendorLibrary, find
from isthmus.backends.vendor.measurement import (
    Compilation,
    Measurement,
    MeasurementCache,
    build_of,
    describe_file,
    figures_of,
    measure_all,
    prepared,
)
from isthmus.backends.vendor.simulated import spill_fill_here
from isthmus.backends.vendor.target import PRECISIONS, Chip, ChipTarget, chip, chips, library_build
from isthmus.compiled.folder import Folder
from isthmus.errors import QnnError, counted, invalid_argument
from isthmus.frontends import ModelSource
from isthmus.graph import Graph
from isthmus.log import Log
from isthmus.qnn import models
from isthmus.report.rows import device_lines
from isthmus.system import reading
from isthmus.tools.files import file_name
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import parse_shape, shapes_of
from isthmus.tools.options import add_shared

DEFAULT_CHIP = "SM8750"
DEFAULT_LEVELS = (2, 3)
"""Both are shown unless levels are given: the higher one does not always need less memory."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    kinds = "a .onnx, .tflite or .dlc file, a model library (.so) or a context binary (.bin)"
    parser.add_argument("model", nargs="?", type=file_name, metavar="MODEL", help=kinds)
    add_target_arguments(parser)
    add_shared(parser, "shape", "json")
    parser.add_argument("--graph", metavar="NAME", help="which graph of a file that holds several (default: all)")
    parser.add_argument("--no-cache", action="store_true", help="compile again what was compiled before")
    parser.add_argument("--chips", action="store_true", help="list the chips and their VTCM")


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
    add_shared(parser, "jobs")


def check_jobs(jobs: int) -> None:
    """Refuse a negative number of processes."""
    if jobs < 0:
        raise invalid_argument(f"--jobs {jobs}", "must not be negative")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.chips:
        listed = [each for each in chips() if each.vtcm_mb]
        print_report(
            options, {"library": library_build(), "chips": [vars(each) for each in listed]}, _chip_lines(listed)
        )
        return 0
    if options.model is None:
        raise invalid_argument("isthmus device", "names no model", "--chips lists the chips.")
    report = measure_model(options)
    source = f"compiled by Qualcomm's library, build {report['library']}; memory in bytes"
    print_report(options, report, (*device_lines(report["rows"]), source))
    return 1 if any(row["problem"] for row in report["rows"]) else 0


def _chip_lines(listed: Sequence[Chip]) -> Iterator[str]:
    """Yield the chips that models can be compiled for as text."""
    yield f"{counted(len(listed), 'chip')} with HTP, as known to Qualcomm's library, build {library_build()}"
    yield f"{'number':>8}  {'name':<14}{'arch':>5}{'VTCM':>8}"
    for each in sorted(listed, key=lambda each: (each.arch, each.vtcm_mb, each.soc)):
        yield f"{each.soc:>8}  {each.name or '(no name)':<14}{'v' + str(each.arch):>5}{each.vtcm_mb:>5} MB"


# -- targets -----------------------------------------------------------------------------------------------------------


def targets(options: argparse.Namespace) -> list[ChipTarget]:
    """Return the targets that the options mean, all of them possible."""
    check_jobs(options.jobs)
    found = []
    for name in (options.soc or DEFAULT_CHIP).split(","):
        named = chip(name)
        for vtcm in _numbers(options.vtcm, "--vtcm") or [named.vtcm_mb]:
            for level in _numbers(options.level, "--level") or DEFAULT_LEVELS:
                target = ChipTarget(named.soc, vtcm, level, options.precision, options.hvx, options.dlbc)
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
        raise invalid_argument(f"{option} {text}", "must be numbers with commas between them") from None


# -- the model ---------------------------------------------------------------------------------------------------------


def measure_model(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the model of a command line for its targets; return the report as plain data."""
    chosen, path = targets(options), options.model
    library = find(options.library)
    build = build_of(library)
    found = _of_binary(path, library) if _may_be_binary(path) else None
    plan: dict[str, Any] = {}
    moved: dict[int | None, dict[str, int]] = {}
    if found is not None:
        results = [found]
    else:
        shapes = shapes_of(options)
        graphs = models.load_all(ModelSource(path, shapes or None, graph=options.graph))
        plan = plan_of(graphs)
        moved = {size: movement_of(graphs, size) for size in dict.fromkeys(target.vtcm_mb for target in chosen)}
        compositions, problem = compose_all(graphs)
        if problem:
            measurements = [Measurement(build, problem=problem)] * len(chosen)
        else:
            content = prepared(compositions)
            jobs = [Compilation(path.name, content, target) for target in chosen]
            measurements = measure_all(jobs, library, build, measurement_cache(options.no_cache), options.jobs)
        results = list(zip(chosen, measurements, strict=True))
    rows = [
        {"model": str(path), **plan, **moved.get(target.vtcm_mb, {}), **_row(target, measurement)}
        for target, measurement in results
    ]
    return {"library": build, "rows": rows}


def measurement_cache(fresh: bool = False) -> MeasurementCache:
    """Return the measurements in the user's cache folder."""
    return MeasurementCache(Folder.of_user().path / "device", fresh)


def compose_all(graphs: Sequence[Graph]) -> tuple[list[Composition], str]:
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


def movement_of(graphs: Sequence[Graph], vtcm_mb: int | None) -> dict[str, int]:
    """Return what our own plans of the graphs move between VTCM and DDR memory, as columns of a row."""
    found = {} if vtcm_mb is None else spill_fill_here(graphs, vtcm_mb)
    return {f"plan_{name}": value for name, value in found.items()}


def _may_be_binary(path: Path) -> bool:
    """Return whether a file is none of the model formats that are read here, so that it may be a context binary."""
    if path.suffix.lower() not in (".bin", ""):
        return False
    return not (frontends.is_library(path) or frontends.is_tflite(reading.beginning(path, 8)))


def _of_binary(path: Path, library: VendorLibrary) -> tuple[ChipTarget, Measurement] | None:
    """Read the figures of a context binary; return None if the library does not know the file."""
    description = describe_file(path, library)
    if description is None:
        return None
    measurement = figures_of(description)
    numbers = {each.soc for each in chips()}
    figures = measurement.graphs[0].figures if measurement.graphs else None
    target = ChipTarget(
        description["soc"] if description["soc"] in numbers else None,
        None if figures is None else figures.vtcm >> 20,
        None if figures is None else figures.level,
    )
    return target, measurement


def _row(target: ChipTarget, measurement: Measurement) -> dict[str, Any]:
    """Return the columns of a target and its result."""
    device = target.chip
    row: dict[str, Any] = {
        "chip": "?" if device is None else device.title,
        "arch": None if device is None else device.arch,
        "vtcm_mb": target.vtcm_mb,
        "level": target.level,
        "build": measurement.build,
        "problem": measurement.problem,
    }
    if not measurement.graphs:
        return row
    figures = [graph.figures for graph in measurement.graphs]
    row |= {
        name: sum(getattr(each, name) for each in figures)
        for name in ("spill_fill", "op_data", "constants", "ddr", "io", "vtcm")
    }
    traffic = measurement.traffic
    return (
        row
        | ({} if traffic is None else asdict(traffic))
        | {
            "shared_weights": max(each.shared_weights for each in figures),
            "total_ram": measurement.total_ram,
            "file_bytes": measurement.file_bytes,
            "finalize_seconds": measurement.finalize_seconds,
            "graphs": [{"name": graph.name, **graph.figures.to_json()} for graph in measurement.graphs],
        }
    )
