"""A fair turn is given in the order of asking, and is not lost when somebody stops waiting."""

import os
import signal
import threading

import pytest

from isthmus.backends.turn import FairTurn


def started(target):
    thread = threading.Thread(target=target)
    thread.start()
    return thread


def waiting(turn, count):
    while len(turn._waiting) < count:
        pass


def test_those_who_wait_are_called_in_the_order_of_asking():
    turn, order, threads = FairTurn(), [], []

    def take(number):
        with turn:
            order.append(number)

    turn.acquire()
    for number in range(5):
        threads.append(started(lambda number=number: take(number)))
        waiting(turn, number + 1)
    turn.release()
    with turn:
        order.append("the one who had it")
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4, "the one who had it"]
    assert not turn.is_taken


def test_one_who_stops_waiting_is_passed_over():
    class Interrupted(Exception):
        pass

    def interrupt(number, frame):
        raise Interrupted

    turn, go_on = FairTurn(), threading.Event()

    def hold():
        with turn:
            waiting(turn, 1)
            os.kill(os.getpid(), signal.SIGUSR1)
            go_on.wait(10)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        thread = started(hold)
        while not turn.is_taken:
            pass
        with pytest.raises(Interrupted):
            turn.acquire()
    finally:
        signal.signal(signal.SIGUSR1, before)
    go_on.set()
    thread.join()
    assert not turn.is_taken
    with turn:
        pass


@pytest.mark.parametrize("threads", [2, 4])
def test_only_one_has_it_at_a_time(threads):
    turn, inside, most = FairTurn(), [], []

    def work():
        for _ in range(300):
            with turn:
                inside.append(1)
                most.append(len(inside))
                inside.pop()

    for thread in [started(work) for _ in range(threads)]:
        thread.join()
    assert max(most) == 1
    assert len(most) == 300 * threads
