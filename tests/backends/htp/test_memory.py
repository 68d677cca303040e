"""HTP's shared buffers: what can be registered, as what, how often, by whom, and which code answers each mistake."""

import mmap
import os

import numpy as np
import pytest
from support.processes import descriptors, least_growth, opened_since

from backends.htp.harness import DIMS, FLOAT, NBYTES, Doubler, alloc, doubler, ion, shared
from isthmus import Code, QnnError
from isthmus.graph import DataType, TensorMemType
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp


def refused(code, words=""):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} .*{words}")


def test_an_execution_reads_and_writes_ion_memory(context) -> None:
    doubling = Doubler(context)
    for value in (1, 2.5, -3):
        doubling.x[:] = value
        doubling.run()
        assert (doubling.y == 2 * value).all()


def test_many_tensors_lie_in_one_shared_buffer(context) -> None:
    graphs = [doubler(context, f"g{n}") for n in range(4)]
    buffer = alloc(8 * NBYTES)
    handles = context.mem_register(shared(buffer, n * NBYTES) for n in range(8))
    assert len({id(handle) for handle in handles}) == 8
    views = buffer.view(np.float32, (8, *DIMS))
    for n, graph in enumerate(graphs):
        views[2 * n] = n
        x, y = handles[2 * n : 2 * n + 2]
        graph.execute([ClientTensor("x", mem_handle=x)], [ClientTensor("y", mem_handle=y)])
    for n in range(4):
        assert (views[2 * n + 1] == 2 * n).all()


def test_a_registration_inspects_a_descriptor_of_known_memory_once_at_each_boundary(context, monkeypatch) -> None:
    buffer, inspected, readlink = alloc(8 * NBYTES), [], os.readlink
    monkeypatch.setattr(os, "readlink", lambda path: inspected.append(path) or readlink(path))
    context.mem_register(shared(buffer, n * NBYTES) for n in range(8))
    assert len(inspected) == 8 + 1, "each descriptor of the client's, and the one that the accelerator is sent"


def test_dma_buffers_need_their_mapped_address(context) -> None:
    buffer = alloc()
    descriptor = MemDescriptor(DIMS, FLOAT, DescriptorType.DMA_BUF, fd=buffer.fd)
    with refused(Code.MEM_INVALID_ARGUMENT, "address"):
        context.mem_register([descriptor])
    for address in (123, "x", -4096):
        with refused(Code.MEM_INVALID_ARGUMENT, "address"):
            context.mem_register([MemDescriptor(DIMS, FLOAT, DescriptorType.DMA_BUF, fd=buffer.fd, address=address)])
    mapped = MemDescriptor(DIMS, FLOAT, DescriptorType.DMA_BUF, fd=np.int64(buffer.fd), address=buffer.address)
    assert context.mem_register([mapped])


def test_memory_that_another_maker_shares_works_too(context) -> None:
    graph = doubler(context)
    fds = [os.memfd_create(name) for name in "xy"]
    for fd in fds:
        os.ftruncate(fd, NBYTES)
    handles = context.mem_register(MemDescriptor(DIMS, FLOAT, DescriptorType.ION, fd=fd) for fd in fds)
    with mmap.mmap(fds[0], NBYTES) as x, mmap.mmap(fds[1], NBYTES) as y:
        x[:] = np.full(DIMS, 21, np.float32).tobytes()
        for fd in fds:
            os.close(fd)
        graph.execute([ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])])
        assert (np.frombuffer(y[:], np.float32) == 42).all()


def test_nothing_is_copied_when_both_sides_are_registered(context) -> None:
    """The result is seen through a mapping that the backend knows nothing of."""
    doubling = Doubler(context)
    with mmap.mmap(doubling.buffers[0].fd, NBYTES) as x, mmap.mmap(doubling.buffers[1].fd, NBYTES) as y:
        x[:] = np.full(DIMS, 5, np.float32).tobytes()
        doubling.run()
        assert (np.frombuffer(y[:], np.float32) == 10).all()
    stats = doubling.graph.stats
    assert stats.copied_bytes == 0
    assert stats.staging_prepare_bytes == stats.staging_execute_bytes == 0
    assert stats.in_place_bytes == {"shared": 2 * NBYTES}


