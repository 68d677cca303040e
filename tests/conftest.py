"""What all tests share: kernel caches inside the project, a time limit, an order, logging, and the figures at the end.

No test may take longer than `ISTHMUS_TEST_SECONDS`, 900 where that is not set. A hang in native code, which no signal
can interrupt, ends the process a little later (`faulthandler_timeout` in pyproject.toml). With `ISTHMUS_SHUFFLE` set to
a number, tests run in a random order that the number decides, the same in all processes; in one process (`-n 0`) also
in random company. With `--no-loadscope-reorder`, as `make test` has it, files are taken in that order too.

A name in `ISTHMUS_REQUIRE` that does not exist ends the run (`support/requirements.py`).

Tests leave logging as they find it: others read what is logged. Before each test the random generators of all modules
are set back.

The summary says how much memory the largest worker took. The node tests record on their reports what they are (see
`nodes/test_onnx_nodes.py`), so that the account is the same when several processes run them.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import resource as limits
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from support import requirements, suites

from isthmus.capi import installation
from isthmus.engine.native import lower, target
from isthmus.engine.native.program import Program
from isthmus.engine.native.verification import verify
from isthmus.memory import resource, tcm

os.environ.setdefault("ISTHMUS_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "kernels"))
# Tests make many weights that no other process needs; those about the folder of packed weights set it themselves.
os.environ.setdefault("ISTHMUS_CACHE_WEIGHTS", "0")
os.environ.setdefault("POCL_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "pocl"))

_SHOWN = 40  # failures named in the account

# A shell that starts the tests in the background ignores interrupts, for all that they start too; some tests send them.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says nothing on a machine that others use too.
settings.register_profile("isthmus", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("isthmus")

# Several folders have a file of this name, and as modules with examples to try they would be one.
collect_ignore_glob = ["conftest.py", "*/conftest.py"]

_SECONDS = float(os.environ.get("ISTHMUS_TEST_SECONDS", "900"))
_SECONDS_TO_REPEAT = min(_SECONDS, 5.0)
_SEED = os.environ.get("ISTHMUS_SHUFFLE")


_peaks: list[int] = []
"""The most memory that each worker, and this process, had, in bytes."""

_lower = lower.lower


def _lowered_and_verified(*arguments: Any, **keywords: Any) -> Program:
    program = _lower(*arguments, **keywords)
    verify(program)
    return program


lower.lower = _lowered_and_verified  # whatever a test lowers must pass as a program of strangers


def pytest_configure(config: pytest.Config) -> None:
    requirements.required()
    if not hasattr(config, "workerinput"):
        installation.include()  # once, before workers compile programs with these headers


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = {"not long": "short tests", "long": "long tests"}.get(config.option.markexpr, "short and long tests")
    folder = os.environ["ISTHMUS_CACHE_DIR"]
    header = [f"isthmus: {chosen} on target {target.host().name}; kernels are compiled once, into {folder}"]
    return [*header, f"isthmus: {_order()}"] if _SEED else header


def _order() -> str:
    return f"tests in the random order of seed {_SEED}: ISTHMUS_SHUFFLE={_SEED} or `make test SEED={_SEED}` repeats it"


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _peaks.append(getattr(node, "workeroutput", {}).get("peak", 0))


def pytest_sessionfinish(session: pytest.Session) -> None:
    peak = limits.getrusage(limits.RUSAGE_SELF).ru_maxrss * 1024
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["peak"] = peak
    else:
        _peaks.append(peak)


def pytest_deselected(items: list[pytest.Item]) -> None:
    suites.deselected += len(items)


def pytest_collection_finish() -> None:
    _find_generators()
    _freeze()


_generators: list[tuple[np.random.Generator, Any]] = []
"""The random generators of the modules of tests, and their states after all modules were imported."""


def _find_generators() -> None:
    """Find the random generators of all modules in this folder."""
    folder = f"{Path(__file__).parent}{os.sep}"
    modules = [each for each in sys.modules.values() if str(getattr(each, "__file__", "")).startswith(folder)]
    each = {id(v): v for module in modules for v in vars(module).values() if isinstance(v, np.random.Generator)}
    _generators[:] = [(generator, generator.bit_generator.state) for generator in each.values()]


def _reset_generators() -> None:
    """Set all generators back, so that the numbers of a test do not depend on the tests before it."""
    for generator, state in _generators:
        generator.bit_generator.state = state


def _freeze() -> None:
    """Exempt all objects from garbage collection: what outlives a file of tests mostly stays to the end.

    Many tests call the collector, some at every place where an interrupt can come. It takes as long as there are
    objects to look at, and modules, caches and pytest's own records add up.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if _SEED:
        random.Random(_SEED).shuffle(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    _reset_generators()
    with _time_limit():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    # Once more, because the first test of a module has also set up the fixtures of the module.
    _reset_generators()
    with _time_limit():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    with _time_limit():
        result = yield
    if nextitem is None or nextitem.path != item.path:
        _check_logging(item.path)
        _freeze()
    return result


def _check_logging(path: Path) -> None:
    """Fail if the tests of a file have left logging in a state in which others would miss messages, and set it back."""
    root, every = logging.root, logging.root.manager.loggerDict
    ours = [each for name, each in every.items() if name.partition(".")[0] == "isthmus"]
    changed = ["all loggers"] if root.manager.disable else []
    logging.disable(logging.NOTSET)
    for logger in (root, *(each for each in ours if isinstance(each, logging.Logger))):
        level = logging.WARNING if logger is root else logging.NOTSET
        # The root's handlers are pytest's own.
        handlers = [] if logger is root else logger.handlers
        if logger.level != level or logger.disabled or not logger.propagate or handlers:
            changed.append(f"{logger.name} (level {logger.level})")
            logger.setLevel(level)
            logger.disabled, logger.propagate = False, True
            handlers.clear()
    if changed:
        pytest.fail(f"tests of {path.name} leave logging changed: {', '.join(changed)}")


@contextmanager
def _time_limit() -> Iterator[None]:
    """Fail what takes too long, as far as a signal can reach it.

    Python drops what is raised in a destructor or in a weak reference's callback, so it is raised again, until the test
    has ended.
    """

    def late(number: int, frame: object) -> None:
        pytest.fail(f"took longer than {_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS, _SECONDS_TO_REPEAT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.excinfo is not None:
        _add_lines(call.excinfo.value)
        call.excinfo = pytest.ExceptionInfo.from_exception(call.excinfo.value)
    return (yield)


def _add_lines(problem: BaseException) -> None:
    """Give every entry of the tracebacks a line: without one, pytest fails to report the test and ends the worker.

    A signal's handler may raise where a loop turns back, and that instruction need not belong to a line.
    """
    found = [problem]
    for each in found:
        each.__traceback__ = _with_lines(each.__traceback__)
        others = (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
        found += [other for other in others if other is not None and all(other is not known for known in found)]


def _with_lines(entry: TracebackType | None) -> TracebackType | None:
    """Copy a traceback; an entry without a line gets the first of its function."""
    entries = []
    while entry is not None:
        entries.append(entry)
        entry = entry.tb_next
    repaired = None
    for entry in reversed(entries):
        line = entry.tb_lineno or entry.tb_frame.f_code.co_firstlineno
        repaired = TracebackType(repaired, entry.tb_frame, entry.tb_lasti, line)
    return repaired


@pytest.fixture
def take_code_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Makes models that are opened in this test run the code of the named target."""

    def take(name: str) -> None:
        monkeypatch.setenv("ISTHMUS_TARGET", name)
        target.host.cache_clear()

    yield take
    monkeypatch.undo()
    target.host.cache_clear()


@pytest.fixture
def fresh_tcm() -> Iterator[tcm.TcmPool]:
    """A pool of TCM that nothing was allocated from yet, as in a new process; it must be empty in the end."""
    before = resource.current("tcm")
    pool = tcm.TcmPool()
    resource.provide(pool)
    yield pool
    resource.provide(before)
    assert pool.free_bytes == tcm.POOL_BYTES, "everything was given back"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    write = terminalreporter.write_line
    if _peaks:
        write(f"memory of the largest worker: {max(_peaks) / 1e9:.2f} GB")
    if _SEED:
        write(_order())
    found = _node_reports(terminalreporter)
    if not found:
        return
    terminalreporter.section("ONNX node tests")
    passed, missed = found["in scope", "passed"], found["in scope", "failed"] | found["in scope", "xfailed"]
    share = 100 * len(passed) / max(1, len(passed) + len(missed))
    write(f"passed: {len(passed)} of {len(passed) + len(missed)} in scope ({share:.1f} %)")
    write(f"passed beyond the list of operations: {len(found['beyond', 'passed'])}")
    for end, title in (("failed", "failed"), ("xfailed", "known to fail")):
        reasons = found["in scope", end] | found["beyond", end]
        write(f"{title}: {len(reasons)}")
        for name in sorted(reasons)[:_SHOWN]:
            write(f"    {name}: {reasons[name]}")
        if len(reasons) > _SHOWN:
            write(f"    and {len(reasons) - _SHOWN} more")
    skipped = found["out of scope", "skipped"] | found["beyond", "skipped"]
    counts = Counter(skipped.values())
    write(f"out of scope: {counts.total()}")
    for reason, count in counts.most_common():
        write(f"    {count:4} {reason}")
        if terminalreporter.verbosity > 0:
            for name in sorted(n for n, why in skipped.items() if why == reason):
                write(f"         {name}")


def _node_reports(terminalreporter: pytest.TerminalReporter) -> dict[tuple[str, str], dict[str, str]]:
    """Reason by name of case, for each scope and kind of end."""
    found: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for end in ("passed", "failed", "xfailed", "skipped"):
        for report in terminalreporter.stats.get(end, ()):
            # Each test also leaves reports of its set-up and tear-down.
            if getattr(report, "when", None) == "call":
                recorded = dict(report.user_properties)
                if "onnx node" in recorded:
                    found[recorded["scope"], end][recorded["onnx node"]] = _reason(report)
    return found


def _reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail).removeprefix("reason: ")
    if report.skipped and isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ").removeprefix("out of scope: ")
    return str(report.longrepr).splitlines()[0] if report.longrepr else ""
