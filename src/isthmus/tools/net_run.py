"""``isthmus net-run``: run a model or a context binary on lists of raw input files; outputs go to Result_N folders.

An input list has a line for each inference: files in the order of the inputs, or ``name:=file``. A line that begins
with ``#`` or ``%`` names the outputs to write; without one all are written. Files hold floats unless the options say
that they are native.

Output y of inference 0 is Result_0/y.raw, or Result_0/y_native.raw with elements as stored. If there are several
graphs, each has a folder of its own: graph/Result_0/y.raw. Characters of a name other than letters, digits and ``_``
become ``_``: ``x:0`` is written to x_0.raw.

With ``--batch_multiplier`` one execution computes several inferences, each with a Result folder of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import BackendEntry
from isthmus.errors import counted, invalid_argument
from isthmus.qnn.batches import times
from isthmus.qnn.profile import OPERATION, ProfilingEvent
from isthmus.session import time_limit
from isthmus.system.progress import progress
from isthmus.tools import qnn_options, raw_files
from isthmus.tools.messages import print_line
from isthmus.tools.model_options import backend_config
from isthmus.tools.models import compose, intermediate, make_outputs, model_files
from isthmus.tools.options import add_shared
from isthmus.tools.profile_viewer import ProfileRecorder, statistics
from isthmus.tools.raw_files import SKIP, Inference, InputList, read_list
from isthmus.tools.report_options import (
    SAVED_ONLY,
    add_html_argument,
    check_report_options,
    describe_audit,
    describe_plan,
    memory_sizes,
    read_saved,
    write_page,
    write_report,
)
from isthmus.tools.trace import TraceRecord, record_trace

if TYPE_CHECKING:
    from isthmus.memory.auditing import AuditLog

SHARED, RAW = "memhandle", "raw"
"""The kinds of memory for inputs and outputs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    qnn_options.add_options(parser, qnn_options.NET_RUN)
    parser.add_argument("--json", action="store_true", help="print one JSON object for each graph")
    add_html_argument(parser, compare=SAVED_ONLY)
    add_shared(parser, "trace")


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
    files, dlcs = model_files(options.model, options.dlc_path)
    if bool(files) + bool(dlcs) + (options.retrieve_context is not None) != 1:
        raise invalid_argument("what to run", "name one of --model, --dlc_path and --retrieve_context")
    lists = map(Path, filter(None, options.input_list.split(",")))
    check_report_options(options, *files, *dlcs, options.retrieve_context, options.config_file, *lists)
    other = None if options.compare is None else read_saved(options.compare)
    if options.html is None and options.trace is None:
        _run_all(options, entry, config, files, dlcs)
        return 0
    with record_trace(options.trace) as record:
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
            multiple = options.batch_multiplier or 1
            if multiple > 1 and not backend.driver.takes_other_batches:
                rule = "each inference is executed by itself, with the same results"
                qnn_options.warn_unused("batch_multiplier", rule)
                multiple = 1
            signal = time_limit(backend, None if options.timeout is None else options.timeout * 1e-6)
            # Pages and traces show the times of operations.
            recorder = ProfileRecorder(backend, options.profiling_level if record is None else "detailed")
            if options.retrieve_context is not None:
                context = backend.create_context_from_binary(options.retrieve_context, profile=recorder.profile)
                recorder.end("create context", "")
            else:
                context = backend.create_context()
                compose(context, files, dlcs, mem_type, prefix=options.model_prefix)
                tensors = {graph.name: intermediate(graph) for graph in context.graphs.values()}
                chosen = qnn_options.by_graph(options.set_output_tensors, "set_output_tensors", tensors)
                for name, graph in context.graphs.items():
                    outputs = tensors[name] if options.debug else {each: tensors[name][each] for each in chosen[name]}
                    make_outputs(graph, outputs, mem_type)
            try:
                for job in _jobs(context, options):
                    began = time.perf_counter()
                    memories.append(job.graph.allocate(io))
                    prepared = ProfilingEvent("prepare", (time.perf_counter() - began) * 1e6, "us")
                    recorder.end("prepare", job.graph.name, prepared)
                    if record is not None:
                        record.add_plan(job.graph)
                    with _batch(job.graph, memories[-1], multiple) as batch:
                        _run(job, batch, options, signal, recorder)
                    if record is not None:
                        reports.append(_describe(job.graph, entry.name, recorder))
            finally:
                if record is not None and recorder.profile is not None:
                    record.executions += recorder.profile.get_spans()
            if options.profiling_level is not None:
                context.free(recorder.profile)
                recorder.end("free context", "")
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
        **memory_sizes(info),
        **({} if graph.plan is None else describe_plan(graph.plan, info)),
        "runs": stats.executions,
        "copied_bytes": 0,
        "backend_copied_bytes": stats.copied_bytes,
        **({"latency_ms": {f"p{n}": float(np.percentile(times, n)) for n in (50, 99)}} if times else {}),
        "operations": [{"name": e.event.removeprefix(OPERATION), "us": e.average} for e in operations],
    }


