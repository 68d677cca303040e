"""Handles know their owner, refuse use after free with their component's code, and may be freed in any order."""

import gc
import threading
import weakref

import pytest
from support.waiting import PATIENCE

from isthmus import Code, QnnError, memory, qnn
from isthmus.graph import DataType, Tensor, TensorType


def doubling(context, name="doubling"):
    graph = context.create_graph(name)
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    graph.add_node("add", "ElementWiseAdd", [x, x], [y])
    return graph


def refused(code, match=""):
    return pytest.raises(QnnError, match=rf"^\[{int(code)} .*{match}")


def test_an_unknown_backend_is_refused() -> None:
    with refused(Code.BACKEND_INVALID_ARGUMENT, "must be one of cpu"):
        qnn.Backend("npu")


def test_use_after_free_answers_the_components_code() -> None:
    backend = qnn.Backend("cpu")
    context = backend.create_context()
    graph = doubling(context)
    device = backend.create_device()
    backend.free()
    with refused(Code.BACKEND_INVALID_HANDLE, "freed"):
        backend.create_context()
    with refused(Code.BACKEND_INVALID_HANDLE, "freed"):
        backend.get_property(0)
    with refused(Code.CONTEXT_INVALID_HANDLE, "freed"):
        context.create_graph("g")
    with refused(Code.GRAPH_INVALID_HANDLE, "freed"):
        graph.finalize()
    with refused(Code.GRAPH_INVALID_HANDLE, "freed"):
        graph.execute()
    assert not device.alive
    for handle in (backend, context, device):
        handle.free()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_frees_are_safe_in_any_order(order) -> None:
    backend = qnn.Backend("lpai")
    handles = [backend, backend.create_context(), backend.create_context()]
    for index in order:
        handles[index].free()
    assert not any(handle.alive for handle in handles)


def test_freeing_a_context_ends_its_graphs_and_no_others() -> None:
    with qnn.Backend("cpu") as backend:
        first, second = backend.create_context(), backend.create_context()
        ended, stays = doubling(first), doubling(second)
        first.free()
        with refused(Code.GRAPH_INVALID_HANDLE):
            ended.finalize()
        stays.finalize()
        stays.execute()


def test_a_device_cannot_be_freed_under_a_context() -> None:
    with qnn.Backend("cpu") as backend, qnn.Backend("cpu") as other:
        device = backend.create_device()
        context = backend.create_context(device=device)
        with refused(Code.DEVICE_ASSOCIATED_TO_CONTEXT):
            device.free()
        with refused(Code.CONTEXT_INVALID_ARGUMENT, "another backend"):
            other.create_context(device=device)
        context.free()
        device.free()
        with refused(Code.DEVICE_INVALID_HANDLE, "freed"):
            backend.create_context(device=device)


def test_graph_names_are_unique_in_a_context_and_found_again() -> None:
    with qnn.Backend("cpu") as backend:
        context = backend.create_context()
        graph = doubling(context, "a")
        with refused(Code.GRAPH_INVALID_NAME, "one of that name"):
            context.create_graph("a")
        assert context.retrieve("a") is graph
        with refused(Code.GRAPH_INVALID_NAME, "the context has 'a'"):
            context.retrieve("b")


def test_a_refused_context_leaves_the_backend_usable() -> None:
    with qnn.Backend("cpu") as backend:
        with refused(Code.CONTEXT_INVALID_CONFIG):
            backend.create_context({1: 1})
        assert backend.create_context().alive


def test_many_contexts_leave_nothing_behind() -> None:
    with qnn.Backend("cpu") as backend:
        device = backend.create_device()
        for _ in range(50):
            backend.create_context(device=device).free()
        assert backend._owned == [device]
        assert not device.contexts


def test_a_backend_has_a_version_a_build_id_and_operations() -> None:
    with qnn.Backend("cpu") as backend:
        assert backend.get_api_version() == (2, 40, 0)
        assert backend.get_build_id().startswith("v2.51.0.0-isthmus-")
        assert "Conv2d" in backend.get_supported_operations()


