"""``isthmus profile-viewer``: show a profile log of net-run or the generator, as text or as CSV."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from isthmus.errors import QnnError, counted, invalid_argument
from isthmus.qnn import Backend, Profile, ProfileLevel
from isthmus.qnn.profile import ProfilingEvent
from isthmus.report.rows import to_csv
from isthmus.system import reading
from isthmus.tools import qnn_options
from isthmus.tools.files import refuse_overwrite, refuse_unreadable, write_file
from isthmus.tools.messages import print_report

LEVELS = {
    "basic": ProfileLevel.BASIC,
    "client": ProfileLevel.BASIC,
    "backend": ProfileLevel.DETAILED,
    "detailed": ProfileLevel.DETAILED,
}
"""The levels of the tools. "client" measures only the calls, "backend" only what the backend reports: both are part of
what is recorded here at that level."""
FILE = "qnn-profiling-data_0.log"
FORMAT = "isthmus profile log 1"
_MAX_BYTES = 1 << 30


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser: those of QNN's tool, and ours."""
    qnn_options.add_options(parser, qnn_options.VIEWER)
    parser.add_argument("--json", action="store_true", help="print the statistics as one JSON object")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    qnn_options.check_given(options, qnn_options.VIEWER)
    paths = [path for path in options.input_log.split(",") if path]
    if not paths:
        raise invalid_argument(f"--input_log '{options.input_log}'", "it names no file")
    refuse_overwrite(f"--output {options.output}", options.output, *map(Path, paths))
    logs = {path: read_log(Path(path)) for path in paths}
    calls = [call for _, found in logs.values() for call in found]
    if options.output is not None:
        write_file(options.output, _table(calls).encode())
    content = {path: [asdict(each) for each in statistics(found)] for path, (_, found) in logs.items()}
    print_report(options, {"logs": content}, _lines(logs))
    return 0


def _lines(logs: Mapping[str, tuple[str, list[ProfiledCall]]]) -> Iterator[str]:
    """Yield the statistics of each log as text."""
    for path, (backend, calls) in logs.items():
        yield f"{path}: {counted(len(calls), 'call')} on {backend}"
        group = None
        for each in statistics(calls):
            if (each.call, each.graph) != group:
                group = each.call, each.graph
                yield each.call + f" of graph '{each.graph}'" * bool(each.graph)
            figures = f"average {each.average:,.1f}  min {each.least:,.1f}  max {each.most:,.1f} {each.unit}"
            yield f"  {each.event:32} {figures}, {counted(each.count, 'time')}"


def _table(calls: list[ProfiledCall]) -> str:
    """Return all events as CSV, one a row, with the number of its call."""
    columns = ("call", "number", "graph", "event", "value", "unit")
    rows = (
        (call.call, number, call.graph, event.name, event.value, event.unit)
        for number, call in enumerate(calls)
        for event in call.events
    )
    return to_csv([dict(zip(columns, row, strict=True)) for row in rows], dict(zip(columns, columns, strict=True)))


@dataclass(frozen=True)
class ProfiledCall:
    """The events of one call: what was called, on which graph (empty for none), and what was measured."""

    call: str
    graph: str
    events: tuple[ProfilingEvent, ...]


class ProfileRecorder:
    """The events of calls, collected one call after the other.

    - `level`: the value of ``--profiling_level``; None to record nothing.
    """

    def __init__(self, backend: Backend, level: str | None) -> None:
        self.profile = None if level is None else Profile(backend, LEVELS[level])
        """What the calls record in; None if nothing is recorded."""
        self.calls: list[ProfiledCall] = []
        self._seen = 0

    def end(self, call: str, graph: str, *more: ProfilingEvent) -> None:
        """Take the events since the last call; `more` are measured by the tool itself."""
        if self.profile is not None:
            events = self.profile.get_events(self._seen)
            self.calls.append(ProfiledCall(call, graph, (*events, *more)))
            self._seen += len(events)

    def write(self, folder: Path, tool: str, backend: str) -> None:
        """Write the log to a folder, if anything was recorded."""
        if self.profile is not None:
            content = {"format": FORMAT, "tool": tool, "backend": backend, "calls": [asdict(c) for c in self.calls]}
            write_file(folder / FILE, json.dumps(content).encode())


def read_log(path: Path) -> tuple[str, list[ProfiledCall]]:
    """Read a profile log; return the name of its backend and the calls."""
    what = f"profile log '{path}'"

    def refuse(rule: str, hint: str = "") -> QnnError:
        return invalid_argument(what, rule, hint)

    try:
        with refuse_unreadable(what, path):
            content: Any = json.loads(reading.contents(path, _MAX_BYTES).decode("utf-8"))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        hint = "Logs of a device are read by the tool of Qualcomm's SDK."
        raise refuse("it is not a log that --profiling_level writes here", hint)
    try:
        calls = [
            ProfiledCall(each["call"], each["graph"], tuple(ProfilingEvent(**event) for event in each["events"]))
            for each in content["calls"]
        ]
        if not all(isinstance(event.value, (int, float)) for call in calls for event in call.events):
            raise TypeError
        return str(content["backend"]), calls
    except (TypeError, KeyError):
        raise refuse("it is damaged") from None


@dataclass(frozen=True)
class Statistic:
    """The figures of one event over all calls of a kind on a graph."""

    call: str
    graph: str
    event: str
    unit: str
    count: int
    average: float
    least: float
    most: float


def statistics(calls: Iterable[ProfiledCall]) -> list[Statistic]:
    """Summarize the events by call, graph and name, in the order in which they first occur."""
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for call in calls:
        for event in call.events:
            values.setdefault((call.call, call.graph, event.name, event.unit), []).append(event.value)
    return [Statistic(*key, *_figures(found)) for key, found in values.items()]


def _figures(values: Sequence[float]) -> tuple[int, float, float, float]:
    """Return the number, the average, the least and the largest of some values."""
    return len(values), sum(values) / len(values), min(values), max(values)
