"""Operations that no signal handler can split: opening descriptors, starting threads, running finalizers.

Python runs signal handlers in the main thread between any two instructions, also after a call has returned and before
its result is stored. If a handler raises there, as Ctrl-C does, whatever was just opened is lost. Blocking signals does
not help: another thread can receive them, and the handler still runs in the main thread. Replacing the handlers would
interfere with the client's. So nothing that must not be lost is ever held by Python code alone: a single C call opens
it and puts it into an object that also closes it in C. What one call cannot do is done on another thread, where no
handler runs, or it is recorded before it begins and is safe to repeat.
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

# Seconds that signal handlers may have to wait.
_A_WAIT = 0.1
# How long `start` waits for a new thread to run.
_SECONDS_TO_START = 5.0


class FileDescriptor(Protocol):
    """A file descriptor with an owner: it is closed by `close`, at the end of a ``with``, or when it is collected."""

    def fileno(self) -> int:
        """Return the descriptor's number, or raise a `ValueError` after it is closed."""

    def close(self) -> None:
        """Close the descriptor; safe to call again."""

    def __enter__(self) -> Any:
        """Return itself."""

    def __exit__(self, *exception: Any) -> Any:
        """Close the descriptor."""


def own_fd(open_: Callable[..., int], *arguments: Any) -> FileDescriptor:
    """Open a file descriptor that has an owner before any signal handler can run.

    - `open_`: A function written in C that returns a new file descriptor: `os.open`, `os.memfd_create`, `os.dup` …

    >>> import os
    >>> with own_fd(os.open, "/proc/self/comm", os.O_RDONLY) as file:
    ...     len(os.read(file.fileno(), 1))
    1
    """
    # An epoll object accepts any descriptor unchecked and closes it in C, by `close` or silently when it is collected.
    # (A file object would check it first, refuse a directory, and leave that open.) `map` and the unpacking are C too:
    # the owner exists before the first Python instruction after the opening.
    [descriptor] = map(select.epoll.fromfd, map(open_, *((argument,) for argument in arguments)))
    return descriptor


def start(thread: threading.Thread) -> None:
    """Start a thread; after an interrupt it either has been started or never will be.

    An interrupted `Thread.start` may leave a thread that runs but counts as not started, or may corrupt its own state.
    It also waits forever for a thread that had not enough memory to begin.

    Raises `RuntimeError` if the system cannot start another thread.
    """
    # A helper thread starts `thread`, because no signal handler runs there. `begun` is locked until it has done so;
    # `helpers` holds its id as soon as it exists, and `problems` what `Thread.start` has raised.
    begun, helpers, problems = _thread.allocate_lock(), list[int](), list[BaseException]()

    def begin() -> None:
        try:
            thread.start()
        except BaseException as problem:
            problems.append(problem)
        finally:
            begun.release()

    begun.acquire()
    # From here on only the helper keeps the function alive. It is freed with that thread, so the weak reference tells
    # whether the helper has ended.
    functions, alive = [begin], weakref.ref(begin)
    del begin
    try:
        helpers.extend(map(_thread.start_new_thread, map(functions.pop, (-1,)), ((),)))
        _await_start(begun, alive)
    except _NotBegun:
        raise
    except BaseException:
        # An interrupt: if the helper exists, wait until the thread has been started or has failed to start.
        if helpers and thread.ident is None and not problems:
            with suppress(_NotBegun):
                _await_start(begun, alive)
        raise
    if problems:
        raise problems[0]


class _NotBegun(RuntimeError):
    """The error for a thread that was started but does not run."""


def _await_start(begun: _thread.LockType, alive: weakref.ref[Any]) -> None:
    """Wait until a thread has begun; raise `_NotBegun` if it has died before it could report that."""
    # That happens when memory is short: the system starts the thread, but Python lacks the memory to run it. Time in
    # which this process is stopped does not count: the waits are counted, not the clock.
    seconds_left = _SECONDS_TO_START
    while not begun.acquire(timeout=_A_WAIT):
        if alive() is None:
            # The thread may have reported since.
            if begun.acquire(blocking=False):
                return
            raise _NotBegun("a new thread has ended before it began")
        seconds_left -= _A_WAIT
        if seconds_left <= 0:
            raise _NotBegun(f"a new thread did not start within {_SECONDS_TO_START:g} s")


