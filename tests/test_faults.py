"""Injected faults: the accelerator dies, cannot map, memory or descriptors run out, at the call that the test chose."""

from __future__ import annotations

import os
import pickle
import resource as limits
import subprocess
import sys
import time
from functools import partial

import pytest
from support import tiny
from support.interruption import check_every_interrupt

import isthmus
from isthmus import QnnError, faults, memory, qnn
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.compiled.folder import Folder
from isthmus.errors import Code
from isthmus.memory import resource, rpcmem
from isthmus.qnn import DescriptorType, MemDescriptor

DIMS = (1, 16)
NBYTES = 64


def composed(context, name="double", mem_type=qnn.TensorMemType.RAW):
    """Return a graph that doubles its input 'x' into 'y'."""
    graph = context.create_graph(name)
    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, DIMS, mem_type=mem_type)
    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, DIMS, mem_type=mem_type)
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    return graph


def described(buffer):
    """Describe a buffer that belongs to one tensor."""
    return MemDescriptor(DIMS, qnn.DataType.FLOAT_32, DescriptorType.ION, fd=buffer.fd)


def executions(backend, count):
    """Execute a graph of a new context several times and return the code of each: 0, or an error's."""
    memory = composed(backend.create_context()).allocate()
    memory.inputs["x"][...] = 1
    codes = []
    for _ in range(count):
        memory.outputs["y"][...] = 0
        try:
            memory.binding.execute()
            codes.append(0)
        except QnnError as error:
            codes.append(int(error.code))
        assert (memory.outputs["y"] == (0 if codes[-1] else 2)).all()
    return codes


@pytest.mark.parametrize("name", ["htp", "lpai"])
def test_the_accelerator_dies_once_at_the_chosen_execution(name) -> None:
    config = {"lpai_backend": {"target_env": "arm"}} if name == "lpai" else None
    with isthmus.audit() as log, faults.inject("ssr@3, ssr@6"), qnn.Backend(name, config) as backend:
        assert executions(backend, 4) == [0, 0, 1007, 1007]
        # The fourth execution counts too, though it failed.
        assert executions(backend, 3) == [0, 1007, 1007], "a new context starts a new accelerator"
        assert executions(backend, 5) == 5 * [0]
    assert log.faults == ["ssr@3", "ssr@6"]


def test_memory_that_cannot_be_mapped_is_refused_and_nothing_is_registered() -> None:
    with faults.inject("map@2"), qnn.Backend("htp") as backend:
        context = backend.create_context()
        with rpcmem.alloc(25, 1, NBYTES) as first, rpcmem.alloc(25, 1, NBYTES) as second:
            with pytest.raises(QnnError, match=r"8003 MEM_MAPPING.*fault 'map@2' was injected"):
                context.mem_register([described(first), described(second)])
            handles = context.mem_register([described(first), described(second)])
            context.mem_deregister(handles)


def test_a_chosen_allocation_of_shared_memory_fails() -> None:
    with faults.inject("alloc@2,alloc@4"), qnn.Backend("cpu"):
        for number in range(1, 6):
            if number in (2, 4):
                with pytest.raises(QnnError, match=f"COMMON_MEM_ALLOC.*fault 'alloc@{number}' was injected"):
                    rpcmem.alloc(25, 1, NBYTES)
            else:
                rpcmem.alloc(25, 1, NBYTES).close()
            memory.host(NBYTES).close()


def test_the_process_runs_out_of_descriptors_and_has_them_again_after_the_block() -> None:
    before = limits.getrlimit(limits.RLIMIT_NOFILE)
    with faults.inject("fds@3"):
        taken = [os.dup(0), os.dup(0)]
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        with pytest.raises(QnnError, match=r"1002.*Too many open files \(fault 'fds@3' was injected\)"):
            rpcmem.alloc(25, 1, NBYTES)
    assert limits.getrlimit(limits.RLIMIT_NOFILE) == before
    assert QnnError(Code.COMMON_GENERAL, "file", "Too many open files").rule == "Too many open files"
    for fd in taken:
        os.close(fd)
    with faults.inject("fds@999999999"):
        os.close(os.dup(0))


@pytest.mark.parametrize(("backend", "what"), [("htp", "accelerator process"), ("cpu", "model file")])
def test_an_api_call_without_descriptors_fails_with_one_code_that_names_the_fault(tmp_path, backend, what) -> None:
    model = tmp_path / "model.onnx"
    tiny.convolution(model)
    with isthmus.Session(model, backend=backend):
        "Everything that is loaded on demand is loaded."
    injected = rf"\[1010 .*{what}.*Too many open files \(fault 'fds@1' was injected\)"
    with faults.inject("fds@1"), pytest.raises(QnnError, match=injected):
        isthmus.Session(model, backend=backend)


def test_compiled_code_that_cannot_be_read_for_lack_of_descriptors_has_the_same_code(tmp_path) -> None:
    with faults.inject("fds@1"), pytest.raises(QnnError, match=r"\[1010 .*cache.*fault 'fds@1' was injected"):
        Folder(tmp_path).read("kernel", "")


def test_of_faults_in_each_other_the_inner_one_is_named() -> None:
    error = partial(QnnError, Code.COMMON_GENERAL, "file", "Too many open files")
    with faults.inject("fds@7"):
        with faults.inject("fds@5,fds@3"):
            assert error().rule.endswith("(fault 'fds@3' was injected)")
        assert error().rule.endswith("(fault 'fds@7' was injected)")
        copied = pickle.loads(pickle.dumps(error()))
        assert copied.rule.count("injected") == 1


