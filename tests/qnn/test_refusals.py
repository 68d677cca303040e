"""Whatever a client passes, the answer is a QnnError that says what is wrong; what is dropped ends."""

import gc
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest
from support import tiny
from support.suites import long
from support.waiting import PATIENCE, eventually, run_in_threads

import isthmus
from isthmus import Code, QnnError, memory, qnn
from isthmus.memory import rpcmem
from isthmus.qnn import DataType, DescriptorType, MemDescriptor, TensorType, htp, lpai


@pytest.fixture(scope="module", params=["cpu", "htp", "lpai"])
def backend(request):
    with qnn.Backend(request.param) as backend:
        yield backend


@pytest.fixture
def context(backend):
    context = backend.create_context()
    yield context
    if context.alive:
        context.free()


@pytest.mark.parametrize("descriptors", [[5], [None], None, 7, [object()], []])
def test_what_is_no_memory_descriptor_is_refused(context, descriptors) -> None:
    with pytest.raises(QnnError) as refusal:
        context.mem_register(descriptors)
    assert refusal.value.code in (Code.MEM_INVALID_ARGUMENT, Code.COMMON_NOT_SUPPORTED)


def test_a_descriptor_of_no_tensor_is_refused() -> None:
    with rpcmem.alloc(25, 1, 4096) as buffer:
        for name, custom in (("htp", htp.Descriptor(4096, buffer.fd, 0)), ("lpai", lpai.MemInfo(buffer.fd, 0))):
            with qnn.Backend(name) as backend:
                context = backend.create_context()
                for dims, dtype in (
                    ((1, -1, 257), DataType.FLOAT_32),
                    ((0,), DataType.FLOAT_32),
                    ((1.5,), DataType.FLOAT_32),
                    (7, DataType.FLOAT_32),
                    ((4,), DataType.UNDEFINED),
                    ((4,), "float"),
                ):
                    with pytest.raises(QnnError) as refusal:
                        context.mem_register([MemDescriptor(dims, dtype, DescriptorType.CUSTOM, custom=custom)])
                    assert refusal.value.code is Code.MEM_INVALID_SHAPE, (name, dims, dtype)


def test_dimensions_may_be_lists_of_any_integers_and_types_may_be_numbers() -> None:
    with rpcmem.alloc(25, 1, 64) as buffer, qnn.Backend("htp") as backend:
        context = backend.create_context()
        descriptor = MemDescriptor([np.int64(4), 4], 0x0232, 1, fd=buffer.fd)
        [handle] = context.mem_register([descriptor])
        assert handle.descriptor.dims == (4, 4)
        assert handle.descriptor.mem_type is DescriptorType.ION
        context.mem_deregister([handle])


def test_an_unknown_memory_type_is_refused_as_one() -> None:
    with qnn.Backend("htp") as backend, pytest.raises(QnnError) as refusal:
        backend.create_context().mem_register([MemDescriptor((4,), DataType.FLOAT_32, 9)])
    assert refusal.value.code is Code.MEM_UNSUPPORTED_MEMTYPE


@pytest.mark.parametrize("mem_type", ["memhandle", 7, 1.5])
def test_a_model_is_not_composed_for_an_unknown_memory_type(context, tmp_path, mem_type) -> None:
    with pytest.raises(QnnError) as refusal:
        context.compose(tiny.gate(tmp_path / "gate.onnx"), mem_type=mem_type)
    assert refusal.value.code is Code.CONTEXT_INVALID_ARGUMENT


def test_a_tensor_takes_numbers_for_its_types_and_refuses_others(context) -> None:
    graph = context.create_graph("g")
    assert graph.create_tensor("x", 0, 0x0232, (1,), mem_type=1).mem_type is qnn.TensorMemType.MEMHANDLE
    for wrong in ({"type": 9}, {"dtype": 1}, {"mem_type": 5}):
        given = {"type": TensorType.APP_WRITE, "dtype": DataType.FLOAT_32, "mem_type": 0, **wrong}
        with pytest.raises(QnnError) as refusal:
            graph.create_tensor("y", given["type"], given["dtype"], (1,), mem_type=given["mem_type"])
        assert refusal.value.code is Code.TENSOR_INVALID_TENSOR_PARAM


