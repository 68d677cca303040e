"""The command ``isthmus``: one module a subcommand, loaded when it is called. QNN's tools have their own names too."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from isthmus import __version__
from isthmus.errors import QnnError

COMMANDS = {
    "run": "run a model and report times, copies and memory",
    "plan": "report and draw the memory that a model needs, without running it",
    "fit": "report how far a model's scratch can be reduced, and what that costs",
    "split": "rewrite a model file in tiles, so that any runtime needs less memory",
    "pack": "solve a memory packing problem",
    "inspect": "describe a context binary, a DLC or a model library",
    "context-binary-generator": "compile models for a backend into a context binary",
    "net-run": "run a model or a context binary on raw files",
    "capi": "install the libraries that C clients of QNN load",
    "tflite-benchmark": "run a TFLite model in LiteRT with and without the delegate, and compare",
}
_STANDARD_ERROR = 2
_MAX_NAME = 120
"""The characters of a file's name that a message shows."""


class _Paragraphs(argparse.HelpFormatter):
    """Fits each paragraph of a text to the terminal."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(super(_Paragraphs, self)._fill_text(part, width, indent) for part in text.split("\n\n"))


def run(given: Sequence[str]) -> int:
    """Run the command line; the exit status is 2 for bad input."""
    arguments = list(given)
    _prepare_streams()
    parser = argparse.ArgumentParser(prog="isthmus", description="The memory system of QNN, as open software.")
    parser.add_argument("--version", action="version", version=f"isthmus {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary)
        if name in arguments[:1]:
            _describe(subparser, name)
    options = parser.parse_args(arguments)
    return _carry_out(f"isthmus {options.command}", options.command, options)


def run_under_its_own_name(command: str, arguments: Sequence[str] | None) -> int:
    """Run a command of QNN's name."""
    _prepare_streams()
    parser = argparse.ArgumentParser(prog=f"qnn-{command}")
    parser.add_argument("--version", action="version", version=f"qnn-{command} of isthmus {__version__}")
    _describe(parser, command)
    return _carry_out(parser.prog, command, parser.parse_args(arguments))


def _prepare_streams() -> None:
    """Have the standard streams there, and able to show any name."""
    # The number of one that was closed would be that of the next file, and what is printed would go there.
    while (opened := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(_STANDARD_ERROR, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # Names in models and paths may hold what a terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _describe(parser: argparse.ArgumentParser, command: str) -> None:
    """Give a parser the options of a command; the opening of its module, past the first line, explains them."""
    module = _module(command)
    summary = COMMANDS[command]
    parser.description = f"{summary[0].upper()}{summary[1:]}."
    parser.epilog = (module.__doc__ or "").partition("\n\n")[2].replace("``", "'") or None
    parser.formatter_class = _Paragraphs
    module.add_arguments(parser)


def _carry_out(prog: str, command: str, options: argparse.Namespace) -> int:
    from isthmus.tools.messages import shown

    try:
        with shown(getattr(options, "log_level", None)):
            return _module(command).main(options)
    except QnnError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # Whoever read the output has enough; nothing more is to be written, at exit neither.
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        return 1
    except OSError as problem:
        print(f"{prog}: {_described(problem)}", file=sys.stderr)
        return 2


def _described(problem: OSError) -> str:
    """Describe an error of the system in one line, with the end of a name that is too long to show."""
    if problem.strerror is None or problem.filename is None:
        return problem.strerror or str(problem)
    name = repr(os.fsdecode(problem.filename))
    return f"{name if len(name) <= _MAX_NAME else f'...{name[-_MAX_NAME:]}'}: {problem.strerror}"


def _module(command: str) -> Any:
    return import_module(f"isthmus.tools.{command.replace('-', '_')}")
