"""QNN's log: five levels, a client's callback, and Python's logging under the name ``isthmus``.

A callback may call any function of the API, so no message is emitted while a lock is held. Code that takes a lock and
may log runs in a `deferred` block, which emits its messages afterwards.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from functools import partial
from typing import Any

from isthmus.errors import invalid_argument


class LogLevel(IntEnum):
    """QNN_LOG_LEVEL: a higher level logs more."""

    ERROR = 1
    WARN = 2
    INFO = 3
    VERBOSE = 4
    DEBUG = 5


PYTHON_LEVELS = {
    LogLevel.ERROR: logging.ERROR,
    LogLevel.WARN: logging.WARNING,
    LogLevel.INFO: logging.INFO,
    LogLevel.VERBOSE: 15,
    LogLevel.DEBUG: logging.DEBUG,
}
"""Python's logging levels. Python has none between INFO and DEBUG, so VERBOSE is 15."""

# Names of levels in lines of TFLite's format; it calls all others VERBOSE.
_TFLITE_NAMES = {LogLevel.ERROR: "ERROR", LogLevel.WARN: "WARNING", LogLevel.INFO: "INFO"}

Callback = Callable[[LogLevel, str], object]
_logger = logging.getLogger("isthmus")


class _Held(threading.local):
    """The messages that a thread has yet to emit, as functions that emit one each; None outside `deferred` blocks."""

    messages: list[Callable[[], None]] | None = None


_held = _Held()


@contextmanager
def deferred() -> Iterator[None]:
    """Hold back this thread's messages until the end of the block, or of the outermost one if blocks are nested.

    Examples
    --------
    >>> heard, lock = [], threading.Lock()
    >>> log = Log(lambda level, text: heard.append((text, lock.locked())))
    >>> with deferred(), lock:
    ...     log(LogLevel.INFO, "started")
    >>> heard
    [('started', False)]
    """
    if _held.messages is not None:
        yield
        return
    messages: list[Callable[[], None]] = []
    try:
        _held.messages = messages
        yield
    finally:
        _held.messages = None
        for emit in messages:
            emit()


class Log:
    """The destination of messages (QnnLog_create).

    Parameters
    ----------
    callback
        Called with the level and the text of each message up to `level`.
    level
        The most verbose level that reaches the callback. Python's logging filters by its own levels. If it is not set
        up, it prints warnings and errors by itself; that happens only without a callback.

    Examples
    --------
    >>> heard = []
    >>> log = Log(lambda level, text: heard.append((level.name, text)), LogLevel.INFO)
    >>> log(LogLevel.INFO, "pool registered")
    >>> log(LogLevel.DEBUG, "not heard")
    >>> heard
    [('INFO', 'pool registered')]
    """

    def __init__(self, callback: Callback | None = None, level: LogLevel | int = LogLevel.INFO) -> None:
        if callback is not None and not callable(callback):
            kind = type(callback).__name__
            raise invalid_argument("log callback", f"a {kind} cannot be called")
        self._callback = callback
        self.set_level(level)

    def set_level(self, level: LogLevel | int) -> None:
        """Change the most verbose level (QnnLog_setLogLevel)."""
        try:
            self.level = LogLevel(level)
        except ValueError:
            levels = ", ".join(f"{levels.name} {int(levels)}" for levels in LogLevel)
            raise invalid_argument(f"log level {level!r}", f"must be one of {levels}") from None

    def __call__(self, level: LogLevel, text: str) -> None:
        """Emit a message, now or after the outermost `deferred` block."""
        if _held.messages is not None:
            _held.messages.append(partial(self, level, text))
            return
        # A client with a callback should not also see the message on standard error, where Python prints it without a
        # handler.
        if self._callback is None or _logger.hasHandlers():
            log_message(PYTHON_LEVELS[level], text)
        if self._callback is not None and level <= self.level:
            try:
                self._callback(level, text)
            except Exception:
                # A failing log callback must not affect the caller of the library.
                log_message(logging.ERROR, f"the log callback failed at: {text}", failed=True)

    def free(self) -> None:
        """Stop calling the callback; safe to call again."""
        self._callback = None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


def to_standard_error(level: LogLevel, text: str) -> None:
    """Write a line in TFLite's format, whether or not the program has Python's streams."""
    line = f"{_TFLITE_NAMES.get(level, 'VERBOSE')}: {text}\n"
    with suppress(OSError):
        os.write(2, line.encode(errors="backslashreplace"))


def log_message(level: int, text: str, failed: bool = False, logger: logging.Logger = _logger) -> None:
    """Pass a message to Python's logging, with the current exception if `failed`; an interrupt leaves no lock held.

    Up to Python 3.12 logging takes a lock and enters ``try`` afterwards. An interrupt in between leaves the lock with
    this thread, and every other thread that logs would wait forever.
    """
    # An exception is current only now, so its message cannot wait.
    if _held.messages is not None and not failed:
        _held.messages.append(partial(log_message, level, text, logger=logger))
        return
    held_before = [lock for lock in _locks(logger) if lock._is_owned()]
    try:
        logger.log(level, "%s", text, exc_info=failed)
    finally:
        for lock in _locks(logger):
            if lock not in held_before and lock._is_owned():
                lock.release()


def _locks(logger: logging.Logger) -> Iterator[Any]:
    """Return the locks that logging may take for a message: its own, and those of the handlers that get the message."""
    # Locks that cannot tell their owner are left out.
    locks: list[Any] = [getattr(logging, "_lock", None), getattr(logging.lastResort, "lock", None)]
    ancestor: logging.Logger | None = logger
    while ancestor is not None:
        locks += [handler.lock for handler in ancestor.handlers]
        ancestor = ancestor.parent if ancestor.propagate else None
    return (lock for lock in locks if hasattr(lock, "_is_owned"))
