"""The planner agrees with brute force, says what it knows, and always says the same."""

import math
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.waiting import PATIENCE

from isthmus.planning import (
    Gap,
    PlannerBuffer,
    PlanningError,
    Problem,
    Status,
    check,
    component,
    greedy_by_size,
    lower_bound,
    machine,
    portfolio,
    solve,
    solver,
)
from planning import brute
from planning.squares import square_in_pieces

MAX_LIVE = 5
PROPERTY = settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@st.composite
def problems(draw, alignments=(1,), fixed=False, gaps=False):
    """Up to 12 buffers of a few bytes, not too many live at once for brute force."""
    buffers = []
    for i in range(draw(st.integers(1, 12))):
        start = draw(st.integers(0, 7))
        end = start + draw(st.integers(1, 4))
        alignment = draw(st.sampled_from(alignments))
        offset = draw(st.none() | st.integers(0, 6)) if fixed else None
        pause = ()
        if gaps and end - start >= 3 and draw(st.booleans()):
            pause_start = draw(st.integers(start + 1, end - 2))
            pause = (Gap(pause_start, draw(st.integers(pause_start + 1, end - 1))),)
        buffer = PlannerBuffer(
            str(i),
            start,
            end,
            draw(st.integers(1, 6)),
            alignment,
            None if offset is None else offset * alignment,
            pause,
        )
        if sum(b.start < end and start < b.end for b in buffers) >= MAX_LIVE:
            continue
        try:
            buffers = list(Problem((*buffers, buffer)).buffers)
        except PlanningError:
            continue
    return Problem(tuple(buffers))


def agrees_with_brute_force(problem):
    smallest = brute.smallest_peak(problem)
    assert lower_bound(problem) <= smallest

    plan = solve(problem, timeout=None)
    assert plan.status is Status.OPTIMAL
    assert plan.stopped_by == "proof"
    assert check(problem, plan.offsets) == plan.peak == plan.lower_bound == smallest
    assert check(problem, greedy_by_size(problem)) >= smallest

    enough = Problem(problem.buffers, capacity=smallest)
    fits = solve(enough, timeout=None)
    assert check(enough, fits.offsets) == fits.peak == smallest

    if smallest > 0:
        short = solve(Problem(problem.buffers, capacity=smallest - 1), timeout=None)
        assert (short.status, short.offsets, short.stopped_by) == (Status.INFEASIBLE, None, "proof")
        assert short.lower_bound == smallest


@pytest.fixture
def search_only(monkeypatch):
    """Keep the fast layouts and the reductions from answering before the search does."""
    monkeypatch.setattr(solver, "orders", lambda problem, conflicts: iter([list(range(len(problem)))]))
    monkeypatch.setattr(component, "_without_easy", lambda members, *rest: members)
    monkeypatch.setattr(component, "_bottom", lambda *rest: [])


@given(problems())
@PROPERTY
def test_the_planner_agrees_with_brute_force(problem) -> None:
    agrees_with_brute_force(problem)


@given(problems())
@PROPERTY
def test_the_search_alone_agrees_with_brute_force(search_only, problem) -> None:
    agrees_with_brute_force(problem)


@given(problems(alignments=(4,)))
@PROPERTY
def test_one_alignment_for_all(search_only, problem) -> None:
    agrees_with_brute_force(problem)


@given(problems(alignments=(1, 2, 3, 4)))
@PROPERTY
def test_different_alignments(search_only, problem) -> None:
    agrees_with_brute_force(problem)


@given(problems(gaps=True))
@PROPERTY
def test_gaps(search_only, problem) -> None:
    agrees_with_brute_force(problem)


@given(problems(fixed=True))
@PROPERTY
def test_fixed_offsets(search_only, problem) -> None:
    agrees_with_brute_force(problem)


@given(problems(alignments=(1, 2, 4), fixed=True, gaps=True))
@PROPERTY
def test_everything_at_once(problem) -> None:
    agrees_with_brute_force(problem)


@given(problems(alignments=(1, 3), fixed=True, gaps=True))
@settings(PROPERTY, max_examples=40)
def test_compiled_and_interpreted_searches_take_the_same_way(search_only, problem) -> None:
    interpreted = solve(problem, timeout=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portfolio.SearchBudget.__init__, "__defaults__", (0, False, 0.0))
        compiled = solve(problem, timeout=None)
    assert (compiled.offsets, compiled.nodes) == (interpreted.offsets, interpreted.nodes)
    assert compiled.loading > 0 or compiled.nodes == 0


