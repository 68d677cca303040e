"""``--timeout`` ends an execution that takes longer, on every backend, with QNN's code and nothing written."""

from itertools import pairwise

import numpy as np
import pytest
from onnx import helper
from support import tiny
from support.suites import only

import isthmus
from isthmus import Code, QnnError
from isthmus.tools.cli import main

SIDE, STEPS = 192, 200


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model of many products, each of which takes a while, with a list of one input for it."""
    folder = tmp_path_factory.mktemp("slow")
    names = ["x", *(f"t{step}" for step in range(STEPS - 1)), "y"]
    nodes = [helper.make_node("MatMul", [before, "w"], [after]) for before, after in pairwise(names)]
    weights = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32) / SIDE
    np.zeros((SIDE, SIDE), np.float32).tofile(folder / "x.raw")
    (folder / "list.txt").write_text("x.raw\n")
    return tiny.save(folder / "slow.onnx", nodes, {"x": [SIDE, SIDE]}, {"y": [SIDE, SIDE]}, {"w": weights})


@pytest.mark.parametrize("backend", only(("cpu", "htp"), ("cpu", "htp", "lpai")))
@pytest.mark.parametrize("command", ["run", "net-run"])
def test_an_execution_that_takes_too_long_is_ended(slow, tmp_path, capsys, backend, command) -> None:
    if command == "run":
        arguments = ["run", str(slow), "--outputs", str(tmp_path / "y.npz")]
    else:
        arguments = ["net-run", "--model", str(slow), "--input_list", str(slow.with_name("list.txt"))]
        arguments += ["--output_dir", str(tmp_path / "output")]
    # QNN's tools count in microseconds, ours in seconds.
    short, long = ("0.002", "600") if command == "run" else ("2000", "600000000")
    assert main([*arguments, "--backend", backend, "--timeout", short]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"isthmus {command}: [6033 GRAPH_TIMED_OUT] ")
    assert not list(tmp_path.iterdir())
    assert main([*arguments, "--backend", backend, "--timeout", long]) == 0


def test_a_session_works_after_a_run_that_was_ended(slow) -> None:
    with isthmus.Session(slow, timeout=0.002) as session:
        for _ in range(2):
            with pytest.raises(QnnError) as refusal:
                session.run()
            assert refusal.value.code is Code.GRAPH_TIMED_OUT
        assert session.stats.runs == 0


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf"), True, "1"])
def test_a_timeout_that_is_no_positive_number_is_refused(slow, seconds) -> None:
    with pytest.raises(QnnError, match="must be a number of seconds"):
        isthmus.Session(slow, timeout=seconds)


def test_the_command_line_refuses_a_negative_timeout(slow, capsys) -> None:
    assert main(["run", str(slow), "--timeout", "-1"]) == 2
    assert "must be a number of seconds" in capsys.readouterr().err
