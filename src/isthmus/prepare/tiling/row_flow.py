"""The rows that each tile of a fused region computes, and the halo that it keeps for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.graph.rows import RowRule, Rows

NO_ROW = 1 << 60
"""A row behind those of any tensor."""


@dataclass(frozen=True)
class RowFlow:
    """Dependence of rows within a fused region.

    Parameters
    ----------
    rules, heights
        The row rule of each step, and the rows of its result.
    readers
        For each step those that read its result by rows; all are behind it.
    recomputed
        For each step whether rows that several tiles read are computed for each of them, rather than kept.
    """

    rules: Sequence[RowRule]
    heights: Sequence[int]
    readers: Sequence[Sequence[int]]
    recomputed: Sequence[bool]

    def tile(self, done: Sequence[int], wanted: Sequence[int]) -> dict[int, Rows]:
        """Compute the rows of each step in a tile; steps without any are left out.

        Parameters
        ----------
        done
            How many rows of each step are computed already.
        wanted
            Up to which row each step is to be computed, if its readers need no more.
        """
        tile: dict[int, Rows] = {}
        for k in range(len(self.rules) - 1, -1, -1):
            low, high, grain = NO_ROW, wanted[k], self.rules[k].grain
            for reader in self.readers[k]:
                if reader in tile:
                    first, end = self.rules[reader].need(*tile[reader])
                    low, high = min(low, first), max(high, end)
            start = low if self.recomputed[k] else done[k]
            high = min(-(-high // grain) * grain, self.heights[k])
            if high > start:
                tile[k] = start, high
        return dict(sorted(tile.items()))

    def halo(self, done: Sequence[int], ends: Sequence[int]) -> list[int]:
        """Find for each step the lowest row of its result that later tiles read.

        Parameters
        ----------
        done
            How many rows of each step are computed already.
        ends
            How many rows of each step all tiles compute.
        """
        lowest = [NO_ROW] * len(self.rules)
        for k in range(len(self.rules) - 1, -1, -1):
            for reader in self.readers[k]:
                row = lowest[reader] if self.recomputed[reader] else done[reader]
                if row < ends[reader]:
                    rule = self.rules[reader]
                    row -= row % rule.grain
                    lowest[k] = min(lowest[k], rule.need(row, min(row + rule.grain, self.heights[reader]))[0])
        return lowest
