"""A shielded call runs where no signal handler reaches it: it ends whole, and an interrupted one leaves nothing."""

import _thread
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from contextlib import suppress
from types import SimpleNamespace
from typing import ClassVar

import pytest
from support import tiny
from support.interruption import Alarm, Interrupt, account, check_every_interrupt, left, twice_everywhere
from support.suites import long
from support.waiting import PATIENCE

from isthmus import QnnError, Session, qnn, session
from isthmus.system import shield
from isthmus.system.interrupts import Finalizer
from isthmus.system.shield import Cancelled, check, shielded

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
BOTH = pytest.mark.parametrize("by", [Interrupt, Alarm])


@shielded
def its_thread():
    return threading.current_thread()


@pytest.fixture
def handler():
    """Sets what SIGUSR1 does, and sets it back."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda function: signal.signal(signal.SIGUSR1, lambda *_: function())
    signal.signal(signal.SIGUSR1, before)


def test_a_call_from_the_main_thread_runs_on_a_helper_and_others_where_they_are() -> None:
    assert its_thread() is not threading.main_thread()
    assert its_thread() is its_thread(), "the helper is kept"
    seen = []
    thread = threading.Thread(target=lambda: seen.append(its_thread()))
    thread.start()
    thread.join()
    assert seen == [thread]


def test_a_call_within_a_call_runs_on_the_same_thread() -> None:
    helper, inner = shielded(lambda: (threading.current_thread(), its_thread()))()
    assert helper is inner


def test_a_result_ends_when_the_caller_drops_it_however_slow_the_helper_is(monkeypatch) -> None:
    dropped = threading.Event()

    class SlowLock:
        """A lock that the helper has released before it goes on, if at all."""

        def __init__(self):
            self.acquire, self._release = (lock := _thread.allocate_lock()).acquire, lock.release

        def release(self):
            self._release()
            assert dropped.wait(PATIENCE)

    slow = SimpleNamespace(allocate_lock=SlowLock, get_ident=_thread.get_ident)
    made = shielded(threading.Thread)
    its_thread()
    monkeypatch.setattr(shield, "_thread", slow)
    try:
        result = made()
        end = weakref.ref(result)
        del result
        assert end() is None
    finally:
        dropped.set()


def test_context_variables_and_keywords_travel_with_a_call() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(3)
    assert shielded(lambda add, to: variable.get() + add + to)(1, to=2) == 6


def test_an_exception_keeps_its_traceback_and_nothing_keeps_the_exception() -> None:
    class Refusal(Exception):
        pass

    def refuse():
        raise Refusal

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(Refusal) as caught:
            shielded(refuse)()
        assert "refuse" in [entry.name for entry in traceback.extract_tb(caught.tb)]
        gone = weakref.ref(caught.value)
        del caught
        assert gone() is None
    finally:
        gc.enable()


def close(descriptor):
    """Close a descriptor, or find that this was done before an interrupt came."""
    with suppress(OSError):
        os.close(descriptor)


class Thing:
    """The owner of a descriptor, made in plain Python: it opens first and sees to the end afterwards."""

    released: ClassVar[list[int]] = []

    @shielded(release=lambda thing: thing.free())
    def __init__(self):
        descriptor = os.memfd_create("test")
        self.end = Finalizer(self, close, descriptor)

    def free(self):
        self.released.append(1)
        self.end.run()


def make():
    return Thing()


@shielded(release=Thing.free)
def make_at_once():
    return Thing()


@BOTH
@pytest.mark.parametrize("create", [make, make_at_once])
def test_what_plain_python_opens_is_released_wherever_it_is_interrupted(create, by) -> None:
    Thing.released.clear()
    assert check_every_interrupt(create, by=by) > 15
    assert Thing.released


@pytest.mark.parametrize("create", [make, make_at_once])
def test_two_interrupts_leave_nothing_either(create) -> None:
    create()
    before, places = account(), 0
    for where in twice_everywhere(create, step=3):
        more = left(before)
        assert not more, f"{more}: interrupted at {where}"
        places += 1
    assert places > 10


def test_an_interrupted_call_is_asked_to_end_and_has_ended_before_the_interrupt_is_raised(handler) -> None:
    events = []

    def interrupt():
        raise Interrupt

    handler(interrupt)

    @shielded
    def endless():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        try:
            while True:
                check()
        except Cancelled:
            events.append("cancelled")
            raise

    with pytest.raises(Interrupt):
        endless()
    assert events == ["cancelled"]
    check()


def test_a_handler_may_make_a_call_while_another_is_waited_for(handler) -> None:
    threads, inner_done = [], threading.Event()

    def call():
        threads.append(its_thread())
        inner_done.set()

    handler(call)

    @shielded
    def outer():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        assert inner_done.wait(PATIENCE)
        return threading.current_thread()

    helper = outer()
    assert threads[0] not in (helper, threading.main_thread())
    before = account()
    for _ in range(5):
        outer()
    assert not left(before), "at most a few helpers are kept"


def test_a_handler_that_comes_into_a_run_may_close_the_session(handler, monkeypatch, tmp_path) -> None:
    """The main thread holds the locks of the run, and may take them again; a helper would wait for ever."""
    opened = Session(tiny.convolution(tmp_path / "convolution.onnx"))
    handler(opened.close)
    clock = session.time.perf_counter

    def interrupted_clock():
        signal.raise_signal(signal.SIGUSR1)
        return clock()

    monkeypatch.setattr(session.time, "perf_counter", interrupted_clock)
    with pytest.raises(QnnError, match=r"freed|closed"):
        opened.run()
    monkeypatch.undo()


def test_a_system_that_starts_no_threads_still_serves_calls(monkeypatch) -> None:
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(shield, "_idle", [])
    monkeypatch.setattr(shield, "start", refuse)
    assert its_thread() is threading.main_thread()


def test_a_forked_child_has_helpers_of_its_own() -> None:
    its_thread()
    child = os.fork()
    if child == 0:
        os._exit(0 if its_thread() is not threading.main_thread() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_call_that_is_waited_for_in_a_forked_child_is_refused_there(handler) -> None:
    children = []
    handler(lambda: children.append(os.fork()))

    @shielded
    def work():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        while not children:
            pass
        return "done"

    try:
        answer = work()
    except QnnError as refusal:
        os._exit(7 if "forked" in str(refusal) else 8)
    if children == [0]:
        os._exit(9)
    assert answer == "done"
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7


def test_calls_are_served_while_the_interpreter_ends() -> None:
    script = (
        "import atexit, sys, threading\n"
        "from isthmus.system.shield import shielded\n"
        "@shielded\n"
        "def where(): print(threading.current_thread().name.startswith('isthmus'))\n"
        "class Late:\n"
        "    def __del__(self, where=where): where()\n"
        "atexit.register(where)\n"
        "where()\n"
        "sys.late = Late()\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ran.stdout.splitlines()) >= 2


def storm(calls):
    """Create, finalize, bind and free in a storm of signals whose handler raises; how many calls were interrupted."""
    hits = 0

    class Stop(Exception):
        pass

    def stop(*_):
        raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with qnn.Backend("cpu") as backend:
            for number in range(calls):
                try:
                    # Aimed at the whole length of the calls, from their first microseconds on.
                    signal.setitimer(signal.ITIMER_REAL, 5e-6 + number % 400 * 5e-6)
                    context = backend.create_context()
                    graph = context.create_graph("graph")
                    dims = (1, 4)
                    x = graph.create_tensor("x", qnn.TensorType.APP_WRITE, qnn.DataType.FLOAT_32, dims)
                    y = graph.create_tensor("y", qnn.TensorType.APP_READ, qnn.DataType.FLOAT_32, dims)
                    graph.add_node("relu", "Relu", [x], [y])
                    context.free()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Stop:
                    hits += 1
                for left_over in list(backend._owned):
                    left_over.free()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
    return hits


@pytest.mark.parametrize("calls", [300, long(15_000)])
def test_a_storm_of_signals_loses_nothing(calls) -> None:
    storm(10)
    gc.collect()
    before = account()
    assert storm(calls) > calls // 100, "how many depends on the speed of the calls"
    gc.collect()
    assert not left(before)
