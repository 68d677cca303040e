"""This side of the process that runs the vendor's library: start, calls, and what became of it.

The library may end its process, hang, or write anywhere in it. So it has a process of its own, which knows nothing of
ours but a socket. Before each call of the library, the process writes the function's name in a page that both share:
when it ends, the error says in which function.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from isthmus.backends.vendor.library import VendorLibrary
from isthmus.backends.vendor.messages import Message, MessageChannel
from isthmus.errors import Code, QnnError
from isthmus.system import isolated
from isthmus.system.descriptors import ChannelClosed
from isthmus.system.interrupts import Finalizer, own_fd
from isthmus.system.lock import Lock
from isthmus.system.shield import PIECE, check, shielded

CHILD = "isthmus.backends.vendor.child"
"""The module that the process runs."""
STAGE_BYTES = 4096
"""The size of the shared page."""
SECONDS = 900.0
"""How long a call may take; compiling a large graph takes minutes."""
_ENDING_SECONDS = 1.0
_PASSED = ("ADSP_LIBRARY_PATH", "CDSP_LIBRARY_PATH", "DSP_LIBRARY_PATH")
"""Variables by which the library finds its other half on a device."""
KNOWN_CODES = {int(code): code for code in Code}


class VendorProcess:
    """A running process that has loaded the library; a context manager.

    Parameters
    ----------
    library
        The library to load.
    log_level
        QNN's log level, 1 (errors) to 5. The last lines become part of errors.

    Attributes
    ----------
    build
        The library's build id.
    versions
        The versions of the core and of HTP's interface, as texts.
    """

    @shielded(release=lambda process: process.close())
    def __init__(self, library: VendorLibrary, log_level: int = 1) -> None:
        self.library = library
        self._lock = Lock()
        self._over: str | None = None
        """Why the process cannot be used any more."""
        self._limit = 0.0
        """When the current call has to be over."""
        self._owner = os.getpid()
        self._start()
        self._channel = MessageChannel(self._end)
        try:
            hello, _ = self.call(
                "open", backend=str(library.backend), system=str(library.system), log_level=log_level
            )
            self.build, self.versions = str(hello["build"]), dict(hello["versions"])
        except Exception:
            self.close()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        passed: list[int] = []
        with own_fd(os.memfd_create, "isthmus-vendor-stage", os.MFD_CLOEXEC) as page:
            os.ftruncate(page.fileno(), STAGE_BYTES)
            self._stage = mmap.mmap(page.fileno(), STAGE_BYTES)
            try:
                passed += [isolated.passable(theirs.fileno()), isolated.passable(page.fileno())]
                environment = isolated.environment() | {"OPENBLAS_NUM_THREADS": "1"}
                environment |= {name: os.environ[name] for name in _PASSED if name in os.environ}
                self._child = subprocess.Popen(
                    isolated.command(CHILD, *map(str, passed)), env=environment, pass_fds=passed,
                    start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )  # fmt: skip
            except OSError as problem:
                ours.close()
                rule = f"its process cannot be started: {problem.strerror}"
                raise QnnError(Code.COMMON_SYSTEM, self.library.what, rule) from None
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
        return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, what, reason, "A new context starts a new process.")

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
            The time limit.
        tolerate
            Return an answer with the library's error ("code", "function", "log") instead of raising it.

        Raises
        ------
        QnnError
            The library's own code if it refuses; COMMON_SYSTEM_COMMUNICATION if it ends its process.
        """
        with self._lock:
            if not self.alive:
                raise self.gone(self.library.what)
            self._limit = time.monotonic() + (SECONDS if seconds is None else seconds)
            try:
                self._channel.send(Message({"call": name, **arguments}, sections or {}, descriptors))
                answer = self._channel.receive(self._wait)
                for descriptor in answer.descriptors:
                    os.close(descriptor)
            except ChannelClosed:
                raise self._ended() from None
            except Exception as problem:
                self._kill(getattr(problem, "rule", str(problem)))
                raise
        if "code" in answer.header and not tolerate:
            raise refusal(self.library.what, answer.header)
        return answer.header, answer.sections

    def _wait(self) -> None:
        """Wait until the process says something; refuse to wait longer than the limit."""
        while not select.select([self._end], [], [], PIECE)[0]:
            check()
            if time.monotonic() > self._limit:
                rule = f"it did not return from {self.stage} in time, and its process was killed"
                raise QnnError(Code.GRAPH_TIMED_OUT, self.library.what, rule)

    @property
    def stage(self) -> str:
        """The function of the library that was called last."""
        text = bytes(self._stage[:STAGE_BYTES]).split(b"\0", 1)[0].decode("utf-8", "replace")
        return text or "its start"

    def _ended(self) -> QnnError:
        """Record that the process has ended, and return the error that says how and where."""
        self._end.close()
        try:
            status = self._child.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            status = self._child.wait()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._over = self._over or f"the vendor's library ended the process ({how}) in {self.stage}"
        return self.gone(self.library.what)

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

    def __enter__(self) -> VendorProcess:
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
