"""LPAI's inputs and outputs: inside scratch, raw, or shared by file descriptor; aligned, apart, never copied."""

import ctypes
import gc
import mmap
import os
import threading

import numpy as np
import pytest
from support.processes import descriptors, held, holds_since, opened_since
from support.waiting import PATIENCE

from backends.lpai.harness import OUT_OF_SCRATCH, WIDTH, count, counter, ddr, pools, ready, running
from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType
from isthmus.memory import SharedFd, holds, rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, lpai

BYTES = 4 * WIDTH
PADDED = 256


def refused(code, match):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} .*{match}")


def raw(name, value=0.0):
    buffer = memory.host(PADDED, 128)
    buffer.view(np.float32, (1, WIDTH))[...] = value
    return buffer, ClientTensor(name, buffer)


def floats(buffer):
    return buffer.view(np.float32, (1, WIDTH))


def test_by_default_io_is_in_scratch_and_the_client_gets_views() -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        scratch, _ = ready(backend, graph)
        for view in (graph.inputs["x"], graph.outputs["y"]):
            assert np.shares_memory(view, scratch.array)
            assert view.ctypes.data % 128 == 0
        offset = graph.get_property(lpai.IO_OFFSETS)[0]
        assert graph.inputs["x"].ctypes.data == scratch.address + offset
        assert count(graph, 1) == 4
        assert graph.stats.in_place_bytes == {"scratch": 2 * BYTES}
        assert graph.stats.copied_bytes == 0


def test_excluded_io_takes_no_scratch_and_must_be_given() -> None:
    with running(OUT_OF_SCRATCH) as graph, running() as default:
        assert graph.get_property(lpai.SCRATCH_MEM_SIZE) < default.get_property(lpai.SCRATCH_MEM_SIZE)
        assert graph.get_property(lpai.IO_OFFSETS) == ()
        assert not graph.inputs
        with refused(Code.GRAPH_INVALID_TENSOR, "'x' .*needs a buffer.*exclude_io"):
            graph.execute()
        (_, x), (out, y) = raw("x", 1), raw("y")
        with refused(Code.GRAPH_INVALID_TENSOR, "'y' .*needs a buffer"):
            graph.execute([x])
        graph.execute([x], [y])
        assert (floats(out) == 4).all()


@pytest.mark.parametrize("config", [None, OUT_OF_SCRATCH])
def test_raw_buffers_are_used_in_place(config) -> None:
    with running(config) as graph:
        (source, x), (result, y) = raw("x", 1), raw("y")
        for expected in (4, 6, 8):
            graph.execute([x], [y])
            assert (floats(result) == expected).all()
            assert (floats(source) == 1).all(), "an input is only read"
        assert graph.stats.copied_bytes == 0
        assert graph.stats.in_place_bytes == {"raw": 3 * 2 * BYTES}


def test_raw_and_planned_memory_may_be_mixed_tensor_by_tensor() -> None:
    with running() as graph:
        _, x = raw("x", 1)
        graph.execute([x])
        assert (graph.outputs["y"] == 4).all()
        result, y = raw("y")
        graph.inputs["x"][...] = 2
        graph.execute((), [y])
        assert (floats(result) == 8).all()  # twice the sum of the state, 2 by now, and the input
        assert graph.stats.in_place_bytes == {"raw": 2 * BYTES, "scratch": 2 * BYTES}


def test_prepare_config_plans_io_out_of_scratch_too() -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        inside = graph.get_property(lpai.SCRATCH_MEM_SIZE)
        graph.set_config(lpai.PREPARE, lpai.Prepare(exclude_io=True))
        assert graph.get_property(lpai.SCRATCH_MEM_SIZE) < inside
        ready(backend, graph)
        with refused(Code.GRAPH_FINALIZED, "prepared"):
            graph.set_config(lpai.PREPARE, lpai.Prepare())


def unaligned():
    return memory.host(BYTES + 128, 128).array[64 : 64 + BYTES]


