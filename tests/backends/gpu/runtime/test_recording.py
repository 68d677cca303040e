"""Where a driver records commands (cl_khr_command_buffer), all launches of an execution are one command.

No driver that these tests can rely on has the extension, so its functions are written here, over the real ones.
"""

import ctypes
from ctypes import c_int32, c_size_t, c_uint64, c_void_p
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support.opencl_device import DEVICE

from isthmus.backends.gpu.buffers import device_buffer
from isthmus.backends.gpu.runtime import commands, library, numbers
from isthmus.backends.gpu.runtime.context import ClContext
from isthmus.backends.gpu.runtime.execution import Commands, Outcome, RunLimits
from isthmus.backends.gpu.runtime.library import library as loaded
from isthmus.backends.gpu.runtime.program import Repository, build, kernel
from isthmus.backends.gpu.runtime.waiting import map_buffer
from isthmus.errors import QnnError

N = 64
SOURCE = "kernel void add(global int *x, int by) { x[get_global_id(0)] += by; }"


class Recorder:
    """The extension: recorded launches are enqueued one by one, as no real driver would."""

    def __init__(self):
        self.recorded: dict[int, list] = {}
        self.released: list[int] = []
        self.flags = 0
        self.replays = 0
        types = library._EXTENSION
        self.functions = {
            "clCreateCommandBufferKHR": ctypes.CFUNCTYPE(c_void_p, *types["clCreateCommandBufferKHR"])(self.create),
            "clFinalizeCommandBufferKHR": ctypes.CFUNCTYPE(c_int32, c_void_p)(lambda handle: 0),
            "clReleaseCommandBufferKHR": ctypes.CFUNCTYPE(c_int32, c_void_p)(self.release),
            "clCommandNDRangeKernelKHR": ctypes.CFUNCTYPE(c_int32, *types["clCommandNDRangeKernelKHR"])(self.record),
            "clEnqueueCommandBufferKHR": ctypes.CFUNCTYPE(c_int32, *types["clEnqueueCommandBufferKHR"])(self.replay),
        }

    def create(self, queues, queue, properties, status):
        self.flags = c_uint64.from_address(properties + 8).value
        self.recorded[0x1000 + len(self.recorded)] = []
        return max(self.recorded)

    def release(self, handle):
        self.released.append(handle)
        return 0

    def record(self, handle, queue, properties, kernel, dims, offset, sizes, groups, count, waits, point, mutable):
        size = [c_size_t.from_address(sizes + 8 * n).value for n in range(dims)]
        self.recorded[handle].append((kernel, dims, size, groups))
        return 0

    def replay(self, queues, queue, handle, waits, wait_list, event):
        self.replays += 1
        place = c_void_p.from_address(queue).value
        launches = self.recorded[handle]
        for index, (made, dims, size, _) in enumerate(launches):
            last = index == len(launches) - 1
            sizes = (c_size_t * dims)(*size)
            status = loaded().functions["clEnqueueNDRangeKernel"](
                place, made, dims, None, ctypes.addressof(sizes), None, 0 if index else waits,
                None if index else wait_list, event if last else None,
            )  # fmt: skip
            if status:
                return status
        return 0


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setitem(loaded()._extended, DEVICE.platform, made.functions)
    return made


def desk(simultaneous):
    context = ClContext.create(replace(DEVICE, command_buffers=True, simultaneous=simultaneous))
    memory = device_buffer(context, 4 * N)
    program = build(context, SOURCE, (), Repository(), "test")
    array = np.zeros(N, np.int32)

    def launch(by):
        made = kernel(program, "add", "test")
        for index, value in enumerate((c_void_p(memory.handle), c_int32(by))):
            loaded().call("test", "clSetKernelArg", made.handle, index, ctypes.sizeof(value), ctypes.byref(value))
        return commands.launch(made, (N,), (), f"add {by}")

    made = [
        commands.write(memory.handle, 0, 4 * N, array.ctypes.data, "array"), launch(1), launch(10), launch(100),
        commands.read(memory.handle, 0, 4 * N, array.ctypes.data, "array"),
    ]  # fmt: skip
    return context, memory, array, made


