"""QNN's log: five levels, a client's callback, and Python's own logging beside it under the name ``isthmus``.

A listener may call any function of the API, so nothing is said while a lock is held: what takes a lock and may say
something is in a block of `deferred`, which says it afterwards.
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

from isthmus.errors import Code, QnnError


class LogLevel(IntEnum):
    """QNN_LOG_LEVEL: the higher, the more is told."""

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
"""Python has no level between INFO and DEBUG; 15 lies there."""

_TFLITE_NAMES = {LogLevel.ERROR: "ERROR", LogLevel.WARN: "WARNING", LogLevel.INFO: "INFO"}

Callback = Callable[[LogLevel, str], object]
_logger = logging.getLogger("isthmus")


class _Held(threading.local):
    """What a thread has still to say; None outside of blocks of `deferred`."""

    messages: list[Callable[[], None]] | None = None


_held = _Held()


@contextmanager
def deferred() -> Iterator[None]:
    """Hold back what this thread logs in a block until its end; in nested blocks, until the end of the outermost.

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
        for say in messages:
            say()


class Log:
    """Where messages go (QnnLog_create).

    Parameters
    ----------
    callback
        Called with the level and the text of each message up to `level`.
    level
        The most talkative level that reaches the callback. Python's logging filters by its own levels; where nobody has
        set it up it prints warnings and errors by itself, which happens only without a callback.

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
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "log callback", f"a {kind} cannot be called")
        self._callback = callback
        self.set_level(level)

    def set_level(self, level: LogLevel | int) -> None:
        """Change the most talkative level (QnnLog_setLogLevel)."""
        try:
            self.level = LogLevel(level)
        except ValueError:
            known = ", ".join(f"{known.name} {int(known)}" for known in LogLevel)
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"log level {level!r}", f"must be one of {known}") from None

    def __call__(self, level: LogLevel, text: str) -> None:
        """Say something: now, or after the outermost block of `deferred`."""
        if _held.messages is not None:
            _held.messages.append(partial(self, level, text))
            return
        # Whoever is called back should not find the same on standard error, where Python puts what has no handler.
        if self._callback is None or _logger.hasHandlers():
            tell(PYTHON_LEVELS[level], text)
        if self._callback is not None and level <= self.level:
            try:
                self._callback(level, text)
            except Exception:
                # A log must not change what the caller of the library sees.
                tell(logging.ERROR, f"the log callback failed at: {text}", failed=True)

    def free(self) -> None:
        """Stop calling back; safe to call again."""
        self._callback = None

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *exception: object) -> None:
        self.free()


def to_standard_error(level: LogLevel, text: str) -> None:
    """Write a line as TFLite writes its own, whether or not the program has Python's streams."""
    line = f"{_TFLITE_NAMES.get(level, 'VERBOSE')}: {text}\n"
    with suppress(OSError):
        os.write(2, line.encode(errors="backslashreplace"))


def tell(level: int, text: str, failed: bool = False, logger: logging.Logger = _logger) -> None:
    """Give a message to Python's logging, with what is being handled if that has failed; an interrupt keeps no lock.

    Up to Python 3.12 logging takes a lock and enters ``try`` afterwards. An interrupt in between leaves the lock with
    this thread, and every other one that logs would wait for ever.
    """
    if _held.messages is not None and not failed:
        _held.messages.append(partial(tell, level, text, logger=logger))
        return
    before = [lock for lock in _locks(logger) if lock._is_owned()]
    try:
        logger.log(level, "%s", text, exc_info=failed)
    except BaseException:
        for lock in _locks(logger):
            if lock not in before and lock._is_owned():
                lock.release()
        raise


def _locks(logger: logging.Logger) -> Iterator[Any]:
    """The locks that logging takes for a message, as far as they tell who has them."""
    found: list[Any] = [getattr(logging, "_lock", None), getattr(logging.lastResort, "lock", None)]
    asked: logging.Logger | None = logger
    while asked is not None:
        found += [handler.lock for handler in asked.handlers]
        asked = asked.parent if asked.propagate else None
    return (lock for lock in found if hasattr(lock, "_is_owned"))
