"""Portfolio search: runs attempts at one component until one of them has a result, on several threads if that helps.

The result does not depend on the threads: it is that of the attempt with the lowest number that has one, whichever ends
first.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass

from isthmus.planning.attempt import Attempt, Task
from isthmus.planning.search import PAUSED, SOLVED, Advance, advance
from isthmus.system.interrupts import start
from isthmus.system.shield import check as check_interrupted

MACHINE_SLICE = 2048
INTERPRETED_SLICE = 64
"""The number of nodes to examine between two checks of the clock; fewer if nodes are expensive."""
SMALL = 256
"""Components with more members than this get shorter slices."""

LANES = 2
"""The number of independent chains of attempts. An attempt learns from earlier ones in its chain. Chains do not wait
for each other, so threads can share them.
"""

INTERPRETED_WORK = 60_000
"""The amount of search done without compiled code, as nodes times members: some tenths of a second."""


@dataclass
class SearchBudget:
    """The remaining budget of one planning call.

    - `deadline`: the deadline as a time of `time.perf_counter`.
    - `threads`: the number of threads for compiled searches; interpreted ones would only wait for each other.
    - `whole`: whether loading the compiled search counts too. If so, loading is given up at the deadline.
    - `interpreted_work`: the amount of search that may still be done without compiled code, as nodes times members.
    - `loaded`: whether the compiled search has been loaded by this call.
    - `loading`: the seconds that this took.
    """

    deadline: float
    nodes: float
    threads: int
    whole: bool = False
    interpreted_work: int = INTERPRETED_WORK
    loaded: bool = False
    loading: float = 0.0

    def reached_limit(self) -> str | None:
        """Return which limit has been reached, if any."""
        if self.nodes <= 0:
            return "node limit"
        return "time limit" if time.perf_counter() >= self.deadline else None

    def load(self) -> Advance | None:
        """Load the search as machine code; return None if loading counts and the deadline comes first."""
        from isthmus.planning import machine  # imported here, so that planning without it starts faster

        began = time.perf_counter()
        if self.whole and not self.loaded:
            # Compilation may take longer than the time left; it then continues in the background.
            loader = threading.Thread(target=_load_quietly, name="isthmus-planning", daemon=True)
            start(loader)
            loader.join(max(0.0, min(self.deadline - began, threading.TIMEOUT_MAX)))
            if loader.is_alive():
                self.loading = time.perf_counter() - began
                return None
        code = machine.load()
        if not self.loaded:
            self.loading = time.perf_counter() - began
            # Loading that does not count moves the deadline.
            self.deadline += 0.0 if self.whole else self.loading
            self.loaded = True
        return code


def _load_quietly() -> None:
    """Load the search and ignore errors; the next call that needs it reports them."""
    from isthmus.planning import machine

    with suppress(Exception):
        machine.load()


@dataclass
class Answer:
    """The result of attempts: offsets of the members, a proof that there are none, or neither.

    - `offsets`: the offset of each member, in units above the base; None if no layout was found.
    - `refuted`: whether it is proved that there is no layout.
    - `turns`, `nodes`: the number of attempts made, and of nodes examined.
    """

    offsets: list[int] | None = None
    refuted: bool = False
    turns: int = 0
    nodes: int = 0


def answer(task: Task, capacity: int, first_turn: int, attempts: int, nodes: int, limits: SearchBudget) -> Answer:
    """Try to place a component within a capacity.

    - `task`, `capacity`: the component to place, and the bytes available.
    - `first_turn`: the number of earlier attempts at this component; each attempt searches differently.
    - `attempts`, `nodes`: the number of attempts to make, and the maximum number of nodes for each.
    - `limits`: the budget; it is reduced by what is used.
    """
    # The number of each attempt, and the nodes that it may examine.
    plan: list[tuple[int, int]] = []
    nodes_left = limits.nodes
    for turn in range(first_turn, first_turn + attempts):
        share = int(min(nodes, nodes_left))
        nodes_left -= share
        if share:
            plan.append((turn, share))

    # The first attempts run interpreted: many problems are solved before the compiled search would be loaded.
    total = Answer()
    for turn, share in plan:
        work = share * len(task)
        if limits.loaded or work > limits.interpreted_work or limits.reached_limit():
            break
        limits.interpreted_work -= work
        total = _join(total, _Race(task, capacity, [(turn, share)], limits, advance).run(1), limits)
        if total.refuted or total.offsets is not None:
            return total
    rest = plan[total.turns :]
    if rest and not limits.reached_limit():
        code = limits.load()
        if code is not None:
            total = _join(total, _Race(task, capacity, rest, limits, code).run(limits.threads), limits)
    return total


def _join(before: Answer, now: Answer, limits: SearchBudget) -> Answer:
    """Return the latest answer with the attempts and nodes of both, and subtract its nodes from the budget."""
    limits.nodes -= now.nodes
    return Answer(now.offsets, now.refuted, before.turns + now.turns, before.nodes + now.nodes)


class _Race:
    """Attempts that run in parallel: the one with the lowest number that has a result wins, and later ones are
    abandoned.

    - `task`, `capacity`: the component to place, and the bytes available.
    - `limits`: the budget, which the attempts only read.
    - `plan`: the attempts in order: the turn of each, which is its number among all attempts at this component, and the
      nodes that it may examine.
    - `code`: the search, interpreted or compiled.
    - `winner`: the place in `plan` of the best attempt so far that has a result; beyond the plan without one, -1 to
      stop all.
    - `answer`: the answer of that attempt.
    - `errors`: what threads raised; `run` raises the first.
    """

    def __init__(
        self, task: Task, capacity: int, plan: list[tuple[int, int]], limits: SearchBudget, code: Advance
    ) -> None:
        self.task, self.capacity, self.plan, self.limits, self.code = task, capacity, plan, limits, code
        self.lock = threading.Lock()
        self.winner = len(plan)
        self.answer = Answer()
        self.nodes = [0] * len(plan)
        self.errors: list[BaseException] = []

    def run(self, threads: int) -> Answer:
        """Run the attempts on some threads, the caller's among them, and return the result of the winner."""
        threads = min(threads, LANES, len(self.plan))
        helpers = [threading.Thread(target=self._work, args=(k, threads)) for k in range(1, threads)]
        done = False
        try:
            for helper in helpers:
                start(helper)
            self._work(0, threads)
            for helper in helpers:
                helper.join()
            done = True
        finally:
            if not done:
                # Interrupted, or no more threads can be started: make the attempts stop.
                self.winner = -1
        if self.errors:
            raise self.errors[0]
        # Attempts after the winner do not count, since their progress depends on timing.
        # Of what attempts learned, keep only the last of each chain, for the attempts that continue the chains.
        last = self.plan[min(self.winner, len(self.plan) - 1)][0]
        for turn in [t for t in self.task.blame if not last - LANES < t <= last]:
            del self.task.blame[turn]
        self.answer.nodes = sum(self.nodes[: self.winner + 1])
        self.answer.turns = min(self.winner + 1, len(self.plan))
        return self.answer

    def _work(self, thread: int, threads: int) -> None:
        """Run, in order, the attempts of the chains that belong to this thread."""
        try:
            for place, (turn, _) in enumerate(self.plan):
                check_interrupted()
                if turn % LANES % threads == thread:
                    self._attempt(place)
        except Exception as error:
            with self.lock:
                self.errors.append(error)
                self.winner = -1

    def _attempt(self, place: int) -> None:
        """Run one attempt, a slice at a time, until it has a result, loses, or reaches a limit."""
        if place >= self.winner or self.limits.reached_limit():
            return
        turn, share = self.plan[place]
        compiled = self.code is not advance
        # The attempt before it in its chain knows which buffers were hard to place.
        blame = self.task.blame.get(turn - LANES, [])
        search = Attempt(self.task, self.capacity, turn, share, blame, machine=compiled)
        while place < self.winner and search.nodes < share and not self.limits.reached_limit():
            nodes = MACHINE_SLICE if compiled else INTERPRETED_SLICE
            result = search.run(self.code, max(1, nodes * SMALL // max(len(self.task), SMALL)))
            self.nodes[place] = search.nodes
            if result != PAUSED:
                with self.lock:
                    if place < self.winner:
                        self.winner = place
                        self.answer = Answer(search.offsets if result == SOLVED else None, result != SOLVED)
        self.task.blame[turn] = search.blame
