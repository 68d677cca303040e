"""Runs the tests that depend on the processor on every target of this machine: `python tests/targets.py [TARGET ...]`.

The best target comes last: `make test` and `make test-long` run on it anyway. OpenCL's tests do not know targets.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from isthmus.engine.native.target import TARGETS, runnable

FOLDERS = ("engine", "models", "prepare", "split", "backends", "qnn", "capi")
WITHOUT = ("tests/backends/gpu",)
SELECTION = (*(f"tests/{folder}" for folder in FOLDERS), *(f"--ignore-glob={path}" for path in WITHOUT))


def run(target: str) -> tuple[int, float]:
    """Run the folders on one target; return pytest's exit status and the seconds it took."""
    started = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "loadfile", *SELECTION]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], env={**os.environ, "ISTHMUS_TARGET": target})
    return done.returncode, time.monotonic() - started


def main(names: list[str]) -> int:
    """Run all targets, or those that are named, and say how each of them ended."""
    found = {name: run(name) for name in names or [t.name for t in reversed(TARGETS) if runnable(t)]}
    for name, (status, seconds) in found.items():
        print(f"{name:12} {'passed' if status == 0 else f'failed ({status})'} in {seconds:.0f} s")
    return int(any(status for status, _ in found.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
