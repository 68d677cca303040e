"""The audit: what a program does with memory, where in its source, and which mistakes it makes.

Rooms that allocate, register, copy and free report here, if `active` is not empty. Executions report by a function that
is exchanged when an audit begins (`when_switched`), so that they pay nothing without one. `isthmus.audit` starts one.
"""

from __future__ import annotations

import re
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from isthmus.errors import Code, QnnError, counted, one_line
from isthmus.system.callers import calling_line, is_below
from isthmus.system.interrupts import run_pending
from isthmus.system.lock import Lock

_P = ParamSpec("_P")
_R = TypeVar("_R")

active: tuple[AuditLog, ...] = ()
"""The audits in progress."""


class Action(str, Enum):
    """What an event reports."""

    ALLOCATE = "allocate"
    FREE = "free"
    REGISTER = "register"
    DEREGISTER = "deregister"
    CREATE = "create"
    DESTROY = "destroy"
    COPY = "copy"
    EXECUTE = "execute"
    FAULT = "fault"


# The action that ends what another begins.
_OPPOSITES = {Action.ALLOCATE: Action.FREE, Action.REGISTER: Action.DEREGISTER, Action.CREATE: Action.DESTROY}
# The name of the mistake if what an action began has no end, and its remedy.
_UNFREED = {
    Action.ALLOCATE: ("never freed", "Close the buffer (rpcmem_free) when its last execution has ended."),
    Action.REGISTER: ("never deregistered", "Call mem_deregister (memDeRegister) before the context is freed."),
    Action.CREATE: ("never freed", "Free it, or create it in a with block."),
}
# How an error names its tensor: "tensor 'x' of graph 'g'", "input 'x'".
_TENSOR = re.compile(r"\b(?:tensor|input|output) ('.*?')(?= of |$)")
LEAKS = frozenset(kind for kind, _ in _UNFREED.values())
"""The names of mistakes that are leaks."""


@dataclass(frozen=True)
class AuditEvent:
    """One event.

    - `seconds`: When it happened, on the monotonic clock.
    - `action`, `what`, `nbytes`: What was done, to which object, and the bytes concerned.
    - `tensor`: The tensor that the memory is for, as soon as that is known.
    - `owner`: "client", or "backend" for memory that a backend manages itself.
    - `reason`, `remedy`: Why it was necessary, and how to avoid it; of copies.
    - `where`: The line of the client's program; empty if it is not known.
    - `duration`: How long it took, in seconds, if that was measured; it ended then.
    - `kind`: The kind of memory ("host", "rpcmem" …); of allocations.
    """

    seconds: float
    action: Action
    what: str
    nbytes: int = 0
    tensor: str = ""
    owner: str = "client"
    reason: str = ""
    remedy: str = ""
    where: str = ""
    duration: float = 0.0
    kind: str = ""


@dataclass(frozen=True)
class Mistake:
    """A mistake of the client.

    - `kind`: Its name: "registered twice", "never freed" …
    - `what`, `rule`, `remedy`: The object, the rule it broke, and what to do, as in a `QnnError`.
    - `tensor`, `where`: As in an `AuditEvent`. For memory that was never freed, the line that allocated it.
    """

    kind: str
    what: str
    rule: str
    remedy: str = ""
    tensor: str = ""
    where: str = ""

    def __str__(self) -> str:
        tensor = f" (tensor {self.tensor})" if self.tensor and self.tensor not in self.what else ""
        text = f"{self.where or 'unknown line'}: {self.kind}: {self.what}{tensor}: {self.rule}"
        return one_line(f"{text}. {self.remedy}" if self.remedy else text)


@dataclass(frozen=True)
class CopySum:
    """All copies of one tensor for one reason at one line: how often, how many bytes in all, and how to avoid them."""

    tensor: str
    what: str
    reason: str
    remedy: str
    where: str
    count: int
    nbytes: int


@dataclass(eq=False)
class AuditKey:
    """Identifies something that begins and ends, in the audits that are in progress when it begins."""

    _logs: tuple[weakref.ref[AuditLog], ...]

    def logs(self) -> list[AuditLog]:
        """Return the audits that were in progress when it began, also those that have ended, but no collected logs."""
        return [log for log in (reference() for reference in self._logs) if log is not None]


