"""Where growth comes from is shown by the lines that have allocated it."""

import tracemalloc
from pathlib import Path

from origins import Origins


def test_the_line_that_keeps_most_is_first_and_freed_memory_is_not_listed() -> None:
    try:
        origins = Origins()
        kept = [bytes(100) for _ in range(1000)]
        origins.settle()
        kept.clear()
        found = [bytes(200) for _ in range(700)]
        [first, *others] = origins.grown()
    finally:
        tracemalloc.stop()
    count, place = first.split(" blocks, ")
    begin = test_the_line_that_keeps_most_is_first_and_freed_memory_is_not_listed.__code__.co_firstlineno
    assert len(found) <= int(count) < 2 * len(found)
    assert f" soak/{Path(__file__).name}:{begin + 6} <" in place
    assert not any(f" soak/{Path(__file__).name}:{begin + 3} <" in each for each in others)
