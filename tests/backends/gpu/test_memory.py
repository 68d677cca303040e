"""Registered memory of the GPU backend: one buffer, one handle, one tensor, and the codes of what is not that."""

import threading
import time

import numpy as np
import pytest
from support.opencl_device import DEVICE, ROUNDS, Gate, client_context
from support.waiting import PATIENCE

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
    put,
    read_back,
    small_engine,
    values,
)
from backends.gpu.harness import small as small
from isthmus import QnnError, memory, qnn
from isthmus.backends.gpu import prepare as gpu_prepare
from isthmus.backends.gpu.runtime.handles import _first_word, references
from isthmus.errors import Code

pytestmark = pytest.mark.usefixtures("small")


def refusal(context, *descriptors):
    with pytest.raises(QnnError) as refused:
        context.mem_register(list(descriptors))
    return refused.value


def test_an_opencl_buffer_is_registered_by_its_object_or_by_its_handle() -> None:
    with gpu() as backend:
        context = backend.create_context()
        one, other = buffer(backend), buffer(backend)
        handles = context.mem_register([descriptor(one), descriptor(other.int_ptr)])
        assert [handle.descriptor.nbytes for handle in handles] == [NBYTES, NBYTES]


def test_a_registration_keeps_the_buffer_and_its_end_lets_it_go() -> None:
    with gpu() as backend:
        context = backend.create_context()
        given = buffer(backend)
        before = references(given.int_ptr)
        (handle,) = context.mem_register([descriptor(given)])
        assert references(given.int_ptr) == before + 1
        context.mem_deregister([handle])
        assert references(given.int_ptr) == before


def test_the_client_may_release_its_own_reference_while_the_buffer_is_registered() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        x, y = buffer(backend), buffer(backend)
        array = values()
        put(backend, x, array)
        handles = context.mem_register([descriptor(x), descriptor(y)])
        x.release()
        binding = bind_handles(graph, *handles)
        binding.execute()
        np.testing.assert_allclose(read_back(backend, y), expected(array), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [qnn.DescriptorType.ION, qnn.DescriptorType.DMA_BUF])
def test_other_memory_than_custom_is_refused(kind) -> None:
    with gpu() as backend:
        error = refusal(backend.create_context(), qnn.MemDescriptor((4,), qnn.DataType.FLOAT_32, kind, fd=3))
    assert error.code is Code.MEM_UNSUPPORTED_MEMTYPE
    assert kind.name in error.rule


def test_a_custom_structure_must_be_the_gpus_and_of_opencl() -> None:
    with gpu() as backend:
        context = backend.create_context()
        of_htp = qnn.htp.Descriptor(4, 3)
        custom = qnn.MemDescriptor((4,), qnn.DataType.FLOAT_32, qnn.DescriptorType.CUSTOM, custom=of_htp)
        assert refusal(context, custom).code is Code.MEM_INVALID_ARGUMENT
        undefined = descriptor(buffer(backend), mem_type=qnn.gpu.MemType.UNDEFINED)
        assert refusal(context, undefined).code is Code.MEM_UNSUPPORTED_MEMTYPE
        for kind in ("OPENCL", None, 1.5, 1, []):
            other = refusal(context, descriptor(buffer(backend), mem_type=kind))
            assert other.code is Code.MEM_UNSUPPORTED_MEMTYPE
            assert f"type {kind!r} cannot" in other.rule
        context.mem_register([descriptor(buffer(backend), mem_type=0)])
        assert refusal(context, descriptor(None)).code is Code.MEM_INVALID_ARGUMENT
        assert refusal(context, descriptor("text")).code is Code.MEM_INVALID_ARGUMENT
        assert refusal(context, descriptor(True)).code is Code.MEM_INVALID_ARGUMENT


def test_the_pointer_of_the_client_instead_of_its_buffer_is_refused() -> None:
    # The listing of QNN's own tutorial registers the memory that malloc gave.
    array = values()
    with gpu() as backend:
        error = refusal(backend.create_context(), descriptor(array.ctypes.data))
        assert error.code is Code.MEM_INVALID_HANDLE
        assert "is not an object of OpenCL" in error.rule
        assert refusal(backend.create_context(), descriptor(1)).code is Code.MEM_INVALID_HANDLE
        assert refusal(backend.create_context(), descriptor(1 << 62)).code is Code.MEM_INVALID_HANDLE
        with memory.host(NBYTES) as host:
            assert refusal(backend.create_context(), descriptor(host)).code is Code.MEM_INVALID_ARGUMENT


def test_a_buffer_that_was_released_is_refused() -> None:
    with gpu() as backend:
        context = backend.create_context()
        given = buffer(backend)
        number = given.int_ptr
        given.release()
        assert refusal(context, descriptor(given)).code is Code.MEM_INVALID_HANDLE
        if _first_word(number) == _first_word(DEVICE.platform):
            pytest.skip("the driver leaves what it released as it was: nothing tells it from a buffer")
        assert refusal(context, descriptor(number)).code is Code.MEM_INVALID_HANDLE


