"""The servers behind the C libraries: one per library; its methods have QNN's names, and take and return numbers."""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from isthmus import audit_log, qnn
from isthmus.backends.seam import registry
from isthmus.backends.seam.facets import CFacet
from isthmus.cabi.client import BadPointer
from isthmus.capi import (  # noqa: F401 - these enter their functions
    backend,
    binaries,
    composing,
    context,
    delegate,
    device,
    dlc,
    dlc_descriptions,
    execution,
    extensions,
    graph,
    memory,
    messages,
    records,
    saver,
    serialization,
    validation,
)
from isthmus.capi.functions import SPECIAL, SYSTEM_INVALID_HANDLE, TABLE, Function, UnknownSystemHandle
from isthmus.capi.handles import Handles
from isthmus.capi.hints import in_c, worded_in_c
from isthmus.capi.records import ClientLog
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel, deferred, log_message
from isthmus.memory import auditing
from isthmus.qnn.asynchronous import replace_thread
from isthmus.system.callers import called_from_native

SERVING_ALL = ("QnnSystem", "cdsprpc", "QnnTFLiteDelegate", "QnnLpaiNetRunExtensions")
"""The libraries that belong to no single backend."""

# Servers by the address of their library's `leave` function, which is unique to each library.
_servers: dict[int, LibraryServer] = {}
# The check of memory that these libraries share, once there is one.
_checks: list[validation.MemoryCheck] = []


def open(library: str, log: int, notify: int, forget: int, leave: int, caller: int = 0) -> LibraryServer:
    """Return the server of a library that has just been loaded; all threads get the same one.

    The library ensures that only one thread is here at a time (``interpreter.h``).

    The other arguments are addresses of its functions. They pass a text to a client's log, notify a client of the end
    of an execution, clear cached executions, stop calling Python, and return where the call in progress returns to.
    """
    if leave not in _servers:
        if not _checks:
            _checks.append(validation.MemoryCheck(os.environ.get("ISTHMUS_QNN_VALIDATE", "")))
        _servers[leave] = LibraryServer(library, log, notify, forget, leave, caller)
        _checks[0].include(_servers[leave].validation)
    return _servers[leave]


def servers() -> list[LibraryServer]:
    """Return the servers of all loaded libraries."""
    return list(_servers.values())


