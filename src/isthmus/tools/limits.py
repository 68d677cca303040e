"""Options of the command lines that are sizes: limits on scratch, and the memory that a device has.

Every size is a number of bytes, with or without a unit.
"""

from __future__ import annotations

import argparse

from isthmus.prepare.tiling import SLOWER, parse_size

SIZES = "A SIZE is a number of bytes, or has a unit: 64KiB is 65,536 bytes, 64KB is 64,000."
"""What the help of every command with such an option says about it."""


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


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--scratch-limit`` and ``--slower`` to a parser."""
    parser.add_argument(
        "--scratch-limit",
        metavar="LIMIT",
        help="maximum scratch memory: a SIZE, a percentage of what the model needs without a limit (25%%), or 'least' "
        "for as little as --slower permits; operations that do not fit are computed in tiles",
    )
    parser.add_argument(
        "--slower",
        type=float,
        metavar="FRACTION",
        help=f"maximum estimated slowdown: 0.05 is 5 %%. A limit that would cost more is an error. "
        f"With 'least' the default is {SLOWER}; with another limit any slowdown is permitted by default",
    )
