"""A model file as the search for fused regions sees it: steps in the order of the file, and the rows that each needs.

Live bytes are counted for a plain runtime that follows the order of the file: every result has memory of its own from
the step that computes it to the last that reads it, no result is written over another, slices and joins are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

from isthmus.graph.rows import RowRule, Rows
from isthmus.prepare.tiling.orders import post_order

Key = Hashable
"""The identity of a tensor in its format: a name in ONNX, a number in TFLite."""


@dataclass(frozen=True)
class SplitValue:
    """A tensor that is no constant.

    Parameters
    ----------
    rows
        How many rows it has; 0 where it has none.
    counted
        Whether the whole of it takes memory that counts; inputs and outputs may be the caller's.
    """

    name: str
    bytes: int
    rows: int
    counted: bool = True

    def bytes_of(self, rows: int) -> int:
        """Count the bytes of so many rows."""
        return self.bytes * rows // self.rows


@dataclass(frozen=True)
class TileRule:
    """Computation of a step by rows.

    Parameters
    ----------
    sliced
        The operands that are taken by rows; the others are taken whole.
    rows
        Which rows of those operands are needed.
    fewest
        With fewer rows than that at a time, a runtime may add up in another order.
    prepared
        Bytes of a copy of the operand that must be made first for some rows (padding written out); 0 for none.
    recomputed
        Whether it is so cheap that rows which several tiles read are computed for each of them.
    """

    sliced: tuple[Key, ...]
    rows: RowRule
    fewest: int = 1
    prepared: Callable[[Rows, Rows], int] = lambda rows, source: 0
    recomputed: bool = False


@dataclass(frozen=True)
class SplitStep:
    """One operation of the file; constants are not among the inputs. Without a rule it stays whole.

    Parameters
    ----------
    unit
        A number that neighbouring steps have in common if runtimes compute them as one: a fused region holds all of
        them or none, and no order puts other steps between them.
    source
        What the file has for it.
    """

    name: str
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    rule: TileRule | None = None
    unit: int | None = None
    source: Any = None


@dataclass(frozen=True)
class Network:
    """Steps in order.

    Parameters
    ----------
    given, kept
        What is there before the first step, and what must be there after the last.
    fixed
        Whether steps act by more than their operands, so that their order stays.
    """

    steps: tuple[SplitStep, ...]
    values: Mapping[Key, SplitValue]
    given: tuple[Key, ...]
    kept: frozenset[Key]
    fixed: bool = False

    @cached_property
    def begin(self) -> dict[Key, int]:
        """The step that computes each value; -1 for what is given."""
        begin: dict[Key, int] = dict.fromkeys(self.given, -1)
        for index, step in enumerate(self.steps):
            begin.update(dict.fromkeys(step.outputs, index))
        return begin

    @cached_property
    def end(self) -> dict[Key, int]:
        """The last step that has each value alive; one after the last for what is kept."""
        end = dict(self.begin)
        for index, step in enumerate(self.steps):
            end.update(dict.fromkeys(step.inputs, index))
        end.update(dict.fromkeys(self.kept, len(self.steps)))
        return end

    def size(self, key: Key) -> int:
        """Count the bytes of a whole value, if they count."""
        value = self.values[key]
        return value.bytes if value.counted else 0

    @cached_property
    def live(self) -> list[int]:
        """The bytes that each step has alive."""
        change = [0] * (len(self.steps) + 2)
        for key, first in self.begin.items():
            change[max(first, 0)] += self.size(key)
            change[max(self.end[key], 0) + 1] -= self.size(key)
        return list(accumulate(change))[: len(self.steps)]

    def entering(self, index: int) -> int:
        """Count the bytes that are alive between a step and the one before it."""
        return sum(self.size(key) for key, begin in self.begin.items() if begin < index <= self.end[key])

    @property
    def peak(self) -> int:
        """The most bytes alive."""
        return max(self.live, default=0)

    def is_divided(self, index: int) -> bool:
        """Tell whether a unit goes on from the step before this one."""
        if not 0 < index < len(self.steps):
            return False
        before, after = self.steps[index - 1].unit, self.steps[index].unit
        return before is not None and before == after

    def ordered(self, order: Sequence[int]) -> Network:
        """Return the same steps in another order."""
        return replace(self, steps=tuple(self.steps[i] for i in order))


def depth_first(network: Network, late: bool) -> list[int]:
    """Find an order in which what a step reads is computed as late as possible, as the numbers of the steps.

    Of several operands the one that the file computes last comes first if `late`, else the one that it computes first.
    """
    groups: list[list[int]] = []
    for index in range(len(network.steps)):
        if network.is_divided(index):
            groups[-1].append(index)
        else:
            groups.append([index])
    group_of = {index: number for number, group in enumerate(groups) for index in group}
    after: list[set[int]] = []
    for number, group in enumerate(groups):
        writers = {network.begin[key] for index in group for key in network.steps[index].inputs}
        after.append({group_of[index] for index in writers if index >= 0} - {number})
    kept = [group_of[network.begin[key]] for key in network.kept if network.begin[key] >= 0]
    roots = [*sorted(kept), *range(len(groups))]
    order = post_order(roots, after, lambda _, other: -other if late else other)
    return [index for number in order for index in groups[number]]


def constant_nodes(
    keys: Iterable[Any], makers: Mapping[Any, Any], reads: Callable[[Any], Iterable[Any]], written: set[int]
) -> Iterator[Any]:
    """Yield the nodes that constants come from, each after those that it reads, and none that was yielded before.

    Parameters
    ----------
    makers, reads
        The node that computes each constant, and the names or numbers that a node reads.
    written
        The identities of the nodes that were yielded so far.
    """
    stack = [makers[key] for key in reversed([*keys]) if key in makers]
    while stack:
        node = stack[-1]
        missing = [makers[key] for key in reads(node) if key in makers and id(makers[key]) not in written]
        if missing and id(node) not in written:
            stack += missing
            continue
        stack.pop()
        if id(node) not in written:
            written.add(id(node))
            yield node