@dataclass
class _Begun:
    """What has begun and not ended.

    - `index`: the position of its first event in the log.
    - `spans`: the memory that it is, if any: objects that can tell whether they overlap others.
    - `tensors`: the tensors that the memory is for. If none is certain, descriptions of those that it may be for.
    - `is_certain`: whether `tensors` are certain.
    """

    index: int
    spans: Sequence[Any]
    tensors: list[str]
    is_certain: bool = False

    def overlaps(self, spans: Sequence[Any]) -> bool:
        """Return whether it shares a byte with any of these spans."""
        return any(mine.overlaps(theirs) for mine in self.spans for theirs in spans)

    def add_tensor(self, tensor: str, is_certain: bool) -> None:
        """Add a tensor that the memory is for, unless more certain ones are known."""
        if is_certain > self.is_certain:
            self.tensors, self.is_certain = [tensor], True
        elif is_certain == self.is_certain and tensor not in self.tensors:
            self.tensors = [*self.tensors, tensor]


@dataclass(eq=False)
class AuditLog:
    """The record of an audit.

    - `kinds`: The kinds of memory whose allocations are recorded; empty for all.
    - `events`: Every allocation, registration, copy, execution and free, in order.
    - `mistakes`: The mistakes so far. What was never freed is added when the audit ends.
    - `tell`: Called with each mistake when it is made, in the thread that makes it; not with those that the end adds.
    """

    kinds: frozenset[str] = frozenset()
    events: list[AuditEvent] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    tell: Callable[[Mistake], object] | None = None
    # Copied before it is gone through: the collector may end what is in it at any moment, in the same thread.
    _begun: dict[AuditKey, _Begun] = field(default_factory=dict)
    # Errors that are recorded already: several rooms may see the same one on its way to the client.
    _errors: weakref.WeakSet[QnnError] = field(default_factory=weakref.WeakSet)
    _lock: Lock = field(default_factory=Lock)
    _is_over: bool = False
    _is_suspended: bool = False

    @property
    def allocations(self) -> list[AuditEvent]:
        """The allocations."""
        return [event for event in self.events if event.action is Action.ALLOCATE]

    @property
    def live(self) -> list[AuditEvent]:
        """The allocations whose buffers are still live, even after the audit."""
        # Finalizers of collected buffers that have not run yet would end some.
        run_pending()
        with self._lock:
            begun = [self.events[each.index] for each in list(self._begun.values())]
        return [event for event in begun if event.action is Action.ALLOCATE]

    @property
    def copied_bytes(self) -> int:
        """Total bytes copied."""
        return sum(event.nbytes for event in self.events if event.action is Action.COPY)

    @property
    def copies(self) -> list[CopySum]:
        """The copies, summed by tensor, reason and line, in the order in which they first occurred."""
        sums: dict[tuple[str, str, str, str, str], tuple[int, int]] = {}
        for event in self.events:
            if event.action is Action.COPY:
                key = event.tensor, event.what, event.reason, event.remedy, event.where
                count, nbytes = sums.get(key, (0, 0))
                sums[key] = count + 1, nbytes + event.nbytes
        return [CopySum(*key, count, nbytes) for key, (count, nbytes) in sums.items()]

    @property
    def leaks(self) -> list[Mistake]:
        """The mistakes that are leaks: what was never freed or deregistered. Complete when the audit has ended."""
        return [mistake for mistake in self.mistakes if mistake.kind in LEAKS]

    @property
    def faults(self) -> list[str]:
        """The injected faults that have occurred (`isthmus.faults`), in order."""
        return [event.what for event in self.events if event.action is Action.FAULT]

    def include(self, data: dict[str, Any]) -> None:
        """Add the record of another process, as its `as_data` returned it."""
        events = [AuditEvent(**{**event, "action": Action(event["action"])}) for event in data["events"]]
        with self._lock:
            self.events += events
            self.mistakes += [Mistake(**mistake) for mistake in data["mistakes"]]

    def reword(self, wording: Callable[[str], str]) -> None:
        """Replace the reasons, rules and remedies of what is on record, for clients in another language than Python."""
        with self._lock:
            self.events = [replace(e, reason=wording(e.reason), remedy=wording(e.remedy)) for e in self.events]
            self.mistakes = [replace(m, rule=wording(m.rule), remedy=wording(m.remedy)) for m in self.mistakes]

    @property
    def is_blank(self) -> bool:
        """Whether there are no mistakes, and nothing was done with memory: objects may have been created."""
        return not self.mistakes and all(event.action in (Action.CREATE, Action.DESTROY) for event in self.events)

    def add(self, event: AuditEvent, key: AuditKey | None = None, spans: Sequence[Any] = ()) -> None:
        """Record an event; with a key, the beginning of something that `end` ends, and the memory that it is."""
        with self._lock:
            if self._is_suspended or self._is_over or (self.kinds and event.kind and event.kind not in self.kinds):
                return
            self.events.append(event)
            if key is not None:
                tensors = [event.tensor] if event.tensor else []
                self._begun[key] = _Begun(len(self.events) - 1, spans, tensors)

    def end(self, key: AuditKey, missed: str = "") -> None:
        """Record the end of something, unless its beginning is not on record; `missed` as for the function `end`."""
        with self._lock:
            begun = self._begun.pop(key, None)
            if begun is None or self._is_over:
                return
            first = self.events[begun.index]
            self.events.append(
                AuditEvent(
                    time.monotonic(), _OPPOSITES[first.action], first.what, first.nbytes, first.tensor, first.owner,
                    where=calling_line(), kind=first.kind,
                )
            )  # fmt: skip
            if not missed or self._is_suspended:
                return
            made = leak_of(first, missed)
            self.mistakes.append(made)
        # Without the lock: the listener may have one of its own.
        if self.tell is not None:
            self.tell(made)

    def name_memory(self, spans: Sequence[Any], tensor: str, is_certain: bool) -> None:
        """Record that memory is for a tensor, or may be: in the events of its allocation and registration."""
        with self._lock:
            for begun in list(self._begun.values()):
                if begun.overlaps(spans):
                    begun.add_tensor(tensor, is_certain)
                    event = self.events[begun.index]
                    self.events[begun.index] = replace(event, tensor=", ".join(begun.tensors))

    def add_mistake(self, mistake: Mistake, error: QnnError | None = None) -> None:
        """Record a mistake, unless it is that of an error that was recorded already."""
        with self._lock:
            if self._is_suspended or self._is_over:
                return
            if error is not None:
                if error in self._errors:
                    return
                self._errors.add(error)
            self.mistakes.append(mistake)
        if self.tell is not None:
            self.tell(mistake)

    def tensors_in(self, spans: Sequence[Any]) -> str:
        """Return the tensors that use this memory, as far as they are known."""
        with self._lock:
            found = [each for each in list(self._begun.values()) if each.overlaps(spans)]
        is_certain = any(each.is_certain for each in found)
        names = [name for each in found if each.is_certain == is_certain for name in each.tensors]
        return ", ".join(dict.fromkeys(names))

    def finish(self) -> None:
        """End the audit: what the client has begun and not ended is a mistake. Safe to call again."""
        # Finalizers of collected buffers that have not run yet would end some.
        run_pending()
        with self._lock:
            if self._is_over:
                return
            self._is_over = True
            for begun in list(self._begun.values()):
                event = self.events[begun.index]
                if event.owner == "client":
                    self.mistakes.append(leak_of(event, "it is there still at the end of the audit"))

    def as_data(self) -> dict[str, Any]:
        """Return the record as plain data, for JSON."""
        return {
            "copied_bytes": self.copied_bytes,
            "copies": [asdict(each) for each in self.copies],
            "mistakes": [asdict(each) for each in self.mistakes],
            "events": [{**asdict(event), "action": event.action.value} for event in self.events],
        }

    def __str__(self) -> str:
        """Return the tables: what was done, what was copied and why, injected faults, and mistakes with remedies."""
        counts = {action: [event for event in self.events if event.action is action] for action in Action}
        del counts[Action.FAULT]
        lines = ["audit"]
        for action, events in counts.items():
            if events:
                nbytes = sum(event.nbytes for event in events)
                lines.append(f"  {action.value:<11}{len(events):>8,}  {nbytes:>16,} bytes")
        lines.append(f"copied: {counted(self.copied_bytes, 'byte')}")
        for each in self.copies:
            copies = "1 copy" if each.count == 1 else f"{each.count:,} copies"
            lines.append(
                one_line(f"  {each.nbytes:>12,} bytes in {copies} of {each.tensor} of {each.what}: {each.reason}")
            )
            lines += [one_line(f"  {'':>12} at {each.where}")] * bool(each.where)
            lines.append(f"  {'':>12} {each.remedy}")
        times = Counter(self.faults)
        lines += [f"injected fault: {fault}, {counted(number, 'time')}" for fault, number in times.items()]
        lines.append(f"mistakes: {len(self.mistakes) or 'none'}")
        lines += [f"  {mistake}" for mistake in self.mistakes]
        return "\n".join(lines)


