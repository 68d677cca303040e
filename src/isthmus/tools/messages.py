"""Messages of backends while a command runs, each once on standard error; warnings and errors by default."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from isthmus.errors import one_line
from isthmus.log import PYTHON_LEVELS, LogLevel
from isthmus.system.progress import above

_NAMES = {number: level.name for level, number in PYTHON_LEVELS.items()}


def print_line(line: str) -> None:
    """Print exactly one line, whatever characters the file names in it contain."""
    print(one_line(line))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines, each as `print_line` does."""
    for line in lines:
        print_line(line)


def print_report(options: argparse.Namespace, report: Mapping[str, Any], lines: Iterable[str]) -> None:
    """Print what a command found out: with ``--json`` as one object, otherwise as lines of text."""
    if options.json:
        print(json.dumps(report))
    else:
        print_lines(lines)


class _Printer(logging.Handler):
    """A logging handler that prints to the current standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        line = f"[{_NAMES.get(record.levelno, record.levelname)}] {record.getMessage()}"
        with above():
            print(one_line(line), file=sys.stderr)


@contextmanager
def show_messages(level: str | None) -> Iterator[None]:
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