def test_an_interrupt_anywhere_in_a_block_of_faults_leaves_none_of_them() -> None:
    def state():
        rules = dict(faults.causes), faults.active, os.environ.get(faults.VARIABLE)
        return limits.getrlimit(limits.RLIMIT_NOFILE), *rules, [memory.current(kind) for kind in resource.kinds()]

    def action():
        with faults.inject("fds@40,alloc@2,alloc@3"), memory.rpcmem.alloc(25, 1, 64):
            pass

    before = state()

    def check(where):
        assert state() == before, where

    assert check_every_interrupt(action, check) > 100


def test_a_lack_of_descriptors_is_reported_when_it_is_in_force() -> None:
    with isthmus.audit() as log, faults.inject("fds@500"):
        assert log.faults == ["fds@500"]


def test_a_slow_unmap_delays_each_deregistration() -> None:
    with faults.inject("slow-unmap=100ms"), qnn.Backend("htp") as backend, rpcmem.alloc(25, 1, NBYTES) as buffer:
        context = backend.create_context()
        for _ in range(2):
            handles = context.mem_register([described(buffer)])
            begin = time.monotonic()
            context.mem_deregister(handles)
            assert time.monotonic() - begin >= 0.1


@pytest.mark.parametrize("io", ["memhandle", "raw"])
def test_a_slow_unmap_delays_the_end_of_a_session(tmp_path, io) -> None:
    tiny.convolution(tmp_path / "model.onnx")
    with isthmus.audit() as log, faults.inject("slow-unmap=100ms"):
        session = isthmus.Session(tmp_path / "model.onnx", backend="htp", io=io)
        session.run()
        assert log.faults == []
        begin = time.monotonic()
        session.close()
        assert time.monotonic() - begin >= 0.1
    assert log.faults == ["slow-unmap=100ms"], "all memory of a session is deregistered in one call"


def test_memory_that_a_graph_was_given_is_deregistered_before_its_context_is_freed() -> None:
    with isthmus.audit() as log, qnn.Backend("htp") as backend:
        context = backend.create_context()
        accelerator = context.driver.queue.accelerator
        first, second = (
            composed(context, name, qnn.TensorMemType.MEMHANDLE).allocate("memhandle") for name in ("first", "second")
        )
        assert accelerator.counts()["memory"] == 4
        first.close()
        assert accelerator.counts()["memory"] == 2, "with its own close"
        context.free()
        assert accelerator.counts()["memory"] == 0, "with the context"
        second.close()
    actions = [event.action.value for event in log.events]
    assert actions.count("deregister") == actions.count("register") > 0
    assert not log.mistakes


def test_without_faults_nothing_differs() -> None:
    with faults.inject("ssr@1"):
        pass
    assert faults.active is None
    with qnn.Backend("htp") as backend:
        queue = backend.create_context().driver.queue
        assert (type(queue), type(queue.accelerator)) == (Queue, Accelerator)


def test_blocks_inside_each_other_count_by_themselves() -> None:
    with faults.inject("ssr@2"), qnn.Backend("htp") as backend:
        assert executions(backend, 1) == [0]
        with faults.inject("ssr@1"):
            assert os.environ[faults.VARIABLE] == "ssr@1"
            assert executions(backend, 1) == [1007]
        assert executions(backend, 1) == [1007]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("srs@3", "fault 'srs@3' is unknown; known are ssr@N, map@N, alloc@N, fds@N, slow-unmap=TIME. "
                  "Did you mean 'ssr@N'?"),
        ("slow_unmap=1s", "Did you mean 'slow-unmap=TIME'?"),
        ("ssr", "fault 'ssr' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3."),
        ("ssr@", "fault 'ssr@' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3."),
        ("ssr@0", "fault 'ssr@0' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3."),
        ("ssr@-1", "fault 'ssr@-1' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3."),
        ("ssr@x", "fault 'ssr@x' is not of the form ssr@N. N is 1 to 999,999,999, as in ssr@3."),
        ("map@1.5", "fault 'map@1.5' is not of the form map@N"),
        ("ssr@1,ssr=2", "fault 'ssr=2' is not of the form ssr@N"),
        ("slow-unmap=200", "fault 'slow-unmap=200' is not of the form slow-unmap=TIME. "
                           "TIME is a number with us, ms, s, as in slow-unmap=200ms."),
        ("slow-unmap", "fault 'slow-unmap' is not of the form slow-unmap=TIME"),
        ("ssr@9999999999", "is not of the form"),
        ("x\ny@3", r"fault 'x\ny@3' is unknown"),
    ],
)  # fmt: skip
def test_a_malformed_fault_is_refused_in_one_line(text, message, monkeypatch) -> None:
    monkeypatch.setenv(faults.VARIABLE, text)
    with pytest.raises(QnnError) as refused:
        qnn.Backend("cpu")
    assert message in str(refused.value)
    assert "ISTHMUS_FAULTS" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert faults.active is None


def test_the_environment_injects_faults_into_a_program_that_is_not_changed() -> None:
    program = """
import numpy as np, sys
from isthmus import QnnError, qnn
x = np.zeros((1, 4), np.float32)
with qnn.Backend("htp") as backend:
    graph = backend.create_context().create_graph("g")
    a = graph.create_tensor("a", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, (1, 4))
    b = graph.create_tensor("b", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, (1, 4))
    graph.add_node("n", "Relu", [a], [b])
    graph.finalize()
    for _ in range(3):
        try:
            graph.execute([qnn.ClientTensor("a", x)], [qnn.ClientTensor("b", x.copy())])
            print("ran")
        except QnnError as error:
            print(error)
"""
    environment = {**os.environ, faults.VARIABLE: "ssr@2"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[0] == "ran"
    assert all("1007" in line and "fault 'ssr@2' was injected" in line for line in lines[1:])
