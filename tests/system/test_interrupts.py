"""What is opened has an owner, what is started is known, what is forgotten is ended: wherever an interrupt comes."""

import _thread
import gc
import os
import subprocess
import sys
import threading
import warnings

import pytest
from support.interruption import Alarm, Interrupt, account, check_every_interrupt, everywhere
from support.processes import descriptors, opened_since
from support.waiting import PATIENCE

from isthmus.system import interrupts
from isthmus.system.interrupts import Finalizer, own_fd, run_pending, start, warn_forgotten

BOTH = pytest.mark.parametrize("by", [Interrupt, Alarm])


class Owner:
    """Somebody who may be forgotten."""


def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@BOTH
def test_no_descriptor_is_lost_where_it_is_opened(by) -> None:
    def action():
        own = own_fd(os.memfd_create, "test", os.MFD_CLOEXEC)
        os.fstat(own.fileno())

    assert check_every_interrupt(action, by=by) > 5


def test_an_interrupt_loses_a_descriptor_that_is_opened_plainly() -> None:
    """Shows that the test above can fail."""

    def action():
        os.close(os.memfd_create("test", os.MFD_CLOEXEC))

    before = account()
    lost = [where for where in everywhere(action) if len(account()["descriptors"]) > len(before["descriptors"])]
    assert lost
    for number in set(account()["descriptors"]) - set(before["descriptors"]):
        if is_open(int(number)):
            os.close(int(number))


def test_a_descriptor_is_closed_by_close_at_the_end_of_a_block_and_when_collected() -> None:
    before = descriptors()
    reported, forgotten = (own_fd(os.open, "/proc", os.O_RDONLY) for _ in range(2))
    with own_fd(os.dup, reported.fileno()) as kept:
        number = kept.fileno()
        assert is_open(number)
    assert not is_open(number)
    reported.close()
    reported.close()
    with pytest.raises(ValueError, match="closed"):
        reported.fileno()
    del forgotten
    assert not opened_since(before)


def test_what_cannot_be_opened_is_refused_as_ever() -> None:
    with pytest.raises(FileNotFoundError):
        own_fd(os.open, "/no/such/file", os.O_RDONLY)


@BOTH
def test_a_thread_whose_start_is_interrupted_runs_whole_or_never(by) -> None:
    made = []

    def action():
        made.append([])
        thread = threading.Thread(target=made[-1].append, args=("ran",))
        made[-1].append(thread)
        start(thread)
        thread.join()

    def check(where):
        thread, *ran = made[-1] if made and made[-1] else [threading.Thread()]
        assert ran == ([] if thread.ident is None else ["ran"]), where
        assert not thread.is_alive()
        assert thread not in threading.enumerate()
        made.clear()

    assert check_every_interrupt(action, check, by=by) > 20


def test_a_system_that_starts_no_more_threads_says_so(monkeypatch) -> None:
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        start(threading.Thread(target=print))


@BOTH
def test_a_finalizer_completes_wherever_it_is_interrupted(by) -> None:
    done, made = set(), []

    def action():
        owner, key = Owner(), object()
        ending = Finalizer(owner, done.add, key)
        made.append(key)
        del owner, ending

    for where in everywhere(action, by=by):
        run_pending()
        assert done >= set(made), where
    assert len(done) > 10


def test_a_finalizer_runs_once_and_never_after_it_is_detached() -> None:
    done = []
    owner = Owner()
    ending, other = Finalizer(owner, done.append, 1), Finalizer(owner, done.append, 2)
    other.forget()
    ending.run()
    ending.run()
    del owner
    gc.collect()
    assert done == [1]
    assert not ending.waits


def test_an_ending_is_done_for_what_ends_in_a_cycle() -> None:
    done = []
    owner = Owner()
    owner.itself = owner
    Finalizer(owner, done.append, 1)
    del owner
    gc.collect()
    assert done == [1]


def test_an_ending_may_make_and_end_something_that_has_an_ending_itself(monkeypatch) -> None:
    reported, done = [], []
    monkeypatch.setattr("sys.unraisablehook", reported.append)

    def end():
        inner = Owner()
        Finalizer(inner, done.append, "inner")
        del inner
        done.append("outer")

    owner = Owner()
    Finalizer(owner, end)
    del owner
    assert (done, reported) == (["outer", "inner"], [])


@BOTH
def test_nested_finalizers_complete_wherever_they_are_interrupted(by) -> None:
    done, made = set(), []

    def end(key):
        inner = Owner()
        Finalizer(inner, done.add, (key, "inner"))
        del inner
        done.add(key)

    def action():
        owner, key = Owner(), object()
        ending = Finalizer(owner, end, key)
        made.append(key)
        del owner, ending

    for where in everywhere(action, by=by):
        run_pending()
        assert done >= {*made, *((key, "inner") for key in made)}, where
    assert len(made) > 10