def test_all_launches_are_recorded_once_and_replayed_by_each_execution(recorder) -> None:
    context, memory, array, made = desk(simultaneous=False)
    recorded = Commands(context, made, "test", 60)
    assert [len(launches) for launches in recorder.recorded.values()] == [3]
    for _ in range(2):
        recorded.run()
    assert recorder.replays == 2
    assert (array == 222).all()
    recorded.close()
    assert recorder.released == list(recorder.recorded)
    memory.close()
    context.close()


def test_recording_can_be_refused(recorder) -> None:
    context, memory, array, made = desk(simultaneous=False)
    Commands(context, made, "test", 60, may_record=False).run()
    assert (recorder.recorded, recorder.replays) == ({}, 0)
    assert (array == 111).all()
    memory.close()
    context.close()


@pytest.mark.parametrize("simultaneous", [False, True])
def test_executions_under_way_together_are_replayed_only_where_the_driver_allows_it(recorder, simultaneous) -> None:
    context, memory, array, (write, *made) = desk(simultaneous)
    # Drivers may fetch what is written when that is enqueued: the executions go on with what is there.
    Commands(context, [write], "test", 60).run()
    recorded = Commands(context, made, "test", 60)
    assert recorder.flags == (numbers.COMMAND_BUFFER_SIMULTANEOUS_USE_KHR if simultaneous else 0)
    for event in [recorded.enqueue(()) for _ in range(3)]:
        event.wait(60)
    assert recorder.replays == (3 if simultaneous else 0)
    assert (array == 333).all()
    recorded.run()
    assert recorder.replays == (4 if simultaneous else 1)
    memory.close()
    context.close()


def test_profiles_and_limits_use_commands_of_their_own(recorder) -> None:
    context, memory, array, made = desk(simultaneous=False)
    recorded = Commands(context, made, "test", 60)
    assert [each.command.label for each in recorded.timed()[1].commands] == [
        "array",
        "add 1",
        "add 10",
        "add 100",
        "array",
    ]
    assert recorded.run_within(RunLimits(lambda: 60.0)) == Outcome.COMPLETE
    assert recorder.replays == 0
    assert (array == 222).all()
    memory.close()
    context.close()


def test_what_refuses_before_recorded_launches_is_named(recorder) -> None:
    context, memory, _array, made = desk(simultaneous=False)
    recorded = Commands(context, [commands.refuse_mapped(memory.handle, "tensor 'x'"), *made], "test", 60)
    at = map_buffer(context, memory.handle, 4 * N, "test")
    with pytest.raises(QnnError, match="tensor 'x' of test: its OpenCL buffer is mapped"):
        recorded.run()
    loaded().call("test", "clEnqueueUnmapMemObject", context.queue, memory.handle, at, 0, None, None)
    recorded.run()


@pytest.mark.parametrize("lacking", [None, *library._EXTENSION])
def test_a_platform_has_the_extension_if_it_has_all_its_functions(recorder, monkeypatch, lacking) -> None:
    asked = []

    class Find:
        def __call__(self, platform, name):
            asked.append((platform, name.decode()))
            function = None if name.decode() == lacking else recorder.functions[name.decode()]
            return function and ctypes.cast(function, c_void_p).value

    monkeypatch.setattr(loaded(), "_file", SimpleNamespace(clGetExtensionFunctionAddressForPlatform=Find()))
    monkeypatch.setattr(loaded(), "_extended", {})
    found = loaded().extension(7)
    assert (found is None) == (lacking is not None)
    assert asked == [(7, name) for name in library._EXTENSION]
    if found is not None:
        handle = found["clCreateCommandBufferKHR"](1, None, ctypes.addressof((c_uint64 * 2)()), None)
        assert handle == 0x1000
        assert found["clReleaseCommandBufferKHR"](handle) == 0
        assert recorder.released == [handle]
    assert loaded().extension(7) is found
    assert len(asked) == len(library._EXTENSION)
