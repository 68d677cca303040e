"""Long work shows how far it has come on a terminal that can erase lines, and nothing anywhere else."""

import fcntl
import io
import os
import pty
import struct
import termios
import threading
import time
import types

import pytest

from isthmus.system import progress as module
from isthmus.system.progress import Progress, above, progress, show_progress, stages

ERASE = "\r\x1b[K"


class Terminal(io.StringIO):
    """A terminal that remembers everything that it was sent."""

    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """The time as the module sees it: it passes when a test says so."""
    clock = types.SimpleNamespace(now=time.monotonic())
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as standard error, without delays and without drawing by itself."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(module, "sys", types.SimpleNamespace(stderr=terminal))
    for name, seconds in {"_DELAY": 0, "_INTERVAL": 0, "_TICK": 3600}.items():
        monkeypatch.setattr(module, name, seconds)
    return terminal


def lines(terminal):
    """List what the terminal's last line was, one text after the other."""
    return terminal.getvalue().split(ERASE)[1:]


def line(seconds, *arguments, **options):
    """Return the line after this many seconds."""
    return Progress(*arguments, **options, _began=0.0).line(now=seconds)


def test_the_line_has_the_time_left_once_a_step_is_done() -> None:
    assert line(5, "runs", 4) == f"[{'.' * 24}] 0 of 4 runs, 5 s"
    assert line(5, "runs", 4, done=1) == f"[{'#' * 6}{'.' * 18}] 1 of 4 runs, about 15 s left"
    assert line(20, "runs", 4, done=4) == f"[{'#' * 24}] 4 of 4 runs, 20 s"
    assert line(5, "runs", done=1234) == "1,234 runs, 5 s"


def test_steps_that_differ_in_length_give_no_estimate() -> None:
    assert line(5, "stages", 4, alike=False, done=2) == f"[{'#' * 12}{'.' * 12}] 2 of 4 stages, 5 s"


def test_a_name_of_several_lines_stays_in_one() -> None:
    assert "\n" not in line(5, "jobs", 2, "compiling", done=1, _doing="a\nb")


def test_work_that_ends_soon_shows_nothing(terminal, clock, monkeypatch) -> None:
    monkeypatch.setattr(module, "_DELAY", 1)
    with progress("runs", 2) as work:
        clock.now += 0.9
        work.step()
        assert terminal.getvalue() == ""
        clock.now += 0.2
        work.step()
    assert lines(terminal) == [f"[{'#' * 24}] 2 of 2 runs, 1 s", ""]


def test_quick_steps_are_not_all_drawn(terminal, clock, monkeypatch) -> None:
    monkeypatch.setattr(module, "_INTERVAL", 0.1)
    with progress("runs") as work:
        for _ in range(300):
            clock.now += 0.01
            work.step()
    assert 28 < len(lines(terminal)) < 33


def test_a_long_step_is_drawn_again_by_itself(terminal, monkeypatch) -> None:
    monkeypatch.setattr(module, "_TICK", 0.001)
    often = threading.Event()
    monkeypatch.setattr(terminal, "flush", lambda: terminal.getvalue().count(ERASE) > 3 and often.set())
    with stages(("read", "search")) as begin:
        begin("read")
        assert often.wait(60)
    assert lines(terminal)[1].endswith("0 of 2 stages, 0 s: read")
    ended = terminal.getvalue()
    monkeypatch.setattr(module, "_TICK", 60)
    with show_progress(Progress("others")):
        pass
    assert terminal.getvalue() == ended, "what has ended is not drawn again"


@pytest.mark.parametrize("problem", [RuntimeError, KeyboardInterrupt])
def test_the_line_is_erased_when_the_work_fails(terminal, problem) -> None:
    def fail():
        with progress("runs", 2) as work:
            work.step()
            raise problem

    with pytest.raises(problem):
        fail()
    after = terminal.getvalue().rpartition(ERASE)[2]
    assert after == ("1 of 2 runs are complete\n" if problem is KeyboardInterrupt else "")


def test_the_innermost_work_is_shown(terminal) -> None:
    with progress("models", 2) as outer:
        outer.step("first")
        with show_progress(Progress("parts", 4, "compiling")) as inner:
            inner.step()
            outer.reach(1, "hidden")
        outer.step("second")
    texts = [text.partition("] ")[2].partition(",")[0] for text in lines(terminal)]
    assert texts == ["1 of 2 models", "1 of 4 parts", "", "2 of 2 models", ""]
    assert "hidden" not in terminal.getvalue()


def test_what_is_printed_above_is_not_in_the_line(terminal) -> None:
    with progress("runs", 2) as work:
        work.step()
        with above():
            print("a message", file=terminal)
        work.step()
    assert lines(terminal)[1] == "a message\n"


def test_a_line_fits_the_terminal(terminal, monkeypatch) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    monkeypatch.setattr(terminal, "fileno", lambda: theirs)
    with progress("runs", 2) as work:
        work.step("x" * 100)
    os.close(ours)
    os.close(theirs)
    assert len(lines(terminal)[0]) == 29


class Gone(Terminal):
    """A terminal that has been closed at the other end."""

    def write(self, text):
        raise OSError(5, "Input/output error")


class Closed(Terminal):
    """A stream that its program has closed."""

    def isatty(self):
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stream", [None, io.StringIO(), Gone(), Closed(), object()])
def test_work_needs_no_terminal(terminal, monkeypatch, stream) -> None:
    monkeypatch.setattr(module, "sys", types.SimpleNamespace(stderr=stream))
    with progress("runs", 2) as work:
        work.step()
        work.reach(2)
    assert work.described() == "2 of 2 runs"
    assert getattr(stream, "getvalue", str)() == ""


def test_a_terminal_that_cannot_erase_gets_nothing(terminal, monkeypatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with progress("runs", 2) as work:
        work.step()
    assert terminal.getvalue() == ""
