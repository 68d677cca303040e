"""Nothing waits for ever: calls, executions and frees of an accelerator that does not answer all come to an end."""

import math
import threading

import pytest
from support.processes import stop
from support.waiting import PATIENCE, eventually

from backends.accelerator.harness import LONG_SIZE, LoadedGraph, exists, start_run, under_way
from isthmus import Code, QnnError
from isthmus.backends.accelerator.connection import Connection
from isthmus.backends.accelerator.process import Accelerator, request
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam import deadlines
from isthmus.backends.seam.deadlines import Deadlines


def silent(accelerator, content):
    """A graph on an accelerator that has stopped answering, with short time limits."""
    loaded = LoadedGraph(accelerator, content)
    stop(accelerator.pid)
    accelerator.deadlines = Deadlines(control=0.3, execution=0.3, closing=0.3, grace=0.1)
    return loaded


def test_the_environment_sets_the_time_of_executions(monkeypatch) -> None:
    monkeypatch.setenv("ISTHMUS_TIMEOUT", "2.5")
    assert Deadlines.from_environment() == Deadlines(execution=2.5)
    monkeypatch.setenv("ISTHMUS_TIMEOUT", "0")
    assert Deadlines.from_environment().execution == math.inf
    monkeypatch.delenv("ISTHMUS_TIMEOUT")
    assert Deadlines.from_environment() == Deadlines()


@pytest.mark.parametrize("text", ["-1", "soon", "nan"])
def test_an_invalid_time_limit_is_refused(monkeypatch, text) -> None:
    monkeypatch.setenv("ISTHMUS_TIMEOUT", text)
    with pytest.raises(QnnError, match="ISTHMUS_TIMEOUT"):
        Deadlines.from_environment()
    with pytest.raises(QnnError, match="deadline closing"):
        Deadlines(closing=text)  # type: ignore[arg-type]


@pytest.mark.parametrize("own", [0.2, 0.01, None])
def test_an_execution_that_takes_too_long_is_aborted_and_others_continue(content, long_content, own) -> None:
    with Accelerator(deadlines=Deadlines(execution=0.3, grace=600)) as accelerator:
        loaded, long = LoadedGraph(accelerator, content), LoadedGraph(accelerator, long_content, LONG_SIZE)
        for _ in range(2):
            with pytest.raises(QnnError) as refusal:
                long.run(own)
            assert refusal.value.code is Code.GRAPH_TIMED_OUT
            assert not under_way(long)
        accelerator.deadlines = Deadlines()
        loaded.check()
        long.close()
        loaded.close()


