"""What tests wait for: that something becomes true, or that the main thread is where it is to be interrupted.

How long a thing takes says nothing on a machine that others use too. So nobody here waits for a while and hopes: a test
waits until what it needs is there, and gives up after a time that only a failure can take.
"""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

PATIENCE = 120.0
"""Seconds after which what has not come is taken for something that never will."""
_LOOK_EVERY = 0.002
_AGAIN_AFTER = 0.05


def eventually(true: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Return whether something becomes true before long."""
    limit = time.monotonic() + seconds
    # Asked once a turn: what was true may not stay so.
    while not true():
        if time.monotonic() >= limit:
            return False
        time.sleep(_LOOK_EVERY)
    return True


Argument = TypeVar("Argument")


@contextmanager
def switched_often(seconds: float = 1e-6) -> Iterator[None]:
    """Within, Python switches between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_in_threads(work: Callable[[Argument], object], arguments: Iterable[Argument]) -> None:
    """Call a function for each argument, each call in a thread of its own, and wait for all of them."""
    threads = [threading.Thread(target=work, args=(argument,), daemon=True) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "a thread has not ended"


def main_in(function: Callable[..., object]) -> FrameType | None:
    """The frame of a function, if the main thread, or a helper that performs a call for it, is in it."""
    code = inspect.unwrap(function).__code__
    helpers = [thread.ident for thread in threading.enumerate() if thread.name == "isthmus-shield"]
    frames = sys._current_frames()
    for thread in (threading.main_thread().ident, *helpers):
        frame: FrameType | None = frames.get(thread)
        while frame is not None:
            if frame.f_code is code:
                return frame
            frame = frame.f_back
    return None


@contextmanager
def interrupted_when(*true: Callable[[], object], by: type[BaseException] = KeyboardInterrupt) -> Iterator[None]:
    """Within, a signal's handler raises once when the first of these is true, then once when the second is, and so on.

    The main thread must be in here; what never became true is never raised.
    """
    left, due, over = list(true), list[Callable[[], object]](), threading.Event()

    def handler(*_: object) -> None:
        # A signal that comes twice for one interrupt raises once.
        if due and left and due.pop() is left[0]:
            del left[0]
            raise by

    def watch() -> None:
        while left and not over.wait(_LOOK_EVERY):
            awaited = left[0]
            if awaited():
                # One that comes just before the thread begins to wait in the system does not end the wait.
                while left and left[0] is awaited and not over.is_set():
                    due[:] = [awaited]
                    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                    over.wait(_AGAIN_AFTER)

    def end() -> None:
        left.clear()
        over.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)

    before = signal.signal(signal.SIGUSR1, handler)
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield
    finally:
        try:
            end()
        except by:
            end()
            raise
