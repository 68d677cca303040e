"""Which runs of steps become strips, and how many: the cheapest choice under a limit, or the least that can be reached.

Exact over one order of the steps: each step is either whole with at most the limit alive, or in a run whose strips
have at most the limit alive; the runs are chosen by dynamic programming over the positions. Bounded by work.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from isthmus.errors import Code, QnnError
from isthmus.split.network import Network, depth_first
from isthmus.split.regions import CopyRows, Instruction, Join, Piece, SplitRegion, Wholes, most_alive

COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""The numbers of strips that are tried."""
MOST_WORK = 24_000
"""Steps of runs that are weighed for one order of the steps, which takes about a second."""
LONGEST = 80
"""The most steps of a run."""
CORRECTIONS = 16
"""How often runs are chosen anew because the strips of one have more alive than the sketch of them said."""
EACH = 4096
"""What an instruction costs, as bytes that are copied."""
LEAST_GAIN = 48
"""The least is looked for to this part of what the whole model has alive."""
_NEVER = 1 << 60


@dataclass(frozen=True)
class Chosen:
    """A run of steps and into how many strips it is cut."""

    first: int
    last: int
    count: int


@dataclass(frozen=True)
class Split:
    """A model in strips.

    Parameters
    ----------
    network
        The steps in the order that was taken.
    before, after
        The most bytes alive in the file's own order, and in this one.
    holding
        The name of the step that has the most alive.
    """

    network: Network
    runs: tuple[Chosen, ...]
    instructions: tuple[Instruction, ...]
    before: int
    after: int
    holding: str


@dataclass(frozen=True)
class _Weighed:
    peak: int
    cost: int
    exact: bool = False


