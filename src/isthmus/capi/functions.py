"""QNN's C functions: a Python function for each, under its C name, called with plain integers.

A function is passed the server of the called library and then the client's arguments: handles, addresses and numbers.
It returns a QNN code, or None for success; a `QnnError` is turned into its code. No other exception leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.errors import Code


@dataclass(frozen=True)
class Function:
    """A registered function.

    Parameters
    ----------
    name
        Its C name.
    call
        The Python function: it takes the server of the library and the client's arguments.
    invalid
        The code for an argument that is null or an invalid pointer.
    expected
        Whether an error is an ordinary result (when a node is validated, say), not a mistake to report.
    failure
        The return value on failure, if that is not a code: a null pointer, say.
    """

    name: str
    call: Callable[..., Any]
    invalid: Code
    expected: bool = False
    failure: int | None = None


TABLE: dict[str, Function] = {}
"""All functions by C name."""
SPECIAL: dict[tuple[str, str], Function] = {}
"""Functions that a library serves in its own way, by the library's name and the C name."""


def serves(
    name: str,
    invalid: Code = Code.COMMON_INVALID_ARGUMENT,
    expected: bool = False,
    failure: int | None = None,
    libraries: Sequence[str] = (),
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under its C name, for some libraries only or for all.

    The other arguments are those of `Function`.
    """

    def enter(call: Callable[..., Any]) -> Callable[..., Any]:
        function = Function(name, call, invalid, expected, failure)
        for library in libraries:
            SPECIAL[library, name] = function
        if not libraries:
            TABLE[name] = function
        return call

    return enter
