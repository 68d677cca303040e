"""Cells: words that hold OpenCL references; no signal handler can intervene while they are filled or emptied.

Creating or retaining an object also stores it in the cell, and releasing it also clears the cell, in one C call: a
`deque` runs an iterator of C functions to its end. So no reference is lost or released twice, wherever a signal handler
raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain, compress
from operator import getitem, not_, setitem
from typing import Any


def store(cell: Any, index: int, values: Iterable[Any]) -> None:
    """Store the value that an iterator yields in a cell; this is one C call if the iterator is implemented in C.

    - `cell`, `index`: An array, and which of its elements is the cell.
    - `values`: An iterator of one value, such as the result of ``map(create, (argument,))``. If it yields none, the
      cell stays as it is.
    """
    deque(map(setitem, (cell,), (index,), values), maxlen=0)


def store_retained(cell: Any, index: int, retain: Callable[[int], int], handle: int) -> None:
    """Retain an object, and store its handle in a cell if that succeeds.

    - `cell`, `index`: An array, and which of its elements is the cell.
    - `retain`: OpenCL's function that retains the object; it returns 0 if it succeeds.
    """
    store(cell, index, compress((handle,), map(not_, map(retain, (handle,)))))


def give_back(cell: Any, index: int, release: Callable[[int], object]) -> None:
    """Release the object in a cell, if there is one, and clear the cell; several threads may do so at once."""
    # `zip` yields one pair: the handle, and the None that `setitem` returns. The pair is complete before any of it is
    # used, and building it lets no other thread run. So the cell is cleared before the release, which does let other
    # threads run. `filter` drops the None, and a handle of 0.
    content = zip(map(getitem, (cell,), (index,)), map(setitem, (cell,), (index,), (0,)), strict=True)
    deque(map(release, filter(None, chain.from_iterable(content))), maxlen=0)
