"""Calls a function of a test file in a process of its own.

What that process occupies is the function's alone, and an access to memory that it must not touch ends it, not the
tests.

    python alone.py FILE NAME [ARGUMENT ...]

prints as JSON what NAME of a test file answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

_TESTS = Path(__file__).parents[1]
_SECONDS = 600


def alone(file: str, name: str, *arguments: str, seconds: float = _SECONDS) -> Any:
    """Call a function in a process of its own, and answer what it returns.

    Parameters
    ----------
    file, name
        A test file, and a function in it that takes texts and returns what JSON can hold.
    seconds
        How long that may take.
    """
    ended = process(file, name, *arguments, seconds=seconds)
    assert ended.returncode == 0, f"{name}{arguments} ended with {ended.returncode}: {ended.stderr[-4000:]}"
    return json.loads(ended.stdout.splitlines()[-1])


def process(file: str, name: str, *arguments: str, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
    """Call a function in a process of its own, however that ends."""
    return subprocess.run(
        [sys.executable, __file__, file, name, *arguments],
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip


def loaded(file: str) -> ModuleType:
    """Import a test file where pytest has not set up the search path."""
    sys.path.insert(0, str(_TESTS))
    return import_module(".".join(Path(file).relative_to(_TESTS).with_suffix("").parts))


def _main(file: str, name: str, *arguments: str) -> None:
    print(json.dumps(getattr(loaded(file), name)(*arguments)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
