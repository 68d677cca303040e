"""Files are read as MiniMalloc writes them, and refused with the line that is wrong."""

import pytest

from isthmus.planning import Gap, PlannerBuffer, PlanningError, Problem, read_csv, write_csv


@pytest.fixture
def read(tmp_path):
    def read(text, **options):
        path = tmp_path / "problem.csv"
        path.write_text(text)
        return read_csv(path, **options)

    return read


def test_the_four_columns_in_any_order(read) -> None:
    problem = read("size,id,upper,lower\n4,b1,3,0\n8,b2,9,3\n")
    assert problem.buffers == (PlannerBuffer("b1", 0, 3, 4), PlannerBuffer("b2", 3, 9, 8))


@pytest.mark.parametrize("header", ["id,start,end,size", "buffer,begin,end,size", "buffer_id,lower,upper,size"])
def test_other_names_mean_the_same(read, header) -> None:
    assert read(f"{header}\nx,0,3,4\n").buffers == (PlannerBuffer("x", 0, 3, 4),)


def test_alignment_gaps_and_fixed_offsets(read) -> None:
    problem = read("id,lower,upper,size,alignment,gaps,offset\na,0,20,4,8,9-11 12-14,16\nb,0,2,4,,,\n", alignment=2)
    assert problem.buffers == (
        PlannerBuffer("a", 0, 20, 4, 8, 16, (Gap(9, 11), Gap(12, 14))),
        PlannerBuffer("b", 0, 2, 4, 2),
    )


def test_blank_lines_spaces_and_a_byte_order_mark_do_no_harm(read) -> None:
    assert read("\ufeffid, lower ,upper,size\r\n\r\n a ,0, 3,4\r\n").buffers == (PlannerBuffer("a", 0, 3, 4),)


def test_the_capacity_comes_from_the_caller(read) -> None:
    assert read("id,lower,upper,size\na,0,3,4\n", capacity=64).capacity == 64


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ":1: the file is empty"),
        ("id,lower,upper,size\n", ":1: no buffers"),
        ("id,lower,size\na,0,4\n", ":1: column 'upper' is missing"),
        ("id,lower,start,upper,size\n", ":1: column 'lower' appears more than once"),
        ("id,lower,upper,size,colour\n", ":1: unknown column 'colour'"),
        ("id,lower,upper,size\na,0,3\n", ":2: 3 fields, but the header has 4"),
        ("id,lower,upper,size\na,0,3,4\n,0,3,4\n", ":3: id is empty"),
        ("id,lower,upper,size\na,0,3,four\n", ":2: size 'four' is not an integer"),
        ("id,lower,upper,size\na,0,3,1.5\n", ":2: size '1.5' is not an integer"),
        ("id,lower,upper,size\na,0,3,\n", ":2: size is empty"),
        ("id,lower,upper,size\na,0,3,-4\n", ":2: buffer 'a': size -4 is negative"),
        ("id,lower,upper,size\na,0,3,99999999999999999999\n", ":2: buffer 'a': size 99999999999999999999 is above"),
        ("id,lower,upper,size\na,0,3," + "9" * 9000 + "\n", ":2: size 999999999999... is far too large"),
        ("id,lower,upper,size\na,3,1,4\n", ":2: buffer 'a': ends at 1, not after its start 3"),
        ("id,lower,upper,size\na,0,1,4\n\nb,0,1,4\na,0,1,4\n", ":5: two buffers have the id 'a'"),
        ("id,lower,upper,size,alignment\na,0,1,4,0\n", ":2: buffer 'a': alignment 0"),
        ("id,lower,upper,size,gaps\na,0,9,4,3\n", ":2: gap '3' is not of the form start-end"),
        ("id,lower,upper,size,gaps\na,0,9,4,3-5@1:2\n", ":2: gap '3-5@1:2' has a window"),
        ("id,lower,upper,size,gaps\na,0,9,4,3-12\n", ":2: buffer 'a': gap 3-12 must be inside"),
        ("id,lower,upper,size,offset\na,0,9,4,0\nb,1,2,4,2\n", ":3: buffer 'b': fixed offset 2 collides"),
        ('id,lower,upper,size\n"a,0,1,4\n', "fields"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(read, text, message) -> None:
    with pytest.raises(PlanningError) as caught:
        read(text)
    assert message in str(caught.value)
    assert "problem.csv:" in str(caught.value)


def test_what_is_not_text_is_refused(tmp_path) -> None:
    path = tmp_path / "problem.csv"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(PlanningError, match="not a text file"):
        read_csv(path)


def test_a_problem_survives_being_written_and_read(tmp_path) -> None:
    problem = Problem(
        (PlannerBuffer("a", 0, 20, 4, 8, 16, (Gap(9, 11), Gap(12, 14))), PlannerBuffer('odd, "name"', 0, 2, 4))
    )
    write_csv(tmp_path / "again.csv", problem)
    assert read_csv(tmp_path / "again.csv") == problem


def test_a_layout_is_the_problem_with_an_offset_column(tmp_path) -> None:
    write_csv(tmp_path / "layout.csv", Problem((PlannerBuffer("a", 0, 2, 4), PlannerBuffer("b", 1, 3, 4))), (0, 4))
    assert (tmp_path / "layout.csv").read_text() == "id,lower,upper,size,offset\na,0,2,4,0\nb,1,3,4,4\n"
