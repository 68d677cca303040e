"""Messages reach the callback up to its level, and Python's logging wherever it is set up."""

import logging
import subprocess
import sys
import threading

import pytest
from support.interruption import everywhere
from support.suites import LONG

from isthmus import QnnError
from isthmus.log import Log, LogLevel, deferred


@pytest.mark.parametrize("level", LogLevel)
def test_a_callback_gets_messages_up_to_its_level(level) -> None:
    messages = []
    log = Log(lambda *message: messages.append(message[0]), level)
    for message in LogLevel:
        log(message, "text")
    assert messages == [known for known in LogLevel if known <= level]


def test_pythons_logging_gets_everything_at_matching_levels(caplog) -> None:
    with caplog.at_level(1, "isthmus"):
        log = Log(None, LogLevel.ERROR)
        for level in LogLevel:
            log(level, "100 % of it")
    assert [r.levelno for r in caplog.records] == [logging.ERROR, logging.WARNING, logging.INFO, 15, logging.DEBUG]
    assert set(caplog.messages) == {"100 % of it"}


def test_levels_have_qnns_numbers() -> None:
    assert [int(level) for level in LogLevel] == [1, 2, 3, 4, 5]


def test_a_failing_callback_does_not_disturb(caplog) -> None:
    with caplog.at_level(logging.ERROR, "isthmus"):
        Log(lambda level, text: 1 / 0)(LogLevel.ERROR, "still said")
    assert caplog.messages == ["still said", "the log callback failed at: still said"]


def test_a_freed_log_is_silent_and_wrong_arguments_are_refused() -> None:
    messages = []
    with Log(lambda level, text: messages.append(text)) as log:
        log.set_level(LogLevel.DEBUG)
    log(LogLevel.ERROR, "not heard")
    assert not messages
    with pytest.raises(QnnError, match="must be one of ERROR 1"):
        log.set_level(6)
    with pytest.raises(QnnError, match="cannot be called"):
        Log("callback")


SCRIPT = """
import logging, sys
from isthmus.log import Log, LogLevel
if "handler" in sys.argv:
    logging.getLogger("isthmus").addHandler(logging.StreamHandler(sys.stderr))
called = {"callback": lambda level, text: print("called back:", text), "broken": lambda level, text: 1 / 0}
log = Log(called.get(sys.argv[1]), LogLevel.ERROR)
log(LogLevel.ERROR, "an error")
log(LogLevel.WARN, "a warning")
"""


@pytest.mark.parametrize(
    ("arguments", "printed", "on_standard_error"),
    [
        (["none"], "", "an error\na warning\n"),
        (["callback"], "called back: an error\n", ""),
        (["callback", "handler"], "called back: an error\n", "an error\na warning\n"),
    ],
)
def test_python_prints_only_what_no_other_handler_gets(arguments, printed, on_standard_error) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (printed, on_standard_error)


def test_a_message_whose_callback_fails_is_not_lost() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, "broken"], capture_output=True, text=True, check=True)
    assert "the log callback failed at: an error" in done.stderr


class Listening(logging.Handler):
    """Hears, and says whether another thread could be heard."""

    def emit(self, record):
        record.getMessage()

    def hears_others(self):
        acquired = []

        def ask():
            acquired.append(self.lock.acquire(timeout=1))
            if acquired[-1]:
                self.lock.release()

        asking = threading.Thread(target=ask)
        asking.start()
        asking.join()
        return acquired[0]

    def let_go(self):
        while self.lock._is_owned():
            self.lock.release()


@pytest.fixture
def handler():
    logger, handler = logging.getLogger("isthmus"), Listening()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_an_interrupt_within_a_message_leaves_logging_to_the_other_threads(handler) -> None:
    log, places = Log(), 0
    for where in everywhere(lambda: log(LogLevel.ERROR, "said")):
        assert handler.hears_others(), where
        places += 1
    assert places > 20


@LONG
@pytest.mark.skipif(sys.version_info >= (3, 13), reason="logging takes its locks by `with`")
def test_an_interrupt_keeps_a_lock_of_logging_that_is_used_plainly(handler) -> None:
    """Shows that the test above can fail."""
    logger, lost = logging.getLogger("isthmus"), []
    for where in everywhere(lambda: logger.error("said"), outside=("_pytest",)):
        if not handler.hears_others():
            lost.append(where)
            handler.let_go()
    assert lost


def test_a_message_from_within_a_handler_leaves_it_its_lock(handler) -> None:
    log, found = Log(), []

    def emit(record):
        if record.getMessage() == "outer":
            with pytest.raises(KeyboardInterrupt):
                log(LogLevel.ERROR, "inner")
            found.append(handler.lock._is_owned())
        else:
            raise KeyboardInterrupt

    handler.emit = emit
    log(LogLevel.ERROR, "outer")
    assert found == [True]
    assert handler.hears_others()


def test_messages_of_a_block_are_sent_in_order_after_its_locks_are_released() -> None:
    messages, lock = [], threading.Lock()
    log = Log(lambda level, text: messages.append((text, lock.locked())))

    def fail():
        with deferred(), lock:
            log(LogLevel.INFO, "first")
            with deferred():
                log(LogLevel.INFO, "second")
            assert messages == []
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    log(LogLevel.INFO, "third")
    assert messages == [("first", False), ("second", False), ("third", False)]


def test_a_block_holds_back_its_own_thread_only() -> None:
    messages = []
    log = Log(lambda level, text: messages.append(text))
    with deferred():
        other = threading.Thread(target=log, args=(LogLevel.INFO, "elsewhere"))
        other.start()
        other.join()
        assert messages == ["elsewhere"]


def test_an_interrupt_in_a_block_leaves_no_thread_silent() -> None:
    messages, lock = [], threading.Lock()
    log = Log(lambda level, text: messages.append(text))

    def action():
        with deferred(), lock:
            log(LogLevel.INFO, "within")

    for where in everywhere(action):
        messages.clear()
        log(LogLevel.INFO, "after")
        assert messages == ["after"], where
        assert not lock.locked(), where
