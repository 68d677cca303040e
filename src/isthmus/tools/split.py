"""``isthmus split``: rewrite a model file to need less memory in runtimes that follow its order; same results.

Regions of the model are rewritten as nodes that each compute some rows, with slices and joins of rows between them. The
format, ONNX or TFLite, and the names, inputs and outputs stay the same. Bytes are counted as they are alive in a plain
runtime, where every result has its own memory; for a TFLite file including inputs and outputs, for an ONNX file without
them.

``--out`` writes the model in tiles; without it, the command only reports. If no tiling needs less memory, nothing is
written, and the exit status is 1. With ``--embed-plan`` a TFLite file also gets a memory plan for TFLite Micro.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from isthmus.errors import Code, QnnError, counted, invalid_argument
from isthmus.frontends import DLC_MAGIC, LIBRARY_MAGIC, contents, is_model, is_tflite, unknown_format
from isthmus.prepare.tiling import ScratchLimit
from isthmus.qnn.models import refuse_binary
from isthmus.report.text import Fact, fact_lines
from isthmus.split.onnx import OnnxFile
from isthmus.split.search import Split, split
from isthmus.split.tflite import TfliteFile
from isthmus.system.progress import stages
from isthmus.tools.embedding import embed_plan
from isthmus.tools.files import file_name, write_whole
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import shapes_of
from isthmus.tools.options import add_shared
from isthmus.tools.report_options import check_report_options

_READING, _SEARCHING, _WRITING = "read the model", "search for regions", "write the model in tiles"
# The stages of the command, for its progress.
_CHECKING = "compare both files"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("model", type=file_name, metavar="MODEL", help="a .tflite or .onnx file")
    what = "write the model in tiles here, in the same format"
    parser.add_argument("--out", type=file_name, metavar="FILE", help=what)
    what = "maximum live memory: a SIZE, a percentage of what is alive now (25%%), or 'least' (the default)"
    parser.add_argument("--live-limit", default="least", metavar="LIMIT", help=what)
    add_shared(parser, "shape")
    what = (
        "put a memory plan for TFLite Micro in the .tflite file of --out too, for its tiles "
        "(isthmus plan --embed writes a model that is not split with such a plan)"
    )
    parser.add_argument("--embed-plan", action="store_true", help=what)
    parser.add_argument(
        "--check", action="store_true", help="compare both files in ONNX Runtime or LiteRT, if installed"
    )
    add_shared(parser, "json")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    model, out = options.model, options.out
    check_report_options(options, model)
    limit = _limit(options.live_limit)
    with stages((_READING, _SEARCHING, _WRITING, *[_CHECKING] * options.check)) as begin:
        begin(_READING)
        data = contents(model)
        if not is_model(data[:8]):
            refuse_binary(model)
            raise unknown_format(model, data)
        if data.startswith((DLC_MAGIC, LIBRARY_MAGIC)):
            raise QnnError(Code.COMMON_NOT_SUPPORTED, f"'{model}'", "only .onnx and .tflite files can be split")
        of_tflite = is_tflite(data)
        _refuse(options, of_tflite)
        shapes = shapes_of(options)
        file: OnnxFile | TfliteFile
        # The dimensions that inputs with open ones get, by name.
        fixed = {}
        if of_tflite:
            file = TfliteFile(data, model.name)
        else:
            file = OnnxFile(data, model.name, model.parent, shapes)
            fixed = {name: list(dims) for name, dims in file.fixed.items()}
            if file.external and out is not None and out.resolve().parent != model.resolve().parent:
                rule = f"weights of '{model.name}' are in files beside it"
                raise invalid_argument(f"--out {out}", rule, "Write the split file beside them too.")
        begin(_SEARCHING)
        what = f"'{model.name}' under {options.live_limit}"
        result = split(file.network, limit.bytes_of(file.network.peak), what)
        problem = _unsplit(result, limit.bytes_of(file.network.peak))
        begin(_WRITING)
        written = data if problem else file.write(result.network, result.instructions)
        plan = None
        if options.embed_plan and not problem:
            written, plan = embed_plan(written, model.name if out is None else out.name)
        report = describe(options, result, len(file.network.steps), len(data), len(written))
        report |= {"fixed_shapes": fixed, "problem": problem}
        if problem:
            report["out"] = None
        if plan is not None:
            report["embedded"] = plan
        if options.check and not problem:
            from isthmus.split.runtimes import compare_onnx, compare_tflite

            begin(_CHECKING)
            compared = compare_tflite(data, written) if of_tflite else compare_onnx(data, written, folder=model.parent)
            report["same_bits"] = {title: one.same_bits for title, one in compared.items()}
            report["largest_difference"] = {title: one.largest for title, one in compared.items()}
            report["checked"] = "; ".join(f"{title}: {one}" for title, one in compared.items())
    if out is not None and not problem:
        write_whole(out, f"--out {out}", written)
    print_report(options, report, _lines(report))
    return 0 if all(report.get("same_bits", {}).values()) and not problem else 1


def describe(
    options: argparse.Namespace, result: Split, steps: int, before_bytes: int, after_bytes: int
) -> dict[str, Any]:
    """Return the description of the result as plain data.

    - `steps`: number of operations in the model.
    - `before_bytes`, `after_bytes`: the sizes of both files.
    """
    names = [step.name for step in result.network.steps]
    return {
        "model": str(options.model),
        "out": None if options.out is None else str(options.out),
        "live_bytes_before": result.before,
        "live_bytes_after": result.after,
        "operations_before": steps,
        "operations_after": len(result.instructions),
        "file_bytes_before": before_bytes,
        "file_bytes_after": after_bytes,
        "holding": result.holding,
        "runs": [
            {"first": names[run.first], "last": names[run.last], "steps": run.last - run.first + 1, "tiles": run.count}
            for run in result.regions
        ],
    }


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the description as text."""
    if report["problem"]:
        yield f"{report['model']}: nothing is split, and nothing is written: {report['problem']}"
    else:
        yield ": ".join(filter(None, (f"{report['model']} in tiles", report["out"])))
    yield from fact_lines(_facts(report))
    if report["out"] is None and not report["problem"]:
        yield "--out FILE writes it"


