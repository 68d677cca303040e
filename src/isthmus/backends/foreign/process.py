"""This side of a process that runs a foreign library: start, calls, and what became of it.

The process knows nothing of ours but a socket. Before each call of the library, it writes the function's name in a page
that both share: when it ends, the error says in which function.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from isthmus.errors import Code, QnnError
from isthmus.system.channel import MAX_BYTES, Channel, ChannelClosed, Message
from isthmus.system.child import Child, describe_status
from isthmus.system.interrupts import Finalizer, own_fd
from isthmus.system.lock import Lock
from isthmus.system.shield import check, shielded

STAGE_BYTES = 4096
"""The size of the shared page."""
_ENDING_SECONDS = 1.0
KNOWN_CODES = {int(code): code for code in Code}
_Process = TypeVar("_Process", bound="LibraryProcess")


class LibraryProcess:
    """A running process for a library; a context manager.

    - `what`: The library, for messages.
    - `module`: The module that the process runs: `isthmus.backends.foreign.serving.serve` with a server of its own.
    - `seconds`: How long a call may take.
    - `passed`: Names of variables of the environment that the library needs, besides those that every child gets.
    - `hint`: What to do after the process has ended.
    - `max_bytes`: The size of its largest answer.
    """

    @shielded(release=lambda process: process.close())
    def __init__(
        self,
        what: str,
        module: str,
        seconds: float,
        passed: Sequence[str] = (),
        hint: str = "",
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self.what = what
        self._seconds, self._hint = seconds, hint
        self._lock = Lock()
        self._over: str | None = None
        """Why the process cannot be used any more."""
        self._limit = 0.0
        """When the current call has to be over."""
        self._stop: Callable[[], bool] | None = None
        """Whether the current call is to be given up."""
        self._owner = os.getpid()
        variables = {name: os.environ[name] for name in passed if name in os.environ}
        self._channel, theirs = Channel.pair(max_bytes)
        with theirs, own_fd(os.memfd_create, "isthmus-library-stage", os.MFD_CLOEXEC) as page:
            os.ftruncate(page.fileno(), STAGE_BYTES)
            self._stage = mmap.mmap(page.fileno(), STAGE_BYTES)
            try:
                fds = [theirs.fileno(), page.fileno()]
                self._child = Child(module, descriptors=fds, folder=None, variables=variables)
            except OSError as problem:
                self._channel.close()
                rule = f"its process cannot be started: {problem.strerror}"
                raise QnnError(Code.COMMON_SYSTEM, what, rule) from None
        self._ending = Finalizer(self, _reclaim, self._child, self._channel)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether calls are possible."""
        return self._over is None and self._owner == os.getpid()

    def gone(self, what: str) -> QnnError:
        """Return the error for a use after the end: why it ended."""
        reason = self._over or "it belongs to the process that this one was forked from"
        return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, what, reason, self._hint)

    @shielded
    def call(
        self,
        name: str,
        sections: Mapping[str, bytes | memoryview] | None = None,
        descriptors: Sequence[int] = (),
        /,
        *,
        seconds: float | None = None,
        tolerate: bool = False,
        **arguments: Any,
    ) -> tuple[dict[str, Any], Mapping[str, bytes | memoryview]]:
        """Have the process do something, and return its answer and the sections that come with it.

        The process is killed if the caller is interrupted or the time is over: nothing else ends a call of the library.

        - `seconds`: The time limit. By default that of the process.
        - `tolerate`: Return an answer with the library's error ("code", "function", "log") instead of raising it.

        Raises `QnnError`: the library's own code if it refuses; COMMON_SYSTEM_COMMUNICATION if it ends its process.
        """
        message = Message({"call": name, **arguments}, sections or {}, descriptors)
        answer = self._exchange(message, self._seconds if seconds is None else seconds)
        if "code" in answer.header and not tolerate:
            raise refusal(self.what, answer.header)
        return answer.header, answer.sections

    def call_by_number(self, number: int, stop: Callable[[], bool] | None = None) -> Message:
        """Have the process do what a number stands for, as fast as possible, and return its answer.

        Unlike `call`, this is not shielded: an interrupt at any point kills the process. So does `stop`, which is asked
        many times a second, once it returns true.
        """
        return self._exchange(Message(number=number), self._seconds, stop)

    def _exchange(self, message: Message, seconds: float, stop: Callable[[], bool] | None = None) -> Message:
        """Send a message and return the answer; kill the process if none comes in time or the caller is interrupted."""
        with self._lock:
            if not self.alive:
                raise self.gone(self.what)
            self._limit, self._stop = time.monotonic() + seconds, stop
            try:
                self._channel.send(message, self._check)
                answer = self._channel.receive(self._check)
                answer.close()
                return answer
            except ChannelClosed:
                raise self._record_end() from None
            except BaseException as problem:
                self._over = self._over or getattr(problem, "rule", "") or "its caller was interrupted"
                _reclaim(self._child, self._channel)
                raise

    def _check(self) -> None:
        """Raise the error of a call that has to end: its caller was interrupted, it is aborted, or its time is over."""
        check()
        if self._stop is not None and self._stop():
            raise QnnError(Code.GRAPH_ABORTED, self.what, f"it was in {self.stage}, and its process was killed")
        if time.monotonic() > self._limit:
            rule = f"it did not return from {self.stage} in time, and its process was killed"
            raise QnnError(Code.GRAPH_TIMED_OUT, self.what, rule)

    @property
    def stage(self) -> str:
        """The function of the library that was called last."""
        content = b"" if self._stage.closed else bytes(self._stage[:STAGE_BYTES])
        return content.split(b"\0", 1)[0].decode("utf-8", "replace") or "its start"

    def _record_end(self) -> QnnError:
        """Record that the process has ended, and return the error that says how and where."""
        self._channel.close()
        try:
            status = self._child.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        self._over = self._over or f"the library ended the process ({describe_status(status)}) in {self.stage}"
        return self.gone(self.what)

    def kill(self, reason: str) -> None:
        """Kill the process, also while another thread waits for it; calls are refused with this reason."""
        if self._owner == os.getpid():
            self._over = self._over or reason
            with suppress(ProcessLookupError):
                self._child.kill()

    @shielded
    def close(self) -> None:
        """End the process, whatever it does; safe to call again."""
        self._over = self._over or "its context has been freed"
        _reclaim(self._child, self._channel)
        self._ending.forget()
        self._stage.close()

    def __enter__(self: _Process) -> _Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _reclaim(child: Child, channel: Channel) -> None:
    """Kill a process, with whatever it has started, and close the channel to it; safe to repeat."""
    channel.close()
    child.end()


def refusal(what: str, answer: Mapping[str, Any]) -> QnnError:
    """Return the error for the library's own one: its code, the function, and the last line that it logged."""
    number, function = int(answer["code"]), str(answer["function"])
    lines = [str(line) for line in answer.get("log", ())]
    reason = f": {lines[-1]}" if lines else ""
    rule = f"{function} answers {number}{reason}"
    return QnnError(KNOWN_CODES.get(number, Code.COMMON_GENERAL), what, rule)
