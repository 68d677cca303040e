"""``--trace``: events on one clock; operations are inside their execution, in the accelerator's own process."""

import json
import os
import time
from collections import defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
from support import tiny

from isthmus import qnn
from isthmus.backends.seam.driver import OperationTime, Timings
from isthmus.engine.native import timed
from isthmus.memory.auditing import AuditLog
from isthmus.prepare.schedule import PlanRow
from isthmus.qnn.profile import ExecutionSpans
from isthmus.tools.cli import main
from isthmus.tools.trace import TraceRecord, live_bytes, trace_events

SLACK = 1.0
"""Microseconds by which sums of floats may be off."""


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


def check(found, began, ended):
    """Check what holds for every trace: times, names of tracks, and nesting."""
    named = {(event["pid"], event["tid"]) for event in found if event["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in found:
        if event["ph"] == "M":
            continue
        assert began - SLACK <= event["ts"] <= event["ts"] + event.get("dur", 0) <= ended + SLACK
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in named
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for track in tracks.values():
        # On one track, an event is after the previous one or inside it.
        inside = []
        for begin, end in sorted(track, key=lambda each: (each[0], -each[1])):
            while inside and inside[-1] <= begin + SLACK:
                inside.pop()
            assert not inside or end <= inside[-1] + SLACK
            inside.append(end)


@pytest.mark.parametrize(
    ("more", "is_other"),
    [
        (["--backend", "cpu"], False),
        (["--backend", "cpu", "--scratch-limit", "least", "--threads", "2"], False),
        (["--backend", "lpai"], False),
        (["--backend", "htp"], True),
        (["--backend", "htp", "--io", "raw"], True),
    ],
    ids=["cpu", "tiles", "lpai", "htp", "raw"],
)
def test_operations_are_inside_the_execution_they_belong_to(folder, capsys, more, is_other):
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
    counts = [event["args"]["bytes"] for event in found if event["ph"] == "C"]
    assert max(counts) > 0
    assert counts[-1] == 0


def test_the_host_copies_and_waits_for_the_accelerator(folder, capsys):
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


def test_threads_have_tracks_of_their_own(folder, capsys):
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
    assert len(spans(found, "execute")) == 8


def test_steps_in_tiles_have_a_span_for_each_turn(folder):
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


def test_a_full_log_of_the_clock_leaves_the_sums_complete(folder, monkeypatch):
    monkeypatch.setattr(timed, "MAX_READINGS", 3)
    with qnn.Backend("cpu") as backend, qnn.Profile(backend, qnn.ProfileLevel.DETAILED) as profile:
        backend.create_context().compose("model.onnx").allocate().binding.execute(profile=profile)
        (execution,) = profile.get_spans()
    assert len(execution.timings.spans) <= 2
    assert len(execution.timings.operations) > len(execution.timings.spans)


def test_a_basic_profile_has_no_spans(folder):
    with qnn.Backend("cpu") as backend, qnn.Profile(backend) as profile:
        backend.create_context().compose("model.onnx").allocate().binding.execute(profile=profile)
        assert profile.get_spans() == ()


def test_operations_whose_begin_is_unknown_are_placed_inside_the_execution():
    times = Timings([OperationTime("a", 4.0), OperationTime("b", 8.0)])
    record = TraceRecord(AuditLog(), [ExecutionSpans("g", 1.0, 1.000006, "MainThread", times)])
    placed = [event for event in trace_events(record) if event["ph"] == "X" and event["tid"] >= 1000]
    assert [event["ts"] for event in placed] == pytest.approx([1_000_000, 1_000_002])
    assert [event["dur"] for event in placed] == pytest.approx([2, 4])
    assert all(event["args"]["begin"] == "not measured" for event in placed)


def test_the_counter_has_what_is_live_at_each_step():
    rows = [PlanRow("x", 5, -1, 0, 0), PlanRow("y", 7, 0, 2, 5), PlanRow("z", 2, 1, 1, 0)]
    plan = SimpleNamespace(steps=(("Relu", "a"), ("Relu", "b"), ("Relu", "c")), rows=rows)
    assert live_bytes(plan) == {"Relu a": 12, "Relu b": 9, "Relu c": 7}


def test_a_trace_that_cannot_be_written_is_one_line(folder, capsys):
    assert main(["run", "model.onnx", "--trace", "none/trace.json"]) == 2
    assert "--trace none/trace.json: cannot be written" in capsys.readouterr().err
