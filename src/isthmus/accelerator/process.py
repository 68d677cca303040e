"""The client's side of the accelerator: its process from start to end, and the calls that cross to it.

A thread of its own starts the process and then waits for its end: so the system can tie the process to the life of the
thread that started it, and its death is noticed at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.accelerator.channel import MAX_FDS, Channel, ChannelClosed, refusal_from_json
from isthmus.accelerator.gate import Gate
from isthmus.engine.native import loader
from isthmus.engine.native.target import host as host_target
from isthmus.errors import Code, QnnError

if TYPE_CHECKING:
    from isthmus.accelerator.lane import Lane

SERVING = ("doorbell:serve", "executor:run", "executor:work", "executor:stop")
_SECONDS_TO_END = 2.0
_all: weakref.WeakSet[Accelerator] = weakref.WeakSet()


def gone(what: str) -> QnnError:
    """The answer to every call that needs an accelerator which has died."""
    return QnnError(
        Code.COMMON_SYSTEM_COMMUNICATION,
        what,
        "the accelerator process has ended, and with it all that lived there",
        "Free the context, create it again and register its memory again.",
    )


class Accelerator:
    """A running accelerator process; a context manager.

    Parameters
    ----------
    units
        How many executions may run at a time; one for each processor without it.
    """

    def __init__(self, units: int | None = None) -> None:
        self.gate = Gate(units or len(os.sched_getaffinity(0)))
        self._lanes: weakref.WeakSet[Lane] = weakref.WeakSet()
        self._calling = threading.Lock()
        self._alive = True
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        loader.ensure(SERVING, host_target())
        self._channel, theirs = Channel.pair()
        started = threading.Event()
        failure: list[OSError] = []
        self._watcher = threading.Thread(
            target=self._watch, args=(theirs.fileno(), started, failure), name="isthmus-accelerator", daemon=True
        )
        self._watcher.start()
        started.wait()
        theirs.close()
        if failure:
            raise QnnError(Code.COMMON_SYSTEM, "accelerator process", f"cannot be started: {failure[0].strerror}")
        _all.add(self)
        self.pid: int = self.call("hello")["pid"]

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self._alive

    def call(self, name: str, fds: Sequence[int] = (), **arguments: Any) -> dict[str, Any]:
        """Have something done on the other side, and wait for the answer."""
        with self._calling:
            if not self._alive:
                raise gone("accelerator")
            try:
                self._channel.send({"call": name, **arguments}, fds)
                answer, _ = self._channel.receive()
            except ChannelClosed:
                # The end of the process may not have been told yet, but it is certain.
                self._alive = False
                raise gone("accelerator") from None
        refusal = refusal_from_json(answer)
        if refusal is not None:
            raise refusal
        return answer

    def register(self, windows: Sequence[tuple[int, int, int]]) -> list[int]:
        """Let the accelerator see memory, given as (descriptor, offset, bytes): all or none.

        The answer are the numbers that it knows the memory by.
        """
        slots: list[int] = []
        try:
            for start in range(0, len(windows), MAX_FDS):
                part = windows[start : start + MAX_FDS]
                spans = [list(span) for _, *span in part]
                slots += self.call("register", [fd for fd, _, _ in part], spans=spans)["slots"]
        except QnnError:
            self.deregister(slots)
            raise
        return slots

    def deregister(self, slots: Sequence[int]) -> None:
        """Take memory away from it. A process that has died has none any more."""
        try:
            if slots and self._alive:
                self.call("deregister", slots=list(slots))
        except QnnError as problem:
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise

    def counts(self) -> dict[str, int]:
        """What the other side holds: descriptors, mappings, resident bytes, lanes, graphs, memory."""
        return self.call("counts")

    def close(self) -> None:
        """End the process; safe to call again."""
        if self._owner != os.getpid():
            return
        with self._calling:
            self._channel.close()
        self._watcher.join(_SECONDS_TO_END)
        if self._watcher.is_alive() and self._process is not None:
            self._process.kill()
            self._watcher.join()
        self._alive = False

    def watch_over(self, lane: Lane) -> None:
        """Have a lane told when the process ends."""
        self._lanes.add(lane)
        if not self._alive:
            lane.hang_up()

    def _watch(self, fd: int, started: threading.Event, failure: list[OSError]) -> None:
        source = str(Path(__file__).parents[2])
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH")))))
        command = [sys.executable, "-m", "isthmus.accelerator", str(fd), str(os.getpid())]
        try:
            self._process = subprocess.Popen(command, pass_fds=(fd,), stdin=subprocess.DEVNULL, env=environment)
        except OSError as problem:
            self._alive = False
            failure.append(problem)
            return
        finally:
            started.set()
        self._process.wait()
        self._alive = False
        for lane in list(self._lanes):
            lane.hang_up()

    def _forget(self) -> None:
        """In a forked child: the process is the parent's, not ours."""
        self._alive = False

    def __enter__(self) -> Accelerator:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _after_fork() -> None:
    for accelerator in list(_all):
        accelerator._forget()


os.register_at_fork(after_in_child=_after_fork)
