"""A signal may interrupt whoever waits for the accelerator: later answers are right, and nothing is left behind."""

import contextlib
import os
import signal
import threading

import pytest
from support.processes import stop
from support.waiting import eventually, interrupted_when, main_in

from backends.accelerator.harness import LONG_SIZE, LoadedGraph, children, exists, under_way
from isthmus import Code, QnnError
from isthmus.backends.accelerator.connection import Connection, Request
from isthmus.backends.accelerator.gate import Gate
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import binary
from isthmus.backends.seam.deadlines import Deadlines
from isthmus.memory import rpcmem
from isthmus.system.shield import Cancelled


@pytest.fixture
def accelerator():
    with Accelerator(deadlines=Deadlines(grace=600)) as running:
        yield running


def waits_for_an_answer():
    """Return whether the main thread waits for the answer to a request that it has sent."""
    frame = main_in(Request.wait)
    return frame is not None and frame.f_locals["self"].begun


@pytest.fixture
def loaded(accelerator, content):
    graph = LoadedGraph(accelerator, content)
    yield graph
    graph.close()


@pytest.mark.parametrize("raised", [KeyboardInterrupt, TimeoutError])
def test_an_interrupted_call_shifts_no_later_answer_and_is_undone(accelerator, loaded, raised) -> None:
    before = accelerator.counts()
    with rpcmem.alloc(25, 1, 4096) as interrupted_memory, rpcmem.alloc(25, 1, 4 * 1000) as output:
        stop(accelerator.pid)
        with interrupted_when(waits_for_an_answer, by=raised), pytest.raises(raised):
            accelerator.register([(interrupted_memory.fd, 0, 4096)])
        os.kill(accelerator.pid, signal.SIGCONT)
        slots = accelerator.register([(output.fd, 0, 4000)])
        with loaded.queue.lock():
            loaded.x[:], loaded.s[:] = 1, 2
            loaded.queue.execute(loaded.graph, [loaded.slots[0], loaded.slots[1], slots[0]])
        assert output.view("float32", (1000,))[0] == pytest.approx(2.7310586)
        assert not any(interrupted_memory.array)
        accelerator.deregister(slots)
        assert accelerator.counts()["memory"] == before["memory"]
        assert accelerator.counts()["descriptors"] == before["descriptors"]
    assert accelerator.alive


def test_an_interrupted_registration_of_many_buffers_is_undone(accelerator, monkeypatch) -> None:
    before = accelerator.counts()["memory"]
    parts = []

    def second_is_interrupted(*arguments, **named):
        parts.append(arguments)
        if len(parts) == 2:
            raise Cancelled
        return Accelerator.answer(accelerator, *arguments, **named)

    with rpcmem.alloc(25, 1, 4096) as buffer:
        with monkeypatch.context() as patch:
            patch.setattr(accelerator, "answer", second_is_interrupted)
            # A message carries at most 64 descriptors, so that 100 buffers are registered in two parts.
            with pytest.raises(Cancelled):
                accelerator.register([(buffer.fd, 0, 4096)] * 100)
        assert accelerator.counts()["memory"] == before


def test_an_interrupted_execution_is_aborted_and_the_queue_still_works(accelerator, loaded, long_content) -> None:
    long = LoadedGraph(accelerator, long_content, LONG_SIZE)
    pid = accelerator.pid
    with interrupted_when(lambda: under_way(long)), pytest.raises(KeyboardInterrupt):
        long.run()
    assert not under_way(long)
    with binary.ContextBinary(long_content) as opened:
        again = long.queue.load(opened)["gate"]
    with long.queue.lock(), pytest.raises(QnnError) as refusal:
        long.queue.execute(again, [*long.slots[:2], 12345])
    assert refusal.value.code is Code.MEM_INVALID_HANDLE
    loaded.check()
    long.close()
    assert accelerator.alive
    assert accelerator.pid == pid


def test_an_interrupted_execution_that_does_not_end_takes_the_accelerator_with_it(accelerator, content) -> None:
    accelerator.deadlines = Deadlines(grace=0.2)
    loaded = LoadedGraph(accelerator, content)
    stop(accelerator.pid)
    with interrupted_when(lambda: under_way(loaded)), pytest.raises(KeyboardInterrupt):
        loaded.run()
    assert not exists(accelerator.pid)
    with pytest.raises(QnnError, match="aborted did not end") as refusal:
        loaded.run()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
    loaded.close()


def test_a_second_interrupt_ends_the_wait_at_once(content) -> None:
    with Accelerator(deadlines=Deadlines(grace=3600)) as accelerator:
        loaded = LoadedGraph(accelerator, content)
        stop(accelerator.pid)
        gives_up = lambda: main_in(Queue._give_up)  # noqa: E731
        with interrupted_when(lambda: under_way(loaded), gives_up), pytest.raises(KeyboardInterrupt):
            loaded.run()
        assert not exists(accelerator.pid)
        loaded.close()


def test_no_execution_begins_before_an_interrupted_load_is_answered_and_undone(accelerator, loaded, content) -> None:
    before = accelerator.counts()["graphs"]
    with binary.ContextBinary(content) as opened:
        stop(accelerator.pid)
        with interrupted_when(waits_for_an_answer), pytest.raises(KeyboardInterrupt):
            loaded.queue.load(opened)
        unanswered = loaded.queue._unsettled
        assert not unanswered.answered

        def go_on_when_it_is_waited_for():
            assert eventually(waits_for_an_answer)
            os.kill(accelerator.pid, signal.SIGCONT)

        going_on = threading.Thread(target=go_on_when_it_is_waited_for)
        going_on.start()
        ring, answered = loaded.queue._call, []

        def note_and_ring(*arguments):
            answered.append(unanswered.answered)
            ring(*arguments)

        loaded.queue._call = note_and_ring
        loaded.check()
        going_on.join()
        assert answered == [True]
    assert accelerator.counts()["graphs"] == before


def test_an_interrupted_start_leaves_no_process() -> None:
    before = children()
    for moment in (lambda: main_in(Connection.start), waits_for_an_answer, lambda: main_in(Connection.join)):
        with contextlib.suppress(KeyboardInterrupt), interrupted_when(moment):
            Accelerator().close()
    assert eventually(lambda: children() <= before)


def test_an_interrupted_opening_of_a_queue_is_undone(accelerator) -> None:
    stop(accelerator.pid)
    with interrupted_when(waits_for_an_answer), pytest.raises(KeyboardInterrupt):
        LoadedGraph(accelerator, b"")
    os.kill(accelerator.pid, signal.SIGCONT)
    accelerator.counts()
    assert accelerator.counts()["queues"] == 0


def test_an_interrupted_wait_for_the_lock_leaves_the_gate_as_it_was() -> None:
    gate = Gate(1, Connection())
    gate.lock("other", 100).acquire()
    with interrupted_when(lambda: gate.waiting), pytest.raises(KeyboardInterrupt):
        gate.lock("mine", 100).acquire()
    gate.lock("other").release()
    assert gate.lock("mine", 100).acquire(0)
