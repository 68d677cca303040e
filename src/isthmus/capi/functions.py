"""QNN's functions as this package serves them: each a Python function under its name in C, called with plain numbers.

A function is given the server of the library that was called, then what the client passed: handles, addresses and
numbers. It answers QNN's code, or None for success; a `QnnError` is answered by its code. Nothing else leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from isthmus.errors import Code


@dataclass(frozen=True)
class Function:
    """A function that is served.

    Parameters
    ----------
    invalid
        The code for an argument that is null or leads nowhere.
    expected
        Whether a refusal is an answer like another (a node that is asked about), and no mistake to be shown.
    failure
        What a failure is answered by, where that is no code: a null pointer, say.
    """

    name: str
    call: Callable[..., Any]
    invalid: Code
    expected: bool = False
    failure: int | None = None


TABLE: dict[str, Function] = {}
"""All functions by their names in C."""


def serves(
    name: str, invalid: Code = Code.COMMON_INVALID_ARGUMENT, expected: bool = False, failure: int | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Have a function answer for the one of this name in C."""

    def enter(call: Callable[..., Any]) -> Callable[..., Any]:
        TABLE[name] = Function(name, call, invalid, expected, failure)
        return call

    return enter
