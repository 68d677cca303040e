"""``isthmus profile-viewer``: show a profile log of net-run or the generator, as text or as CSV."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from isthmus.errors import Code, QnnError, counted
from isthmus.report.rows import to_csv
from isthmus.tools import qnn_options
from isthmus.tools.files import refuse_overwrite, write_file
from isthmus.tools.messages import print_line
from isthmus.tools.profile_log import ProfiledCall, read_log, statistics


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser: those of QNN's tool, and ours."""
    qnn_options.add_options(parser, qnn_options.VIEWER)
    parser.add_argument("--json", action="store_true", help="print the statistics as one JSON object")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    qnn_options.check_given(options, qnn_options.VIEWER)
    paths = [path for path in options.input_log.split(",") if path]
    if not paths:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--input_log '{options.input_log}'", "it names no file")
    refuse_overwrite(f"--output {options.output}", options.output, *map(Path, paths))
    logs = {path: read_log(Path(path)) for path in paths}
    calls = [call for _, found in logs.values() for call in found]
    if options.output is not None:
        write_file(options.output, _table(calls).encode())
    if options.json:
        content = {path: [asdict(each) for each in statistics(found)] for path, (_, found) in logs.items()}
        print(json.dumps({"logs": content}))
        return 0
    for path, (backend, found) in logs.items():
        print_line(f"{path}: {counted(len(found), 'call')} on {backend}")
        group = None
        for each in statistics(found):
            if (each.call, each.graph) != group:
                group = each.call, each.graph
                print_line(each.call + f" of graph '{each.graph}'" * bool(each.graph))
            figures = f"average {each.average:,.1f}  min {each.least:,.1f}  max {each.most:,.1f} {each.unit}"
            print_line(f"  {each.event:32} {figures}, {counted(each.count, 'time')}")
    return 0


def _table(calls: list[ProfiledCall]) -> str:
    """Return all events as CSV, one a row, with the number of its call."""
    columns = ("call", "number", "graph", "event", "value", "unit")
    rows = (
        (call.call, number, call.graph, event.name, event.value, event.unit)
        for number, call in enumerate(calls)
        for event in call.events
    )
    return to_csv([dict(zip(columns, row, strict=True)) for row in rows], dict(zip(columns, columns, strict=True)))