@pytest.mark.parametrize(
    ("tensor", "rule"),
    [
        (lambda g: ClientTensor("x", unaligned()), "tensor 'x' .*not a multiple of 128"),
        (lambda g: ClientTensor("x", memory.host(BYTES - 4, 128)), f"{BYTES - 4} bytes, {BYTES} are needed"),
        (lambda g: ClientTensor("z", memory.host(BYTES, 128)), "input 'z'.*no such input; it has 'x'"),
        (lambda g: ClientTensor("x", np.zeros((1, WIDTH))), "its array is float64"),
        (lambda g: ClientTensor("x", np.zeros((WIDTH,), np.float32)), "its array is float32"),
        (lambda g: "x", "not a ClientTensor"),
    ],
)
def test_a_buffer_that_cannot_be_used_is_refused_with_its_tensor(tensor, rule) -> None:
    with running() as graph:
        with refused(Code.GRAPH_INVALID_TENSOR, rule):
            graph.execute([tensor(graph)])
        assert count(graph, 1) == 4, "nothing was executed, nothing was lost"


def test_a_tensor_given_twice_is_refused() -> None:
    with running() as graph:
        _, x = raw("x")
        with refused(Code.GRAPH_INVALID_TENSOR, "'x': it is given twice"):
            graph.execute([x, x])


def test_an_output_must_be_writable() -> None:
    with running() as graph, refused(Code.COMMON_INVALID_ARGUMENT, "tensor 'y': its memory is read-only"):
        graph.execute([], [ClientTensor("y", bytes(BYTES))])


def test_a_closed_buffer_is_refused_also_when_it_was_used_before() -> None:
    with running() as graph:
        source, x = raw("x", 1)
        graph.execute([x])
        source.close()
        with refused(Code.COMMON_INVALID_ARGUMENT, "closed"):
            graph.execute([x])
        assert count(graph, 1) == 6


def test_an_output_over_a_part_of_an_input_is_refused() -> None:
    with running() as graph, memory.host(512, 128) as buffer:
        x = ClientTensor("x", buffer.window(0, 256))
        with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'y' .*overlaps that of tensor 'x'"):
            graph.execute([x], [ClientTensor("y", buffer.window(128, 256))])


@pytest.mark.parametrize("pool", ["scratch", "persistent"])
def test_io_in_a_pool_is_refused_with_its_owner(pool) -> None:
    with qnn.Backend("lpai") as backend:
        graph, other = counter(backend.create_context()), counter(backend.create_context(), "other")
        held = dict(zip(("scratch", "persistent"), ready(backend, graph), strict=True))[pool]
        ready(backend, other)
        with refused(Code.GRAPH_INVALID_TENSOR, f"tensor 'x' of graph 'other'.*{pool} memory of graph 'counter'"):
            other.execute([ClientTensor("x", held.array)])
        assert count(other, 1) == 4


def test_the_planned_place_may_be_named_as_a_buffer() -> None:
    with running() as graph:
        graph.inputs["x"][...] = 1
        graph.execute([ClientTensor("x", graph.inputs["x"])], [ClientTensor("y", graph.outputs["y"])])
        assert (graph.outputs["y"] == 4).all()


def test_io_cannot_be_closed_while_an_execution_runs() -> None:
    with running() as graph:
        source, x = raw("x", 1)
        began, go_on = threading.Event(), threading.Event()
        real = graph.driver._executor.run
        graph.driver._executor.run = lambda: (began.set(), go_on.wait(PATIENCE), real())
        thread = threading.Thread(target=graph.execute, args=([x],))
        thread.start()
        assert began.wait(PATIENCE)
        with refused(Code.COMMON_OPERATION_NOT_PERMITTED, "memory of tensor 'x' of graph 'counter'"):
            source.close()
        go_on.set()
        thread.join()
        source.close()
        assert (graph.outputs["y"] == 4).all()


