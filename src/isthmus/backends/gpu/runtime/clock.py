"""The clock of an OpenCL device beside the host's: when commands ran, on the clock that host and trace use.

A device has a clock of its own, with any zero. One moment on it for which the host's time is known is enough to convert
its times. All times are nanoseconds; the host's are those of the system's monotonic clock.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections.abc import Sequence
from ctypes import c_uint64
from dataclasses import dataclass
from typing import NamedTuple

from isthmus.backends.gpu.runtime import numbers
from isthmus.backends.gpu.runtime.commands import Command
from isthmus.backends.gpu.runtime.device import ClDevice
from isthmus.backends.gpu.runtime.library import library

# The version of OpenCL from which drivers have clGetDeviceAndHostTimer. Older ones must not be asked for it.
_TIMER_VERSION = (2, 1)


@dataclass(frozen=True)
class ClockPair:
    """A moment on the device's clock, with times of the host before and after it."""

    device: int
    earliest: int
    latest: int

    @property
    def offset(self) -> int:
        """What to add to a time of the device; it is off by at most half the time between `earliest` and `latest`."""
        return (self.earliest + self.latest) // 2 - self.device


class CommandTime(NamedTuple):
    """When a command ran."""

    command: Command
    begin: int
    end: int


@dataclass(frozen=True)
class CommandTimes:
    """When the commands of an execution ran, on the host's clock.

    - `begin`, `end`: When the host began to enqueue them, and when it knew that all had ended.
    - `commands`: The commands that have times, in their order.
    - `preparation`: How long it took to compare the clocks, which is no part of the execution.
    """

    begin: int
    end: int
    commands: Sequence[CommandTime] = ()
    preparation: int = 0


def now() -> int:
    """Return the host's time."""
    return time.perf_counter_ns()


def from_timer(device: ClDevice) -> ClockPair | None:
    """Read both clocks by OpenCL's function for that; None if the device has no such function."""
    function = library().functions.get("clGetDeviceAndHostTimer")
    version = re.match(r"OpenCL (\d+)\.(\d+)", device.version)
    if function is None or version is None or (int(version[1]), int(version[2])) < _TIMER_VERSION:
        return None
    own, of_driver = c_uint64(), c_uint64()
    earliest = now()
    status = function(device.handle, ctypes.byref(own), ctypes.byref(of_driver))
    # The driver's host clock may be any; the times around the call are on ours.
    return ClockPair(own.value, earliest, now()) if status == numbers.SUCCESS else None


def on_host(
    pair: ClockPair | None, measured: Sequence[CommandTime], begin: int, end: int, preparation: int
) -> CommandTimes:
    """Convert times of a device to the host's.

    - `pair`: A moment on both clocks. Without one, the last end on the device is taken for the time at which the host
      knew of it.
    - `measured`: When commands ran, on the device's clock.
    - `begin`, `end`, `preparation`: As in `CommandTimes`. No command ran outside `begin` and `end`, which limits the
      error of `pair`.
    """
    if not measured:
        return CommandTimes(begin, end, (), preparation)
    at_least = begin - min(each.begin for each in measured)
    at_most = end - max(each.end for each in measured)
    offset = at_most if pair is None else min(max(pair.offset, at_least), at_most)
    moved = [CommandTime(each.command, each.begin + offset, each.end + offset) for each in measured]
    return CommandTimes(begin, end, moved, preparation)
