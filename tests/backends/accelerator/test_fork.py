"""A forked child learns at once that the accelerator is its parent's, whatever other threads did meanwhile."""

import contextlib
import os
import signal
import threading
import time

import pytest
from support.processes import in_child
from support.waiting import PATIENCE, eventually

from backends.accelerator.harness import LONG_SIZE, LoadedGraph, start_run, under_way
from isthmus import Code, QnnError
from isthmus.backends.accelerator import process
from isthmus.backends.accelerator.process import Accelerator
from isthmus.backends.accelerator.queue import Queue
from isthmus.backends.seam.deadlines import Deadlines


@pytest.fixture
def accelerator():
    with Accelerator() as running:
        yield running


def refused(action):
    with pytest.raises(QnnError, match="forked") as refusal:
        action()
    assert refusal.value.code is Code.COMMON_SYSTEM_COMMUNICATION


def everything(accelerator, loaded):
    assert accelerator.forked
    assert not accelerator.alive
    refused(loaded.run)
    refused(lambda: loaded.queue.reset(loaded.graph))
    refused(lambda: accelerator.call("counts"))
    refused(lambda: accelerator.register([(loaded.buffers[0].fd, 0, 16)]))
    refused(lambda: Queue(accelerator))
    loaded.queue.abort()
    accelerator.deregister(loaded.slots)
    loaded.queue.close()
    accelerator.kill("not yours")
    accelerator.close()


def test_a_child_forked_while_another_thread_executes_is_refused(accelerator, content, long_content) -> None:
    loaded, long = LoadedGraph(accelerator, content), LoadedGraph(accelerator, long_content, LONG_SIZE)
    waiting, codes = start_run(long)
    assert eventually(lambda: under_way(long))
    assert in_child(lambda: everything(accelerator, long)) == 0
    assert under_way(long), "the child has not disturbed it"
    assert in_child(lambda: everything(accelerator, loaded)) == 0
    long.queue.abort()
    waiting.join(PATIENCE)
    assert codes == [Code.GRAPH_ABORTED]
    loaded.check()
    loaded.close()
    long.close()


def test_a_child_forked_while_other_threads_hold_every_lock_is_refused(accelerator, content) -> None:
    loaded = LoadedGraph(accelerator, content)
    forked = []
    with accelerator.gate.table_lock, accelerator.connection._lock:
        # The child's thread is another than the one that holds the locks.
        thread = threading.Thread(target=lambda: forked.append(in_child(lambda: everything(accelerator, loaded))))
        thread.start()
        thread.join(PATIENCE)
    assert forked == [0]
    loaded.check()
    loaded.close()


def test_a_child_that_lives_on_does_not_hold_up_the_end_of_the_accelerator(monkeypatch) -> None:
    monkeypatch.setattr(process, "_SECONDS_TO_END", PATIENCE)
    accelerator = Accelerator(deadlines=Deadlines(closing=PATIENCE))
    child = os.fork()
    if child == 0:
        time.sleep(3600)
        os._exit(0)
    try:
        accelerator.close()
        # It ended by itself, since it saw the end of the conversation; it was not killed after a wait.
        assert accelerator.connection._process.returncode == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_holds_no_descriptor_of_its_parents_accelerator(accelerator) -> None:
    socket = os.fstat(accelerator.connection._channel._socket.fileno()).st_ino

    def look():
        for fd in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                assert os.fstat(int(fd)).st_ino != socket

    assert in_child(look) == 0


def test_a_child_can_have_an_accelerator_of_its_own(accelerator, content) -> None:
    def compute():
        with Accelerator() as mine:
            loaded = LoadedGraph(mine, content)
            loaded.check()
            loaded.close()

    loaded = LoadedGraph(accelerator, content)
    assert in_child(compute) == 0
    loaded.check()
    loaded.close()
