"""Validation of a client's calls to a library, ours or another: order, lifetimes, shapes.

`protocol` has the rules that functions have in common, `rules` those of single functions. This module keeps the
client's objects and the calls in progress, and writes the report. No call is changed. A mistake is reported when it is
made, with the call's number. At the end, calls, error codes and leaks are reported, and written as JSON to the file
that ``ISTHMUS_QNN_REPORT`` names.

With ``ISTHMUS_QNN_VALIDATE`` an audit (`isthmus.audit_log`) adds what only it finds, such as shared memory that is
never freed (`MemoryCheck`).
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus import audit_log
from isthmus.audit_log import LEAKS, AuditEvent, AuditKey, AuditLog, Mistake, leak_of
from isthmus.backends.seam.facets import CFacet
from isthmus.cabi.client import BadPointer, listed, read, text
from isthmus.capi import exclusions, lifetimes, rules
from isthmus.capi.functions import serves
from isthmus.capi.hints import worded_in_c
from isthmus.capi.protocol import CONFIGS, CREATES, FREES, HANDLES, NEEDED
from isthmus.capi.values import ClientTensorInfo
from isthmus.errors import QnnError, counted, did_you_mean
from isthmus.log import deferred, log_message
from isthmus.system import shield

if TYPE_CHECKING:
    from isthmus.capi.serve import LibraryServer

MAX_MISTAKES = 1000
"""How many mistakes are reported."""
MAX_LISTED = 1 << 16
"""How many handles of one call are recorded."""
_logger = logging.getLogger("isthmus.validation")


def _nothing(validation: Validation, values: tuple[int, ...]) -> None:
    """Check nothing: the rule of a function without its own rule."""


@dataclass
class Object:
    """An object that the client has a handle of.

    - `kind`, `handle`: What it is ("graph", say), and the number that the client has.
    - `created_by`, `freed_by`: The calls that created and freed it, for messages; empty if it is not freed.
    - `owner`: The handle of its owner: a context for graphs and memory handles, a backend for the others; 0 if unknown.
    - `tensors`, `nodes`, `writers`: A graph's tensors by id, the names of its nodes, and the node that writes each
      tensor, by the tensor's id.
    - `complete`: Whether its composition was observed; that of a graph from a binary was not.
    - `features`: What its configs have turned on (`exclusions`).
    - `device`: The handle of a context's device; 0 for none.
    - `batches`: The smallest first dimension that a graph's inputs have had, by their ids.
    - `persistent`, `buffers`: The client's memory that must stay until a context is freed (`lifetimes`).
    - `nbytes`: The size of a memory handle's memory, or the size that a context reported for its binary; 0 if unknown.
    """

    kind: str
    handle: int
    created_by: str
    owner: int = 0
    freed_by: str = ""
    finalized: bool = False
    tensors: dict[int, ClientTensorInfo] = field(default_factory=dict)
    complete: bool = True
    name: str = ""
    nodes: set[str] = field(default_factory=set)
    writers: dict[int, str] = field(default_factory=dict)
    nbytes: int = 0
    features: dict[str, int] = field(default_factory=dict)
    device: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    persistent: dict[Hashable, lifetimes.ClientMemory] = field(default_factory=dict)
    buffers: dict[int, lifetimes.LentBuffer] = field(default_factory=dict)

    @property
    def what(self) -> str:
        """Its name in messages."""
        return f"{self.kind} {self.handle:#x}"

    @property
    def owners_kind(self) -> str:
        """The kind of its owner."""
        return "context" if self.kind in ("graph", "memory handle") else "backend"


@dataclass
class CallRecord:
    """The record of one function: its calls, how often it returned each error code, and the time in it."""

    count: int = 0
    errors: Counter[int] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass
class Begun:
    """A call in progress. Calls can be nested: a client may call from its log or another callback.

    - `audited`: The mistakes that the audit has found in it.
    - `features`, `device`: What it turns on in the object that it creates (`exclusions`), and the object's device.
    - `mapped`: Where the client has mapped the buffers that it registers, by file (`lifetimes`).
    - `ends_buffers`: Whether it ends memory handles that are rightly registered still.
    """

    number: int
    name: str
    uses: list[tuple[str, int]]
    at: float = 0.0
    mistaken: bool = False
    audited: list[Mistake] = field(default_factory=list)
    features: dict[str, int] = field(default_factory=dict)
    device: int = 0
    mapped: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    ends_buffers: bool = False

    @property
    def label(self) -> str:
        """The call, for messages."""
        return f"call {self.number} ({self.name})"


class Validation:
    """The record of a client's calls through one library."""

    def __init__(
        self, hints: Callable[[], Sequence[tuple[str, str]]] = tuple, facet: Callable[[], CFacet] = CFacet
    ) -> None:
        self._hints = hints
        # Returns what the library's backend declares for C.
        self.facet = facet
        self.calls: dict[str, CallRecord] = {}
        self.mistakes: list[str] = []
        # The client's objects by kind and handle: a library may number each kind separately.
        self.objects: dict[tuple[str, int], Object] = {}
        # The profiles of events, by the events' handles.
        self.events: dict[int, int] = {}
        # The features of contexts whose handles the client has from a callback, which validation cannot see.
        #
        # None as long as there can be none.
        self.adopted: dict[str, int] | None = None
        # The bytes of inputs and outputs of all executions: in the client's own memory, and in registered memory.
        self.raw_bytes = self.shared_bytes = 0
        # The number of the last call.
        self._number = 0
        # By native thread id: to Python, a thread that it did not start is a new thread in every call.
        self._stacks: dict[int, list[Begun]] = {}
        # The calls that use each object now, in any thread.
        self._under_way: dict[tuple[str, int], list[Begun]] = {}
        self._lock = threading.RLock()

    # -- before and after a call ---------------------------------------------------------------------------------------

    @property
    def _stack(self) -> list[Begun]:
        """The calls that this thread is in, outermost first."""
        return self._stacks.setdefault(threading.get_native_id(), [])

    def before(self, name: str, values: tuple[int, ...]) -> None:
        """Check a call of the function `name`, with these arguments, that is about to be made."""
        with deferred(), self._lock:
            self._number += 1
            uses = [(kind, values[index]) for index, kind, _ in HANDLES.get(name, ()) if values[index]]
            begun = Begun(self._number, name, uses)
            self._stack.append(begun)
            self._check_handles(name, values)
            for index in NEEDED.get(name, ()):
                if not values[index]:
                    self.mistake(f"argument {index + 1} is null")
            own, unreadable = partial(rules.BEFORE.get(name, _nothing), self), set()
            for check in (self._check_configs, self._check_ends, own, partial(exclusions.check, self),
                          partial(lifetimes.check, self)):  # fmt: skip
                try:
                    check(values)
                except BadPointer as problem:
                    # Two checks may read the same argument.
                    if str(problem) not in unreadable:
                        unreadable.add(str(problem))
                        self.mistake(str(problem))
                except QnnError as problem:
                    self.mistake(f"{problem.what}: {problem.rule}")
            for use in begun.uses:
                self._under_way.setdefault(use, []).append(begun)
        begun.at = time.perf_counter()

    def after(self, name: str, error: int, values: tuple[int, ...]) -> None:
        """Check and record the result of a call."""
        ended = time.perf_counter()
        with deferred(), self._lock:
            begun = self._stack[-1]
            try:
                self._note(begun, name, ended - begun.at, error, values)
            finally:
                self._stack.pop()
                if not self._stack:
                    del self._stacks[threading.get_native_id()]
                for use in begun.uses:
                    self._under_way[use].remove(begun)
                    if not self._under_way[use]:
                        del self._under_way[use]

    def _note(self, begun: Begun, name: str, taken: float, error: int, values: tuple[int, ...]) -> None:
        """Record the result of a call that took this many seconds, and what it has created and freed."""
        call = self.calls.setdefault(name, CallRecord())
        call.count += 1
        call.seconds += taken
        self._note_audited(begun, error)
        if error:
            call.errors[error] += 1
            return
        if begun.mistaken:
            text = f"{begun.label}: this library returns 0 anyway; another one may not"
            log_message(logging.WARNING, text, logger=_logger)
        for index, kind, owner in CREATES.get(name, ()):
            for each in range(min(values[2], MAX_LISTED) if name == "memRegister" else 1):
                self._create(name, kind, values[index] + 8 * each, values[owner] if owner is not None else 0)
        for index, kind in FREES.get(name, ()):
            self.end(kind, values[index])
        try:
            rules.AFTER.get(name, _nothing)(self, values)
        except (BadPointer, QnnError):
            # Unreadable arguments were reported before the call.
            return

    def _note_audited(self, begun: Begun, error: int) -> None:
        """Report what the audit has found in a call, unless the checks have already reported the same mistakes."""
        # If they have reported any in the call, the audit's mistakes are taken for the same ones if the call was
        # refused, or if they are leaks: parts of what the call frees, and the checks have named the whole.
        for each in begun.audited:
            if not (begun.mistaken and error) and not ((begun.mistaken or begun.ends_buffers) and each.kind in LEAKS):
                text = _word_in_c(replace(each, where=begun.label), self._hints())
                self._report(f"{text} ({each.where})" if each.where else text)

    @property
    def current(self) -> Begun:
        """This thread's current call."""
        return self._stack[-1]

    def mistake(self, rule: str) -> None:
        """Report a mistake in this thread's current call."""
        begun = self._stack[-1]
        begun.mistaken = True
        self._report(f"{begun.label}: {rule}")

    def _report(self, text: str) -> None:
        """Report a mistake."""
        if len(self.mistakes) < MAX_MISTAKES:
            self.mistakes.append(text)
            log_message(logging.WARNING, text, logger=_logger)

    def under_way(self) -> Begun | None:
        """Return the innermost call that this thread is in, or that it helps the main thread with."""
        thread = threading.main_thread().native_id if shield.is_helping() else threading.get_native_id()
        stack = self._stacks.get(thread or 0)
        return stack[-1] if stack else None

    # -- arguments -----------------------------------------------------------------------------------------------------

    def _check_handles(self, name: str, values: tuple[int, ...]) -> None:
        """Report handles that are unknown or freed, and null where a handle is required."""
        for index, kind, optional in HANDLES.get(name, ()):
            number = values[index]
            if number or not optional:
                self.find(kind, number)

    def _check_configs(self, values: tuple[int, ...]) -> None:
        """Read the list of configs, if the call has one: an invalid pointer in it raises an error."""
        if self._stack[-1].name in CONFIGS:
            index, kind = CONFIGS[self._stack[-1].name]
            list(listed(values[index], kind))

    def _check_ends(self, values: tuple[int, ...]) -> None:
        """Check that an object to be freed, or a signal passed to a call, is not in use."""
        # A signal serves one call at a time; triggering it is meant for one in use.
        name = self._stack[-1].name
        alone = [(kind, values[index]) for index, kind in FREES.get(name, ())]
        if name != "signalTrigger":
            alone += [(kind, values[index]) for index, kind, _ in HANDLES.get(name, ()) if kind == "signal"]
        for kind, number in dict.fromkeys(alone):
            self.check_unused(kind, number)

    def use(self, kind: str, number: int) -> None:
        """Record that the call uses an object besides its handle arguments."""
        self._stack[-1].uses.append((kind, number))

    def users(self, kind: str, number: int) -> list[Begun]:
        """Return the calls in progress, in any thread, that use an object."""
        return self._under_way.get((kind, number), [])

    def all_under_way(self) -> list[Begun]:
        """Return all calls in progress."""
        return [begun for stack in self._stacks.values() for begun in stack]

    def check_unused(self, kind: str, number: int) -> None:
        """Check that no call in progress, in any thread, uses an object."""
        for other in self.users(kind, number):
            self.mistake(f"{kind} {number:#x}: {other.label} uses it now")

    # -- handles -------------------------------------------------------------------------------------------------------

    def find(self, kind: str, number: int) -> Object | None:
        """Return the object of a handle; report a mistake if there is none or it was freed."""
        entry = self.objects.get((kind, number))
        # An object from a callback is recorded when the client first uses it.
        if entry is None and number and self.adopted is not None and kind in ("context", "graph"):
            entry = self.objects[kind, number] = Object(
                kind, number, "a callback", finalized=kind == "graph", complete=False, features=dict(self.adopted)
            )
        if entry is None:
            others = [each.kind for each in self.objects.values() if each.handle == number and not each.freed_by]
            more = f"; a {others[0]} has that number" if others else ""
            self.mistake(f"{kind} {number:#x}: no call has made it{more}")
        elif entry.freed_by:
            self.mistake(f"{entry.what}: it was freed by {entry.freed_by}")
        else:
            return entry
        return None

    def _create(self, name: str, kind: str, address: int, owner: int) -> None:
        """Record the object whose handle a call of `name` has written to an address."""
        try:
            number = read(address, ctypes.c_uint64).value
        except BadPointer:
            return
        # The owner of a subgraph is the context of the graph that the call was given.
        if name == "graphCreateSubgraph":
            graph = self.graph(owner)
            owner = graph.owner if graph is not None else 0
        if number:
            entry = self.objects.get((kind, number))
            # A graph may be retrieved more than once.
            if entry is None or entry.freed_by:
                retrieved = name == "graphRetrieve"
                self.objects[kind, number] = Object(
                    kind, number, self._stack[-1].label, owner, finalized=retrieved, complete=not retrieved,
                    features=self._stack[-1].features, device=self._stack[-1].device,
                )  # fmt: skip

    def end(self, kind: str, number: int) -> None:
        """Record that an object has ended, and everything it owns."""
        entry = self.objects.get((kind, number))
        if entry is None or entry.freed_by:
            return
        entry.freed_by = self._stack[-1].label
        for each in list(self.objects.values()):
            if each.owner == number and each.owners_kind == kind and not each.freed_by:
                self.end(each.kind, each.handle)

    def living(self, kind: str, owner: int | None = None) -> list[Object]:
        """Return the objects of a kind that have not ended, of all owners or of one."""
        return [
            each
            for each in self.objects.values()
            if each.kind == kind and not each.freed_by and (owner is None or each.owner == owner)
        ]

    def graph(self, number: int) -> Object | None:
        """Return a graph, whether or not it has ended."""
        return self.objects.get(("graph", number))

    # -- the end -------------------------------------------------------------------------------------------------------

    def leaks(self) -> list[str]:
        """Return what was never freed, except objects that would be freed with their owner."""
        with self._lock:
            return [
                f"{each.what} of {each.created_by} was never freed"
                for each in self.objects.values()
                if not each.freed_by and each.kind != "graph" and not self._has_living_owner(each)
            ]

    def _has_living_owner(self, each: Object) -> bool:
        """Return whether an object's owner was never freed either: then only the owner is reported."""
        owner = self.objects.get((each.owners_kind, each.owner))
        return owner is not None and not owner.freed_by

    def report(self) -> dict[str, Any]:
        """Return the whole record as plain data."""
        leaks = self.leaks()
        with self._lock:
            return {
                "calls": {
                    name: {"count": call.count, "seconds": round(call.seconds, 6), "errors": dict(call.errors)}
                    for name, call in sorted(self.calls.items())
                },
                "mistakes": list(self.mistakes),
                "leaks": leaks,
                "raw_bytes": self.raw_bytes,
                "shared_bytes": self.shared_bytes,
            }

    def print_summary(self, mistakes: Sequence[str] = (), leaks: Sequence[str] = ()) -> int:
        """Print a summary at the end, write the report to the user's file, and return the number of mistakes and leaks.

        `mistakes` and `leaks` are those that the audit has found outside the calls.
        """
        report = self.report()
        report["mistakes"] += mistakes
        report["leaks"] += leaks
        problem_count = len(report["mistakes"]) + len(report["leaks"])
        if not report["calls"] and not problem_count:
            return 0
        total = sum(call["count"] for call in report["calls"].values())
        print(
            f"isthmus: checked {counted(total, 'call')} of {counted(len(report['calls']), 'function')}; "
            f"{counted(len(report['mistakes']), 'mistake')}, {counted(len(report['leaks']), 'leak')}",
            file=sys.stderr,
        )
        for leak in report["leaks"]:
            print(f"isthmus: {leak}", file=sys.stderr)
        file = os.environ.get("ISTHMUS_QNN_REPORT")
        if file:
            try:
                with open(file, "w") as stream:
                    json.dump(report, stream, indent=1)
            except OSError as problem:
                print(f"isthmus: ISTHMUS_QNN_REPORT='{file}' cannot be written: {problem.strerror}", file=sys.stderr)
        return problem_count


