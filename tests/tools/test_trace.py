"""``--trace``: events on one clock; operations are inside their execution, in the accelerator's own process."""

import itertools
import json
import os
import time
from collections import defaultdict
from contextlib import nullcontext
from decimal import Decimal
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
from support import tiny

from isthmus import faults, qnn
from isthmus.backends.seam.driver import ON_DEVICE, OperationTime, TimeSpan, Timings
from isthmus.engine.native import timed
from isthmus.memory.auditing import AuditLog
from isthmus.prepare.schedule import PlanRow
from isthmus.qnn.profile import ExecutionSpans
from isthmus.tools.cli import main
from isthmus.tools.trace import TraceRecord, live_bytes, trace_events

SLACK = 1.0
"""Microseconds by which sums of floats may be off."""
GPU = pytest.param(
    ["--backend", "gpu"], True, id="gpu",
    marks=pytest.mark.skipif(find_spec("pyopencl") is None, reason="the package pyopencl is not installed"),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a model, an input and a list of it."""
    monkeypatch.chdir(tmp_path)
    tiny.convolution(tmp_path / "model.onnx", 64, 64)
    np.ones((1, 3, 64, 64), np.float32).tofile("x.raw")
    (tmp_path / "list.txt").write_text("x.raw\nx.raw\n")
    return tmp_path


def events(path):
    content = json.loads(path.read_text())
    assert content.keys() == {"traceEvents", "displayTimeUnit"}
    return content["traceEvents"]


def spans(found, name):
    return [event for event in found if event["ph"] == "X" and event["name"] == name]


def ns(microseconds):
    """Return a time of a trace in nanoseconds, as a reader of its digits finds it; traces have whole ones."""
    exact = Decimal(repr(microseconds)) * 1000
    assert exact == int(exact), microseconds
    return int(exact)


FIELDS = {
    "X": {"name", "ph", "ts", "dur", "pid", "tid", "args"},
    "i": {"name", "ph", "s", "ts", "pid", "tid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "args"},
}
"""The fields of each kind of event: complete, instant, counter, metadata."""


def check(found, began, ended):
    """Check what holds for every trace: fields, times, names of processes and tracks, and nesting."""
    for event in found:
        assert event.keys() - ({"tid"} if event["ph"] == "M" else set()) == FIELDS[event["ph"]]
        assert isinstance(event["pid"], int)
        assert isinstance(event["name"], str)
    threads = [(event["pid"], event["tid"]) for event in found if event["name"] == "thread_name"]
    processes = [event["pid"] for event in found if event["name"] == "process_name"]
    assert len(threads) == len(set(threads))
    assert len(processes) == len(set(processes))
    timed = [event for event in found if event["ph"] != "M"]
    # Metadata come first, and the rest in the order of time.
    assert timed == found[-len(timed) :]
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    assert {event["pid"] for event in timed} == set(processes)
    assert {(event["pid"], event["tid"]) for event in timed if event["ph"] != "C"} == set(threads)
    tracks = defaultdict(list)
    for event in timed:
        begin, length = ns(event["ts"]), ns(event.get("dur", 0))
        assert (began - SLACK) * 1000 <= begin <= begin + length <= (ended + SLACK) * 1000
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((begin, begin + length))
        elif event["ph"] == "C":
            assert event["args"].keys() == {"bytes"}
            assert event["args"]["bytes"] >= 0
    for track in tracks.values():
        # On one track, an event is after the previous one or inside it, to the nanosecond: Perfetto drops others.
        inside = []
        for begin, end in sorted(track, key=lambda each: (each[0], -each[1])):
            while inside and inside[-1] <= begin:
                inside.pop()
            assert not inside or end <= inside[-1]
            inside.append(end)


def tracks_of(found):
    """Return the names of the tracks of each process, by the process's name."""
    processes = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    names = defaultdict(set)
    for event in found:
        if event["name"] == "thread_name":
            names[processes[event["pid"]]].add(event["args"]["name"])
    return names


@pytest.mark.parametrize(
    ("more", "is_other"),
    [
        pytest.param(["--backend", "cpu"], False, id="cpu"),
        pytest.param(["--backend", "cpu", "--scratch-limit", "least", "--threads", "2"], False, id="tiles"),
        pytest.param(["--backend", "lpai"], False, id="lpai"),
        pytest.param(["--backend", "htp"], True, id="htp"),
        pytest.param(["--backend", "htp", "--io", "raw"], True, id="raw"),
        GPU,
    ],
)
def test_operations_are_inside_the_execution_they_belong_to(folder, capsys, more, is_other) -> None:
    began = time.monotonic() * 1e6
    assert main(["run", "model.onnx", "--repeat", "3", *more, "--trace", "trace.json"]) == 0
    found = events(folder / "trace.json")
    check(found, began, time.monotonic() * 1e6)
    executions = spans(found, "execute")
    assert len(executions) == 3
    assert {event["pid"] for event in executions} == {os.getpid()}
    operations = [event for event in found if event["ph"] == "X" and event["tid"] >= 1000]
    assert any("conv_1" in event["name"] for event in operations)
    assert all((event["pid"] != os.getpid()) == is_other for event in operations)
    names = {event["pid"]: event["args"]["name"] for event in found if event["name"] == "process_name"}
    assert sorted(names.values()) == (["accelerator", "host"] if is_other else ["host"])
    for event in operations:
        parents = [
            each for each in executions
            if each["ts"] - SLACK <= event["ts"] and event["ts"] + event["dur"] <= each["ts"] + each["dur"] + SLACK
        ]  # fmt: skip
        assert len(parents) == 1
        # Operations whose place is estimated say so in their arguments; this one was measured.
        assert event["args"] == {}
    assert len(operations) % 3 == 0
    assert len({event["ts"] for event in operations}) == len(operations)
    counts = [event for event in found if event["ph"] == "C"]
    assert {event["name"] for event in counts} == {"VTCM"}
    # One at each operation, when it begins, and one at the end of each execution; what prepares tiles is no operation.
    of_model = [event for event in operations if ":" not in event["name"]]
    assert {event["ts"] for event in of_model} <= {event["ts"] for event in counts}
    assert [event["args"]["bytes"] for event in counts].count(0) >= 3
    assert max(event["args"]["bytes"] for event in counts) > 0
    assert counts[-1]["args"]["bytes"] == 0


@pytest.mark.parametrize(
    ("more", "of_host", "of_accelerator"),
    [
        pytest.param(["--backend", "cpu"], {"execute", "operations"}, set(), id="cpu"),
        pytest.param(["--backend", "lpai"], {"execute", "operations"}, set(), id="lpai"),
        pytest.param(["--backend", "htp"], {"register", "execute", "wait"}, {"operations"}, id="htp"),
        pytest.param(["--backend", "htp", "--io", "raw"], {"execute", "copy", "wait"}, {"operations"}, id="htp raw"),
        pytest.param(
            ["--backend", "gpu"], {"register", "execute", "wait"}, {"operations"}, id="gpu", marks=GPU.marks
        ),
        pytest.param(
            ["--backend", "gpu", "--io", "raw"], {"execute", "copy", "wait"}, {"operations"}, id="gpu raw",
            marks=GPU.marks,
        ),
    ],
)  # fmt: skip
def test_what_a_backend_does_has_tracks_with_qnns_names(folder, capsys, more, of_host, of_accelerator) -> None:
    assert main(["run", "model.onnx", *more, "--trace", "trace.json"]) == 0
    names = tracks_of(events(folder / "trace.json"))
    assert names["host"] == {"allocate", *of_host}
    assert names["accelerator"] == of_accelerator


def test_events_that_touch_do_not_overlap_by_rounding() -> None:
    # Such times have no exact numbers in seconds or microseconds.
    times = [62_439_007_431_602 + 333 * number for number in range(200)]
    spans = [TimeSpan(f"step {begin}", begin * 1e-9, end * 1e-9) for begin, end in itertools.pairwise(times)]
    times = [seconds for span in spans for seconds in (span.begin, span.end)]
    record = TraceRecord(AuditLog(), [ExecutionSpans("g", times[0], times[-1], "MainThread", Timings((), 0.0, spans))])
    check(trace_events(record), times[0] * 1e6, times[-1] * 1e6)


def test_fused_steps_have_the_counter_of_the_first() -> None:
    plan = SimpleNamespace(steps=(("Conv2d", "a"), ("Relu", "b")), rows=[PlanRow("x", 5, 0, 0, 0)], regions=())
    spans = [TimeSpan("Conv2d+Relu a", 1.0, 2.0)]
    execution = ExecutionSpans("g", 1.0, 2.0, "MainThread", Timings((), 0.0, spans, ON_DEVICE))
    found = trace_events(TraceRecord(AuditLog(), [execution], {"g": plan}))
    assert [(event["ts"], event["args"]["bytes"]) for event in found if event["ph"] == "C"] == [(1e6, 5), (2e6, 0)]
    # A device without a process has one in the trace.
    assert tracks_of(found) == {"host": {"execute"}, "accelerator": {"operations"}}


def test_the_host_copies_and_waits_for_the_accelerator(folder, capsys) -> None:
    command = ["net-run", "--model", "model.onnx", "--backend", "libQnnHtp.so", "--input_list", "list.txt"]
    assert main([*command, "--trace", "raw.json"]) == 0
    raw = events(folder / "raw.json")
    assert len(spans(raw, "execute")) == len(spans(raw, "wait")) == 2
    # Into shared memory, and back.
    assert len(spans(raw, "copy")) == 4
    assert spans(raw, "allocate")
    assert main([*command, "--shared_buffer", "--trace", "shared.json"]) == 0
    shared = events(folder / "shared.json")
    assert len(spans(shared, "wait")) == 2
    assert not spans(shared, "copy")
    assert spans(shared, "register")


def test_threads_have_tracks_of_their_own(folder, capsys) -> None:
    model = {"modelName": "m", "modelPath": "model.onnx", "inputPath": "list.txt"}
    thread = {"backend": "b", "context": "c", "model": "m", "loopUnit": "count", "loop": 4}
    config = {
        "backends": [{"backendName": "b", "backendPath": "libQnnHtp.so"}],
        "models": [model],
        "contexts": [{"contextName": "c"}],
        "testCase": {"threads": [{"threadName": name, **thread} for name in ("first", "second")]},
    }
    (folder / "config.json").write_text(json.dumps(config))
    began = time.monotonic() * 1e6
    assert main(["throughput-net-run", "--config", "config.json", "--trace", "trace.json"]) == 0
    found = events(folder / "trace.json")
    check(found, began, time.monotonic() * 1e6)
    names = {event["args"]["name"] for event in found if event["name"] == "thread_name"}
    kinds = ("execute", "wait", "operations")
    assert {f"{kind} ({thread})" for kind in kinds for thread in ("first", "second")} <= names
    counters = {event["name"] for event in found if event["ph"] == "C"}
    assert counters == {"VTCM (first)", "VTCM (second)"}
    assert len(spans(found, "execute")) == 8


def test_steps_in_tiles_have_a_span_for_each_iteration(folder) -> None:
    with qnn.Backend("cpu") as backend, qnn.Profile(backend, qnn.ProfileLevel.DETAILED) as profile:
        graph = backend.create_context().compose("model.onnx")
        graph.set_config(qnn.GraphConfig.SCRATCH_LIMIT, "least")
        graph.allocate().binding.execute(profile=profile)
        (execution,) = profile.get_spans()
        assert graph.plan is not None
        assert graph.plan.regions
    times = execution.timings
    assert len(times.spans) > len({span.name for span in times.spans})
    for name, microseconds in times.operations:
        own = sum(span.end - span.begin for span in times.spans if span.name == name)
        assert own * 1e6 == pytest.approx(microseconds, abs=SLACK)


def test_a_full_log_of_the_clock_leaves_the_sums_complete(folder, monkeypatch) -> None:
    monkeypatch.setattr(timed, "MAX_READINGS", 3)
    with qnn.Backend("cpu") as backend, qnn.Profile(backend, qnn.ProfileLevel.DETAILED) as profile:
        backend.create_context().compose("model.onnx").allocate().binding.execute(profile=profile)
        (execution,) = profile.get_spans()
    assert len(execution.timings.spans) <= 2
    assert len(execution.timings.operations) > len(execution.timings.spans)


def test_a_basic_profile_has_no_spans(folder) -> None:
    with qnn.Backend("cpu") as backend, qnn.Profile(backend) as profile:
        backend.create_context().compose("model.onnx").allocate().binding.execute(profile=profile)
        assert profile.get_spans() == ()


def test_operations_whose_begin_is_unknown_are_placed_inside_the_execution() -> None:
    times = Timings([OperationTime("a", 4.0), OperationTime("b", 8.0)])
    record = TraceRecord(AuditLog(), [ExecutionSpans("g", 1.0, 1.000006, "MainThread", times)])
    placed = [event for event in trace_events(record) if event["ph"] == "X" and event["tid"] >= 1000]
    assert [event["ts"] for event in placed] == pytest.approx([1_000_000, 1_000_002])
    assert [event["dur"] for event in placed] == pytest.approx([2, 4])
    assert all(event["args"]["begin"] == "not measured" for event in placed)


def test_the_counter_has_what_is_live_at_each_step() -> None:
    rows = [PlanRow("x", 5, -1, 0, 0), PlanRow("y", 7, 0, 2, 5), PlanRow("z", 2, 1, 1, 0)]
    plan = SimpleNamespace(steps=(("Relu", "a"), ("Relu", "b"), ("Relu", "c")), rows=rows)
    assert live_bytes(plan) == {"Relu a": 12, "Relu b": 9, "Relu c": 7}


def test_a_trace_that_cannot_be_written_is_one_line(folder, capsys) -> None:
    assert main(["run", "model.onnx", "--trace", "none/trace.json"]) == 2
    assert "--trace none/trace.json: cannot be written" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "line", "executions"),
    [
        ("ssr@3", "run model.onnx --backend htp --repeat 5", 2),
        ("", "run model.onnx --inputs bad.npz", 0),
        ("ssr@2", "net-run --model model.onnx --backend libQnnHtp.so --input_list list.txt", 1),
        ("ssr@2", "throughput-net-run --config threads.json", 1),
    ],
)
def test_a_command_that_fails_writes_its_trace_up_to_there_and_says_so(folder, capsys, fault, line, executions) -> None:
    np.savez("bad.npz", x=np.ones((1, 3, 9, 9), np.float32))
    named = {"backend": "htp", "model": "model", "context": "context"}
    configuration = {
        "backends": [{"backendName": "htp", "backendPath": "libQnnHtp.so"}],
        "models": [{"modelName": "model", "modelPath": "model.onnx", "inputPath": "list.txt"}],
        "contexts": [{"contextName": "context"}],
        "testCase": {"iteration": 1, "threads": [{"threadName": "one", **named, "loopUnit": "count", "loop": 3}]},
    }
    (folder / "threads.json").write_text(json.dumps(configuration))
    with faults.inject(fault) if fault else nullcontext():
        assert main([*line.split(), "--trace", "trace.json"]) == 2
    assert capsys.readouterr().err.splitlines()[-2] == "written: trace.json"
    found = events(folder / "trace.json")
    assert len(spans(found, "execute")) == executions
    assert spans(found, "allocate")


def test_no_trace_is_written_of_a_command_that_was_refused_before_it_used_memory(folder, capsys) -> None:
    assert main(["run", "absent.onnx", "--trace", "trace.json"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (folder / "trace.json").exists()


def test_a_trace_that_cannot_be_written_does_not_hide_why_the_command_failed(folder, capsys) -> None:
    np.savez("bad.npz", x=np.ones((1, 3, 9, 9), np.float32))
    assert main(["run", "model.onnx", "--inputs", "bad.npz", "--trace", "/dev/full"]) == 2
    [error] = capsys.readouterr().err.splitlines()
    assert "must have shape" in error
