"""Selection, configuration and modes of backends, for the commands."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from isthmus.backends.seam.entry import BackendEntry
from isthmus.errors import Code, QnnError, did_you_mean


def add_mode_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that runs a backend in a special mode to a parser."""
    parser.add_argument(
        "--direct_mode", metavar="MODE", help="a mode of the backend to run in, for example adsp"
    )


def add_timeout_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the time of executions to a parser."""
    limit = "how long an execution may take (default: as long as the backend lets it)"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=limit)


def backend_config(entry: BackendEntry, config_file: Path | None, direct_mode: str | None = None) -> Any:
    """Return the backend's configuration from the options: a file, or a list in which later sources override earlier.

    Parameters
    ----------
    direct_mode
        The name of a mode, whose configuration overrides the file's.
    """
    if direct_mode is None:
        return config_file
    if direct_mode not in entry.modes:
        modes = " and ".join(map(repr, entry.modes)) or "none"
        rule = f"no such mode; backend '{entry.name}' has {modes}"
        hint = did_you_mean(direct_mode, entry.modes)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--direct_mode {direct_mode}", rule, hint)
    return [source for source in (config_file, entry.modes[direct_mode]) if source is not None]
