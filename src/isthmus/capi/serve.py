"""What a library in C talks to: one server a library, whose methods have QNN's names and take and answer numbers."""

from __future__ import annotations

import atexit
import ctypes
import logging
import threading
import traceback
from collections.abc import Callable
from functools import cached_property
from typing import Any

from isthmus import qnn
from isthmus.backends.seam import registry
from isthmus.backends.seam.facets import CFacet
from isthmus.cabi.client import BadPointer
from isthmus.capi import (  # noqa: F401 - these enter their functions
    backend,
    binaries,
    context,
    delegate,
    device,
    dlc,
    dlc_descriptions,
    execution,
    extensions,
    graph,
    memory,
    records,
    serialization,
    validation,
)
from isthmus.capi.functions import TABLE, Function
from isthmus.capi.handles import Handles
from isthmus.capi.hints import in_c
from isthmus.capi.records import ClientLog
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel, deferred, tell
from isthmus.qnn.asynchronous import replace_thread

SERVING_ALL = ("QnnSystem", "cdsprpc", "QnnTFLiteDelegate", "QnnLpaiNetRunExtensions")
"""The libraries without a backend of their own."""

_servers: dict[int, LibraryServer] = {}
"""By the address of the function that has a library leave: what no two libraries have in common."""


def open(library: str, say: int, notify: int, forget: int, leave: int) -> LibraryServer:
    """The server of a library that has just been loaded; the same for all threads that open it.

    The library sees to it that one of them is here at a time (``interpreter.h``).

    Parameters
    ----------
    library
        Its name, without ``lib`` and ``.so``.
    say
        Where it has the function that hands a text to a client's log.
    notify
        Where it has the function that notifies a client of the end of an execution.
    forget
        Where it has the function that forgets the executions it knows.
    leave
        Where it has the function that keeps it from calling Python again.
    """
    if leave not in _servers:
        _servers[leave] = LibraryServer(library, say, notify, forget, leave)
    return _servers[leave]


def servers() -> list[LibraryServer]:
    """The servers of all libraries that are loaded."""
    return list(_servers.values())


