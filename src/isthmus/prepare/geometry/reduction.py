"""Reductions as data: runs of reduced elements, and the axes to iterate over, kept and reduced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from isthmus.prepare.geometry.layout import merge_axes, operand
from isthmus.prepare.schedule import Step

REDUCTIONS = {"ReduceSum": "sum", "ReduceMean": "mean", "ReduceProd": "prod", "ReduceMax": "max", "ReduceMin": "min"}
Walk = list[tuple[int, int]]
"""Sizes and strides of axes in elements, the innermost first."""


@dataclass(frozen=True)
class Reduction:
    """A reduction with adjacent axes merged if all are reduced or all kept: the innermost run, and the axes around it.

    - `count`: number of elements reduced to each result.
    - `run`: size of the innermost merged axis.
    - `reduces_run`: whether the innermost merged axis is reduced.
    - `kept`, `reduced`: the merged axes around the innermost, kept ones and reduced ones.
    """

    count: int
    run: int
    reduces_run: bool
    kept: Walk
    reduced: Walk

    @property
    def runs(self) -> int:
        """The number of elements of the reduced axes around the innermost."""
        return prod(size for size, _ in self.reduced)


def reduction(step: Step) -> Reduction:
    """Return the reduction of a step."""
    x = operand(step)
    axes = {int(a) % x.rank for a in step.params["axes"]} if x.rank else set()
    count = prod(x.dims[a] for a in axes)
    groups = merge_axes(x.dims, axes)
    if not groups or not count:
        return Reduction(count, 1 if count else 0, True, [], [])
    (reduces_run, run, _), outer = groups[-1], groups[-2::-1]
    kept, reduced = ([(size, stride) for is_reduced, size, stride in outer if is_reduced is r] for r in (False, True))
    return Reduction(count, run, reduces_run, kept, reduced)


def around(dims: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the number of elements before an axis, along it and after it.

    >>> around((2, 3, 4, 5), 1)
    (2, 3, 20)
    """
    return prod(dims[:axis]), dims[axis], prod(dims[axis + 1 :])


def norm_span(step: Step) -> tuple[int, int]:
    """Return the first and the last of a norm's axes that have more than one element."""
    axes = _norm_axes(step)
    longer = [axis for axis in axes if operand(step).dims[axis] != 1] or axes[-1:]
    return longer[0], longer[-1]


def refuses_norm_axes(step: Step) -> str | None:
    """Return why a norm's axes are not supported: they must be neighbours, and the last ones if there are weights."""
    x, axes, (first, last) = operand(step), _norm_axes(step), norm_span(step)
    if any(x.dims[axis] != 1 and axis not in axes for axis in range(first, last + 1)):
        return f"the axes {axes} of {x.describe()} must be neighbours"
    if prod(x.dims[last + 1 :]) != 1 and any(t is not None for t in step.inputs[1:]):
        return f"axes {axes} of {x.describe()} must be the last ones"
    return None


def _norm_axes(step: Step) -> list[int]:
    return sorted(int(axis) % operand(step).rank for axis in step.params["axes"])
