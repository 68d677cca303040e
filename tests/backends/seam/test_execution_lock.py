"""A fair lock is given to threads in the order in which they ask, and is not lost when one stops waiting."""

import contextlib
import os
import signal
import threading

import pytest
from support.interruption import Alarm, Interrupt, everywhere, twice_everywhere
from support.waiting import PATIENCE, eventually

from isthmus import qnn
from isthmus.backends.seam.execution_lock import FairLock, _Place
from isthmus.graph import DataType, TensorType

OUTSIDE = ("threading", "test_execution_lock", "waiting")
"""What is not the lock's."""


def started(target):
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def in_line_after(lock, last):
    """Wait until another thread has queued behind `last`, the waiter that was the last one."""
    assert eventually(lambda: lock._last is not last)


def test_threads_that_wait_get_the_lock_in_the_order_of_asking() -> None:
    lock, order, threads = FairLock(), [], []

    def take(number):
        with lock:
            order.append(number)

    lock.acquire()
    for number in range(5):
        last = lock._last
        threads.append(started(lambda number=number: take(number)))
        in_line_after(lock, last)
    lock.release()
    with lock:
        order.append("the one who had it")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, "the one who had it"]
    assert not lock.is_taken


def test_a_thread_that_stops_waiting_is_passed_over() -> None:
    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    lock, go_on = FairLock(), threading.Event()
    last = lock._last

    def hold():
        with lock:
            in_line_after(lock, last)
            os.kill(os.getpid(), signal.SIGUSR1)
            go_on.wait(PATIENCE)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thread = started(hold)
        while not lock.is_taken:
            pass
        with pytest.raises(Interrupted):
            lock.acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
    go_on.set()
    thread.join()
    assert not lock.is_taken
    with lock:
        pass


@pytest.mark.parametrize("threads", [2, 4])
def test_only_one_thread_has_the_lock_at_a_time(threads) -> None:
    lock, inside, most = FairLock(), [], []

    def work():
        for _ in range(300):
            with lock:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    for thread in [started(work) for _ in range(threads)]:
        thread.join()
    assert max(most) == 1
    assert len(most) == 300 * threads


class Interrupted(Exception):
    """What the handler of a signal raises."""


def raise_interrupted(number, frame):
    raise Interrupted


@pytest.fixture
def until_interrupted():
    """Calls something again and again until a signal comes, wherever in it that may be."""

    def repeat(call):
        with contextlib.suppress(Interrupted):
            signal.setitimer(signal.ITIMER_VIRTUAL, 1e-5)
            while True:
                call()

    before = signal.signal(signal.SIGVTALRM, raise_interrupted)
    yield repeat
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def test_an_interrupt_at_any_moment_leaves_the_lock_free(until_interrupted) -> None:
    lock = FairLock()

    def take():
        with lock:
            pass

    for _ in range(100):
        until_interrupted(take)
        assert not lock.is_taken


def test_an_interrupt_at_any_moment_leaves_the_lock_to_the_next_thread(until_interrupted) -> None:
    lock, over, taken = FairLock(), threading.Event(), []

    def take():
        with lock:
            pass

    def rival():
        while not over.is_set():
            take()
        taken.append(1)

    threads = [started(rival) for _ in range(2)]
    for _ in range(30):
        until_interrupted(take)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(taken) == 2
    assert not lock.is_taken
    assert not lock.is_awaited


class ContendedLock:
    """A lock that another thread holds until the main thread waits for it, and the main thread's attempt to take it."""

    def __init__(self):
        self.lock, self._holders = FairLock(), []

    def take(self):
        taken, last = threading.Event(), self.lock._last

        def hold():
            with self.lock:
                taken.set()
                eventually(lambda: self.lock._last is not last or over.is_set())

        over = threading.Event()
        self._holders.append(started(hold))
        assert taken.wait(PATIENCE)
        try:
            with self.lock:
                pass
        finally:
            over.set()

    def check(self, where):
        while self._holders:
            self._holders.pop().join(PATIENCE)
        assert not self.lock.is_taken, where
        assert not self.lock.is_awaited, where
        other = started(lambda: self.lock.acquire() or self.lock.release())
        other.join(PATIENCE)
        assert not other.is_alive(), where


@pytest.mark.parametrize("by", [Interrupt, Alarm])
def test_an_interrupt_while_waiting_leaves_the_lock_to_other_threads(by) -> None:
    contended = ContendedLock()
    places = [contended.check(where) for where in everywhere(contended.take, by=by, outside=OUTSIDE)]
    assert len(places) > 2


def test_a_second_interrupt_while_waiting_leaves_the_lock_to_other_threads() -> None:
    contended = ContendedLock()
    places = [contended.check(where) for where in twice_everywhere(contended.take, by=Alarm, outside=OUTSIDE)]
    assert len(places) > 2


@pytest.mark.parametrize("by", [Interrupt, Alarm])
def test_two_interrupts_leave_a_lock_without_other_waiters_free(by) -> None:
    lock = FairLock()

    def take():
        with lock:
            pass

    for where in twice_everywhere(take, by=by):
        assert not lock.is_taken, where


def test_a_thread_that_stops_waiting_does_not_change_the_order_of_the_others() -> None:
    lock, order = FairLock(), []

    def take(number):
        with lock:
            order.append(number)

    lock.acquire()
    last = lock._last
    first = started(lambda: take(1))
    in_line_after(lock, last)
    # A waiter that was interrupted while others still waited before it.
    gone = _Place()
    gone.before, lock._last = lock._last, gone
    gone.occupied.release()
    second = started(lambda: take(2))
    in_line_after(lock, gone)
    lock.release()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert order == [1, 2]


@pytest.mark.parametrize("backend", ["cpu", "lpai"])
def test_an_interrupted_execution_leaves_the_graph_to_other_threads(backend, until_interrupted) -> None:
    with qnn.Backend(backend) as opened:
        graph = opened.create_context().create_graph("relu")
        x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 8))
        y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, 8))
        graph.add_node("relu", "Relu", [x], [y])
        execute = graph.allocate().binding.execute
        for _ in range(100):
            until_interrupted(execute)
            thread = started(execute)
            thread.join(PATIENCE)
            assert not thread.is_alive()
