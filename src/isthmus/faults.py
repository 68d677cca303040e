"""Faults for tests: the device or the system fails at a call that the test chooses.

``ISTHMUS_FAULTS`` puts them into any program, in Python or C, when it creates its first backend; `inject` puts them
into a block of Python. Calls are counted in the whole process, from 1, over all backends. So a program that recovers by
creating everything again does not meet the same fault again.
"""

from __future__ import annotations

import errno
import os
import re
import resource as limits
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from isthmus.errors import causes, counted, did_you_mean, invalid_argument
from isthmus.memory.adaptors import Fault, FaultSchedule, fault_rule, report_fault
from isthmus.memory.resource import AdaptorSet
from isthmus.system.lock import Lock

VARIABLE = "ISTHMUS_FAULTS"
"""The environment variable: a list of faults, separated by commas."""
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_MAX_DIGITS = 9
_NO_DESCRIPTORS = os.strerror(errno.EMFILE)


FORMS = {"ssr": "ssr@N", "map": "map@N", "alloc": "alloc@N", "fds": "fds@N", "slow-unmap": "slow-unmap=TIME"}
"""How each fault is written, by name: with ``@N`` the Nth call fails, with ``=TIME`` every call takes longer.

- ``ssr``: the accelerator dies at an execution.
- ``map``: the accelerator cannot map memory that is registered with it.
- ``alloc``: an allocation of shared memory (rpcmem) fails.
- ``fds``: the process cannot have N more file descriptors open at a time, from when the fault is put in force. It is
  reported then: a descriptor that the system refuses to other code than ours cannot be noticed.
- ``slow-unmap``: deregistrations of memory take longer.
"""
CALLS = {"ssr": "execution", "map": "registered buffer", "alloc": "allocation", "slow-unmap": "deregistration"}
"""The calls that each fault concerns. ``fds`` has none: the system does not say how many descriptors were asked for."""
_COUNTED = re.compile(rf"@(\d{{1,{_MAX_DIGITS}}})")
_TIMED = re.compile(rf"=(\d{{1,{_MAX_DIGITS}}}(?:\.\d{{1,{_MAX_DIGITS}}})?)({'|'.join(_UNITS)})")


@dataclass(frozen=True)
class InjectedFault:
    """One fault of a list.

    - `name`, `text`: its kind, such as ``ssr``, and its text in the list, such as ``ssr@3``.
    - `nth`: which call fails; 0 for a fault that takes time.
    - `seconds`: the time that each call takes longer.
    """

    name: str
    text: str
    nth: int = 0
    seconds: float = 0.0


def parse(text: str, what: str = "faults") -> tuple[InjectedFault, ...]:
    """Return the faults of a list such as ``ssr@3,slow-unmap=200ms``; `what` names the list in errors.

    Examples
    --------
    >>> [fault] = parse("slow-unmap=200ms")
    >>> fault.name, fault.seconds
    ('slow-unmap', 0.2)
    >>> parse("srs@3")
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1004 COMMON_INVALID_ARGUMENT] faults: fault 'srs@3' is unknown; known are ssr@N, map@N,
    alloc@N, fds@N, slow-unmap=TIME. Did you mean 'ssr@N'?
    """
    return tuple(_parse_one(part.strip(), what) for part in text.split(",") if part.strip())