def test_an_execution_in_time_is_not_disturbed_by_its_limit(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        loaded.run(PATIENCE)
        loaded.check()
        loaded.close()


def test_an_execution_can_be_aborted_by_another_thread(content, long_content) -> None:
    with Accelerator() as accelerator:
        long, loaded = LoadedGraph(accelerator, long_content, LONG_SIZE), LoadedGraph(accelerator, content)
        waiting, codes = start_run(long)
        assert eventually(lambda: under_way(long))
        long.queue.abort()
        waiting.join(PATIENCE)
        assert codes == [Code.GRAPH_ABORTED]
        loaded.queue.abort()
        loaded.check()
        long.close()
        loaded.close()


def test_an_accelerator_that_does_not_answer_is_ended_and_every_wait_with_it(content) -> None:
    def attempt(action):
        with Accelerator() as accelerator:
            loaded = silent(accelerator, content)
            try:
                return action(accelerator, loaded)
            finally:
                loaded.close()
                accelerator.close()
                assert not exists(accelerator.pid)

    def refused(action):
        with pytest.raises(QnnError) as refusal:
            action()
        return refusal.value.code

    gone, late = Code.COMMON_SYSTEM_COMMUNICATION, Code.GRAPH_TIMED_OUT
    assert attempt(lambda _, loaded: refused(loaded.run)) is late
    assert attempt(lambda accelerator, _: refused(lambda: accelerator.call("counts"))) is gone
    assert attempt(lambda accelerator, _: refused(lambda: Queue(accelerator))) is gone
    assert attempt(lambda _, loaded: loaded.queue.close()) is None
    assert attempt(lambda accelerator, _: accelerator.close()) is None


def test_calls_after_an_accelerator_was_ended_raise_the_reason(content) -> None:
    with Accelerator() as accelerator:
        loaded = silent(accelerator, content)
        with pytest.raises(QnnError, match="did not answer the call 'counts' within"):
            accelerator.call("counts")
        with pytest.raises(QnnError, match="did not answer the call 'counts' within"):
            loaded.run()
        loaded.close()


def test_closing_aborts_an_execution_that_does_not_end(long_content) -> None:
    with Accelerator(deadlines=Deadlines(closing=0.2, grace=600)) as accelerator:
        long = LoadedGraph(accelerator, long_content, LONG_SIZE)
        codes = []

        def wait():
            with long.queue.lock():
                try:
                    long.queue.execute(long.graph, long.slots)
                except QnnError as problem:
                    codes.append(problem.code)
                # Calls after this execution get the usual time limits.
                accelerator.deadlines = Deadlines()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert eventually(lambda: under_way(long))
        long.queue.close()
        waiting.join(PATIENCE)
        assert codes == [Code.GRAPH_ABORTED]
        assert accelerator.counts()["queues"] == 0


def test_a_lock_that_is_not_acquired_in_time_is_refused(content) -> None:
    with Accelerator() as accelerator:
        loaded = LoadedGraph(accelerator, content)
        entered, over = threading.Event(), threading.Event()

        def hold():
            with loaded.queue.lock():
                entered.set()
                over.wait(PATIENCE)

        thread = threading.Thread(target=hold)
        thread.start()
        assert entered.wait(PATIENCE)
        with pytest.raises(QnnError) as refusal:
            loaded.queue.under_lock(lambda: None, 0.01)
        over.set()
        thread.join()
        assert refusal.value.code is Code.GRAPH_TIMED_OUT
        loaded.check()
        loaded.close()


def test_time_in_which_the_client_itself_was_stopped_does_not_count(monkeypatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(deadlines.time, "monotonic", lambda: clock[0])
    patience = deadlines.Patience(10)
    for seconds in (0.5, 0.5, 3600, 0.5):
        clock[0] += seconds
        left = patience.left()
    # Of a jump of the clock at most two chunks count.
    assert left == 10 - 0.5 - 0.5 - 2 * deadlines.CHUNK - 0.5


def in_time(action):
    """Do something in another thread, and see that it ends."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_call_that_was_interrupted_gives_later_ones_no_time(content) -> None:
    with Accelerator() as accelerator:
        loaded = silent(accelerator, content)
        interrupted = request("counts")
        accelerator.connection.post(interrupted)
        assert eventually(lambda: interrupted.begun)
        accelerator.connection.abandon(interrupted)
        in_time(loaded.queue.close)
        assert not accelerator.alive
        assert not exists(accelerator.pid)


def test_a_load_that_was_interrupted_does_not_keep_its_queue_from_closing(content) -> None:
    with Accelerator() as accelerator:
        loaded = silent(accelerator, content)
        loaded.queue._unsettled = interrupted = request("reset", graph=loaded.graph)
        accelerator.connection.post(interrupted)
        assert eventually(lambda: interrupted.begun)
        accelerator.connection.abandon(interrupted)
        accelerator.deadlines = Deadlines(closing=0.3)
        in_time(loaded.queue.close)
        assert not accelerator.alive


def test_the_deadline_of_a_call_counts_the_time_of_those_before_it_that_others_wait_for() -> None:
    connection = Connection()
    first, second, third = (request("counts") for _ in range(3))
    for each in (first, second):
        each.seconds = 10
        assert connection.post(each)
    third.seconds = 1
    assert connection.seconds_to_wait(third) == 21
    connection.abandon(first)
    assert connection.seconds_to_wait(third) == 11, "nobody waits for what was interrupted"
    second.settle({}, None)
    assert connection.seconds_to_wait(third) == 1


def test_a_queue_is_closed_while_others_keep_all_units_busy(content, long_content) -> None:
    with Accelerator(units=1, deadlines=Deadlines(closing=PATIENCE)) as accelerator:
        loaded, long = LoadedGraph(accelerator, content), LoadedGraph(accelerator, long_content, LONG_SIZE)
        waiting, codes = start_run(long)
        assert eventually(lambda: under_way(long))
        in_time(loaded.close)
        assert under_way(long)
        long.queue.abort()
        waiting.join(PATIENCE)
        assert codes == [Code.GRAPH_ABORTED]
        long.close()


def test_a_process_that_does_not_start_in_time_is_refused(monkeypatch) -> None:
    over = threading.Event()

    def slow(*_, **__):
        over.wait(PATIENCE)
        raise OSError("its caller no longer waits for it")

    monkeypatch.setattr("isthmus.backends.accelerator.connection.Child", slow)
    with pytest.raises(QnnError, match=r"did not start within 0\.01 s") as refusal:
        Connection().start(0.01)
    over.set()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION
