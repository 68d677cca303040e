"""The backend that calls the vendor's library: the same API, errors and counters. Our own library takes its place."""

from __future__ import annotations

import gc
import os
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
from support.suites import LONG
from support.waiting import PATIENCE, eventually, interrupted_when

from backends.vendor.harness import (
    ENDS,
    HANGS,
    NAME,
    REFUSES,
    REGISTERS_NOTHING,
    doubling,
    faulty,
    our_libraries,
    summing,
)
from isthmus import qnn
from isthmus.backends.vendor.library import VendorProcess, find
from isthmus.errors import Code, QnnError
from isthmus.memory import rpcmem
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor, htp


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return our_libraries(tmp_path_factory.mktemp("libraries"))


@pytest.fixture(scope="module")
def backend(library):
    with qnn.Backend(NAME, library=library) as made:
        yield made


@pytest.fixture(scope="module")
def context(backend):
    return backend.create_context()


@pytest.fixture(scope="module")
def graph(context):
    made = context.add_graph(doubling())
    made.finalize()
    return made


def test_raw_buffers_are_copied_and_counted(graph) -> None:
    x, y = np.arange(8, dtype=np.float32).reshape(1, 8), np.empty((1, 8), np.float32)
    with graph.bind([ClientTensor("x", x)], [ClientTensor("y", y)]) as binding:
        binding.execute()
        assert binding.stats.copied_in_bytes == x.nbytes
        assert binding.stats.copied_out_bytes == y.nbytes
    np.testing.assert_array_equal(y, x + x)


def test_registered_memory_is_used_in_place(context, graph) -> None:
    shared = rpcmem.share(64)
    places = [htp.Descriptor(64, shared.fd, offset) for offset in (0, 32)]
    handles = context.mem_register(
        MemDescriptor((1, 8), qnn.DataType.FLOAT_32, DescriptorType.CUSTOM, custom=place) for place in places
    )
    shared.view(np.float32, (8,))[...] = 3
    tensors = [ClientTensor(name, mem_handle=handle) for name, handle in zip("xy", handles, strict=True)]
    with graph.bind(tensors[:1], tensors[1:]) as binding:
        binding.execute()
        assert binding.stats.copied_bytes == 0
        assert binding.stats.in_place_bytes == {"shared": 64}
    assert (shared.view(np.float32, (16,))[8:] == 6).all()
    context.mem_deregister(handles)
    with pytest.raises(QnnError) as refusal:
        graph.bind(tensors[:1], tensors[1:])
    assert refusal.value.code is Code.MEM_INVALID_HANDLE
    shared.close()


@LONG
def test_a_library_that_registers_no_memory_is_named_in_one_line(library) -> None:
    with qnn.Backend(NAME, library=faulty(library, REGISTERS_NOTHING)) as backend, rpcmem.share(64) as shared:
        custom = htp.Descriptor(64, shared.fd, 0)
        with pytest.raises(QnnError, match=r"registers no memory on this machine.*memRegister answers 1000") as refusal:
            backend.create_context().mem_register(
                [MemDescriptor((1, 8), qnn.DataType.FLOAT_32, DescriptorType.CUSTOM, custom=custom)]
            )
        assert refusal.value.code is Code.COMMON_NOT_SUPPORTED
        assert "\n" not in str(refusal.value)


def test_states_last_from_one_execution_to_the_next(backend) -> None:
    graph = backend.create_context().add_graph(summing())
    memory = graph.allocate()
    seen = []
    for value in (1, 2):
        memory.inputs["x"][...] = value
        memory.binding.execute()
        seen.append(float(memory.outputs["y"][0, 0]))
    graph.reset()
    memory.binding.execute()
    assert [*seen, float(memory.outputs["y"][0, 0])] == [11, 13, 12]
    memory.close()


def test_a_context_binary_restores_the_graph(backend, context, graph) -> None:
    restored = backend.create_context_from_binary(context.get_binary()).retrieve("doubling")
    assert [info.dims for info in restored.info.tensors] == [(1, 8), (1, 8)]
    memory = restored.allocate()
    memory.inputs["x"][...] = 4
    memory.binding.execute()
    assert (memory.outputs["y"] == 8).all()
    memory.close()


@LONG
def test_bytes_that_are_no_binary_are_refused(backend) -> None:
    with pytest.raises(QnnError):
        backend.create_context_from_binary(b"no binary of anything")
    with pytest.raises(QnnError, match="neither a path nor bytes"):
        backend.create_context_from_binary(7)


def test_an_operation_is_validated_by_the_library(backend) -> None:
    graph = doubling("validated")
    node = graph.nodes[0]
    backend.validate_op_config("add", "ElementWiseAdd", node.inputs, node.outputs)
    with pytest.raises(QnnError, match="no Erf"):
        backend.validate_op_config("erf", "Erf", node.inputs[:1], node.outputs)


def test_the_end_of_the_library_names_the_function_and_ends_only_its_context(library) -> None:
    with qnn.Backend(NAME, library=faulty(library, ENDS)) as backend:
        context = backend.create_context()
        graph = context.add_graph(doubling())
        how = r"ended the process \(SIGABRT\) in graphFinalize"
        with pytest.raises(QnnError, match=how) as end:
            graph.finalize()
        assert end.value.code is Code.COMMON_SYSTEM_COMMUNICATION
        # A new context has a process of its own.
        assert backend.create_context().driver.process().alive


