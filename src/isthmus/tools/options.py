"""Options that several commands have, each declared once; a command adds those that it needs by their names.

Every size is a number of bytes, with or without a unit.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from isthmus.log import LogLevel
from isthmus.prepare.tiling import SLOWER, parse_size
from isthmus.tools.files import file_name

SIZES = "A SIZE is a number of bytes, or has a unit: 64KiB is 65,536 bytes, 64KB is 64,000."
"""What the help of every command with such an option says about it."""
TCM = "the size of the device's TCM, for a backend that has one"
LOG_LEVELS = tuple(level.name.lower() for level in LogLevel)


def size(text: str) -> int:
    """Convert a size on the command line to bytes.

    Examples
    --------
    >>> size("64KiB")
    65536
    """
    found = parse_size(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a size: write bytes, or a unit as in 64KiB or 2MB")
    return found


# The options by name; a second spelling follows a space.
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "config": {"type": file_name, "metavar": "FILE", "help": "the backend's configuration (JSON)"},
    # The second spelling is that of QNN's tools.
    "direct-mode direct_mode": {"metavar": "MODE", "help": "a mode of the backend to run in, for example adsp"},
    "graph": {"metavar": "NAME", "help": "which graph of a file that holds several"},
    "inputs": {"type": file_name, "metavar": "IN.npz", "help": "input arrays by name; random if not given"},
    "jobs": {"type": int, "default": 0, "metavar": "N", "help": "processes at a time (default: processors)"},
    "json": {"action": "store_true", "help": "print one JSON object"},
    "log-level log_level": {
        "choices": LOG_LEVELS,
        "metavar": "LEVEL",
        "help": f"show the backend's messages up to a level: {', '.join(LOG_LEVELS)} (default: warn)",
    },
    "scratch-limit": {
        "metavar": "LIMIT",
        "help": "maximum scratch memory: a SIZE, a percentage of what the model needs without a limit (25%%), or "
        "'least' for as little as --slower permits; operations that do not fit are computed in tiles",
    },
    "shape": {
        "action": "append",
        "default": [],
        "metavar": "NAME=1,3,48,320",
        "help": "dimensions of an input that the file leaves open, the greatest ones; may be repeated",
    },
    "slower": {
        "type": float,
        "metavar": "FRACTION",
        "help": f"maximum estimated slowdown: 0.05 is 5 %%. A limit that would cost more is an error. With 'least' the "
        f"default is {SLOWER}; with another limit any slowdown is permitted by default",
    },
    "strict": {
        "action": "store_true",
        "help": "do nothing and exit with 1 if an ONNX file leaves dimensions open and --shape does not give them",
    },
    "tcm": {
        "type": size,
        "metavar": "SIZE",
        "help": f"{TCM}: the verdict and the exit status are for this size",
    },
    "trace": {
        "type": file_name,
        "metavar": "FILE",
        "help": "write when everything happened, on host and accelerator, as trace events (JSON) for Perfetto",
    },
}
_BY_NAME = {spellings.partition(" ")[0]: spellings for spellings in _OPTIONS}


def add_shared(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add options to a parser, by their names without dashes; `changes` differ from what is declared."""
    for name in names:
        spellings = _BY_NAME[name]
        parser.add_argument(*(f"--{each}" for each in spellings.split()), **{**_OPTIONS[spellings], **changes})
