"""The solver: fast layouts first, then an exact search if they do not reach the lower bound."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import count

from isthmus.planning.attempt import Task
from isthmus.planning.bound import lower_bound
from isthmus.planning.component import Scale, take_apart
from isthmus.planning.conflicts import MAX_CONFLICTS, count_conflicts, find_conflicts
from isthmus.planning.greedy import first_fit, in_order_of_time, orders
from isthmus.planning.portfolio import SearchBudget, answer
from isthmus.planning.problem import PlanningError, Problem, Solution, Status

FIRST_NODES = 4
"""Nodes per member of a component for an attempt of the first round; each round doubles them."""

ATTEMPTS = 16
"""Attempts per round at the most important capacity; others get a fraction of them."""


def solve(
    problem: Problem,
    *,
    timeout: float | None = 10.0,
    node_limit: int | None = None,
    threads: int = 2,
    whole: bool = False,
) -> Solution:
    """Find the smallest layout, or one that fits the capacity of the problem.

    Several fast layouts are tried first; if one of them reaches the lower bound or fits the capacity, it is the result.
    Otherwise an exact search continues until it has a proof or reaches a limit. The result for a problem is always the
    same, for any number of threads, unless the time limit stops it. If too many buffers are live at once to list the
    pairs, they are placed in order of time without a search.

    Parameters
    ----------
    problem
        The problem. Without a capacity the peak is minimised; with one, any layout that fits is accepted.
    timeout
        Seconds; ``None`` for no limit. Loading the compiled search, or compiling it on its first use, is not counted
        unless `whole` is set. Some layout is found in any case.
    node_limit
        The maximum number of partial layouts that the exact search examines; 0 for fast layouts only, ``None`` for no
        limit.
    threads
        The maximum number of searches that run in parallel.
    whole
        Whether the time to load the compiled search counts.

    Returns
    -------
    Solution
        The result. A problem that is hard or has no solution is not an error; its status says so.

    Examples
    --------
    >>> from isthmus.planning import PlannerBuffer, Problem
    >>> lives = [("a", 0, 3, 4), ("b", 3, 9, 4), ("c", 0, 9, 4), ("d", 9, 21, 4)]
    >>> buffers = tuple(PlannerBuffer(*life) for life in lives)
    >>> solve(Problem(buffers)).peak
    8
    >>> solve(Problem(buffers, capacity=7)).status.value
    'infeasible'
    """
    if timeout is not None and not timeout >= 0:
        raise PlanningError(f"timeout {timeout} is negative")
    if node_limit is not None and node_limit < 0:
        raise PlanningError(f"node limit {node_limit} is negative")
    if threads < 1:
        raise PlanningError(f"{threads} threads cannot search")
    planner = _Planner(problem, timeout, node_limit, threads, whole)
    stopped_by = planner.place_fast()
    if stopped_by is None and not planner.is_finished():
        stopped_by = planner.search()
    return planner.solution("proof" if planner.is_finished() or stopped_by is None else stopped_by)


class _Hard:
    """A component under search, with the results so far.

    - `refuted`: the largest capacity in bytes for which there is no layout; -1 if none is known.
    - `peak`, `offsets`: the best layout so far: the offset in bytes at which it ends, and the offset of each member in
      units above the component's base.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.turns = 0
        self.refuted = -1
        self.peak = math.inf
        self.offsets: list[int] = []

    def keep(self, offsets: list[int]) -> None:
        """Keep a new layout; it is better than the one before, because only smaller capacities are tried."""
        task = self.task
        self.offsets = offsets
        self.peak = max(
            (task.component.base + at) * task.scale.unit + task.problem.buffers[i].size
            for i, at in zip(task.component.members, offsets, strict=True)
        )


