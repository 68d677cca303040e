"""The search for an order in which contexts can be loaded, or a proof that there is none.

Each context is loaded and its I/O registered right after it. Where nothing is lost between mappings, that is as good
as any other sequence: I/O that is registered later takes the same bytes of the same domain, and until then only lets
other contexts take them. Where mappings are aligned, another sequence may work though none of these does; a proof says
so.

1. Necessary conditions for the contexts of one domain are computed for every set of contexts, and whether the sets can
   be divided among the domains. If not, no order exists. That proof is for every sequence of loads and registrations.
2. The domains of such a division are filled one after the other, which is an order that mostly works.
3. Where mappings are aligned by their size, the addresses of all sets in all orders are computed for a single domain,
   and whether sets that load can be the division.
4. Otherwise all orders are searched, by depth, without repeating what is equal: sets and mappings that have failed.

Every answer "fits" is what `Domains` does in that order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from isthmus.domains.model import Domains, Intervals, Placement, Refusal, alignment_of, fit_pieces
from isthmus.domains.profile import ChipProfile
from isthmus.domains.sizes import ContextSizes, SpillGroup
from isthmus.errors import counted, invalid_argument

MAX_CONTEXTS = 64
MAX_EXACT = 13
"""The most contexts for which every set is examined."""
# The sequences that a proof by addresses is about. With gaps between mappings, others may work.
_SEQUENCES = "if the I/O of each is registered right after it"
MAX_STATES = 8_000
"""How many states a search by depth visits before it gives up."""
MAX_LAYOUTS = 45_000
"""How often a context is tried beside others while all layouts of one domain are computed."""


class FitVerdict(Enum):
    """Whether contexts fit together."""

    FITS = "fits"
    IMPOSSIBLE = "does not fit"
    UNDECIDED = "not decided"


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    - `domains`: what is mapped in that order, or up to the refusal in the order that was given.
    - `order`: the names of the contexts in an order that works; empty without one.
    - `steps`: the contexts in that order, each with its domain and mappings.
    - `proof`: why no order works; empty if one does.
    - `as_given`: what is refused in the order of the caller; None if that order works too.
    """

    verdict: FitVerdict
    domains: Domains
    order: tuple[str, ...] = ()
    steps: tuple[Placement, ...] = ()
    proof: str = ""
    as_given: Refusal | None = None


def load_all(
    contexts: Sequence[ContextSizes], profile: ChipProfile, *, io_estimation: bool = False
) -> tuple[Domains, Refusal | None]:
    """Load contexts in this order, each followed by its I/O; return the domains, and the first refusal."""
    domains = Domains(profile, io_estimation=io_estimation)
    for context in contexts:
        placement = domains.load(context)
        if isinstance(placement, Refusal):
            return domains, placement
        for nbytes in context.io:
            mapping = domains.register(placement, nbytes)
            if isinstance(mapping, Refusal):
                return domains, mapping
    return domains, None


def search(contexts: Sequence[ContextSizes], profile: ChipProfile, *, io_estimation: bool = False) -> SearchResult:
    """Find an order in which contexts and their I/O can be loaded, or prove that none exists.

    Errors: COMMON_INVALID_ARGUMENT for names that occur twice, for sizes below 0 and for too many contexts.

    >>> from isthmus.domains.profile import profile
    >>> gigabytes = {"a": 1.5, "b": 1.5, "c": 3}
    >>> found = search([ContextSizes(name, file_bytes=int(size * 2**30)) for name, size in gigabytes.items()],
    ...                profile("default"))
    >>> found.order, found.as_given
    (('a', 'b', 'c'), None)
    """
    names = [each.name for each in contexts]
    if len({*names}) < len(names):
        raise invalid_argument("contexts", "two contexts have the same name")
    if len(names) > MAX_CONTEXTS:
        raise invalid_argument("contexts", f"{len(names)} are more than {MAX_CONTEXTS}")
    for each in contexts:
        each.check()
    groups: dict[str, SpillGroup] = {}
    for each in contexts:
        if each.group is not None and groups.setdefault(each.group.name, each.group) != each.group:
            raise invalid_argument(f"context '{each.name}'", f"its group '{each.group.name}' has two sizes")
    domains, refusal = load_all(contexts, profile, io_estimation=io_estimation)
    if refusal is None:
        return _fits(contexts, domains, None)
    problem = _Problem(contexts, profile, io_estimation)
    proof, order = problem.division()
    if proof:
        return SearchResult(FitVerdict.IMPOSSIBLE, domains, proof=proof, as_given=refusal)
    for candidate in [order, *problem.usual_orders()]:
        listed = [contexts[index] for index in candidate]
        filled, problem_there = load_all(listed, profile, io_estimation=io_estimation)
        if problem_there is None:
            return _fits(listed, filled, refusal)
    if profile.power_of_two and problem.no_loadable_division():
        proof = f"no division among {counted(len(profile.domains), 'domain')} has aligned places, {_SEQUENCES}"
        return SearchResult(FitVerdict.IMPOSSIBLE, domains, proof=proof, as_given=refusal)
    found = problem.by_depth()
    if found is None:
        proof = f"no order of {counted(len(contexts), 'context')} works, {_SEQUENCES}"
        return SearchResult(FitVerdict.IMPOSSIBLE, domains, proof=proof, as_given=refusal)
    if not found:
        proof = f"not found in {MAX_STATES:,} states"
        return SearchResult(FitVerdict.UNDECIDED, domains, proof=proof, as_given=refusal)
    listed = [contexts[index] for index in found]
    return _fits(listed, load_all(listed, profile, io_estimation=io_estimation)[0], refusal)


