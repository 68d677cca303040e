"""``--trace``: what a command did over time, as trace events (JSON) for Perfetto and chrome://tracing.

The host is one process of the trace and the accelerator another, on the system's monotonic clock, which both share. The
host's tracks are QNN's: allocate, register, copy, wait and execute. The process that runs operations has a track with
one event for each, and a counter of the scratch that is live at each of them: what VTCM holds on a device.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.backends.seam.driver import ON_DEVICE
from isthmus.errors import QnnError
from isthmus.prepare.tiling import region_path
from isthmus.tools.files import write_whole

if TYPE_CHECKING:
    from isthmus.memory.auditing import AuditLog
    from isthmus.prepare.schedule import Plan
    from isthmus.qnn import Graph, Profile
    from isthmus.qnn.profile import ExecutionSpans

TRACKS = {"allocate": 1, "register": 2, "execute": 3, "copy": 4, "wait": 5}
"""The tracks of a thread of the host, by their numbers; those of further threads follow."""
OPERATIONS = 1000
"""The number of the track of operations, in the process that runs them."""
DEVICE = 1 << 22
"""The number of the trace's process for a device that has no process of its own; numbers of Linux are smaller."""
COUNTER = "VTCM"
# The track of an event of the audit, by its action. Executions are known from profiles, in more detail.
_MEMORY = {"allocate": "allocate", "free": "allocate", "register": "register", "deregister": "register", "copy": "copy"}


@dataclass
class TraceRecord:
    """What a command did, for a trace.

    - `log`: the audit of the command.
    - `executions`: when each execution ran, from detailed profiles.
    - `plans`: the plan of each graph, by its name, if there is one.
    """

    log: AuditLog
    executions: list[ExecutionSpans] = field(default_factory=list)
    plans: dict[str, Plan] = field(default_factory=dict)

    def add_plan(self, graph: Graph) -> None:
        """Add the plan of a graph, if it has one."""
        if graph.plan is not None:
            self.plans[graph.name] = graph.plan

    @contextmanager
    def profile(self, graph: Graph) -> Iterator[Profile]:
        """Yield a profile for executions of a graph; its record and the graph's plan are added at the end."""
        from isthmus.qnn import Profile, ProfileLevel

        profile = Profile(graph.context.backend, ProfileLevel.DETAILED)
        try:
            yield profile
        finally:
            self.executions += profile.get_spans()
            self.add_plan(graph)


@contextmanager
def record_trace(path: Path | None) -> Iterator[TraceRecord]:
    """Audit the block, and write what it did as a trace at its end, if a file is named.

    A block that fails is written too, up to there. Nothing is written of a block
    that was refused before it used any memory, or that was interrupted.
    """
    from isthmus.memory.auditing import audit

    record = None
    try:
        with audit() as log:
            record = TraceRecord(log)
            yield record
    except Exception:
        if path is not None and record is not None and not record.log.is_blank:
            # The client must see the original error.
            with suppress(QnnError, OSError):
                write_trace(path, record)
        raise
    if path is not None:
        write_trace(path, record)


def write_trace(path: Path, record: TraceRecord) -> None:
    """Write a trace."""
    content = {"traceEvents": trace_events(record), "displayTimeUnit": "ns"}
    write_whole(path, f"--trace {path}", json.dumps(content, separators=(",", ":")).encode())


def trace_events(record: TraceRecord) -> list[dict[str, Any]]:
    """Return the events of a trace, in the order of time; names of processes and tracks come first."""
    host, executions = os.getpid(), record.executions
    threads = {name: number for number, name in enumerate(dict.fromkeys(each.thread for each in executions))}
    events = list(_memory_events(record.log, host))
    live = {name: live_bytes(plan) for name, plan in record.plans.items()}
    for each in executions:
        pid = {0: host, ON_DEVICE: DEVICE}.get(each.timings.pid, each.timings.pid)
        first = len(TRACKS) * threads[each.thread]
        events.append(_span("execute", each.begin, each.end, host, first + TRACKS["execute"], {"graph": each.graph}))
        events += [_span(p.name, p.begin, p.end, host, first + TRACKS[p.name], {}) for p in each.timings.phases]
        # Perfetto joins counters of a process that have the same name, so each thread needs its own.
        counter = f"{COUNTER} ({each.thread})" if len(threads) > 1 else COUNTER
        track = OPERATIONS + threads[each.thread]
        events += _operation_events(each, pid, track, live.get(each.graph, {}), counter)
    events.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    return [*_names(events, host, list(threads)), *events]


