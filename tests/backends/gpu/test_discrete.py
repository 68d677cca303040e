"""What the GPU backend does on a device with memory of its own, tried on one that is only said to have it."""

from dataclasses import replace

import numpy as np
import pytest

from backends.gpu.harness import bind_handles, buffer, cl, descriptor, doubled, expected, gpu, opencl_queue, put, values
from backends.gpu.harness import small as small
from isthmus import memory, qnn
from isthmus.backends.gpu import staging as gpu_staging
from isthmus.backends.gpu.buffers import PAGE, PinnedBuffer
from isthmus.backends.gpu.runtime import context as contexts
from isthmus.backends.gpu.runtime.loop import CommandKind

pytestmark = pytest.mark.usefixtures("small", "discrete")


@pytest.fixture
def discrete(monkeypatch):
    create = contexts.ClContext.create
    monkeypatch.setattr(
        contexts.ClContext, "create", classmethod(lambda cls, device: create(replace(device, unified=False)))
    )


def kinds(binding):
    return [command.kind for command in binding._driver._commands.commands]


def pins(binding):
    return [side.pin for side in binding._driver._sides if side.pin is not None]


def raw(graph, x, y):
    return graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])


def test_small_raw_memory_goes_through_pinned_memory() -> None:
    with gpu() as backend:
        graph = doubled(backend.create_context())
        x, y = values(), np.zeros_like(values())
        binding = raw(graph, x, y)
        for seed in range(2):
            x[...] = values(seed=seed)
            binding.execute()
            np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
        assert kinds(binding) == [CommandKind.WRITE, CommandKind.LAUNCH, CommandKind.LAUNCH, CommandKind.READ]
        assert not pins(binding)
        assert len(binding._driver._copies_in) == len(binding._driver._copies_out) == 1
        assert binding.stats.copied_bytes == 2 * (x.nbytes + y.nbytes)


def test_large_raw_memory_is_pinned_and_transferred_in_place(monkeypatch) -> None:
    monkeypatch.setattr(gpu_staging, "PIN_BYTES", 1)
    with gpu() as backend, memory.statistics("opencl") as counted:
        graph = doubled(backend.create_context())
        reserved = counted.live_bytes
        x, y = values(), np.zeros_like(values())
        with raw(graph, x, y) as binding:
            binding.execute()
            np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
            assert len(pins(binding)) == 2
            # Only the ends that share a page with other memory are copied.
            assert sum(nbytes for _, _, nbytes in binding._driver._copies_in) < 2 * PAGE
            assert counted.live_bytes <= reserved + 4 * PAGE
        assert not pins(binding)


def test_memory_that_cannot_be_pinned_goes_through_pinned_memory(monkeypatch) -> None:
    monkeypatch.setattr(gpu_staging, "PIN_BYTES", 1)
    monkeypatch.setattr(gpu_staging.buffers, "pin_pages", lambda *arguments: None)
    with gpu() as backend:
        graph = doubled(backend.create_context())
        x, y = values(), np.zeros_like(values())
        binding = raw(graph, x, y)
        binding.execute()
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
        assert not pins(binding)
        assert len(binding._driver._copies_in) == len(binding._driver._copies_out) == 1


def apart(array):
    """A copy of the array that neither begins nor ends at the edge of a page."""
    around = np.zeros(array.nbytes + 2 * PAGE, np.uint8)
    at = -around.ctypes.data % PAGE + 64
    moved = around[at : at + array.nbytes].view(array.dtype).reshape(array.shape)
    moved[...] = array
    return moved


def test_a_binding_keeps_its_staging_when_another_one_needs_more(monkeypatch) -> None:
    """Only the ends of the first binding's arrays are staged; all of the second's are, as they cannot be pinned."""
    monkeypatch.setattr(gpu_staging, "PIN_BYTES", 1)
    with gpu() as backend:
        graph = doubled(backend.create_context())
        first, second = ((apart(values(seed=seed)), apart(np.zeros_like(values()))) for seed in range(2))
        one = raw(graph, *first)
        staged = [side.staging for side in one._driver._sides]
        addresses = [buffer.address for buffer in staged]
        monkeypatch.setattr(gpu_staging.buffers, "pin_pages", lambda *arguments: None)
        other = raw(graph, *second)
        for binding, (x, y) in ((one, first), (other, second), (one, first)):
            y[...] = 0
            binding.execute()
            np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
        assert [buffer.inner.handle > 0 for buffer in staged] == [True, True]
        assert [buffer.address for buffer in staged] == addresses
        assert not {side.staging.address for side in other._driver._sides} & set(addresses)


def test_a_graph_gets_pinned_memory_that_is_copied_no_more_than_once() -> None:
    with gpu() as backend:
        given = doubled(backend.create_context(), finalize=False).allocate()
        assert all(isinstance(held, PinnedBuffer) for held in given._buffers)
        given.inputs["x"][...] = values()
        given.binding.execute()
        np.testing.assert_allclose(given.outputs["y"], expected(values()), rtol=1e-5, atol=1e-6)
        assert not given.binding._driver._copies_in
        assert given.binding.stats.copied_bytes == 2 * given.inputs["x"].nbytes
        view = given.outputs["y"]
    given.close()
    del given
    np.testing.assert_allclose(view, expected(values()), rtol=1e-5, atol=1e-6)


def test_registered_host_memory_is_transferred_by_the_driver_and_counted() -> None:
    with gpu() as backend:
        given = doubled(backend.create_context(), finalize=False).allocate("memhandle")
        given.inputs["x"][...] = values()
        given.binding.execute()
        np.testing.assert_allclose(given.outputs["y"], expected(values()), rtol=1e-5, atol=1e-6)
        assert given.binding.stats.copied_bytes == 2 * given.inputs["x"].nbytes
    given.close()


def test_registered_buffers_are_in_place_whatever_they_were_made_of() -> None:
    with gpu() as backend:
        context = backend.create_context()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        x, y = buffer(backend, flags=flags), buffer(backend)
        put(backend, x, values())
        binding = bind_handles(doubled(context), *context.mem_register([descriptor(x), descriptor(y)]))
        binding.execute()
        opencl_queue(backend).finish()
        assert binding.stats.in_place_bytes == {"opencl": 2 * values().nbytes}


@pytest.mark.parametrize("start", [0, 16, 4095])
@pytest.mark.parametrize("end", [0, 4, 4092])
def test_parts_of_a_tensor_that_share_pages_with_others_are_copied(monkeypatch, start, end) -> None:
    monkeypatch.setattr(gpu_staging, "PIN_BYTES", 1)
    with gpu() as backend:
        graph = doubled(backend.create_context())
        nbytes = values().nbytes
        around = np.zeros(nbytes + 4 * PAGE, np.uint8)
        at = -around.ctypes.data % PAGE + PAGE + start // 4 * 4
        y = around[at : at + nbytes]
        x = np.zeros(nbytes // 4 + 4096, np.float32)[end // 4 :][: nbytes // 4].reshape(values().shape)
        x[...] = values()
        raw(graph, x, y).execute()
        np.testing.assert_allclose(y.view(np.float32).reshape(x.shape), expected(x), rtol=1e-5, atol=1e-6)
        assert not around[:at].any()
        assert not around[at + nbytes :].any()