def test_a_buffer_of_another_context_is_refused() -> None:
    with gpu() as backend, gpu() as other:
        error = refusal(backend.create_context(), descriptor(buffer(other)))
    assert error.code is Code.MEM_INVALID_ARGUMENT
    assert "belongs to another context" in error.rule


def test_a_buffer_that_is_too_small_is_refused_and_a_larger_one_is_not() -> None:
    with gpu() as backend:
        context = backend.create_context()
        error = refusal(context, descriptor(buffer(backend, NBYTES - 1)))
        assert error.code is Code.MEM_INVALID_SHAPE
        assert f"has {NBYTES - 1} bytes, the tensor needs {NBYTES}" in error.rule
        context.mem_register([descriptor(buffer(backend, NBYTES + 1))])


def test_an_image_is_no_buffer() -> None:
    with gpu() as backend:
        context = backend.get_property(qnn.gpu.CL_CONTEXT)
        try:
            form = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
            image = cl.create_image(context, cl.mem_flags.READ_WRITE, form, (64, 64))
        except cl.Error as problem:
            pytest.skip(f"the device makes no images: {problem}")
        error = refusal(backend.create_context(), descriptor(image))
    assert error.code is Code.MEM_INVALID_ARGUMENT
    assert "image" in error.rule


def test_a_second_registration_of_a_buffer_is_refused_until_the_first_ends() -> None:
    with gpu() as backend:
        context = backend.create_context()
        given = buffer(backend)
        (handle,) = context.mem_register([descriptor(given)])
        for again in (given, given.int_ptr):
            assert refusal(context, descriptor(again)).code is Code.MEM_ALREADY_REGISTERED
        assert refusal(context, descriptor(given, (16,))).code is Code.MEM_ALREADY_REGISTERED
        context.mem_deregister([handle])
        context.mem_register([descriptor(given)])


def test_registration_is_all_or_nothing() -> None:
    with gpu() as backend:
        context = backend.create_context()
        good, small = buffer(backend), buffer(backend, 4)
        before = references(good.int_ptr)
        refusal(context, descriptor(good), descriptor(small))
        refusal(context, descriptor(good), descriptor(good))
        assert references(good.int_ptr) == before
        context.mem_register([descriptor(good)])


