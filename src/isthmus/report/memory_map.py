"""The memory map: steps from left to right, addresses from bottom to top, each block at its address and lifetime."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits
from typing import TypeVar

from isthmus.errors import counted
from isthmus.prepare.schedule import Plan, PlanRow
from isthmus.report.names import shorten

COLORS = (39, 208, 41, 177, 220, 203, 45, 141, 149, 212, 75, 180, 37, 105)
"""Colours of the terminal's 256-colour palette that are distinct on dark and on light backgrounds."""
MAX_STEP_COLUMNS = 6
"""Maximum columns of one step: a model of three steps need not fill the screen."""
FULL, SPARSE = 0.34, 0.12
"""The fractions of a cell that must be filled for it to show a block, and to show a dot."""
# The columns of the labels on the left.
_GUTTER = 10
# The minimum number of columns between two ticks of the axis.
_TICKS_APART = 6

_Choice = TypeVar("_Choice")


@dataclass(frozen=True)
class _Marks:
    """The characters of the picture other than the blocks' letters.

    - `upper`, `lower`: a cell of which only one half is filled.
    - `dot`: a cell of which little is filled.
    - `peak`: what points to the peak.
    - `rail`, `floor`, `corner`, `tick`: the axes: the left one, the lower one, where they meet, and the mark of a step.
    - `ellipsis`: what replaces the omitted part of a name.
    - `tile`, `times`: the steps of a fused region, and the sign before its number of tiles.
    """

    upper: str
    lower: str
    dot: str
    peak: str
    rail: str
    floor: str
    corner: str
    tick: str
    ellipsis: str
    tile: str
    times: str


_UNICODE = _Marks("▀", "▄", "·", "▼", "│", "─", "└", "┴", "…", "═", "×")
_ASCII = _Marks("^", "_", ".", "v", "|", "-", "+", "+", "~", "=", "x")


@dataclass(frozen=True)
class _Block:
    """A block of scratch in the picture: its row of the plan, and its letter and colour."""

    row: PlanRow
    letter: str
    color: int


@dataclass(frozen=True)
class _Scale:
    """The mapping of steps to columns and of bytes to lines.

    - `begin`, `steps`: the first step, negative if a block is alive before step 0, and the number of steps.
    - `columns`, `lines`: the size of the map in characters.
    - `bytes`: the bytes from the bottom to the top.
    """

    begin: int
    steps: int
    columns: int
    lines: int
    bytes: int

    def column(self, step: int) -> int:
        """Return the column in the middle of a step."""
        return min(int((step - self.begin + 0.5) * self.columns / self.steps), self.columns - 1)


def draw(
    plan: Plan, *, columns: int = 80, lines: int = 16, color: bool = False, unicode: bool = True, legend: int = 8
) -> str:
    """Draw the memory map of a plan, with a legend of the largest blocks and of those live at the peak.

    - `plan`: the plan to draw.
    - `columns`, `lines`: the width of the whole output and the height of the map.
    - `color`: whether to use the terminal's colours. Without them every block is drawn with its letter.
    - `unicode`: whether to use characters beyond ASCII.
    - `legend`: number of blocks in the legend besides those at the peak.

    Examples
    --------
    >>> rows = (PlanRow("conv_1", 128, 0, 1, 0), PlanRow("conv_2", 64, 1, 2, 128), PlanRow("sum", 64, 2, 3, 0))
    >>> plan = Plan(192, 192, "optimal", 192, 256, 1, ("conv_1", "conv_2"), rows, (("Relu", "r"),) * 4, 0, 0, 0.0)
    >>> print(draw(plan, columns=50, lines=3))
                         ▼ peak: step 1
         192 B │      BBBBBBBBBBBB
         128 B │AAAAAAAAAAAA
           0 B │AAAAAAAAAAAACCCCCCCCCCCC
               └───┴─────┴─────┴─────┴──
          step     0     1     2     3
    <BLANKLINE>
                bytes  steps     name
      A           128  0-1    ▼  conv_1
      B            64  1-2    ▼  conv_2
      C            64  2-3       sum
        ▼ live at the peak
    """
    marks = _UNICODE if unicode else _ASCII
    blocks = _blocks(plan.rows)
    if not blocks:
        return "no scratch memory is in use"
    scale = _scale(plan, max(columns - _GUTTER - 2, 16), lines)
    picture = _in_color(blocks, scale, marks) if color else _in_letters(blocks, scale, marks)
    out = [f"{'':{_GUTTER}}  {_peak_line(plan.peak_step, scale, marks)}"]
    labels = _labels(plan.bytes, lines)
    out += [f"{label:>{_GUTTER}} {marks.rail}{line}" for label, line in zip(labels, picture, strict=True)]
    out += _axis(scale, marks)
    out += _tiles(plan, scale, marks)
    out += ["", *_legend(plan, blocks, columns, legend, color, marks)]
    return "\n".join(line.rstrip() for line in out)


