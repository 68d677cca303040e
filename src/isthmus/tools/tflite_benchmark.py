"""``isthmus tflite-benchmark``: run one model in LiteRT in four ways, alternately.

The ways are LiteRT with its own kernels, with XNNPACK, with QNN's delegate on ordinary tensors, and with the delegate
on tensors in shared memory. For each the report gives the time of an invocation, the bytes that it copies, and the
number of delegated nodes and partitions. If the model cannot be run in one way, the report says why.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Any

from isthmus.backends.seam import registry
from isthmus.errors import Code, QnnError, counted, invalid_argument
from isthmus.system.progress import progress
from isthmus.tools.files import file_name
from isthmus.tools.messages import print_report
from isthmus.tools.model_options import shapes_of
from isthmus.tools.options import add_shared

MAX_THREADS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("model", type=file_name, metavar="MODEL", help="a .tflite file")
    parser.add_argument("--backend", choices=registry.names(), help="where the delegate runs (default htp)")
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="invocations of each way (default 50)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads of the interpreter (default 1)")
    add_shared(parser, "shape", "log-level", "json")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    from isthmus.delegate.comparison import compare

    if options.rounds < 1:
        raise invalid_argument(f"--rounds {options.rounds}", "must be at least 1")
    if not 1 <= options.threads <= MAX_THREADS:
        raise invalid_argument(f"--threads {options.threads}", f"must be 1 to {MAX_THREADS}")
    shapes = shapes_of(options)
    # The default is the first backend that can run all four ways.
    backend = options.backend or next(
        entry.name for entry in registry.usable() if entry.delegate.shared_memory is not None
    )
    number = registry.entry(backend).delegate.number
    if number is None:
        raise QnnError(Code.BACKEND_NOT_SUPPORTED, f"--backend {backend}", "no delegate runs on it")
    with progress("rounds", options.rounds) as state:
        ways = compare(options.model, number, options.rounds, options.threads, shapes, state.step)
    rows = [
        {
            "way": way.name,
            "refused": way.refusal,
            "latency_ms": None if way.refusal else {"p50": way.median * 1e3, "min": way.least * 1e3},
            "copied_bytes": way.copied_bytes,
            "nodes_delegated": way.delegated,
            "nodes": way.nodes,
            "partitions": way.partitions,
        }
        for way in ways
    ]
    report = {"model": str(options.model), "backend": backend, "rounds": options.rounds, "ways": rows}
    print_report(options, report, _lines(report))
    return 0 if any(way.refusal is None for way in ways) else 1


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Yield the result as text."""
    rounds = counted(report["rounds"], "invocation")
    yield f"{report['model']}, delegate on {report['backend']}, {rounds} of each way in turn"
    yield f"  {'':28}{'p50 ms':>9}{'min ms':>9}{'copied':>12}  delegated"
    for row in report["ways"]:
        if row["refused"]:
            yield f"  {row['way']:28}{row['refused']}"
            continue
        latency = row["latency_ms"]
        copied = "" if row["copied_bytes"] is None else f"{row['copied_bytes']:,}"
        nodes = ""
        if row["nodes"] is not None:
            share = 100 * row["nodes_delegated"] / max(row["nodes"], 1)
            nodes = f"{row['nodes_delegated']} of {counted(row['nodes'], 'node')} ({math.floor(share)} %), "
            nodes += f"partitions: {row['partitions']}"
        yield f"  {row['way']:28}{latency['p50']:9.3f}{latency['min']:9.3f}{copied:>12}  {nodes}".rstrip()
