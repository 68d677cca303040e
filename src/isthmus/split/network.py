"""A model file as seen by the search for fused regions: steps in file order, and the rows that each needs.

Live bytes are counted for a simple runtime that follows the order of the file. Every result has its own memory from the
step that computes it to the last that reads it. No result overwrites another, and slices and concatenations are copies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from isthmus.graph.rows import RowRule, Rows
from isthmus.prepare.tiling.orders import post_order
from isthmus.prepare.tiling.region_path import live_bytes

Key = Hashable
"""The identity of a tensor in its format: a name in ONNX, a number in TFLite."""


@dataclass(frozen=True)
class SplitValue:
    """A tensor that is not a constant.

    - `name`, `bytes`: the name for messages, and the size of the whole tensor.
    - `rows`: the number of its rows; 0 if it has none.
    - `is_counted`: whether the whole tensor counts as memory; inputs and outputs may belong to the caller.
    """

    name: str
    bytes: int
    rows: int
    is_counted: bool = True

    def bytes_of(self, rows: int) -> int:
        """Return the bytes of a number of rows."""
        return self.bytes * rows // self.rows


@dataclass(frozen=True)
class TileRule:
    """A rule for computing a step by rows.

    - `sliced`: the operands that are read by rows; the others are read whole.
    - `rows`: which rows of those operands are needed for given rows of the result.
    - `fewest`: the minimum number of rows at a time; with fewer, a runtime may add in a different order.
    - `prepared`: a function of rows of the result and the rows of the operand that they need: the bytes of a padded
      copy of the operand that must be made first; 0 if none is needed.
    - `recomputed`: whether the step is so cheap that rows which several tiles read are recomputed for each of them.
    """

    sliced: tuple[Key, ...]
    rows: RowRule
    fewest: int = 1
    prepared: Callable[[Rows, Rows], int] = lambda rows, source: 0
    recomputed: bool = False


@dataclass(frozen=True)
class SplitStep:
    """One operation of the file; its inputs do not include constants. Without a rule it stays whole.

    - `rule`: how it is computed by rows.
    - `unit`: a number shared by consecutive steps that runtimes fuse into one. A fused region contains all of them or
      none, and no order puts other steps between them.
    - `source`: the node or operator in the file.
    """

    name: str
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    rule: TileRule | None = None
    unit: int | None = None
    source: Any = None


@dataclass(frozen=True)
class Network:
    """The steps of a model file in order.

    - `steps`, `values`: the steps, and all tensors that they read or write and that are not constants.
    - `initial`, `final`: the values that exist before the first step, and those that must exist after the last.
    - `fixed`: whether steps have effects beyond their operands, so that their order must not change.
    """

    steps: tuple[SplitStep, ...]
    values: Mapping[Key, SplitValue]
    initial: tuple[Key, ...]
    final: frozenset[Key]
    fixed: bool = False

    @cached_property
    def begin(self) -> dict[Key, int]:
        """The step that computes each value; -1 for values that exist before the first step."""
        begin: dict[Key, int] = dict.fromkeys(self.initial, -1)
        for index, step in enumerate(self.steps):
            begin.update(dict.fromkeys(step.outputs, index))
        return begin

    @cached_property
    def end(self) -> dict[Key, int]:
        """The last step that needs each value; the number of steps for values that must exist after the last."""
        end = dict(self.begin)
        for index, step in enumerate(self.steps):
            end.update(dict.fromkeys(step.inputs, index))
        end.update(dict.fromkeys(self.final, len(self.steps)))
        return end

    def size(self, key: Key) -> int:
        """Return the bytes of a whole value; 0 if they are not counted."""
        value = self.values[key]
        return value.bytes if value.is_counted else 0

    @cached_property
    def live(self) -> list[int]:
        """The live bytes at each step."""
        lives = ((first, max(self.end[key], 0), self.size(key)) for key, first in self.begin.items())
        return live_bytes(lives, len(self.steps))

    @cached_property
    def entering(self) -> list[int]:
        """The bytes that are alive before each step, when it has not begun yet, and after the last step."""
        lives = ((first + 1, self.end[key], self.size(key)) for key, first in self.begin.items())
        return live_bytes(lives, len(self.steps) + 1)

    @property
    def peak(self) -> int:
        """The maximum of live bytes."""
        return max(self.live, default=0)

    def is_divided(self, index: int) -> bool:
        """Return whether a step and the one before it belong to the same unit."""
        if not 0 < index < len(self.steps):
            return False
        before, after = self.steps[index - 1].unit, self.steps[index].unit
        return before is not None and before == after

    def in_order(self, order: Sequence[int]) -> Network:
        """Return the same steps in another order."""
        return replace(self, steps=tuple(self.steps[i] for i in order))


def depth_first(network: Network, late: bool) -> list[int]:
    """Return an order, as step numbers, in which operands are computed as late as possible.

    Among several operands, the one that the file computes last is computed first if `late`; otherwise the one that it
    computes first. Steps of one unit stay together.
    """
    groups: list[list[int]] = []
    for index in range(len(network.steps)):
        if network.is_divided(index):
            groups[-1].append(index)
        else:
            groups.append([index])
    group_of = {index: number for number, group in enumerate(groups) for index in group}
    # For each group, the groups whose results it reads.
    needed: list[set[int]] = []
    for number, group in enumerate(groups):
        writers = {network.begin[key] for index in group for key in network.steps[index].inputs}
        needed.append({group_of[index] for index in writers if index >= 0} - {number})
    # Start from the groups that compute final values; groups that contribute to none come last.
    final = [group_of[network.begin[key]] for key in network.final if network.begin[key] >= 0]
    roots = [*sorted(final), *range(len(groups))]
    order = post_order(roots, lambda group: sorted(needed[group], reverse=late))
    return [index for number in order for index in groups[number]]


def constant_nodes(
    keys: Iterable[Any], makers: Mapping[Any, Any], reads: Callable[[Any], Iterable[Any]], written: set[int]
) -> Iterator[Any]:
    """Yield the nodes that compute constants, each after those that it reads, skipping nodes already yielded.

    - `keys`: the values that are needed; those that are not constants are ignored.
    - `makers`, `reads`: the node that computes each constant, and a function that returns the names or numbers that a
      node reads.
    - `written`: the ids (of Python's ``id``) of the nodes yielded so far, also by earlier calls; new ones are added.
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
