"""A graph is composed, finalized and executed, in this order; on the CPU with buffers at any address."""

import threading

import numpy as np
import pytest
from support import tiny
from support.waiting import PATIENCE, eventually, run_in_threads

from isthmus import Code, QnnError, memory, qnn
from isthmus import graph as ir
from isthmus.graph import DataType
from isthmus.qnn import ClientTensor, DescriptorType, MemDescriptor
from qnn.test_handles import doubling, refused


@pytest.fixture
def context():
    with qnn.Backend("cpu") as backend:
        yield backend.create_context()


@pytest.fixture
def graph(context):
    graph = doubling(context)
    graph.finalize()
    return graph


def array(value):
    return np.full((1, 4), value, np.float32)


def test_the_states_of_a_graph_follow_each_other(context) -> None:
    graph = doubling(context)
    with refused(Code.GRAPH_NOT_FINALIZED, "Call finalize"):
        graph.execute()
    graph.finalize()
    with refused(Code.GRAPH_FINALIZED, "already"):
        graph.finalize()
    with refused(Code.GRAPH_FINALIZED, "cannot be changed"):
        graph.create_tensor("z", 0, DataType.FLOAT_32, (1,))
    graph.execute()


def test_an_empty_graph_cannot_be_finalized_but_completed_and_then_finalized(context) -> None:
    graph = context.create_graph("empty")
    with refused(Code.GRAPH_FINALIZE_FAILED, "empty"):
        graph.finalize()
    assert not graph.finalized


def test_a_graph_that_was_composed_elsewhere_is_added_under_its_name(context) -> None:
    composed = ir.Graph("elsewhere")
    x = composed.create_tensor("x", ir.TensorType.APP_WRITE, DataType.FLOAT_32, (1, 4))
    y = composed.create_tensor("y", ir.TensorType.APP_READ, DataType.FLOAT_32, (1, 4))
    composed.add_node("add", "ElementWiseAdd", [x, x], [y])
    graph = context.add_graph(composed)
    graph.finalize()
    given, made = array(3), array(0)
    graph.execute([ClientTensor("x", given)], [ClientTensor("y", made)])
    assert (made == 6).all()
    assert context.retrieve("elsewhere") is graph
    with refused(Code.GRAPH_INVALID_NAME, "the context has one of that name"):
        context.add_graph(ir.Graph("elsewhere"))
    with refused(Code.CONTEXT_INVALID_ARGUMENT, "not a composed graph"):
        context.add_graph("elsewhere")


def test_client_buffers_are_used_where_they_lie(graph) -> None:
    x, y = array(3), array(0)
    graph.execute([ClientTensor("x", x)], [ClientTensor("y", y)])
    assert (y == 6).all()
    assert graph.stats.copied_bytes == 0


def test_without_buffers_the_backends_own_are_used(graph) -> None:
    graph.inputs["x"][...] = 5
    graph.execute()
    assert (graph.outputs["y"] == 10).all()


def test_a_tensor_with_raw_memory_and_a_handle_is_refused(graph) -> None:
    with refused(Code.MEM_INVALID_HANDLE, "not a memory handle"):
        graph.execute([ClientTensor("x", mem_handle=7)])


def test_the_cpu_registers_no_memory(context) -> None:
    with refused(Code.COMMON_NOT_SUPPORTED):
        context.mem_register([MemDescriptor((1,), DataType.INT_8, DescriptorType.ION, 0)])
    with refused(Code.MEM_INVALID_ARGUMENT, "no descriptors"):
        context.mem_register([])


@pytest.mark.parametrize("method", ["get_property", "set_config"])
def test_the_cpu_has_no_custom_options(graph, method) -> None:
    arguments = (1,) if method == "get_property" else (1, None)
    with refused(Code.GRAPH_INVALID_ARGUMENT):
        getattr(graph, method)(*arguments)


def test_a_model_file_composes_a_graph_under_a_chosen_name(context, tmp_path) -> None:
    path = tiny.convolution(tmp_path / "conv.onnx")
    graph = context.compose(path, "mine")
    assert context.retrieve("mine") is graph
    assert [info.name for info in graph.input_tensors] == ["x"]
    assert [tuple(info.dims) for info in graph.output_tensors] == [(1, 4, 8, 8)]
    with refused(Code.GRAPH_INVALID_NAME, "one of that name"):
        context.compose(path, "mine")
    context.compose(path)


def test_asynchronous_executions_run_in_order_and_notify(graph) -> None:
    ended, x = [], array(1)
    y = array(0)
    futures = [
        graph.execute_async([ClientTensor("x", x)], [ClientTensor("y", y)], lambda f, i=i: ended.append(i))
        for i in range(10)
    ]
    for future in futures:
        assert future.result(PATIENCE) is None
    assert ended == list(range(10))
    assert graph.stats.executions == 10