def _facts(report: dict[str, Any]) -> Iterator[Fact]:
    """Yield what was split and what that saves."""
    before, after = report["live_bytes_before"], report["live_bytes_after"]
    share = f" ({after / before:.0%})" if before else ""
    yield "alive", before, f"bytes at most before, {after:,} now{share}"
    yield "nodes", report["operations_before"], f"before, {report['operations_after']:,} now"
    yield "file", report["file_bytes_before"], f"bytes before, {report['file_bytes_after']:,} now"
    for name, dims in report["fixed_shapes"].items():
        yield "fixed", None, f"{name} at {dims}, some of which the model leaves open (--shape)"
    for run in report["runs"]:
        yield "tiles", run["tiles"], f"of {counted(run['steps'], 'step')}, {run['first']} to {run['last']}"
    yield "peak", None, f"'{report['holding']}' has the most alive"
    if "embedded" in report:
        plan = report["embedded"]
        yield "embedded", plan["arena_bytes"], f"of arena for {counted(plan['planned'], 'tensor')} ({plan['status']})"
    if "checked" in report:
        yield "checked", None, report["checked"]


def _limit(text: str) -> ScratchLimit:
    """Return the limit on live memory that an option gives."""
    try:
        return ScratchLimit.of(text)
    except QnnError as problem:
        raise QnnError(problem.code, f"--live-limit {text}", problem.rule, problem.hint) from None


def _unsplit(result: Split, limit: int | None) -> str:
    """Return why nothing is split; empty if something is. Another order of operations alone may need less memory."""
    if result.regions or result.after < result.before:
        return ""
    alive = f"the {counted(result.before, 'byte')} that are alive at '{result.holding}'"
    return f"no tiling needs less than {alive}" if limit is None else f"the limit of {limit:,} allows {alive}"


def _refuse(options: argparse.Namespace, of_tflite: bool) -> None:
    """Refuse impossible options before doing anything; `of_tflite` is whether the model is a TFLite file."""
    if options.embed_plan and not of_tflite:
        raise invalid_argument("--embed-plan", f"only a TFLite file can hold a plan, '{options.model}' is none")
    if options.shape and of_tflite:
        raise invalid_argument("--shape", "a TFLite file is split for the shapes that it has")
    if options.out is not None and options.out.suffix.lower() == (".onnx" if of_tflite else ".tflite"):
        format_ = "TFLite" if of_tflite else "ONNX"
        rule = f"what is split is a file of {format_}, and so is what is written"
        raise invalid_argument(f"--out {options.out}", rule, "Name it accordingly.")