def fail_in_held_memory():
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().create_graph("g")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 16))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 16))
        graph.add_node("relu", "Relu", [x], [y])
        with memory.host(graph.get_property(lpai.SCRATCH_MEM_SIZE), 128) as scratch:
            graph.set_config(lpai.SCRATCH_MEM, lpai.Mem(lpai.MemType.DDR, scratch.nbytes, scratch))
            raise ZeroDivisionError


def test_the_error_that_ended_a_block_is_the_one_that_is_seen() -> None:
    with pytest.raises(ZeroDivisionError):
        fail_in_held_memory()


def test_four_threads_that_finalize_one_graph_do_it_once(context) -> None:
    graph = context.create_graph("g")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 16))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 16))
    graph.add_node("relu", "Relu", [x], [y])
    buffers = context.backend.entry.io.pools(graph.driver)
    codes = []

    def finalize():
        try:
            graph.finalize()
            codes.append(Code.SUCCESS)
        except QnnError as refusal:
            codes.append(refusal.code)

    run_in_threads(lambda _: finalize(), range(4))
    assert sorted(codes) == [Code.SUCCESS, *[Code.GRAPH_FINALIZED] * 3]
    context.free()
    for buffer in buffers:
        buffer.close()


def test_a_backend_that_is_dropped_ends_with_a_warning() -> None:
    backends = [qnn.Backend("htp")]
    backends[0].create_context()
    pid = backends[0].get_property(htp.ACCELERATOR_PID)

    def drop() -> None:
        backends.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="backend 'htp' was never freed"):
        drop()
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


def test_a_session_that_is_dropped_ends_with_a_warning(tmp_path) -> None:
    kept = [isthmus.Session(tiny.gate(tmp_path / "gate.onnx"))]
    with pytest.warns(ResourceWarning, match="never closed"):
        kept.clear()


def test_a_context_cannot_be_created_on_a_backend_that_is_being_freed() -> None:
    for _ in range(3):
        backend = qnn.Backend("htp")
        outcome = []

        def create(backend=backend, outcome=outcome):
            try:
                outcome.append(backend.create_context())
            except QnnError as refusal:
                outcome.append(refusal)

        thread = threading.Thread(target=create)
        thread.start()
        backend.free()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        [result] = outcome
        assert isinstance(result, QnnError) or not result.alive
        assert backend.driver.device.pid is None


@pytest.mark.parametrize("ending", ["", *map(long, ("raise ValueError", "import sys; sys.exit(3)"))])
def test_a_program_that_frees_nothing_ends(tmp_path, ending) -> None:
    model = tiny.gate(tmp_path / "gate.onnx", 16)
    script = (
        "import isthmus, numpy as np; from isthmus import qnn;"
        f"s = isthmus.Session({str(model)!r}, backend='htp'); s.run();"
        "b = qnn.Backend('htp'); c = b.create_context(); "
        f"{ending or 'print(1)'}"
    )
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == {"": 0, "raise ValueError": 1}.get(ending, 3), ended.stderr


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_warning_that_is_an_error_does_not_keep_an_accelerator() -> None:
    backend = qnn.Backend("htp")
    backend.create_context()
    pid = backend.get_property(htp.ACCELERATOR_PID)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del backend
        gc.collect()
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


def test_junk_is_refused_with_a_code(context, tmp_path) -> None:
    graph = context.create_graph("g")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1,))
    calls = [
        lambda: context.compose(5),
        lambda: context.create_graph([]),
        lambda: context.create_graph(""),
        lambda: context.retrieve([]),
        lambda: graph.add_node("n", "Relu", None, None),
        lambda: graph.add_node("n", "Relu", [0], [x]),
        lambda: graph.add_node("n", "Relu", [x], "x"),
        lambda: graph.add_node("n", "Relu", [x], [x], params=5),
        lambda: graph.add_node("n", [], [x], [x]),
        lambda: graph.allocate([]),
        lambda: graph.execute(signal=5),
        lambda: graph.execute(profile=5),
        lambda: graph.execute_async(notify=5),
        lambda: qnn.Signal(5),
        lambda: qnn.Profile(5),
        lambda: context.backend.validate_op_config("n", "Relu", [5], [6]),
        lambda: memory.limit("x").__enter__(),
        lambda: memory.limit(-1).__enter__(),
        lambda: memory.fault(0).__enter__(),
        lambda: memory.fault(None).__enter__(),
        lambda: memory.current([]),
        lambda: memory.provide(None),
        lambda: memory.adopt(None),
        lambda: isthmus.Session(None),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(QnnError):
            assert call() is None, f"call {number} was taken"