def test_sub_buffers_of_one_parent_are_buffers_of_their_own_unless_they_overlap() -> None:
    with gpu() as backend:
        context = backend.create_context()
        parent = buffer(backend, 4 * NBYTES)
        first, second = parent.get_sub_region(0, NBYTES), parent.get_sub_region(NBYTES, NBYTES)
        handles = context.mem_register([descriptor(first), descriptor(second)])
        over = refusal(context, descriptor(parent.get_sub_region(NBYTES // 2, NBYTES)))
        assert over.code is Code.MEM_ALREADY_REGISTERED
        assert "shares memory" in over.rule
        assert refusal(context, descriptor(parent)).code is Code.MEM_ALREADY_REGISTERED
        graph, array = doubled(context), values()
        put(backend, first, array)
        bind_handles(graph, *handles).execute()
        np.testing.assert_allclose(read_back(backend, second), expected(array), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("x_flags", "y_flags", "rule"),
    [("WRITE_ONLY", "READ_WRITE", "tensor 'x'.*WRITE_ONLY"), ("READ_WRITE", "READ_ONLY", "tensor 'y'.*READ_ONLY")],
)
def test_a_buffer_that_kernels_may_not_use_as_the_tensor_needs_is_refused(x_flags, y_flags, rule) -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        x, y = (buffer(backend, flags=getattr(cl.mem_flags, name)) for name in (x_flags, y_flags))
        handles = context.mem_register([descriptor(x), descriptor(y)])
        with pytest.raises(QnnError, match=rule) as refused:
            bind_handles(graph, *handles)
        assert refused.value.code is Code.GRAPH_INVALID_TENSOR


def test_flags_that_fit_the_tensor_are_enough() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = context.create_graph("sum")
        tensors = [
            graph.create_tensor(name, kind, qnn.DataType.FLOAT_32, DIMS)
            for name, kind in (("x", qnn.TensorType.APP_WRITE), ("y", qnn.TensorType.APP_READ))
        ]
        graph.add_node("add", "ElementWiseAdd", [tensors[0], tensors[0]], [tensors[1]])
        graph.finalize()
        x = buffer(backend, 0, cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR, values())
        y = buffer(backend, flags=cl.mem_flags.WRITE_ONLY)
        bind_handles(graph, *context.mem_register([descriptor(x), descriptor(y)])).execute()
        np.testing.assert_array_equal(read_back(backend, y), 2 * values())


def test_an_output_that_kernels_also_read_must_be_readable() -> None:
    with gpu() as backend:
        context = backend.create_context()
        # What one kernel writes into the output, the next one takes from there.
        graph = doubled(context)
        x, y = buffer(backend), buffer(backend, flags=cl.mem_flags.WRITE_ONLY)
        handles = context.mem_register([descriptor(x), descriptor(y)])
        with pytest.raises(QnnError, match=r"tensor 'y'.*WRITE_ONLY, and kernels read it"):
            bind_handles(graph, *handles)


def test_one_handle_serves_one_tensor() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        (handle,) = context.mem_register([descriptor(buffer(backend))])
        with pytest.raises(QnnError, match="each tensor needs its own") as refused:
            bind_handles(graph, handle, handle)
        assert refused.value.code is Code.GRAPH_INVALID_TENSOR


@pytest.mark.parametrize("kind", ["context", "queue", "event"])
def test_an_object_of_opencl_that_is_no_memory_is_refused_before_the_driver_is_asked(kind) -> None:
    context = client_context()
    with gpu() as backend, Gate(context) as gate:
        given = {"context": context, "queue": cl.CommandQueue(context), "event": gate.event}[kind]
        with pytest.raises(QnnError, match="is no MemoryObject") as refusal:
            backend.create_context().mem_register([descriptor(given)])
        assert refusal.value.code is Code.MEM_INVALID_HANDLE


def test_the_numbers_of_the_backends_own_queue_and_context_are_no_buffers() -> None:
    with gpu() as backend:
        context = backend.create_context()
        for option in (qnn.gpu.CL_QUEUE, qnn.gpu.CL_CONTEXT, qnn.gpu.CL_DEVICE):
            error = refusal(context, descriptor(backend.get_property(option).int_ptr))
            assert error.code is Code.MEM_INVALID_HANDLE
            assert "is an object of OpenCL, but no MemoryObject" in error.rule


def test_a_handle_of_another_shape_or_context_is_refused() -> None:
    with gpu() as backend:
        context, other = backend.create_context(), backend.create_context()
        graph = doubled(context)
        (y,) = context.mem_register([descriptor(buffer(backend))])
        (flat,) = context.mem_register([descriptor(buffer(backend), (NBYTES // 4,))])
        (foreign,) = other.mem_register([descriptor(buffer(backend))])
        for handle, code in ((flat, Code.MEM_INVALID_SHAPE), (foreign, Code.MEM_INVALID_HANDLE)):
            with pytest.raises(QnnError) as refused:
                bind_handles(graph, handle, y)
            assert refused.value.code is code


def test_a_binding_of_a_deregistered_buffer_is_refused() -> None:
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        handles = context.mem_register([descriptor(buffer(backend)), descriptor(buffer(backend))])
        binding = bind_handles(graph, *handles)
        binding.execute()
        context.mem_deregister(handles[:1])
        with pytest.raises(QnnError) as refused:
            binding.execute()
        assert refused.value.code is Code.MEM_INVALID_HANDLE


def test_memory_of_the_backend_is_counted_and_registered_like_the_clients() -> None:
    with gpu() as backend, memory.statistics() as counted:
        context = backend.create_context()
        with qnn.gpu.allocate(backend, NBYTES) as one, qnn.gpu.allocate(backend, NBYTES) as other:
            assert counted.of("opencl").live_bytes == 2 * NBYTES
            assert not one.has_host_view
            with pytest.raises(QnnError, match="the host cannot access"):
                _ = one.array
            handles = context.mem_register([descriptor(one), descriptor(other)])
            bind_handles(doubled(context), *handles).execute()
            context.mem_deregister(handles)
        context.free()
    assert counted.of("opencl").live_bytes == 0


def test_memory_of_a_device_is_asked_for_through_a_backend() -> None:
    with pytest.raises(QnnError, match="belongs to a context"):
        memory.current("opencl").allocate(64)
    with qnn.Backend("cpu") as backend, pytest.raises(QnnError, match="no memory of an OpenCL device"):
        qnn.gpu.allocate(backend, 64)
    with pytest.raises(QnnError, match="None is not a backend"):
        qnn.gpu.allocate(None, 64)
    with gpu() as backend:
        for size in (0, -1, 1 << 62, None, "64", 1.5, True):
            with pytest.raises(QnnError):
                qnn.gpu.allocate(backend, size)


def test_memory_that_is_deregistered_while_an_execution_uses_it_stays_until_that_has_ended(monkeypatch) -> None:
    monkeypatch.setattr(gpu_prepare.lower, "prepare", lambda *a, **k: small_engine(*a, **k, rounds=ROUNDS))
    with gpu() as backend:
        context = backend.create_context()
        graph = doubled(context)
        x, y = buffer(backend), buffer(backend)
        handles = context.mem_register([descriptor(x), descriptor(y)])
        binding = bind_handles(graph, *handles)
        binding.execute()
        thread = threading.Thread(target=binding.execute)
        thread.start()
        while not binding._driver._running and thread.is_alive():
            time.sleep(0.0001)
        context.mem_deregister(handles)
        x.release()
        y.release()
        thread.join(PATIENCE)
        with pytest.raises(QnnError, match="deregistered"):
            binding.execute()
