"""Executions of the GPU backend: in place where memory is registered, transferred and counted where it is raw."""

import asyncio
import threading

import numpy as np
import pytest
from support.opencl_device import DEVICE, ROUNDS, Gate
from support.waiting import PATIENCE, run_in_threads

from backends.gpu.harness import (
    DIMS,
    NBYTES,
    bind_handles,
    buffer,
    cl,
    descriptor,
    doubled,
    expected,
    gpu,
    opencl_context,
    opencl_queue,
    put,
    read_back,
    small_engine,
    values,
)
from backends.gpu.harness import small as small
from isthmus import QnnError, memory, qnn
from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.runtime.execution import CHUNK
from isthmus.errors import Code

pytestmark = pytest.mark.usefixtures("small")
UNIFIED = DEVICE.unified
IN_PLACE = "opencl"


def registered(backend, context, graph, array=None):
    x, y = buffer(backend), buffer(backend)
    if array is not None:
        put(backend, x, array)
    return x, y, bind_handles(graph, *context.mem_register([descriptor(x), descriptor(y)]))


def test_registered_buffers_are_used_where_they_lie() -> None:
    with gpu() as backend:
        context = backend.create_context()
        array = values()
        _, y, binding = registered(backend, context, doubled(context), array)
        binding.execute()
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)
        stats = binding.stats
        assert (stats.copied_in_bytes, stats.copied_out_bytes) == (0, 0)
        assert stats.in_place_bytes == {IN_PLACE: 2 * NBYTES}


def test_the_client_maps_an_output_reads_it_and_unmaps_it() -> None:
    with gpu() as backend:
        context = backend.create_context()
        array, queue = values(), opencl_queue(backend)
        _, y, binding = registered(backend, context, doubled(context), array)
        binding.execute()
        mapped, _ = cl.enqueue_map_buffer(queue, y, cl.map_flags.READ, 0, DIMS, np.float32)
        np.testing.assert_allclose(mapped, expected(array), rtol=1e-5, atol=1e-6)
        with pytest.raises(QnnError, match=r"tensor 'y'.*is mapped") as refused:
            binding.execute()
        assert refused.value.code is Code.COMMON_OPERATION_NOT_PERMITTED
        mapped.base.release(queue)
        binding.execute()


def test_raw_memory_is_transferred_and_counted() -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context())
        x, y = values(), np.zeros(DIMS, np.float32)
        for _ in range(2):
            graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
        assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (2 * NBYTES, 2 * NBYTES)
        assert graph.stats.in_place_bytes == {}
        assert graph.stats.staging_prepare_bytes >= 2 * NBYTES


def test_raw_and_registered_memory_may_be_mixed_tensor_by_tensor() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph, x, y = doubled(context), values(), buffer(backend)
        (handle,) = context.mem_register([descriptor(y)])
        graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", mem_handle=handle)])
        np.testing.assert_allclose(read_back(backend, y), expected(x), rtol=1e-5, atol=1e-6)
        assert (graph.stats.copied_in_bytes, graph.stats.copied_out_bytes) == (NBYTES, 0)
        assert graph.stats.in_place_bytes == {IN_PLACE: NBYTES}


