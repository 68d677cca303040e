"""How much a process grows while something is done in it many times.

Inside a process that runs other tests the answer is noise: their threads end, their garbage is collected, and their
allocators keep what they had. So it is asked of a process that does nothing else.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from support.alone import alone, loaded

_SECONDS = 600
_SHARE_BEFORE = 4
"""A quarter of the rounds, and some more, comes first: allocators and caches have what they keep by then."""
_CONTAINERS = (dict, deque, list, set, WeakKeyDictionary, WeakSet, WeakValueDictionary)


@dataclass(frozen=True)
class Growth:
    """What there is more of than before: bytes of resident memory, objects of Python, descriptors and threads.

    Beside them, what the modules of the package have more on record, by the name of the container: a few small objects
    do not show among all.
    """

    resident: int
    objects: int
    descriptors: int
    threads: int
    records: Counter[str]


def growth(
    file: str, name: str, *arguments: str, rounds: int, seconds: float = _SECONDS, collected: bool = True
) -> Growth:
    """Return what is left behind by rounds of an action, in a process of its own.

    Parameters
    ----------
    file, name
        A test file, and a context manager in it that yields the action: a function without arguments.
    arguments
        What the context manager is called with.
    rounds
        How often the action is done between the two counts.
    seconds
        How long that may take.
    collected
        Whether the cyclic garbage collector runs. Without it, objects that keep each other alive stay.
    """
    words = (file, name, str(rounds), "yes" if collected else "no", *arguments)
    return Growth(**alone(__file__, "left_by", *words, seconds=seconds))


def _now(collected: bool) -> Growth:
    if collected:
        gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Growth(
        pages * os.sysconf("SC_PAGE_SIZE"),
        len(gc.get_objects()),
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        _records(),
    )


def _records() -> Counter[str]:
    """Return how many elements the containers in modules of the package have."""
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "isthmus"]
    return Counter(
        {
            f"{module.__name__}.{name}": len(value)
            for module in modules
            for name, value in vars(module).items()
            if isinstance(value, _CONTAINERS)
        }
    )


def _left_by(action: Callable[[], object], rounds: int, collected: bool) -> Growth:
    if not collected:
        gc.disable()
    for _ in range(rounds // _SHARE_BEFORE + 5):
        action()
    # To count takes memory too, which stays with the allocator: once for that.
    _now(collected)
    before = _now(collected)
    for _ in range(rounds):
        action()
    after = _now(collected)
    return Growth(*(getattr(after, field.name) - getattr(before, field.name) for field in fields(Growth)))


def left_by(file: str, name: str, rounds: str, collected: str, *arguments: str) -> dict[str, Any]:
    """Do an action of a test file so many times, and answer what it leaves behind. Called in a process of its own."""
    with getattr(loaded(file), name)(*arguments) as action:
        return vars(_left_by(action, int(rounds), collected == "yes"))
