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
SANITIZER = "intercept_tls_get_addr=0"
"""Options of the address sanitizer: else its search for leaks takes the thread-local memory of numpy for another."""
DRIVERS_LEAK = {"ASAN_OPTIONS": f"{SANITIZER}:detect_leaks=0"}
"""The same, without that search: an OpenCL driver and LiteRT leave memory behind."""


def execute(program: Path, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    environment = {**os.environ, "ASAN_OPTIONS": SANITIZER, **variables}
    return subprocess.run(
        [program, *map(str, arguments)], capture_output=True, text=True, timeout=SECONDS, env=environment
    )


def accelerators() -> set[int]:
    """The accelerator processes that run now."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if b"isthmus.backends.accelerator" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of a program's standard error, without those about kernels that are being compiled."""
    return [line for line in done.stderr.splitlines() if not re.match("isthmus: (compiling|waiting for) ", line)]
