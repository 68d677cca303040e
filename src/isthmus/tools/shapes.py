"""The option ``--shape``: dimensions of inputs that a model file leaves open."""

from __future__ import annotations

import argparse

from isthmus.errors import Code, QnnError


def add_shape_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option to a parser."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,48,320",
        help="dimensions of an input that the file leaves open; may be repeated",
    )


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and dimensions of an option's value.

    Examples
    --------
    >>> parse_shape("x=1,3,48,320")
    ('x', (1, 3, 48, 320))
    """
    name, equals, dims = text.rpartition("=")
    try:
        if not (equals and name):
            raise ValueError(text)
        shape = tuple(int(d) for d in dims.split(","))
    except ValueError:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--shape {text}", "must look like name=1,3,48,320") from None
    if any(d < 1 for d in shape):
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--shape {text}", "dimensions must be positive")
    return name, shape
