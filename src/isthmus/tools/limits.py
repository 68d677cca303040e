"""Options of the command lines that limit scratch."""

from __future__ import annotations

import argparse

from isthmus.prepare.tiling import SLOWER, ScratchLimit


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options ``--scratch-limit`` and ``--slower`` to a parser."""
    parser.add_argument(
        "--scratch-limit",
        metavar="LIMIT",
        help="maximum scratch memory: bytes, a percentage of today's, or 'least'; "
        "operations that do not fit are computed in tiles",
    )
    parser.add_argument(
        "--slower",
        type=float,
        metavar="FRACTION",
        help=f"maximum estimated slowdown, 0.05 = 5 %% (default {SLOWER}). 'least' uses all of it; "
        "a limit that needs more is an error",
    )


def parse_limit(options: argparse.Namespace) -> ScratchLimit | None:
    """Return the limit that these options give."""
    return ScratchLimit.if_any(options.scratch_limit, options.slower)
