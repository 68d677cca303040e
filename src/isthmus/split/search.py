"""The choice of fused regions of a file and of their number of tiles: the cheapest under a limit, or the least memory.

The choice is exact for one order of the steps: each step is either whole and within the limit, or in a region whose
tiles are within the limit. The amount of work is bounded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from isthmus.errors import Code, DoesNotFit, counted
from isthmus.prepare.tiling.region_path import cheapest_regions, least_limit
from isthmus.split.network import Key, Network, depth_first
from isthmus.split.regions import (
    ComputeWhole,
    Piece,
    SplitRegion,
    StepInstruction,
    TileInstruction,
    most_alive,
    whole_values,
)

COUNTS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""The numbers of tiles that are tried."""
MAX_WORK = 24_000
"""The maximum number of region steps to estimate for one order of the steps; this takes about a second."""
MAX_REGION_STEPS = 80
"""The maximum number of steps in a region."""
CORRECTIONS = 16
"""How often regions are chosen again because the tiles of one have more live bytes than estimated."""
EACH = 4096
"""The cost of an instruction, in copied bytes."""
MIN_GAIN = 48
"""The least memory is searched with a precision of 1 / this of the best limit so far."""
# The live bytes of tiles that turn out to be impossible: more than any limit.
_NEVER = 1 << 60


@dataclass(frozen=True)
class SplitChoice:
    """A region from step `first` to step `last` (inclusive), computed in `count` tiles."""

    first: int
    last: int
    count: int


@dataclass(frozen=True)
class Split:
    """A model in tiles.

    - `network`: the steps in the chosen order.
    - `regions`, `instructions`: the fused regions, and all instructions of the split file.
    - `before`, `after`: the maximum of live bytes in the file's own order, and in this one.
    - `holding`: the name of the step with the most live bytes.
    """

    network: Network
    regions: tuple[SplitChoice, ...]
    instructions: tuple[TileInstruction, ...]
    before: int
    after: int
    holding: str


@dataclass(frozen=True)
class _Weighed:
    """What a region in tiles costs.

    - `peak`: the maximum of live bytes, including values that only pass through the region.
    - `cost`: copied bytes, plus `EACH` for every instruction.
    - `exact`: whether the peak was counted; otherwise it is an estimate.
    """

    peak: int
    cost: int
    exact: bool = False


