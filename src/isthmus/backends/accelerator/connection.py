"""The accelerator process from start to end, and numbered requests to it.

Two threads serve a connection. One starts the process and waits for its end: so the system can tie the process to the
life of the thread that started it, and its death is noticed at once. The other alone sends requests and receives
replies. Python delivers signals to the main thread only, so nothing can interrupt it halfway through a message. A
caller that waits for a reply can be interrupted at any time; if its reply still comes, what the call has done is
undone.

Neither thread refers to the `Accelerator`: if it is dropped, that is noticed and its process ends too.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from isthmus.backends.seam.deadlines import CHUNK, Deadlines, Patience
from isthmus.errors import Code, QnnError
from isthmus.system.channel import Channel, ChannelClosed, Message, system_refusal
from isthmus.system.child import Child
from isthmus.system.interrupts import FileDescriptor, start
from isthmus.system.shield import check

# Required fields of the replies to calls. The other side has read foreign data and is not trusted.
_ANSWERS: Mapping[str, Mapping[str, type]] = {
    "hello": {"pid": int, "unconfined": list},
    "register": {"slots": list},
    "open": {"queue": int},
    "load": {"graphs": list},
    "loaded": {"names": list},
}
# How long to wait for a killed process to end.
_SECONDS_TO_DIE = 5.0
# Maximum size of a reply in bytes.
_MAX_BYTES = 64 << 20
# Connections whose process may be alive; a forked child must release them.
_connections: set[Connection] = set()


class Request:
    """A pending call. If its reply comes after the caller has gone, the call `undo` is made, with the reply's fields.

    `answer` and `refusal` are the reply and its error, or the reason why none has come.
    """

    def __init__(self, name: str, arguments: dict[str, Any], undo: str = "") -> None:
        self.descriptors: list[FileDescriptor] = []
        """Duplicates of the descriptors to send: the caller may be interrupted and close its own before the message is
        sent.
        """
        self.name, self.arguments, self.undo = name, arguments, undo
        self.begun = False
        self.seconds = 0.0
        """How long a caller waits for the reply once all earlier requests are served."""
        self.answer: dict[str, Any] | None = None
        self.refusal: QnnError | None = None
        self.abandoned = False
        # Guards the reply, `abandoned` and `undo`.
        self._state = threading.RLock()
        # Locked until the reply has come.
        self._waiting = threading.Lock()
        self._waiting.acquire()

    @property
    def answered(self) -> bool:
        """Whether there is a result or an error."""
        return self.answer is not None or self.refusal is not None

    def settle(self, answer: dict[str, Any] | None, refusal: QnnError | None) -> bool:
        """Store the reply and return whether a caller still wants it."""
        with self._state:
            self.close()
            self.answer, self.refusal = answer, refusal
            self._waiting.release()
            return not self.abandoned

    def abandon(self) -> bool:
        """Mark the reply as unwanted and return whether it has come already."""
        with self._state:
            self.abandoned = True
            return self.answered

    def take_undo(self) -> str:
        """Return the call that undoes this one, once: numbers in the reply may be reused later."""
        with self._state:
            undo, self.undo = self.undo, ""
            return undo

    def wait(self, seconds: float) -> bool:
        """Wait for the reply, up to a time limit; return whether it has come."""
        patience = Patience(seconds)
        while not self.answered:
            check()
            left = patience.left()
            if left <= 0:
                return False
            if self._waiting.acquire(timeout=min(left, CHUNK)):
                self._waiting.release()
        return True

    def close(self) -> None:
        """Close the request's descriptors; safe to call again."""
        for descriptor in self.descriptors:
            descriptor.close()
        self.descriptors.clear()


