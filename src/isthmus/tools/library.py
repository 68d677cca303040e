"""Selection, configuration and modes of backends, for the commands."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from isthmus.backends.seam import registry
from isthmus.backends.seam.entry import BackendEntry
from isthmus.errors import Code, QnnError, did_you_mean
from isthmus.log import Log
from isthmus.tools.limits import size


def add_mode_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that runs a backend in a special mode to a parser."""
    # The second spelling is that of QNN's tools.
    what = "a mode of the backend to run in, for example adsp"
    parser.add_argument("--direct-mode", "--direct_mode", metavar="MODE", help=what)


def add_tcm_argument(
    parser: argparse.ArgumentParser, effect: str = "the verdict and the exit status are for this size"
) -> None:
    """Add the option that states the size of a device's TCM to a parser; `effect` is what the command does with it."""
    what = f"the size of the device's TCM, for a backend that has one: {effect}"
    parser.add_argument("--tcm", type=size, metavar="SIZE", help=what)


def memory_config(entry: BackendEntry, memory: str, nbytes: int) -> dict[str, Any]:
    """Return the configuration that states the size of one of a device's memories, such as "tcm".

    A size that the device cannot have is refused by the name of the option.
    """
    key = entry.memory_sizes.get(memory)
    if key is None:
        having = ", ".join(each.name for each in registry.usable() if memory in each.memory_sizes)
        rule, hint = f"backend '{entry.name}' has no {memory.upper()}", f"These backends have it: {having}."
        raise QnnError(Code.COMMON_NOT_SUPPORTED, f"--{memory} {nbytes}", rule, hint)
    config = nested(key.split("."), nbytes)
    try:
        entry.read_config(config, Log())
    except QnnError as problem:
        raise QnnError(problem.code, f"--{memory} {nbytes}", problem.rule, problem.hint) from None
    return config


def nested(keys: Sequence[str], value: Any) -> dict[str, Any]:
    """Return a value under a path of keys, as a configuration has it."""
    first, *rest = keys
    return {first: nested(rest, value) if rest else value}


def add_timeout_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that limits the time of executions to a parser."""
    limit = "how long an execution may take (default: as long as the backend lets it)"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=limit)


def backend_config(entry: BackendEntry, config_file: Path | None, direct_mode: str | None = None) -> Any:
    """Return the backend's configuration from the options: a file, or a list in which later sources override earlier.

    - `direct_mode`: the name of a mode, whose configuration overrides the file's.
    """
    if direct_mode is None:
        return config_file
    if direct_mode not in entry.modes:
        modes = " and ".join(map(repr, entry.modes)) or "none"
        rule = f"no such mode; backend '{entry.name}' has {modes}"
        hint = did_you_mean(direct_mode, entry.modes)
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"mode '{direct_mode}'", rule, hint)
    return [source for source in (config_file, entry.modes[direct_mode]) if source is not None]
