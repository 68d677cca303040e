"""What the search says fits loads in that order; what it proves not to fit loads in none of all orders."""

import random
from dataclasses import replace

import pytest

from domains import random_sets
from isthmus.domains import (
    ContextSizes,
    Domain,
    DomainMapping,
    Domains,
    FitVerdict,
    GraphNeeds,
    Placement,
    SpillGroup,
    profile,
    remedies,
    search,
)
from isthmus.errors import QnnError

GIB, MIB = 1 << 30, 1 << 20
MAX_TRIED = 6
"""The most contexts whose orders are all tried."""
SECONDS = 2.0
"""Of processor time of the search alone, for up to 12 contexts."""


def loads(contexts, chip, io_estimation):
    """Return whether contexts load in this order, each followed by its I/O, by the model alone."""
    domains = Domains(chip, io_estimation=io_estimation)
    for context in contexts:
        placement = domains.load(context)
        if not isinstance(placement, Placement):
            return False
        if not all(isinstance(domains.register(placement, nbytes), DomainMapping) for nbytes in context.io):
            return False
    return True


def any_order_loads(contexts, chip, io_estimation, before=()):
    """Return whether contexts load in any order; an order whose beginning fails is not completed."""
    if len(before) == len(contexts):
        return True
    rest = [each for each in contexts if each not in before]
    return any(
        loads((*before, each), chip, io_estimation) and any_order_loads(contexts, chip, io_estimation, (*before, each))
        for each in rest
    )


@pytest.mark.parametrize("part", range(random_sets.PARTS))
def test_answers_for_random_sets_are_those_of_all_orders(part) -> None:
    verdicts, undecided, largest = [], 0, 0
    for each in random_sets.answered(part):
        contexts, chip, io_estimation, result = each.contexts, each.chip, each.io_estimation, each.result
        largest = max(largest, len(contexts))
        assert each.seconds < SECONDS or each.searched_again().seconds < SECONDS
        by_name = {context.name: context for context in contexts}
        if result.verdict is FitVerdict.FITS:
            assert sorted(result.order) == sorted(by_name)
            assert loads([by_name[name] for name in result.order], chip, io_estimation)
        elif result.verdict is FitVerdict.IMPOSSIBLE:
            assert result.proof
            if len(contexts) <= MAX_TRIED:
                assert not any_order_loads(contexts, chip, io_estimation)
        else:
            assert len(contexts) > MAX_TRIED
            undecided += 1
        assert (result.as_given is None) == loads(contexts, chip, io_estimation)
        verdicts.append(result.verdict)
    assert verdicts.count(FitVerdict.FITS) > 50
    assert verdicts.count(FitVerdict.IMPOSSIBLE) > 50
    assert undecided <= len(verdicts) // 100
    assert largest == random_sets.MOST


def interleaved(contexts, chip, io_estimation):
    """Whether any sequence loads all contexts and registers all I/O, each buffer at any time after its context."""

    def extended(done):
        domains, placements = Domains(chip, io_estimation=io_estimation), {}
        for kind, number in done:
            if kind == "load":
                placements[number] = domains.load(contexts[number])
                if not isinstance(placements[number], Placement):
                    return False
            elif not isinstance(domains.register(placements[number], sum(contexts[number].io)), DomainMapping):
                return False
        if len(done) == 2 * len(contexts):
            return True
        following = [("load", n) for n in range(len(contexts)) if ("load", n) not in done]
        following += [("io", n) for n in range(len(contexts)) if ("load", n) in done and ("io", n) not in done]
        return any(extended([*done, each]) for each in following)

    return extended([])


@pytest.mark.parametrize("io_estimation", [False, True])
def test_registering_io_later_never_helps_where_mappings_leave_no_gaps(io_estimation) -> None:
    rng = random.Random(3)
    chip = type(profile())("small", profile("default").domains)
    verdicts = set()
    for _ in range(40):
        contexts = []
        for number in range(3):
            own, io = rng.randint(1, 30) * GIB // 10, rng.randint(1, 12) * GIB // 10
            contexts.append(ContextSizes(f"c{number}", (GraphNeeds("g", own, io=io),)))
        result = search(contexts, chip, io_estimation=io_estimation)
        assert interleaved(contexts, chip, io_estimation) == (result.verdict is FitVerdict.FITS)
        verdicts.add(result.verdict)
    assert len(verdicts) == 2