def test_a_warning_that_is_an_error_goes_no_further(monkeypatch) -> None:
    reported = []
    monkeypatch.setattr(sys, "excepthook", lambda *problem: pytest.fail("nothing ends by it"))
    monkeypatch.setattr(sys, "unraisablehook", lambda problem: reported.append(problem.exc_type))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_forgotten("it was dropped")
    assert reported == [ResourceWarning]


def test_an_ending_that_another_thread_is_at_too_is_not_begun_again_within_itself() -> None:
    main, calls, both, over = threading.get_ident(), [], threading.Event(), threading.Event()
    other = threading.Thread(target=run_pending, daemon=True)

    def end():
        calls.append(threading.get_ident() == main)
        if not calls[-1]:
            both.set()
            over.wait(PATIENCE)
        elif not both.is_set():
            other.start()
            assert both.wait(PATIENCE)
            run_pending()
            over.set()

    owner = Owner()
    Finalizer(owner, end)
    del owner
    other.join(PATIENCE)
    assert not other.is_alive()
    assert calls == [True, False]


def test_a_finalizer_may_run_at_exit() -> None:
    script = (
        "from isthmus.system.interrupts import Finalizer\n"
        "class Owner: ...\n"
        "owner, other = Owner(), Owner()\n"
        "Finalizer(owner, print, 'done', at_exit=True), Finalizer(other, print, 'never')\n"
        "import os, atexit; atexit.register(lambda: None)\n"
        "keep = globals(); import builtins; builtins.keep = (owner, other)\n"
    )
    reported = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert reported.stdout.splitlines()[0] == "done"


def test_a_finalizer_that_fails_is_reported_and_does_not_stop_the_others(monkeypatch) -> None:
    reported, done = [], []
    monkeypatch.setattr("sys.unraisablehook", reported.append)
    monkeypatch.setattr(sys, "excepthook", lambda *problem: pytest.fail("nothing ends by it"))

    def fail():
        raise ValueError("no end")

    owner, next_owner = Owner(), Owner()
    Finalizer(owner, fail)
    Finalizer(next_owner, done.append, 1)
    del owner
    assert [str(one.exc_value) for one in reported] == ["no end"]
    assert "fail" in repr(reported[0].object)
    assert "given up" in repr(reported[0].object)
    del next_owner
    Finalizer(Owner(), done.append, 2)
    assert done == [1, 2]
    assert len(reported) == 1


def test_what_a_handler_raises_within_an_ending_is_the_clients_and_the_ending_is_done(monkeypatch) -> None:
    reported, tries = [], []
    monkeypatch.setattr("sys.unraisablehook", reported.append)

    def interrupted_once():
        tries.append(1)
        if len(tries) == 1:
            raise TimeoutError

    owner = Owner()
    Finalizer(owner, interrupted_once)
    del owner
    run_pending()
    assert len(tries) == 2
    # Python itself tells of what a reference's callback raises.
    assert [one.exc_type for one in reported] == [TimeoutError]


def test_a_finalizer_that_fails_is_reported_by_pythons_own_hook_too() -> None:
    script = (
        "import sys\n"
        "from isthmus.system.interrupts import Finalizer\n"
        "sys.excepthook = lambda *problem: print('a crash')\n"
        "class Owner: ...\n"
        "owner = Owner()\n"
        "ending = Finalizer(owner, lambda: 1 / 0)\n"
        "del owner\n"
        "print('goes on')"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert (ran.returncode, ran.stdout) == (0, "goes on\n")
    assert "Exception ignored" in ran.stderr.splitlines()[0]
    assert ran.stderr.splitlines()[-1].startswith("ZeroDivisionError")


def test_a_thread_that_dies_before_it_begins_is_no_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a system short of memory does: the thread is there, and nothing of it is run."""
    start_thread = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", lambda begin, arguments: start_thread(int, ()))
    thread = threading.Thread(target=int)
    with pytest.raises(RuntimeError, match="ended before it began"):
        start(thread)
    assert thread.ident is None


def test_a_thread_that_python_cannot_set_up_is_no_wait_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_SECONDS_TO_START", 0.05)
    over = threading.Event()
    thread = threading.Thread(target=int)
    monkeypatch.setattr(thread, "start", lambda: over.wait(PATIENCE))
    with pytest.raises(RuntimeError, match="did not start within"):
        start(thread)
    over.set()
