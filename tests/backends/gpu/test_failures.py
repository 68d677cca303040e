"""What can go wrong with a device raises, is never waited for without end, and the backend stays usable."""

import ctypes
import gc
import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.opencl_device import Gate, client_context
from support.opencl_faults import failing, replace_function
from support.waiting import PATIENCE, eventually

from backends.gpu.harness import (
    DIMS,
    NBYTES,
    SOURCE,
    bind_handles,
    buffer,
    descriptor,
    doubled,
    expected,
    gpu,
    opencl_context,
    put,
    read_back,
    small_engine,
    values,
)
from backends.gpu.harness import small as small
from isthmus import QnnError, memory, qnn
from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.runtime import execution, numbers
from isthmus.errors import Code

pytestmark = pytest.mark.usefixtures("small")


def works(backend):
    """Whether a new context of the backend computes."""
    graph = doubled(backend.create_context(), "again")
    x, y = values(), np.zeros(DIMS, np.float32)
    graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)


def never(real, event, which, size, place, needed):
    answer = real(event, which, size, place, needed)
    if which == numbers.EVENT_COMMAND_EXECUTION_STATUS:
        ctypes.c_int32.from_address(place).value = 1
    return answer


def test_a_device_that_never_answers_is_lost_and_the_next_context_has_a_new_one() -> None:
    with gpu({"gpu": {"timeout": 1}}) as backend:
        context = backend.create_context()
        graph = doubled(context)
        handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
        with (
            replace_function("clGetEventInfo", never),
            replace_function("clSetEventCallback", lambda real, *arguments: 0),
        ):
            binding = bind_handles(graph, *handles)
            with pytest.raises(QnnError, match="did not end within 1 s") as refused:
                binding.execute()
        assert refused.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        for call in (
            binding.execute,
            lambda: bind_handles(graph, *handles),
            lambda: context.create_graph("more"),
            lambda: context.mem_register([descriptor(1)]),
            graph.reset,
        ):
            with pytest.raises(QnnError, match="is lost") as refused:
                call()
            assert refused.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        works(backend)


def test_a_silent_device_does_not_hold_up_a_free(monkeypatch) -> None:
    monkeypatch.setattr(execution, "GRACE", 0.2)
    backend = qnn.Backend("gpu", {"gpu": {"timeout": 600}})
    context = backend.create_context()
    graph = doubled(context)
    handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
    answers = []
    with replace_function("clGetEventInfo", never), replace_function("clSetEventCallback", lambda real, *arguments: 0):
        binding = bind_handles(graph, *handles)

        def execute():
            try:
                binding.execute()
            except QnnError as problem:
                answers.append(problem)

        thread = threading.Thread(target=execute)
        thread.start()
        assert eventually(lambda: binding._driver._running)
        begin = time.monotonic()
        backend.free()
        assert time.monotonic() - begin < PATIENCE, "not after the ten minutes that an execution may take"
        thread.join(PATIENCE)
    assert [problem.code for problem in answers] == [Code.GRAPH_INVALID_HANDLE]


@pytest.mark.parametrize("io", ["raw", "memhandle"])
def test_memory_that_a_device_does_not_come_to_map_is_no_hang(io) -> None:
    with gpu({"gpu": {"timeout": 1}}) as backend:
        context = backend.create_context()
        graph = doubled(context)
        handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
        with Gate(opencl_context(backend)) as gate:
            bind_handles(graph, *handles).execute(wait_for=[gate.event])
            with pytest.raises(QnnError, match="was not mapped within 1 s") as refused:
                graph.allocate(io)
        assert refused.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        works(backend)


