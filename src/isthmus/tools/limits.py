"""Options of the command lines that limit scratch."""

from __future__ import annotations

import argparse

from isthmus.prepare.tiling import SLOWER, ScratchLimit


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--scratch-limit`` and ``--slower`` to a parser."""
    parser.add_argument(
        "--scratch-limit",
        metavar="LIMIT",
        help="maximum scratch memory: bytes ('300KiB'), a percentage of what the model needs without a limit ('25%%'), "
        "or 'least' for as little as --slower permits; operations that do not fit are computed in tiles",
    )
    parser.add_argument(
        "--slower",
        type=float,
        metavar="FRACTION",
        help=f"maximum estimated slowdown: 0.05 is 5 %%. A limit that would cost more is an error. "
        f"With 'least' the default is {SLOWER}; with another limit any slowdown is permitted by default",
    )


def parse_limit(options: argparse.Namespace) -> ScratchLimit | None:
    """Return the limit that these options give."""
    return ScratchLimit.if_any(options.scratch_limit, options.slower)
