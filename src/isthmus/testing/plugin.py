"""The pytest plugin: fixtures, and the marker ``isthmus`` that audits a test and injects faults into it.

It is installed with the package (entry point ``pytest11``). It loads nothing else of the package before a test uses the
marker or a fixture.

- ``@pytest.mark.isthmus(max_copied=0, no_leaks=True, fault="ssr@3")`` sets limits for a test and its child processes.
- ``qnn_libraries`` is a folder with ``libQnnHtp.so``, ``libQnnSystem.so`` ..., which child processes find by name.
- ``htp`` is a backend with an accelerator process of its own.
- ``qnn_session`` opens model files, and closes them after the test.
- ``isthmus_audit`` is the audit of the test so far.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from isthmus import qnn
    from isthmus.audit_log import AuditLog
    from isthmus.faults import InjectedFault
    from isthmus.session import Session

MARKER = "isthmus"
_DEFAULT_BACKEND = "htp"
# Faults of accelerators. They concern only accelerators that start while the faults are in force.
_ACCELERATOR_FAULTS = ("ssr", "map", "slow-unmap")


@dataclass(frozen=True)
class MarkerOptions:
    """What the marker allows a test, and what it injects.

    - `max_copied`: the bytes that executions may copy; None for any number.
    - `no_leaks`: whether everything that is allocated or registered must be freed when the test and its fixtures have
      ended.
    - `no_mistakes`: whether the audit may list no mistake at all.
    - `fault`: faults to inject, as ``ISTHMUS_FAULTS`` lists them. Each must occur, except ``fds``, which cannot be
      checked and is in force only while the test function runs.
    - `backend`: the backend of ``qnn_session``.
    """

    max_copied: int | None = None
    no_leaks: bool = False
    no_mistakes: bool = False
    fault: str = ""
    backend: str = _DEFAULT_BACKEND


_TYPES: dict[str, tuple[type, ...]] = {
    "max_copied": (int, type(None)), "no_leaks": (bool,), "no_mistakes": (bool,), "fault": (str,), "backend": (str,)
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Describe the marker."""
    keywords = ", ".join(f"{field.name}={field.default!r}" for field in fields(MarkerOptions))
    config.addinivalue_line("markers", f"{MARKER}({keywords}): audit the test, limit it, and inject faults")


def _limits(item: pytest.Item) -> MarkerOptions:
    """Return the limits of a test: each as its nearest marker sets it. Fail the test if a marker is wrong."""
    from isthmus.backends.seam import registry
    from isthmus.errors import QnnError, did_you_mean
    from isthmus.faults import parse

    def refuse(rule: str, hint: str = "") -> None:
        pytest.fail(f"marker '{MARKER}': {rule}{f'. {hint}' if hint else ''}", pytrace=False)

    keywords: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        if mark.args:
            refuse(f"it takes keywords only, not {mark.args[0]!r}", f"Keywords are {', '.join(_TYPES)}.")
        keywords.update(mark.kwargs)
    for name, value in keywords.items():
        if name not in _TYPES:
            refuse(f"it has no keyword '{name}'", did_you_mean(name, _TYPES) or f"Keywords are {', '.join(_TYPES)}.")
        # True is an integer too.
        if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name]):
            refuse(f"{name}={value!r} must be of type {_TYPES[name][0].__name__}")
        if name == "max_copied" and value is not None and value < 0:
            refuse(f"max_copied={value} is less than 0")
    options, problem = MarkerOptions(**keywords), ""
    try:
        parse(options.fault)
        registry.entry(options.backend)
    except QnnError as error:
        # Failing here would show the error twice.
        problem = str(error)
    if problem:
        refuse(problem)
    return options


