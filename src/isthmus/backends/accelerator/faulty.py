"""An accelerator and its queues with injected faults (`isthmus.faults`): it dies, maps nothing, or is slow.

Without faults the ordinary classes are used, so that nothing else pays for this.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from isthmus import faults
from isthmus.backends.accelerator.process import Accelerator, Slots
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.errors import Code, QnnError
from isthmus.memory.adaptors import fault_rule
from isthmus.system.shield import shielded


class FaultyAccelerator(Accelerator):
    """An accelerator that cannot map some memory, or takes long to unmap it."""

    def __init__(
        self, injected: faults.FaultList, units: int | None = None, deadlines: Deadlines | None = None
    ) -> None:
        self._faults = injected
        super().__init__(units, deadlines)

    @shielded
    def register(self, windows: Sequence[tuple[int, int, int]]) -> Slots:
        # All of them are counted, also after one that fails.
        struck = [fault for fault in [self._faults.strikes("map") for _ in windows] if fault]
        if struck:
            raise QnnError(Code.MEM_MAPPING, "shared buffer", f"it cannot be mapped: {fault_rule(struck[0])}")
        return super().register(windows)

    @shielded
    def deregister(self, slots: Iterable[int]) -> None:
        if slots and self.alive:
            time.sleep(self._faults.delay("slow-unmap"))
        super().deregister(slots)


class FaultyQueue(Queue):
    """A queue of an accelerator that dies at some execution."""

    def __init__(self, accelerator: Accelerator, injected: faults.FaultList) -> None:
        self._faults = injected
        super().__init__(accelerator)

    def execute(self, *arguments: Any, **named: Any) -> None:
        struck = self._faults.strikes("ssr")
        if struck:
            self.accelerator.kill(fault_rule(struck))
        super().execute(*arguments, **named)


def start_accelerator(units: int | None = None, deadlines: Deadlines | None = None) -> Accelerator:
    """Start an accelerator, with the faults that are in force; the parameters are those of `Accelerator`."""
    injected = faults.active
    return Accelerator(units, deadlines) if injected is None else FaultyAccelerator(injected, units, deadlines)


def open_queue(accelerator: Accelerator) -> Queue:
    """Open a queue of an accelerator, with the faults that are in force."""
    injected = faults.active
    return Queue(accelerator) if injected is None else FaultyQueue(accelerator, injected)
