"""A signal ends an execution: after its time, or when somebody triggers it; the graph can be used again."""

import threading
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from support.processes import stop
from support.waiting import PATIENCE, eventually

from isthmus import Code, QnnError, qnn
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.qnn import DataType, Signal, SignalConfig, TensorType, asynchronous

STEPS, SIDE = 200, 192
ARM = {"lpai_backend": {"target_env": "arm"}}


def slow(context, steps=STEPS):
    """A graph of many products, of which each takes milliseconds."""
    graph = context.create_graph("slow")
    generator = np.random.default_rng(0)
    weights = generator.standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE
    tensor = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (SIDE, SIDE))
    w = graph.create_tensor("w", TensorType.STATIC, DataType.FLOAT_32, (SIDE, SIDE), None, weights)
    for step in range(steps):
        kind = TensorType.APP_READ if step == steps - 1 else TensorType.NATIVE
        result = graph.create_tensor(f"t{step}", kind, DataType.FLOAT_32, (SIDE, SIDE))
        graph.add_node(f"n{step}", "MatMul", [tensor, w], [result])
        tensor = result
    return graph.allocate()


@pytest.fixture(autouse=True)
def _aborted_executions_have_time_to_end(monkeypatch):
    usual = Deadlines.from_environment()
    monkeypatch.setattr(Deadlines, "from_environment", lambda: replace(usual, grace=600))


@pytest.fixture(params=[("cpu", None), ("htp", None), ("lpai", None), ("lpai", ARM)])
def backend(request):
    with qnn.Backend(*request.param) as backend:
        yield backend


def test_an_execution_that_takes_too_long_is_ended(backend) -> None:
    memory = slow(backend.create_context())
    # On a busy machine an execution may be complete before the thread that watches the time runs at all.
    with pytest.raises(QnnError) as refusal:
        deque((memory.binding.execute(signal=Signal(backend, timeout_us=2000)) for _ in range(1000)), 0)
    assert refusal.value.code is Code.GRAPH_TIMED_OUT
    memory.binding.execute(signal=Signal(backend, timeout_us=600_000_000))
    memory.binding.execute()


def test_an_execution_is_ended_from_another_thread(backend) -> None:
    memory = slow(backend.create_context())
    signal = Signal(backend)
    done = threading.Event()

    def trigger():
        while not done.wait(0.002):
            signal.trigger()

    thread = threading.Thread(target=trigger)
    thread.start()
    try:
        # On a busy machine an execution may be complete before the thread runs at all.
        with pytest.raises(QnnError) as refusal:
            deque((memory.binding.execute(signal=signal) for _ in range(1000)), 0)
    finally:
        done.set()
        thread.join()
    assert refusal.value.code is Code.GRAPH_ABORTED
    memory.binding.execute(signal=signal)


def silence(backend):
    """Stop the accelerator, and let calls wait only briefly for an execution that was aborted."""
    accelerator = backend.driver.device.accelerator()
    accelerator.deadlines = replace(accelerator.deadlines, grace=0.1)
    stop(accelerator.pid)


def test_a_stopped_accelerator_does_not_hold_an_execution_for_ever() -> None:
    with qnn.Backend("htp") as backend:
        memory = slow(backend.create_context())
        memory.binding.execute()
        silence(backend)
        with pytest.raises(QnnError) as refusal:
            memory.binding.execute(signal=Signal(backend, timeout_us=100_000))
        assert refusal.value.code in (Code.GRAPH_TIMED_OUT, Code.COMMON_SYSTEM_COMMUNICATION)


def test_a_signal_serves_one_execution_at_a_time(backend) -> None:
    signal = Signal(backend)
    memory = slow(backend.create_context())
    with signal.in_use(), pytest.raises(QnnError) as refusal:
        memory.binding.execute(signal=signal)
    assert refusal.value.code is Code.GRAPH_SIGNAL_IN_USE