class SplitSearch:
    """The search over one order of the steps."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._wholes = Wholes(network)
        self._runs: dict[tuple[int, int], tuple[SplitRegion, int, int] | None] = {}
        self._weighed: dict[Chosen, _Weighed | None] = {}
        self._impossible: dict[int, int] = {}
        """For the last step of runs the first one from which on no strips can be cut: neither of longer runs."""
        self._work = 0
        rules = [step.rule is not None for step in network.steps]
        floor = [live for live, ruled in zip(network.live, rules, strict=True) if not ruled]
        self._floor = max(floor, default=0)
        self._entering = [self._alive_between(index) for index in range(len(rules) + 1)]
        self._divided = [network.is_divided(index) for index in range(len(rules) + 1)]
        # For each step the first one of its unbroken row of steps with rules.
        self._from = list(accumulate(range(len(rules)), lambda start, i: start if rules[i] else i + 1, initial=0))[1:]

    def _alive_between(self, index: int) -> int:
        """The bytes that are alive between a step and the one before it."""
        network = self.network
        return sum(
            network.size(key) for key, begin in network.begin.items() if begin < index <= network.end[key]
        )

    def under(self, limit: int) -> list[Chosen] | None:
        """The cheapest runs with which no more than the limit is alive; None where none are found."""
        for _ in range(CORRECTIONS):
            chosen = self._under(limit)
            if chosen is None or max([self._exact(one) for one in chosen], default=0) <= limit:
                return chosen
        return None

    def _under(self, limit: int) -> list[Chosen] | None:
        live = self.network.live
        if limit < self._floor:
            return None
        best: list[tuple[int, tuple[Chosen, ...]] | None] = [(0, ())]
        hot = -1
        for last in range(len(live)):
            if live[last] > limit:
                hot = last
            entry = best[last] if live[last] <= limit else None
            ends = hot >= 0 and self._entering[last + 1] <= limit
            # A step that need not be split is left out where less is alive on its other side.
            spare = live[last] <= limit and not self._divided[last]
            ends = ends and not self._divided[last + 1]
            ends = ends and not (spare and self._entering[last] <= self._entering[last + 1])
            for first in range(min(hot, last), max(self._from[last], last - LONGEST + 1) - 1, -1) if ends else ():
                if first <= self._impossible.get(last, -1):
                    break
                before = best[first]
                if before is None or self._divided[first] or self._entering[first] > limit:
                    continue
                spare = live[first] <= limit and not self._divided[first + 1]
                if spare and self._entering[first] >= self._entering[first + 1]:
                    continue
                # Two strips of everything are the least that longer runs cost too.
                if entry is not None and before[0] + 2 * EACH * (last - first + 1) >= entry[0]:
                    continue
                chosen = self._fitting(first, last, limit, None if entry is None else entry[0] - before[0])
                if chosen is not None:
                    weighed = self._weighed[chosen]
                    assert weighed is not None
                    entry = before[0] + weighed.cost, (*before[1], chosen)
            best.append(entry)
        found = best[-1]
        return None if found is None else list(found[1])

    def least(self, below: int | None = None) -> tuple[int, list[Chosen]] | None:
        """The least bytes alive that are found, and with which runs; None where that is not clearly below a number."""
        low, high = self._floor, self.network.peak
        chosen: list[Chosen] = []
        if below is not None and high >= below - below // LEAST_GAIN:
            # Another order has got there: one that does no better is soon told.
            found = self.under(below - below // LEAST_GAIN)
            if found is None:
                return None
            chosen, high = found, self.written(found)[1]
        while high - low > max(high // LEAST_GAIN, 1):
            middle = (low + high) // 2
            found = self.under(middle)
            if found is None:
                low = middle
            else:
                chosen, high = found, self.written(found)[1]
        return high, chosen

    def written(self, chosen: Sequence[Chosen]) -> tuple[list[Instruction], int, str]:
        """All instructions, the most bytes alive, and the step that has them."""
        network, instructions, at = self.network, list[Instruction](), 0
        for run in chosen:
            instructions += [self._wholes.compute(step) for step in range(at, run.first)]
            strips = SplitRegion(network, run.first, run.last, self._wholes).expand(run.count)
            assert strips is not None
            instructions += strips
            at = run.last + 1
        instructions += [self._wholes.compute(step) for step in range(at, len(network.steps))]
        given = [self._wholes[key] for key in network.given]
        kept = [self._wholes[key] for key in network.kept]
        most, where = most_alive(instructions, given, kept)
        return instructions, most, _name(network, instructions[where]) if instructions else ""

    def _fitting(self, first: int, last: int, limit: int, dearest: int | None) -> Chosen | None:
        """The fewest strips of a run with which the limit is kept."""
        known = self._run(first, last)
        if known is None or known[1] > limit or (dearest is not None and dearest <= 0):
            return None
        run, bound, _ = known
        index = 0
        counts = [count for count in COUNTS if count <= run.most]
        while index < len(counts):
            chosen = Chosen(first, last, counts[index])
            weighed = self._weigh(run, chosen, known[2])
            if weighed is None:
                if index == 0:
                    self._impossible[last] = max(first, self._impossible.get(last, -1))
                    return None
                index += 1
                continue
            if dearest is not None and weighed.cost >= dearest:
                return None
            if weighed.peak <= limit:
                return chosen
            # What exceeds the bound shrinks at best as strips do.
            wanted = counts[index] * (weighed.peak - bound) / max(limit - bound, 1)
            index = max(index + 1, min(bisect_right(counts, wanted * 0.7), len(counts) - 1))
        return None

    def _exact(self, chosen: Chosen) -> int:
        """The most bytes alive in a run, from now on known exactly."""
        known, weighed = self._run(chosen.first, chosen.last), self._weighed[chosen]
        assert known is not None
        assert weighed is not None
        if not weighed.exact:
            run, _, passing = known
            instructions = run.expand(chosen.count)
            if instructions is None:
                self._weighed[chosen] = _Weighed(_NEVER, weighed.cost, True)
                return _NEVER
            self._work += len(instructions) // 4
            peak, _ = most_alive(instructions, self._ending(run), [self._wholes[key] for key in run.outputs])
            weighed = self._weighed[chosen] = _Weighed(peak + passing, weighed.cost, True)
        return weighed.peak

    def _ending(self, run: SplitRegion) -> list[Piece]:
        """What a run reads that nobody reads after it."""
        inside = {key for step in self.network.steps[run.first : run.last + 1] for key in step.inputs}
        begin, end = self.network.begin, self.network.end
        return [self._wholes[key] for key in inside if begin[key] < run.first and end[key] <= run.last]

    def _run(self, first: int, last: int) -> tuple[SplitRegion, int, int] | None:
        """A run, the least that its ends have alive, and the bytes that pass it by."""
        if (first, last) not in self._runs:
            self._runs[first, last] = self._bounded(first, last)
        return self._runs[first, last]

    def _bounded(self, first: int, last: int) -> tuple[SplitRegion, int, int] | None:
        network = self.network
        run = SplitRegion(network, first, last, self._wholes)
        if not run.possible or not run.outputs:
            return None
        entering = passing = 0
        for key, begin in network.begin.items():
            if begin < first and network.end[key] >= first:
                entering += network.size(key)
                passing += network.size(key) if network.end[key] > last else 0
        joined = sum(network.values[key].bytes + network.size(key) for key in run.outputs)
        return run, max(entering, passing + joined), passing

    def _weigh(self, run: SplitRegion, chosen: Chosen, passing: int) -> _Weighed | None:
        if chosen not in self._weighed:
            weighed = None
            if self._work < MOST_WORK:
                self._work += len(run.rules)
                sketch = run.sketch(chosen.count, self._ending(run))
                if sketch is not None:
                    weighed = _Weighed(sketch.bytes + passing, sketch.copied + EACH * sketch.instructions)
            self._weighed[chosen] = weighed
        return self._weighed[chosen]


def _name(network: Network, one: Instruction) -> str:
    if isinstance(one, CopyRows | Join):
        return network.values[one.result.value].name
    return network.steps[one.step].name


def split(network: Network, limit: int | None, what: str) -> Split:
    """The model in strips that keep a limit, or the least that is found where there is none.

    Raises
    ------
    QnnError
        COMMON_MEM_ALLOC if no split keeps the limit; it names what holds it up, and by how much.
    """
    before = network.peak
    orders = {tuple(range(len(network.steps))): None}
    if not network.fixed:
        orders.update({tuple(depth_first(network, late)): None for late in (True, False)})
    searches = [SplitSearch(network.ordered(order)) for order in orders]
    if limit is not None:
        for search in searches:
            chosen = search.under(limit)
            if chosen is not None:
                return _finished(search, chosen, before)
    best: tuple[int, list[Chosen], SplitSearch] | None = None
    for search in searches:
        found = search.least(None if best is None else best[0])
        if found is not None:
            best = *found, search
    assert best is not None
    result = _finished(best[2], best[1], before)
    if limit is not None and result.after > limit:
        raise QnnError(
            Code.COMMON_MEM_ALLOC,
            what,
            f"{limit} bytes are too few: the least found is {result.after}, {result.after - limit} more; "
            f"'{result.holding}' holds it up",
            f"Allow {result.after} bytes, or ask for 'least'.",
        )
    return result


def _finished(search: SplitSearch, chosen: list[Chosen], before: int) -> Split:
    instructions, after, holding = search.written(chosen)
    return Split(search.network, tuple(chosen), tuple(instructions), before, after, holding)