def loads_with_dummies(contexts, chip):
    """Return whether contexts load in any order, each followed by its I/O, if the client may fill domains before each.

    It fills the first ones by registrations of contexts that are there, and ends these after the context is loaded.
    """

    def extended(done):
        domains, placements = Domains(chip), {}
        for index, filled in done:
            dummies = []
            for domain in domains.domains[:filled]:
                inside = [each for each in placements.values() if each.domain == domain.number]
                if not inside:
                    return False
                while domain.free:
                    # What is free may be in several pieces.
                    nbytes = next(size for size in (domain.free, 1) if domain.has_place(size))
                    dummies.append((inside[0], domains.register(inside[0], nbytes)))
            placements[index] = domains.load(contexts[index])
            for placement, dummy in dummies:
                domains.deregister(placement, dummy)
            if not isinstance(placements[index], Placement):
                return False
            if not all(
                isinstance(domains.register(placements[index], each), DomainMapping) for each in contexts[index].io
            ):
                return False
        rest = [index for index in range(len(contexts)) if index not in placements]
        return not rest or any(
            extended([*done, (index, filled)]) for index in rest for filled in range(len(chip.domains))
        )

    return extended([])


def test_a_dummy_registration_helps_and_an_estimate_with_io_helps_wherever_it_does() -> None:
    rng = random.Random(5)
    chip = type(profile())("small", (Domain(0, 100), Domain(1, 100), Domain(2, 100)))
    helps = 0
    for _ in range(150):
        contexts = []
        for number in range(rng.randint(3, 4)):
            own, io = rng.randint(10, 80), rng.randint(5, 60)
            contexts.append(ContextSizes(f"c{number}", (GraphNeeds("g", own, io=io),)))
        plain = search(contexts, chip).verdict is FitVerdict.FITS
        with_dummies = plain or loads_with_dummies(contexts, chip)
        helps += with_dummies and not plain
        assert (search(contexts, chip, io_estimation=True).verdict is FitVerdict.FITS) or not with_dummies
    assert helps > 0


def test_a_proof_by_addresses_says_which_sequences_it_is_about() -> None:
    chip = type(profile())("small", (Domain(0, 24),), power_of_two=True)
    contexts = [
        ContextSizes("a", (GraphNeeds("g", 5, op_data=1),), buffers=(4,)),
        ContextSizes("b", (GraphNeeds("g", 3, op_data=2, spill_fill=1),), buffers=(3, 3)),
    ]
    result = search(contexts, chip)
    assert result.verdict is FitVerdict.IMPOSSIBLE
    assert "if the I/O of each is registered right after it" in result.proof
    domains = Domains(chip)
    placements = [domains.load(each) for each in contexts]
    for placement, context in zip(placements, contexts, strict=True):
        assert isinstance(placement, Placement)
        assert all(isinstance(domains.register(placement, nbytes), DomainMapping) for nbytes in context.io)


