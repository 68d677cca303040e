"""arm64 code run for real, on an emulated machine, and held against this one: tests, models, and the figures of both.

`make test-arm64` runs it. Each target has a processor of its own, and both are worked on at a time. Kernels are
compiled on the host; the machine finds them in its cache, or asks the host for them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

import arm64_machine as machine
import arm64_models as models
from arm64_models import Case, Comparison
from support import stimuli, zoo

TESTS = (
    "tests/engine/native", "tests/memory", "tests/backends", "tests/qnn", "tests/backends/seam/test_binary.py",
    "tests/session/test_lpai.py", "tests/examples/test_python.py", "tests/examples/test_htp.py",
)  # fmt: skip
LEFT_OUT = {
    "tests/engine/native/test_quantized_peers.py": "LiteRT's interpreter dies under the emulator",
    "tests/engine/native/test_quantized_hybrid.py::test_a_hybrid_layer_agrees_with_litert":
        "LiteRT's interpreter dies under the emulator",
    "tests/backends/accelerator/test_accelerator.py::test_queues_and_graphs_leave_nothing_behind":
        "counts resident bytes, and the emulator keeps the code that it translates",
    "tests/backends/accelerator/test_confinement.py::test_a_confined_process_is_held_by_the_kernel":
        "the emulator lets no process filter its system calls",
    "tests/backends/accelerator/test_confinement.py::test_an_accelerator_is_confined_before_it_is_sent_anything":
        "the emulator lets no process filter its system calls",
    "tests/qnn/test_signals.py": "executions of two hundred large products, half a minute a test and more here",
    "tests/backends/htp/test_binary.py::test_many_contexts_from_one_binary_leave_nothing_behind":
        "counts resident bytes, and the emulator keeps the code that it translates",
    "tests/backends/htp/test_restart.py::test_each_thread_recovers_by_itself":
        "an accelerator takes longer to start than this test gives it before it is killed",
    "tests/backends/htp/test_restart.py::test_a_program_recovers_from_an_accelerator_killed_at_any_step":
        "starts hundreds of accelerators, each of which takes seconds",
}  # fmt: skip
"""Tests that would tell of the emulator and not of arm64."""
EXCHANGE = machine.STORE / "exchange"
HERE = "x86"
FLOAT_FEEDS = 2


@dataclass
class Outcome:
    """What became of the tests and models of one target."""

    target: str
    kernels: int = 0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    comparisons: list[Comparison] = field(default_factory=list)
    seconds_of_tests: float = 0.0
    seconds_of_models: float = 0.0

    @property
    def good(self) -> bool:
        """Whether something ran, and every test and model ended as promised."""
        return not self.failed and bool(self.passed or self.comparisons)


def all_cases() -> list[Case]:
    """Every model that is here on the CPU; the wake words on all backends, some with two threads."""
    here = [key for key, model in zoo.MODELS.items() if model.file.exists()]
    elsewhere = [("okay_nabu", "lpai", 1), ("hey_jarvis", "lpai", 1), ("kws_qdq", "lpai", 1), ("okay_nabu", "htp", 1)]
    threaded = [("efficientnet_lite0", "cpu", 2), ("face_detection_short_range", "cpu", 2), ("nsnet2", "cpu", 2)]
    return [*map(Case, here), *(Case(*fields) for fields in (*elsewhere, *threaded) if fields[0] in here)]


def answer_here(cases: Iterable[Case]) -> list[Case]:
    """Leave feeds and this machine's answers in the exchange; the cases that this machine does not refuse."""
    EXCHANGE.mkdir(parents=True, exist_ok=True)
    cases = list(cases)
    for key in dict.fromkeys(case.key for case in cases):
        # The large models compute with floats; what they do they show at once.
        enough = None if zoo.MODELS[key].numerics == "int8" else FLOAT_FEEDS
        models.save(EXCHANGE / f"{key}.feeds.npz", stimuli.stimuli(key)[:enough])
    command = [sys.executable, models.__file__, *_arguments(HERE, cases)]
    source = os.pathsep.join(str(machine.PROJECT / part) for part in ("src", "tests"))
    own = {"PYTHONPATH": source, "ISTHMUS_CACHE_DIR": str(machine.PROJECT / ".cache" / "kernels")}
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, env={**os.environ, **own})
    refused = {reported["case"] for reported in map(json.loads, done.stdout.splitlines()) if "refused" in reported}
    return [case for case in cases if str(case) not in refused]


def hold_models(outcome: Outcome, cases: Sequence[Case]) -> None:
    """Run the cases on the emulated machine, and compare its answers with those of the host."""
    start = time.monotonic()
    done = machine.call([models.__file__, *_arguments(outcome.target, cases)], outcome.target)
    reported = [json.loads(line) for line in done.stdout.splitlines()]
    outcome.failed += [f"{line['case']}: refused: {line['refused']}" for line in reported if "refused" in line]
    if len(reported) < len(cases):
        said = (done.stderr.strip().splitlines() or [""])[-1]
        outcome.failed.append(f"{cases[len(reported)]}: ended the process ({done.returncode}): {said}")
    for case, line in zip(cases, reported, strict=False):
        if "refused" not in line:
            here, there = (models.load(EXCHANGE / f"{case}.{name}.npz") for name in (HERE, outcome.target))
            outcome.comparisons.append(models.compare(case, here, there))
    broken = [c for c in outcome.comparisons if not c.as_promised]
    outcome.failed += [f"{c.case}: {c.apart:.3g} of the largest value apart" for c in broken]
    outcome.seconds_of_models = time.monotonic() - start