@LONG
def test_a_library_that_hangs_is_ended_after_the_timeout(library) -> None:
    with qnn.Backend(NAME, {NAME: {"timeout": 1}}, library=faulty(library, HANGS)) as backend:
        context = backend.create_context()
        pid = context.driver.process().pid
        with pytest.raises(QnnError, match="did not return from graphFinalize") as late:
            context.add_graph(doubling()).finalize()
        assert late.value.code is Code.GRAPH_TIMED_OUT
        assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


@LONG
def test_an_interrupt_during_a_call_ends_the_process_and_loses_nothing(library) -> None:
    with qnn.Backend(NAME, library=faulty(library, HANGS)) as backend:
        context = backend.create_context()
        process = context.driver.process()
        graph = context.add_graph(doubling())
        with pytest.raises(KeyboardInterrupt), interrupted_when(lambda: process.stage == "graphFinalize"):
            graph.finalize()
        assert not process.alive
        assert not os.path.exists(f"/proc/{process.pid}")
        assert backend.create_context().driver.process().alive


@LONG
def test_a_refused_graph_does_not_spoil_its_context(library) -> None:
    with qnn.Backend(NAME, library=faulty(library, REFUSES)) as backend:
        graph = backend.create_context().add_graph(doubling())
        for _ in range(2):
            with pytest.raises(QnnError, match="graphFinalize answers 1002") as refusal:
                graph.finalize()
            assert refusal.value.code is Code.COMMON_MEM_ALLOC


@LONG
def test_the_process_ends_with_its_context(library) -> None:
    with qnn.Backend(NAME, library=library) as backend:
        context = backend.create_context()
        pid = context.driver.process().pid
        assert os.path.exists(f"/proc/{pid}")
        context.free()
        assert not os.path.exists(f"/proc/{pid}")


@LONG
def test_the_process_ends_when_its_parent_is_killed(library) -> None:
    """Its parent may be killed while the library is inside a call."""
    process = VendorProcess(find(library))
    # What the system does to the descriptors of a process that is killed.
    process._channel.close()
    process._child.wait(PATIENCE)
    process.close()
    assert not process.alive


def test_a_process_that_is_dropped_is_ended(library) -> None:
    process = VendorProcess(find(library))
    pid = process.pid
    del process
    assert eventually(lambda: not os.path.exists(f"/proc/{pid}"))


@pytest.mark.parametrize(
    ("config", "rule"),
    [
        ({"soc": "SM8250"}, "has no HTP"),
        ({"soc": "XX1"}, "no such chip"),
        ({"soc": "SM7350", "vtcm_mb": 4}, "chip SM7350 has 2 MB"),
        ({"optimization": 4}, "from 1 to 3"),
        ({"precision": "int3"}, "must be one of"),
        ({"hvx_threads": 0}, "from 1 to 64"),
    ],
)
def test_impossible_targets_are_refused_before_the_library_is_called(config, rule) -> None:
    with pytest.raises(QnnError, match=rule) as refusal:
        qnn.Backend(NAME, {NAME: config})
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG


def test_a_missing_library_says_what_to_install(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(QnnError, match=r"pip install 'isthmus\[qnn\]'") as refusal:
        qnn.Backend(NAME)
    assert "\n" not in str(refusal.value)
    with pytest.raises(QnnError, match="there is no such file"):
        qnn.Backend(NAME, library=tmp_path / "libQnnHtp.so")
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    with pytest.raises(QnnError, match="QNN_SDK_ROOT"):
        qnn.Backend(NAME)


def test_an_sdk_is_found_by_its_variable(monkeypatch, tmp_path) -> None:
    folder = tmp_path / "lib" / ("x86_64-linux-clang" if os.uname().machine == "x86_64" else "aarch64-android")
    folder.mkdir(parents=True)
    (folder / "libQnnHtp.so").touch()
    monkeypatch.setenv("QNN_SDK_ROOT", str(tmp_path))
    assert find().backend == folder / "libQnnHtp.so"
    assert find(folder).system == folder / "libQnnSystem.so"


def test_a_file_that_is_no_library_is_refused(tmp_path) -> None:
    (tmp_path / "libQnnHtp.so").write_bytes(b"not a library")
    with pytest.raises(QnnError, match="dlopen answers 1009"), qnn.Backend(NAME, library=tmp_path) as backend:
        backend.create_context()


def test_another_backend_refuses_a_library(tmp_path) -> None:
    with pytest.raises(QnnError, match=r"key 'htp\.library': there is no such key"):
        qnn.Backend("htp", library=tmp_path)


def test_a_freed_backend_leaves_no_descriptor_to_the_collector(library) -> None:
    gc.collect()
    gc.disable()
    try:
        before = open_files()
        for fault in (None, ENDS):
            chosen = library if fault is None else faulty(library, fault)
            with qnn.Backend(NAME, library=chosen) as backend:
                graph = backend.create_context().add_graph(doubling())
                with suppress(QnnError):
                    graph.finalize()
            assert open_files() - before == Counter()
    finally:
        gc.enable()


def open_files() -> Counter[str]:
    """Return what this process has open: sockets by their numbers, and memory by its name."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found[os.readlink(f"/proc/self/fd/{name}")] += 1
    return found
