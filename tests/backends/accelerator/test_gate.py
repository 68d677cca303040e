"""Executions enter in the order of their priority, one of a queue at a time, and as many as there are units."""

import threading
import time

from support.waiting import PATIENCE, run_in_threads

from isthmus.backends.accelerator.connection import Connection
from isthmus.backends.accelerator.gate import Gate


def enter_later(gate, queue, priority, log, name):
    def life():
        gate.lock(queue, priority).acquire()
        log.append(name)
        gate.lock(queue).release()

    thread = threading.Thread(target=life)
    thread.start()
    while len(gate.waiting) + len(log) == 0 or not any(w.queue is queue for w in gate.waiting):
        time.sleep(0.001)
        if not thread.is_alive():
            break
    return thread


def test_higher_priorities_enter_first_and_equal_ones_in_order() -> None:
    gate, log = Gate(1, Connection()), []
    gate.lock("first", 100).acquire()
    queues = [(f"queue {n}", priority) for n, priority in enumerate((0, 100, 200, 100, 150))]
    threads = [enter_later(gate, queue, priority, log, (priority, queue)) for queue, priority in queues]
    gate.lock("first").release()
    for thread in threads:
        thread.join()
    assert [priority for priority, _ in log] == [200, 150, 100, 100, 0]
    assert [queue for priority, queue in log if priority == 100] == ["queue 1", "queue 3"]


def test_a_busy_queue_does_not_hold_up_another() -> None:
    gate, log = Gate(2, Connection()), []
    gate.lock("busy", 100).acquire()
    blocked = enter_later(gate, "busy", 200, log, "same queue")
    free = enter_later(gate, "other", 0, log, "other queue")
    free.join()
    assert log == ["other queue"]
    gate.lock("busy").release()
    blocked.join()
    assert log == ["other queue", "same queue"]


def test_a_lock_that_is_not_acquired_in_time_is_not_held() -> None:
    gate = Gate(1, Connection())
    assert gate.lock("first", 100).acquire()
    for seconds in (0, 0.01):
        assert not gate.lock("other", 100).acquire(seconds)
        assert not gate.waiting, "nobody waits any longer"
    gate.lock("other").release()
    assert not gate.lock("other", 100).acquire(0), "what one has not, one cannot end"
    gate.lock("first").release()
    assert gate.lock("other", 100).acquire(0)


def test_a_thread_that_holds_the_lock_may_acquire_it_again() -> None:
    gate = Gate(1, Connection())
    assert gate.lock("queue", 100).acquire()
    assert gate.lock("queue", 100).acquire(0)
    gate.lock("queue").release()
    gate.lock("queue").release()
    assert gate.lock("other", 100).acquire(0)


def test_no_more_executions_run_than_there_are_units() -> None:
    gate, running, most = Gate(3, Connection()), [], []
    lock, full = threading.Lock(), threading.Event()

    def life(queue):
        for _ in range(20):
            gate.lock(queue, 100).acquire()
            with lock:
                running.append(queue)
                most.append(len(running))
                assert len(set(running)) == len(running), "one execution of a queue at a time"
                if len(running) == 3:
                    full.set()
            # The first ones stay until there are as many as can be.
            full.wait(PATIENCE)
            with lock:
                running.remove(queue)
            gate.lock(queue).release()

    run_in_threads(lambda n: life(n % 5), range(10))
    assert max(most) == 3


def test_a_call_that_executes_nothing_waits_for_its_own_queue_only() -> None:
    gate = Gate(1, Connection())
    assert gate.lock("busy", 200).acquire()
    assert gate.lock("other", 0).acquire(0, unit=False)
    assert not in_another_thread(lambda: gate.lock("busy", 200).acquire(0, unit=False)), "one of a queue at a time"
    assert not in_another_thread(lambda: gate.lock("third", 200).acquire(0)), "the unit is taken"
    gate.lock("busy").release()
    assert in_another_thread(lambda: gate.lock("third", 200).acquire(0)), "a turn without a unit takes none away"


def in_another_thread(ask):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    thread.join(PATIENCE)
    return answers[0]
