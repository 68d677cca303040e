"""``isthmus net-run``: run a model or a context binary on lists of raw input files; outputs go to Result_N folders.

An input list has a line for each inference: files in the order of the inputs, or ``name:=file``. A line that begins
with ``#`` or ``%`` names the outputs to write; without one all are written. Files hold floats unless the options say
that they are native.

Output y of inference 0 is Result_0/y.raw, or Result_0/y_native.raw with elements as stored. If there are several
graphs, each has a folder of its own: graph/Result_0/y.raw. Characters of a name other than letters, digits and ``_``
become ``_``: ``x:0`` is written to x_0.raw.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import BackendEntry
from isthmus.errors import Code, QnnError, counted
from isthmus.qnn.profile import OPERATION, ProfilingEvent
from isthmus.session import time_limit
from isthmus.system.progress import progress
from isthmus.tools import qnn_options, raw_files
from isthmus.tools.input_lists import SKIP, Inference, InputList, read_list
from isthmus.tools.library import backend_config
from isthmus.tools.messages import print_line
from isthmus.tools.models import compose, intermediate, make_outputs, named
from isthmus.tools.profile_log import ProfileRecorder, statistics
from isthmus.tools.report_options import (
    SAVED_ONLY,
    add_html_argument,
    check_report_options,
    describe_audit,
    describe_plan,
    read_saved,
    write_page,
    write_report,
)
from isthmus.tools.trace import TraceRecord, add_trace_argument, recorded

if TYPE_CHECKING:
    from isthmus.memory.auditing import AuditLog

SHARED, RAW = "memhandle", "raw"
"""The kinds of memory for inputs and outputs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    qnn_options.add_options(parser, qnn_options.NET_RUN)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each graph")
    add_html_argument(parser, compare=SAVED_ONLY)
    add_trace_argument(parser)


@dataclass(frozen=True)
class GraphJob:
    """A graph with the inferences to run on it.

    - `native`: the inputs whose files hold elements as stored.
    - `folder`: where its Result folders go.
    """

    graph: qnn.Graph
    inputs: InputList
    native: set[str]
    folder: Path


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    qnn_options.check_given(options, qnn_options.NET_RUN)
    qnn_options.exclusive(options, "use_native_input_files", "native_input_tensor_names", "input_data_type")
    qnn_options.exclusive(options, "use_native_output_files", "output_data_type")
    qnn_options.exclusive(options, "debug", "set_output_tensors", "retrieve_context")
    entry = registry.entry(options.backend)
    config = backend_config(entry, options.config_file, options.direct_mode)
    files, dlcs = named(options.model, options.dlc_path)
    if bool(files) + bool(dlcs) + (options.retrieve_context is not None) != 1:
        rule = "name one of --model, --dlc_path and --retrieve_context"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, "what to run", rule)
    lists = map(Path, filter(None, options.input_list.split(",")))
    check_report_options(options, *files, *dlcs, options.retrieve_context, options.config_file, *lists)
    other = None if options.compare is None else read_saved(options.compare)
    if options.html is None and options.trace is None:
        _run_all(options, entry, config, files, dlcs)
        return 0
    with recorded(options.trace) as record:
        reports = _run_all(options, entry, config, files, dlcs, record)
    if options.html is not None:
        _write_page(options.html, entry.name, reports, record.log, other)
    return 0


