"""``isthmus compare``: compare every operation of a model with a reference, and name the first that is wrong.

The model runs as a whole, and each operation also runs alone on the reference's inputs. An operation that is wrong
alone is at fault; others have their error from it. The reference is the model's own runtime (ONNX Runtime for .onnx,
LiteRT for .tflite), or with ``--against`` another backend (htp, lpai, or qnn-htp for Qualcomm's library), another
float type (fp16, bf16, fp32), or another .onnx or .tflite file with the same tensor names.

The exit status is 1 if an operation differs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus.backends.seam import registry
from isthmus.comparison.comparison import STAGES, open_comparison
from isthmus.comparison.reduction import ModelReduction, files, possible_files, reduce_model
from isthmus.comparison.reference import FLOAT_TYPES
from isthmus.errors import counted, invalid_argument
from isthmus.frontends import ModelSource
from isthmus.report.page.comparisons import comparison_sections, comparison_subtitle
from isthmus.report.text import operation_lines
from isthmus.system.progress import stages
from isthmus.tools.files import file_name, refuse_overwrite, refuse_shared, write_whole
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import backend_config, open_shapes, refuses_shapes, shapes_of
from isthmus.tools.options import add_shared
from isthmus.tools.report_options import add_html_argument, check_report_options, write_page
from isthmus.tools.run import TIMED_RUNS, read_arrays, write_arrays

_REDUCING = "reduce the model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("model", type=file_name, metavar="MODEL", help="a .onnx, .tflite or .dlc file, or a .so")
    types = ", ".join(FLOAT_TYPES)
    parser.add_argument(
        "--against", metavar="REFERENCE", help=f"a backend, a float type ({types}) or a file (default: its runtime)"
    )
    backends = ", ".join(registry.names())
    parser.add_argument("--backend", default=registry.DEFAULT, help=f"where the model runs: {backends}")
    add_shared(parser, "graph", "shape", "strict", "inputs")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of random inputs (default 0)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads that a run uses (default 1)")
    parser.add_argument(
        "--profile", action="store_true", help=f"measure the time of each operation, in {TIMED_RUNS} runs more"
    )
    parser.add_argument("--all", action="store_true", help="list all tensors, not only the largest differences")
    parser.add_argument(
        "--reduce", type=file_name, metavar="OUT", help="write the smallest model that differs, and its inputs (.npz)"
    )
    add_html_argument(parser, compare="", shown="the wrong operations and every difference")
    add_shared(parser, "config", "log-level", "json")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    if options.reduce is not None and options.reduce.suffix != options.model.suffix:
        rule = f"must have the suffix of the model, '{options.model.suffix}'"
        raise invalid_argument(f"--reduce {options.reduce}", rule)
    against = None if options.against is None else Path(options.against)
    for path in () if options.reduce is None else possible_files(options.reduce):
        refuse_overwrite(f"--reduce {path}", path, options.model, options.inputs, options.config, against)
    check_report_options(options, options.model, options.inputs, options.config, against)
    for path in () if options.reduce is None else possible_files(options.reduce):
        refuse_shared({"--html": options.html, "--reduce": path})
    if options.seed < 0:
        raise invalid_argument(f"--seed {options.seed}", "must not be negative")
    arrays = read_arrays(options.inputs) if options.inputs else {}
    if refuses_shapes(options, options.model):
        return 1
    source = ModelSource(options.model, shapes_of(options), None, options.graph)
    config = backend_config(registry.entry(options.backend), options.config)
    with stages((*STAGES, _REDUCING) if options.reduce else STAGES) as begin:
        comparison = open_comparison(source, options.against, options.backend, config, options.threads, begin)
        report = comparison.run(arrays, options.seed)
        operations = None
        if options.profile:
            times = comparison.operation_times(TIMED_RUNS)
            operations = [{"name": name, "us": time} for name, time in times.items()]
        reduction = None
        if options.reduce is not None and not report.agrees:
            begin(_REDUCING)
            reduction = reduce_model(comparison, report)
    open_inputs = open_shapes(options, options.model)
    written = [] if reduction is None else _write(options.reduce, reduction)
    data = report.as_data() | {"reduced": _describe(reduction, written), "open_shapes": open_inputs}
    if operations is not None:
        data["operations"] = operations
    if options.html is not None:
        title, subtitle = options.model.name, comparison_subtitle(data)
        write_page(options.html, title, comparison_sections(data), subtitle, [data])
    lines = report.text(options.all).splitlines()
    lines += [] if operations is None else operation_lines(operations)
    if reduction is not None:
        names = ", ".join(map(str, reduction.operations))
        lines.append(f"  reduced to {counted(len(reduction.operations), 'operation')}: {names}")
    print_report(options, data, lines)
    return 0 if report.agrees else 1


def _write(path: Path, reduction: ModelReduction) -> list[Path]:
    """Write the files of a reduction and return their paths."""
    found = files(path, reduction)
    for file, content in found.items():
        if isinstance(content, bytes):
            write_whole(file, f"--reduce {file}", content)
        else:
            write_arrays(file, content)
    return list(found)


def _describe(reduction: ModelReduction | None, written: list[Path]) -> dict[str, list[str]] | None:
    """Return a reduction as plain data; None if there is none."""
    if reduction is None:
        return None
    return {"operations": [each.name for each in reduction.operations], "files": list(map(str, written))}
