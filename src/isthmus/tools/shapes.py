"""The options ``--shape`` and ``--bound``: dimensions that a model file leaves open, and bounds of values inside it."""

from __future__ import annotations

import argparse
import logging
import shlex
from pathlib import Path

from isthmus.errors import Code, QnnError
from isthmus.frontends import ModelSource, assumed_shapes


def add_shape_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option to a parser."""
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,48,320",
        help="dimensions of an input that the file leaves open, the greatest ones; may be repeated",
    )


def add_strict_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option that turns the warning of `open_shapes` into a refusal to a parser."""
    text = "do nothing and exit with 1 if an ONNX file leaves dimensions open and --shape does not give them"
    parser.add_argument("--strict", action="store_true", help=text)


def open_shapes(options: argparse.Namespace, *models: Path) -> dict[str, list[int | str]]:
    """Return the shapes of inputs whose open dimensions no option gives, and log each model that has some.

    Such dimensions become 1, and figures for them say little. Commands call it when they have succeeded: a refusal
    stays one line.
    """
    shapes = dict(map(parse_shape, options.shape))
    found: dict[str, list[int | str]] = {}
    for model in dict.fromkeys(models):
        inputs = assumed_shapes(ModelSource(model, shapes))
        if not inputs:
            continue
        found |= inputs
        texts = (f"{name}={','.join(map(str, dims))}" for name, dims in inputs.items())
        needed = " ".join(f"--shape {shlex.quote(text)}" for text in texts)
        effect = "are refused by --strict" if options.strict else "are taken as 1"
        level = logging.ERROR if options.strict else logging.WARNING
        message = "'%s' leaves dimensions open, which %s. Give the greatest: %s"
        logging.getLogger("isthmus").log(level, message, model, effect, needed)
    return found


def refused_shapes(options: argparse.Namespace, *models: Path) -> bool:
    """Return whether ``--strict`` is given and models have open dimensions; a command then ends with the status 1."""
    return options.strict and bool(open_shapes(options, *models))


def add_bound_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option for bounds to a parser."""
    parser.add_argument(
        "--bound",
        action="append",
        default=[],
        metavar="NAME=100",
        help="the greatest value of a tensor inside an ONNX model that decides a shape; may be repeated",
    )


def parse_bound(text: str) -> tuple[str, list[float]]:
    """Return the name and the numbers of an option's value; integers stay integers.

    Examples
    --------
    >>> parse_bound("size=1,64"), parse_bound("scale=0.5")
    (('size', [1, 64]), ('scale', [0.5]))
    """
    name, equals, numbers = text.rpartition("=")
    try:
        if not (equals and name):
            raise ValueError(text)
        return name, [float(n) if "." in n else int(n) for n in numbers.split(",")]
    except ValueError:
        raise QnnError(Code.COMMON_INVALID_ARGUMENT, f"--bound {text}", "must look like name=100") from None


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