def _memory_events(log: AuditLog, host: int) -> Iterator[dict[str, Any]]:
    """Yield the events of an audit: those with a duration as spans, others as instants."""
    for event in log.events:
        track = _MEMORY.get(event.action.value)
        if track is None:
            continue
        details = {"bytes": event.nbytes, "tensor": event.tensor, "reason": event.reason, "where": event.where}
        arguments = {"what": event.what, **{name: value for name, value in details.items() if value}}
        begin = event.seconds - event.duration
        if event.duration:
            yield _span(event.action.value, begin, event.seconds, host, TRACKS[track], arguments)
        else:
            yield {
                "name": event.action.value, "ph": "i", "s": "t", "ts": _nanoseconds(begin) / 1e3, "pid": host,
                "tid": TRACKS[track], "args": arguments,
            }  # fmt: skip


def _operation_events(
    execution: ExecutionSpans, pid: int, track: int, live: Mapping[str, int], counter: str
) -> Iterator[dict[str, Any]]:
    """Yield the operations of an execution, and the counter of live bytes at each of them."""
    measured = ((span.name, span.begin, span.end, dict[str, Any]()) for span in execution.timings.spans)
    spans = list(measured) or list(_operation_spans(execution))
    for name, begin, end, arguments in spans:
        yield _span(name, begin, end, pid, track, arguments)
        # A launch of several fused steps has the name of the first, and all their operations.
        ops, _, of = name.partition(" ")
        at = next((label for label in (name, *(f"{op} {of}" for op in ops.split("+"))) if label in live), None)
        if at is not None:
            yield _count(counter, live[at], begin, pid)
    if spans and live:
        yield _count(counter, 0, spans[-1][2], pid)


def _operation_spans(execution: ExecutionSpans) -> Iterator[tuple[str, float, float, dict[str, Any]]]:
    """Yield operations whose times are known, but not when they ran: one after the other up to the execution's end."""
    total = sum(each.microseconds for each in execution.timings.operations) * 1e-6
    # Operations of a device may overlap; they are drawn no longer than the execution.
    scale = min(1.0, (execution.end - execution.begin) / total) if total else 1.0
    begin = execution.end - total * scale
    for each in execution.timings.operations:
        end = begin + each.microseconds * 1e-6 * scale
        yield each.name, begin, end, {"begin": "not measured", "us": each.microseconds}
        begin = end


def live_bytes(plan: Plan) -> dict[str, int]:
    """Return the bytes of scratch that are live at each step of a plan, by the step's label."""
    live = region_path.live_bytes(((row.first, row.last, row.bytes) for row in plan.rows), len(plan.steps))
    found: dict[str, int] = {}
    for (op, name), nbytes in zip(plan.steps, live, strict=True):
        found[f"{op} {name}"] = max(nbytes, found.get(f"{op} {name}", 0))
    return found


def _span(name: str, begin: float, end: float, pid: int, track: int, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event with a duration; times are in seconds, those of a trace in microseconds."""
    first, last = _nanoseconds(begin), _nanoseconds(end)
    times = {"ts": first / 1e3, "dur": (last - first) / 1e3}
    return {"name": name, "ph": "X", **times, "pid": pid, "tid": track, "args": arguments}


def _nanoseconds(seconds: float) -> int:
    """Return a time in whole nanoseconds."""
    # So an event begins at the very number at which the one before it ends: Perfetto drops events that overlap at all.
    return round(seconds * 1e9)


def _count(name: str, nbytes: int, time: float, pid: int) -> dict[str, Any]:
    """Return the value of a counter at a time."""
    return {"name": name, "ph": "C", "ts": _nanoseconds(time) / 1e3, "pid": pid, "args": {"bytes": nbytes}}


def _names(events: Iterable[Mapping[str, Any]], host: int, threads: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the names of the processes and tracks that events use."""
    used = {(event["pid"], event["tid"]) for event in events if "tid" in event}
    for pid in sorted({pid for pid, _ in used} | {host}):
        name = "host" if pid == host else "accelerator"
        yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    for pid, track in sorted(used):
        number = track - OPERATIONS if track >= OPERATIONS else (track - 1) // len(TRACKS)
        kind = "operations" if track >= OPERATIONS else list(TRACKS)[(track - 1) % len(TRACKS)]
        # With one thread its name says nothing.
        of = f" ({threads[number]})" if len(threads) > 1 and kind not in ("allocate", "register") else ""
        yield {"name": "thread_name", "ph": "M", "pid": pid, "tid": track, "args": {"name": kind + of}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": pid, "tid": track, "args": {"sort_index": track}}