def _parse_one(text: str, what: str) -> InjectedFault:
    """Return one fault, or refuse it with the nearest kind."""
    name, ending = re.fullmatch(r"([^@=]*)(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    form = FORMS.get(name, "")
    if not form:
        near = did_you_mean(name, FORMS)
        for kind, each in FORMS.items():
            near = near.replace(f"'{kind}'", f"'{each}'")
        raise invalid_argument(what, f"fault '{text}' is unknown; known are {', '.join(FORMS.values())}", near)
    nth, delay = _COUNTED.fullmatch(ending), _TIMED.fullmatch(ending)
    if "@" in form and nth and int(nth[1]) > 0:
        return InjectedFault(name, text, nth=int(nth[1]))
    if "=" in form and delay:
        return InjectedFault(name, text, seconds=float(delay[1]) * _UNITS[delay[2]])
    needs = f"N is 1 to {10**_MAX_DIGITS - 1:,}" if "@" in form else f"TIME is a number with {', '.join(_UNITS)}"
    example = form.replace("@N", "@3").replace("TIME", "200ms")
    raise invalid_argument(what, f"fault '{text}' is not of the form {form}", f"{needs}, as in {example}.")


class FaultList:
    """The faults in force, with the calls counted so far.

    - `faults`: the faults.
    - `limits_descriptors`: whether `begin` puts ``fds`` in force too; otherwise `few_descriptors` does, for a block.
    """

    def __init__(self, faults: tuple[InjectedFault, ...], limits_descriptors: bool = True) -> None:
        self.faults = faults
        self._limits_descriptors = limits_descriptors
        self._schedules = [(each, FaultSchedule(each.nth, what=each.text)) for each in faults if each.nth]
        # The largest N becomes the outermost adaptor: an inner one does not see the allocations that outer ones fail.
        self._adaptors = [
            AdaptorSet(partial(Fault, schedule=schedule), ("rpcmem",))
            for fault, schedule in sorted(self._schedules, key=lambda each: each[0].nth)
            if fault.name == "alloc"
        ]
        self._limits = [_DescriptorLimit(fault) for fault in faults if fault.name == "fds"]

    def calls(self, name: str) -> str:
        """Return how many calls faults of this name have counted, with their noun: ``"2 executions"``."""
        numbers = [schedule.calls for fault, schedule in self._schedules if fault.name == name]
        return counted(max(numbers, default=0), CALLS[name])

    def strikes(self, name: str) -> str:
        """Count a call that faults of this name may concern; return the fault that occurs at it, or an empty text."""
        struck = [fault.text for fault, schedule in self._schedules if fault.name == name and schedule.fails()]
        return struck[0] if struck else ""

    def delay(self, name: str) -> float:
        """Return the seconds that a call takes longer, and report that if it does."""
        late = [fault for fault in self.faults if fault.name == name]
        for fault in late:
            report_fault(fault.text)
        return sum(fault.seconds for fault in late)

    def begin(self) -> None:
        """Put those faults in force that need no call of the backends: of memory and descriptors."""
        for adaptors in self._adaptors:
            adaptors.place()
        if self._limits_descriptors:
            for limit in self._limits:
                limit.place()

    @contextmanager
    def few_descriptors(self) -> Iterator[None]:
        """Put the faults of descriptors in force inside the block."""
        try:
            for limit in self._limits:
                limit.place()
            yield
        finally:
            try:
                self._remove_limits()
            finally:
                # Again, because an interrupt may have ended the first attempt early.
                self._remove_limits()

    def _remove_limits(self) -> None:
        for limit in reversed(self._limits):
            limit.remove()

    def end(self) -> None:
        """Remove the faults again; safe to repeat."""
        for adaptors in self._adaptors:
            adaptors.remove()
        self._remove_limits()


class _DescriptorLimit:
    """A limit of this process's descriptors: the system refuses the nth new one. Both methods are safe to repeat."""

    def __init__(self, fault: InjectedFault) -> None:
        self._fault = fault
        self._before: tuple[tuple[int, int], dict[str, str]] | None = None

    def place(self) -> None:
        # Listing the folder takes a descriptor too, which is closed by the time that its entry is looked up.
        taken = (int(name) for name in os.listdir("/proc/self/fd") if os.path.lexists(f"/proc/self/fd/{name}"))
        # A new descriptor gets the lowest free number. `refused` becomes the nth free number.
        refused = self._fault.nth - 1
        for number in sorted(taken):
            refused += number <= refused
        soft, hard = limits.getrlimit(limits.RLIMIT_NOFILE)
        if self._before is None:
            self._before = (soft, hard), dict(causes)
            causes[_NO_DESCRIPTORS] = fault_rule(self._fault.text)
            limits.setrlimit(limits.RLIMIT_NOFILE, (refused if soft < 0 else min(refused, soft), hard))
            report_fault(self._fault.text)

    def remove(self) -> None:
        if self._before is not None:
            limit, rules = self._before
            limits.setrlimit(limits.RLIMIT_NOFILE, limit)
            causes.clear()
            causes.update(rules)
            self._before = None


active: FaultList | None = None
"""The faults in force."""
# The list that `active` comes from.
_written = ""
_lock = Lock()


def read_environment() -> None:
    """Put the faults of the environment in force, unless they are already; called when a backend is created."""
    global active, _written
    with _lock:
        text = os.environ.get(VARIABLE, "")
        if text == _written:
            return
        faults = parse(text, VARIABLE)
        if active is not None:
            active.end()
        active, _written = (FaultList(faults) if faults else None), text
        if active is not None:
            active.begin()


@contextmanager
def inject(text: str, limits_descriptors: bool = True) -> Iterator[FaultList]:
    """Put faults in force inside the block, for accelerators that are started there, and for child processes.

    With `limits_descriptors` false, ``fds`` is in force only in blocks of the list's `few_descriptors`, and in child
    processes.

    Examples
    --------
    >>> from isthmus import memory, qnn
    >>> with inject("alloc@2"), qnn.Backend("htp"):
    ...     with memory.rpcmem.alloc(25, 1, 64):
    ...         memory.rpcmem.alloc(25, 1, 64)
    Traceback (most recent call last):
    isthmus.errors.QnnError: [1002 COMMON_MEM_ALLOC] rpcmem buffer of 64 bytes: fault 'alloc@2' was injected
    """
    global active, _written
    outer, variable = (active, _written), os.environ.get(VARIABLE)
    injected = FaultList(parse(text), limits_descriptors)

    def restore() -> None:
        global active, _written
        injected.end()
        active, _written = outer
        if variable is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = variable

    try:
        os.environ[VARIABLE] = text
        active, _written = injected, text
        injected.begin()
        yield injected
    finally:
        try:
            restore()
        finally:
            # Again, because an interrupt may have ended the first attempt early.
            restore()
