"""The search as machine code: loaded from the cache, or compiled by a child process.

It is compiled for any machine of an architecture; wider vectors would not make it faster.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

import numpy as np

from isthmus.compiled import image
from isthmus.compiled.ahead import Ahead
from isthmus.planning.search import Advance, State

SYMBOL = "isthmus_planning_search"
_HERE = Path(__file__)
SEARCH = Ahead(
    "planning",
    ("search",),
    (_HERE.with_name("search.py"), _HERE.with_name("compiler.py")),
    "isthmus.planning.compiler",
    "the planner's search",
)


@lru_cache(maxsize=1)
def load() -> Advance:
    """Load the search as machine code. A user's first call compiles."""
    return _Search(image.load(SEARCH.objects(), [SYMBOL])[SYMBOL])


class _Search:
    """The compiled `advance`, on a state of arrays; it runs without the GIL."""

    def __init__(self, address: int) -> None:
        # The address of the table of pointers, the number of nodes, the address for the result, and an unused word.
        words = [ctypes.c_int64] * 4
        self._function = ctypes.CFUNCTYPE(None, *words)(address)

    def __call__(self, state: State, nodes: int) -> int:
        table = np.array([field.__array_interface__["data"][0] for field in state], dtype=np.int64)
        answer = ctypes.c_int64()
        self._function(table.__array_interface__["data"][0], nodes, ctypes.addressof(answer), 0)
        return answer.value