def _fits(listed: Sequence[ContextSizes], domains: Domains, as_given: Refusal | None) -> SearchResult:
    order = tuple(each.name for each in listed)
    return SearchResult(FitVerdict.FITS, domains, order, tuple(domains.placements()), "", as_given)


Taken = tuple[Intervals, frozenset[str]]
"""What is mapped in a domain, and which groups have their buffer there."""
State = tuple[Taken, ...]
"""What is taken of each domain."""


class _Problem:
    """Contexts and domains, prepared for searching."""

    def __init__(self, contexts: Sequence[ContextSizes], profile: ChipProfile, io_estimation: bool) -> None:
        self.contexts, self.profile, self.io_estimation = contexts, profile, io_estimation
        self.sizes = [[size for _, size in each.pieces] for each in contexts]
        self.io = [each.io for each in contexts]
        self.bytes = [sum(sizes) + sum(io) for sizes, io in zip(self.sizes, self.io, strict=True)]
        self.groups = {each.group.name: each.group.nbytes for each in contexts if each.group is not None}
        self.kinds = [
            (tuple(sizes), io, each.group) for sizes, io, each in zip(self.sizes, self.io, contexts, strict=True)
        ]
        self._known: dict[tuple[int, Taken, int], tuple[bool, Taken | None]] = {}
        self._possible: dict[tuple[int, Taken, int], bool] = {}
        self._left = 0

    # -- dividing contexts among domains -------------------------------------------------------------------------------

    def division(self) -> tuple[str, list[int]]:
        """Return why the contexts cannot be divided among the domains, or else an order that fills one after the other.

        The conditions are necessary, not sufficient: the bytes of a domain, and for each power of two the places that
        mappings need that begin at its multiples.
        """
        needs, total = self.bytes, sum(self.bytes) + sum(self.groups.values())
        capacity = self.profile.capacity
        if total > capacity:
            return f"they need {total:,} bytes together, all domains have {capacity:,}", []
        if self.profile.free_ram and total > self.profile.free_ram:
            return f"they need {total:,} bytes together, {self.profile.free_ram:,} bytes of memory are free", []
        largest = max(each.capacity for each in self.profile.domains)
        for context, need in zip(self.contexts, needs, strict=True):
            own = need + (context.group.nbytes if context.group else 0)
            if own > largest:
                return f"'{context.name}' alone needs {own:,} bytes, the largest domain has {largest:,}", []
        if len(self.contexts) > MAX_EXACT:
            return "", sorted(range(len(needs)), key=lambda index: -needs[index])
        return self._exact_division()

    def _exact_division(self) -> tuple[str, list[int]]:
        """Examine every set of contexts: whether a domain can hold it, and whether the first domains can."""
        held, packable = self._possible_sets()
        if not packable[-1][-1]:
            what = "aligned places" if self.profile.power_of_two else "bytes"
            return f"no division among {counted(len(held), 'domain')} gives every context its {what} in one domain", []
        rest, parts = len(packable[0]) - 1, []
        for feasible, before in zip(reversed(held), reversed(packable[:-1]), strict=True):
            chosen = next(each for each in [*map(int, _largest(feasible)), 0] if before[rest & ~each])
            parts.append(rest & chosen)
            rest &= ~chosen
        order = []
        for part in reversed(parts):
            members = [index for index in range(len(self.contexts)) if part >> index & 1]
            order += sorted(members, key=lambda index: -max(self.sizes[index], default=0))
        return "", order

    def _possible_sets(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return for each set of contexts whether each domain could hold it, and whether the first 0, 1, … could."""
        # A set is a number whose bits are its contexts.
        held = [self._feasible(domain.capacity) for domain in self.profile.domains]
        sets = np.arange(len(held[0]))
        packable = [sets == 0]
        for feasible in held:
            # Part of what the domains before hold is held too, so only the largest sets of this one count.
            reached = packable[-1].copy()
            for each in _largest(feasible):
                reached |= packable[-1][sets & ~each]
            packable.append(reached)
        return held, packable

    def no_loadable_division(self) -> bool:
        """Return whether it is certain that no division lets each domain load its contexts, in whatever order.

        Other than in `division`, the addresses of every set of contexts in one domain are computed, for all orders. If
        that takes too long, it is not certain.
        """
        if len(self.contexts) > MAX_EXACT:
            return False
        by_capacity: dict[int, np.ndarray | None] = {}
        for capacity in {each.capacity for each in self.profile.domains}:
            by_capacity[capacity] = self._loadable(capacity)
        reached = np.arange(1 << len(self.contexts)) == 0
        for domain in self.profile.domains:
            loadable = by_capacity[domain.capacity]
            if loadable is None:
                return False
            before = np.flatnonzero(reached)
            for each in np.flatnonzero(loadable):
                reached[before[(before & each) == 0] | each] = True
        return not reached[-1]

    def _loadable(self, capacity: int) -> np.ndarray | None:
        """Return for each set of contexts whether it loads into an empty domain in some order; None if that is long."""
        sets = np.flatnonzero(self._feasible(capacity))
        layouts: dict[int, set[Taken]] = {0: {((), frozenset())}}
        left = MAX_LAYOUTS
        for each in sorted(map(int, sets), key=lambda number: number.bit_count()):
            found = layouts.setdefault(each, set())
            for index in range(len(self.contexts)):
                for taken in layouts.get(each & ~(1 << index), ()) if each >> index & 1 else ():
                    after = self._attempt(capacity, taken, index)[1]
                    left -= 1
                    if after is not None:
                        found.add(after)
            if left < 0:
                return None
        loadable = np.zeros(1 << len(self.contexts), bool)
        loadable[[each for each, found in layouts.items() if found]] = True
        return loadable

    def _feasible(self, capacity: int) -> np.ndarray:
        """Return for each set of contexts whether a domain could hold it, by necessary conditions."""
        pieces = [[*sizes, *io] for sizes, io in zip(self.sizes, self.io, strict=True)]
        feasible: np.ndarray = self._sums(self.bytes, self.groups) <= capacity
        if self.profile.power_of_two:
            everything = [size for each in pieces for size in each] + [*self.groups.values()]
            for place in {alignment_of(self.profile, size) for size in everything}:
                needed = [sum(self._places(size, place) for size in each) for each in pieces]
                shared = {name: self._places(size, place) for name, size in self.groups.items()}
                feasible &= self._sums(needed, shared) <= -(-capacity // place)
        return feasible

    def _sums(self, own: Sequence[int], groups: Mapping[str, int]) -> np.ndarray:
        """Return a sum for each set of contexts: of their own numbers, and of each of their groups once."""
        sums = np.zeros(1, np.int64)
        for number in own:
            sums = np.concatenate([sums, sums + number])
        for name, number in groups.items():
            named = (each.group is not None and each.group.name == name for each in self.contexts)
            members = sum(1 << index for index, is_member in enumerate(named) if is_member)
            sums += np.where(np.arange(len(sums)) & members, number, 0)
        return sums

    def _places(self, size: int, place: int) -> int:
        """Return how many places of some bytes a mapping takes for itself, if it begins at such a multiple."""
        # Another one that begins so cannot begin in a place that is only partly taken.
        return -(-size // place) if alignment_of(self.profile, size) >= place else 0

    def _start(self) -> State:
        return tuple(((), frozenset()) for _ in self.profile.domains)

    # -- orders --------------------------------------------------------------------------------------------------------

    def usual_orders(self) -> Iterator[list[int]]:
        """Yield orders that often work: the largest first by different sizes."""
        indices = range(len(self.contexts))
        yield sorted(indices, key=lambda index: -self.bytes[index])
        yield sorted(indices, key=lambda index: -max(self.sizes[index], default=0))
        yield sorted(indices, key=lambda index: -sum(self.io[index]))
        yield sorted(indices, key=lambda index: sum(self.io[index]) - sum(self.sizes[index]))

    def by_depth(self) -> list[int] | None:
        """Search all orders: return one that works, None if none does, and an empty list if the search gave up."""
        self._left = MAX_STATES
        rest = tuple(sorted(range(len(self.contexts)), key=lambda index: -self.bytes[index]))
        found = self._search(self._start(), rest, set())
        return [] if self._left <= 0 and found is None else found

    def _search(
        self, state: State, rest: tuple[int, ...], dead: set[tuple[State, tuple[int, ...]]]
    ) -> list[int] | None:
        """Return an order of the remaining contexts that works from a state; None if there is none, or none is left."""
        if not rest:
            return []
        self._left -= 1
        if self._left <= 0 or (state, rest) in dead:
            return None
        if all(self._may_fit(state, index) for index in rest):
            tried = set()
            for index in rest:
                if self.kinds[index] in tried:
                    continue
                tried.add(self.kinds[index])
                after = self._load(state, index)
                if after is not None:
                    found = self._search(after, tuple(each for each in rest if each != index), dead)
                    if found is not None:
                        return [index, *found]
        dead.add((state, rest))
        return None

    def _may_fit(self, state: State, index: int) -> bool:
        """Return whether some domain has the bytes for a context and its I/O, and a place for each piece."""
        # Later there is less room everywhere, so a context that fails this can never be loaded.
        for domain, taken in zip(self.profile.domains, state, strict=True):
            key = domain.capacity, taken, index
            if key not in self._possible:
                occupied = taken[0]
                sizes = [*self._new_pieces(taken, index), *self.io[index]]
                self._possible[key] = sum(sizes) <= _free(domain.capacity, occupied) and all(
                    isinstance(fit_pieces(self.profile, occupied, domain.capacity, (size,)), tuple) for size in sizes
                )
            if self._possible[key]:
                return True
        return False

    def _load(self, state: State, index: int) -> State | None:
        """Return the state after a context and its I/O; None if one of them is refused. The same as `Domains` does."""
        for number, taken in enumerate(state):
            is_taken, after = self._attempt(self.profile.domains[number].capacity, taken, index)
            if is_taken:
                return None if after is None else (*state[:number], after, *state[number + 1 :])
        return None

    def _attempt(self, capacity: int, taken: Taken, index: int) -> tuple[bool, Taken | None]:
        """Try a context in a domain: return whether it is taken, and what is taken then if its I/O has room too."""
        key = capacity, taken, index
        if key not in self._known:
            self._known[key] = self._try(capacity, taken, index)
        return self._known[key]

    def _try(self, capacity: int, taken: Taken, index: int) -> tuple[bool, Taken | None]:
        (occupied, groups), group, io = taken, self.contexts[index].group, self.io[index]
        pieces = self._new_pieces(taken, index)
        beside = sum(io) if self.io_estimation else 0
        if sum(pieces) + beside > _free(capacity, occupied):
            return False, None
        own = fit_pieces(self.profile, occupied, capacity, pieces)
        if not isinstance(own, tuple):
            return False, None
        if beside and not isinstance(fit_pieces(self.profile, own[0], capacity, (beside,)), tuple):
            return False, None
        whole = fit_pieces(self.profile, own[0], capacity, io)
        if not isinstance(whole, tuple):
            return True, None
        return True, (_join_parts(whole[0]), groups | {group.name} if group is not None else groups)

    def _new_pieces(self, taken: Taken, index: int) -> list[int]:
        """Return what a context maps in a domain, with the buffer of its group if that is not there yet."""
        group = self.contexts[index].group
        return [*self.sizes[index], *([group.nbytes] if group is not None and group.name not in taken[1] else ())]


def _free(capacity: int, occupied: Intervals) -> int:
    return capacity - sum(end - begin for begin, end in occupied)


def _largest(feasible: np.ndarray) -> np.ndarray:
    """Return the feasible sets that are in no larger one. A part of a feasible set is feasible."""
    sets, largest = np.arange(len(feasible)), feasible.copy()
    bit = 1
    while bit < len(feasible):
        lacking = (sets & bit) == 0
        largest[lacking] &= ~feasible[sets[lacking] | bit]
        bit <<= 1
    found: np.ndarray = sets[largest]
    return found


def _join_parts(occupied: Intervals) -> Intervals:
    """Join parts without room between them, so that equal states are recognized."""
    joined: list[tuple[int, int]] = []
    for begin, end in occupied:
        if joined and joined[-1][1] == begin:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((begin, end))
    return tuple(joined)
