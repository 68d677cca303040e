"""Signals: a time limit for executions, and a way to abort one from another thread (QnnSignal_*)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from typing import Any

from isthmus.backends.seam.execution_deadline import ExecutionDeadline
from isthmus.errors import Code, QnnError
from isthmus.memory.integers import is_int
from isthmus.qnn.backend import Backend
from isthmus.qnn.handle import Handle
from isthmus.qnn.options import option, pairs
from isthmus.system.shield import shielded

# About thirty years; a longer time counts as no limit, and clocks could not wait for it.
_MAX_TIMEOUT = 10**15


class SignalConfig(IntEnum):
    """QNN_SIGNAL_CONFIG_OPTION_*."""

    ABORT = 0
    """Executions end when the signal is triggered; takes None, and is the default of a new signal."""
    TIMEOUT = 1
    """Executions end after this many microseconds, or when the signal is triggered."""


class Signal(Handle):
    """A limit on the executions it is passed to, one at a time (QnnSignal_create).

    Parameters
    ----------
    backend
        The backend that it is freed with.
    timeout_us
        How many microseconds an execution may take; no limit if omitted.

    Examples
    --------
    >>> from isthmus import qnn
    >>> with qnn.Backend("cpu") as backend:
    ...     signal = qnn.Signal(backend, timeout_us=500_000)
    ...     signal.timeout_us
    500000
    """

    invalid = Code.COMMON_INVALID_ARGUMENT

    @shielded(release=Handle.free)
    def __init__(self, backend: Backend, timeout_us: int | None = None) -> None:
        if not isinstance(backend, Backend):
            raise QnnError(Code.COMMON_INVALID_ARGUMENT, "signal", f"{backend!r} is not a backend")
        self._limit = ExecutionDeadline()
        # Held by the execution that uses the signal.
        self._using = threading.Lock()
        self.timeout_us: int | None = None
        super().__init__("signal", backend)
        if timeout_us is not None:
            self.set_config(SignalConfig.TIMEOUT, timeout_us)

    def set_config(self, config: Any, value: Any = None) -> None:
        """Set what ends executions (QnnSignal_setConfig)."""
        self._check()
        code = Code.COMMON_INVALID_ARGUMENT
        for key, limit in pairs(config, value, self._what, code):
            if option(key, SignalConfig, "config", self._what, code) is SignalConfig.ABORT:
                self.timeout_us = None
            elif not is_int(limit) or not 1 <= limit <= _MAX_TIMEOUT:
                raise QnnError(code, f"timeout {limit!r}", f"must be a number of microseconds from 1 to {_MAX_TIMEOUT}")
            else:
                self.timeout_us = int(limit)
        self._limit.seconds = None if self.timeout_us is None else self.timeout_us / 1e6

    def trigger(self) -> None:
        """Abort the execution that uses it, if any (QnnSignal_trigger). May be called from any thread."""
        self._check()
        self._limit.trigger()

    def reserve(self) -> Reservation:
        """Reserve the signal for a later execution, unless another one uses it; its timeout starts now."""
        return Reservation(self)

    @contextmanager
    def in_use(self) -> Iterator[ExecutionDeadline]:
        """Use the signal for one execution, and yield its limit."""
        self._check()
        # Whether the lock was acquired: [True], or empty.
        taken: list[bool] = []
        try:
            # Acquired and recorded in one C call, which no interrupt can divide.
            taken.extend(filter(None, map(self._using.acquire, (False,))))
            if not taken:
                raise QnnError(Code.GRAPH_SIGNAL_IN_USE, self._what, "another execution uses it")
            self._limit.begin()
            yield self._limit
        finally:
            if taken:
                self._using.release()


class Reservation:
    """A signal that is reserved for one execution, from the request until the execution has ended.

    A reservation releases the signal when it is ended or garbage-collected.
    """

    def __init__(self, signal: Signal) -> None:
        # Leaves `Signal.in_use` when it is closed.
        self._use = ExitStack()
        self._limit = self._use.enter_context(signal.in_use())

    @contextmanager
    def in_use(self) -> Iterator[ExecutionDeadline]:
        """Yield the signal's limit to the execution; the reservation ends with it."""
        with self._use:
            yield self._limit

    def end(self) -> None:
        """Release the signal; safe to call again."""
        self._use.close()