def _write_page(
    path: Path, backend: str, reports: Sequence[dict[str, Any]], log: AuditLog, other: dict[str, Any] | None
) -> None:
    """Write the page of all graphs and an audit; with a saved report, the first graph is shown beside that."""
    from isthmus.report.page import Heading
    from isthmus.report.page.reports import audit_sections, sections_of

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
        raise invalid_argument(
            f"--input_list {options.input_list}",
            f"names {counted(len(lists), 'file')}, the context has {counted(len(graphs), 'graph')}",
            f"The graphs are {', '.join(repr(graph.name) for graph in graphs)}; {SKIP} skips one.",
        )
    count = sum(text != SKIP for text in lists)
    if options.compare is not None and count > 1:
        rule, hint = f"a saved report has one graph, {count} are to run", f"{SKIP} in --input_list skips a graph."
        raise invalid_argument(f"--compare {options.compare}", rule, hint)
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
        job.inputs.check(graph.input_tensors, job.native, "--use_native_input_files or --native_input_tensor_names")
        jobs.append(job)
    if not jobs:
        raise invalid_argument(f"--input_list {options.input_list}", "every graph is skipped")
    return jobs


@dataclass(frozen=True)
class _Batch:
    """The inferences that one execution computes: views of the inputs and outputs of each."""

    binding: qnn.Binding
    inputs: Sequence[Mapping[str, np.ndarray]]
    outputs: Sequence[Mapping[str, np.ndarray]]


@contextmanager
def _batch(graph: qnn.Graph, memory: qnn.GraphMemory, multiple: int) -> Iterator[_Batch]:
    """Return memory for several inferences, bound to a graph; for one it is the graph's own."""
    if multiple == 1:
        yield _Batch(memory.binding, [memory.inputs], [memory.outputs])
        return
    kinds = [
        {each.name: np.zeros(times(each, multiple).dims, each.dtype.numpy) for each in infos}
        for infos in (graph.input_tensors, graph.output_tensors)
    ]
    tensors = [[qnn.ClientTensor(*each) for each in arrays.items()] for arrays in kinds]
    parts = [
        [{name: np.split(array, multiple)[index] for name, array in arrays.items()} for index in range(multiple)]
        for arrays in kinds
    ]
    with graph.bind(*tensors) as binding:
        yield _Batch(binding, *parts)


def _run(
    job: GraphJob,
    batch: _Batch,
    options: argparse.Namespace,
    signal: qnn.Signal | None,
    recorder: ProfileRecorder,
) -> None:
    """Run the inferences of a graph, write their results, and print a summary."""
    graph = job.graph
    content = raw_files.NATIVE if options.use_native_output_files else options.output_data_type or raw_files.FLOAT
    total = options.num_inferences or (None if options.duration else len(job.inputs.inferences))
    results, seconds = 0, 0.0
    with progress("inferences", total) as state:
        inferences = _repeat(job.inputs, options.num_inferences, options.duration)
        while together := [*itertools.islice(inferences, len(batch.inputs))]:
            for inference, views in zip(together, batch.inputs, strict=False):
                inference.read(graph.input_tensors, job.native, views)
            begin = time.perf_counter()
            batch.binding.execute(recorder.profile, signal)
            seconds += time.perf_counter() - begin
            recorder.end("execute", graph.name)
            for _, views in zip(together, batch.outputs, strict=False):
                if options.keep_num_outputs is None or results < options.keep_num_outputs:
                    job.inputs.write(job.folder / f"Result_{results}", graph.output_tensors, views, content)
                    results += 1
                state.step()
    if options.json:
        figures = {"inferences": state.done, "seconds": seconds, "copied_bytes": graph.stats.copied_bytes}
        print(json.dumps({"graph": graph.name, **figures, "folder": str(job.folder), "results": results}))
        return
    written = f"results in {job.folder}/Result_0" + (f" to Result_{results - 1}" if results > 1 else "")
    print_line(
        f"graph '{graph.name}': {counted(state.done, 'inference')}, {seconds / state.done * 1e3:.3f} ms each, "
        f"{counted(graph.stats.copied_bytes, 'byte')} copied; {written if results else 'no results written'}"
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
