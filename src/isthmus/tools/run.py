"""``isthmus run``: run a model on given or generated inputs and report memory, copies and latency."""

from __future__ import annotations

import argparse
import io
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.errors import counted, invalid_argument, one_line
from isthmus.graph.random_arrays import random_array
from isthmus.memory.auditing import suspended
from isthmus.qnn import Profile, ProfileLevel
from isthmus.qnn.profile import median_times
from isthmus.report.text import heading, memory_line, operation_lines, tensor_lines
from isthmus.session import Session, checked_seconds
from isthmus.system import reading
from isthmus.system.progress import progress
from isthmus.tools.files import file_name, rewrite_whole
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import ModelRequest, add_model_options, open_shapes, refuses_shapes, request_of
from isthmus.tools.options import TCM, add_shared
from isthmus.tools.report_options import (
    add_html_argument,
    check_report_options,
    describe_audit,
    describe_plan,
    memory_sizes,
    other_report,
    write_report,
)
from isthmus.tools.trace import TraceRecord, record_trace

MAX_INPUT_BYTES = 1 << 32
"""Maximum size of the arrays of one file, in bytes."""
TIMED_RUNS = 5
"""How many runs more a page takes for the times of operations; each time is the median."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    add_model_options(parser)
    tcm = f"{TCM}: allocations in TCM are within it; it has no effect on a model in DDR"
    add_shared(parser, "tcm", help=tcm)
    add_shared(parser, "inputs")
    parser.add_argument("--outputs", type=file_name, metavar="OUT.npz", help="write the outputs of the last run here")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="how many times to run (default 1)")
    parser.add_argument("--io", metavar="KIND", help="memhandle: shared with the accelerator; raw: not")
    parser.add_argument(
        "--profile", action="store_true", help=f"measure the time of each operation, in {TIMED_RUNS} runs more"
    )
    limit = "how long an execution may take (default: as long as the backend lets it)"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=limit)
    add_html_argument(parser)
    add_shared(parser, "trace")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    request = request_of(options)
    check(options, request)
    check_report_options(options, options.model, options.inputs, options.config)
    arrays = read_arrays(options.inputs) if options.inputs else {}
    if refuses_shapes(options, options.model):
        return 1
    if options.html is None and options.trace is None:
        report, results = _run(options, request, arrays)
    else:
        report, results = _run_recorded(options, request, arrays, options.trace)
    report["open_shapes"] = open_shapes(options, options.model)
    if options.html is not None:
        other = other_report(options, lambda path: _run_unaudited(options, path, arrays))
        write_report(options.html, report, other)
    if options.outputs:
        write_arrays(options.outputs, results)
    print_report(options, report, _lines(report, results))
    return 0


def check(options: argparse.Namespace, request: ModelRequest) -> None:
    """Refuse values of this command's own options that are wrong for every model."""
    check_repeat(options.repeat)
    request.entry.io_kind(options.io)
    if options.timeout is not None:
        checked_seconds(options.timeout)


def check_repeat(count: int) -> None:
    """Refuse to run less than once."""
    if count < 1:
        raise invalid_argument(f"--repeat {count}", "must be at least 1")


