"""``isthmus pack`` answers on one screen, in JSON or in a file, and refuses bad input in one line."""

import json
import random
import resource
import subprocess
import sys

import pytest

from isthmus.planning import check, read_csv
from isthmus.tools import cli

PROBLEM = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def pack(tmp_path, capsys):
    def pack(*options, text=PROBLEM):
        path = tmp_path / "problem.csv"
        path.write_text(text)
        status = cli.main(["pack", str(path), *map(str, options)])
        output = capsys.readouterr()
        return status, output.out, output.err

    return pack


def test_the_smallest_layout(pack) -> None:
    status, out, err = pack("--json")
    facts = json.loads(out)
    assert (status, err) == (0, "")
    assert (facts["status"], facts["peak"], facts["lower_bound"]) == ("optimal", 12, 12)
    assert facts["seconds"] >= 0
    assert facts["nodes"] == 0


def test_a_layout_for_people(pack) -> None:
    status, out, _ = pack("--capacity", 64)
    assert status == 0
    assert "optimal (no layout is smaller)" in out
    assert "12 bytes" in out


def test_the_layout_is_written_with_its_offsets(pack, tmp_path) -> None:
    assert pack("--capacity", 12, "--out", tmp_path / "solution.csv")[0] == 0
    layout = read_csv(tmp_path / "solution.csv")
    assert check(layout, [b.offset for b in layout.buffers]) == 12


def test_alignment_for_all(pack) -> None:
    _, out, _ = pack("--align", 16, "--json")
    assert json.loads(out)["peak"] == 36


def test_a_capacity_below_the_lower_bound_does_not_fit(pack) -> None:
    status, out, err = pack("--capacity", 11, "--json")
    assert status == 1
    assert json.loads(out)["status"] == "infeasible"
    assert "capacity 11 is below the 12 bytes" in err


def test_a_capacity_that_only_a_search_can_refute_is_an_answer(pack) -> None:
    text = "id,lower,upper,size,offset\na,0,2,4,\nwall,0,2,1,3\n"
    status, out, err = pack("--capacity", 6, "--json", text=text)
    assert (status, err) == (1, "")
    assert json.loads(out)["status"] == "infeasible"


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ([], "id,lower,upper,size\n", "problem.csv:1: no buffers"),
        ([], PROBLEM + "b6,4,2,1\n", "problem.csv:7: buffer 'b6': ends at 2"),
        ([], PROBLEM + "b1,4,5,1\n", "problem.csv:7: two buffers have the id 'b1'"),
        (["--capacity", "999999999999999GiB"], PROBLEM, "above the limit"),
        (["--align", 0], PROBLEM, "--align 0 is not an alignment"),
        (["--timeout", -1], PROBLEM, "--timeout -1.0 is not a number of seconds from 0 on"),
        (["--out", "/no/such/folder/solution.csv"], PROBLEM, "cannot be written: No such file"),
    ],
)
def test_bad_input_is_one_line_and_status_2(pack, options, text, message) -> None:
    status, out, err = pack(*options, text=text)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("capacity", [-1, 10**30, "1.5KiB", "much"])
def test_a_capacity_that_is_not_a_size_is_refused_with_the_usage_and_status_2(pack, capsys, capacity) -> None:
    with pytest.raises(SystemExit) as ended:
        pack(f"--capacity={capacity}")
    assert ended.value.code == 2
    assert f"argument --capacity: '{capacity}' is not a size: write bytes" in capsys.readouterr().err


def test_a_file_that_is_not_there(capsys) -> None:
    assert cli.main(["pack", "/no/such/file.csv"]) == 2
    assert capsys.readouterr().err == "isthmus pack: /no/such/file.csv: No such file or directory\n"


def crowded(path, rows, together):
    """Rows that are all live at one time, or only most of them."""
    chance = random.Random(1)
    lives = [(chance.randint(0, 5), chance.randint(6, 12)) for _ in range(rows)]
    if not together:
        lives = [(start + 10 * (row % 3), end + 10 * (row % 3)) for row, (start, end) in enumerate(lives)]
    sizes = [chance.randint(1, 1000) for _ in lives]
    lines = [f"b{row},{a},{b},{size}\n" for row, ((a, b), size) in enumerate(zip(lives, sizes, strict=True))]
    path.write_text("id,lower,upper,size\n" + "".join(lines))
    return sum(sizes)


@pytest.mark.parametrize("together", [True, False])
def test_many_rows_that_are_live_together_get_a_layout_in_little_memory(tmp_path, together) -> None:
    path, out = tmp_path / "crowded.csv", tmp_path / "out.csv"
    total = crowded(path, 20_000, together)

    def confine():
        # A list of all pairs would take ten times as much.
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))

    command = [sys.executable, "-m", "isthmus.tools.cli", "pack", str(path), "--json", "--out", str(out)]
    done = subprocess.run(command, preexec_fn=confine, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    layout = read_csv(out)
    assert check(layout, [b.offset for b in layout.buffers]) == facts["peak"]
    if together:
        assert (facts["status"], facts["peak"], facts["stopped_by"]) == ("optimal", total, "proof")
    else:
        assert facts["lower_bound"] <= facts["peak"] < total
        assert facts["stopped_by"] == "size"
    assert facts["greedy_by_size"] is None


def test_a_layout_that_is_too_large_to_be_searched_says_so(pack, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.planning.solver.MAX_CONFLICTS", 2)
    monkeypatch.setattr("isthmus.tools.pack.MAX_CONFLICTS", 2)
    status, out, _ = pack("--capacity", 12)
    assert "greedy by size  not tried" in out
    assert status == 0
    status, out, _ = pack(text="id,lower,upper,size\na,0,2,4\nb,1,3,8\nc,2,4,6\nd,0,4,2\n")
    assert "ended by the number of buffers that are live together" in out


@pytest.mark.parametrize("timeout", ["nan", "-1"])
def test_a_timeout_that_is_no_number_or_negative_is_refused(pack, timeout) -> None:
    status, _, err = pack("--timeout", timeout)
    assert (status, err.count("\n")) == (2, 1)