def leak_of(begun: AuditEvent, rule: str) -> Mistake:
    """Return the mistake that what this event began was not ended by the client; `rule` says how that showed."""
    kind, remedy = _UNFREED[begun.action]
    return Mistake(kind, begun.what, rule, remedy, begun.tensor, begun.where)


# -- reports of other rooms, made only if `active` is not empty --------------------------------------------------------


def new_key() -> AuditKey:
    """Return a new key for `begin` and `end`. Store it for `end` first: an interrupt may come right after `begin`."""
    return AuditKey(tuple(weakref.ref(log) for log in active))


def begin(
    key: AuditKey,
    action: Action,
    what: str,
    nbytes: int = 0,
    *,
    tensor: str = "",
    spans: Sequence[Any] = (),
    since: float | None = None,
    owner: str = "",
    kind: str = "",
) -> None:
    """Report that something begins that must end, under a new key.

    - `tensor`, `owner`, `kind`: as in an `AuditEvent`. By default memory that a backend allocates is the backend's own,
      which ends it with the objects that it belongs to.
    - `spans`: the memory that it is, if any.
    - `since`: when the action was started.
    """
    now = time.monotonic()
    duration = 0.0 if since is None else now - since
    owner = owner or ("backend" if is_below("backends") else "client")
    event = AuditEvent(now, action, what, nbytes, tensor, owner, where=calling_line(), duration=duration, kind=kind)
    for log in key.logs():
        log.add(event, key, spans)