class LibraryServer:
    """The Python implementation behind one library."""

    def __init__(
        self, library: str, log: int = 0, notify: int = 0, forget: int = 0, leave: int = 0, caller: int = 0
    ) -> None:
        self.library = library
        self.handles = Handles()
        # The log for messages that belong to no object of the client.
        self.own_log = Log(None, LogLevel.WARN)
        # The record of a client's calls, if they are validated.
        self.validation = validation.Validation(lambda: self._hints, lambda: self.facet)
        # Objects that clients have pointers to, by address.
        self.client_objects: dict[int, Any] = {}
        # Functions that end objects of no backend if the client has not freed them.
        self.endings: dict[int, Callable[[], object]] = {}
        # Constant values that clients have pointers to, by a key, and the last reason of each error code.
        self._once: dict[object, Any] = {}
        self._failures: dict[int, str] = {}
        # What `log_once` has sent since the last backend was created.
        self._said: set[str] = set()
        self._call_log = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_char_p
        )(log) if log else None  # fmt: skip
        self._notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)(notify)
        # PYFUNCTYPE: these are called with the GIL held, which guards what they change.
        self._forget = ctypes.PYFUNCTYPE(None)(forget) if forget else None
        self._leave = ctypes.PYFUNCTYPE(None)(leave) if leave else None
        self._caller = ctypes.PYFUNCTYPE(ctypes.c_size_t)(caller) if caller else None
        # Held during `leave`, which the interpreter's end and the library may both call.
        self._leaving = threading.Lock()
        # Before the modules are torn down: after that, no call could be served.
        atexit.register(self.leave)

    @cached_property
    def backend_name(self) -> str:
        """The backend's short name; empty for a library that belongs to no single backend."""
        if self.library in composing.FACETS:
            # Graphs are composed there, and never executed: any backend will do to check them.
            return registry.DEFAULT
        return "" if self.library in SERVING_ALL else registry.entry(f"lib{self.library}.so").name

    @cached_property
    def facet(self) -> CFacet:
        """The backend's declarations for C."""
        if self.library in composing.FACETS:
            return composing.FACETS[self.library]
        return registry.c_facet(self.backend_name) if self.backend_name else CFacet()

    @property
    def _hints(self) -> Sequence[tuple[str, str]]:
        """The backend's own words for C."""
        # Do not import the facet for this: that import may be what failed.
        facet: CFacet = vars(self).get("facet", CFacet())
        return facet.hints

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the method for a C function (`TABLE`), creating it at the first call."""
        function = SPECIAL.get((self.library, name)) or TABLE.get(name)
        if function is None:
            raise AttributeError(name)
        answer = self._guard(function)
        setattr(self, name, answer)
        return answer

    def _guard(self, function: Function) -> Callable[..., Any]:
        """Return a function that turns exceptions into error codes, and success into 0."""
        call, failure = function.call, function.failure

        def answer(*arguments: int) -> Any:
            try:
                if audit_log.active and self._caller is not None:
                    called_from_native(self._caller())
                result = call(self, *arguments)
            except BaseException as problem:
                code = self.answer(function, problem)
                return code if failure is None else failure
            return 0 if result is None else result

        return answer

    def answer(self, function: Function, problem: BaseException) -> int:
        """Return the code for an exception that a function raised, and log it."""
        if isinstance(problem, BadPointer):
            problem = QnnError(function.invalid, "its arguments", str(problem))
        if isinstance(problem, UnknownSystemHandle) and isinstance(problem.__cause__, QnnError):
            self.record_failure(function.name, problem.__cause__)
            return SYSTEM_INVALID_HANDLE
        if isinstance(problem, QnnError):
            return self.record_failure(function.name, problem, function.expected)
        if isinstance(problem, MemoryError):
            return int(Code.COMMON_MEM_ALLOC)
        if isinstance(problem, KeyboardInterrupt):
            # The library raises it again in the calling code; raised here, no code would catch it.
            raise problem
        text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
        log_message(logging.ERROR, f"{function.name} failed:\n{text}")
        return int(Code.COMMON_GENERAL)

    def record_failure(self, function: str, problem: QnnError, expected: bool = False) -> int:
        """Record an error, so that the client can query its reason, log it, and return its code.

        - `expected`: As for `Function`: a client without a log is not told of such an error.
        """
        if not expected:
            audit_log.refuse(problem)
        problem = in_c(problem, self._hints)
        self._failures[int(problem.code)] = f"{function}: {problem}"
        self.log(LogLevel.ERROR, f"{function}: {problem}", LogLevel.VERBOSE if expected else LogLevel.ERROR)
        return int(problem.code)

    def reason(self, code: int) -> str | None:
        """Return why a code was last returned."""
        return self._failures.get(code)

    def log(self, level: LogLevel, text: str, own_level: LogLevel | None = None) -> None:
        """Send a message to all logs of the client, or to `own_log`, at `own_level` if given, if it has none."""
        logs = [log for _, log in self.handles.of_kind(ClientLog)]
        for log in logs:
            log(level, text)
        if not logs:
            self.own_log(own_level or level, text)

    def log_once(self, level: LogLevel, text: str) -> None:
        """Send a message that concerns many calls, unless it was sent since the client's last backend was created."""
        if text not in self._said or not any(self.handles.of_kind(qnn.Backend)):
            self._said.add(text)
            self.log(level, text)

    def log_again(self) -> None:
        """Let `log_once` send all messages again: they are for a new backend."""
        self._said.clear()

    def hand(self, callback: int, level: LogLevel, nanoseconds: int, text: str) -> None:
        """Call a client's log callback as C does: with a format, which ends the line, and its arguments."""
        if self._call_log is not None:
            self._call_log(callback, int(level), nanoseconds, b"%s\n", text.encode(errors="backslashreplace"))

    def notify(self, callback: int, parameter: int, error: int) -> None:
        """Call a client's callback for the end of an execution."""
        self._notify(callback, parameter, error)

    def thread_ends(self) -> int:
        """Start a replacement for this thread, which a client's callback is about to end."""
        replace_thread()
        return 0

    def keep(self, thing: Any) -> int:
        """Keep a ctypes value alive, and return its address."""
        address = ctypes.addressof(thing)
        self.client_objects[address] = thing
        return address

    def keep_text(self, text: str) -> int:
        """Return the address of a text that stays valid forever; equal texts have the same address."""
        return self.keep_once(text, lambda: ctypes.create_string_buffer(text.encode(errors="backslashreplace")))

    def keep_once(self, what: object, make: Callable[[], Any]) -> int:
        """Return the address of a constant ctypes value, creating it on first use; `what` is its key."""
        if what not in self._once:
            self._once[what] = make()
        return ctypes.addressof(self._once[what])

    def forget_executions(self) -> None:
        """Clear the library's cached executions, so that graphs and memory can be freed."""
        if self._forget is not None:
            self._forget()

    def leave(self) -> None:
        """Free what the client has not freed, and serve no more calls."""
        # Audits end first: the rest of this frees what the client has not freed, and would hide leaks.
        auditing.conclude(lambda text: worded_in_c(text, self._hints))
        for check in _checks:
            check.end_audit()
        with deferred(), self._leaving:
            if self._leave is not None:
                self._leave()
                self._leave = None
                for check in _checks:
                    check.leave(self.validation)
            for address, end in reversed(list(self.endings.items())):
                try:
                    end()
                except QnnError as problem:
                    self.record_failure("leave", problem)
                self.endings.pop(address, None)
            for number, backend in self.handles.of_kind(qnn.Backend):
                self.handles.remove(number)
                try:
                    backend.free()
                except QnnError as problem:
                    self.record_failure("backendFree", problem)
        for check in _checks:
            check.exit()
