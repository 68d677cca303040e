"""Random sets of contexts that need about what their chip has, and how the search answers 1,000 of them.

    PYTHONPATH=tests python -m domains.random_sets

prints how many are said to fit, proved impossible or not decided, and the longest answer in processor time.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.domains import ChipProfile, ContextSizes, GraphNeeds, SearchResult, SpillGroup, profile, search

SETS, PARTS = 1000, 4
MOST = 12
"""The most contexts of a set."""


@dataclass(frozen=True)
class Answered:
    """A set of contexts with the answer, and the seconds of processor time that the search took."""

    contexts: list[ContextSizes]
    chip: ChipProfile
    io_estimation: bool
    result: SearchResult
    seconds: float

    def searched_again(self) -> Answered:
        """The same set, searched once more: other programs slow a shared core down at times."""
        return searched(self.contexts, self.chip, self.io_estimation)


def searched(contexts: list[ContextSizes], chip: ChipProfile, io_estimation: bool) -> Answered:
    """Search an order of a set. The time is that of this thread alone."""
    begin = time.thread_time()
    result = search(contexts, chip, io_estimation=io_estimation)
    return Answered(contexts, chip, io_estimation, result, time.thread_time() - begin)


def random_contexts(rng: random.Random, capacity: int) -> list[ContextSizes]:
    """Contexts that together need about what there is: some share a group, some have several buffers."""
    count, fill = rng.randint(2, MOST), rng.uniform(0.5, 1.15)
    shares = [rng.random() ** 2 + 0.05 for _ in range(count)]
    parts = []
    for share in shares:
        total = int(capacity * fill * share / sum(shares))
        spill, io, op_data = int(total * rng.uniform(0, 0.4)), int(total * rng.uniform(0, 0.3)), total // 20
        parts.append(GraphNeeds("g", total - spill - io - op_data, 0, op_data, spill, io))
    group = SpillGroup("g", max(each.spill_fill for each in parts) or 1) if rng.random() < 0.3 else None
    contexts = []
    for number, graph in enumerate(parts):
        buffers = (graph.io // 3, graph.io // 2) if rng.random() < 0.2 else None
        member = group if rng.random() < 0.7 else None
        contexts.append(ContextSizes(f"c{number}", (graph,), buffers=buffers, group=member))
    return contexts


def answered(part: int) -> Iterator[Answered]:
    """Search the sets of one part of all."""
    rng = random.Random(part)
    chips = [profile(name) for name in ("default", "SM8750", "SA8255P")]
    for _ in range(SETS // PARTS):
        chip, io_estimation = rng.choice(chips), rng.random() < 0.5
        yield searched(random_contexts(rng, chip.capacity), chip, io_estimation)


def main() -> None:
    """Print the figures of all sets."""
    found = [each for part in range(PARTS) for each in answered(part)]
    verdicts = Counter(each.result.verdict.value for each in found)
    print(f"{len(found):,} sets:", ", ".join(f"{count} {name}" for name, count in verdicts.most_common()))
    slowest = max(found, key=lambda each: each.seconds)
    print(f"longest: {slowest.seconds:.2f} s for {len(slowest.contexts)} contexts on {slowest.chip.name}")


if __name__ == "__main__":
    main()
