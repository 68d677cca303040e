"""An executor that times each instruction of a program, for profiles; plain executors are not slowed by it."""

from __future__ import annotations

import ctypes
import time
from functools import cache

import numpy as np

from isthmus.engine.native import control, loader
from isthmus.engine.native.control import ROW_WORDS
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.target import by_name
from isthmus.prepare.schedule import Pool

CLOCK = "clock:read"
"""The kernel that reads the clock."""
MAX_READINGS = 1 << 16
"""Maximum number of readings that are logged one by one; later ones only count in the sums."""


@cache
def _clock_gettime() -> int:
    """Return the address of the C library's function, looked up once: each `CDLL` leaves garbage to be collected."""
    return ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0


class TimedExecutor(Executor):
    """The program of another executor, in the same memory, with an instruction between its own that reads the clock.

    The instructions of a pipelined region run at the same time, so they are timed together.

    Parameters
    ----------
    plain
        The executor, which must not run meanwhile.
    """

    def __init__(self, plain: Executor) -> None:
        pools = dict(plain.bound)
        io = [pools.get(Pool.IO + index) for index in range(len(plain.program.inputs) + len(plain.program.outputs))]
        super().__init__(plain.program, pools.get(Pool.SCRATCH), pools.get(Pool.STATE), io)

    def times(self) -> list[tuple[str, float]]:
        """Return the label of each step and its microseconds so far, in the order in which the steps begin."""
        sums: dict[str, float] = {}
        for label, nanoseconds in zip(self.program.labels, self._slots[:-1].tolist(), strict=True):
            if nanoseconds:
                sums[label] = sums.get(label, 0.0) + nanoseconds / 1e3
        return list(sums.items())

    def spans(self) -> list[tuple[str, int, int]]:
        """Return the label of each step with its begin and end in nanoseconds, in order.

        A step of several instructions is one span; a step in tiles has a span for each of its turns.
        """
        log = self._log[2 : 2 + (int(self._log[0]) - self._log.ctypes.data - 16) // 8].reshape(-1, 2)
        numbers = ((log[:, 0] - self._slots.ctypes.data) // 8).tolist()
        times = log[:, 1].tolist()
        spans: list[tuple[str, int, int]] = []
        for number, begin, end in zip(numbers[1:], times, times[1:], strict=False):
            if number >= len(self.program.labels) or begin == end:
                continue
            label = self.program.labels[number]
            if spans and spans[-1][0] == label and spans[-1][2] == begin:
                begin = spans.pop()[1]
            spans.append((label, begin, end))
        return spans

    def _native_table(self) -> np.ndarray:
        """Return the program's table with a row after each instruction, or pipelined region, that reads the clock."""
        plain = super()._native_table()
        # Alone they do nothing, so each of the instructions after them is shared and timed by itself.
        plain[self.program.branches, 2] = 1
        count = len(plain)
        # Nanoseconds of each instruction; the last slot takes the time before the first.
        self._slots = np.zeros(count + 1, np.int64)
        # The time at which the clock was last read, and a timespec.
        self._now = np.array([time.monotonic_ns(), 0, 0], np.int64)
        function = _clock_gettime()
        # The addresses of the next entry and of the end, then the entries; pages that are not reached cost nothing.
        self._log = np.empty(2 + 2 * MAX_READINGS, np.int64)
        self._log[:2] = self._log.ctypes.data + 16, self._log.ctypes.data + self._log.nbytes
        self._clock_words = np.empty((count + 1, 5), np.int64)
        self._clock_words[:, 0] = self._slots.ctypes.data + 8 * np.arange(count + 1)
        self._clock_words[:, 1:] = self._now.ctypes.data, self._now.ctypes.data + 8, function, self._log.ctypes.data
        clock = loader.addresses((CLOCK,), by_name(self.program.target))[CLOCK]

        def reading(slot: int) -> np.ndarray:
            return np.array([clock, self._clock_words[slot].ctypes.data, 1], np.int64)

        rows = [reading(count)]
        # The row of each instruction, and that of the clock after it.
        places, ends = np.empty(count, np.int64), np.empty(count, np.int64)
        begin = 0
        while begin < count:
            end = begin + 1 + max(int(plain[begin, 2]) >> control.SKIP_BITS, 0)
            places[begin:end] = len(rows) + np.arange(end - begin)
            rows += [*plain[begin:end], *([] if begin in self.program.branches else [reading(begin)])]
            ends[begin:end] = len(rows) - 1
            begin = end
        table = np.array(rows, np.int64).reshape(-1, ROW_WORDS)
        for repeat in self.program.repeats:
            last = repeat - int(plain[repeat, 2])
            table[places[repeat], 2] = places[repeat] - ends[last]
        return table
