"""``isthmus throughput-net-run``: run models on several threads at a time, as a JSON file says, and count inferences.

The file lists ``backends``, ``models``, ``contexts`` and, in ``testCase``, the ``threads``: each names a backend, a
context and a model, and repeats its input list for a number of inferences (``loopUnit`` count) or of seconds (second).

Each thread has a context of its own. Results are written to outputPath/threadName/Result_N.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.backends.seam.config import PERF_PROFILES, Key, Objects, Table, number, settings, text, truth, unused, word
from isthmus.errors import Code, QnnError, counted, did_you_mean
from isthmus.log import Log, LogLevel
from isthmus.system.progress import progress
from isthmus.tools import raw_files
from isthmus.tools.files import file_name, refuse_overwrite, refuse_shared, write_file
from isthmus.tools.messages import print_report
from isthmus.tools.models import compose
from isthmus.tools.options import LOG_LEVELS, add_shared
from isthmus.tools.raw_files import InputList, read_list
from isthmus.tools.trace import TraceRecord, record_trace

NONE, LAST, ALL = "NONE", "NATIVE_LAST", "NATIVE_ALL"
"""Which results are written: the values of ``saveOutput``."""
_COUNT = number(0, 1 << 40)
# Seconds between two looks at how far the threads have come.
_INTERVAL = 0.1


_TABLE: Table = {
    "backends": Objects("backends", {
        "backendName": Key("name", text),
        "backendPath": Key("path", text),
        "backendExtensions": Key("config", text),
        "profilingLevel": unused(word("OFF", "BASIC", "DETAILED")),
        "perfProfile": unused(word(*PERF_PROFILES)),
    }),
    "models": Objects("models", {
        "modelName": Key("name", text),
        "modelPath": Key("path", text),
        "loadFromCachedBinary": Key("binary", truth),
        "inputPath": Key("inputs", text),
        "inputDataType": Key("input_type", word("FLOAT", "NATIVE")),
        "outputPath": Key("outputs", text),
        "outputDataType": Key("output_type", word("FLOAT_ONLY", "NATIVE_ONLY", "FLOAT_AND_NATIVE")),
        "saveOutput": Key("save", word(NONE, LAST, ALL)),
        "postProcessor": unused(word("NONE")),
        "groundTruthPath": unused(text),
    }),
    "contexts": Objects("contexts", {
        "contextName": Key("name", text),
        "priority": unused(word("DEFAULT", "LOW", "NORMAL", "HIGH")),
    }),
    "testCase": {
        "iteration": Key("iteration", number(1, 1 << 20)),
        "logLevel": unused(word(*LOG_LEVELS)),
        "threads": Objects("threads", {
            "threadName": Key("name", text),
            "backend": Key("backend", text),
            "context": Key("context", text),
            "model": Key("model", text),
            "interval": Key("interval", _COUNT),
            "loopUnit": Key("unit", word("count", "second")),
            "loop": Key("loop", number(1, 1 << 40)),
        }),
    },
}  # fmt: skip


@dataclass
class ModelThread:
    """A thread that repeats a model's input list.

    - `interval`: microseconds between two inferences.
    - `unit`, `loop`: how long: a number of inferences (count) or of seconds (second).
    - `executed`: how many inferences have ended.
    - `stop`: ends all threads that share it, after their current inference.
    - `profile`: where executions are recorded, if a trace is wanted.
    - `problem`: what ended it early.
    - `ended`: set when the thread has ended.
    """

    name: str
    model: Mapping[str, Any]
    memory: qnn.GraphMemory
    inputs: InputList
    interval: int
    unit: str
    loop: int
    stop: threading.Event
    profile: qnn.Profile | None = None
    executed: int = 0
    seconds: float = 0.0
    problem: Exception | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Run the inferences, and keep what ends them early, which ends all threads."""
        began = time.perf_counter()
        try:
            self._run(began)
        except Exception as problem:
            self.problem = problem
            self.stop.set()
        self.seconds += time.perf_counter() - began
        self.ended.set()

    def _run(self, began: float) -> None:
        """Run the inferences and write the results that the model asks for."""
        inputs, save = self.memory.binding.graph.input_tensors, self.model.get("save", NONE)
        native = [info.name for info in inputs] if self.model.get("input_type") == "NATIVE" else ()
        for done, inference in enumerate(cycle(self.inputs.inferences), 1):
            inference.read(inputs, native, self.memory.inputs)
            self.memory.binding.execute(self.profile)
            self.executed += 1
            ended = done >= self.loop if self.unit == "count" else time.perf_counter() - began >= self.loop
            if save == ALL or (save == LAST and ended):
                self._write(self.executed - 1)
            if ended or self.stop.wait(self.interval * 1e-6):
                return

    def _write(self, number: int) -> None:
        """Write the outputs of an inference."""
        folder = Path(self.model.get("outputs", "output")) / self.name / f"Result_{number}"
        outputs, content = self.memory.binding.graph.output_tensors, self.model.get("output_type", raw_files.FLOAT)
        self.inputs.write(folder, outputs, self.memory.outputs, content.lower())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to a parser."""
    parser.add_argument("--config", type=file_name, required=True, metavar="FILE", help="what to run (JSON)")
    parser.add_argument("--output", type=file_name, metavar="FILE", help="write the figures as JSON too")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    add_shared(parser, "trace")


def main(options: argparse.Namespace) -> int:
    """Run the command."""
    outputs = {"--output": options.output, "--trace": options.trace}
    refuse_shared(outputs)
    for option, path in outputs.items():
        refuse_overwrite(f"{option} {path}", path, options.config)
    if options.trace is None:
        _run(options, None)
        return 0
    with record_trace(options.trace) as record:
        _run(options, record)
    return 0


def _run(options: argparse.Namespace, record: TraceRecord | None) -> None:
    """Run the threads and report them; with a record, executions are added to it."""
    given = settings(options.config, _TABLE)
    where = given.source
    backends, models, contexts, threads = (
        _by_name(given.values.get(kind, ()), kind, where) for kind in ("backends", "models", "contexts", "threads")
    )
    if not threads:
        raise QnnError(Code.BACKEND_INVALID_CONFIG, where, "it names no thread", "List them in testCase.threads.")
    # Memory is closed after the backends.
    with ExitStack() as memories, ExitStack() as opening:
        opened = {name: opening.enter_context(_backend(name, each, where)) for name, each in backends.items()}
        running = []
        stop = threading.Event()
        for name, thread in threads.items():
            what = f"{where}, thread '{name}'"
            _reference(thread, "context", contexts, what)
            backend = opened[_reference(thread, "backend", opened, what)]
            model = models[_reference(thread, "model", models, what)]
            memory, inputs = _prepare(backend, model, f"{where}, model '{model['name']}'")
            memories.callback(memory.close)
            times = (thread.get("interval", 0), thread.get("unit", "count"), thread.get("loop", 1))
            profile = None if record is None else opening.enter_context(record.profile(memory.binding.graph))
            running.append(ModelThread(name, model, memory, inputs, *times, stop, profile))
        given.log_unused(Log(), LogLevel.WARN)
        began = time.perf_counter()
        for _ in range(given.values.get("iteration", 1)):
            _run_together(running, stop)
        total = time.perf_counter() - began
    _report(running, total, options)


def _backend(name: str, given: Mapping[str, Any], where: str) -> qnn.Backend:
    """Create the backend that the file names."""
    entry = registry.entry(_require(given, "path", "backendPath", f"{where}, backend '{name}'"))
    return qnn.Backend(entry.name, given.get("config"))


def _prepare(backend: qnn.Backend, model: Mapping[str, Any], what: str) -> tuple[qnn.GraphMemory, InputList]:
    """Load a model in a context of its own; return the memory of its graph and the checked input list."""
    path = Path(_require(model, "path", "modelPath", what))
    lists = Path(_require(model, "inputs", "inputPath", what))
    if model.get("binary", False):
        context = backend.create_context_from_binary(path)
    else:
        context = backend.create_context()
        compose(context, [path], [], backend.entry.io_kind(None))
    if len(context.graphs) != 1:
        rule = f"it has {counted(len(context.graphs), 'graph')}; a thread runs one"
        raise QnnError(Code.COMMON_NOT_SUPPORTED, what, rule)
    [graph] = context.graphs.values()
    names = [info.name for info in graph.input_tensors]
    inputs = read_list(lists, names, [info.name for info in graph.output_tensors])
    native = set(names) if model.get("input_type") == "NATIVE" else set()
    inputs.check(graph.input_tensors, native, "inputDataType NATIVE")
    return graph.allocate(), inputs


def _run_together(running: list[ModelThread], stop: threading.Event) -> None:
    """Run all threads until they end; an error of one ends the others and is raised, as is an interrupt."""
    threads = [threading.Thread(target=each.run, name=each.name, daemon=True) for each in running]
    try:
        for each, thread in zip(running, threads, strict=True):
            each.ended.clear()
            thread.start()
        counts = [each.loop for each in running if each.unit == "count"]
        total = sum(counts) if len(counts) == len(running) else None
        before = sum(each.executed for each in running)
        with progress("inferences", total) as state:
            for each in running:
                # Not Thread.join: an interrupt there makes Python 3.11 take a thread for ended that is not.
                while not each.ended.wait(_INTERVAL):
                    state.reach(sum(each.executed for each in running) - before)
    finally:
        # All have ended by now, unless this thread was interrupted.
        stop.set()
        for each, thread in zip(running, threads, strict=True):
            if thread.ident is not None:
                each.ended.wait()
    stop.clear()
    for each in running:
        if each.problem is not None:
            raise each.problem


def _report(running: list[ModelThread], total: float, options: argparse.Namespace) -> None:
    """Print the figures of each thread, and write them if a file is named."""
    figures = {
        each.name: {"inferences": each.executed, "inferences_per_second": each.executed / each.seconds}
        for each in running
    }
    report = {"total_us": total * 1e6, "threads": figures}
    if options.output is not None:
        write_file(options.output, json.dumps(report).encode())
    lines = [
        f"{each.name}:graphExecute: {counted(each.executed, 'inference')}, "
        f"{each.executed / each.seconds:.1f} per second"
        for each in running
    ]
    print_report(options, report, (*lines, f"TotalTime (us): {total * 1e6:.0f}"))


def _by_name(objects: Any, kind: str, where: str) -> dict[str, Mapping[str, Any]]:
    """Return objects of a file by their names; refuse one without a name, and two of the same."""
    found: dict[str, Mapping[str, Any]] = {}
    for each in objects:
        name = each.get("name")
        if name is None or name in found:
            rule = "one of its objects has no name" if name is None else f"two are called '{name}'"
            raise QnnError(Code.BACKEND_INVALID_CONFIG, f"{where}, key '{kind}'", rule)
        found[name] = each
    return found


def _require(given: Mapping[str, Any], setting: str, key: str, what: str) -> str:
    """Return a setting that an object must have."""
    if setting not in given:
        raise QnnError(Code.BACKEND_INVALID_CONFIG, what, f"{key} is missing")
    return str(given[setting])


def _reference(thread: Mapping[str, Any], kind: str, objects: Mapping[str, Any], what: str) -> str:
    """Return the name by which a thread refers to another object of the file."""
    name = _require(thread, kind, kind, what)
    if name not in objects:
        raise QnnError(Code.BACKEND_INVALID_CONFIG, what, f"there is no {kind} '{name}'", did_you_mean(name, objects))
    return name
