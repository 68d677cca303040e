"""The trade-off between scratch and time: one line per limit, bars for memory, and which to choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isthmus.errors import counted

BOUNDED = "left out long regions because there are many steps: more tiles might need less"
"""The message for a tiling search that has reached its bound of work."""


@dataclass(frozen=True)
class Point:
    """The result of one limit.

    - `limit`: the limit as a user writes it; empty for none.
    - `scratch_bytes`: the scratch of the plan with this limit.
    - `times`: the time of a run relative to a run without a limit.
    - `regions`: number of fused regions.
    - `noise`: how far `times` varies from one round of measurement to another: half of the rounds are within it. None
      if one round was measured.
    - `beside_bytes`: bytes of what a budget counts besides scratch.
    - `problem`: why the result does not fit memory of the device; empty if it fits.
    """

    limit: str
    scratch_bytes: int
    times: float
    regions: int
    noise: float | None = None
    beside_bytes: int = 0
    problem: str = ""

    @property
    def is_noise(self) -> bool:
        """Whether its time differs from that without a limit by no more than rounds of measurement differ."""
        return self.noise is not None and abs(self.times - 1) <= self.noise


def choose(points: Sequence[Point], slower: float, room: int | None) -> Point | None:
    """Choose a point: the one with the most scratch that fits into `room` bytes, since it is the fastest.

    Without `room`, it is the least scratch whose time is at most `slower` (0.05 for 5 %) above that without a limit.
    The first point is the one without a limit. None is returned if no point fits, or all have problems.

    Examples
    --------
    >>> points = [Point("", 100, 1.0, 0), Point("50%", 50, 1.01, 1), Point("20%", 20, 1.2, 2)]
    >>> choose(points, 0.05, None).limit, choose(points, 0.05, 30).limit, choose(points, 0.05, 10)
    ('50%', '20%', None)
    """
    possible = [point for point in points if not point.problem]
    if room is not None:
        fitting = [point for point in possible if point.scratch_bytes <= room]
        return max(fitting, key=lambda point: point.scratch_bytes, default=None)
    cheap = [point for point in possible if point.times <= 1 + slower] or possible[:1]
    return min(cheap, key=lambda point: point.scratch_bytes, default=None)


def too_little(room: int, beside: str = "state, inputs, outputs") -> str:
    """Explain why nothing fits into the memory that a budget leaves; `beside` is what it counts besides scratch.

    Examples
    --------
    >>> too_little(1)
    'the budget leaves 1 byte for scratch'
    """
    if room < 0:
        return f"what is beside scratch ({beside}) takes {-room:,} bytes more than the budget"
    return f"the budget leaves {counted(room, 'byte')} for scratch"


def draw_tradeoff(points: Sequence[Point], chosen: Point | None, columns: int = 80, unicode: bool = True) -> str:
    """Draw the points as a table with bars; mark the chosen one.

    Examples
    --------
    >>> points = [Point("", 1000, 1.0, 0, 0.0), Point("50%", 480, 1.013, 1, 0.004)]
    >>> print(draw_tradeoff(points, points[1], columns=60, unicode=False))
        limit      scratch   left   times   noise
         none        1,000   100%   1.000          #############
    >     50%          480    48%   1.013  +-.004  ######
    """
    most = max((point.scratch_bytes for point in points), default=0)
    # The bar takes what the columns before it leave.
    width = max(columns - 47, 8)
    bar, either = ("█", " ±") if unicode else ("#", "+-")
    lines = [f"{'limit':>9}{'scratch':>13}{'left':>7}{'times':>8}{'noise':>8}"]
    for point in points:
        share = point.scratch_bytes / most if most else 1.0
        mark = ">" if point is chosen else " "
        filled = bar * max(1, round(share * width))
        # Below 1, and the digits are worth more than a zero.
        noise = f"{either}{min(point.noise, 0.999):.3f}".replace("0.", ".", 1) if point.noise else ""
        figures = f"{point.scratch_bytes:>13,}{share:>7.0%}{point.times:>8.3f}{noise:>8}"
        lines.append(f"{mark}{point.limit or 'none':>8}{figures}  {filled}")
    return "\n".join(lines)