def test_what_is_registered_already_is_refused_and_named(context) -> None:
    buffer = alloc(4 * NBYTES)
    context.mem_register([shared(buffer, NBYTES)])
    with refused(Code.MEM_ALREADY_REGISTERED, r"offset 64 .* CUSTOM handle 1 \(FLOAT_32\[1, 16\]\)"):
        context.mem_register([shared(buffer, NBYTES)])
    with refused(Code.MEM_ALREADY_REGISTERED, "offset 64"):
        context.mem_register([ion(buffer)])
    context.mem_register([shared(buffer, 2 * NBYTES)])
    other = alloc()
    context.mem_register([ion(other)])
    twin = os.dup(other.fd)
    for descriptor in (
        ion(other),
        shared(other, 0),
        MemDescriptor(DIMS, FLOAT, DescriptorType.ION, fd=twin),
    ):
        with refused(Code.MEM_ALREADY_REGISTERED, "this buffer is registered as ION handle"):
            context.mem_register([descriptor])
    os.close(twin)


def test_the_same_place_twice_in_one_list_is_refused_whole(context) -> None:
    buffer = alloc(2 * NBYTES)
    with refused(Code.MEM_ALREADY_REGISTERED):
        context.mem_register([shared(buffer, 0), shared(buffer, NBYTES), shared(buffer, 0)])
    assert len(context.mem_register([shared(buffer, 0), shared(buffer, NBYTES)])) == 2


def test_another_shape_at_the_same_place_is_a_matter_of_policy(backend) -> None:
    buffer = alloc(2 * NBYTES)
    with backend.create_context() as strict:
        strict.mem_register([shared(buffer, 0)])
        assert strict.get_property(htp.REREGISTRATION) is htp.Reregistration.REFUSE
        with refused(Code.MEM_ALREADY_REGISTERED):
            strict.mem_register([shared(buffer, 0, (4, 4))])
    with backend.create_context({htp.REREGISTRATION: htp.Reregistration.OTHER_SHAPE}) as lenient:
        lenient.mem_register([shared(buffer, 0)])
        assert len(lenient.mem_register([shared(buffer, 0, (4, 4)), shared(buffer, 0, (16,), DataType.INT_32)])) == 2
        with refused(Code.MEM_ALREADY_REGISTERED):
            lenient.mem_register([shared(buffer, 0)])


def test_a_handle_belongs_to_one_context_and_the_buffer_to_all(backend) -> None:
    buffer = alloc()
    with backend.create_context() as one, backend.create_context() as two:
        graph = doubler(two)
        [mine] = one.mem_register([ion(buffer)])
        [theirs] = two.mem_register([ion(buffer)])
        out = np.zeros(DIMS, np.float32)
        with refused(Code.MEM_INVALID_HANDLE, "another context"):
            graph.execute([ClientTensor("x", mem_handle=mine)], [ClientTensor("y", out)])
        buffer.view(np.float32, DIMS)[:] = 4
        graph.execute([ClientTensor("x", mem_handle=theirs)], [ClientTensor("y", out)])
        assert (out == 8).all()
        with refused(Code.MEM_INVALID_HANDLE):
            two.mem_deregister([mine])


def test_deregistering_ends_every_valid_handle_of_the_list(context) -> None:
    buffers = [alloc() for _ in range(3)]
    handles = context.mem_register(map(ion, buffers))
    context.mem_deregister([handles[1]])
    with refused(Code.MEM_INVALID_HANDLE, r"\[1, 3\]"):
        context.mem_deregister([handles[0], handles[1], handles[2], None])
    assert not any(handle.alive for handle in handles)
    for buffer in buffers:
        buffer.close()


def test_a_deregistered_handle_is_refused_and_its_place_free_again(context) -> None:
    doubling = Doubler(context)
    doubling.run()
    context.mem_deregister(doubling.handles)
    with refused(Code.MEM_INVALID_HANDLE):
        doubling.run()
    doubling.register()
    doubling.x[:] = 3
    doubling.run()
    assert (doubling.y == 6).all()


def test_freeing_a_registered_buffer_is_refused_with_its_handles(context) -> None:
    buffer = alloc(2 * NBYTES)
    handles = context.mem_register([shared(buffer, 0), shared(buffer, NBYTES)])
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, r"handle 1 .* handle 2"):
        rpcmem.free(buffer)
    context.mem_deregister(handles[:1])
    with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "handle 2"):
        rpcmem.free(buffer)
    context.mem_deregister(handles[1:])
    rpcmem.free(buffer)


