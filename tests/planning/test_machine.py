"""The compiled search lies in the same checked cache as all compiled code, and planning works without one too."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from isthmus.compiled import children
from isthmus.errors import QnnError
from isthmus.planning import attempt, machine, portfolio, search, solve, solver
from planning.squares import square_in_pieces

HARD = square_in_pieces(40, seed=1)


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Forget the loaded search, as in a new process, and use an empty cache."""
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(children, "_in_memory", {})
    machine.load.cache_clear()
    yield tmp_path / "cache"
    machine.load.cache_clear()


def test_the_search_is_compiled_once_into_the_cache_and_without_numba_in_this_process(fresh) -> None:
    script = (
        "import sys; from isthmus.planning import machine; machine.load()\n"
        "assert 'numba' not in sys.modules, 'numba was loaded'"
    )
    runs = [subprocess.run([sys.executable, "-c", script], capture_output=True, text=True) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], runs
    assert ["compiling the planner's search" in run.stderr for run in runs] == [True, False]
    assert [name for name in sorted(os.listdir(fresh)) if name.endswith(".o")] == [machine.SEARCH.file("search")]


def test_a_folder_that_others_may_write_is_refused(fresh) -> None:
    fresh.mkdir()
    os.chmod(fresh, 0o777)
    with pytest.raises(QnnError, match="can be written by others"):
        machine.load()


def test_without_a_folder_to_keep_it_the_search_serves_this_process(fresh, tmp_path, monkeypatch, capfd) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setenv("ISTHMUS_CACHE_DIR", "/proc/nowhere")
    machine.load()
    said = capfd.readouterr().err
    assert "/proc/nowhere" in said
    assert "only for this process" in said
    assert list(temporary.iterdir()) == []


def test_the_key_changes_with_the_sources_and_the_architecture(monkeypatch) -> None:
    fewer = replace(machine.SEARCH, sources=machine.SEARCH.sources[:1])
    keys = {machine.SEARCH.key(), fewer.key()}
    monkeypatch.setattr("platform.machine", lambda: "z80")
    assert len({*keys, machine.SEARCH.key(), fewer.key()}) == 4


@pytest.mark.parametrize("interpreted_work", [0, 10**9], ids=["compiled", "interpreted"])
def test_a_search_that_outgrows_its_arrays_continues_with_longer_ones(monkeypatch, interpreted_work) -> None:
    """Machine code sees no lengths but those that it is told."""
    monkeypatch.setattr(portfolio.SearchBudget.__init__, "__defaults__", (interpreted_work, False, 0.0))
    # No fast layout may answer before the search does.
    monkeypatch.setattr(solver, "orders", lambda problem, conflicts: iter([list(range(len(problem)))]))
    roomy = solve(HARD, timeout=None)
    ample = attempt.Task.start.func
    grown = []

    def tight(task):
        start = ample(task)
        start["trail"] = start["trail"][: search.ENTRY * (4 * len(task) + 8)]
        start["order"] = start["order"][: 3 * len(task)]
        start["registers"][search.TRAIL_LENGTH] = len(start["trail"])
        start["registers"][search.ORDER_LENGTH] = len(start["order"])
        return start

    def seen(self, advance, nodes):
        before = len(self.state.trail)
        result = run(self, advance, nodes)
        grown.append(len(self.state.trail) > before)
        return result

    run = attempt.Attempt.run
    monkeypatch.setattr(attempt.Task, "start", property(tight))
    monkeypatch.setattr(attempt.Attempt, "run", seen)
    cramped = solve(HARD, timeout=None)
    assert any(grown)
    assert (cramped.offsets, cramped.nodes) == (roomy.offsets, roomy.nodes)


@pytest.mark.parametrize("interpreted_work", [0, 10**9], ids=["compiled", "interpreted"])
def test_the_search_knows_at_every_pause_how_much_is_left_to_place_where(monkeypatch, interpreted_work) -> None:
    """A wrong account would only make the search slower, which no other test notices."""
    monkeypatch.setattr(portfolio.SearchBudget.__init__, "__defaults__", (interpreted_work, False, 0.0))
    monkeypatch.setattr(solver, "orders", lambda problem, conflicts: iter([list(range(len(problem)))]))
    partly = []

    def seen(self, advance, nodes):
        result = run(self, advance, nodes)
        state = self.state
        left = [0] * len(state.total)
        for x, placed in enumerate(state.placed):
            for k in range(state.piece_first[x], state.piece_first[x + 1]):
                for t in range(state.piece_left[k], state.piece_right[k]):
                    left[t] += 0 if placed else int(state.size[x])
        assert left == [int(n) for n in state.total]
        partly.append(any(state.placed))
        return result

    run = attempt.Attempt.run
    monkeypatch.setattr(attempt.Attempt, "run", seen)
    solve(HARD, timeout=None)
    assert any(partly)
