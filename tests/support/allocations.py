"""How much memory Python and numpy allocate in a block of code."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def allocations() -> Iterator[list[int]]:
    """Trace allocations in a block; after it, the list has one element, the most bytes that the block held at once."""
    peak: list[int] = []
    tracemalloc.start()
    try:
        yield peak
    finally:
        peak.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