def hold_tests(outcome: Outcome, tests: Sequence[str]) -> None:
    """Run tests of this project on the machine."""
    start = time.monotonic()
    report = machine.STORE / f"tests-{outcome.target}.xml"
    report.unlink(missing_ok=True)
    command = [
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "host_compiler", f"--junitxml={report}"),
        *("-o", "junit_family=xunit1", *(f"--deselect={test}" for test in LEFT_OUT), *tests),
    ]
    done = machine.call(command, outcome.target)
    (machine.STORE / f"tests-{outcome.target}.txt").write_text(done.stdout + done.stderr)
    if report.exists():
        _count(outcome, report)
    else:
        outcome.failed.append(f"the tests ended the process ({done.returncode}): {(done.stdout + done.stderr)[-300:]}")
    outcome.seconds_of_tests = time.monotonic() - start


def _count(outcome: Outcome, report: Path) -> None:
    for case in ElementTree.parse(report).iter("testcase"):
        problem, skip = next((x for x in case if x.tag in ("failure", "error")), None), case.find("skipped")
        if problem is not None:
            outcome.failed.append(f"{case.get('file')}::{case.get('name')}: {problem.get('message', '')[:200]}")
        elif skip is not None:
            outcome.skipped[skip.get("message", "")] += 1
        else:
            outcome.passed += 1


def hold(target: str, cases: Sequence[Case], tests: Sequence[str]) -> Outcome:
    """Models and tests on the processor of one target."""
    outcome = Outcome(target)
    if cases:
        print(f"{target}: {len(cases)} runs of models", flush=True)
        hold_models(outcome, cases)
    if tests:
        print(f"{target}: tests", flush=True)
        hold_tests(outcome, tests)
    # A file is named by kernel, target and key; there is one for each state of a kernel's sources.
    files = {file.stem.rpartition("-")[0] for file in (machine.STORE / "kernels").glob("*.o")}
    outcome.kernels = sum(name.endswith(f"-{target}") for name in files)
    return outcome


def show(outcome: Outcome) -> None:
    """The figures of a target."""
    keys = {c.case.key for c in outcome.comparisons}
    same = [c for c in outcome.comparisons if c.identical]
    apart = [c for c in outcome.comparisons if not c.identical]
    print(f"{outcome.target} on {machine.PROCESSORS[outcome.target]}")
    print(f"  kernels  {outcome.kernels} compiled on the host")
    print(
        f"  models   {len(keys)}, in {len(outcome.comparisons)} ways: {len(same)} answer as here to the bit, "
        f"{len(apart)} within {max((c.apart for c in apart), default=0):.2g} of the largest value; "
        f"{outcome.seconds_of_models:.0f} s"
    )
    for c in apart:
        print(f"             {c.case}: {c.apart:.2g}")
    print(f"  tests    {outcome.passed} passed, {outcome.skipped.total()} skipped; {outcome.seconds_of_tests:.0f} s")
    for reason, count in outcome.skipped.most_common():
        print(f"             {count:4} {reason}")
    print(f"  failed   {len(outcome.failed)}")
    for what in outcome.failed:
        print(f"             {what}")


def _arguments(name: str, cases: Iterable[Case]) -> list[str]:
    return [str(EXCHANGE), name, json.dumps([asdict(case) for case in cases])]


def main() -> int:
    """Set the machine up, run everything on it and print the figures."""
    parser = argparse.ArgumentParser(description="Run arm64 code on an emulated machine and hold it against this one.")
    parser.add_argument("--targets", nargs="+", choices=machine.PROCESSORS, default=list(machine.PROCESSORS))
    parser.add_argument("--models", nargs="*", metavar="KEY", help="models to run (all)")
    parser.add_argument("--tests", nargs="*", metavar="PATH", default=TESTS, help="tests to run")
    options = parser.parse_args()
    try:
        machine.set_up()
    except machine.Unavailable as reason:
        print(reason, file=sys.stderr)
        return 1
    start = time.monotonic()
    cases = [case for case in all_cases() if options.models is None or case.key in options.models]
    cases = answer_here(cases)
    os.environ["ISTHMUS_CACHE_DIR"] = str(machine.STORE / "kernels")
    for target in options.targets:
        models.compile_for(cases, target)
    with ThreadPoolExecutor(len(options.targets)) as pool:
        outcomes = list(pool.map(lambda target: hold(target, cases, options.tests), options.targets))
    for outcome in outcomes:
        show(outcome)
    for test, reason in LEFT_OUT.items():
        print(f"left out: {test.rpartition('::')[2]}: {reason}")
    print(f"{time.monotonic() - start:.0f} s in all")
    return 0 if all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