def test_freeing_the_context_frees_its_handles(backend) -> None:
    buffer = alloc()
    context = backend.create_context()
    [handle] = context.mem_register([ion(buffer)])
    context.free()
    assert not handle.alive
    rpcmem.free(buffer)


@pytest.fixture
def odd_descriptors(tmp_path):
    """Descriptors of things that are no shared memory."""
    (tmp_path / "file").write_bytes(bytes(NBYTES))
    pipe = os.pipe()
    closed = os.dup(pipe[0])
    os.close(closed)
    open_ones = [os.open(tmp_path / "file", os.O_RDWR), *pipe]
    yield [*open_ones, closed, -1, 10**6, None]
    for fd in open_ones:
        os.close(fd)


def test_descriptors_of_what_is_no_shared_memory_are_refused(context, odd_descriptors) -> None:
    good = alloc()
    for fd in odd_descriptors:
        with refused(Code.MEM_INVALID_ARGUMENT, "descriptor"):
            context.mem_register([ion(good), MemDescriptor(DIMS, FLOAT, DescriptorType.ION, fd=fd)])
        custom = htp.Descriptor(NBYTES, fd)
        with refused(Code.MEM_INVALID_ARGUMENT, "descriptor"):
            context.mem_register([ion(good), MemDescriptor(DIMS, FLOAT, DescriptorType.CUSTOM, custom=custom)])
    good.close()


def custom(buffer, **fields):
    given = {"size": buffer.nbytes, "fd": buffer.fd, "offset": 0, **fields}
    return MemDescriptor(DIMS, FLOAT, DescriptorType.CUSTOM, custom=htp.Descriptor(**given))


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda b: ion(b, (1, 17)), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, (0, 16)), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, (-1, 16)), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, (1.5,)), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, (1 << 62, 1 << 62)), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, DIMS, DataType.FLOAT_64), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, DIMS, DataType.UNDEFINED), Code.MEM_INVALID_SHAPE),
        (lambda b: ion(b, DIMS, "float32"), Code.MEM_INVALID_SHAPE),
        (lambda b: custom(b, offset=4), Code.MEM_INVALID_SHAPE),
        (lambda b: custom(b, offset=NBYTES), Code.MEM_INVALID_SHAPE),
        (lambda b: custom(b, offset=1 << 63), Code.MEM_INVALID_SHAPE),
        (lambda b: custom(b, offset=-4), Code.MEM_INVALID_ARGUMENT),
        (lambda b: custom(b, offset=1 << 64), Code.MEM_INVALID_ARGUMENT),
        (lambda b: custom(b, offset="0"), Code.MEM_INVALID_ARGUMENT),
        (lambda b: custom(b, size=NBYTES - 1), Code.MEM_INVALID_SHAPE),
        (lambda b: custom(b, size=NBYTES + 1), Code.MEM_MAPPING),
        (lambda b: custom(b, size=-1), Code.MEM_INVALID_ARGUMENT),
        (lambda b: custom(b, type=htp.MemType.WEIGHTS_BUFFER), Code.MEM_UNSUPPORTED_MEMTYPE),
        (lambda b: custom(b, type=htp.MemType.SHARED_SPILLFILL_BUFFER), Code.MEM_UNSUPPORTED_MEMTYPE),
        (lambda b: custom(b, type=htp.MemType.QURT), Code.MEM_UNSUPPORTED_MEMTYPE),
        (lambda b: MemDescriptor(DIMS, FLOAT, DescriptorType.CUSTOM, custom=None), Code.MEM_INVALID_ARGUMENT),
        (lambda b: MemDescriptor(DIMS, FLOAT, 9, fd=b.fd), Code.MEM_UNSUPPORTED_MEMTYPE),
        (lambda b: "descriptor", Code.MEM_INVALID_ARGUMENT),
    ],
)
def test_each_mistake_has_its_code_and_registers_nothing(context, make, code) -> None:
    good, bad = alloc(), alloc()
    with pytest.raises(QnnError) as refusal:
        context.mem_register([ion(good), make(bad)])
    assert refusal.value.code is code
    assert "memory descriptor 1" in str(refusal.value)
    good.close()
    bad.close()


