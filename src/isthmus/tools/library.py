"""What QNN's own command lines say, in this project's words: backend libraries, log levels, configuration files."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

from isthmus.errors import Code, QnnError
from isthmus.log import Log, LogLevel

_LIBRARY = re.compile(r"(?:lib)?Qnn(?P<name>[A-Za-z]+?)(?:\.so|\.dll)?")


def add_backend_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that QNN's tools have in common."""
    parser.add_argument(
        "--backend", required=True, metavar="LIBRARY", help="libQnnHtp.so, libQnnLpai.so, libQnnCpu.so: the name counts"
    )
    parser.add_argument("--config_file", type=Path, metavar="FILE", help="the backend's configuration (JSON)")
    parser.add_argument("--output_dir", type=Path, default=Path("output"), metavar="DIR")
    parser.add_argument(
        "--log_level", choices=[level.name.lower() for level in LogLevel], help="show the backend's messages"
    )


def backend_name(library: str) -> str:
    """The backend that a library's file name means.

    Examples
    --------
    >>> backend_name("/data/local/tmp/libQnnLpai.so")
    'lpai'
    """
    found = _LIBRARY.fullmatch(Path(library).name)
    name = found["name"].lower() if found else Path(library).name.lower()
    if name not in ("cpu", "htp", "lpai"):
        raise QnnError(
            Code.COMMON_INVALID_ARGUMENT, f"--backend {library}", "must be libQnnCpu.so, libQnnHtp.so or libQnnLpai.so"
        )
    return name


def backend_config(name: str, config_file: Path | None, direct_mode: str | None = None) -> Any:
    """The backend's configuration as its options give it; of several sources the later ones win."""
    if direct_mode is not None and name != "lpai":
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--direct_mode {direct_mode}", "only LPAI has a direct mode")
    if name != "lpai":
        return config_file
    direct = None if direct_mode is None else {"lpai_backend": {"target_env": direct_mode}}
    return [source for source in (config_file, direct) if source is not None] or None


def log_for(level: str | None) -> Log | None:
    """A log that prints messages up to a level."""
    return None if level is None else Log(_print_message, LogLevel[level.upper()])


def _print_message(level: LogLevel, text: str) -> None:
    print(f"[{level.name}] {text}", file=sys.stderr)