def test_a_graph_that_is_prepared_for_handles_reserves_nothing_until_raw_memory_comes() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context, finalize=False)
        for tensor in graph.driver.graph.tensors.values():
            tensor.mem_type = qnn.TensorMemType.MEMHANDLE
        graph.finalize()
        assert graph.stats.staging_bytes == 0
        graph.execute([qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
        assert graph.stats.staging_prepare_bytes == 0
        assert graph.stats.staging_execute_bytes >= 2 * NBYTES


@pytest.mark.skipif(not UNIFIED, reason="the device has memory of its own")
@pytest.mark.parametrize("flag", ["USE_HOST_PTR", "ALLOC_HOST_PTR"])
def test_buffers_of_host_memory_are_zero_copy_and_the_statistics_say_so(flag) -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph, queue = doubled(context), opencl_queue(backend)
        arrays = [values(), np.zeros(DIMS, np.float32)]
        flags = cl.mem_flags.READ_WRITE | getattr(cl.mem_flags, flag)
        x, y = (buffer(backend, NBYTES, flags, a if flag == "USE_HOST_PTR" else None) for a in arrays)
        mapped, _ = cl.enqueue_map_buffer(queue, x, cl.map_flags.WRITE, 0, DIMS, np.float32)
        mapped[...] = arrays[0]
        mapped.base.release(queue)
        binding = bind_handles(graph, *context.mem_register([descriptor(x), descriptor(y)]))
        binding.execute()
        mapped, _ = cl.enqueue_map_buffer(queue, y, cl.map_flags.READ, 0, DIMS, np.float32)
        np.testing.assert_allclose(mapped, expected(arrays[0]), rtol=1e-5, atol=1e-6)
        if flag == "USE_HOST_PTR":
            assert mapped.ctypes.data == arrays[1].ctypes.data
        mapped.base.release(queue)
        assert binding.stats.in_place_bytes == {"opencl shared": 2 * NBYTES}
        assert binding.stats.copied_bytes == 0


@pytest.mark.skipif(not UNIFIED, reason="the device has memory of its own")
def test_an_array_that_a_registered_buffer_is_made_of_cannot_be_another_tensors_output() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph, array = doubled(context), values()
        x = buffer(backend, 0, cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR, array)
        (handle,) = context.mem_register([descriptor(x)])
        with pytest.raises(QnnError, match="overlaps that of tensor 'x'"):
            graph.bind([qnn.ClientTensor("x", mem_handle=handle)], [qnn.ClientTensor("y", array)])


def test_a_tensor_needs_memory_and_enough_of_it() -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context())
        with pytest.raises(QnnError, match="the GPU has none of its own"):
            graph.execute()
        with pytest.raises(QnnError, match="are needed"):
            graph.bind([qnn.ClientTensor("x", bytearray(8))], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
        with qnn.gpu.allocate(backend, NBYTES) as ours:
            for given in (ours, buffer(backend)):
                with pytest.raises(QnnError, match="is not registered") as refused:
                    graph.bind([qnn.ClientTensor("x", given)], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
                assert refused.value.code is Code.GRAPH_INVALID_TENSOR


def test_a_clients_buffer_is_known_as_memory_while_a_backend_of_its_context_is_there() -> None:
    with gpu() as backend, gpu() as other:
        given, foreign = buffer(backend), buffer(other)
        assert memory.window(given).spans == memory.window(given).spans
        assert memory.window(given).nbytes == NBYTES
        assert not memory.holds.overlap(memory.window(given), memory.window(foreign))
        sub = given.get_sub_region(NBYTES // 2, 1024)
        assert memory.holds.overlap(memory.window(sub), memory.window(given))
    with pytest.raises(QnnError, match="exposes no memory"):
        memory.window(given)


@pytest.mark.parametrize("io", [None, "raw", "memhandle"])
def test_a_graph_gets_memory_that_the_host_sees_between_executions(io) -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context(), finalize=False)
        memory = graph.allocate(io)
        for seed in range(3):
            array = values(seed=seed)
            memory.inputs["x"][...] = array
            memory.binding.execute()
            np.testing.assert_allclose(memory.outputs["y"], expected(array), rtol=1e-5, atol=1e-6)
            np.testing.assert_array_equal(memory.inputs["x"], array)
        copied = memory.binding.stats.copied_bytes
        in_place = io != "raw" and UNIFIED
        assert copied == (0 if in_place else 6 * NBYTES)
        view = memory.outputs["y"]
    memory.close()
    np.testing.assert_allclose(view, expected(values(seed=2)), rtol=1e-5, atol=1e-6)


# -- events ------------------------------------------------------------------------------------------------------------


def test_an_execution_waits_for_events_and_answers_one() -> None:
    with gpu() as backend:
        context = backend.create_context()
        array, queue = values(), opencl_queue(backend)
        x, y, binding = registered(backend, context, doubled(context))
        with Gate(opencl_context(backend)) as gate:
            written = cl.enqueue_copy(queue, x, array, is_blocking=False)
            done = binding.execute(wait_for=[gate.event, written])
            assert not done.done
        result = np.empty(DIMS, np.float32)
        other_queue = cl.CommandQueue(opencl_context(backend))
        cl.enqueue_copy(other_queue, result, y, wait_for=[done.cl]).wait()
        np.testing.assert_allclose(result, expected(array), rtol=1e-5, atol=1e-6)
        done.wait(PATIENCE)
        assert done.done
        assert binding.stats.executions == 1


def test_a_graph_takes_events_as_a_binding_does() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph, array = doubled(context), values()
        x, y = buffer(backend), buffer(backend)
        put(backend, x, array)
        handles = context.mem_register([descriptor(x), descriptor(y)])
        tensors = [qnn.ClientTensor("x", mem_handle=handles[0])], [qnn.ClientTensor("y", mem_handle=handles[1])]
        graph.execute(*tensors, wait_for=[]).wait(PATIENCE)
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)


def test_many_executions_may_be_under_way_at_a_time() -> None:
    with gpu() as backend:
        context = backend.create_context()
        array = values()
        _, y, binding = registered(backend, context, doubled(context), array)
        events = [binding.execute(wait_for=[]) for _ in range(50)]
        events[-1].wait(PATIENCE)
        assert all(event.done for event in events)
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)


def test_events_go_with_registered_memory_alone_and_without_profile_or_signal() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        raw = graph.bind([qnn.ClientTensor("x", values())], [qnn.ClientTensor("y", np.zeros(DIMS, np.float32))])
        with pytest.raises(QnnError, match="it is in host memory") as refused:
            raw.execute(wait_for=[])
        assert refused.value.code is Code.GRAPH_INVALID_TENSOR
        _, _, binding = registered(backend, context, graph)
        with pytest.raises(QnnError, match="cannot be combined with a profile or a signal"):
            binding.execute(qnn.Profile(backend), wait_for=[])
        for bad in (5, [5], [None], "text"):
            with pytest.raises(QnnError):
                binding.execute(wait_for=bad)
        binding.execute()


def test_an_event_of_another_context_is_refused() -> None:
    with gpu() as backend, gpu() as other:
        context = backend.create_context()
        _, _, binding = registered(backend, context, doubled(context))
        foreign = cl.UserEvent(opencl_context(other))
        with pytest.raises(QnnError, match="belongs to another OpenCL context") as refused:
            binding.execute(wait_for=[foreign])
        assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
        foreign.set_status(cl.command_execution_status.COMPLETE)


def test_other_backends_have_no_events() -> None:
    with qnn.Backend("cpu") as backend:
        graph = doubled(backend.create_context())
        with pytest.raises(QnnError, match="has no events") as refused:
            graph.bind().execute(wait_for=[])
        assert refused.value.code is Code.COMMON_NOT_SUPPORTED


# -- limits, profiles, threads -----------------------------------------------------------------------------------------


def test_a_detailed_profile_has_each_operation() -> None:
    with gpu() as backend:
        context = backend.create_context()
        _, _, binding = registered(backend, context, doubled(context))
        profile = qnn.Profile(backend, qnn.ProfileLevel.DETAILED)
        binding.execute(profile)
        names = [event.name for event in profile.get_events()]
        assert "operation: ElementWiseAdd add" in names
        assert "operation: Sigmoid relu" in names
        basic = qnn.Profile(backend, qnn.ProfileLevel.BASIC)
        binding.execute(basic)
        assert [event.name for event in basic.get_events()] == ["execute"]


def test_a_profile_has_each_operation_of_an_execution_with_a_signal_too() -> None:
    with gpu() as backend:
        context = backend.create_context()
        _, y, binding = registered(backend, context, doubled(context), values())
        profile = qnn.Profile(backend, qnn.ProfileLevel.DETAILED)
        binding.execute(profile, signal=qnn.Signal(backend, 60_000_000))
        names = [event.name for event in profile.get_events()]
        assert "operation: ElementWiseAdd add" in names
        assert "operation: Sigmoid relu" in names
        np.testing.assert_allclose(read_back(backend, y), expected(values()), rtol=1e-5, atol=1e-6)
        with pytest.raises(QnnError) as refused:
            binding.execute(profile, signal=qnn.Signal(backend, 1))
        assert refused.value.code is Code.GRAPH_TIMED_OUT
        binding.execute()


def test_a_profiled_execution_comes_after_what_the_client_has_enqueued() -> None:
    with gpu() as backend:
        context = backend.create_context()
        x, y, binding = registered(backend, context, doubled(context), values())
        other, queue = buffer(backend), opencl_queue(backend)
        put(backend, other, values(seed=1))
        with Gate(opencl_context(backend), 0.1) as gate:
            # Between buffers: drivers may fetch what lies on the host at once, and wait for that.
            written = cl.enqueue_copy(queue, x, other, wait_for=[gate.event])
            binding.execute(qnn.Profile(backend, qnn.ProfileLevel.DETAILED))
        written.wait()
        np.testing.assert_allclose(read_back(backend, y), expected(values(seed=1)), rtol=1e-5, atol=1e-6)


def test_an_execution_on_raw_memory_may_be_aborted_and_the_next_one_succeeds(monkeypatch) -> None:
    monkeypatch.setattr(gpu_prepare.lower, "prepare", lambda *a, **k: small_engine(*a, **k, rounds=4))
    with gpu() as backend:
        graph = backend.create_context().create_graph("chain")
        made = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, DIMS)
        steps = 2 * CHUNK + 10
        for index in range(steps):
            kind = qnn.TensorType.APP_READ if index == steps - 1 else qnn.TensorType.NATIVE
            following = graph.create_tensor(f"y{index}", kind, qnn.DataType.FLOAT_32, DIMS)
            graph.add_node(f"node {index}", "Sigmoid", [made], [following])
            made = following
        graph.finalize()
        x, y = values(), np.zeros(DIMS, np.float32)
        binding = graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor(made.name, y)])
        binding.execute()
        expected_ = y.copy()
        looks = []

        def stopped(limit):
            looks.append(0)
            return len(looks) > 1

        # Once some commands have run, and before the last are enqueued.
        with monkeypatch.context() as context:
            context.setattr(threading.Event, "is_set", stopped)
            with pytest.raises(QnnError) as refused:
                binding.execute(signal=qnn.Signal(backend))
        assert refused.value.code is Code.GRAPH_ABORTED
        y[:] = 0
        binding.execute()
        assert (y == expected_).all()