def test_a_configuration_bounds_every_execution() -> None:
    with qnn.Backend("htp", {"htp": {"timeout": 1}}) as backend:
        memory = slow(backend.create_context(), steps=1)
        memory.binding.execute()
        silence(backend)
        with pytest.raises(QnnError) as refusal:
            memory.binding.execute()
        assert refusal.value.code in (Code.GRAPH_TIMED_OUT, Code.COMMON_SYSTEM_COMMUNICATION)


@pytest.mark.parametrize("timeout", [0, -5, 1.5, "x", True, 1 << 64])
def test_invalid_timeouts_are_refused(timeout) -> None:
    with qnn.Backend("cpu") as backend, pytest.raises(QnnError, match="number of microseconds"):
        Signal(backend, timeout_us=timeout)


def test_a_timeout_can_be_taken_back() -> None:
    with qnn.Backend("cpu") as backend:
        signal = Signal(backend, timeout_us=5)
        signal.set_config(SignalConfig.ABORT)
        assert signal.timeout_us is None
        signal.free()
        with pytest.raises(QnnError):
            signal.trigger()


def test_an_execution_that_gets_the_lock_too_late_does_not_begin(backend) -> None:
    memory = slow(backend.create_context())
    signal = Signal(backend, timeout_us=1_000_000_000)
    lock, before = memory.binding._driver._lock, signal._limit._begun
    codes = []

    def execute():
        try:
            memory.binding.execute(signal=signal)
        except QnnError as refusal:
            codes.append(refusal.code)

    with lock:
        thread = threading.Thread(target=execute)
        thread.start()
        assert eventually(lambda: signal._limit._begun != before)
        signal.trigger()
    thread.join(PATIENCE)
    assert codes == [Code.GRAPH_ABORTED]


def test_a_signal_bounds_an_asynchronous_execution_from_its_call_to_its_end(backend) -> None:
    memory = slow(backend.create_context())
    signal, profile = Signal(backend), qnn.Profile(backend)
    first = memory.binding.execute_async()
    given = [[qnn.ClientTensor(*each) for each in views.items()] for views in (memory.inputs, memory.outputs)]
    second = memory.binding.graph.execute_async(*given, profile=profile, signal=signal)
    with pytest.raises(QnnError) as refusal:
        memory.binding.execute_async(signal=signal)
    assert refusal.value.code is Code.GRAPH_SIGNAL_IN_USE
    signal.trigger()
    first.result(PATIENCE)
    with pytest.raises(QnnError) as refusal:
        second.result(PATIENCE)
    assert refusal.value.code is Code.GRAPH_ABORTED
    assert profile.get_events() == ()
    memory.binding.execute_async(profile=profile, signal=signal).result(PATIENCE)
    assert [event.name for event in profile.get_events()] == ["execute"]


def test_an_asynchronous_execution_that_is_not_begun_releases_its_signal(monkeypatch) -> None:
    def refuse(*_):
        raise QnnError(Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL, "graph", "it is full")

    monkeypatch.setattr(asynchronous.ExecutionQueue, "submit", refuse)
    with qnn.Backend("cpu") as backend:
        memory = slow(backend.create_context())
        signal = Signal(backend)
        with pytest.raises(QnnError) as refusal:
            memory.binding.execute_async(signal=signal)
        assert refusal.value.code is Code.GRAPH_EXECUTION_ASYNC_FIFO_FULL
        memory.binding.execute(signal=signal)


@pytest.mark.parametrize("wrong", [{"profile": 7}, {"signal": "soon"}], ids=str)
def test_what_is_no_profile_and_no_signal_is_refused_by_the_call(wrong) -> None:
    with qnn.Backend("cpu") as backend:
        memory = slow(backend.create_context())
        with pytest.raises(QnnError) as refusal:
            memory.binding.execute_async(**wrong)
        assert refusal.value.code is Code.GRAPH_INVALID_ARGUMENT
