"""Cells: words that hold references of OpenCL's, filled and emptied where no handler of a signal can come between.

What makes or retains an object also puts it into the cell, and what releases it also strikes it out, in one call of C:
a `deque` runs an iterator of C functions to its end. So nothing is lost or released twice, wherever a handler raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, compress
from operator import getitem, not_, setitem
from typing import Any


def store(cell: Any, index: int, values: Iterable[Any]) -> None:
    """Put what an iterator gives into a cell; one call of C if the iterator is C."""
    deque(map(setitem, (cell,), (index,), values), maxlen=0)


def store_retained(cell: Any, index: int, retain: Callable[[int], int], handle: int) -> None:
    """Retain an object, and put it into a cell if that succeeds."""
    store(cell, index, compress((handle,), map(not_, map(retain, (handle,)))))


def give_back(cell: Any, index: int, release: Callable[[int], object]) -> None:
    """Release what stands in a cell, if anything does, and strike it out; also by several threads at a time."""
    # A pair is whole before any of it is used, and neither half lets another thread run: it is struck out before it is
    # released, which does.
    content = zip(map(getitem, (cell,), (index,)), map(setitem, (cell,), (index,), (0,)), strict=True)
    deque(map(release, filter(None, chain.from_iterable(content))), maxlen=0)
