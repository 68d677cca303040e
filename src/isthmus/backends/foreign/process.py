"""This side of a process that runs a foreign library: start, calls, and what became of it.

The process knows nothing of ours but a socket. Before each call of the library, it writes the function's name in a page
that both share: when it ends, the error says in which function.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from isthmus.backends.foreign.messages import MAX_BYTES, Message, MessageChannel
from isthmus.errors import Code, QnnError
from isthmus.system import isolated
from isthmus.system.descriptors import ChannelClosed
from isthmus.system.interrupts import Finalizer, own_fd
from isthmus.system.lock import Lock
from isthmus.system.shield import PIECE, check, shielded

STAGE_BYTES = 4096
"""The size of the shared page."""
_ENDING_SECONDS = 1.0
KNOWN_CODES = {int(code): code for code in Code}
_Process = TypeVar("_Process", bound="LibraryProcess")


class LibraryProcess:
    """A running process for a library; a context manager.

    Parameters
    ----------
    what
        The library, for messages.
    module
        The module that the process runs: `isthmus.backends.foreign.serving.serve` with a server of its own.
    seconds
        How long a call may take.
    passed
        Names of variables of the environment that the library needs, besides those that every child gets.
    hint
        What to do after the process has ended.
    max_bytes
        The size of its largest answer.
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
        self._module, self._seconds, self._passed, self._hint = module, seconds, passed, hint
        self._lock = Lock()
        self._over: str | None = None
        """Why the process cannot be used any more."""
        self._limit = 0.0
        """When the current call has to be over."""
        self._next_check = 0.0
        """When to look again whether the current call has to end."""
        self._stop: Callable[[], bool] | None = None
        """Whether the current call is to be given up."""
        self._owner = os.getpid()
        self._start()
        self._channel = MessageChannel(self._end, max_bytes)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        passed: list[int] = []
        with own_fd(os.memfd_create, "isthmus-library-stage", os.MFD_CLOEXEC) as page:
            os.ftruncate(page.fileno(), STAGE_BYTES)
            self._stage = mmap.mmap(page.fileno(), STAGE_BYTES)
            try:
                passed += [isolated.passable(theirs.fileno()), isolated.passable(page.fileno())]
                environment = isolated.environment() | {"OPENBLAS_NUM_THREADS": "1"}
                environment |= {name: os.environ[name] for name in self._passed if name in os.environ}
                self._child = subprocess.Popen(
                    isolated.command(self._module, *map(str, passed)), env=environment, pass_fds=passed,
                    start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            except OSError as problem:
                ours.close()
                rule = f"its process cannot be started: {problem.strerror}"
                raise QnnError(Code.COMMON_SYSTEM, self.what, rule) from None
            finally:
                theirs.close()
                for descriptor in passed:
                    os.close(descriptor)
        self._end = ours
        self._ending = Finalizer(self, _reclaim, self._child, ours, os.getpid())

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

        Parameters
        ----------
        seconds
            The time limit. By default that of the process.
        tolerate
            Return an answer with the library's error ("code", "function", "log") instead of raising it.

        Raises
        ------
        QnnError
            The library's own code if it refuses; COMMON_SYSTEM_COMMUNICATION if it ends its process.
        """
        message = Message({"call": name, **arguments}, sections or {}, descriptors)
        answer = self._exchange(message, self._seconds if seconds is None else seconds)
        if "code" in answer.header and not tolerate:
            raise refusal(self.what, answer.header)
        return answer.header, answer.sections

    def call_by_number(self, number: int, stop: Callable[[], bool] | None = None) -> Message:
        """Have the process do what a number stands for, as fast as possible, and return its answer.

        An execution is not shielded: the process is killed by an interrupt at any point.

        Parameters
        ----------
        stop
            Returns whether the call is to be given up; asked many times a second.
        """
        return self._exchange(Message(word=number), self._seconds, stop)

    def _exchange(self, message: Message, seconds: float, stop: Callable[[], bool] | None = None) -> Message:
        """Send a message and return the answer; kill the process if none comes in time or the caller is interrupted."""
        with self._lock:
            if not self.alive:
                raise self.gone(self.what)
            now = time.monotonic()
            self._limit, self._next_check, self._stop = now + seconds, now + PIECE, stop
            try:
                self._channel.send(message, partial(self._wait, select.POLLOUT))
                answer = self._channel.receive(partial(self._wait, select.POLLIN))
                for descriptor in answer.descriptors:
                    os.close(descriptor)
                return answer
            except ChannelClosed:
                raise self._ended() from None
            except BaseException as problem:
                self._kill(getattr(problem, "rule", "") or "its caller was interrupted")
                raise

    def _wait(self, event: int) -> None:
        """Wait until the socket can be read or written.

        Many times a second, also while bytes come or go, it is checked whether the call has to end.
        """
        poll = select.poll()
        poll.register(self._end, event)
        is_ready = False
        while not is_ready:
            is_ready = bool(poll.poll(PIECE * 1000))
            if time.monotonic() >= self._next_check:
                self._check()
                self._next_check = time.monotonic() + PIECE

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

    def _ended(self) -> QnnError:
        """Record that the process has ended, and return the error that says how and where."""
        self._end.close()
        try:
            status = self._child.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._over = self._over or f"the library ended the process ({how}) in {self.stage}"
        return self.gone(self.what)

    def _kill(self, reason: str) -> None:
        self._over = self._over or reason
        _reclaim(self._child, self._end, self._owner)

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
        _reclaim(self._child, self._end, self._owner)
        self._ending.forget()
        self._stage.close()

    def __enter__(self: _Process) -> _Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _reclaim(child: subprocess.Popen[bytes], end: socket.socket, owner: int) -> None:
    """Kill a process and release its end of the socket; safe to repeat."""
    end.close()
    if owner == os.getpid() and child.returncode is None:
        # The process leads a group of its own; whatever it has started ends too.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def refusal(what: str, answer: Mapping[str, Any]) -> QnnError:
    """Return the error for the library's own one: its code, the function, and the last line that it logged."""
    number, function = int(answer["code"]), str(answer["function"])
    lines = [str(line) for line in answer.get("log", ())]
    reason = f": {lines[-1]}" if lines else ""
    rule = f"{function} answers {number}{reason}"
    return QnnError(KNOWN_CODES.get(number, Code.COMMON_GENERAL), what, rule)
