"""A context of the GPU backend goes where the client's first buffer is, if it was told to follow."""

import gc
import threading

import numpy as np
import pytest
from support.interruption import everywhere
from support.opencl_device import client_context
from support.waiting import PATIENCE

from backends.gpu.harness import (
    DIMS,
    NBYTES,
    bind_handles,
    cl,
    descriptor,
    doubled,
    expected,
    gpu,
    opencl_context,
    values,
)
from backends.gpu.harness import small as small
from isthmus import QnnError, qnn
from isthmus.backends.gpu import graph as gpu_graph
from isthmus.backends.gpu.runtime.handles import references
from isthmus.errors import Code
from isthmus.system.interrupts import run_pending

pytestmark = pytest.mark.usefixtures("small")
FOLLOWING = {"gpu": {"follow_client": True}}


@pytest.fixture
def queue():
    """A queue of the client's, in an OpenCL context that the backend does not know."""
    return cl.CommandQueue(client_context())


def new_buffer(queue):
    return cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, NBYTES)


def registered(context, *buffers):
    return context.mem_register([descriptor(each) for each in buffers])


def computes_in(queue, graph, buffers, handles):
    x, y = values(), np.empty(DIMS, np.float32)
    cl.enqueue_copy(queue, buffers[0], x).wait()
    binding = bind_handles(graph, *handles)
    binding.execute()
    cl.enqueue_copy(queue, y, buffers[1]).wait()
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
    return binding


@pytest.mark.parametrize("finalized_first", [True, False])
def test_the_first_buffer_decides_the_context(queue, finalized_first) -> None:
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        graph = doubled(context, finalize=finalized_first)
        buffers = new_buffer(queue), new_buffer(queue)
        handles = registered(context, *buffers)
        if not finalized_first:
            graph.finalize()
        assert computes_in(queue, graph, buffers, handles).stats.copied_bytes == 0
        assert opencl_context(backend) != queue.context
        context.mem_deregister(handles)
        assert references(buffers[0].int_ptr) == 1


def executed_binding(context: qnn.Context) -> tuple[qnn.Graph, qnn.Binding, np.ndarray, np.ndarray]:
    """Return a graph, a binding of it that was executed once, and the arrays of its input and output."""
    graph, x, y = doubled(context), values(), np.zeros(DIMS, np.float32)
    binding = graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
    binding.execute()
    return graph, binding, x, y


def test_bindings_that_were_made_before_go_on(queue) -> None:
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        graph, raw, x, y = executed_binding(context)
        buffers = new_buffer(queue), new_buffer(queue)
        computes_in(queue, graph, buffers, registered(context, *buffers))
        y[...] = 0
        raw.execute()
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)
        assert raw.stats.executions == 2


def test_a_registration_that_is_refused_leaves_bindings_right(queue) -> None:
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        _, raw, x, y = executed_binding(context)
        small = cl.Buffer(queue.context, cl.mem_flags.READ_WRITE, NBYTES - 1)
        with pytest.raises(QnnError, match="the tensor needs"):
            registered(context, small)
        y[...] = 0
        raw.execute()
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)


def test_a_context_stays_with_the_buffers_that_it_has(queue) -> None:
    other = cl.CommandQueue(client_context())
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        graph = doubled(context)
        buffers = new_buffer(queue), new_buffer(queue)
        handles = registered(context, *buffers)
        for wrong in ((new_buffer(other),), (new_buffer(other), new_buffer(queue))):
            with pytest.raises(QnnError, match="belongs to another context") as refused:
                registered(context, *wrong)
            assert refused.value.code is Code.MEM_INVALID_ARGUMENT
        computes_in(queue, graph, buffers, handles)
        # Without registered buffers the context may move again.
        context.mem_deregister(handles)
        buffers = new_buffer(other), new_buffer(other)
        computes_in(other, graph, buffers, registered(context, *buffers))


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_context_stays_where_its_graphs_have_state(queue, monkeypatch, when) -> None:
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        graph = context.create_graph("count")
        kind, zero = qnn.DataType.FLOAT_32, np.zeros(DIMS, np.float32)
        x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, kind, DIMS)
        state = graph.create_tensor("s", qnn.TensorType.APP_READWRITE, kind, DIMS, data=zero)
        following = graph.create_tensor("t", qnn.TensorType.NATIVE, kind, DIMS)
        y = graph.create_tensor("y", qnn.TensorType.APP_READ, kind, DIMS)
        graph.add_node("add", "ElementWiseAdd", [x, state], [following])
        graph.add_node("out", "ElementWiseAdd", [following, following], [y])
        graph.update_state(state, following)
        graph.finalize()
        x, y = np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)
        raw = graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
        load = gpu_graph.GpuGraphDriver._load

        def executed_while_loading(self, *arguments):
            raw.execute()
            return load(self, *arguments)

        if when == "before":
            raw.execute()
        monkeypatch.setattr(gpu_graph.GpuGraphDriver, "_load", executed_while_loading)
        with pytest.raises(QnnError, match="belongs to another context"):
            registered(context, new_buffer(queue))
        assert (y == 2).all()
        raw.execute()
        assert (y == 4).all()


