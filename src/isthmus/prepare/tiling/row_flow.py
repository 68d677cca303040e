"""The rows that each tile of a fused region computes, and the halo that it keeps for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.graph.rows import RowRule, Rows

NO_ROW = 1 << 60
"""A row number larger than that of any tensor."""


@dataclass(frozen=True)
class RowFlow:
    """Row dependencies within a fused region.

    - `rules`, `heights`: the row rule of each step, and the number of rows of its result.
    - `readers`: for each step, the later steps that read its result by rows.
    - `recomputed`: for each step, whether rows that several tiles read are recomputed for each of them rather than
      kept.
    """

    rules: Sequence[RowRule]
    heights: Sequence[int]
    readers: Sequence[Sequence[int]]
    recomputed: Sequence[bool]

    def tile(self, done: Sequence[int], ends: Sequence[int]) -> dict[int, Rows]:
        """Return the rows of each step in a tile; steps without any are left out.

        - `done`: the number of rows of each step that are already computed.
        - `ends`: the row up to which each step is computed, unless its readers need more.
        """
        # From the last step to the first, since each step computes what its readers need.
        tile: dict[int, Rows] = {}
        for k in range(len(self.rules) - 1, -1, -1):
            low, high, grain = NO_ROW, ends[k], self.rules[k].grain
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
        """Return for each step the lowest row of its result that later tiles read.

        - `done`: the number of rows of each step that are already computed.
        - `ends`: the number of rows of each step that all tiles compute together.
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