def held(graph):
    """Let executions of a graph wait for the event that is returned."""
    go_on = threading.Event()
    executor = graph.driver.executor()
    real = executor.run
    executor.run = lambda: (go_on.wait(PATIENCE), real())
    return go_on


@pytest.mark.parametrize(("asked", "depth"), [(None, 10), (3, 3)])
def test_a_full_queue_of_asynchronous_executions_makes_the_caller_wait(asked, depth) -> None:
    with qnn.Backend("cpu") as backend:
        context = qnn.Context(backend, queue_depth=asked)
        first, second = doubling(context, "first"), doubling(context, "second")
        for each in (first, second):
            each.finalize()
        go_on = held(first)
        futures = [(first, second)[n % 2].execute_async() for n in range(depth)]
        assert not any(future.done() for future in futures)
        seen = []

        def submit():
            last = second.execute_async()
            seen.append(futures[0].done())
            last.result(PATIENCE)

        waiting = threading.Thread(target=submit)
        waiting.start()
        assert eventually(lambda: context.executions.depth == len(context.executions._waiting))
        assert not seen
        go_on.set()
        waiting.join(PATIENCE)
        assert seen == [True]
        assert all(future.result(PATIENCE) is None for future in futures)


def test_a_notification_does_not_wait_for_a_full_queue(context, graph) -> None:
    go_on, answers = held(graph), []

    def notify(execution):
        for _ in range(11):
            try:
                answers.append(graph.execute_async())
            except QnnError as refusal:
                answers.append(refusal)

    graph.execute_async(notify=notify)
    go_on.set()
    assert eventually(lambda: len(answers) == 11)
    assert answers[-1].code is Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL
    assert "10 executions are waiting already, and a notification cannot wait" in str(answers[-1])
    assert all(answer.result(PATIENCE) is None for answer in answers[:-1])


def test_a_caller_that_waits_for_a_full_queue_learns_that_the_context_is_freed(context, graph) -> None:
    go_on, answers = held(graph), []
    futures = [graph.execute_async() for _ in range(10)]

    def submit():
        try:
            answers.append(graph.execute_async())
        except QnnError as refusal:
            answers.append(refusal.code)

    waiting = threading.Thread(target=submit)
    waiting.start()
    freeing = threading.Thread(target=context.free)
    freeing.start()
    assert eventually(lambda: futures[-1].cancelled())
    go_on.set()
    for thread in (waiting, freeing):
        thread.join(PATIENCE)
    assert answers in ([Code.CONTEXT_INVALID_HANDLE], [Code.GRAPH_INVALID_HANDLE])


@pytest.mark.parametrize("depth", [-1, 301, 2.5, "10", True])
def test_a_queue_of_no_depth_or_of_more_than_300_is_refused(depth) -> None:
    with (
        qnn.Backend("cpu") as backend,
        refused(Code.CONTEXT_INVALID_CONFIG, "the depth of its queue must be 1 to 300"),
    ):
        qnn.Context(backend, queue_depth=depth)


def test_an_asynchronous_refusal_is_in_the_future(graph) -> None:
    future = graph.execute_async([ClientTensor("z", array(1))])
    with refused(Code.GRAPH_INVALID_TENSOR, "'z'"):
        future.result(PATIENCE)


def test_a_profile_has_times_and_memory(graph) -> None:
    with qnn.Profile(graph.context.backend, qnn.ProfileLevel.DETAILED) as profile:
        graph.execute(profile=profile)
        events = {event.name: event for event in profile.get_events()}
        assert events["execute"].unit == "us"
        assert events["copied in"].value == events["copied out"].value == 0
        assert events["used in place: raw"].value == 32
    with refused(Code.COMMON_INVALID_ARGUMENT, "freed"):
        profile.get_events()
    with refused(Code.COMMON_INVALID_ARGUMENT, "BASIC 1"):
        qnn.Profile(graph.context.backend, 9)


def test_threads_may_execute_one_graph(graph) -> None:
    def work(value, wrong):
        x, y = array(value), array(0)
        tensors = [ClientTensor("x", x)], [ClientTensor("y", y)]
        for _ in range(50):
            graph.execute(*tensors)
            if not (y == 2 * value).all():
                wrong.append(value)

    wrong = []
    run_in_threads(lambda value: work(value, wrong), range(4))
    assert not wrong
    assert graph.stats.executions == 200


def test_freeing_a_context_releases_the_memory_of_its_graphs_despite_views_of_it() -> None:
    with qnn.Backend("cpu") as backend, memory.statistics() as counted:
        context = backend.create_context()
        graph = doubling(context)
        graph.finalize()
        views = graph.inputs["x"], graph.outputs["y"]
        assert counted.live_bytes > 0
        context.free()
        assert counted.live_bytes == 0
        assert all(view.shape == (1, 4) for view in views)
