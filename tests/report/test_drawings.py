"""Whole memory maps as they look, kept in `drawings.txt`: nothing of a picture changes unseen.

`python tests/report/test_drawings.py` draws them again; escapes of colours are written as `<…>`.
"""

from __future__ import annotations

import random
import re
from pathlib import Path

from isthmus.prepare.schedule import Plan, PlanRow
from isthmus.report import draw, tabulate

WRITTEN = Path(__file__).with_name("drawings.txt")


def planned(rows: list[PlanRow], steps: int) -> Plan:
    size = max((row.offset + row.bytes for row in rows), default=0)
    live = [sum(row.bytes for row in rows if row.first <= step <= row.last) for step in range(steps)]
    peak = max(range(steps), key=lambda step: live[step])
    names = tuple(row.name for row in rows if row.first <= peak <= row.last)
    return Plan(size, size, "optimal", size, sum(r.bytes for r in rows), peak, names, tuple(rows),
                tuple(("Relu", f"r{i}") for i in range(steps)), 12, 34, 0.5)  # fmt: skip


def many(count: int, steps: int, unit: int) -> Plan:
    """Blocks at random, some of them of no bytes, some before the first step and after the last."""
    rng = random.Random(count)
    rows, top = [], 0
    for index in range(count):
        first = rng.randrange(-1, steps)
        size = unit * rng.randrange(9)
        rows.append(
            PlanRow(f"model/block_{index}/{'x' * rng.randrange(40)}", size, first, first + rng.randrange(4), top)
        )
        top = (top + size) % (unit * 40)
    return planned(rows, steps)


THREE = planned([PlanRow("a", 128, 0, 1, 0), PlanRow("b", 64, 1, 2, 128), PlanRow("c", 64, 2, 3, 0)], 4)
LATE = planned([PlanRow("first", 100, 0, 0, 0), PlanRow("last", 4000, 11, 12, 0), PlanRow("thin", 10, 0, 12, 4000)], 12)
DRAWINGS = {
    "three": draw(THREE),
    "three in few lines": draw(THREE, lines=2, columns=40),
    "three in color": draw(THREE, lines=3, color=True),
    "three in ASCII": draw(THREE, lines=4, unicode=False),
    "a peak at the end": draw(LATE, lines=5, columns=70),
    "a peak at the end in color": draw(LATE, lines=4, columns=70, color=True),
    "thirty": draw(many(30, 9, 1000), lines=12, columns=100),
    "thirty in color": draw(many(30, 9, 1000), lines=5, columns=60, color=True, unicode=False),
    "a hundred in little room": draw(many(100, 60, 1 << 20), lines=9, columns=50, legend=3),
    "a hundred in color": draw(many(100, 60, 1 << 20), lines=5, columns=50, legend=2, color=True),
    "nothing": draw(planned([], 3)),
    "a table": tabulate(many(12, 9, 3000).rows),
}


def account() -> list[str]:
    lines = []
    for name, drawing in DRAWINGS.items():
        shown = re.sub(r"\x1b\[([0-9;]*)m", r"<\1>", drawing)
        lines += [f"== {name}", *shown.splitlines()]
    return lines


def test_every_drawing_looks_as_it_did() -> None:
    assert account() == WRITTEN.read_text().splitlines()


if __name__ == "__main__":
    WRITTEN.write_text("\n".join(account()) + "\n")