class LibraryServer:
    """One library's side of QNN.

    Parameters
    ----------
    library, say, notify, forget, leave
        See `open`.
    """

    def __init__(self, library: str, say: int = 0, notify: int = 0, forget: int = 0, leave: int = 0) -> None:
        self.library = library
        self.handles = Handles()
        self.log = Log(None, LogLevel.WARN)
        """Where it says what belongs to no object of the client's."""
        self.validation = validation.Validation()
        """What is seen of a client's calls, where they are checked."""
        self.kept: dict[int, Any] = {}
        """What clients were given pointers to, by these."""
        self.endings: dict[int, Callable[[], object]] = {}
        """What ends things that are no back end's, where the client has not."""
        self._once: dict[object, Any] = {}
        self._failures: dict[int, str] = {}
        self._say = ctypes.CFUNCTYPE(
            None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_char_p
        )(say) if say else None  # fmt: skip
        self._notify = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64)(notify)
        # These two are called with the GIL, which guards what they change.
        self._forget = ctypes.PYFUNCTYPE(None)(forget) if forget else None
        self._leave = ctypes.PYFUNCTYPE(None)(leave) if leave else None
        self._leaving = threading.Lock()
        # Before the modules are taken apart: after that, no answer could be given.
        atexit.register(self.leave)

    @cached_property
    def backend_name(self) -> str:
        """The backend's short name; empty for a library that serves all."""
        return "" if self.library in SERVING_ALL else registry.entry(f"lib{self.library}.so").name

    @cached_property
    def facet(self) -> CFacet:
        """What the backend declares for C."""
        return registry.c_facet(self.backend_name) if self.backend_name else CFacet()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = TABLE.get(name)
        if function is None:
            raise AttributeError(name)
        answer = self._guarded(function)
        setattr(self, name, answer)
        return answer

    def _guarded(self, function: Function) -> Callable[..., Any]:
        call, failure = function.call, function.failure

        def answer(*arguments: int) -> Any:
            try:
                result = call(self, *arguments)
            except BaseException as problem:
                code = self.answer(function, problem)
                return code if failure is None else failure
            return 0 if result is None else result

        return answer

    def answer(self, function: Function, problem: BaseException) -> int:
        """The code for what a function has raised, after it was told where the client listens."""
        if isinstance(problem, BadPointer):
            problem = QnnError(function.invalid, "its arguments", str(problem))
        if isinstance(problem, QnnError):
            return self.failed(function.name, problem, function.expected)
        if isinstance(problem, MemoryError):
            return int(Code.COMMON_MEM_ALLOC)
        if isinstance(problem, KeyboardInterrupt):
            # The library has it come up again where it was called from; raised here it would be nobody's.
            raise problem
        text = "".join(traceback.format_exception(type(problem), problem, problem.__traceback__))
        tell(logging.ERROR, f"{function.name} failed:\n{text}")
        return int(Code.COMMON_GENERAL)

    def failed(self, function: str, problem: QnnError, expected: bool = False) -> int:
        """Note a refusal, so that the client can ask for its reason, and say it where the client listens."""
        # The facet is not imported for this: that may be what has failed.
        problem = in_c(problem, vars(self).get("facet", CFacet()).hints)
        self._failures[int(problem.code)] = f"{function}: {problem}"
        self.say(LogLevel.VERBOSE if expected else LogLevel.ERROR, f"{function}: {problem}")
        return int(problem.code)

    def reason(self, code: int) -> str | None:
        """Why a code was last answered."""
        return self._failures.get(code)

    def say(self, level: LogLevel, text: str) -> None:
        """Say something to all logs that the client has, or else to Python's."""
        logs = [log for _, log in self.handles.of_kind(ClientLog)]
        for log in logs:
            log(level, text)
        if not logs:
            self.log(level, text)

    def hand(self, callback: int, level: LogLevel, nanoseconds: int, text: str) -> None:
        """Call a client's log callback, as C does: with a format and its arguments."""
        if self._say is not None:
            self._say(callback, int(level), nanoseconds, b"%s", text.encode(errors="backslashreplace"))

    def notify(self, callback: int, parameter: int, error: int) -> None:
        """Call what a client has given to be notified by of the end of an execution."""
        self._notify(callback, parameter, error)

    def thread_ends(self) -> int:
        """Have another thread do what is left to do for this one, which a callback of the client's ends."""
        replace_thread()
        return 0

    def keep(self, thing: Any) -> int:
        """Keep a value of ctypes alive, and answer where it is."""
        address = ctypes.addressof(thing)
        self.kept[address] = thing
        return address

    def keep_text(self, text: str) -> int:
        """Where a text is that clients may read for ever; the same text is always in the same place."""
        return self.keep_once(text, lambda: ctypes.create_string_buffer(text.encode(errors="backslashreplace")))

    def keep_once(self, what: object, make: Callable[[], Any]) -> int:
        """Where a value is that does not change, made when it is first asked for."""
        if what not in self._once:
            self._once[what] = make()
        return ctypes.addressof(self._once[what])

    def forget_executions(self) -> None:
        """Have the library forget what it remembers, so that graphs and memory can go."""
        if self._forget is not None:
            self._forget()

    def leave(self) -> None:
        """Free what the client has left, and answer no more."""
        with deferred(), self._leaving:
            if self._leave is not None:
                self._leave()
                self._leave = None
                self.validation.tell()
            for number, end in reversed(list(self.endings.items())):
                try:
                    end()
                except QnnError as problem:
                    self.failed("leave", problem)
                self.endings.pop(number, None)
            for number, left in self.handles.of_kind(qnn.Backend):
                self.handles.remove(number)
                try:
                    left.free()
                except QnnError as problem:
                    self.failed("backendFree", problem)
