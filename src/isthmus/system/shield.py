"""State-changing calls on a thread that no signal handler reaches.

Python runs signal handlers in the main thread, between any two of its instructions, and a handler may raise (Ctrl-C
does). A shielded call from the main thread runs on a helper thread while the main thread waits for it. So the code
below it is ordinary Python: the next line is always reached. An interrupt is recorded, the call is asked to end early
(`check`), what it has created is released, and only then is the interrupt raised to the caller.

docs/interrupts.md lists the paths that are not shielded, and why.
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, ParamSpec, TypeVar, overload

from isthmus.errors import Code, QnnError
from isthmus.system.interrupts import run_pending, start

_P = ParamSpec("_P")
_R = TypeVar("_R")
_Owner = TypeVar("_Owner")

PIECE = 0.05
"""Seconds between the main thread's checks: a signal that another thread receives does not end its wait."""


class Cancelled(QnnError):
    """The error in a call whose caller was interrupted; only the code below the call sees it."""

    def __init__(self) -> None:
        super().__init__(Code.COMMON_GENERAL, "call", "its caller was interrupted")


@overload
def shielded(function: Callable[_P, _R], /) -> Callable[_P, _R]: ...


@overload
def shielded(*, release: Callable[[Any], object]) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...


def shielded(function: Any = None, /, *, release: Callable[[Any], object] | None = None) -> Any:
    """Make a function or a method run on a helper thread when it is called from the main thread.

    - `release`: Frees what an interrupted call has created. It is called with the result or, for ``__init__``, with the
      object.

    >>> import threading
    >>> @shielded
    ... def runs_on_main_thread():
    ...     return threading.current_thread() is threading.main_thread()
    >>> runs_on_main_thread()
    False
    """
    if function is None:
        return functools.partial(shielded, release=release)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return _run(function, arguments, named, release)

    return call


def unless_exiting(end: Callable[[_Owner], None]) -> Callable[[_Owner], None]:
    """Make a method that closes its object do nothing while the interpreter exits; the system then releases everything.

    Other threads do not run any more then, and never release the locks that they hold; native code of theirs may still
    use memory. Child processes end with this one.
    """
    # A variable of this function, since names of this module may be gone when the interpreter exits.
    is_exiting = sys.is_finalizing

    @functools.wraps(end)
    def end_unless_exiting(owner: _Owner) -> None:
        if not is_exiting():
            end(owner)

    return end_unless_exiting


def check() -> None:
    """Raise `Cancelled` if the caller of this thread's shielded call was interrupted. For long loops."""
    call = _now.call
    if call is not None and call.interrupted:
        raise Cancelled


def is_helping() -> bool:
    """Return whether this thread performs a shielded call for the main thread."""
    return _now.call is not None


