"""Graph switching: which graphs of a context are loaded when one is to be executed that is not.

The rule is Qualcomm's. It is the same with an order of retention and without one: that is an order of no graphs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

Choice = tuple[str, ...]
"""Graphs of a context that are loaded together."""


def choices(loaded: Collection[str], retained: Sequence[str], wanted: str) -> list[Choice]:
    """Return what may be loaded together with the graph that is wanted, the best choice first: the first that fits is.

    Graphs outside the order of retention are unloaded, then those in it while there is no room, the last one first.

    - `loaded`: The graphs that are loaded.
    - `retained`: The order of retention, the most important graph first.

    >>> choices(["A", "B"], ["A", "B"], "C"), choices(["A", "C"], ["A", "B"], "D")
    ([('A', 'B', 'C'), ('A', 'C'), ('C',)], [('A', 'D'), ('D',)])
    """
    kept = [name for name in retained if name in loaded and name != wanted]
    return [(*kept[:count], wanted) for count in range(len(kept), -1, -1)]


def choices_at_creation(graphs: Sequence[str], retained: Sequence[str]) -> list[Choice]:
    """Return what may be loaded when a context is created: the graphs to retain, or else its first graph.

    >>> choices_at_creation(["A", "B", "C"], ["B", "C"]), choices_at_creation(["A", "B", "C"], [])
    ([('B', 'C'), ('B',)], [('A',)])
    """
    first = tuple(retained) or tuple(graphs[:1])
    return [first[:count] for count in range(len(first), 0, -1)]
