"""The command loop as machine code: from the cache, or compiled now by a child process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from isthmus import compiled
from isthmus.compiled import image
from isthmus.compiled.ahead import Ahead

_HERE = Path(__file__)
_NAMES = ("execute", "enqueue", "wait", "notify")
LOOP = Ahead(
    "opencl",
    _NAMES,
    (_HERE.with_name("loop.py"), _HERE.with_name("compiler.py"), Path(compiled.__file__).with_name("instructions.py")),
    "isthmus.backends.gpu.runtime.compiler",
    "the loop of OpenCL launches",
)


def symbol(name: str) -> str:
    """Return the C name of a function of the loop."""
    return f"isthmus_opencl_{name}"


class CommandLoop:
    """The functions of the loop. Each is one call without the GIL.

    They have four operands: the address of a block, and three that mean nothing.

    - `objects`: The contents of their object files.
    """

    def __init__(self, objects: list[bytes]) -> None:
        execute, enqueue, wait, notify = image.load(objects, map(symbol, _NAMES)).values()
        entry = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
        self.execute: Callable[..., None] = entry(execute)
        self.enqueue: Callable[..., None] = entry(enqueue)
        self.wait: Callable[..., None] = entry(wait)
        self.notify: int = notify
        """The address of the function that the driver calls back."""


@lru_cache(maxsize=1)
def load() -> CommandLoop:
    """Return the loop as machine code. A user's first call compiles, and stores the result in the user's cache."""
    return CommandLoop(LOOP.objects())