class _Call:
    """One call: the function to run, which side has claimed it, and how it ended."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._work: Any = (contextvars.copy_context(), function, arguments, named)
        # The first entry decides who has the call: a helper, which performs it, or the caller, which drops it.
        self.claims: list[object] = []
        # Whether the caller was interrupted while it waited; the call should end early (`check`).
        self.interrupted = False
        # Has an entry once a helper has performed the call; a list, so that a helper can report the end after it has
        # dropped the call.
        self.ends: list[bool] = []
        self.value: Any = None
        self.problem: BaseException | None = None
        # The call that releases the result after an interrupt.
        self.undo: _Call | None = None
        self.generation = _generation
        # Released when the call is over, to wake the caller.
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def claim(self, who: object) -> bool:
        """Claim the call and return whether `who` has it, a unique object of each side; safe to repeat."""
        self.claims.append(who)
        return self.claims[0] is who

    @property
    def over(self) -> bool:
        """Whether a helper has performed the call."""
        return bool(self.ends)

    @property
    def is_lost(self) -> bool:
        """Whether the process was forked since: the helper then exists only in the parent."""
        return self.generation != _generation

    def perform(self) -> None:
        """Perform the call, on a helper thread."""
        _now.call = self
        context, function, arguments, named = self._work
        try:
            run_pending()
            self.value = context.run(function, *arguments, **named)
        except BaseException as problem:
            self.problem = problem
        # The arguments must not be kept alive here after the call.
        self._work = context = function = arguments = named = None
        _now.call = None

    def wait(self) -> None:
        """Wait until the call is over, in short pieces. A signal handler that runs meanwhile may raise."""
        # The loop must not end with the lock's acquisition: an interrupt may come right after that.
        while not (self.over or self.is_lost):
            if not self.claims and not _idle:
                # A signal handler has made a call while the only helper is busy with another.
                with suppress(RuntimeError):
                    start(_Helper())
            self.ended.acquire(True, PIECE)
        if self.is_lost:
            raise QnnError(Code.COMMON_SYSTEM_COMMUNICATION, "call", "this process was forked while it waited for it")


class _Now(threading.local):
    """What each thread is doing."""

    call: _Call | None = None
    """The call that this thread performs."""


class _Helper(threading.Thread):
    """A thread that performs calls until another helper is idle."""

    def __init__(self) -> None:
        super().__init__(name="isthmus-shield", daemon=True)

    def run(self) -> None:
        """Perform calls one after the other, while it is the only idle helper or calls are waiting."""
        # A fork replaces the globals in the child.
        generation, calls = _generation, _calls
        _idle.append(self)
        while len(_idle) == 1 or not calls.empty():
            call = calls.get()
            if call.claim(object()):
                _idle.remove(self)
                call.perform()
                if generation != _generation:
                    # The call has forked the process, and this is the child.
                    return
                # Both before the caller continues: it may make another call, and when it drops the result of this one,
                # no reference may be left here.
                _idle.append(self)
                ends, ended = call.ends, call.ended
                del call
                ends.append(True)
                ended.release()
            else:
                del call
        _idle.remove(self)


# Calls for the helpers to perform.
_calls: SimpleQueue[_Call] = SimpleQueue()
# Helpers that wait for a call.
_idle: list[_Helper] = []
# Number of forks that led to this process: a call of another generation has no helper here.
_generation = 0
_now = _Now()
# The claim of a caller that drops its call.
_CALLER = object()
_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
# Files whose code may hold locks that a call needs.
_LOCKING = (_PACKAGE, logging.__file__)
# Folders of this package whose code holds no locks.
_LOCK_FREE = tuple(_PACKAGE + room + os.sep for room in ("tools", "report"))
# Functions that the garbage collector may call at any point.
_BOUNDARIES = frozenset(("__del__", run_pending.__name__))


def _run(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    release: Callable[[Any], object] | None,
) -> Any:
    """Call a function on a helper thread and wait for it; on any thread but the main one, call it directly."""
    # If the wait is interrupted, the call is ended first, what it created is passed to `release`, and then the
    # interrupt is raised.
    if _thread.get_ident() != threading.main_thread().ident or sys.is_finalizing() or _is_within_library():
        return function(*arguments, **named)
    if not _idle:
        try:
            start(_Helper())
        except RuntimeError:
            # The system cannot start another thread. The call itself may work, and one that frees memory should.
            return function(*arguments, **named)
    call = _Call(function, arguments, named)
    try:
        _calls.put(call)
        call.wait()
        if call.problem is not None:
            raise call.problem
        return call.value
    except BaseException as problem:
        if problem is call.problem:
            # Its traceback refers to this frame: avoid a reference cycle.
            call.problem = None
            raise
        call.interrupted, interrupt = True, problem
    # An object under construction is the first argument of its `__init__`, not a result.
    constructed = (arguments[0],) if function.__name__ == "__init__" else None
    try:
        # Three times, because further interrupts may end the first two early. Not a loop: its backward jump would be a
        # point for an interrupt outside every `try`.
        try:
            _abandon(call, release, constructed)
        finally:
            try:
                _abandon(call, release, constructed)
            finally:
                _abandon(call, release, constructed)
        raise interrupt
    finally:
        call.problem = None
        del interrupt, call, constructed


def _abandon(call: _Call, release: Callable[[Any], object] | None, constructed: tuple[Any] | None) -> None:
    """Wait for an interrupted call to end and release what it has created; safe to repeat."""
    # `constructed` has the object to release; None for the call's result.
    if call.claim(_CALLER):
        # No helper has begun the call, and none will.
        return
    _wait_to_end(call)
    if release is None or call.problem is not None or call.is_lost:
        return
    if call.undo is None:
        call.undo = _Call(release, constructed or (call.value,), {})
    if not call.undo.over:
        # It is performed once, however often it is queued.
        _calls.put(call.undo)
        _wait_to_end(call.undo)
    call.value = None


def _wait_to_end(call: _Call) -> None:
    """Wait for a call to end, whatever signal handlers raise meanwhile."""
    while not (call.over or call.is_lost):
        # `suppress` is Python code, so the next interrupt could come inside it.
        try:  # noqa: SIM105
            call.wait()
        except BaseException:
            pass


def _is_within_library() -> bool:
    """Return whether this call was made from inside library code on the main thread."""
    # The caller is then a signal handler, a client's callback or the garbage collector. The library code that it
    # interrupted may hold locks. This thread can take them again, but a helper would wait for them forever.
    #
    # The stack shows that, from the innermost frame: library code, then code outside it, then library code again.
    # Not this function's own frame: a local variable that refers to it would be a reference cycle.
    frame: FrameType | None = sys._getframe(1)
    is_outside = False
    while frame is not None:
        code = frame.f_code
        if code.co_filename == __file__ and is_outside:
            # A signal handler has interrupted a wait for a helper, in which this thread holds no locks.
            return False
        if not code.co_filename.startswith(_LOCKING) or code.co_filename.startswith(_LOCK_FREE):
            is_outside = True
        elif is_outside:
            return True
        elif code.co_name in _BOUNDARIES:
            is_outside = True
        frame = frame.f_back
    return False


def _after_fork() -> None:
    """Begin without helpers and calls in a forked child: no thread but the forking one exists there."""
    global _calls, _generation
    _calls = SimpleQueue()
    _idle.clear()
    _generation += 1


os.register_at_fork(after_in_child=_after_fork)