class _Planner:
    """One call of `solve`: the best layout and the best bound so far, and the remaining budget.

    - `problem`, `timeout`, `node_limit`, `threads`, `whole`: the arguments of `solve`.
    - `began`, `limits`: when the call began, and the remaining budget.
    - `spent`: the nodes that the exact search has examined so far.
    - `bound`: a peak that no layout can go below.
    - `peak`, `offsets`: the best layout so far; infinite and None before there is one.
    - `greedy`: the peak of the first fast layout; None if none was completed.
    - `conflicts`, `neighbours`: the conflicts of all buffers, as a table and as lists; from `place_fast` on.
    - `unit`, `remainders`, `parts`, `hard`: the unit of the problem in bytes, what a peak can be beyond a multiple of
      it, the parts of the problem, and its components with their results; from `prepare_search` on.
    """

    def __init__(
        self, problem: Problem, timeout: float | None, node_limit: int | None, threads: int, whole: bool
    ) -> None:
        self.began = time.perf_counter()
        self.problem = problem
        deadline = math.inf if timeout is None else self.began + timeout
        nodes = math.inf if node_limit is None else node_limit
        self.limits = SearchBudget(deadline, nodes, threads, whole)
        self.spent = 0
        self.bound = lower_bound(problem)
        self.peak = math.inf
        self.offsets: tuple[int, ...] | None = None
        self.greedy: int | None = None

    def is_finished(self) -> bool:
        """Return whether the problem is decided: nothing is left to find or to prove."""
        capacity = self.problem.capacity
        if capacity is not None:
            return self.peak <= capacity or self.bound > capacity
        return self.peak <= self.bound

    def place_fast(self) -> str | None:
        """Try several one-pass layouts; return what prevents a search, if anything does."""
        if self.is_finished():
            return None
        if count_conflicts(self.problem) > MAX_CONFLICTS:
            self._keep(in_order_of_time(self.problem))
            return "size"
        self.conflicts = find_conflicts(self.problem)
        self.neighbours = self.conflicts.lists()
        for order in orders(self.problem, self.neighbours):
            offsets = first_fit(self.problem, order, self.neighbours, deadline=self.limits.deadline)
            if offsets is None:
                if self.offsets is None:
                    self._keep(in_order_of_time(self.problem))
                return "time limit"
            self._keep(offsets)
            self.greedy = int(self.peak) if self.greedy is None else self.greedy
            if self.is_finished():
                return None
            if time.perf_counter() >= self.limits.deadline:
                return "time limit"
        return None

    def search(self) -> str:
        """Search for a better layout until there is a proof or a limit is reached; return which."""
        if not self.prepare_search():
            return "time limit"
        capacity = self.problem.capacity
        return self.minimise() if capacity is None else self.decide(capacity)

    def prepare_search(self) -> bool:
        """Split the problem into components; return False if there is not enough time.

        Buffers that are set aside are easy at the lower bound, and so at all capacities tried.
        """
        scale = Scale.of(self.problem)
        self.unit = scale.unit
        # A peak is where some buffer ends: a multiple of the unit plus one of these.
        self.remainders = sorted({b.size % scale.unit for b in self.problem.buffers})
        parts = take_apart(self.problem, scale, self.conflicts, self.bound, self.limits.deadline)
        if parts is None:
            return False
        self.parts = parts
        self.hard = [_Hard(Task(self.problem, scale, c, self.conflicts)) for c in parts.components]
        self.hard.sort(key=lambda h: len(h.task))
        return True

    def decide(self, capacity: int) -> str:
        """Search for a layout within the capacity, or a proof of none; return "proof" or the limit that was reached."""
        for effort in count():
            suffices = self._try(capacity, ATTEMPTS, effort)
            if suffices is not None:
                if not suffices:
                    self.bound = max(self.bound, self._next_peak(capacity))
                return "proof"
            # A tighter goal leaves the search fewer ways to go wrong, which sometimes helps.
            if self.bound < capacity and self._try(self.bound, ATTEMPTS // 4, effort):
                return "proof"
            reached = self.limits.reached_limit()
            if reached:
                return reached
        raise AssertionError

    def minimise(self) -> str:
        """Raise the lower bound and lower the peak until they meet; return "proof", or the limit that was reached.

        Goals between the two are tried by bisection. A goal that the attempts of a round do not decide counts as not
        attainable for the rest of that round: `open_below` is the lowest peak that is still worth trying in it.
        """
        for effort in count():
            # Half of a round is spent on the bound. The rest approaches the peak from below, more closely each round.
            goal = open_below = self.bound
            attempts = ATTEMPTS
            while open_below < self.peak - ((int(self.peak) - self.bound) >> (effort + 2)):
                suffices = self._try(goal, attempts, effort)
                if suffices is False:
                    self.bound = self._next_peak(goal)
                    open_below = max(open_below, self.bound)
                elif suffices is None:
                    open_below = goal + 1
                if self.is_finished():
                    return "proof"
                reached = self.limits.reached_limit()
                if reached:
                    return reached
                goal = (open_below + int(self.peak) - 1) // 2
                attempts = ATTEMPTS // 2
        raise AssertionError

    def solution(self, stopped_by: str) -> Solution:
        """Return the result; `stopped_by` is the reason why the planner stopped."""
        capacity = self.problem.capacity
        has_layout = capacity is None or self.peak <= capacity
        if has_layout:
            status = Status.OPTIMAL if self.peak == self.bound else Status.FEASIBLE
        else:
            status = Status.INFEASIBLE if capacity is not None and self.bound > capacity else Status.UNKNOWN
        offsets, peak = (self.offsets, int(self.peak)) if has_layout else (None, None)
        loading = self.limits.loading
        seconds = time.perf_counter() - self.began - loading
        return Solution(status, offsets, peak, self.bound, seconds, self.spent, stopped_by, loading, self.greedy)

    def _try(self, capacity: int, attempts: int, effort: int) -> bool | None:
        """Return whether a capacity suffices; ``None`` if the attempts do not decide it."""
        # Each component gets this number of attempts, whose node limit doubles with every unit of `effort`. If the
        # capacity suffices, the layout becomes the best one.
        solved = True
        for hard in self.hard:
            if hard.refuted >= capacity:
                return False
            if hard.peak <= capacity:
                continue
            if self.limits.reached_limit():
                return None
            nodes = FIRST_NODES * len(hard.task) << effort
            result = answer(hard.task, capacity, hard.turns, attempts, nodes, self.limits)
            hard.turns += result.turns
            self.spent += result.nodes
            if result.refuted:
                hard.refuted = capacity
                return False
            if result.offsets is not None:
                hard.keep(result.offsets)
                assert hard.peak <= capacity
            else:
                solved = False
        if not solved:
            return None
        self._assemble()
        return True

    def _assemble(self) -> None:
        """Combine the layouts of all components, and place the easy buffers, which always fit, around them."""
        unit = self.unit
        offsets_of = {i: at * unit for i, at in self.parts.settled.items()}
        for hard in self.hard:
            component = hard.task.component
            for i, at in zip(component.members, hard.offsets, strict=True):
                offsets_of[i] = (component.base + at) * unit
        offsets = first_fit(self.problem, self.parts.last, self.neighbours, offsets_of)
        assert offsets is not None
        self._keep(offsets)

    def _keep(self, offsets: Sequence[int]) -> None:
        """Keep a layout if it is better than the best one so far."""
        peak = max((at + b.size for at, b in zip(offsets, self.problem.buffers, strict=True)), default=0)
        if peak < self.peak:
            self.peak = peak
            self.offsets = tuple(offsets)

    def _next_peak(self, peak: int) -> int:
        """Return the smallest possible peak of a layout above the given one."""
        return min(peak + 1 + (r - peak - 1) % self.unit for r in self.remainders)
