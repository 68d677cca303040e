"""Programs in C that use the libraries, and how they are run."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

PROGRAMS = Path(__file__).parent / "programs"
SECONDS = 240
Build = Callable[..., Path]


def execute(program: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    # An interpreter that nobody ends leaves memory behind; what is looked for are wrong accesses.
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0", **variables}
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS, env=environment
    )


def accelerators() -> set[int]:
    """The accelerator processes that run now."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"isthmus.accelerator" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a program said on standard error, but for who compiles kernels that nobody has compiled yet."""
    return [line for line in done.stderr.splitlines() if not re.match("isthmus: (compiling|waiting for) ", line)]
