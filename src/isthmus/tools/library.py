"""What the commands have in common about backends: which one is meant, its configuration, its messages."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from isthmus.backends import registry
from isthmus.backends.entry import BackendEntry
from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that QNN's tools have in common."""
    libraries = ", ".join(f"libQnn{name.capitalize()}.so" for name in registry.names())
    parser.add_argument("--backend", required=True, metavar="LIBRARY", help=f"{libraries}: the name counts")
    parser.add_argument("--config_file", type=Path, metavar="FILE", help="the backend's configuration (JSON)")
    parser.add_argument("--output_dir", type=Path, default=Path("output"), metavar="DIR")
    add_log_argument(parser)


def add_mode_argument(parser: argparse.ArgumentParser) -> None:
    """The option that runs a backend in a mode of its own."""
    parser.add_argument(
        "--direct_mode", metavar="MODE", help="a mode of the backend to run in, for example adsp"
    )


def add_log_argument(parser: argparse.ArgumentParser) -> None:
    """The option that shows a backend's messages."""
    parser.add_argument(
        "--log_level", choices=[level.name.lower() for level in LogLevel], help="show the backend's messages"
    )


def backend_config(entry: BackendEntry, config_file: Path | None, direct_mode: str | None = None) -> Any:
    """The backend's configuration as its options give it; of several sources the later ones win."""
    if direct_mode is None:
        return config_file
    if direct_mode not in entry.modes:
        modes = " and ".join(map(repr, entry.modes)) or "none"
        rule = f"no such mode; backend '{entry.name}' has {modes}"
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--direct_mode {direct_mode}", rule)
    return [source for source in (config_file, entry.modes[direct_mode]) if source is not None]


def log_for(level: str | None) -> Log | None:
    """A log that prints messages up to a level."""
    return None if level is None else Log(_print_message, LogLevel[level.upper()])


def _print_message(level: LogLevel, text: str) -> None:
    print(f"[{level.name}] {text}", file=sys.stderr)