def _word_in_c(mistake: Mistake, hints: Sequence[tuple[str, str]] = ()) -> str:
    """Return the text of a mistake in the words of C; `hints` are a backend's own."""
    return worded_in_c(str(mistake), hints)


class _UnendedOnly(AuditLog):
    """An audit that keeps only what has to end: the number of executions does not make it grow."""

    def add(self, event: AuditEvent, key: AuditKey | None = None, spans: Sequence[Any] = ()) -> None:
        if key is not None:
            super().add(event, key, spans)


class MemoryCheck:
    """What ``ISTHMUS_QNN_VALIDATE`` asks for besides the checks of calls: an audit of memory, and an exit status.

    The value is ``1`` or options with commas between them: ``exitcode=66`` makes the process end with that status if it
    has made a mistake.
    """

    def __init__(self, value: str) -> None:
        self.exitcode = 0
        self._validations: list[Validation] = []
        # The validations whose libraries have not left yet.
        self._open: list[Validation] = []
        self._problem_count = 0
        # What the audit has found outside the calls, and not yet in a summary.
        self._outside: list[str] = []
        self._leaks: list[str] = []
        # The checks of calls cover objects. The audit covers memory: rpcmem is all that a client in C can allocate.
        self._log = _UnendedOnly(frozenset({"rpcmem"}), tell=self._hear)
        if value not in ("", "0"):
            for option in value.split(","):
                self._set(option, value)
            audit_log.start(self._log)

    def _set(self, option: str, value: str) -> None:
        """Set an option, or print that there is none of that name."""
        name, _, number = option.partition("=")
        if name == "exitcode" and number.isascii() and number.isdigit() and 1 <= int(number) <= 255:
            self.exitcode = int(number)
        elif option != "1":
            rule = "exitcode= takes 1 to 255" if name == "exitcode" else f"there is no option '{option}'"
            hint = "" if name == "exitcode" else did_you_mean(name, ["exitcode"])
            text = f"isthmus: ISTHMUS_QNN_VALIDATE='{value}': {rule}. {hint}".rstrip()
            print(text, file=sys.stderr)

    def include(self, validation: Validation) -> None:
        """Include a library's validation; `leave` ends it."""
        self._validations.append(validation)
        self._open.append(validation)

    def _hear(self, mistake: Mistake) -> None:
        """Record a mistake that the audit finds: in the call that this thread is in, or outside the calls."""
        for validation in self._validations:
            begun = validation.under_way()
            if begun is not None:
                begun.audited.append(mistake)
                return
        if len(self._outside) < MAX_MISTAKES:
            self._outside.append(_word_in_c(mistake))
            log_message(logging.WARNING, self._outside[-1], logger=_logger)

    def end_audit(self) -> None:
        """End the audit: the rest of the process's end frees what the client has not freed. Safe to call again."""
        if self._log in audit_log.active:
            audit_log.stop(self._log)
            live = [event for event in self._log.live if event.owner == "client"]
            self._leaks = [_word_in_c(leak_of(event, "it is there still at the end")) for event in live]

    def leave(self, validation: Validation) -> None:
        """Print the summary of a library that leaves; the last one, or the first with calls, includes the audit."""
        self._open.remove(validation)
        mistakes: list[str] = []
        leaks: list[str] = []
        if validation.calls or not self._open:
            mistakes, self._outside = self._outside, []
            leaks, self._leaks = self._leaks, []
        self._problem_count += validation.print_summary(mistakes, leaks)

    def exit(self) -> None:
        """End the process with the status that was asked for, if all libraries have left and mistakes were found."""
        if self.exitcode and self._problem_count and not self._open:
            sys.stdout.flush()
            sys.stderr.flush()
            # What the program has printed and not flushed.
            ctypes.CDLL(None).fflush(None)
            os._exit(self.exitcode)


# Function names by their addresses, which are constants of the library.
_names: dict[int, str] = {}


def _function_name(address: int) -> str:
    """Return the function name at an address, read only once."""
    if address not in _names:
        _names[address] = text(address) or ""
    return _names[address]


@serves("validationBefore")
def validation_before(server: LibraryServer, name: int, error: int, *values: int) -> None:
    """Check a call that is about to be made; `error` has no meaning here."""
    server.validation.before(_function_name(name), values)


@serves("validationAfter")
def validation_after(server: LibraryServer, name: int, error: int, *values: int) -> None:
    """Check and record the result of a call."""
    server.validation.after(_function_name(name), error, values)