class Watch:
    """The audit of one test, from its first fixture to its last, with those of its child processes."""

    def __init__(self, limits: MarkerOptions) -> None:
        # Loaded before the variables are set: they are for child processes, not for this one.
        from isthmus import faults, qnn  # noqa: F401
        from isthmus.memory.auditing import VARIABLE, audit

        self.limits = limits
        self._copied_too_much = False
        self._test_passed = False
        self._children = TemporaryDirectory(prefix="isthmus-audit-")
        self._block = ExitStack()
        variables = self._block.enter_context(pytest.MonkeyPatch.context())
        variables.setenv(VARIABLE, str(Path(self._children.name) / "%p.json"))
        self.log: AuditLog = self._block.enter_context(audit())
        self._faults = faults.FaultList(())
        if limits.fault:
            # Descriptors are limited for the test function only: pytest and this plugin need some themselves.
            self._faults = self._block.enter_context(faults.inject(limits.fault, limits_descriptors=False))

    def around_function(self) -> AbstractContextManager[None]:
        """Return the block for the test function itself, without its fixtures: only there descriptors are limited."""
        return self._faults.few_descriptors()

    def check_call(self) -> None:
        """Fail a test that has copied too much, or in which the call of an injected fault was not reached."""
        self._test_passed = True
        self._include_children()
        self._check_copies()
        self._check_faults(lambda fault: fault.nth > 0)

    def _check_faults(self, concerns: Callable[[InjectedFault], bool]) -> None:
        """Fail a test if one of these faults has not occurred, and say how many calls there were."""
        for fault in filter(concerns, self._faults.faults):
            if fault.text not in self.log.faults:
                where = "in this process"
                if fault.name in _ACCELERATOR_FAULTS:
                    where = "on accelerators (HTP) that this process started in the test"
                calls = f"{self._faults.calls(fault.name)} counted {where}. Child processes count for themselves."
                pytest.fail(f"fault '{fault.text}' did not occur: {calls}\n{self.log}", pytrace=False)

    def _check_copies(self) -> None:
        """Fail a test that has copied too much, once."""
        copied, allowed = self.log.copied_bytes, self.limits.max_copied
        if allowed is not None and copied > allowed and not self._copied_too_much:
            self._copied_too_much = True
            pytest.fail(f"{copied:,} bytes were copied, {allowed:,} are allowed\n{self.log}", pytrace=False)

    def end(self) -> None:
        """End the audit and the faults."""
        self._block.close()
        self._include_children()
        self._children.cleanup()

    def check_end(self) -> None:
        """Fail a test whose fixtures copied too much, that leaves something behind, or that made a mistake.

        Memory may be deregistered as late as by fixtures, so that a slow deregistration is expected until here.
        """
        from isthmus.errors import counted

        self._check_copies()
        if self._test_passed:
            self._check_faults(lambda fault: fault.nth == 0)
        if self.limits.no_mistakes and self.log.mistakes:
            pytest.fail(f"{counted(len(self.log.mistakes), 'mistake')}\n{self.log}", pytrace=False)
        if self.limits.no_leaks and self.log.leaks:
            pytest.fail(f"{counted(len(self.log.leaks), 'leak')}\n{self.log}", pytrace=False)

    def _include_children(self) -> None:
        """Add the audits that child processes have written since the last call."""
        import json

        for file in sorted(Path(self._children.name).glob("*.json")):
            self.log.include(json.loads(file.read_text()))
            file.unlink()


_WATCH = pytest.StashKey[Watch]()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin the audit of a test with the marker, unless it is skipped, and before its fixtures."""
    if item.get_closest_marker(MARKER) or "isthmus_audit" in getattr(item, "fixturenames", ()):
        item.stash[_WATCH] = Watch(_limits(item))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Limit a test function, inside what other plugins do around it, and check the limits if it has passed."""
    watch = item.stash.get(_WATCH, None)
    if watch is None:
        return (yield)
    try:
        with watch.around_function():
            result = yield
    except Exception:
        # An error of other code, such as one for lack of descriptors, does not say that its cause was injected.
        if watch.log.faults:
            item.add_report_section("call", "isthmus", f"injected faults: {', '.join(dict.fromkeys(watch.log.faults))}")
        raise
    watch.check_call()
    return result


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """End the audit after the last fixture, and check that nothing is left."""
    watch = item.stash.get(_WATCH, None)
    try:
        result = yield
    finally:
        if watch is not None:
            watch.end()
    if watch is not None:
        del item.stash[_WATCH]
        watch.check_end()
    return result


# -- fixtures ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def isthmus_audit(request: pytest.FixtureRequest) -> AuditLog:
    """The audit of the test so far, without its child processes; a test that has it needs no marker."""
    log: AuditLog = request.node.stash[_WATCH].log
    return log


@pytest.fixture(scope="session")
def _installed_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the libraries, installed once."""
    from isthmus.capi.installation import install
    from isthmus.errors import QnnError

    folder = tmp_path_factory.mktemp("qnn-libraries")
    try:
        install(folder)
    except QnnError as problem:
        pytest.fail(str(problem), pytrace=False)
    return folder


@pytest.fixture
def qnn_libraries(_installed_libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with QNN's libraries; child processes find them by their names."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(_installed_libraries), prepend=os.pathsep)
    return _installed_libraries


@pytest.fixture
def htp() -> Iterator[qnn.Backend]:
    """A backend of HTP, whose first context starts a new accelerator process; it is freed after the test."""
    from isthmus import qnn

    with qnn.Backend("htp") as backend:
        yield backend


@pytest.fixture
def qnn_session(request: pytest.FixtureRequest) -> Iterator[Callable[..., Session]]:
    """A function that opens a model as `isthmus.Session` does, on the marker's backend; closed after the test."""
    from isthmus.errors import did_you_mean, invalid_argument
    from isthmus.session import Session

    watch = request.node.stash.get(_WATCH, None)
    name = watch.limits.backend if watch is not None else _DEFAULT_BACKEND
    names = [each for each in signature(Session).parameters if each != "path"]
    with ExitStack() as block:

        def open_model(model: str | os.PathLike[str], backend: str = name, **options: Any) -> Session:
            __tracebackhide__ = True
            for each in options:
                if each not in names:
                    hint = did_you_mean(each, names) or f"Options are {', '.join(names)}."
                    raise invalid_argument("qnn_session", f"it has no option '{each}'", hint)
            return block.enter_context(Session(model, backend, **options))

        yield open_model