def size(count: int) -> str:
    """Format a number of bytes in at most eight characters.

    Examples
    --------
    >>> size(848), size(6272), size(1530112)
    ('848 B', '6.1 KiB', '1.5 MiB')
    """
    power = next(power for power in range(4) if count < 1024 ** (power + 1) or power == 3)
    amount = count / 1024**power
    return f"{amount:.{0 if power == 0 or amount >= 100 else 1}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"


def _blocks(rows: Sequence[PlanRow]) -> list[_Block]:
    """Assign letters and colours to blocks with bytes: capitals to the largest, to others what no neighbour has."""
    rows = [row for row in rows if row.bytes]
    by_size = sorted(range(len(rows)), key=lambda i: (-rows[i].bytes, rows[i].first, rows[i].offset))
    capitals = dict(zip(by_size, ascii_uppercase, strict=False))
    blocks: list[_Block] = []
    # Earlier blocks whose steps overlap or touch those of the present one.
    near: list[_Block] = []
    for index in sorted(range(len(rows)), key=lambda i: (rows[i].first, rows[i].offset)):
        row = rows[index]
        near = [block for block in near if block.row.last >= row.first - 1]
        letter = capitals.get(index) or _first_unused(ascii_lowercase + digits, len(blocks), {b.letter for b in near})
        # Five does not divide the number of colours, so successive blocks get distant colours.
        color = _first_unused(COLORS, 5 * len(blocks), {b.color for b in near})
        blocks.append(_Block(row, letter, color))
        near.append(blocks[-1])
    return blocks


def _first_unused(choices: Sequence[_Choice], start: int, used: set[_Choice]) -> _Choice:
    """Return the first unused choice from `start` on, or the one at `start` if all are used."""
    rotated = [choices[(start + i) % len(choices)] for i in range(len(choices))]
    return next((choice for choice in rotated if choice not in used), rotated[0])