class Connection:
    """A running accelerator process and the connection to it; `forked` if it belongs to this process's parent."""

    def __init__(self) -> None:
        self.alive, self.forked, self.reason = True, False, ""
        # Whether requests are still sent.
        self._open = True
        # Requests to be sent; None ends the thread that sends.
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._pending: weakref.WeakSet[Request] = weakref.WeakSet()
        """Requests that may still be unanswered."""
        self._numbers = itertools.count(1)
        # The function to call at the end of the process, by the number of the queue that it is for.
        self._bells: dict[int, Callable[[], None]] = {}
        # Held only briefly. Reentrant, because the garbage collector may run in a thread that holds it.
        self._lock = threading.RLock()
        self._channel: Channel | None = None
        self._process_end: socket.socket | None = None
        """The process's end of the channel, until the process has inherited it."""
        self._process: Child | None = None
        # Locked until the process has started or failed to. A lock, since an interrupted wait may break an event.
        self._starting = threading.Lock()
        self._starting.acquire()
        self._failure: Exception | None = None
        """Why the process could not be started."""
        bodies = (("process", self._watch), ("channel", self._converse))
        self._threads = [
            threading.Thread(target=body, name=f"isthmus-accelerator-{name}", daemon=True) for name, body in bodies
        ]

    def start(self, seconds: float = Deadlines.starting) -> None:
        """Start the process within a time limit; after an interrupt or an error nothing of it is left."""
        try:
            start(self._threads[0])
            patience = Patience(seconds)
            while not self._starting.acquire(timeout=min(seconds, CHUNK)):
                check()
                if patience.left() <= 0:
                    self.kill(f"it did not start within {seconds:g} s")
                    raise self.gone("accelerator process")
        except Exception as problem:
            self.kill("it was not wanted any more")
            if isinstance(problem, RuntimeError):
                raise _no_thread(problem) from None
            raise
        failure = self._failure
        if isinstance(failure, OSError):
            raise system_refusal(failure, "accelerator process", "cannot be started", Code.COMMON_SYSTEM)
        if isinstance(failure, MemoryError):
            raise QnnError(Code.COMMON_MEM_ALLOC, "accelerator process", "there is not enough memory to start it")
        if failure is not None:
            raise _no_thread(failure) if isinstance(failure, RuntimeError) else failure

    # -- requests ------------------------------------------------------------------------------------------------------

    def submit(self, name: str, **arguments: Any) -> None:
        """Send a call without waiting, if the process is alive. The garbage collector may use it."""
        self.post(Request(name, arguments))

    def post(self, request: Request) -> bool:
        """Queue a request and return whether the connection is open; the caller may wait for the reply or not.

        It is sent once, however often it is posted: after an interrupt the caller may post it again to be sure.
        """
        if sys.is_finalizing():
            # The threads that send and receive do not run any more.
            self.reason = self.reason or "the interpreter exits"
            return False
        with self._lock:
            if self._open:
                self._pending.add(request)
                self._requests.put(request)
            return self._open

    def seconds_to_wait(self, request: Request) -> float:
        """Return the time limits of a request and of all earlier ones that others wait for, added up."""
        with self._lock:
            earlier = [each for each in self._pending if not (each is request or each.answered or each.abandoned)]
        return request.seconds + sum(each.seconds for each in earlier)

    def abandon(self, request: Request) -> None:
        """Undo what a request has done, now or when its reply comes."""
        if request.abandon():
            self._undo(request)

    def _undo(self, request: Request) -> None:
        """Send the call that undoes an answered request, unless the request failed or is undone already."""
        undo = request.take_undo()
        if undo and request.answer is not None and request.refusal is None:
            self.submit(undo, **request.answer)

    def _converse(self) -> None:
        """Run the thread that sends and receives."""
        try:
            while (request := self._requests.get()) is not None:
                if not self._serve(request):
                    break
                # The traceback of the request's error would keep the caller's frames alive.
                del request
        finally:
            with self._lock:
                self._open = False
            while not self._requests.empty():
                unsent = self._requests.get()
                if unsent is not None and not unsent.answered:
                    unsent.settle(None, self.gone(f"call '{unsent.name}'"))
            self._hang_up()

    def _serve(self, request: Request) -> bool:
        """Send a request and settle it with the reply; return whether the process still replies."""
        if request.begun or request.answered:
            # The request was posted twice, and its first post is being served or was answered.
            return True
        if request.abandoned:
            rule = "its caller no longer waits for it"
            request.settle(None, QnnError(Code.COMMON_GENERAL, f"call '{request.name}'", rule))
            return True
        try:
            answer, refusal = self._exchange(request)
        except Exception as problem:
            # The process is gone, or there is no memory for its reply, or the reply is invalid: it cannot be trusted.
            # Wait for its end, since callers rely on an error that says that it has ended.
            self.kill("" if isinstance(problem, ChannelClosed) else f"its answer cannot be read: {problem!r}")
            self._threads[0].join(_SECONDS_TO_DIE)
            request.settle(None, self.gone(f"call '{request.name}'"))
            return False
        if not request.settle(answer, refusal):
            self._undo(request)
        return True

    def _exchange(self, request: Request) -> tuple[dict[str, Any] | None, QnnError | None]:
        """Send a request and wait for its reply; return the reply and its error, if there is one."""
        # Any other exception means that the process is gone or cannot be trusted.
        descriptors = [own.fileno() for own in request.descriptors]
        message = Message({"call": request.name, **request.arguments}, {}, descriptors, next(self._numbers))
        request.begun = True
        assert self._channel is not None
        try:
            self._channel.send(message)
        except QnnError as refusal:
            return None, refusal
        reply = self._channel.receive()
        # A proper reply has no descriptors.
        reply.close()
        if reply.number != message.number:
            raise ChannelClosed
        answer, refused = reply.header, _refusal(reply.header)
        if refused is None:
            for field, kind in _ANSWERS.get(request.name, {}).items():
                if not isinstance(answer.get(field), kind):
                    raise ValueError(f"'{request.name}' is answered without '{field}'")
        return answer, refused

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def gone(self, what: str) -> QnnError:
        """Return the error for a call when the process is not alive for this process."""
        because = f" ({self.reason})" if self.reason else ""
        rule = f"the accelerator process has ended{because}, and everything in it is lost"
        hint = "Free the context, create it again and register its memory again."
        if self.forked:
            rule = "the accelerator belongs to the process that this one was forked from"
            hint = "Create a backend of its own in the forked process."
        return QnnError(Code.COMMON_SYSTEM_COMMUNICATION, what, rule, hint)

    def watch_over(self, queue: int, hang_up: Callable[[], None]) -> None:
        """Call a function for a queue when the process ends."""
        self._bells[queue] = hang_up
        if not self.alive:
            hang_up()

    def forget(self, queue: int) -> None:
        """Call nothing for a queue any more; safe to call again."""
        self._bells.pop(queue, None)

    def end(self) -> None:
        """Ask the process to end, which it does at once, even during a computation. Does not wait."""
        if not self.forked:
            self._shut()

    def kill(self, reason: str) -> None:
        """Kill the process. Does not wait."""
        with self._lock:
            if self.forked:
                return
            if self.alive:
                self.reason = self.reason or reason
                # While `alive` is true, the process has not been reaped: the process id is still its own.
                if self._process is not None:
                    os.kill(self._process.pid, signal.SIGKILL)
        self._shut()
        self._requests.put(None)

    def join(self, seconds: float) -> bool:
        """Wait for the process and the threads to end; return whether they have ended."""
        limit = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.0, limit - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def kill_and_join(self, reason: str) -> None:
        """Kill the process and wait until it can no longer write anything."""
        self.kill(reason)
        self.join(_SECONDS_TO_DIE)

    def _watch(self) -> None:
        """Run the thread that owns the process."""
        try:
            _connections.add(self)
            self._open_and_start()
        except Exception as problem:
            self._failure = problem
            self.kill("it could not be started")
        finally:
            if self._process_end is not None:
                self._process_end.close()
            self._starting.release()
        if self._process is not None:
            _await_end(self._process.pid)
            with contextlib.suppress(MemoryError, OSError):
                self.reason = self.reason or self._process.last_words()
        with self._lock:
            self.alive = False
        if self._process is not None:
            # Only now does the system forget its process id: `kill` uses it while `alive` is true.
            self._process.wait()
        _connections.discard(self)
        self._shut()
        self._requests.put(None)
        for hang_up in list(self._bells.values()):
            hang_up()
        if self._threads[1].ident is None:
            # No other thread closes it.
            self._hang_up()

    def _open_and_start(self) -> None:
        """Open the sockets, start the process and its sender thread: here, where no interrupt can come."""
        self._channel, self._process_end = Channel.pair(_MAX_BYTES)
        if self.reason:
            # It was killed before it started.
            return
        process = Child(
            "isthmus.backends.accelerator",
            str(os.getpid()),
            descriptors=[self._process_end.fileno()],
            stderr=subprocess.PIPE,
        )
        # Outside the lock: `kill` need not wait until the process has started.
        with self._lock:
            self._process = process
            if self.reason:
                process.kill()
                return
        start(self._threads[1])

    def _shut(self) -> None:
        """Shut the channel down for both sides."""
        if self._channel is not None:
            self._channel.shut()

    def _hang_up(self) -> None:
        """Close this end of the channel."""
        with self._lock:
            self._open = False
        if self._channel is not None:
            self._channel.close()

    def _let_go(self) -> None:
        """Release the connection in a forked child, since it is the parent's."""
        # The lock is replaced: the thread that may have held it does not exist in the child.
        self.alive, self.forked, self._open = False, True, False
        self._lock = threading.RLock()
        self._hang_up()
        if self._process_end is not None:
            self._process_end.close()
        if self._process is not None:
            self._process.returncode = 0
            assert self._process.stderr is not None
            self._process.stderr.close()


def _refusal(answer: Mapping[str, Any]) -> QnnError | None:
    """Return the error of a reply, if it has one; a malformed one raises a `TypeError` or `ValueError`."""
    if "error" not in answer:
        return None
    code, *texts = answer["error"]
    what, rule, hint = texts
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"{texts!r} are not texts")
    return QnnError(Code(code), what, rule, hint)


def _no_thread(problem: Exception) -> QnnError:
    """Return the error for a thread that could not be started."""
    rule = f"it needs two threads, and the system starts no more: {problem}"
    return QnnError(Code.COMMON_RESOURCE_UNAVAILABLE, "accelerator process", rule)


def _await_end(pid: int) -> None:
    """Wait for the end of a child without reaping it, so that its process id stays valid."""
    # The client may have waited for all children.
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def _after_fork() -> None:
    """Release the parent's connections in a forked child."""
    for connection in list(_connections):
        connection._let_go()
    _connections.clear()


os.register_at_fork(after_in_child=_after_fork)