def test_a_misaligned_offset_is_refused(context) -> None:
    buffer = alloc(2 * NBYTES)
    with refused(Code.MEM_INVALID_SHAPE, "multiple of 4"):
        context.mem_register([shared(buffer, 2)])
    assert context.mem_register([shared(buffer, 3, (16,), DataType.UINT_8)])


def test_read_only_memory_cannot_be_registered(context) -> None:
    fd = os.memfd_create("read only")
    os.ftruncate(fd, NBYTES)
    readonly = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    with refused(Code.MEM_MAPPING):
        context.mem_register([MemDescriptor(DIMS, FLOAT, DescriptorType.ION, fd=readonly)])
    os.close(readonly)
    os.close(fd)


@pytest.mark.parametrize(
    ("dims", "dtype"), [((16, 1), FLOAT), ((16,), FLOAT), (DIMS, DataType.INT_32), ((1, 8), DataType.FLOAT_64)]
)
def test_memory_of_another_shape_or_type_is_refused_by_the_graph(context, dims, dtype) -> None:
    graph = doubler(context)
    buffer = alloc()
    [handle] = context.mem_register([ion(buffer, dims, dtype)])
    with refused(Code.MEM_INVALID_SHAPE, "registered as"):
        graph.execute([ClientTensor("x", mem_handle=handle)], [ClientTensor("y", np.zeros(DIMS, np.float32))])
    assert graph.stats.executions == 0


def test_raw_memory_that_will_not_do_is_refused(context) -> None:
    graph = doubler(context, prepared=(TensorMemType.MEMHANDLE, TensorMemType.MEMHANDLE))
    good = np.zeros(DIMS, np.float32)
    fixed = good.copy()
    fixed.flags.writeable = False
    for y in (bytearray(NBYTES - 1), fixed, bytes(NBYTES), good.T[::2], good.astype(np.float64), None, 3):
        with pytest.raises(QnnError):
            graph.execute([ClientTensor("x", good)], [ClientTensor("y", y)])
    assert graph.stats.staging_execute_bytes == 0, "a refused execution reserves nothing"
    graph.execute([ClientTensor("x", fixed)], [ClientTensor("y", good)])


def test_raw_memory_may_lie_anywhere(context) -> None:
    graph = doubler(context)
    space = np.zeros(2 * NBYTES + 1, np.uint8)
    x, y = space[1 : NBYTES + 1], space[NBYTES + 1 :]
    x[:] = np.full(DIMS, 7, np.float32).view(np.uint8).reshape(-1)
    graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
    assert (np.frombuffer(y.tobytes(), np.float32) == 14).all()


def test_an_output_must_not_lie_over_a_part_of_an_input(context) -> None:
    graph = doubler(context)
    buffer = alloc(2 * NBYTES)
    x, near, apart = context.mem_register([shared(buffer, 0), shared(buffer, NBYTES // 2), shared(buffer, NBYTES)])
    with refused(Code.GRAPH_INVALID_TENSOR, "overlaps that of tensor 'x'"):
        graph.execute([ClientTensor("x", mem_handle=x)], [ClientTensor("y", mem_handle=near)])
    for handle in (x, apart):
        graph.execute([ClientTensor("x", mem_handle=x)], [ClientTensor("y", mem_handle=handle)])


def test_cycles_of_registration_leave_nothing_behind(backend) -> None:
    def cycle(context, graph):
        buffers = alloc(), alloc()
        handles = context.mem_register(map(ion, buffers))
        graph.execute([ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])])
        context.mem_deregister(handles)
        for buffer in buffers:
            buffer.close()

    with backend.create_context() as context:
        graph = doubler(context)
        accelerator = context.driver.queue.accelerator
        for _ in range(5):
            cycle(context, graph)
        mine = descriptors()
        grown = least_growth(accelerator.counts, lambda: cycle(context, graph), 200)
        assert (grown["descriptors"], grown["memory"]) == (0, 0)
        assert grown["mappings"] <= 2
        assert grown["resident_bytes"] <= 1 << 20
        assert not opened_since(mine)


def test_memory_that_can_be_sealed_cannot_be_cut_once_it_is_registered(context) -> None:
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    context.mem_register([MemDescriptor((1, 16), DataType.FLOAT_32, DescriptorType.ION, fd=fd)])
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    os.ftruncate(fd, 8192)
    os.close(fd)
