"""Options of the command lines that limit scratch."""

from __future__ import annotations

import argparse

from isthmus.prepare.tiling import SLOWER, ScratchLimit


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
        metavar="PART",
        help="what the limit may cost, as a part of the model's time by estimate: 'least' goes as far as that "
        f"(default {SLOWER}), a limit that costs more is refused",
    )


def parse_limit(options: argparse.Namespace) -> ScratchLimit | None:
    """The limit that these options say."""
    return ScratchLimit.if_any(options.scratch_limit, options.slower)