def test_an_order_is_found_where_the_one_that_was_given_fails() -> None:
    sizes = {"small": 1, "middle": 2, "large": 3.5}
    contexts = [ContextSizes(name, file_bytes=int(size * GIB)) for name, size in sizes.items()]
    contexts.append(ContextSizes("last", file_bytes=GIB // 2))
    result = search(contexts, profile())
    assert (result.verdict, result.as_given) == (FitVerdict.FITS, None)
    contexts = [
        ContextSizes(name, file_bytes=int(size * GIB)) for name, size in zip("abcd", (1, 1, 2.75, 2.75), strict=True)
    ]
    result = search(contexts, profile())
    assert result.verdict is FitVerdict.FITS
    assert result.as_given is not None
    assert "context 'd'" in str(result.as_given.error())
    assert {step.context: step.domain for step in result.steps}["a"] != {s.context: s.domain for s in result.steps}["b"]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [([3, 3, 3], "together"), ([5], "alone"), ([2.5, 2.5, 2], "no division among 2 domains")],
)
def test_a_proof_says_why(sizes, words) -> None:
    contexts = [ContextSizes(f"c{number}", file_bytes=int(size * GIB)) for number, size in enumerate(sizes)]
    result = search(contexts, profile())
    assert result.verdict is FitVerdict.IMPOSSIBLE
    assert words in result.proof


def test_contexts_that_need_more_memory_than_is_free_fit_in_no_order() -> None:
    contexts = [ContextSizes(name, file_bytes=2 * GIB) for name in "abc"]
    chip = type(profile())("small", (*profile().domains, Domain(2, 4 * GIB)), free_ram=6 * GIB)
    assert search(contexts, chip).verdict is FitVerdict.FITS
    result = search(contexts, replace(chip, free_ram=6 * GIB - 1))
    assert result.verdict is FitVerdict.IMPOSSIBLE
    assert result.proof == "they need 6,442,450,944 bytes together, 6,442,450,943 bytes of memory are free"


def test_names_that_occur_twice_and_groups_of_two_sizes_are_refused() -> None:
    with pytest.raises(QnnError, match="same name"):
        search([ContextSizes("a"), ContextSizes("a")], profile())
    with pytest.raises(QnnError, match="two sizes"):
        search([ContextSizes("a", group=SpillGroup("g", 1)), ContextSizes("b", group=SpillGroup("g", 2))], profile())


# -- remedies ----------------------------------------------------------------------------------------------------------


def helping(contexts, **options):
    return {each.name for each in remedies(contexts, profile(), **options) if each.helps}


def test_one_spill_fill_buffer_helps_where_buffers_are_what_does_not_fit() -> None:
    parts = [ContextSizes(f"p{k}", (GraphNeeds("g", 700 * MIB, spill_fill=GIB),)) for k in range(6)]
    assert search(parts, profile()).verdict is FitVerdict.IMPOSSIBLE
    assert helping(parts) == {"group"}


def test_shared_weights_help_graphs_with_equal_constants() -> None:
    context = ContextSizes("llm", tuple(GraphNeeds(name, 2 * GIB) for name in ("prefill", "decode")))
    assert {"share", "switch"} <= helping([context])


def test_contexts_of_the_same_weights_are_joined() -> None:
    contexts = [
        ContextSizes(name, (GraphNeeds(name, 3 * GIB),), same_weights="llm") for name in ("prefill", "decode")
    ] + [ContextSizes("other", file_bytes=3 * GIB)]
    found = {each.name: each for each in remedies(contexts, profile())}["share"]
    assert found.helps
    assert [each.name for each in found.contexts] == ["prefill+decode", "other"]


def test_a_limit_of_reused_io_helps_where_io_is_what_does_not_fit() -> None:
    graphs = tuple(GraphNeeds(f"g{k}", GIB // 4, io=GIB) for k in range(5))
    assert helping([ContextSizes("a", graphs)]) == {"reuse"}


def test_an_estimate_with_io_helps_where_a_context_takes_the_room_of_its_own_io() -> None:
    # Without it each lies in domain 0, where its I/O then has no room; domain 1 is larger.
    chip = type(profile())("two sizes", (type(profile().domains[0])(0, 10), type(profile().domains[0])(1, 12)))
    contexts = [ContextSizes("a", (GraphNeeds("g", 8, io=3),))]
    assert search(contexts, chip).verdict is FitVerdict.IMPOSSIBLE
    assert {each.name for each in remedies(contexts, chip) if each.helps} == {"estimate"}


def test_smaller_parts_help_where_large_ones_leave_room_that_is_too_small() -> None:
    contexts = [ContextSizes(f"c{k}", file_bytes=int(2.2 * GIB)) for k in range(3)]
    assert helping(contexts) == {"split"}
    split = next(each for each in remedies(contexts, profile()) if each.helps)
    assert sum(each.charge for each in split.contexts) == sum(each.charge for each in contexts)


def test_remedies_that_help_only_together_are_found_together() -> None:
    graphs = tuple(GraphNeeds(f"g{k}", GIB // 4, spill_fill=GIB, io=GIB // 2) for k in range(2))
    contexts = [ContextSizes(f"c{k}", graphs) for k in range(4)]
    assert helping(contexts) == {"group+reuse+estimate"}


def test_switching_leaves_groups() -> None:
    graphs = tuple(GraphNeeds(f"g{k}", GIB, spill_fill=MIB) for k in range(3))
    contexts = [ContextSizes(f"c{k}", graphs, group=SpillGroup("g", MIB)) for k in range(3)]
    found = {each.name: each for each in remedies(contexts, profile())}["switch"]
    assert all(each.group is None for each in found.contexts)
