"""An interrupt at any place of a call to the accelerator leaves nothing there, and no lock held."""

import threading

import pytest
from support.interruption import Alarm, Interrupt, check_every_interrupt, everywhere, twice_everywhere
from support.suites import LONG
from support.waiting import PATIENCE

from backends.accelerator.harness import LoadedGraph, children
from isthmus.backends.accelerator.connection import Connection
from isthmus.backends.accelerator.gate import Gate
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary
from isthmus.memory import rpcmem
from isthmus.system import isolated
from isthmus.system.interrupts import run_pending

pytestmark = [LONG, pytest.mark.filterwarnings("ignore::ResourceWarning")]
BOTH = pytest.mark.parametrize("by", [Interrupt, Alarm])
PURE = ("json", "serialization", "words", "dataclasses")
"""What only computes."""


@pytest.fixture(scope="module")
def accelerator():
    with Accelerator() as running:
        yield running


@pytest.fixture(scope="module")
def loaded(accelerator, content):
    graph = LoadedGraph(accelerator, content)
    yield graph
    graph.close()


@pytest.fixture
def as_before(accelerator, loaded):
    """A check that the accelerator holds what it held before, and that the gate lets other threads in."""

    def held():
        # Calls are answered in order: what was undone without waiting is done when this is.
        run_pending()
        return {name: accelerator.call("counts")[name] for name in ("queues", "graphs", "memory")}

    before = held()

    def check(where):
        assert not accelerator.gate.busy, where
        assert not accelerator.gate.waiting, where
        assert held() == before, where

    return check


def enter(gate, entered):
    entered.append(gate.lock("other", 100).acquire(PATIENCE))
    gate.lock("other").release()


def enter_and_leave(gate):
    try:
        gate.lock("queue", 100).acquire()
    finally:
        gate.lock("queue").release()


@BOTH
def test_entering_and_leaving_the_gate_may_be_interrupted_anywhere(by) -> None:
    gate = Gate(1, Connection())
    for where in everywhere(lambda: enter_and_leave(gate), by=by):
        # If the release itself was interrupted, this thread is still inside the gate, and leaves once more.
        assert gate.lock("queue", 100).acquire(0), where
        gate.lock("queue").release()
        entered = []
        other = threading.Thread(target=enter, args=(gate, entered))
        other.start()
        other.join()
        assert entered == [True], where
        assert not gate.busy, where


@BOTH
def test_a_wait_at_the_gate_that_times_out_may_be_interrupted_anywhere(by) -> None:
    gate = Gate(1, Connection())
    gate.busy["other"] = -1, True

    def action():
        assert not gate.lock("queue", 100).acquire(0.001)

    for where in everywhere(action, by=by):
        assert gate.busy == {"other": (-1, True)}, where
        assert not gate.waiting, where


def test_entering_the_gate_and_a_wait_that_times_out_may_be_interrupted_twice() -> None:
    gate = Gate(1, Connection())
    for where in twice_everywhere(lambda: enter_and_leave(gate), by=Alarm):
        assert gate.lock("queue", 100).acquire(0), where
        gate.lock("queue").release()
        assert not gate.busy, where
        assert not gate.waiting, where
    gate.busy["other"] = -1, True
    for where in twice_everywhere(lambda: gate.lock("queue", 100).acquire(0.001), by=Alarm, step=3):
        assert gate.busy == {"other": (-1, True)}, where
        assert not gate.waiting, where


def test_a_release_that_was_interrupted_does_not_block_other_threads() -> None:
    gate, entered = Gate(1, Connection()), []
    gate.lock("mine", 100).acquire()
    thread = threading.Thread(target=enter, args=(gate, entered))
    thread.start()
    while not gate.waiting:
        pass
    # This is the state after a `leave` that was interrupted before it woke the next thread.
    del gate.busy["mine"]
    thread.join()
    assert entered == [True]


@BOTH
def test_an_execution_may_be_interrupted_anywhere(accelerator, loaded, as_before, by) -> None:
    def check(where):
        as_before(where)
        loaded.check()

    run = lambda: loaded.queue.execute(loaded.graph, loaded.slots)  # noqa: E731
    assert check_every_interrupt(lambda: loaded.queue.under_lock(run), check, by=by) > 10


def test_closing_a_queue_may_be_interrupted_anywhere(accelerator, loaded, as_before) -> None:
    def action():
        queue = Queue(accelerator)
        queue.close()

    assert check_every_interrupt(action, as_before, outside=PURE) > 100


def test_creating_and_forgetting_a_queue_may_be_interrupted_anywhere(accelerator, loaded, as_before) -> None:
    assert check_every_interrupt(lambda: Queue(accelerator), as_before, by=Alarm, outside=PURE) > 100


def test_registering_and_deregistering_memory_may_be_interrupted_anywhere(accelerator, loaded, as_before) -> None:
    with rpcmem.alloc(25, 1, 4096) as buffer:
        windows = [(buffer.fd, 0, 4096)] * 3
        check_every_interrupt(lambda: accelerator.deregister(accelerator.register(windows)), as_before, outside=PURE)


def test_registering_memory_and_forgetting_its_slots_may_be_interrupted_anywhere(
    accelerator, loaded, as_before
) -> None:
    with rpcmem.alloc(25, 1, 4096) as buffer:
        windows = [(buffer.fd, 0, 4096)] * 3
        check_every_interrupt(lambda: accelerator.register(windows), as_before, by=Alarm, outside=PURE)


def test_loading_graphs_may_be_interrupted_anywhere(accelerator, loaded, as_before, content) -> None:
    def action():
        queue = Queue(accelerator)
        try:
            with binary.ContextBinary(content) as opened:
                queue.load(opened)
        finally:
            try:
                queue.close()
            except BaseException:
                queue.close()
                raise

    check_every_interrupt(action, as_before, outside=PURE, most=150)


@BOTH
def test_the_start_of_a_process_may_be_interrupted_anywhere(monkeypatch, by) -> None:
    monkeypatch.setattr(isolated, "command", lambda *_: ["/bin/cat"])
    before = children()

    def action():
        connection = Connection()
        try:
            connection.start()
        finally:
            try:
                connection.kill_and_join("enough")
            except BaseException:
                connection.kill_and_join("enough")
                raise

    check_every_interrupt(action, by=by, most=60)
    assert children() <= before