def _run(
    options: argparse.Namespace,
    request: ModelRequest,
    arrays: Mapping[str, np.ndarray],
    record: TraceRecord | None = None,
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Run a model as the options say, on record if there is one; return the description and the last outputs."""
    begin = time.perf_counter()
    with request.session(options.io, options.timeout) as session:
        load_seconds = time.perf_counter() - begin
        feeds = {**generate_inputs(session.inputs, skip=arrays), **arrays}
        latencies: list[float] = []
        profiled = record.profile(session.graph) if record and options.trace else nullcontext()
        with progress("runs", options.repeat) as state, profiled as profile:
            while len(latencies) < options.repeat:
                # Inputs that a run leaves as they were are filled in once: later runs work in place, without copies.
                if not latencies or not session.inputs_survive:
                    session.fill(feeds)
                session.run(profile=profile)
                latencies.append(session.stats.last_ms)
                state.step()
        results = {name: view.copy() for name, view in session.outputs.items()}
        report = describe(session, latencies, load_seconds)
        is_page = record is not None and options.html is not None
        if is_page and session.plan is not None:
            report = {**describe_plan(session.plan, session.info), **report}
        if is_page or options.profile:
            # Audits are of the runs that were asked for.
            with suspended():
                report["operations"] = operation_times(session, feeds)
    return report, results


def _run_recorded(
    options: argparse.Namespace, request: ModelRequest, arrays: Mapping[str, np.ndarray], trace: Path | None = None
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Run a model as `_run` does, with an audit, which the description has if a page is wanted; write the trace."""
    with record_trace(trace) as record:
        report, results = _run(options, request, arrays, record)
    if options.html is not None:
        report["audit"] = describe_audit(record.log)
    return report, results


def _run_unaudited(options: argparse.Namespace, model: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Run another model with the same options, outside of audits; return its description."""
    with suspended():
        return _run_recorded(options, request_of(options, model), arrays)[0]


def operation_times(session: Session, feeds: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Run a session a few times more, and return the median time of each operation; empty if it measures none.

    Sessions in stages measure none.
    """
    if session.in_stages:
        return []
    with Profile(session.graph.context.backend, ProfileLevel.DETAILED) as profile:
        for _ in range(TIMED_RUNS):
            session.fill(feeds)
            session.run(profile=profile)
        return [{"name": name, "us": time} for name, time in median_times(profile.get_events()).items()]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of an ``.npz`` file."""
    try:
        with reading.open_file(path) as stream:
            head = stream.read(6)
            stream.seek(0)
            if not head.startswith((b"PK", b"\x93NUMPY")):
                raise ValueError("it is no archive of arrays")
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array without a name")
            with archive:
                assert archive.zip is not None
                # A small compressed file may unpack to any size.
                if sum(entry.file_size for entry in archive.zip.infolist()) > MAX_INPUT_BYTES:
                    raise ValueError(f"its arrays are larger than {MAX_INPUT_BYTES:,} bytes")
                return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile, zlib.error, EOFError, AttributeError, MemoryError) as problem:
        why = getattr(problem, "strerror", None) or problem
        what, rule, hint = f"inputs '{path}'", f"cannot be read as .npz: {why}", reading.nearest_file(path)
        raise invalid_argument(what, rule, hint) from None


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to an ``.npz`` file atomically, exactly at that path.

    `numpy.savez` takes names as keyword arguments. So it cannot take names of its own parameters, like ``file``.
    """
    # A device such as /dev/null has no positions, which the format needs.
    collected = io.BytesIO() if path.exists() and not path.is_file() else None
    with rewrite_whole(path, f"outputs '{path}'") as stream:
        with zipfile.ZipFile(collected or stream, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, np.asanyarray(array), allow_pickle=False)
        if collected is not None:
            stream.write(collected.getbuffer())


def generate_inputs(inputs: Mapping[str, np.ndarray], skip: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Generate random inputs for a trial run, the same every time. Those named in `skip` are left out."""
    generator = np.random.default_rng(0)
    return {name: random_array(generator, view.dtype, view.shape) for name, view in inputs.items() if name not in skip}


def describe(session: Session, latencies: list[float], load_seconds: float) -> dict[str, Any]:
    """Return the description of a session's runs as plain data; latencies are in milliseconds."""
    info, graph = session.info, session.graph_stats
    plans = [stage.plan for stage in session.stages] if session.stages else [session.plan]
    steps = sum(len(plan.steps) for plan in plans if plan is not None)

    def tensors(views: Mapping[str, np.ndarray]) -> dict[str, Any]:
        return {name: {"shape": list(view.shape), "dtype": str(view.dtype)} for name, view in views.items()}

    return {
        "model": str(session.path),
        "backend": session.backend,
        "target": info.target,
        "threads": session.threads,
        "steps": steps,
        "stages": len(session.stages),
        "inputs": tensors(session.inputs),
        "outputs": tensors(session.outputs),
        **memory_sizes(info),
        "device": {} if session.in_stages else dict(session.graph.driver.figures_of_device),
        "runs": len(latencies),
        "latency_ms": {
            "p50": float(np.percentile(latencies, 50)),
            "p99": float(np.percentile(latencies, 99)),
            "min": float(min(latencies)),
        },
        "load_seconds": load_seconds,
        "copied_bytes": session.stats.copied_bytes,
        "backend_copied_bytes": graph.copied_bytes,
        "staging_bytes": graph.staging_bytes,
    }


def _lines(report: Mapping[str, Any], results: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield the description as text, and the outputs."""
    yield from (heading(report), *tensor_lines(report), memory_line(report))
    if report["device"]:
        yield "  device  " + "  ".join(f"{name} {value:,}" for name, value in report["device"].items())
    latency = report["latency_ms"]
    in_stages = f" in {counted(report['stages'], 'stage')}" if report["stages"] else ""
    yield (
        f"  time    p50 {latency['p50']:.3f} ms  p99 {latency['p99']:.3f} ms over {counted(report['runs'], 'run')}, "
        f"{counted(report['steps'], 'step')}{in_stages}; loaded in {report['load_seconds']:.2f} s"
    )
    yield (
        f"  copied  {report['copied_bytes']:,} bytes by Session.run(), "
        f"{report['backend_copied_bytes']:,} by the backend (staging buffers: {report['staging_bytes']:,})"
    )
    if "operations" in report:
        yield from operation_lines(report["operations"], report["stages"] > 0)
    for name, array in results.items():
        elements = np.array2string(array.reshape(-1), precision=4, suppress_small=True, threshold=8)
        yield from f"  {one_line(name)} = {elements}".splitlines()