def test_a_refused_execution_behind_a_clients_event_harms_no_other() -> None:
    with gpu() as backend:
        context, array = backend.create_context(), values()
        x, y, binding = registered(backend, context, doubled(context), array)
        with Gate(opencl_context(backend)) as gate:
            first = binding.execute(wait_for=[gate.event])
            queue = cl.CommandQueue(opencl_context(backend))
            mapped, _ = cl.enqueue_map_buffer(queue, x, cl.map_flags.READ, 0, DIMS, np.float32)
            with pytest.raises(QnnError, match=r"tensor 'x'.*is mapped"):
                binding.execute(wait_for=[gate.event])
            mapped.base.release(queue)
            queue.finish()
        first.wait(PATIENCE)
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)
        binding.execute()


def test_a_wait_for_an_event_raises_when_another_execution_loses_the_device() -> None:
    with gpu() as backend:
        context = backend.create_context()
        _, _, binding = registered(backend, context, doubled(context), values())
        reported = []

        def wait(ended):
            try:
                ended.wait()
            except QnnError as problem:
                reported.append(problem.code)

        with Gate(opencl_context(backend)) as gate:
            waiting = threading.Thread(target=wait, args=(binding.execute(wait_for=[gate.event]),))
            waiting.start()
            context.driver.opencl.lose("a test takes it away")
            waiting.join(PATIENCE)
        assert reported == [Code.COMMON_SYSTEM_COMMUNICATION]


