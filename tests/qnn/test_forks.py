"""A forked child learns at once that handles are its parent's, whatever other threads held, and can make its own."""

import gc
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support import tiny
from support.processes import in_child
from support.suites import long, only
from support.waiting import PATIENCE

import isthmus
from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType, TensorType
from isthmus.memory import holds, resource

WITH_LOCKS = tuple(str(Path(isthmus.__file__).parent / room) for room in ("qnn", "memory", "backends", "session.py"))
BACKENDS = {
    "cpu": None,
    "lpai": None,
    "lpai-adsp": {"lpai_backend": {"target_env": "adsp"}, "lpai_graph": {"execute": {"mem_type": "tcm"}}},
    "lpai-arm": {"lpai_backend": {"target_env": "arm"}},
    "htp": None,
}


def created(kind):
    return qnn.Backend(kind.partition("-")[0], BACKENDS[kind])


def doubling(context):
    graph = context.create_graph("doubling")
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    return graph


def doubled(allocated):
    allocated.inputs["x"][...] = 1, 2, 3, 4
    allocated.binding.execute()
    assert allocated.outputs["y"].tolist() == [[2, 4, 6, 8]]


def forked_elsewhere(action):
    """As `in_child`, but forked by another thread, which holds none of this thread's locks; a list of the code."""
    codes = []
    thread = threading.Thread(target=lambda: codes.append(in_child(action)))
    thread.start()
    thread.join(PATIENCE)
    return codes


class Paused:
    """A thread inside calls: it stops at every `stride`-th line of modules with locks, until the next iteration."""

    def __init__(self, action, stride):
        self._deed, self._stride, self._lines = action, stride, 0
        self._problems = []
        self._stopped, self._resumed = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run)

    def __iter__(self):
        self._thread.start()
        try:
            while self._stopped.acquire(timeout=PATIENCE) and self._stride:
                yield
                self._resumed.release()
        finally:
            self._stride = 0
            self._resumed.release()
            self._thread.join(PATIENCE)
        assert not self._problems

    def _run(self):
        sys.settrace(self._trace)
        try:
            self._deed()
        except Exception as problem:
            self._problems.append(problem)
        finally:
            sys.settrace(None)
            self._stride = 0
            self._stopped.release()

    def _trace(self, frame, event, argument):
        if not frame.f_code.co_filename.startswith(WITH_LOCKS):
            return None
        if event == "line":
            self._lines += 1
            if self._stride and self._lines % self._stride == 0:
                self._stopped.release()
                self._resumed.acquire()
        return self._trace


def forked_inside(work, stride, action):
    """Return the exit codes of children that are forked while another thread is inside `work`, up to a bad one."""
    codes = set()
    for _ in Paused(work, stride):
        codes.add(in_child(action))
        if any(codes):
            break
    return codes


def refused(action):
    with pytest.raises(QnnError, match="belongs to the process that this one was forked from") as refusal:
        action()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION


def everything(backend, context, graph, allocated):
    assert not graph.alive
    assert graph.is_inherited
    refused(graph.execute)
    refused(graph.bind)
    refused(graph.execute_async)
    refused(graph.reset)
    refused(lambda: graph.stats)
    refused(lambda: allocated.binding.stats)
    refused(allocated.binding.execute)
    refused(lambda: context.create_graph("more"))
    refused(backend.create_context)
    refused(lambda: qnn.Signal(backend))
    allocated.binding.close()
    allocated.close()
    context.free()
    backend.free()
    gc.collect()


@pytest.mark.parametrize(
    ("kind", "stride"),
    [("cpu", 97), long("cpu", 29), long("lpai", 29), long("lpai-adsp", 29), ("lpai-arm", 997)],
)
def test_a_child_is_refused_and_makes_its_own_wherever_another_thread_is(kind, stride, fresh_tcm) -> None:
    def child():
        everything(backend, context, graph, allocated)
        with created(kind) as mine:
            doubled(doubling(mine.create_context()).allocate())

    def work():
        allocated.binding.execute()
        graph.execute_async().result(PATIENCE)
        with backend.create_context() as other:
            doubled(doubling(other).allocate())

    with created(kind) as backend:
        context = backend.create_context()
        graph = doubling(context)
        allocated = graph.allocate()
        doubled(allocated)
        assert forked_inside(work, stride, child) == {0}
        doubled(allocated)


@pytest.mark.parametrize("stride", [5, long(1)])
def test_a_child_is_refused_by_handles_that_another_thread_is_adding_to_or_freeing(stride) -> None:
    def work():
        backend.create_context().free()
        context.free()

    def child():
        refused(lambda: qnn.Signal(backend))
        context.free()
        backend.free()

    with created("cpu") as backend:
        context = backend.create_context()
        assert forked_inside(work, stride, child) == {0}


@pytest.mark.parametrize("kind", only(["cpu", "htp"], ["cpu", "lpai", "lpai-adsp", "lpai-arm", "htp"]))
def test_a_child_forked_while_another_thread_executes_is_refused(kind, fresh_tcm) -> None:
    with created(kind) as backend:
        context = backend.create_context()
        graph = doubling(context)
        allocated = graph.allocate()
        done = threading.Event()

        def work():
            while not done.is_set():
                allocated.binding.execute()

        worker = threading.Thread(target=work)
        worker.start()
        try:
            codes = [in_child(lambda: everything(backend, context, graph, allocated)) for _ in range(5)]
        finally:
            done.set()
            worker.join(PATIENCE)
        assert codes == [0] * 5
        doubled(allocated)


@pytest.mark.parametrize("backend", ["cpu", "lpai", "htp"])
def test_a_session_is_refused_and_closed_in_a_child_of_one_that_runs(backend, tmp_path) -> None:
    model = tiny.gate(tmp_path / "gate.onnx", 16)

    def child():
        refused(session.run)
        refused(session.reset)
        session.close()
        session.close()
        with pytest.raises(QnnError, match="it is closed"):
            session.run()

    with isthmus.Session(model, backend) as session, memory.statistics():
        assert forked_inside(session.run, 5, child) == {0}
        session.run()


def test_a_thread_that_forks_while_it_holds_the_lock_releases_it_in_the_child() -> None:
    with qnn.Backend("lpai") as backend:
        graph = doubling(backend.create_context())
        allocated = graph.allocate()
        taken = os.pipe()
        with graph.driver._lock, holds.lock:
            child = os.fork()
        if child == 0:
            os.write(taken[1], b"y" if graph.driver._lock.is_taken else b"n")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(taken[0], 1) == b"n"
        for end in taken:
            os.close(end)
        doubled(allocated)


def test_a_child_can_give_up_memory_that_it_made_itself() -> None:
    def child():
        with memory.host(4096) as mine:
            mine.array[:] = 1
        assert np.all(inherited.array == 7)

    with memory.host(4096) as inherited:
        inherited.array[:] = 7
        with holds.lock, resource._lock:
            assert forked_elsewhere(child) == [0]