def _scale(plan: Plan, room: int, lines: int) -> _Scale:
    """Choose the scale of a map of at most `room` columns: if possible, all steps have equally many columns."""
    begin = min(0, *(row.first for row in plan.rows))
    steps = max(len(plan.steps), *(row.last + 1 for row in plan.rows)) - begin
    columns = steps * min(MAX_STEP_COLUMNS, room // steps) if steps <= room else room
    return _Scale(begin, steps, columns, lines, plan.bytes)


def _cells(blocks: Sequence[_Block], scale: _Scale, lines: int) -> list[list[_Block | str | None]]:
    """Return the cells by line from the top: the block that fills most of each, "" if sparse, None if empty."""
    steps_a_column = scale.steps / scale.columns
    bytes_a_line = scale.bytes / lines
    # For each cell, the fraction that all blocks fill together, and the largest fraction of one block.
    filled: list[list[float]] = [[0.0] * scale.columns for _ in range(lines)]
    most: list[list[float]] = [[0.0] * scale.columns for _ in range(lines)]
    cells: list[list[_Block | str | None]] = [[None] * scale.columns for _ in range(lines)]
    for block in blocks:
        row = block.row
        across = list(_overlaps(row.first - scale.begin, row.last + 1 - scale.begin, steps_a_column, scale.columns))
        for line, high in _overlaps(row.offset, row.offset + row.bytes, bytes_a_line, lines):
            for column, wide in across:
                area = high * wide
                filled[line][column] += area
                if area > most[line][column]:
                    most[line][column] = area
                    cells[line][column] = block
    for line in range(lines):
        for column in range(scale.columns):
            if filled[line][column] < FULL:
                cells[line][column] = "" if filled[line][column] >= SPARSE else None
    return cells[::-1]


def _overlaps(low: float, high: float, unit: float, count: int) -> Iterator[tuple[int, float]]:
    """Yield which of `count` cells, each `unit` wide, a range covers, and by which fraction; not by rounding errors."""
    for cell in range(int(low / unit), min(math.ceil(high / unit - 1e-9), count)):
        covered = (min(high, (cell + 1) * unit) - max(low, cell * unit)) / unit
        if covered > 1e-9:
            yield cell, covered


def _in_letters(blocks: Sequence[_Block], scale: _Scale, marks: _Marks) -> list[str]:
    """Draw the lines of the map with the letters of the blocks."""

    def text(cell: _Block | str | None) -> str:
        return cell.letter if isinstance(cell, _Block) else " " if cell is None else marks.dot

    return ["".join(map(text, line)) for line in _cells(blocks, scale, scale.lines)]


def _in_color(blocks: Sequence[_Block], scale: _Scale, marks: _Marks) -> list[str]:
    """Draw two rows of cells per line: the upper half in the foreground colour, the lower in the background colour."""
    halves = _cells(blocks, scale, 2 * scale.lines)
    pairs = list(zip(halves[0::2], halves[1::2], strict=True))
    spots = _letter_spots(pairs)
    picture = []
    for line, (upper, lower) in enumerate(pairs):
        out, style = [], ""
        for column, (above, below) in enumerate(zip(upper, lower, strict=True)):
            cell_style, char = _cell(above, below, spots.get((line, column), " "), marks)
            if cell_style != style:
                out.append(f"\x1b[0{cell_style}m")
                style = cell_style
            out.append(char)
        picture.append("".join(out) + ("\x1b[0m" if style else ""))
    return picture


def _cell(above: _Block | str | None, below: _Block | str | None, letter: str, marks: _Marks) -> tuple[str, str]:
    """Return the style (parameters of a terminal's colour sequence) and the character of one position on the screen."""
    if isinstance(above, _Block) and isinstance(below, _Block):
        if above is below:
            return f";30;48;5;{above.color}", letter
        return f";38;5;{above.color};48;5;{below.color}", marks.upper
    if isinstance(above, _Block):
        return f";38;5;{above.color}", marks.upper
    if isinstance(below, _Block):
        return f";38;5;{below.color}", marks.lower
    return ("", " ") if above is None and below is None else (";2", marks.dot)


def _letter_spots(
    pairs: Sequence[tuple[list[_Block | str | None], list[_Block | str | None]]],
) -> dict[tuple[int, int], str]:
    """Return letters by line and column: that of a block is nearest to its middle, where it fills a cell alone."""
    own: dict[_Block, list[tuple[int, int]]] = {}
    for line, (upper, lower) in enumerate(pairs):
        for column, (above, below) in enumerate(zip(upper, lower, strict=True)):
            if isinstance(above, _Block) and above is below:
                own.setdefault(above, []).append((line, column))
    spots = {}
    for block, places in own.items():
        middle = [sum(place[axis] for place in places) / len(places) for axis in (0, 1)]
        # A line is about twice as high as a column is wide.
        spot = min(places, key=lambda place: abs(place[0] - middle[0]) * 2 + abs(place[1] - middle[1]))
        spots[spot] = block.letter
    return spots


def _labels(total: int, lines: int) -> list[str]:
    """Return the label of each line, an address or nothing: the top, the bottom and a few between have one."""
    every = max(lines // 4, 1)
    labels = [""] * lines
    for line in range(0, lines - every // 2, every):
        labels[line] = size(total * (lines - line) // lines)
    labels[-1] = size(0)
    return labels


def _peak_line(peak: int, scale: _Scale, marks: _Marks) -> str:
    """Return the line above the map that points to the peak, with its text on the side where it fits."""
    column = scale.column(peak)
    text = f"peak: step {peak}"
    if column + len(text) + 2 <= scale.columns or column < len(text) + 1:
        return f"{' ' * column}{marks.peak} {text}"
    return f"{' ' * (column - len(text) - 1)}{text} {marks.peak}"


def _axis(scale: _Scale, marks: _Marks) -> list[str]:
    """Return the line under the map, with a tick at regular steps, and the numbers of those steps."""
    # Both are lists of characters, one per column.
    rail, numbers = [marks.floor] * scale.columns, [" "] * scale.columns
    every = next(n for n in round_numbers() if n * scale.columns >= _TICKS_APART * scale.steps)
    for step in range(0, scale.begin + scale.steps, every):
        column, text = scale.column(step), str(step)
        rail[column] = marks.tick
        if column + len(text) <= scale.columns:
            numbers[column : column + len(text)] = text
    return [f"{'':{_GUTTER}} {marks.corner}{''.join(rail)}", f"{'step':>{_GUTTER}}  {''.join(numbers)}"]


def _tiles(plan: Plan, scale: _Scale, marks: _Marks) -> list[str]:
    """Return a line that shows which steps are tiled, and the number of tiles: equal tiles are drawn once."""
    if not plan.regions:
        return []
    line = [" "] * scale.columns
    for region in plan.regions:
        first, last = scale.column(region.first), scale.column(region.last)
        line[first : last + 1] = marks.tile * (last + 1 - first)
        text = f"{marks.times}{len(region.tiles)}"
        if len(text) + 2 <= last + 1 - first:
            line[first + 1 : first + 1 + len(text)] = text
    return [f"{'tiles':>{_GUTTER}}  {''.join(line)}"]


def round_numbers() -> Iterator[int]:
    """Yield 1, 2, 5, 10, 20, 50 and so on."""
    for power in itertools.count():
        yield from (10**power, 2 * 10**power, 5 * 10**power)


def _span(row: PlanRow, steps: int) -> str:
    """Format the steps of a block; inputs and outputs in scratch live before the first and after the last."""
    first = "start" if row.first < 0 else str(row.first)
    last = "end" if row.last >= steps else str(row.last)
    return first if first == last else f"{first}-{last}"


def _legend(
    plan: Plan, blocks: Sequence[_Block], columns: int, count: int, color: bool, marks: _Marks
) -> Iterator[str]:
    """Yield the lines of the legend: the `count` largest blocks and those at the peak, then the sum of all others."""
    # Many blocks may be live at the peak, so at most twice `count` blocks are listed.
    at_peak = {block for block in blocks if block.row.first <= plan.peak_step <= block.row.last}
    by_size = sorted(blocks, key=lambda b: (-b.row.bytes, b.row.first, b.row.offset))
    shown = [block for place, block in enumerate(by_size) if place < count or block in at_peak][: 2 * count]
    spans = [_span(block.row, len(plan.steps)) for block in shown]
    # The widths of the columns "steps" and "bytes".
    steps = max(5, *map(len, spans))
    amounts = max(13, 2 + len(f"{sum(block.row.bytes for block in blocks):,}"))
    names = shorten([b.row.name for b in shown], max(columns - 11 - amounts - steps, 1), marks.ellipsis)
    yield f"{'':4}{'bytes':>{amounts}}  {'steps':<{steps}}     name"
    for block, span, name in zip(shown, spans, names, strict=True):
        letter = f"\x1b[30;48;5;{block.color}m {block.letter} \x1b[0m" if color else f" {block.letter} "
        mark = marks.peak if block in at_peak else " "
        yield f" {letter}{block.row.bytes:>{amounts},}  {span:<{steps}}  {mark}  {name}"
    rest = [block for block in blocks if block not in shown]
    if rest:
        blocks_left = counted(len(rest), "smaller block")
        yield f"{'':4}{sum(block.row.bytes for block in rest):>{amounts},}  in {blocks_left}"
    yield f"{'':4}{marks.peak} live at the peak"
