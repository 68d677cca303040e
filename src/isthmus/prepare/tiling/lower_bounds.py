"""Lower bounds of the bytes that fused regions need, derived from the blocks that enter and leave them.

They are known before anything else about a region, so that regions that cannot meet a limit are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.prepare.tiling.step_table import StepTable


@dataclass(frozen=True)
class LowerBounds:
    """Bounds of the regions that end with a given step, the shortest region first.

    Parameters
    ----------
    alive
        The bytes alive throughout each region, without the halo.
    saved
        The most of these bytes that an overlay may save.
    """

    alive: list[int]
    saved: list[int]

    def least(self, steps: int) -> int:
        """Return the minimum of the bytes alive throughout the region with `steps` steps."""
        return self.alive[steps - 1] - self.saved[steps - 1]


def lower_bounds(base: StepTable, reaches: Sequence[int]) -> list[LowerBounds]:
    """Compute for each step the bounds of all regions that end with it, up to its number of steps in `reaches`."""
    # For each step, the blocks that no later step reads, as the step that begins them and their size.
    ended: list[list[tuple[int, int]]] = [[] for _ in base.steps]
    for block in base.simple:
        if base.end[block] < len(ended):
            ended[base.end[block]].append((base.begin[block], base.size[block]))
    bounds = []
    # For each step, the largest block that existed before it and that no step after the current last one reads.
    operands = [0] * len(base.steps)
    longest = max(reaches, default=0)
    for last, reach in enumerate(reaches):
        for begin, size in ended[last]:
            for first in range(max(begin, last - longest) + 1, last + 1):
                operands[first] = max(operands[first], size)
        alive, saved = [], []
        # The bytes that the region leaves to later steps, and the largest block among them.
        leaving = largest = 0
        for first in range(last, last - reach, -1):
            for block in base.begun[first]:
                if base.end[block] > last:
                    leaving += base.size[block]
                    largest = max(largest, base.size[block])
            alive.append(base.entering[first] + leaving)
            saved.append(min(largest, operands[first]))
        bounds.append(LowerBounds(alive, saved))
    return bounds
