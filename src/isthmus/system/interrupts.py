"""What no handler of a signal can come between: opening and owning, starting and knowing, forgetting and ending.

Python runs handlers in the main thread between any two instructions, also after a call has returned and before what it
returned is stored. A handler that raises there, as Ctrl-C does, takes with it what was just opened. To block signals
meanwhile does not help: every other thread can receive them, and the handler is run in the main thread all the same.
To exchange the handlers meanwhile would meddle with what is the client's. So what must not be lost is never Python's
alone: a single call into C has it opened and puts it into an object that ends it in C as well. What cannot be done by
one call is done on another thread, where no handler runs, or is on record before it begins and safe to repeat.
"""

from __future__ import annotations

import _thread
import atexit
import select
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

_A_WAIT = 0.1
"""Seconds that handlers may have to wait."""
_SECONDS_TO_START = 5.0


class FileDescriptor(Protocol):
    """A file descriptor with an owner: it is closed by `close`, at the end of a ``with``, or when it is forgotten."""

    def fileno(self) -> int:
        """Its number; a `ValueError` after its end."""

    def close(self) -> None:
        """Close it; safe to call again."""

    def __enter__(self) -> Any:
        """Itself."""

    def __exit__(self, *exception: Any) -> Any:
        """Close it."""


def own_fd(open_: Callable[..., int], *arguments: Any) -> FileDescriptor:
    """What a call of the system opens, with an owner before any handler can run.

    Parameters
    ----------
    open_
        A function written in C that answers a new file descriptor: `os.open`, `os.memfd_create`, `os.dup` …
    arguments
        What it is called with.

    Examples
    --------
    >>> import os
    >>> with own_fd(os.open, "/proc/self/comm", os.O_RDONLY) as file:
    ...     len(os.read(file.fileno(), 1))
    1
    """
    # An epoll object takes any descriptor as it is, and closes it in C: when told to, and without a word when it is
    # forgotten. (A file object would look at it first, refuse a directory, and leave that open.) `map` and the
    # unpacking are C too: the first instruction that comes after the opening has the owner.
    [descriptor] = map(select.epoll.fromfd, map(open_, *((argument,) for argument in arguments)))
    return descriptor


def start(thread: threading.Thread) -> None:
    """Start a thread: after an interrupt it has been started, or never will be.

    `Thread.start` itself, interrupted, may leave one that runs and counts as not started, or breaks its own record. And
    it waits for ever for one that had not enough memory to begin.

    Raises
    ------
    RuntimeError
        If the system starts no more threads.
    """
    begun, starters, problems = _thread.allocate_lock(), list[int](), list[BaseException]()

    def begin() -> None:
        try:
            thread.start()
        except BaseException as problem:
            problems.append(problem)
        finally:
            begun.release()

    begun.acquire()
    # From here on the new thread alone keeps the function: it goes with that thread.
    begins, alive = [begin], weakref.ref(begin)
    del begin
    try:
        starters.extend(map(_thread.start_new_thread, map(begins.pop, (-1,)), ((),)))
        _await_start(begun, alive)
    except _NotBegun:
        raise
    except BaseException:
        if starters and thread.ident is None and not problems:
            with suppress(_NotBegun):
                _await_start(begun, alive)
        raise
    if problems:
        raise problems[0]


class _NotBegun(RuntimeError):
    """A thread that was started and does not run."""


def _await_start(begun: _thread.LockType, alive: weakref.ref[Any]) -> None:
    """Wait until a thread has begun; `_NotBegun` for one that has died before it could say so.

    That happens where memory is short: the system starts the thread, and Python has nothing left to run it with. Time
    in which this process is stopped does not count.
    """
    left = _SECONDS_TO_START
    while not begun.acquire(timeout=_A_WAIT):
        if alive() is None:
            # It may have said so since.
            if begun.acquire(blocking=False):
                return
            raise _NotBegun("a new thread has ended before it began")
        left -= _A_WAIT
        if left <= 0:
            raise _NotBegun(f"a new thread has not begun within {_SECONDS_TO_START:g} s")


