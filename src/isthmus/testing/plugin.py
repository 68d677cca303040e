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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from isthmus import qnn
    from isthmus.audit_log import AuditLog
    from isthmus.session import Session

MARKER = "isthmus"
_DEFAULT_BACKEND = "htp"


@dataclass(frozen=True)
class MarkerOptions:
    """What the marker allows a test, and what it injects.

    Parameters
    ----------
    max_copied
        The bytes that executions may copy; None for any number.
    no_leaks
        Whether everything that is allocated or registered must be freed when the test and its fixtures have ended.
    no_mistakes
        Whether the audit may list no mistake at all.
    fault
        Faults to inject, as ``ISTHMUS_FAULTS`` lists them. Each must occur, except ``fds``, which cannot be checked.
    backend
        The backend of ``qnn_session``.
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

    given: dict[str, Any] = {}
    for mark in reversed(list(item.iter_markers(MARKER))):
        if mark.args:
            refuse(f"it takes keywords only, not {mark.args[0]!r}", f"Keywords are {', '.join(_TYPES)}.")
        given.update(mark.kwargs)
    for name, value in given.items():
        if name not in _TYPES:
            refuse(f"it has no keyword '{name}'", did_you_mean(name, _TYPES) or f"Keywords are {', '.join(_TYPES)}.")
        # True is an integer too.
        if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name]):
            refuse(f"{name}={value!r} must be of type {_TYPES[name][0].__name__}")
        if name == "max_copied" and value is not None and value < 0:
            refuse(f"max_copied={value} is less than 0")
    options, problem = MarkerOptions(**given), ""
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
    """The audit of one test, from its first fixture to its last, with those of its child processes.

    Attributes
    ----------
    log
        The audit.
    has_passed
        Whether the test's function has passed; its limits are checked then.
    """

    def __init__(self, limits: MarkerOptions) -> None:
        # Loaded before the variables are set: they are for child processes, not for this one.
        from isthmus import faults, qnn  # noqa: F401
        from isthmus.memory.auditing import VARIABLE, audit

        self.limits = limits
        self._copied_too_much = False
        self.has_passed = False
        self._children = TemporaryDirectory(prefix="isthmus-audit-")
        with ExitStack() as block:
            variables = block.enter_context(pytest.MonkeyPatch.context())
            variables.setenv(VARIABLE, str(Path(self._children.name) / "%p.json"))
            self.log: AuditLog = block.enter_context(audit())
            self._faults = faults.FaultList(())
            if limits.fault:
                self._faults = block.enter_context(faults.inject(limits.fault, limits_descriptors=False))
            self._block = block.pop_all()

    @contextmanager
    def call(self) -> Iterator[None]:
        """Run a test's function in the block, with few descriptors if a fault says so, and check its limits.

        Around the block pytest and this plugin have all descriptors that they need.
        """
        with self._faults.few_descriptors():
            yield
        self.has_passed = True
        self._include_children()
        self._check_copies()
        self._check_faults(at_end=False)

    def _check_faults(self, at_end: bool) -> None:
        """Fail a test to which a fault has not occurred; whether one that takes time has, shows at the end."""
        for fault in self._faults.faults:
            if fault.text in self.log.faults or at_end == bool(fault.nth):
                continue
            text = f"fault '{fault.text}' did not occur: {self._faults.calls(fault.name)} in the test's own process"
            hint = "An accelerator that was started before the test gets no faults, and other backends have none."
            pytest.fail(f"{text}. {hint}\n{self.log}", pytrace=False)

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
        """Fail a test whose fixtures copied too much, that leaves something behind, or that made a mistake."""
        from isthmus.errors import counted

        self._check_copies()
        if self.has_passed:
            self._check_faults(at_end=True)
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin the audit of a test with the marker, before its fixtures."""
    if item.get_closest_marker(MARKER) or "isthmus_audit" in getattr(item, "fixturenames", ()):
        item.stash[_WATCH] = Watch(_limits(item))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run the function of a test with its faults, inside all other plugins, and check its limits if it has passed."""
    watch = item.stash.get(_WATCH, None)
    if watch is None:
        return (yield)
    try:
        with watch.call():
            return (yield)
    except Exception:
        if not watch.has_passed:
            item.add_report_section("call", "isthmus audit", str(watch.log))
        raise


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
    return request.node.stash[_WATCH].log


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
    from inspect import signature

    from isthmus.errors import Code, QnnError, did_you_mean
    from isthmus.session import Session

    known = list(signature(Session).parameters)[1:]
    watch = request.node.stash.get(_WATCH, None)
    name = watch.limits.backend if watch is not None else _DEFAULT_BACKEND
    with ExitStack() as block:

        def open_session(model: Any, **options: Any) -> Session:
            __tracebackhide__ = True
            for keyword in options:
                if keyword not in known:
                    rule = f"it has no keyword '{keyword}'; it has {', '.join(known)}"
                    raise QnnError(Code.COMMON_INVALID_ARGUMENT, "qnn_session", rule, did_you_mean(keyword, known))
            return block.enter_context(Session(model, **{"backend": name, **options}))

        yield open_session