def test_a_node_can_be_validated_without_a_graph() -> None:
    x = Tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    y = Tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    wrong = Tensor("w", TensorType.APP_READ, DataType.FLOAT_32, (1, 5))
    with qnn.Backend("cpu") as backend:
        backend.validate_op_config("add", "ElementWiseAdd", [x, x], [y])
        with refused(Code.OP_PACKAGE_VALIDATION_FAILURE, "add"):
            backend.validate_op_config("add", "ElementWiseAdd", [x, x], [wrong])
        with refused(Code.BACKEND_OP_PACKAGE_NOT_FOUND, "no such operation"):
            backend.validate_op_config("n", "Frobnicate", [x], [y])


def test_a_backend_that_is_forgotten_after_asynchronous_executions_ends_with_their_thread() -> None:
    def use_and_forget():
        backend = qnn.Backend("cpu")
        graph = doubling(backend.create_context())
        graph.finalize()
        graph.execute_async().result()
        return weakref.ref(backend)

    def forget_and_collect():
        backend = use_and_forget()
        gc.collect()
        return backend

    before = threading.enumerate()
    with pytest.warns(ResourceWarning, match="never freed"):
        forgotten = forget_and_collect()
    assert forgotten() is None
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(PATIENCE)
            assert not thread.is_alive()


class Interrupted(Exception):
    """What the handler of a signal may raise in the middle of anything."""


def interrupted_once(monkeypatch, owner, name):
    """Have a method raise the first time, before it does anything."""
    real, left = getattr(owner, name), [1]

    def method(*arguments):
        if left:
            left.pop()
            raise Interrupted
        return real(*arguments)

    monkeypatch.setattr(owner, name, method)


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_free_that_was_interrupted_continues_when_it_is_repeated(which, monkeypatch) -> None:
    with qnn.Backend("cpu") as backend:
        contexts = {"first": backend.create_context(), "second": backend.create_context()}
        interrupted_once(monkeypatch, contexts[which].driver, "close")
        with pytest.raises(Interrupted):
            backend.free()
        closed = []
        for name, context in contexts.items():
            monkeypatch.setattr(context.driver, "close", lambda name=name: closed.append(name))
        backend.free()
        assert closed == (["first"] if which == "first" else ["second", "first"])
        assert not any(context.alive for context in contexts.values())


@pytest.mark.parametrize("backend", ["htp", "lpai"])
def test_memory_whose_deregistration_was_interrupted_is_released_when_it_is_repeated(backend, monkeypatch) -> None:
    with qnn.Backend(backend) as opened, memory.rpcmem.alloc(25, 1, 4096) as buffer:
        context = opened.create_context()
        custom = qnn.lpai.MemInfo(buffer.fd) if backend == "lpai" else qnn.htp.Descriptor(4096, buffer.fd)
        descriptor = qnn.MemDescriptor((1, 4), DataType.FLOAT_32, qnn.DescriptorType.CUSTOM, custom=custom)
        [handle] = context.mem_register([descriptor])
        interrupted_once(monkeypatch, handle.registration, "_release")
        with pytest.raises(Interrupted):
            context.mem_deregister([handle])
        context.free()
        buffer.close()


@pytest.mark.parametrize("backend", ["cpu", "lpai"])
def test_a_graph_that_is_freed_while_it_is_bound_says_so(backend, monkeypatch) -> None:
    with qnn.Backend(backend) as opened:
        context = opened.create_context()
        graph = doubling(context)
        graph.allocate()
        real = graph.driver.bind

        def bind(memories):
            context.free()
            return real(memories)

        monkeypatch.setattr(graph.driver, "bind", bind)
        with refused(Code.GRAPH_INVALID_HANDLE, "freed"):
            graph.bind()


@pytest.mark.parametrize("contexts", [1, 2])
def test_a_backend_can_be_freed_by_callbacks_while_another_thread_frees_it(contexts) -> None:
    backend = qnn.Backend("cpu")
    graphs = [doubling(backend.create_context()) for _ in range(contexts)]
    all_there = threading.Barrier(contexts + 1)

    def notify(execution):
        all_there.wait(PATIENCE)
        while not backend._closing:
            pass
        backend.free()

    for graph in graphs:
        graph.finalize()
    executions = [graph.execute_async(notify=notify) for graph in graphs]
    freeing = threading.Thread(target=backend.free, daemon=True)
    all_there.wait(PATIENCE)
    freeing.start()
    freeing.join(PATIENCE)
    assert not freeing.is_alive()
    assert all(execution.done() for execution in executions)
    assert not any(handle.alive for handle in (backend, *graphs))
