"""A model file as the search for strips sees it: steps in the order of the file, which rows each needs, who reads what.

What is alive is counted as a plain runtime has it that follows the order of the file: every result in memory of its
own from the step that makes it to the last that reads it, nothing written over anything, slices and joins copied.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

Key = Hashable
"""What a format calls a tensor by: ONNX by name, TFLite by number."""
Rows = tuple[int, int]
"""The rows from the first number up to, but without, the second."""


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
        """The bytes of so many rows."""
        return self.bytes * rows // self.rows


@dataclass(frozen=True)
class Rule:
    """How a step is computed by rows.

    Parameters
    ----------
    sliced
        The operands that are taken by rows; the others are taken whole.
    need
        The rows of those operands under some rows of the result; none where the first is not below the second.
    grain
        Rows of the result that can only be computed together.
    fewest
        With fewer rows than that at a time, a runtime may add up in another order.
    prepared
        Bytes of a copy of the operand that must be made first for some rows (padding written out); 0 for none.
    again
        Whether it is cheap, and its result had better be computed again for the next strip than kept.
    """

    sliced: tuple[Key, ...]
    need: Callable[[int, int], Rows]
    grain: int = 1
    fewest: int = 1
    prepared: Callable[[Rows, Rows], int] = lambda rows, source: 0
    again: bool = False


@dataclass(frozen=True)
class SplitStep:
    """One operation of the file; constants are not among the inputs. Without a rule it stays whole.

    Parameters
    ----------
    unit
        A number that neighbouring steps have in common if runtimes compute them as one: a run of strips holds all of
        them or none, and no order puts other steps between them.
    """

    name: str
    inputs: tuple[Key, ...]
    outputs: tuple[Key, ...]
    rule: Rule | None = None
    unit: int | None = None


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
        """The step that makes each value; -1 for what is given."""
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
        """The bytes that count of a whole value."""
        value = self.values[key]
        return value.bytes if value.counted else 0

    @cached_property
    def live(self) -> list[int]:
        """The bytes that each step has alive."""
        change = [0] * (len(self.steps) + 2)
        for key, first in self.begin.items():
            change[max(first, 0)] += self.size(key)
            change[max(self.end[key], 0) + 1] -= self.size(key)
        live, now = [], 0
        for index in range(len(self.steps)):
            now += change[index]
            live.append(now)
        return live

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
        """The same steps in another order."""
        return Network(tuple(self.steps[i] for i in order), self.values, self.given, self.kept, self.fixed)


def depth_first(network: Network, late: bool) -> list[int]:
    """Find an order in which what a step reads is made as late as can be, as the numbers of the steps.

    Of several operands the one that the file makes last is made first if `late`, else the one that it makes first.
    """
    groups = _groups(network)
    of = {index: number for number, group in enumerate(groups) for index in group}
    makers = [
        {of[network.begin[key]] for index in group for key in network.steps[index].inputs if network.begin[key] >= 0}
        for group in groups
    ]
    order: list[int] = []
    seen: set[int] = set()
    wanted = [
        number
        for number, group in enumerate(groups)
        if any(key in network.kept for index in group for key in network.steps[index].outputs)
    ]
    stack = [(number, False) for number in reversed([*wanted, *range(len(groups))])]
    while stack:
        number, ready = stack.pop()
        if ready:
            order += groups[number]
        elif number not in seen:
            seen.add(number)
            stack.append((number, True))
            before = sorted(makers[number] - {number}, reverse=not late)
            stack += [(maker, False) for maker in before if maker not in seen]
    return order


def _groups(network: Network) -> list[list[int]]:
    """Collect the steps of each unit; any other step is a group of its own."""
    groups: list[list[int]] = []
    for index in range(len(network.steps)):
        if network.is_divided(index):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
