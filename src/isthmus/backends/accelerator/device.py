"""A device that is an accelerator process, for every backend whose graphs run in one."""

from __future__ import annotations

import threading
from collections.abc import Callable

from isthmus.backends.accelerator.faulty import open_queue, start_accelerator
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam.driver import DeviceDriver
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel, deferred


class AcceleratorDevice(DeviceDriver):
    """An accelerator process, started on demand by `start` and again after it has died.

    In messages it has its owner's name (`what`); a use after `close` is an error with the code `freed`.
    """

    def __init__(self, what: str, freed: Code, log: Log, start: Callable[[], Accelerator] = start_accelerator) -> None:
        self._what, self._freed, self._log, self._start = what, freed, log, start
        self._lock = threading.Lock()
        self._accelerator: Accelerator | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process id, if the process is running."""
        accelerator = self._accelerator
        return accelerator.pid if accelerator is not None and accelerator.alive else None

    def accelerator(self) -> Accelerator:
        """Return the running accelerator, or start one."""
        with deferred(), self._lock:
            if self._closed:
                raise QnnError(self._freed, self._what, "it has been freed")
            if self._accelerator is None or not self._accelerator.alive:
                if self._accelerator is not None:
                    self._accelerator.close()
                    self._log(LogLevel.WARN, "The accelerator has ended; starting it again")
                self._accelerator = self._start()
                self._log(LogLevel.INFO, f"Accelerator process {self._accelerator.pid} started")
            return self._accelerator

    def open_queue(self) -> Queue:
        """Open a queue to the running accelerator, or to a new one if that has died unnoticed."""
        try:
            return open_queue(self.accelerator())
        except QnnError as problem:
            if problem.code is not Code.COMMON_SYSTEM_COMMUNICATION:
                raise
            # The caller has lost nothing: it had no queue yet.
            return open_queue(self.accelerator())

    def close(self) -> None:
        """End the process, and start none any more; safe to call again."""
        with self._lock:
            self._closed = True
            if self._accelerator is not None:
                self._accelerator.close()
                self._accelerator = None