def test_changing_buffers_and_scratch_leaves_nothing_behind() -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        scratch, _ = ready(backend, graph)
        scratches = [scratch, memory.host(scratch.nbytes, 128)]
        buffers = [raw("x", 1)[1] for _ in range(3)]
        mine, before = descriptors(), held()
        for step in range(60):
            graph.set_config(lpai.SCRATCH_MEM, ddr(scratches[step % 2]))
            graph.execute([buffers[step % 3]])
        uses = [holder for holder in holds_since(before) if "executing" in holder]
        assert len(uses) == 3, "one use for each choice of buffers"
        assert not opened_since(mine)
        assert graph.stats.in_place_bytes == {"raw": 60 * BYTES, "scratch": 60 * BYTES}


# -- shared buffers ----------------------------------------------------------------------------------------------------


@pytest.fixture
def shared():
    """A shared buffer of a page, and another mapping of the same memory."""
    fd = os.memfd_create("io", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    with mmap.mmap(fd, 4096) as window:
        yield fd, window
    os.close(fd)


def descriptor(fd, offset=0, dims=(1, WIDTH), dtype=DataType.FLOAT_32):
    return MemDescriptor(dims, dtype, DescriptorType.CUSTOM, custom=lpai.MemInfo(fd, offset))


def test_shared_buffers_are_used_in_place(shared) -> None:
    fd, window = shared
    with running() as graph:
        x, y = graph.context.mem_register([descriptor(fd), descriptor(fd, 1024)])
        window[:BYTES] = np.ones(WIDTH, np.float32).tobytes()
        tensors = [ClientTensor("x", mem_handle=x)], [ClientTensor("y", mem_handle=y)]
        graph.execute(*tensors)
        assert (np.frombuffer(window[1024 : 1024 + BYTES], np.float32) == 4).all(), "seen through another mapping"
        graph.execute(*tensors)
        assert graph.stats.copied_bytes == 0
        assert graph.stats.in_place_bytes == {"shared": 4 * BYTES}


def test_shared_buffers_that_overlap_are_noticed(shared) -> None:
    with running() as graph:
        x, y = graph.context.mem_register([descriptor(shared[0]), descriptor(shared[0], 128)])
        with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'y' .*overlaps that of tensor 'x'"):
            graph.execute([ClientTensor("x", mem_handle=x)], [ClientTensor("y", mem_handle=y)])
        assert count(graph, 1) == 4


def test_registering_a_thousand_times_leaves_nothing_behind(shared) -> None:
    inode = os.fstat(shared[0]).st_ino

    def mappings():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return sum(line.split()[4] == str(inode) for line in maps)

    def once(graph):
        handles = graph.context.mem_register([descriptor(shared[0]), descriptor(shared[0], 1024)])
        graph.execute([ClientTensor("x", mem_handle=handles[0])], [ClientTensor("y", mem_handle=handles[1])])
        graph.context.mem_deregister(handles)

    with running() as graph:
        before = descriptors(), mappings()
        once(graph)
        after_one = descriptors(), mappings()
        for _ in range(1000):
            once(graph)
        assert (opened_since(after_one[0]), mappings()) == ([], after_one[1]), "one mapping, however often"
    del graph
    assert (opened_since(before[0]), mappings()) == ([], before[1])


def test_deregistered_and_foreign_handles_are_refused(shared) -> None:
    fd, _ = shared
    with running() as graph, running() as other:
        [x] = graph.context.mem_register([descriptor(fd)])
        tensor = ClientTensor("x", mem_handle=x)
        graph.execute([tensor])
        with refused(Code.MEM_INVALID_HANDLE, "another context"):
            other.execute([tensor])
        graph.context.mem_deregister([x])
        with refused(Code.MEM_INVALID_HANDLE, "deregistered"):
            graph.execute([tensor])
        [again] = graph.context.mem_register([descriptor(fd)])
        graph.execute([ClientTensor("x", mem_handle=again)])


def test_registering_is_atomic_and_deregistering_is_not(shared) -> None:
    fd, _ = shared
    with running() as graph:
        context = graph.context
        with refused(Code.MEM_INVALID_SHAPE, "descriptor 1: bytes 4000 to 4160 are outside a buffer of 4096"):
            context.mem_register([descriptor(fd), descriptor(fd, 4000)])
        [x] = context.mem_register([descriptor(fd)])
        with refused(Code.MEM_ALREADY_REGISTERED, r"descriptor 0: offset 0 .* as handle 2 \(FLOAT_32\[1, 40\]\)"):
            context.mem_register([descriptor(fd)])
        [y] = context.mem_register([descriptor(fd, 1024)])
        with refused(Code.MEM_INVALID_HANDLE, r"\[1\] of the list"):
            context.mem_deregister([x, None, y])
        assert len(context.mem_register([descriptor(fd), descriptor(fd, 1024)])) == 2


@pytest.mark.parametrize(
    ("make", "code", "rule"),
    [
        (lambda fd: descriptor(-1), Code.MEM_INVALID_ARGUMENT, "-1 is not one"),
        (lambda fd: descriptor(99999), Code.MEM_INVALID_ARGUMENT, "99999 cannot be used"),
        (lambda fd: descriptor(fd, -4), Code.MEM_INVALID_ARGUMENT, "offset -4"),
        (lambda fd: descriptor(fd, 1 << 32), Code.MEM_INVALID_ARGUMENT, "32 bits"),
        (lambda fd: descriptor(fd, 4096), Code.MEM_INVALID_SHAPE, "outside a buffer of 4096"),
        (lambda fd: MemDescriptor((1,), DataType.INT_8, DescriptorType.ION, fd), Code.MEM_UNSUPPORTED_MEMTYPE, "ION"),
        (
            lambda fd: MemDescriptor((1,), DataType.INT_8, DescriptorType.CUSTOM, custom=fd),
            Code.MEM_INVALID_ARGUMENT,
            "must be a MemInfo",
        ),
    ],
)
def test_memory_that_cannot_be_shared_is_refused(shared, make, code, rule) -> None:
    with running() as graph:
        with refused(code, rule):
            graph.context.mem_register([make(shared[0])])
        assert count(graph, 1) == 4


def test_pipes_and_files_are_no_shared_memory(tmp_path) -> None:
    read, write = os.pipe()
    with running() as graph, open(tmp_path / "file", "w+b") as file:
        file.truncate(4096)
        for fd in (read, file.fileno()):
            with refused(Code.MEM_INVALID_ARGUMENT, "not shared memory"):
                graph.context.mem_register([descriptor(fd)])
    os.close(read)
    os.close(write)


@pytest.mark.parametrize(
    ("given", "code", "rule"),
    [
        ({"dims": (1, WIDTH // 2)}, Code.MEM_INVALID_SHAPE, r"registered as FLOAT_32\[1, 20\]"),
        ({"dtype": DataType.INT_32}, Code.MEM_INVALID_SHAPE, "registered as INT_32"),
        ({"offset": 64}, Code.GRAPH_INVALID_TENSOR, "not a multiple of 128"),
    ],
)
def test_a_handle_must_fit_its_tensor(shared, given, code, rule) -> None:
    with running() as graph:
        [x] = graph.context.mem_register([descriptor(shared[0], **given)])
        with refused(code, rule):
            graph.execute([ClientTensor("x", mem_handle=x)])
        assert count(graph, 1) == 4


def test_shared_memory_can_hold_a_pool(shared) -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        _, window = shared
        graph.get_property(lpai.SCRATCH_MEM_SIZE)
        scratch = np.frombuffer(window, np.uint8)[: graph.get_property(lpai.SCRATCH_MEM_SIZE)]
        graph.set_config(lpai.SCRATCH_MEM, ddr(scratch))
        graph.set_config(lpai.PERSISTENT_MEM, ddr(memory.host(graph.get_property(lpai.PERSISTENT_MEM_SIZE), 128)))
        graph.finalize()
        assert count(graph, 1) == 4
    del scratch, graph


def test_a_registered_buffer_is_not_freed_before_it_is_deregistered() -> None:
    buffer = rpcmem.alloc(25, 1, 4096)
    with running() as graph:
        [x] = graph.context.mem_register([descriptor(buffer.fd)])
        with refused(Code.COMMON_OPERATION_NOT_PERMITTED, r"memory of handle 1 \(FLOAT_32\[1, 40\]\)"):
            rpcmem.free(buffer)
        graph.execute([ClientTensor("x", mem_handle=x)])
        graph.context.mem_deregister([x])
        rpcmem.free(buffer)
    other = rpcmem.alloc(25, 1, 4096)
    with running() as graph:
        graph.context.mem_register([descriptor(other.fd)])
    rpcmem.free(other)


@pytest.mark.parametrize("dims", [(1, -1, 257), (0,), (1, 40.0), (True, 40), "40", 40, ("1", "40")])
def test_dimensions_other_than_positive_integers_are_refused(shared, dims) -> None:
    with running() as graph, refused(Code.MEM_INVALID_SHAPE, "must be positive integers"):
        graph.context.mem_register([descriptor(shared[0], dims=dims)])


def test_dimensions_and_offsets_may_be_lists_and_numpys_numbers(shared) -> None:
    fd, _ = shared
    with running() as graph:
        [x] = graph.context.mem_register([descriptor(np.int32(fd), np.int64(128), [np.int64(1), np.int32(WIDTH)])])
        graph.execute([ClientTensor("x", mem_handle=x)])
        assert (graph.outputs["y"] == 2).all()


def test_an_input_begins_where_the_start_alignment_says_not_the_size_alignment() -> None:
    with running({"lpai_backend": {"enable_hw_ver": "v4"}}) as graph:
        assert graph.context.backend.get_property(lpai.ALIGNMENT_REQ) == lpai.BufferAlignmentReq(64, 8)
        room = memory.host(512, 128).array
        with refused(Code.GRAPH_INVALID_TENSOR, "not a multiple of 64"):
            graph.execute([ClientTensor("x", room[8 : 8 + BYTES])])
        graph.execute([ClientTensor("x", room[64 : 64 + BYTES])])


@pytest.mark.parametrize(("version", "start"), [("v4", 64), ("v5", 64), ("v6", 128)])
def test_an_output_begins_where_the_start_alignment_says_and_a_refused_one_is_not_written(version, start) -> None:
    with running({"lpai_backend": {"enable_hw_ver": version}}) as graph:
        room = memory.host(1024, 128).array
        for wrong in (4, start // 2, start + 8):
            with refused(Code.GRAPH_INVALID_TENSOR, f"tensor 'y' .*not a multiple of {start}"):
                graph.execute([], [ClientTensor("y", room[wrong : wrong + BYTES])])
        assert not room.any()
        graph.inputs["x"][...] = 1
        graph.execute([], [ClientTensor("y", room[start : start + BYTES])])
        assert (room[start : start + BYTES].view(np.float32) == 4).all(), "the refused executions changed no state"


@pytest.mark.parametrize(
    ("nbytes", "right"), [(BYTES, True), (256, True), (384, True), (BYTES + 8, False), (250, False)]
)
def test_a_buffer_has_the_tensors_size_or_a_multiple_of_the_size_alignment(nbytes, right) -> None:
    larger = memory.host(1000, 128)
    with running() as graph:
        for given in (ClientTensor("x", larger, nbytes=nbytes), ClientTensor("x", larger.address, nbytes=nbytes)):
            if right:
                graph.execute([given])
            else:
                rule = f"{nbytes} bytes, neither the tensor's {BYTES} nor a multiple of 128"
                with refused(Code.GRAPH_INVALID_TENSOR, rule):
                    graph.execute([given])


def brought(kind, nbytes, context):
    """The tensor x in new memory of `nbytes` bytes, named in one of the ways whose allocation is known."""
    if kind == "registered":
        x = context.graphs["counter"].input_tensors[0]
        shared = rpcmem.alloc(25, 1, nbytes)
        info = lpai.MemInfo(shared.fd)
        [handle] = context.mem_register([qnn.MemDescriptor(x.dims, x.dtype, qnn.DescriptorType.CUSTOM, custom=info)])
        return ClientTensor("x", mem_handle=handle)
    if kind == "mapping":
        return ClientTensor("x", mmap.mmap(-1, nbytes))
    buffer = memory.host(nbytes, 128)
    if kind == "view":
        return ClientTensor("x", buffer.view(np.float32, (1, WIDTH)))
    return ClientTensor("x", buffer if kind == "buffer" else buffer.window(0, BYTES))


@pytest.mark.parametrize("kind", ["buffer", "window", "view", "mapping", "registered"])
def test_an_allocation_has_the_size_of_its_tensor_rounded_up(kind) -> None:
    # Where the size of the whole allocation is known, the tensor's 160 bytes must be rounded up to a multiple of 128.
    with running() as graph:
        graph.execute([brought(kind, 256, graph.context)])
        with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'x'.*bytes, (256 are needed|neither .* nor a multiple)"):
            graph.execute([brought(kind, 255, graph.context)])
        with refused(Code.GRAPH_INVALID_TENSOR, f"has {BYTES} bytes, 256 are needed: the tensor's {BYTES} as a"):
            graph.execute([brought(kind, BYTES, graph.context)])


def test_an_array_or_a_pointer_of_exactly_the_tensors_size_is_taken_as_in_the_documents_sample() -> None:
    """Of an array or a pointer only the given size is known, and QNN's LPAI sample gives the tensor's own size.

    So it is accepted, though an allocation must have the size rounded up to the size alignment.
    """
    room = np.zeros(256 + BYTES, np.uint8)
    start = -room.ctypes.data % 128
    array = room[start : start + BYTES].view(np.float32).reshape(1, WIDTH)
    with running() as graph:
        array[...] = 1
        graph.execute([ClientTensor("x", array)])
        assert (graph.outputs["y"] == 4).all()  # twice the sum of the state, 1, and the input
        graph.execute([ClientTensor("x", array.ctypes.data, nbytes=BYTES)])
        assert (graph.outputs["y"] == 6).all()  # the state is 2 now


def test_a_pointer_object_is_no_memory() -> None:
    with running({"lpai_backend": {"start_addr_alignment": 1, "size_alignment": 1}}) as graph:
        target = (ctypes.c_uint8 * BYTES)()
        for pointer in (ctypes.c_void_p(ctypes.addressof(target)), ctypes.cast(target, ctypes.POINTER(ctypes.c_uint8))):
            value = ctypes.cast(pointer, ctypes.c_void_p).value
            with pytest.raises(QnnError, match="is a pointer, not the memory it points to"):
                graph.execute([], [ClientTensor("y", pointer)])
            assert ctypes.cast(pointer, ctypes.c_void_p).value == value
        graph.execute([], [ClientTensor("y", ctypes.addressof(target), nbytes=BYTES)])
        assert np.frombuffer(target, np.float32)[0] == 2


@pytest.mark.parametrize("address", [0, -128, (1 << 64) - 128, 1 << 64, 4096])
def test_an_address_that_is_no_memory_is_refused(address) -> None:
    with running() as graph:
        with pytest.raises(QnnError, match="tensor 'y'"):
            graph.execute([], [ClientTensor("y", address, nbytes=256)])
        assert count(graph, 1) == 4


def test_memory_that_became_somebodys_pool_is_no_longer_written() -> None:
    with qnn.Backend("lpai") as backend:
        graph, other = counter(backend.create_context()), counter(backend.create_context(), "other")
        ready(backend, graph)
        scratch, persistent = pools(backend, other)
        outputs = [ClientTensor("y", persistent)]
        graph.execute([], outputs)
        binding = graph.bind([], outputs)
        other.set_config({lpai.SCRATCH_MEM: ddr(scratch), lpai.PERSISTENT_MEM: ddr(persistent)})
        other.finalize()
        for run in (lambda: graph.execute([], outputs), binding.execute):
            with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'y' .*overlaps the persistent memory of graph 'other'"):
                run()
        assert count(other, 1) == 4


def test_memory_that_becomes_a_pool_in_the_moment_it_is_checked_is_not_written(monkeypatch) -> None:
    with running() as graph:
        result, y = raw("y", 7)
        binding = graph.bind([], [y])
        real, claimed = holds.use, []

        def use(window, holder, active):
            if not claimed:
                claimed.append(holds.claim(result.window(), "pool", "pool of somebody else"))
            return real(window, holder, active)

        monkeypatch.setattr(holds, "use", use)
        holds.record_change()
        with refused(Code.GRAPH_INVALID_TENSOR, "tensor 'y' .*overlaps the pool of somebody else"):
            binding.execute()
        assert (floats(result) == 7).all()
        claimed[0].release()
        binding.execute()
        assert (floats(result) == 2).all()


def test_the_same_memory_at_another_address_is_recognized() -> None:
    buffer = rpcmem.alloc(25, 1, 8192)
    with qnn.Backend("lpai") as backend, mmap.mmap(buffer.fd, 8192) as twin:
        graph = counter(backend.create_context())
        scratch, persistent = (pool.nbytes for pool in pools(backend, graph))
        graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch, buffer))
        with refused(Code.GRAPH_INVALID_ARGUMENT, "overlaps the scratch memory of graph 'counter'"):
            graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, persistent, twin))
        apart = buffer.array[4096 : 4096 + persistent]
        graph.set_config(lpai.PERSISTENT_MEM, lpai.Mem(lpai.MemType.DDR, persistent, apart))
        graph.finalize()
        with refused(Code.GRAPH_INVALID_TENSOR, "overlaps the persistent memory of graph 'counter'"):
            graph.execute([], [ClientTensor("y", memoryview(twin)[4096:4352])])
        [y] = graph.context.mem_register([descriptor(buffer.fd, 4096)])
        with refused(Code.GRAPH_INVALID_TENSOR, "overlaps the persistent memory of graph 'counter'"):
            graph.execute([], [ClientTensor("y", mem_handle=y)])
        assert count(graph, 1) == 4
        backend.free()
        gc.collect()


def test_a_shared_buffer_that_can_be_sealed_cannot_be_cut_once_it_is_registered(shared) -> None:
    fd, window = shared
    with running() as graph:
        [x] = graph.context.mem_register([descriptor(fd)])
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        window[:BYTES] = np.ones(WIDTH, np.float32).tobytes()
        graph.execute([ClientTensor("x", mem_handle=x)])


@pytest.mark.parametrize("kind", ["memfd", "/dev/shm"])
def test_a_shared_buffer_that_can_be_cut_is_refused_where_this_process_would_work_in_it(kind) -> None:
    name = f"/dev/shm/isthmus-test-cut-{os.getpid()}"
    fd = os.memfd_create("cut") if kind == "memfd" else os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.ftruncate(fd, 4096)
        with running() as graph:
            with refused(Code.MEM_INVALID_ARGUMENT, "can be made smaller while it is used"):
                graph.context.mem_register([descriptor(fd)])
            with refused(Code.MEM_INVALID_ARGUMENT, "can be made smaller while it is used"):
                graph.execute([ClientTensor("x", SharedFd(fd, 0, BYTES))])
            os.ftruncate(fd, 0)
            graph.execute()
    finally:
        os.close(fd)
        if kind != "memfd":
            os.unlink(name)
