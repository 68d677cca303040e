"""Executions on HTP: many threads and contexts, asynchronous ones with callbacks and awaits, priorities, sessions."""

import asyncio
import os
import signal
import threading
import time

import numpy as np
import pytest
from support import tiny
from support.processes import stop
from support.waiting import PATIENCE, eventually, run_in_threads

import isthmus
from backends.htp.harness import DIMS, Doubler, counter, doubler
from isthmus import Code, QnnError, qnn
from isthmus.qnn import ClientTensor, htp


def raw(x, y):
    return [ClientTensor("x", x)], [ClientTensor("y", y)]


def test_eight_threads_over_four_contexts_get_their_own_results(backend) -> None:
    contexts = [backend.create_context() for _ in range(4)]
    graphs = [doubler(context) for context in contexts]
    wrong = []

    def work(seed):
        x, y = np.full(DIMS, seed, np.float32), np.zeros(DIMS, np.float32)
        given = raw(x, y)
        for round_ in range(100):
            x[:] = seed + round_
            graphs[seed % 4].execute(*given)
            if not (y == 2 * (seed + round_)).all():
                wrong.append((seed, round_))

    run_in_threads(work, range(8))
    for context in contexts:
        context.free()
    assert not wrong


def test_asynchronous_executions_keep_their_order_across_the_graphs_of_a_context(context) -> None:
    one, two = counter(context, "one"), counter(context, "two")
    ended, results = [], []
    x = np.ones(DIMS, np.float32)
    for n in range(20):
        results.append(np.zeros(DIMS, np.float32))
        graph = (one, two)[n % 2]
        last = graph.execute_async(*raw(x, results[-1]), notify=lambda execution, n=n: ended.append(n))
    last.result(PATIENCE)
    assert ended == list(range(20))
    assert [float(result[0, 0]) for result in results] == [n // 2 + 2 for n in range(20)]


def test_an_execution_can_be_awaited(context) -> None:
    graph = doubler(context)

    async def run():
        ys = [np.zeros(DIMS, np.float32) for _ in range(5)]
        await asyncio.gather(*(graph.execute_async(*raw(np.full(DIMS, n, np.float32), y)) for n, y in enumerate(ys)))
        return [float(y[0, 0]) for y in ys]

    assert asyncio.run(run()) == [0, 2, 4, 6, 8]


def test_an_awaited_execution_raises_what_went_wrong(context) -> None:
    graph = doubler(context)

    async def run():
        await graph.execute_async([ClientTensor("nobody", np.zeros(DIMS, np.float32))])

    with pytest.raises(QnnError, match="nobody"):
        asyncio.run(run())


def test_the_queue_is_bounded(backend, context) -> None:
    graph = doubler(context)
    given = raw(np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32))
    pid = backend.get_property(htp.ACCELERATOR_PID)
    answers, seen = [], []
    stop(pid)
    try:
        waiting = [graph.execute_async(*given) for _ in range(10)]

        def submit():
            answers.append(graph.execute_async(*given))
            seen.append(waiting[0].done())

        thread = threading.Thread(target=submit)
        thread.start()
        assert not answers
    finally:
        os.kill(pid, signal.SIGCONT)
    thread.join(PATIENCE)
    assert seen == [True]
    for execution in [*waiting, *answers]:
        execution.result(PATIENCE)


def test_a_higher_priority_overtakes_those_that_wait() -> None:
    with qnn.Backend("htp", {"htp": {"units": 1}}) as backend:
        contexts = [backend.create_context() for _ in range(4)]
        graphs = [doubler(context) for context in contexts]
        for graph, priority in zip(graphs, (qnn.Priority.NORMAL, qnn.Priority.LOW, qnn.Priority.HIGH), strict=False):
            graph.set_config(qnn.GraphConfig.PRIORITY, priority)
        order = []
        pid = backend.get_property(htp.ACCELERATOR_PID)
        stop(pid)

        def work(name, graph):
            graph.execute(*raw(np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)))
            order.append(name)

        gate = contexts[0].driver.queue.accelerator.gate
        threads = [threading.Thread(target=work, args=("first", graphs[3]))]
        threads[0].start()
        assert eventually(lambda: gate.busy)
        for name, graph in zip(("normal", "low", "high"), graphs, strict=False):
            threads.append(threading.Thread(target=work, args=(name, graph)))
            threads[-1].start()
        assert eventually(lambda: len(gate.waiting) == 3)
        os.kill(pid, signal.SIGCONT)
        for thread in threads:
            thread.join()
    assert order == ["first", "high", "normal", "low"]


