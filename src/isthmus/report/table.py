"""A table of the rows of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.prepare.schedule import PlanRow
from isthmus.report.names import shorten

_FIXED = 4 * 12 + 2
"""The width of the columns before the name."""


def tabulate(rows: Sequence[PlanRow], columns: int = 80) -> str:
    """Return a line for each block: offset, bytes, first and last step, name.

    Examples
    --------
    >>> print(tabulate([PlanRow("conv_1", 4096, 0, 2, 0), PlanRow("conv_2", 512, 1, 3, 4096)]))
          offset       bytes  first step   last step  name
               0       4,096           0           2  conv_1
           4,096         512           1           3  conv_2
    """
    names = shorten([row.name for row in rows], max(columns - _FIXED, 16))
    lines = [f"{'offset':>12}{'bytes':>12}{'first step':>12}{'last step':>12}  name"]
    for row, name in zip(rows, names, strict=True):
        lines.append(f"{row.offset:>12,}{row.bytes:>12,}{row.first:>12}{row.last:>12}  {name}")
    return "\n".join(lines)
