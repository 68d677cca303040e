"""The command ``isthmus``: one module a subcommand, loaded when it is called."""

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
    "run": "run a model and tell what happened",
    "plan": "tell and draw the memory that a model needs, without running it",
    "pack": "solve a memory packing problem",
    "context-binary-generator": "prepare models for a backend and keep them in a context binary",
    "net-run": "run a model or a context binary on raw files",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status is 2 for bad input."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        # Names in models and paths may hold what a terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="isthmus", description="The memory system of QNN, as open software.")
    parser.add_argument("--version", action="version", version=f"isthmus {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=summary, description=summary)
        if name in arguments[:1]:
            _module(name).add_arguments(subparser)
    options = parser.parse_args(arguments)
    try:
        return _module(options.command).main(options)
    except QnnError as error:
        print(f"isthmus {options.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"isthmus {options.command}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has enough; nothing more is to be written, at exit neither.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as problem:
        print(f"isthmus {options.command}: {problem}", file=sys.stderr)
        return 2


def _module(command: str) -> Any:
    return import_module(f"isthmus.tools.{command.replace('-', '_')}")


if __name__ == "__main__":
    sys.exit(main())
