"""Messages of backends while a command runs, each once on standard error; warnings and errors by default."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from isthmus.errors import one_line
from isthmus.log import PYTHON_LEVELS, LogLevel
from isthmus.system.progress import above

_NAMES = {number: level.name for level, number in PYTHON_LEVELS.items()}


def add_log_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that sets the log level to a parser."""
    levels = [level.name.lower() for level in LogLevel]
    what = f"show the backend's messages up to a level: {', '.join(levels)} (default: warn)"
    # The second spelling is that of QNN's tools.
    parser.add_argument("--log-level", "--log_level", choices=levels, metavar="LEVEL", help=what)


def print_line(line: str) -> None:
    """Print exactly one line, whatever characters the file names in it contain."""
    print(one_line(line))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, each as `print_line` does."""
    for line in lines:
        print_line(line)


class _Printer(logging.Handler):
    """A logging handler that prints to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        line = f"[{_NAMES.get(record.levelno, record.levelname)}] {record.getMessage()}"
        with above():
            print(one_line(line), file=sys.stderr)


@contextmanager
def shown(level: str | None) -> Iterator[None]:
    """Print the messages of the log ``isthmus`` up to a level inside the block; afterwards restore the logger."""
    # The least severe level of Python's logging to print.
    least = PYTHON_LEVELS[LogLevel[(level or "warn").upper()]]
    logger, printer = logging.getLogger("isthmus"), _Printer(least)
    before = logger.level
    # A logger that was set up for more messages keeps its level.
    logger.setLevel(min(least, logger.getEffectiveLevel()))
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(before)