def _run_all(
    options: argparse.Namespace,
    entry: BackendEntry,
    config: Any,
    files: Sequence[Path],
    dlcs: Sequence[Path],
    record: TraceRecord | None = None,
) -> list[dict[str, Any]]:
    """Run all graphs, and return a description of each for a page; with a record, the executions are added to it."""
    # As on a device, memory is shared only on request. With None a backend whose default is raw chooses the memory.
    io = SHARED if options.shared_buffer else None if next(iter(entry.io.kinds)) == RAW else RAW
    mem_type = entry.io_kind(io)
    memories: list[qnn.GraphMemory] = []
    reports: list[dict[str, Any]] = []
    try:
        with qnn.Backend(entry.name, config) as backend:
            qnn_options.register_op_packages(backend, options.op_packages)
            signal = time_limit(backend, None if options.timeout is None else options.timeout * 1e-6)
            if options.retrieve_context is not None:
                context = backend.create_context_from_binary(options.retrieve_context)
            else:
                context = backend.create_context()
                compose(context, files, dlcs, mem_type, prefix=options.model_prefix)
                tensors = {graph.name: intermediate(graph) for graph in context.graphs.values()}
                chosen = qnn_options.by_graph(options.set_output_tensors, "set_output_tensors", tensors)
                for name, graph in context.graphs.items():
                    wanted = tensors[name] if options.debug else {each: tensors[name][each] for each in chosen[name]}
                    make_outputs(graph, wanted, mem_type)
            # Pages and traces show the times of operations.
            level = options.profiling_level if record is None else "detailed"
            recorder = ProfileRecorder(backend, level)
            try:
                for job in _jobs(context, options):
                    began = time.perf_counter()
                    memories.append(job.graph.allocate(io))
                    prepared = ProfilingEvent("prepare", (time.perf_counter() - began) * 1e6, "us")
                    recorder.end("prepare", job.graph.name, prepared)
                    if record is not None:
                        record.add_plan(job.graph)
                    _run(job, memories[-1], options, signal, recorder)
                    if record is not None:
                        reports.append(_describe(job.graph, entry.name, recorder))
            finally:
                if record is not None and recorder.profile is not None:
                    record.executions += recorder.profile.get_spans()
            if options.profiling_level is not None:
                recorder.write(options.output_dir, qnn_options.NET_RUN, entry.name)
    finally:
        for memory in memories:
            memory.close()
    return reports


def _describe(graph: qnn.Graph, backend: str, recorder: ProfileRecorder) -> dict[str, Any]:
    """Return the description of a graph's plan and inferences as plain data."""
    info, stats = graph.info, graph.stats
    events = [each for each in statistics(recorder.calls) if (each.call, each.graph) == ("execute", graph.name)]
    calls = [call for call in recorder.calls if (call.call, call.graph) == ("execute", graph.name)]
    times = [event.value / 1e3 for call in calls for event in call.events if event.name == "execute"]
    operations = [each for each in events if each.event.startswith(OPERATION)]
    return {
        "model": graph.name,
        "backend": backend,
        "target": info.target,
        "scratch_bytes": info.memory.scratch_bytes,
        "state_bytes": info.memory.state_bytes,
        "constant_bytes": info.memory.constant_bytes,
        "io_bytes": info.io_bytes,
        **({} if graph.plan is None else describe_plan(graph.plan, info)),
        "runs": stats.executions,
        "copied_bytes": 0,
        "backend_copied_bytes": stats.copied_bytes,
        **({"latency_ms": {f"p{n}": float(np.percentile(times, n)) for n in (50, 99)}} if times else {}),
        "operations": [{"name": e.event.removeprefix(OPERATION), "us": e.average} for e in operations],
    }


def _write_page(
    path: Path,
    backend: str,
    reports: Sequence[dict[str, Any]],
    log: AuditLog,
    other: dict[str, Any] | None,
) -> None:
    """Write the page of all graphs, with an audit of the whole run at the end.

    With `other`, a saved report, the first graph is shown beside it.
    """
    from isthmus.report.page.reports import audit_sections, sections_of
    from isthmus.report.page.sections import Heading

    audit = describe_audit(log)
    if other is not None:
        write_report(path, {**reports[0], "audit": audit}, other)
        return
    sections: list[Any] = []
    for number, report in enumerate(reports):
        if len(reports) > 1:
            sections.append(Heading(report["model"]))
        sections += sections_of(report, number)
    title = reports[0]["model"] if len(reports) == 1 else counted(len(reports), "graph")
    write_page(path, title, [*sections, *audit_sections(audit)], f"net-run on {backend}", [*reports])