def test_a_move_that_fails_changes_nothing(queue, monkeypatch) -> None:
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        first, second = doubled(context, "first"), doubled(context, "second")
        load, loads = gpu_graph.GpuGraphDriver._load, []

        def failing(self, *arguments):
            loads.append(self)
            if len(loads) == 2:
                raise QnnError(Code.COMMON_MEM_ALLOC, "device", "it is full")
            return load(self, *arguments)

        monkeypatch.setattr(gpu_graph.GpuGraphDriver, "_load", failing)
        buffers = new_buffer(queue), new_buffer(queue)
        with pytest.raises(QnnError, match="it is full"):
            registered(context, *buffers)
        assert references(buffers[0].int_ptr) == 1
        for graph in (first, second):
            x, y = values(), np.zeros(DIMS, np.float32)
            graph.execute([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)])
            np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6)


ELSEWHERE = (
    "/gpu/test_", "harness", "/gpu/graph", "/gpu/bin", "/gpu/staging", "/gpu/program", "/gpu/memory", "/gpu/buffers",
    "/gpu/options", "/gpu/config", "/gpu/prepare", "/gpu/runtime/", "/gpu/compile/", "/mixed_precision/",
    "/seam/", "/qnn/", "/memory/", "/graph/", "/prepare/", "/compiled/", "/pyopencl/", "interrupts.py", "lock.py",
    "numpy", "weakref", "threading", "dataclasses", "<string>", "enum.py", "contextlib",
)  # fmt: skip
"""Where interrupts are tried by other tests: here only those that come into the move itself."""


def test_a_move_that_is_interrupted_is_made_whole_or_not_at_all(queue) -> None:
    other = cl.CommandQueue(client_context())
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        graphs = [doubled(context, name) for name in ("first", "second")]
        x, y = values(), np.zeros(DIMS, np.float32)
        raw = [graph.bind([qnn.ClientTensor("x", x)], [qnn.ClientTensor("y", y)]) for graph in graphs]

        def action():
            for handle in [each for each in context._owned if isinstance(each, qnn.MemHandle)]:
                handle.free()
            registered(context, new_buffer(other if context.driver.opencl.handle == queue.context.int_ptr else queue))

        def compute(where):
            for binding in raw:
                y[...] = 0
                binding.execute()
                np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-6, err_msg=where)

        def objects(where=""):
            """Move until the context is the first one; return how many objects of OpenCL both contexts have."""
            action()
            if context.driver.opencl.handle != queue.context.int_ptr:
                action()
            compute(where)
            run_pending()
            for each in (queue, other):
                each.finish()
            return queue.context.reference_count, other.context.reference_count

        before, places = objects(), []
        for where in everywhere(action, outside=ELSEWHERE, most=80):
            here = {graph.driver.loaded().context.handle for graph in graphs}
            assert here == {context.driver.opencl.handle}, where
            compute(where)
            now = objects(where)
            if now != before:
                gc.collect()
                now = objects(where)
            assert now == before, where
            places.append(where)
        assert places


def test_a_graph_that_is_dropped_meanwhile_does_not_divide_a_move(queue, monkeypatch) -> None:
    with gpu(FOLLOWING) as backend:
        context = backend.create_context()
        first, second = doubled(context, "first"), doubled(context, "second")
        load, dropping = gpu_graph.GpuGraphDriver._load, []

        def dropped_while_loading(self, *arguments):
            if not dropping:
                dropping.append(threading.Thread(target=context.drop_graph, args=(first.driver.graph,)))
                dropping[0].start()
                dropping[0].join(0.1)
            return load(self, *arguments)

        monkeypatch.setattr(gpu_graph.GpuGraphDriver, "_load", dropped_while_loading)
        buffers = new_buffer(queue), new_buffer(queue)
        handles = registered(context, *buffers)
        dropping[0].join(PATIENCE)
        computes_in(queue, second, buffers, handles)
        assert list(context.graphs) == ["second"]


def test_a_context_that_is_not_set_to_follow_stays(queue) -> None:
    with gpu() as backend, pytest.raises(QnnError, match="belongs to another context"):
        registered(backend.create_context(), new_buffer(queue))