def test_an_execution_may_be_aborted_and_the_next_one_succeeds(monkeypatch) -> None:
    monkeypatch.setattr(gpu_prepare.lower, "prepare", lambda *a, **k: small_engine(*a, **k, rounds=ROUNDS))
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        _, _, binding = registered(backend, context, graph, values())
        binding.execute()
        with pytest.raises(QnnError) as refused:
            binding.execute(signal=qnn.Signal(backend, 100))
        assert refused.value.code is Code.GRAPH_TIMED_OUT
        signal = qnn.Signal(backend)
        over = threading.Event()

        def trigger():
            while not over.wait(0.001):
                signal.trigger()

        def until_it_is_triggered():
            while True:
                binding.execute(signal=signal)

        triggering = threading.Thread(target=trigger)
        triggering.start()
        try:
            with pytest.raises(QnnError) as refused:
                until_it_is_triggered()
        finally:
            over.set()
            triggering.join()
        assert refused.value.code is Code.GRAPH_ABORTED
        binding.execute(signal=qnn.Signal(backend, 60_000_000))


def test_executions_from_many_threads_do_not_mix_their_results() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        problems = []

        def work(seed):
            try:
                x, y = values(seed=seed), np.zeros(DIMS, np.float32)
                for _ in range(20):
                    y[...] = 0
                    graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
                    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
            except BaseException as problem:
                problems.append(problem)

        run_in_threads(work, range(4))
        assert not problems


