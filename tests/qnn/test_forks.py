"""A forked child is told at once that handles are its parent's, whatever other threads held, and can make its own."""

import contextlib
import gc
import os
import threading

import numpy as np
import pytest
from support import tiny
from support.processes import in_child
from support.waiting import PATIENCE

import isthmus
from isthmus import Code, QnnError, memory, qnn
from isthmus.backends.seam import registry
from isthmus.engine.native import loader
from isthmus.graph import DataType, TensorType
from isthmus.memory import holds, resource, shareable

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


def forked_elsewhere(deed):
    """The same, forked by a thread that holds nothing of what this one holds."""
    codes = []
    thread = threading.Thread(target=lambda: codes.append(in_child(deed)))
    thread.start()
    thread.join(60)
    return codes


def every_lock(backend, context, graph):
    """All that other threads may have taken when the process forks."""
    taken = contextlib.ExitStack()
    module_locks = holds.lock, resource._lock, shareable._lock, loader._lock, registry._lock
    handle_locks = [lock for handle in (backend, context, graph) for lock in (handle._owning, handle._ending)]
    for lock in (graph.driver._lock, *module_locks, *handle_locks, context.executions._lock):
        taken.enter_context(lock)
    return taken


def refused(deed):
    with pytest.raises(QnnError, match="belongs to the process that this one was forked from") as refusal:
        deed()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION


def everything(backend, context, graph, allocated):
    assert not graph.alive
    assert graph.inherited
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


@pytest.mark.parametrize("kind", ["cpu", "lpai", "lpai-adsp", "lpai-arm"])
def test_a_child_is_refused_and_makes_its_own_while_other_threads_hold_every_lock(kind, fresh_tcm):
    def child():
        everything(backend, context, graph, allocated)
        with created(kind) as mine:
            doubled(doubling(mine.create_context()).allocate())

    with created(kind) as backend:
        context = backend.create_context()
        graph = doubling(context)
        allocated = graph.allocate()
        doubled(allocated)
        with every_lock(backend, context, graph):
            assert forked_elsewhere(child) == [0]
        doubled(allocated)


@pytest.mark.parametrize("kind", ["cpu", "lpai", "lpai-adsp", "lpai-arm", "htp"])
def test_while_another_thread_executes(kind, fresh_tcm):
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
def test_a_session_is_refused_and_closed_in_a_child_of_one_that_runs(backend, tmp_path):
    model = tiny.gate(tmp_path / "gate.onnx", 16)

    def child():
        refused(session.run)
        refused(session.reset)
        session.close()
        session.close()
        with pytest.raises(QnnError, match="it is closed"):
            session.run()

    with isthmus.Session(model, backend) as session, memory.statistics():
        with session._lock:
            assert forked_elsewhere(child) == [0]
        session.run()


def test_the_thread_that_forks_in_its_turn_ends_it_in_the_child():
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


def test_a_child_can_give_up_memory_that_it_made_itself():
    def child():
        with memory.host(4096) as mine:
            mine.array[:] = 1
        assert np.all(inherited.array == 7)

    with memory.host(4096) as inherited:
        inherited.array[:] = 7
        with holds.lock, resource._lock:
            assert forked_elsewhere(child) == [0]