class Finalizer(weakref.ref):  # type: ignore[type-arg]
    """A finalizer that is retried until it has completed, unlike `weakref.finalize`.

    It runs when its owner is collected, or earlier. If it is interrupted, it runs again when the next owner is
    collected or the next finalizer is created, so it must be safe to repeat. (`weakref.finalize` removes its record
    first, so an interrupted one is never completed.)

    - `owner`: The object whose end it waits for.
    - `callback`, `arguments`: The function to call and its arguments; they must not refer to the owner.
    - `at_exit`: Whether it also runs when the interpreter exits.

    >>> class Owner: ...
    >>> owner = Owner()
    >>> ending = Finalizer(owner, print, "gone")
    >>> del owner
    gone
    """

    __slots__ = ("_arguments", "_callback", "_prompt")
    _callback: Callable[..., object]
    _arguments: tuple[Any, ...]
    _prompt: weakref.ref[Any]

    def __new__(cls, owner: Any, callback: Callable[..., object], *arguments: Any, at_exit: bool = False) -> Finalizer:
        run_pending()
        # When the owner is collected, Python calls the callbacks of its weak references, newest first. That of the
        # finalizer, which is a weak reference itself, only appends it to a deque, which is atomic. That of `prompt`
        # then runs it.
        prompt = weakref.ref(owner, run_pending)
        self = super().__new__(cls, owner, _gone.append)
        self._callback, self._arguments, self._prompt = callback, arguments, prompt
        (_at_exit if at_exit else _waiting).add(self)
        return self

    def __init__(self, owner: Any, callback: Callable[..., object], *arguments: Any, at_exit: bool = False) -> None:
        super().__init__(owner, _gone.append)  # type: ignore[call-arg]

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def waits(self) -> bool:
        """Whether it has not completed yet."""
        return self in _waiting or self in _at_exit

    def run(self) -> None:
        """Run the finalizer, unless it has completed."""
        if self.waits:
            self._callback(*self._arguments)
            self.forget()

    def forget(self) -> None:
        """Cancel the finalizer: it will never run."""
        _waiting.discard(self)
        _at_exit.discard(self)


# Finalizers that have not completed, other than those in `_at_exit`.
_waiting: set[Finalizer] = set()
# Finalizers that have not completed and also run when the interpreter exits.
_at_exit: set[Finalizer] = set()
# Finalizers whose owners are collected, to be run by `run_pending`.
_gone: deque[Finalizer] = deque()


def run_pending(reference: object = None) -> None:
    """Run the pending finalizers of collected objects. Several threads may do this at once.

    A finalizer that fails twice is given up and reported to `sys.unraisablehook`, since the present caller has nothing
    to do with it. If a signal handler raised in a finalizer that then succeeds, the exception is the client's and is
    raised. `reference` is ignored: Python passes the dead one to a weakref callback, and this is one.
    """
    while _gone:
        ending, raised = _gone[0], None
        if _is_running(ending):
            # The running finalizer has created or ended something with a finalizer of its own, which runs afterwards.
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
                _Reported(problem, f"{ending._callback!r}, which is given up")
        with suppress(ValueError):
            _gone.remove(ending)
        if raised is not None:
            raise raised


def _is_running(ending: Finalizer) -> bool:
    """Return whether an outer call of `run_pending` in this thread is already running a finalizer."""
    # The stack shows that: `ending` is the local variable of `run_pending`. A flag could be left wrong by an interrupt,
    # or by another thread that runs the same finalizer.
    frame = sys._getframe(1).f_back
    while frame is not None:
        if frame.f_code is run_pending.__code__ and frame.f_locals.get("ending") is ending:
            return True
        frame = frame.f_back
    return False


class _Reported:
    """A callback whose exception Python itself reports, under this name."""

    # Python reports it to `sys.unraisablehook`, even if a client has replaced that: it is for errors that cannot be
    # raised to anyone and end nothing. `sys.excepthook` is for errors that end a thread or the program, and some
    # clients report a crash or exit from there. Python's own hook accepts only arguments that Python has made. So this
    # is a weakref callback, whose exceptions go to that hook.

    def __init__(self, problem: Exception, name: str) -> None:
        self._problem, self._name = problem, name
        # An object that is collected at once, so that this callback is called now.
        mortal = _Mortal()
        reference = weakref.ref(mortal, self)
        del mortal, reference

    def __call__(self, reference: object) -> None:
        raise self._problem

    def __repr__(self) -> str:
        return self._name


class _Mortal:
    """An object that can be weakly referenced."""


def warn_forgotten(text: str) -> None:
    """Warn that an object was collected without being closed; if warnings are errors, only report it.

    While the interpreter exits it does nothing: everything goes then.
    """
    if sys.is_finalizing():
        return
    try:
        warnings.warn(text, ResourceWarning, stacklevel=3)
    except ResourceWarning as problem:
        _Reported(problem, "an object that was not closed")


@atexit.register
def _run_at_exit() -> None:
    """Run the finalizers that were created with `at_exit` and have not completed."""
    for ending in list(_at_exit):
        ending.run()