def test_asynchronous_executions_can_be_awaited_as_on_every_backend() -> None:
    with gpu() as backend:
        context = backend.create_context()
        array = values()
        _, y, binding = registered(backend, context, doubled(context), array)

        async def two():
            await binding.execute_async()
            await binding.execute_async()

        asyncio.run(two())
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)
        assert binding.stats.executions == 2


def test_state_lasts_from_execution_to_execution_until_it_is_reset() -> None:
    with gpu() as backend:
        graph = backend.create_context().create_graph("sum")
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 4))
        zero = np.zeros((1, 4), np.float32)
        s = graph.create_tensor("s", qnn.TensorType.APP_READWRITE, qnn.DataType.FLOAT_32, (1, 4), data=zero)
        t = graph.create_tensor("t", qnn.TensorType.NATIVE, qnn.DataType.FLOAT_32, (1, 4))
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 4))
        graph.add_node("add", "ElementWiseAdd", [x, s], [t])
        graph.add_node("out", "ElementWiseAdd", [t, t], [y])
        graph.update_state(s, t)
        memory = graph.allocate()
        memory.inputs["x"][...] = 1
        for total in (1, 2, 3):
            memory.binding.execute()
            assert (memory.outputs["y"] == 2 * total).all()
        graph.reset()
        memory.binding.execute()
        assert (memory.outputs["y"] == 2).all()
    memory.close()


def test_memory_may_be_closed_after_the_backend_it_was_of() -> None:
    for io in ("memhandle", "raw"):
        with gpu() as backend:
            given_by_graph = doubled(backend.create_context(), finalize=False).allocate(io)
            given_by_graph.inputs["x"][...] = values()
            given_by_graph.binding.execute()
            opencl = backend.driver.opencl()
            given = qnn.gpu.allocate(backend, NBYTES)
        given_by_graph.close()
        given.close()
        with pytest.raises(QnnError, match="has been freed"):
            opencl.check("anything")
