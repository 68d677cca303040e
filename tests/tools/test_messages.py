"""Messages of backends appear on a command's standard error: each once, warnings and errors without being asked for."""

import logging
import subprocess
import sys

import pytest
from support import tiny
from support.suites import long

from isthmus.log import Log, LogLevel
from isthmus.tools import messages
from isthmus.tools.cli import main


def say_everything():
    for level in LogLevel:
        Log()(level, f"message of {level.name}")


@pytest.mark.parametrize(
    ("level", "heard"),
    [
        (None, ["ERROR", "WARN"]),
        ("error", ["ERROR"]),
        ("warn", ["ERROR", "WARN"]),
        ("verbose", ["ERROR", "WARN", "INFO", "VERBOSE"]),
        ("debug", ["ERROR", "WARN", "INFO", "VERBOSE", "DEBUG"]),
    ],
)
def test_each_message_up_to_the_level_appears_once(capsys, level, heard) -> None:
    with messages.show_messages(level):
        say_everything()
    assert capsys.readouterr().err.splitlines() == [f"[{name}] message of {name}" for name in heard]


def test_handlers_of_others_get_the_same_messages_and_logging_is_restored(caplog) -> None:
    logger = logging.getLogger("isthmus")
    with caplog.at_level(logging.ERROR, "isthmus"):
        before = logger.level, list(logger.handlers)
        with messages.show_messages("debug"):
            say_everything()
        assert (logger.level, logger.handlers) == before
        say_everything()
    assert caplog.messages == ["message of ERROR"] * 2


SCRIPT = """
import sys
from isthmus.backends.htp import driver as htp
from isthmus.log import LogLevel
from isthmus.tools.cli import main
make = htp.ENTRY.driver.__init__
def talk(self, config, log):
    log(LogLevel.ERROR, "an error")
    log(LogLevel.WARN, "a warning")
    make(self, config, log)
htp.ENTRY.driver.__init__ = talk
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("options", [(), long(("--log_level", "warn")), long(("--log_level", "info"))])
def test_a_command_whose_process_has_no_logging_shows_errors_and_warnings_exactly_once(tmp_path, options) -> None:
    model = tiny.gate(tmp_path / "gate.onnx", 4)
    command = [sys.executable, "-c", SCRIPT, "run", str(model), "--backend", "htp", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr.count("an error") == 1
    assert done.stderr.count("a warning") == 1
    assert "[ERROR] an error" in done.stderr


def test_an_unknown_level_is_refused(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "model.onnx", "--log_level", "chatty"])
    assert ended.value.code == 2
    assert "verbose" in capsys.readouterr().err
