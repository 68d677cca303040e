"""Times of a device are on the host's clock: inside the execution, in order, with the durations that it measured."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from support.opencl_device import DEVICE
from support.opencl_faults import failing, replace_function

from isthmus.backends.gpu.buffers import device_buffer
from isthmus.backends.gpu.runtime import clock, commands, numbers
from isthmus.backends.gpu.runtime.clock import ClockPair, CommandTime
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.execution import CHUNK, Commands, Outcome
from isthmus.backends.gpu.runtime.library import library
from isthmus.backends.gpu.runtime.program import Repository, build, kernel

N = 256
SOURCE = "kernel void add(global int *x, int by) { x[get_global_id(0)] += by; }"
TIMER, MARKER = "clGetDeviceAndHostTimer", "clEnqueueMarkerWithWaitList"
INVALID_OPERATION = -59


@contextmanager
def prepared(count: int) -> Iterator[Commands]:
    """Commands that write a buffer, add to it `count` times and read it."""
    context, array = ClContext.create(DEVICE), np.zeros(N, np.int32)
    memory = device_buffer(context, 4 * N)
    program = build(context, SOURCE, (), Repository(), "test")
    launches = []
    for by in range(count):
        made = kernel(program, "add", "test")
        for index, value in enumerate((ctypes.c_void_p(memory.handle), ctypes.c_int32(by))):
            library().call("test", "clSetKernelArg", made.handle, index, ctypes.sizeof(value), ctypes.byref(value))
        launches.append(commands.launch(made, (N,), (), f"add {by}"))
    first = commands.write(memory.handle, 0, 4 * N, array.ctypes.data, "array")
    last = commands.read(memory.handle, 0, 4 * N, array.ctypes.data, "array")
    yield Commands(context, [first, *launches, last], "the test", 60.0, keeps=array)
    memory.close()
    context.close()


def check(made: Commands, count: int) -> None:
    """Check that commands ran on the host's clock, one after the other, while the call was in progress."""
    before = time.monotonic_ns()
    outcome, times = made.timed()
    after = time.monotonic_ns()
    assert outcome == Outcome.COMPLETE
    assert before <= times.begin <= times.end <= after
    assert 0 <= times.preparation <= times.begin - before
    assert len(times.commands) == count + 2
    moments = [moment for each in times.commands for moment in (each.begin, each.end)]
    assert moments == sorted(moments)
    assert times.begin <= moments[0]
    assert moments[-1] <= times.end


# More than `CHUNK` commands are enqueued in several parts.
@pytest.mark.parametrize("count", [1, 3 * CHUNK])
def test_commands_are_in_order_inside_the_execution(count: int) -> None:
    with prepared(count) as made:
        for _ in range(3):
            check(made, count)


@pytest.mark.parametrize("ahead", [-(10**15), 0, 10**18])
def test_the_clock_of_a_device_may_begin_anywhere(ahead: int) -> None:
    """The driver's own function for both clocks is used where it has one; here the times of events are not its own."""
    asked = []

    def both(_: object, device: int, of_driver: int) -> int:
        asked.append(time.monotonic_ns())
        ctypes.c_uint64.from_address(device).value = max(asked[-1] + ahead, 0)
        ctypes.c_uint64.from_address(of_driver).value = 7
        return numbers.SUCCESS

    with replace_function(TIMER, lambda real, *arguments: both(real, *arguments[1:])):
        pair = clock.from_timer(replace(DEVICE, version="OpenCL 3.0"))
        assert pair is not None
        assert pair.earliest <= asked[0] <= pair.latest
        assert abs(pair.offset - (asked[0] - pair.device)) <= pair.latest - pair.earliest
        # Drivers have this function from OpenCL 2.1 on; older ones must not be asked.
        assert clock.from_timer(replace(DEVICE, version="OpenCL 2.0 old")) is None
        assert len(asked) == 1
        # A wrong pair does not move commands out of their execution.
        with prepared(3) as made:
            check(made, 3)


def test_without_a_function_for_both_clocks_a_marker_is_compared() -> None:
    with failing(TIMER, INVALID_OPERATION), prepared(3) as made, failing(MARKER, 0, after=10**9) as marked:
        check(made, 3)
    # Two markers: one waits for the context's own queue, the time of the other is compared.
    assert marked == [2]


def test_neither_a_timer_nor_a_marker_is_necessary() -> None:
    with failing(TIMER, INVALID_OPERATION), prepared(3) as made, failing(MARKER, numbers.OUT_OF_RESOURCES):
        check(made, 3)


def test_times_move_by_one_offset_and_stay_inside() -> None:
    command = commands.unmap(1, 2, "x")
    measured = [CommandTime(command, 100, 140), CommandTime(command, 150, 151)]

    def moved(pair: ClockPair | None) -> list[int]:
        found = clock.on_host(pair, measured, 1_000, 2_000, 5)
        assert (found.begin, found.end, found.preparation) == (1_000, 2_000, 5)
        return [moment for each in found.commands for moment in (each.begin, each.end)]

    assert moved(ClockPair(50, 1_350, 1_450)) == [1_450, 1_490, 1_500, 1_501]
    assert moved(ClockPair(50, 0, 0)) == [1_000, 1_040, 1_050, 1_051]
    assert moved(ClockPair(50, 9_000, 9_000)) == moved(None) == [1_949, 1_989, 1_999, 2_000]
    assert clock.on_host(None, [], 1_000, 2_000, 5).commands == ()