@pytest.mark.parametrize("status", [numbers.INVALID_COMMAND_QUEUE, numbers.DEVICE_NOT_AVAILABLE, -9999])
def test_a_device_that_reports_that_it_is_gone_is_lost(status) -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context())
        with failing("clEnqueueNDRangeKernel", status, after=1):
            binding = graph.bind([qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
            with pytest.raises(QnnError, match="is lost"):
                binding.execute()
        works(backend)


def test_an_event_of_the_clients_that_fails_loses_the_context_and_the_next_one_works() -> None:
    with gpu() as backend:
        context = backend.create_context()
        handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
        with Gate(opencl_context(backend)) as gate:
            done = bind_handles(doubled(context), *handles).execute(wait_for=[gate.event])
            gate.fail(-5)
            with pytest.raises(QnnError, match="is lost") as refused:
                done.wait(60)
        assert refused.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        works(backend)


def test_the_clients_lost_context_cannot_be_replaced() -> None:
    context = client_context()
    with gpu({"gpu": {"context": context}}) as backend:
        backend.driver.opencl().lose("a test says so")
        with pytest.raises(QnnError, match="is lost: a test says so") as refused:
            backend.create_context()
        assert "another OpenCL context" in refused.value.hint


@pytest.mark.parametrize("status", [numbers.OUT_OF_RESOURCES, numbers.MEM_OBJECT_ALLOCATION_FAILURE])
def test_out_of_memory_while_executing_raises_and_the_graph_works_again(status) -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph, array = doubled(context), values()
        x, y = buffer(backend), buffer(backend)
        put(backend, x, array)
        handles = context.mem_register([descriptor(x), descriptor(y)])
        with failing("clEnqueueNDRangeKernel", status, after=1):
            failed = bind_handles(graph, *handles)
            with pytest.raises(QnnError) as refused:
                failed.execute()
        assert refused.value.code is Code.COMMON_MEM_ALLOC
        assert failed.stats.executions == 0
        failed.close()
        bind_handles(graph, *handles).execute()
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("after", range(2))
def test_out_of_device_memory_while_finalizing_leaves_nothing_behind(after) -> None:
    with gpu() as backend, memory.statistics("opencl") as counted:
        context = backend.create_context()
        graph = doubled(context, finalize=False)
        failure = failing("clCreateBuffer", numbers.MEM_OBJECT_ALLOCATION_FAILURE, after=after)
        with failure, pytest.raises(QnnError) as refused:
            graph.finalize()
        assert refused.value.code is Code.COMMON_MEM_ALLOC
        assert counted.live_bytes == 0
        assert not graph.finalized
        graph.finalize()
        works(backend)


CALLS = (
    "clCreateBuffer", "clCreateCommandQueue", "clCreateKernel", "clCreateProgramWithBinary", "clGetMemObjectInfo",
    "clSetKernelArg", "clRetainMemObject", "clRetainEvent", "clEnqueueNDRangeKernel", "clEnqueueWriteBuffer",
    "clEnqueueMapBuffer", "clEnqueueUnmapMemObject", "clEnqueueMarkerWithWaitList", "clFlush", "clGetEventInfo",
    "clGetEventProfilingInfo", "clSetEventCallback", "clGetDeviceAndHostTimer",
)  # fmt: skip
OFTEN = ("clGetMemObjectInfo", "clSetKernelArg", "clGetEventInfo")


@pytest.mark.parametrize("name", CALLS)
def test_a_failure_of_any_driver_call_raises_and_the_backend_stays_usable(name) -> None:
    def everything(backend):
        context = backend.create_context()
        try:
            graph, array = doubled(context), values()
            x, y = array.copy(), np.zeros(DIMS, np.float32)
            graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
            given = graph.allocate("memhandle")
            try:
                given.binding.execute()
            finally:
                given.close()
            with qnn.gpu.allocate(backend, NBYTES) as one, qnn.gpu.allocate(backend, NBYTES) as other:
                binding = bind_handles(graph, *context.mem_register([descriptor(one), descriptor(other)]))
                binding.execute(qnn.Profile(backend, qnn.ProfileLevel.DETAILED))
                binding.execute(signal=qnn.Signal(backend, 60_000_000))
                binding.execute(wait_for=[]).wait(60)
        finally:
            context.free()

    with gpu() as backend, memory.statistics("opencl") as counted:
        for after in itertools.count(0, 5 if name in OFTEN else 1):
            with failing(name, numbers.OUT_OF_RESOURCES, after) as calls:
                answers = answer(everything, backend)
            assert answers <= {Code.COMMON_MEM_ALLOC, Code.COMMON_SYSTEM, Code.COMMON_SYSTEM_COMMUNICATION}, after
            assert counted.live_bytes == 0, after
            everything(backend)
            if calls[0] <= after:
                break


def answer(action, *arguments):
    """The code that something is refused with, if it is."""
    try:
        action(*arguments)
    except QnnError as problem:
        return {problem.code}
    return set()


def test_a_tensor_larger_than_the_device_allocates_is_refused() -> None:
    with gpu() as backend:
        most = backend.driver.opencl().device.largest_allocation
        # One axis has no room for what large devices allocate.
        graph = doubled(backend.create_context(), dims=(most // 4096 + 1, 1024), finalize=False)
        with pytest.raises(QnnError, match="allocates at most") as refused:
            graph.finalize()
        assert refused.value.code is Code.COMMON_MEM_ALLOC
        works(backend)


def test_the_host_gets_its_memory_back_when_an_execution_fails_half_way() -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context(), finalize=False)
        with failing("clEnqueueNDRangeKernel", numbers.OUT_OF_RESOURCES, after=1):
            given = graph.allocate("memhandle")
            given.inputs["x"][...] = values()
            with pytest.raises(QnnError):
                given.binding.execute()
        # The binding has the failing function; another one of the same memory has not.
        again = graph.allocate("memhandle")
        again.inputs["x"][...] = values()
        again.binding.execute()
        np.testing.assert_allclose(again.outputs["y"], expected(values()), rtol=1e-5, atol=1e-6)
        from isthmus.backends.gpu.runtime.handles import map_count

        assert [map_count(shared.handle) for shared in given.binding._driver._shared] == [1, 1]
    given.close()
    again.close()


def test_kernels_that_do_not_build_show_the_log_and_the_backend_still_works(monkeypatch) -> None:
    broken = SOURCE.replace("fmax(", "undeclared_name + fmax(")
    with gpu() as backend:
        graph = doubled(backend.create_context(), finalize=False)
        with monkeypatch.context() as patched:
            patched.setattr(gpu_prepare.lower, "prepare", lambda *a, **k: small_engine(*a, **k, source=broken))
            with pytest.raises(QnnError, match="undeclared_name") as refused:
                graph.finalize()
        assert refused.value.code is Code.GRAPH_FINALIZE_FAILED
        assert "graph 'double'" in refused.value.what
        works(backend)


def test_memory_limits_and_faults_reach_the_device() -> None:
    with gpu() as backend:
        with memory.limit(NBYTES, "opencl"):
            graph = doubled(backend.create_context(), finalize=False)
            with pytest.raises(QnnError, match="that are allowed are taken"):
                graph.finalize()
        works(backend)


def test_a_freed_context_takes_its_memory_with_it() -> None:
    with gpu() as backend, memory.statistics("opencl") as counted:
        context = backend.create_context()
        graph = doubled(context)
        graph.execute([qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
        assert counted.live_bytes > 0
        context.free()
        assert counted.live_bytes == 0
        with pytest.raises(QnnError):
            graph.execute()


def test_a_forked_child_is_refused_and_does_not_touch_the_device() -> None:
    from support import processes

    with gpu() as backend:
        graph = doubled(backend.create_context())

        def action():
            with pytest.raises(QnnError, match="forked"):
                graph.execute()
            backend.free()
            with pytest.raises(QnnError, match="works in one process only") as refusal:
                qnn.Backend("gpu")
            assert refusal.value.code is Code.COMMON_PLATFORM_NOT_SUPPORTED

        # Objects that other tests dropped are released here: in the child the driver cannot release them.
        gc.collect()
        assert processes.in_child(action) == 0
        works(backend)


LEFT_OPEN = """
import sys
sys.path[:0] = {folders!r}
from backends.gpu.harness import bind_handles, buffer, descriptor, doubled, qnn, small_engine
from isthmus.backends.gpu import prepare as gpu_prepare
gpu_prepare.lower.prepare = small_engine
backend = qnn.Backend("gpu")
context = backend.create_context()
graph = doubled(context)
given = [graph.allocate("raw"), graph.allocate("memhandle")]
for one in given:
    one.binding.execute()
binding = bind_handles(graph, *context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))]))
event = binding.execute(wait_for=[])
"""


def test_a_process_may_end_with_everything_open() -> None:
    tests = Path(__file__).parents[2]
    script = LEFT_OPEN.format(folders=[str(tests)])
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0
    assert "Exception" not in ran.stderr