def _jobs(context: qnn.Context, options: argparse.Namespace) -> list[GraphJob]:
    """Assign the input lists to the graphs, and check them and the sizes of all files before anything runs."""
    graphs = list(context.graphs.values())
    lists = [text for text in options.input_list.split(",") if text]
    if len(lists) != len(graphs):
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT,
            f"--input_list {options.input_list}",
            f"names {counted(len(lists), 'file')}, the context has {counted(len(graphs), 'graph')}",
            f"The graphs are {', '.join(repr(graph.name) for graph in graphs)}; {SKIP} skips one.",
        )
    count = sum(text != SKIP for text in lists)
    if options.compare is not None and count > 1:
        rule, hint = f"a saved report has one graph, {count} are to run", f"{SKIP} in --input_list skips a graph."
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--compare {options.compare}", rule, hint)
    names = {graph.name: [info.name for info in graph.input_tensors] for graph in graphs}
    native = qnn_options.by_graph(options.native_input_tensor_names, "native_input_tensor_names", names)
    if options.use_native_input_files or options.input_data_type == "native":
        native = {name: set(inputs) for name, inputs in names.items()}
    jobs = []
    folders = raw_files.file_names(names)
    for graph, text in zip(graphs, lists, strict=True):
        if text == SKIP:
            continue
        folder = options.output_dir / folders[graph.name] if len(graphs) > 1 else options.output_dir
        outputs = [info.name for info in graph.output_tensors]
        job = GraphJob(graph, read_list(Path(text), names[graph.name], outputs), native[graph.name], folder)
        job.inputs.check(graph.input_tensors, job.native)
        jobs.append(job)
    if not jobs:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--input_list {options.input_list}", "every graph is skipped")
    return jobs


def _run(
    job: GraphJob,
    memory: qnn.GraphMemory,
    options: argparse.Namespace,
    signal: qnn.Signal | None,
    recorder: ProfileRecorder,
) -> None:
    """Run the inferences of a graph, write their results, and print a summary."""
    graph = job.graph
    infos = {info.name: info for info in graph.output_tensors}
    names = raw_files.file_names(infos)
    content = raw_files.NATIVE if options.use_native_output_files else options.output_data_type or raw_files.FLOAT
    total = options.num_inferences or (None if options.duration else len(job.inputs.inferences))
    kept, seconds = 0, 0.0
    with progress("inferences", total) as state:
        for inference in _repeat(job.inputs, options.num_inferences, options.duration):
            for info in graph.input_tensors:
                memory.inputs[info.name][...] = raw_files.read_tensor(
                    inference.files[info.name], info, info.name in job.native, inference.what
                )
            begin = time.perf_counter()
            memory.binding.execute(recorder.profile, signal)
            seconds += time.perf_counter() - begin
            recorder.end("execute", graph.name)
            if options.keep_num_outputs is None or kept < options.keep_num_outputs:
                arrays = [(names[name], memory.outputs[name], infos[name]) for name in job.inputs.outputs or infos]
                raw_files.write_results(job.folder / f"Result_{kept}", arrays, content)
                kept += 1
            state.step()
    if options.json:
        figures = {"inferences": state.done, "seconds": seconds, "copied_bytes": graph.stats.copied_bytes}
        print(json.dumps({"graph": graph.name, **figures, "folder": str(job.folder), "results": kept}))
        return
    written = f"results in {job.folder}/Result_0" + (f" to Result_{kept - 1}" if kept > 1 else "")
    print_line(
        f"graph '{graph.name}': {counted(state.done, 'inference')}, {seconds / state.done * 1e3:.3f} ms each, "
        f"{counted(graph.stats.copied_bytes, 'byte')} copied; {written if kept else 'no results written'}"
    )


def _repeat(inputs: InputList, count: int | None, duration: float | None) -> Iterator[Inference]:
    """Yield the inferences to run: those of the list, repeated until `count` or `duration` in seconds is reached."""
    if count is None and duration is None:
        yield from inputs.inferences
        return
    end = None if duration is None else time.monotonic() + duration
    for inference in itertools.islice(itertools.cycle(inputs.inferences), count):
        yield inference
        if end is not None and time.monotonic() >= end:
            return
