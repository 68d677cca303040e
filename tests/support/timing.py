"""Times for tests: what QNN's documents say of speed, where the cause is memory that is or is not copied or allocated.

Speed is measured by `bench/`. Tests look only for effects that are large by construction: with tensors of 16 MiB, by
the ratio of two times that are measured in turn, with a wide margin, and once more where that fails. The time of a
thing is the least of many: whatever else the machine does only adds to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

ROUNDS = 25


def seconds(action: Callable[[], object]) -> float:
    """Return how long something takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def least(*actions: Callable[[], object]) -> list[float]:
    """The least seconds that each of several takes, measured in turn after a first time that does not count."""
    for action in actions:
        action()
    rounds = [[seconds(action) for action in actions] for _ in range(ROUNDS)]
    return [min(times) for times in zip(*rounds, strict=True)]


def ratio(one: Callable[[], object], other: Callable[[], object]) -> float:
    """The least time of the first, divided by that of the other."""
    mine, others = least(one, other)
    return mine / others


def holds(claim: Callable[[], bool]) -> bool:
    """Return whether a claim about times holds; other work on the machine may make it fail once."""
    return claim() or claim()