def end(key: AuditKey, missed: str = "") -> None:
    """Report the end of something. `missed` says why the client did not end it itself, which is then a mistake."""
    for log in key.logs():
        log.end(key, missed)


def name_memory(spans: Sequence[Any], tensor: str, is_certain: bool = True) -> None:
    """Report that memory is for a tensor, or may be."""
    for log in active:
        log.name_memory(spans, tensor, is_certain)


def note(
    action: Action,
    what: str,
    nbytes: int = 0,
    tensor: str = "",
    reason: str = "",
    remedy: str = "",
    since: float | None = None,
) -> None:
    """Report an event that the client need not end. `since` is when the action was started."""
    now = time.monotonic()
    duration = 0.0 if since is None else now - since
    event = AuditEvent(now, action, what, nbytes, tensor, "client", reason, remedy, calling_line(), duration)
    for log in active:
        log.add(event)


def mistake(kind: str, what: str, rule: str, remedy: str, tensor: str = "") -> None:
    """Report a mistake that is not refused."""
    for log in active:
        log.add_mistake(Mistake(kind, what, rule, remedy, tensor, calling_line()))


def refuse(error: QnnError, tensor: str = "", kind: str = "", spans: Sequence[Any] = ()) -> None:
    """Report an error that a client gets, once.

    - `tensor`: the tensor concerned. By default the one that the error names, or those that use the memory `spans`.
    - `kind`: the name of the mistake, by default the error's own.
    """
    for log in active:
        code_name = "registered twice" if error.code is Code.MEM_ALREADY_REGISTERED else error.name
        named = _TENSOR.search(error.what)
        tensors = tensor or (named[1] if named else log.tensors_in(spans))
        name = kind or error.mistake or code_name
        log.add_mistake(Mistake(name, error.what, error.rule, error.hint, tensors, calling_line()), error)


def reported(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Make a function report the errors that it raises; below `shielded`, which must be the outermost."""

    @wraps(function)
    def call(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*arguments, **named)
        except QnnError as error:
            refuse(error)
            raise

    return call


# Held while `active` and what depends on it change.
_switching = Lock()
# Functions to call when audits begin and end; safe to repeat.
_switches: list[Callable[[bool], None]] = []


def when_switched(switch: Callable[[bool], None]) -> Callable[[bool], None]:
    """Make a function be called with whether an audit is in progress: now, and whenever an audit begins or ends.

    It must be safe to repeat. Only one thread calls it at a time.
    """
    with _switching:
        _switches.append(switch)
        switch(bool(active))
    return switch


def start(log: AuditLog) -> None:
    """Make an audit active, besides those in progress."""
    global active
    with _switching:
        active = (*active, log)
        for switch in _switches:
            switch(True)


def stop(log: AuditLog) -> None:
    """End an audit: it gets no more reports. Safe to call again."""
    global active
    with _switching:
        active = tuple(other for other in active if other is not log)
        for switch in _switches:
            switch(bool(active))
    log.finish()


@contextmanager
def suspend() -> Iterator[None]:
    """Keep what begins inside the block, and mistakes there, out of the audits in progress, for the whole process.

    What began before is recorded when it ends, so that it is not taken for a leak. An audit that begins inside the
    block records everything.
    """
    logs = [log for log in active if not log._is_suspended]
    try:
        for log in logs:
            log._is_suspended = True
        yield
    finally:
        for log in logs:
            log._is_suspended = False