class Finalizer(weakref.ref):  # type: ignore[type-arg]
    """Something to be called when an object is forgotten, or before: it is on record until it has been done whole.

    What an interrupt comes into is done again when the next object is forgotten or the next ending made, so it must be
    safe to repeat. (`weakref.finalize` strikes its record off first, and what is interrupted then is never done.)

    Parameters
    ----------
    owner
        Whose end it is.
    tell, arguments
        What is called; it must not know the owner.
    at_exit
        Whether it is to be done when the interpreter ends, too.

    Examples
    --------
    >>> class Owner: ...
    >>> owner = Owner()
    >>> ending = Finalizer(owner, print, "gone")
    >>> del owner
    gone
    """

    __slots__ = ("_arguments", "_prompt", "_tell")
    _tell: Callable[..., object]
    _arguments: tuple[Any, ...]
    _prompt: weakref.ref[Any]

    def __new__(cls, owner: Any, tell: Callable[..., object], *arguments: Any, at_exit: bool = False) -> Finalizer:
        run_pending()
        # Of two references to one object the younger is told first: it puts itself down, which is one call of C.
        prompt = weakref.ref(owner, run_pending)
        self = super().__new__(cls, owner, _gone.append)
        self._tell, self._arguments, self._prompt = tell, arguments, prompt
        (_at_exit if at_exit else _waiting).add(self)
        return self

    def __init__(self, owner: Any, tell: Callable[..., object], *arguments: Any, at_exit: bool = False) -> None:
        super().__init__(owner, _gone.append)  # type: ignore[call-arg]

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def waits(self) -> bool:
        """Whether it has still to be done."""
        return self in _waiting or self in _at_exit

    def run(self) -> None:
        """Do it, unless it has been."""
        if self.waits:
            self._tell(*self._arguments)
            self.forget()

    def forget(self) -> None:
        """Have it never done."""
        _waiting.discard(self)
        _at_exit.discard(self)


_waiting: set[Finalizer] = set()
_at_exit: set[Finalizer] = set()
_gone: deque[Finalizer] = deque()


def run_pending(reference: object = None) -> None:
    """Do what is left to be done of objects that were forgotten. More than one thread may be at it.

    An ending that fails by itself, and so fails again, is given up, and `sys.unraisablehook` told: whoever comes next
    has nothing to do with it. What a handler raised within one that then succeeds is the client's, and goes on to it.
    """
    while _gone:
        ending, raised = _gone[0], None
        if _is_under_way(ending):
            # It has made or ended something that has an ending, which is done after it.
            return
        try:
            ending.run()
        except Exception as problem:
            raised = problem
            try:
                ending.run()
            except Exception:
                ending.forget()
                raised = None
                _tell_of(problem, ending)
        with suppress(ValueError):
            _gone.remove(ending)
        if raised is not None:
            raise raised


def _is_under_way(ending: Finalizer) -> bool:
    """Tell whether this thread is in the midst of an ending.

    The stack says so. A record of it could be left wrong by an interrupt, or by another thread that is at it too.
    """
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_code is run_pending.__code__ and frame.f_locals.get("ending") is ending:
            return True
        frame = frame.f_back
    return False


class _Told:
    """Python itself tells of what it raises when it is called, under this name.

    That is `sys.unraisablehook`, whoever has set it: for what fails where nobody can be told, and nothing ends by it.
    `sys.excepthook` is not: it is told of what ends a thread or the program, and there are those who report a crash
    from there, or end the program. Python's own hook takes nothing but what Python has made; so this is the callback of
    a reference, and what a callback raises goes there.
    """

    def __init__(self, problem: Exception, name: str) -> None:
        self._problem, self._name = problem, name
        mortal = _Mortal()
        reference = weakref.ref(mortal, self)
        del mortal, reference

    def __call__(self, reference: object) -> None:
        raise self._problem

    def __repr__(self) -> str:
        return self._name


class _Mortal:
    """Something that a reference can be to."""


def _tell_of(problem: Exception, ending: Finalizer) -> None:
    """Tell of an ending that failed, as Python tells of what fails where nobody can be told (`_Told`)."""
    _Told(problem, f"{ending._tell!r}, which is given up")


def warn_forgotten(text: str) -> None:
    """Say that something was forgotten which should have been closed; where that is an error, it is told, no more."""
    try:
        warnings.warn(text, ResourceWarning, stacklevel=3)
    except ResourceWarning as problem:
        _Told(problem, "something that was forgotten")


@atexit.register
def _settle_at_exit() -> None:
    for ending in list(_at_exit):
        ending.run()
