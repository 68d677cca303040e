"""The memory map shows every block where it lies and when, marks the peak, and fits the terminal."""

import re
from dataclasses import replace
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.prepare.schedule import Plan, PlanRow, Region
from isthmus.report import draw, tabulate
from isthmus.report.memory_map import _GUTTER, _UNICODE, _blocks, _peak_line, _Scale, _tiles


def plan(*rows: PlanRow, steps: int | None = None) -> Plan:
    count = steps or max((row.last for row in rows), default=0) + 1
    size = max((row.offset + row.bytes for row in rows), default=0)

    def live(step):
        return sum(row.bytes for row in rows if row.first <= step <= row.last)

    peak = max(range(count), key=live) if rows else -1
    names = tuple(row.name for row in rows if row.first <= peak <= row.last)
    return Plan(size, size, "optimal", size, size, peak, names, rows, (("Relu", "r"),) * count, 0, 0, 0.0)


THREE = plan(PlanRow("a", 128, 0, 1, 0), PlanRow("b", 64, 1, 2, 128), PlanRow("c", 64, 2, 3, 0))


def picture(text: str) -> list[str]:
    """The lines of the map itself, without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return [line.split("│")[1] for line in plain.splitlines() if "│" in line]


def test_blocks_lie_at_their_addresses_and_steps() -> None:
    assert picture(draw(THREE, lines=3)) == [
        "      BBBBBBBBBBBB",
        "AAAAAAAAAAAA",
        "AAAAAAAAAAAACCCCCCCCCCCC",
    ]


def test_the_peak_is_marked_over_its_step_and_in_the_legend() -> None:
    lines = draw(THREE, lines=3).splitlines()
    assert lines[0].strip() == "▼ peak: step 1"
    assert lines[0].index("▼") == 12 + 6 + 3
    marked = [line.split()[0] for line in lines[5:] if "▼" in line and "bytes" not in line and "live" not in line]
    assert marked == ["A", "B"]


def test_the_number_of_tiles_is_drawn_where_their_steps_leave_room() -> None:
    """A step is a column wide: five have room for the number between two marks, four have not."""
    tiles = tuple(() for _ in range(12))
    regions = [Region((), (), tiles, (0, 0), first, last, 0, 0) for first, last in ((0, 4), (6, 9), (11, 11))]
    whole = replace(plan(PlanRow("a", 64, 0, 11, 0)), regions=tuple(regions))
    (line,) = _tiles(whole, _Scale(0, 12, 12, 4, 64), _UNICODE)
    assert line.removeprefix(f"{'tiles':>{_GUTTER}}  ") == "═×12═ ════ ═"


def test_colours_show_the_same_blocks_with_twice_the_lines() -> None:
    text = draw(THREE, lines=3, color=True)
    assert "\x1b[" in text
    assert text.count("\x1b[0m") >= 3
    joined = "".join(picture(text))
    assert all(joined.count(letter) == 1 for letter in "ABC")


def test_without_colour_there_is_no_escape_and_without_unicode_no_character_beyond_ascii() -> None:
    assert "\x1b" not in draw(THREE)
    assert draw(THREE, unicode=False).isascii()
    assert draw(plan(PlanRow("x/" * 60, 8, 0, 0, 0)), unicode=False).isascii()


def test_blocks_that_live_side_by_side_have_different_letters_and_colours() -> None:
    blocks = _blocks([PlanRow(f"t{i}", 64 + i % 3, i, i + 3, 64 * (i % 4)) for i in range(200)])
    for one, other in combinations(blocks, 2):
        if one.row.first <= other.row.last + 1 and other.row.first <= one.row.last + 1:
            assert one.letter != other.letter
            assert one.color != other.color


def test_inputs_and_outputs_in_scratch_begin_before_the_first_step_and_end_after_the_last() -> None:
    text = draw(plan(PlanRow("in", 64, -1, 0, 0), PlanRow("out", 64, 1, 2, 64), steps=2))
    assert "start-0" in text
    assert "1-end" in text


def test_a_plan_without_scratch_says_so() -> None:
    assert draw(plan()) == "no scratch memory is in use"
    assert draw(plan(PlanRow("empty", 0, 0, 0, 0))) == "no scratch memory is in use"


def test_a_small_block_is_a_dot_and_not_lost_when_it_fills_little_of_a_cell() -> None:
    text = draw(plan(PlanRow("large", 1000, 0, 0, 0), PlanRow("small", 20, 1, 1, 0)), lines=10)
    assert picture(text)[-1].strip("A") == "······"


rows = st.builds(
    lambda name, size, first, length, offset: PlanRow(name, size, first, first + length, offset),
    st.text(max_size=100),
    st.integers(0, 2**40),
    st.integers(-1, 300),
    st.integers(0, 300),
    st.integers(0, 2**40),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(rows, min_size=1, max_size=8), st.integers(48, 160), st.booleans(), st.integers(1, 30))
def test_any_plan_fits_the_columns_it_is_given(rows, columns, color, lines) -> None:
    rows = [PlanRow(re.sub(r"\s", "_", row.name), *list(vars(row).values())[1:]) for row in rows]
    text = re.sub(r"\x1b\[[0-9;]*m", "", draw(plan(*rows), columns=columns, color=color, lines=lines))
    assert max(map(len, text.splitlines())) <= columns


def test_the_table_has_a_line_for_each_block() -> None:
    lines = tabulate(THREE.rows).splitlines()
    assert lines[0].split() == ["offset", "bytes", "first", "step", "last", "step", "name"]
    assert lines[2].split() == ["128", "64", "1", "2", "b"]
    assert len(lines) == 4


def test_the_peak_is_marked_over_its_own_column_wherever_that_is() -> None:
    for columns in (16, 20, 30, 41):
        for peak in range(columns):
            scale = _Scale(0, columns, columns, 3, 100)
            line = _peak_line(peak, scale, _UNICODE)
            assert line.index("▼") == scale.column(peak)
            assert f"peak: step {peak}" in line
            assert len(line) <= max(columns, peak + len(f"peak: step {peak}") + 2)