HARD = square_in_pieces(40, seed=1)


def test_a_node_limit_of_zero_gives_the_fast_layout(search_only) -> None:
    plan = solve(HARD, node_limit=0)
    assert plan.nodes == 0
    assert plan.stopped_by == "node limit"
    assert plan.status is Status.FEASIBLE
    assert check(HARD, plan.offsets) == plan.peak > plan.lower_bound


def test_a_decision_cut_short_is_unknown_and_not_infeasible(search_only) -> None:
    goal = solve(HARD, timeout=None).peak
    cut = solve(Problem(HARD.buffers, capacity=goal), node_limit=1)
    assert (cut.status, cut.offsets, cut.peak, cut.stopped_by) == (Status.UNKNOWN, None, None, "node limit")
    assert cut.nodes == 1


def test_no_time_gives_the_fast_layout_and_says_so(search_only) -> None:
    plan = solve(HARD, timeout=0)
    assert plan.stopped_by == "time limit"
    assert check(HARD, plan.offsets) == plan.peak


def test_a_capacity_below_the_lower_bound_is_infeasible_without_search() -> None:
    plan = solve(Problem(HARD.buffers, capacity=lower_bound(HARD) - 1))
    assert (plan.status, plan.nodes, plan.stopped_by) == (Status.INFEASIBLE, 0, "proof")


def test_a_generous_capacity_is_met_at_once() -> None:
    plan = solve(Problem(HARD.buffers, capacity=1000))
    assert plan.status in (Status.FEASIBLE, Status.OPTIMAL)
    assert (plan.nodes, plan.stopped_by) == (0, "proof")


def test_threads_do_not_change_the_answer(search_only) -> None:
    one, two = (solve(HARD, timeout=None, threads=n) for n in (1, 2))
    assert (one.offsets, one.nodes, one.status) == (two.offsets, two.nodes, two.status)


def test_empty_problems_and_empty_buffers_are_planned() -> None:
    assert solve(Problem(())).peak == 0
    plan = solve(
        Problem(
            (PlannerBuffer("nothing", 0, 9, 0, alignment=64), PlannerBuffer("a", 0, 9, 3), PlannerBuffer("b", 2, 4, 5))
        )
    )
    assert (plan.peak, plan.status) == (8, Status.OPTIMAL)


@pytest.mark.parametrize("options", [{"timeout": -1}, {"timeout": float("nan")}, {"node_limit": -1}, {"threads": 0}])
def test_impossible_limits_are_refused(options) -> None:
    with pytest.raises(PlanningError):
        solve(HARD, **options)


def test_a_buffer_that_fixed_ones_lift_above_the_capacity_is_noticed() -> None:
    problem = Problem(
        (PlannerBuffer("wall", 0, 4, 4, 2, offset=8), PlannerBuffer("a", 0, 4, 10, 2), PlannerBuffer("b", 2, 6, 3, 4))
    )
    agrees_with_brute_force(problem)


def test_easy_problems_are_planned_without_numba() -> None:
    code = (
        "import sys; from isthmus.planning import PlannerBuffer, Problem, solve;"
        "chain = [PlannerBuffer(str(i), i, i + 2 + (i % 7 == 0), 100 + i % 13) for i in range(300)];"
        "assert solve(Problem(tuple(chain))).status == 'optimal';"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_time_for_the_whole_does_not_wait_for_a_compiler(monkeypatch) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def load():
        asked.set()
        let_go.wait()

    monkeypatch.setattr(machine, "load", load)
    try:
        limits = portfolio.SearchBudget(time.perf_counter() + 0.05, math.inf, 1, whole=True)
        assert limits.load() is None
        assert asked.wait(PATIENCE)
        assert solve(square_in_pieces(300, 3), timeout=0.2, whole=True).stopped_by == "time limit"
    finally:
        let_go.set()


def test_a_layout_is_found_when_there_is_no_time_at_all(monkeypatch) -> None:
    buffers = [PlannerBuffer(str(k), k, k + 2 + k % 3, 8 + k % 5) for k in range(1000)]
    problem = Problem(tuple(buffers))
    solution = solve(problem, timeout=0)
    assert solution.offsets is not None
    assert check(problem, solution.offsets) == solution.peak
    assert solution.stopped_by in ("time limit", "proof")
    monkeypatch.setattr(solver, "MAX_CONFLICTS", 100)
    crowded = solve(problem, timeout=None)
    assert crowded.stopped_by == ("proof" if crowded.peak == crowded.lower_bound else "size")