class SplitSearch:
    """The search over one order of the steps.

    - `network`: the steps in that order.
    - `exempt`: whether steps that cannot be tiled may be above a limit.
    """

    def __init__(self, network: Network, exempt: bool = False) -> None:
        self.network = network
        self._wholes = whole_values(network)
        self._regions: dict[tuple[int, int], tuple[SplitRegion, int, int] | None] = {}
        """The results of `region`, by first and last step."""
        self._weighed: dict[SplitChoice, _Weighed | None] = {}
        """What each choice costs; None if it is impossible."""
        self._impossible: dict[int, int] = {}
        """For each last step, the latest first step whose region cannot be tiled; longer regions cannot be tiled
        either.
        """
        self._work = 0
        """The number of region steps estimated so far."""
        rules = [step.rule is not None for step in network.steps]
        # Steps without a rule stay whole, so no split has fewer live bytes than these.
        whole = [live for live, ruled in zip(network.live, rules, strict=True) if not ruled]
        self._floor = 0 if exempt else max(whole, default=0)
        self._live = [live if ruled or not exempt else 0 for live, ruled in zip(network.live, rules, strict=True)]
        """The live bytes of each step that count."""
        self._entering = network.entering
        self._divided = [network.is_divided(index) for index in range(len(rules) + 1)]
        """Whether the border before each step is inside a unit, so that no region may begin or end there."""
        # For each step, the first step of its unbroken run of steps with rules.
        self._from = list(accumulate(range(len(rules)), lambda start, i: start if rules[i] else i + 1, initial=0))[1:]

    def under(self, limit: int) -> list[SplitChoice] | None:
        """Find the cheapest regions that keep live bytes within the limit; None if there are none.

        Regions are chosen by estimates. If the exact number of a chosen one is above the limit, it replaces the
        estimate, and regions are chosen again.
        """
        for _ in range(CORRECTIONS if limit >= self._floor else 0):
            chosen, _ = cheapest_regions(
                self._live, limit, lambda last, hot: self._firsts(last, hot, limit),
                lambda first, last, below: self._fitting(first, last, limit, below),
            )  # fmt: skip
            if chosen is None or max([self._exact(one) for one in chosen], default=0) <= limit:
                return chosen
        return None

    def _firsts(self, last: int, hot: int, limit: int) -> Iterator[int]:
        """Yield the first steps, the latest first, of regions that may end with step `last`."""
        # `hot` is the last step up to `last` that is above the limit, or negative; a region begins there or earlier.
        live, entering, divided = self._live, self._entering, self._divided
        if hot < 0 or entering[last + 1] > limit or divided[last + 1]:
            return
        # A region need not end with a step within the limit if no more bytes are alive before the step than after it.
        if live[last] <= limit and not divided[last] and entering[last] <= entering[last + 1]:
            return
        for first in range(hot, max(self._from[last], last - MAX_REGION_STEPS + 1) - 1, -1):
            if first <= self._impossible.get(last, -1):
                return
            # Nor need it begin with a step within the limit if no more bytes are alive after the step than before it.
            needless = live[first] <= limit and not divided[first + 1] and entering[first] >= entering[first + 1]
            if not needless and not divided[first] and entering[first] <= limit:
                yield first

    def least(self, below: int | None = None) -> tuple[int, list[SplitChoice]] | None:
        """Find the fewest live bytes and the regions for them; None if that is not clearly less than `below`.

        Clearly means by more than 1 / `MIN_GAIN`.
        """
        best: tuple[int, list[SplitChoice]] = self.network.peak, []
        if below is not None and best[0] >= below - below // MIN_GAIN:
            # Another order needs only `below`: try first whether this one can be clearly better at all.
            better = self._attempt(below - below // MIN_GAIN)
            if better is None:
                return None
            best = better
        return least_limit(self._floor, best, lambda limit: max(limit // MIN_GAIN, 1), self._attempt)

    def _attempt(self, limit: int) -> tuple[int, list[SplitChoice]] | None:
        """Return the live bytes and the regions of a split within the limit; None if there is none."""
        chosen = self.under(limit)
        return None if chosen is None else (self.instructions_of(chosen)[1], chosen)

    def is_possible(self, choice: SplitChoice) -> bool:
        """Return whether a region can be computed in that many tiles."""
        return SplitRegion(self.network, choice.first, choice.last, self._wholes).expand(choice.count) is not None

    def instructions_of(self, chosen: Sequence[SplitChoice]) -> tuple[list[TileInstruction], int, str]:
        """Return all instructions, the maximum of live bytes, and the name of the step that has it."""
        network, instructions, at = self.network, list[TileInstruction](), 0
        for one in chosen:
            instructions += map(self._whole, range(at, one.first))
            tiles = SplitRegion(network, one.first, one.last, self._wholes).expand(one.count)
            assert tiles is not None
            instructions += tiles
            at = one.last + 1
        instructions += map(self._whole, range(at, len(network.steps)))
        most, where = most_alive(instructions, self._pieces(network.initial), self._pieces(network.final))
        return instructions, most, _name(network, instructions[where]) if instructions else ""

    def _pieces(self, keys: Iterable[Key]) -> tuple[Piece, ...]:
        """Return the pieces that are these values as a whole."""
        return tuple(self._wholes[key] for key in keys)

    def _whole(self, step: int) -> ComputeWhole:
        """Return the instruction of a step outside regions."""
        one = self.network.steps[step]
        return ComputeWhole(self._pieces(one.inputs), self._pieces(one.outputs), step)

    def _fitting(self, first: int, last: int, limit: int, below: float) -> tuple[int, SplitChoice] | None:
        """Return the cost and the fewest tiles of a region within the limit, if they cost less than `below`."""
        # The minimum cost of a region is that of two tiles of every step.
        found = self.region(first, last) if 2 * EACH * (last - first + 1) < below else None
        if found is None or found[1] > limit:
            return None
        region, bound, passing = found
        index = 0
        counts = [count for count in COUNTS if count <= region.most]
        while index < len(counts):
            choice = SplitChoice(first, last, counts[index])
            weighed = self._weigh(region, choice, passing)
            if weighed is None:
                if index == 0:
                    self._impossible[last] = max(first, self._impossible.get(last, -1))
                    return None
                index += 1
                continue
            if weighed.cost >= below:
                return None
            if weighed.peak <= limit:
                return weighed.cost, choice
            # The excess over the bound shrinks at best in proportion to the size of a tile.
            # Numbers that are clearly too small for that are skipped (0.7: the estimate is rough).
            fewest = counts[index] * (weighed.peak - bound) / max(limit - bound, 1)
            index = max(index + 1, min(bisect_right(counts, fewest * 0.7), len(counts) - 1))
        return None

    def _exact(self, choice: SplitChoice) -> int:
        """Return the exact maximum of live bytes of a choice, and store it in place of the estimate."""
        found, weighed = self.region(choice.first, choice.last), self._weighed[choice]
        assert found is not None
        assert weighed is not None
        if not weighed.exact:
            region, _, passing = found
            instructions, peak = region.expand(choice.count), _NEVER
            if instructions is not None:
                self._work += len(instructions) // 4
                most, _ = most_alive(instructions, self.ending(region), self._pieces(region.outputs))
                peak = most + passing
            weighed = self._weighed[choice] = _Weighed(peak, weighed.cost, True)
        return weighed.peak

    def ending(self, region: SplitRegion) -> list[Piece]:
        """List the values that a region reads and that no later step reads."""
        inside = {key for step in region.steps for key in step.inputs}
        begin, end = self.network.begin, self.network.end
        return [self._wholes[key] for key in inside if begin[key] < region.first and end[key] <= region.last]

    def region(self, first: int, last: int) -> tuple[SplitRegion, int, int] | None:
        """Return a region, a lower bound of its live bytes, and the bytes of other values alive throughout it.

        None if the region cannot be tiled.
        """
        if (first, last) not in self._regions:
            self._regions[first, last] = self._region(first, last)
        return self._regions[first, last]

    def _region(self, first: int, last: int) -> tuple[SplitRegion, int, int] | None:
        """Compute the result of `region`."""
        network = self.network
        region = SplitRegion(network, first, last, self._wholes)
        if not region.possible or not region.outputs:
            return None
        around = (key for key, begin in network.begin.items() if begin < first and network.end[key] > last)
        passing = sum(network.size(key) for key in around)
        # At the end, the parts of each output and the whole output are alive.
        joined = sum(network.values[key].bytes + network.size(key) for key in region.outputs)
        return region, max(self._entering[first], passing + joined), passing

    def _weigh(self, region: SplitRegion, choice: SplitChoice, passing: int) -> _Weighed | None:
        """Estimate what a choice costs; None if it is impossible or `MAX_WORK` is used up."""
        if choice not in self._weighed:
            weighed = None
            if self._work < MAX_WORK:
                self._work += len(region.rules)
                estimate = region.estimate(choice.count, self.ending(region))
                if estimate is not None:
                    weighed = _Weighed(estimate.bytes + passing, estimate.copied + EACH * estimate.instructions)
            self._weighed[choice] = weighed
        return self._weighed[choice]


def _name(network: Network, one: TileInstruction) -> str:
    """Return the name of an instruction for messages: that of its step, or of the value that it copies or joins."""
    if isinstance(one, StepInstruction):
        return network.steps[one.step].name
    return network.values[one.result.value].name


def split(network: Network, limit: int | None, what: str) -> Split:
    """Tile a model within a limit, or with the least memory if there is no limit.

    The file's own order is tried first, then two others, unless the order is fixed.

    - `network`, `limit`: the steps of the file, and the live bytes to stay within.

    Raises `QnnError`: COMMON_MEM_ALLOC if no split meets the limit; it names the step that prevents it, and the bytes
    missing.
    """
    before = network.peak
    orders = {tuple(range(len(network.steps))): None}
    if not network.fixed:
        orders.update({tuple(depth_first(network, late)): None for late in (True, False)})
    searches = [SplitSearch(network.in_order(order)) for order in orders]
    if limit is not None:
        for search in searches:
            chosen = search.under(limit)
            if chosen is not None:
                return _finish(search, chosen, before)
    best: tuple[int, list[SplitChoice], SplitSearch] | None = None
    for search in searches:
        better = search.least(None if best is None else best[0])
        if better is not None:
            best = *better, search
    assert best is not None
    result = _finish(best[2], best[1], before)
    if limit is not None and result.after > limit:
        raise DoesNotFit(
            Code.COMMON_MEM_ALLOC,
            what,
            f"{counted(limit, 'byte')} would be too little: the least found is {result.after:,}, "
            f"{result.after - limit:,} more; '{result.holding}' holds it up",
            f"Allow {counted(result.after, 'byte')}, or ask for 'least'.",
        )
    return result


def splits(network: Network, limits: Iterable[int]) -> Iterator[Split]:
    """Yield different splits in the file's own order, for a judge that knows more than live bytes.

    There is at most one for each limit. Steps that cannot be tiled may be above it.
    """
    search = SplitSearch(network, exempt=True)
    seen: list[list[SplitChoice]] = []
    for limit in limits:
        chosen = search.under(limit)
        if chosen and chosen not in seen:
            seen.append(chosen)
            yield _finish(search, chosen, network.peak)


def neighbours(network: Network, split: Split) -> Iterator[Split]:
    """Yield splits in the file's own order that differ from `split` in one region: other tiles, or none at all."""
    search = SplitSearch(network, exempt=True)
    for index, region in enumerate(split.regions):
        others = [*split.regions[:index], *split.regions[index + 1 :]]
        if others:
            yield _finish(search, others, network.peak)
        near = [count for count in COUNTS if count != region.count and region.count <= 2 * count <= 4 * region.count]
        for count in near:
            chosen = list(split.regions)
            chosen[index] = SplitChoice(region.first, region.last, count)
            if search.is_possible(chosen[index]):
                yield _finish(search, chosen, network.peak)


def _finish(search: SplitSearch, chosen: list[SplitChoice], before: int) -> Split:
    """Return the split with these regions; `before` is the maximum of live bytes of the file itself."""
    instructions, after, holding = search.instructions_of(chosen)
    return Split(search.network, tuple(chosen), tuple(instructions), before, after, holding)