def test_devices_have_accelerators_of_their_own(backend) -> None:
    devices = [backend.create_device() for _ in range(2)]
    contexts = [backend.create_context(device=device) for device in devices]
    pids = {context.driver.queue.accelerator.pid for context in contexts}
    assert len(pids) == 2
    for context in contexts:
        doubling = Doubler(context)
        doubling.x[:] = 2
        doubling.run()
        assert (doubling.y == 4).all()
    for device, context in zip(devices, contexts, strict=True):
        with pytest.raises(QnnError) as refusal:
            device.free()
        assert refusal.value.code is Code.DEVICE_ASSOCIATED_TO_CONTEXT
        context.free()
        device.free()
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_backend_without_a_context_starts_nothing() -> None:
    with qnn.Backend("htp") as backend:
        assert backend.get_property(htp.ACCELERATOR_PID) is None


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (3, "neither a path nor a dictionary"),
        ({"lpai": {}}, "no such key; known are graphs, devices, context, groupContext, memory, htp"),
        ({"htp": 3}, "key 'htp': must be an object"),
        ({"htp": {"units": -1}}, "'htp.units'"),
        ({"htp": {"threads": 0}}, "'htp.threads'"),
        ({"htp": {"threads": True}}, "'htp.threads'"),
        ({"htp": {"reregistration": "maybe"}}, "'refuse', 'other_shape'"),
        ({"htp": {"colour": 1}}, "no such key; known are reregistration, units, threads"),
        ("/nowhere/config.json", "cannot be read"),
    ],
)
def test_bad_configurations_are_refused(config, words) -> None:
    with pytest.raises(QnnError, match=words) as refusal:
        qnn.Backend("htp", config)
    assert refusal.value.code is Code.BACKEND_INVALID_CONFIG


@pytest.mark.parametrize("io", [None, "memhandle", "raw"])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_session_matches_the_cpu(tmp_path, io, threads) -> None:
    path = tiny.convolution(tmp_path / "conv.onnx")
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    with isthmus.Session(path) as cpu, isthmus.Session(path, backend="htp", io=io, threads=threads) as session:
        assert np.array_equal(session.run({"x": x})["y"], cpu.run({"x": x})["y"])
        session.inputs["x"][...] = 2 * x
        session.run()
        assert np.array_equal(session.outputs["y"], cpu.run({"x": 2 * x})["y"])
        stats = session.graph_stats
        moved = 2 * (x.nbytes + session.outputs["y"].nbytes) if io == "raw" else 0
        assert stats.copied_bytes == moved
        assert (stats.staging_prepare_bytes > 0) == (io == "raw")
        outputs = session.outputs["y"]
        result = outputs.copy()
    assert np.array_equal(outputs, result), "views outlive the session"


def test_a_session_after_a_crash_says_so(tmp_path) -> None:
    with isthmus.Session(tiny.gate(tmp_path / "gate.onnx"), backend="htp") as session:
        session.run()
        os.kill(session.graph.context.backend.get_property(htp.ACCELERATOR_PID), signal.SIGKILL)
        with pytest.raises(QnnError) as refusal:
            eventually(lambda: session.run() is None)
        assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION


@pytest.mark.parametrize(("backend", "io"), [("cpu", "memhandle"), ("lpai", "telepathy"), ("htp", "telepathy")])
def test_only_a_kind_of_io_that_the_backend_has_can_be_chosen(tmp_path, backend, io) -> None:
    with pytest.raises(QnnError, match="io"):
        isthmus.Session(tiny.gate(tmp_path / "gate.onnx"), backend=backend, io=io)


def test_a_binding_whose_graph_ends_while_it_waits_for_its_turn_is_refused(backend) -> None:
    context = backend.create_context()
    graph = doubler(context)
    binding = graph.bind(*raw(np.ones(DIMS, np.float32), np.zeros(DIMS, np.float32)))
    queue, codes = context.driver.queue, []

    def execute():
        try:
            binding._driver.execute()
        except QnnError as refusal:
            codes.append(refusal.code)

    queue.lock().acquire()
    thread = threading.Thread(target=execute)
    thread.start()
    while not queue.accelerator.gate.waiting:
        time.sleep(0.001)
    # A context that ends does this when it gets the lock.
    graph.driver.counts.close()
    queue.lock().release()
    thread.join(PATIENCE)
    assert codes == [Code.GRAPH_INVALID_ARGUMENT]
    context.free()
