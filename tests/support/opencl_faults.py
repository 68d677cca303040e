"""Functions of the OpenCL library that fail when a test wants them to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from isthmus.backends.gpu.runtime.library import library


@contextmanager
def replace_function(name: str, behave: Callable[..., Any]) -> Iterator[None]:
    """While the block lasts, a function is `behave(real, *arguments)`, for native code that is bound within it too."""
    functions = library().functions
    real = functions[name]
    kind = ctypes.CFUNCTYPE(real.restype, *real.argtypes)
    functions[name] = kind(lambda *arguments: behave(real, *arguments))
    try:
        yield
    finally:
        functions[name] = real


@contextmanager
def failing(name: str, status: int, after: int = 0) -> Iterator[list[int]]:
    """A function answers an error status from its call number `after` on; the answer counts its calls."""
    calls = [0]

    def behave(real: Any, *arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] <= after:
            return real(*arguments)
        if real.restype is not ctypes.c_int32:
            # One that makes something writes its status where the last argument points.
            ctypes.c_int32.from_address(arguments[-1]).value = status
            return None
        return status

    with replace_function(name, behave):
        yield calls
