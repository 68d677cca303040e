"""The program of a child process: answers the cases of one layer with one library.

    python -m differential.child LAYER LIBRARY CHIP ISOLATED DESCRIPTOR

Names of cases come in lines of standard input. Answers go to the descriptor as lines of JSON, because libraries print
on standard output. "begin" precedes each answer, so that the parent knows which case ended this process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from differential.layers import QUESTIONS

_SECONDS = 60
"""How long a case may take; an alarm ends the process."""


def ended_by(status: int) -> str:
    """Say how a process ended that gave no answer; `status` is its exit code, negative for a signal."""
    return f"ended by {signal.Signals(-status).name}" if status < 0 else f"ended with {status}"


def isolated(answer: Callable[[str], Any], name: str) -> Any:
    """Answer a case in a process of its own."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        signal.alarm(_SECONDS)  # a child does not inherit its parent's
        os.close(reading)
        # `_exit` runs no exit handler: some libraries wait for threads that exist in the parent only.
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(answer(name)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return json.loads(text) if not status and text else ended_by(status)


def main(layer: str, library: str, chip: str, alone: str, descriptor: str) -> None:
    """Answer all cases."""
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    if not os.environ.get("DIFFERENTIAL_STDERR"):
        os.dup2(silent, 2)
    with os.fdopen(int(descriptor), "w", buffering=1) as pipe:
        answer = QUESTIONS[layer].load().opened(Path(library), int(chip) if chip else None)
        for line in sys.stdin:
            name = line.rstrip("\n")
            pipe.write(json.dumps({"begin": name}) + "\n")
            signal.alarm(2 * _SECONDS)
            given = isolated(answer, name) if alone else answer(name)
            signal.alarm(0)
            pipe.write(json.dumps({"case": name, "answer": given}) + "\n")
    # Leave without exit handlers: what a client has not freed may not keep this process.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
