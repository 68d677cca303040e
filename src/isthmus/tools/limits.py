"""Options of the command lines that limit scratch."""

from __future__ import annotations

import argparse

from isthmus.prepare.strips import SLOWER, ScratchLimit


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """The options ``--scratch-limit`` and ``--slower``."""
    parser.add_argument(
        "--scratch-limit",
        metavar="LIMIT",
        help="take no more scratch: bytes, a part like 25%%, or 'least'; what does not fit is computed by strips",
    )
    parser.add_argument(
        "--slower",
        type=float,
        default=SLOWER,
        metavar="PART",
        help=f"what 'least' may cost, as a part of the model's time (default {SLOWER})",
    )


def parse_limit(options: argparse.Namespace) -> ScratchLimit | None:
    """The limit that these options say."""
    if options.scratch_limit is None:
        return None
    return limit_of(options.scratch_limit, options.slower)


def limit_of(text: str, slower: float = SLOWER) -> ScratchLimit:
    """The limit that an option's value says."""
    return ScratchLimit.of(int(text) if text.isdecimal() else text, slower)
