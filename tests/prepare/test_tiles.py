"""Scratch has limits that are kept or refused with a reason, and tiles compute every row once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from support import tile_networks
from support.suites import long, only, sampled

from isthmus.backends.seam import native
from isthmus.engine.native.lower import NativeEngine
from isthmus.engine.native.target import host
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType, Graph, Tensor, TensorType
from isthmus.prepare import Planner, PlanOptions, Schedule, Step
from isthmus.prepare.planner import Arrangement
from isthmus.prepare.schedule import Region, Repeat
from isthmus.prepare.tiling import ScratchLimit, fit, search
from isthmus.prepare.tiling.fused_region import FusedRegion
from isthmus.prepare.tiling.limit_search import candidate_of
from isthmus.prepare.tiling.region_grower import LowerBounds, RegionGrower
from isthmus.prepare.tiling.search import MAX_REGION_STEPS, MIN_SHARE, Budget, RegionChoice, RegionSearch, share_of


class Proportional(NativeEngine):
    """The native engine, were the time of a tile in proportion to its rows."""

    def effort(self, step: Step, axis: int) -> None:
        return None


def scheduled(
    graph: Graph, limit: object = None, slower: float | None = 10.0, threads: int = 1, io_in_scratch: bool = False
) -> Schedule:
    planner = Planner(graph, PlanOptions(io_in_scratch=io_in_scratch), Proportional(host(), threads))
    return planner.schedule() if limit is None else fit.schedule_within(planner, ScratchLimit.of(limit, slower))


def needed_by(refused: QnnError) -> int:
    """The bytes that a refusal says are needed."""
    return int(refused.hint.split()[1].replace(",", ""))


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        (4096, ScratchLimit(bytes=4096)),
        (np.int64(7), ScratchLimit(bytes=7)),
        ("4096", ScratchLimit(bytes=4096)),
        ("2 MiB", ScratchLimit(bytes=2 << 20)),
        ("3kB", ScratchLimit(bytes=3000)),
        ("12.5%", ScratchLimit(share=0.125)),
        ("least", ScratchLimit()),
        (" Least ", ScratchLimit()),
    ],
)
def test_a_limit_is_bytes_or_a_part_or_the_least(text, limit) -> None:
    assert ScratchLimit.of(text) == limit


@pytest.mark.parametrize("text", [-1, True, 2.5, None, "", "101%", "-3%", "few", "1e3", "9" * 40, b"25%", [1], "nan%"])
def test_any_other_limit_is_refused(text) -> None:
    with pytest.raises(QnnError) as refused:
        ScratchLimit.of(text)
    assert refused.value.code is Code.COMMON_INVALID_ARGUMENT


@pytest.mark.parametrize("slower", [-0.1, 11, float("nan"), "0.1", True])
def test_what_it_may_cost_is_a_part_of_the_time(slower) -> None:
    with pytest.raises(QnnError) as refused:
        ScratchLimit.of("least", slower)
    assert refused.value.code is Code.COMMON_INVALID_ARGUMENT


def test_a_limit_that_is_no_limit_changes_nothing() -> None:
    graph = tile_networks.squeezed(False)
    plain = scheduled(graph)
    for limit in (plain.scratch_bytes, plain.scratch_bytes + 1, "100%"):
        same = scheduled(graph, limit)
        assert (same.plan.rows, same.repeats, same.plan.regions) == (plain.plan.rows, (), ())


@pytest.mark.parametrize("share", ["75%", "50%", "30%", "20%"])
@pytest.mark.parametrize("bytes_", [False, True])
def test_a_plan_stays_within_its_limit(share, bytes_) -> None:
    graph = tile_networks.squeezed(bytes_)
    plain, split = scheduled(graph), scheduled(graph, share)
    assert split.scratch_bytes <= plain.scratch_bytes * float(share[:-1]) / 100
    assert split.plan.regions


def test_a_limit_below_all_that_can_be_names_the_step_and_what_is_missing() -> None:
    graph = tile_networks.squeezed(False)
    with pytest.raises(QnnError) as refused:
        scheduled(graph, 640)
    assert refused.value.code is Code.COMMON_MEM_ALLOC
    assert "'squeezed'" in refused.value.what
    assert "(Conv2d) holds it up" in refused.value.rule or "(DepthWiseConv2d) holds it up" in refused.value.rule
    needed = needed_by(refused.value)
    assert f"{needed - 640:,} more" in refused.value.rule
    assert scheduled(graph, needed).scratch_bytes <= needed


def refused_within(graph: Graph, limit: int) -> QnnError | None:
    """The refusal of a limit, if it is refused."""
    try:
        assert scheduled(graph, limit, None).scratch_bytes <= limit
    except QnnError as refusal:
        return refusal
    return None


@pytest.mark.parametrize("seed", [1, 4, 7, 9, 81, 96, 114])
def test_a_refusal_names_a_step_of_the_model_and_bytes_that_can_be_had(seed) -> None:
    graph = tile_networks.network(seed)
    assert graph is not None
    steps = {(step.op, step.name.partition(";")[0]) for step in scheduled(graph).steps}
    whole = scheduled(graph).scratch_bytes
    for limit in (1, whole // 2):
        refusal = refused_within(graph, limit)
        if refusal is not None:
            found = re.search(r"step '(.+)' \((\w+)\) holds it up; ([\d,]+) bytes are needed", refusal.rule)
            assert found is not None
            assert refusal.code is Code.COMMON_MEM_ALLOC
            assert (found[2], found[1]) in steps
            assert scheduled(graph, needed_by(refusal), None).scratch_bytes > limit


@pytest.mark.parametrize("first", only((0,), range(0, 1000, 25)))
def test_a_limit_on_networks_of_parts_gives_a_plan_or_a_refusal_that_names_a_step(first) -> None:
    for seed in range(first, first + 25):
        graph = tile_networks.network(seed, tile_networks.PARTS)
        whole = 0 if graph is None else scheduled(graph).scratch_bytes
        if graph is None or not whole:
            continue
        assert scheduled(graph, "least").scratch_bytes <= whole
        for limit in (whole * 4 // 5, whole * 9 // 20):
            refusal = refused_within(graph, limit)
            assert refusal is None or "holds it up" in refusal.rule, f"network {seed} within {limit}: {refusal}"


@pytest.mark.parametrize("seed", sampled([3, 8, 9, 11, 17, 27, 36, 54], 3))
def test_a_refusal_names_the_fewest_bytes_that_any_limit_comes_to(seed) -> None:
    graph = tile_networks.network(seed)
    assert graph is not None
    refusal = refused_within(graph, 1)
    assert refusal is not None
    fewest = needed_by(refusal)
    assert fewest <= scheduled(graph, "least").scratch_bytes <= scheduled(graph).scratch_bytes
    assert scheduled(graph, fewest, None).scratch_bytes == fewest
    for limit in (fewest // 2, fewest - 1):
        refusal = refused_within(graph, limit)
        assert refusal is not None
        assert needed_by(refusal) == fewest


@pytest.mark.parametrize("io_in_scratch", [False, True])
@pytest.mark.parametrize("seed", [None, 0, *map(long, (5, 8, 11, 12, 18, 23))])
def test_what_a_limit_allows_every_larger_one_allows(seed, io_in_scratch) -> None:
    graph = tile_networks.squeezed(True) if seed is None else tile_networks.network(seed)
    assert graph is not None
    whole = scheduled(graph, io_in_scratch=io_in_scratch).scratch_bytes
    needed, met = [], []
    for part in range(1, 20):
        limit = whole * part // 20
        try:
            met.append(scheduled(graph, limit, None, io_in_scratch=io_in_scratch).scratch_bytes)
            assert met[-1] <= limit
        except QnnError as refused:
            needed.append(needed_by(refused))
            assert not met, f"{limit} is refused, {met[-1]} was met"
            assert needed[-1] > limit
    # All that is refused names bytes that can be had, and what was had can be asked for.
    for bytes_ in {*needed, *met[:2]}:
        assert scheduled(graph, bytes_, None, io_in_scratch=io_in_scratch).scratch_bytes <= bytes_


@pytest.mark.parametrize("seed", sampled(range(0, 40, 3), 3))
@pytest.mark.parametrize("slower", [0.05, 0.2])
def test_what_the_least_comes_to_every_limit_from_there_on_allows(seed, slower) -> None:
    graph = tile_networks.network(seed)
    if graph is None:
        return
    whole, least = scheduled(graph).scratch_bytes, scheduled(graph, "least", slower).scratch_bytes
    for limit in (least, least * 5 // 4, least * 3 // 2):
        assert scheduled(graph, limit, slower).scratch_bytes <= min(limit, whole)
    assert scheduled(graph, least, None).scratch_bytes <= least, "that may cost anything"


def test_a_long_chain_fits_what_its_pieces_fit() -> None:
    piece, long = tile_networks.chain(20), tile_networks.chain(200)
    whole = scheduled(long).scratch_bytes
    assert scheduled(piece).scratch_bytes == whole
    limit = scheduled(piece, "40%").scratch_bytes
    split = scheduled(long, limit)
    assert split.scratch_bytes <= limit <= whole * 0.4
    assert len(split.plan.regions) > 20, "tiles to the end"


def test_each_end_of_a_region_has_its_share_of_the_work() -> None:
    assert share_of(8_000, [min(i, MAX_REGION_STEPS) for i in range(1, 121)]) == MAX_REGION_STEPS
    reaches = [5] * 100 + [90] * 200
    share = share_of(8_000, reaches)
    assert 8_000 - len(reaches) < sum(min(share, reach) for reach in reaches) <= 8_000
    assert share_of(8_000, [90] * 100_000) == MIN_SHARE
    assert share_of(8_000, []) == MAX_REGION_STEPS


def test_a_search_that_leaves_out_long_regions_says_so(monkeypatch) -> None:
    graph = tile_networks.chain(24)
    assert not scheduled(graph, "50%").plan.bounded
    assert not scheduled(graph).plan.bounded
    monkeypatch.setattr(search, "MAX_GROWTH", 24)
    bounded = scheduled(graph, "50%")
    assert bounded.plan.bounded
    assert bounded.scratch_bytes <= scheduled(graph).scratch_bytes // 2
    with pytest.raises(QnnError, match="more, as far as was looked"):
        scheduled(graph, 4096)


class Underestimated(Planner):
    """A planner whose tiled plans all take three times the bytes of whole tensors."""

    def place(
        self, arrangement: Arrangement, repeats: Sequence[Repeat] = (), regions: Sequence[Region] = ()
    ) -> Schedule:
        made = super().place(arrangement, repeats, regions)
        return replace(made, scratch_bytes=3 * self.schedule().scratch_bytes) if regions else made


def test_a_plan_that_is_much_larger_than_was_estimated_ends_the_search() -> None:
    planner = Underestimated(tile_networks.squeezed(False), PlanOptions(), Proportional(host(), 1))
    with pytest.raises(QnnError, match="holds it up") as refused:
        fit.schedule_within(planner, ScratchLimit.of("50%", 10.0))
    assert needed_by(refused.value) == planner.schedule().scratch_bytes, "that much can be had"


def searches(graph: Graph) -> list[RegionSearch]:
    """The searches for tiles of a graph, one for each order of its steps."""
    planner = Planner(graph, PlanOptions(), Proportional(host(), 1))
    return candidate_of(planner, planner.rewrite()).searches


def test_the_least_limit_with_a_small_program_is_found() -> None:
    """No limit slightly below the one that is found has a small program."""
    budget, found = Budget(10.0), 0
    for search_ in searches(tile_networks.squeezed(False)) + searches(tile_networks.chain(24)):
        least = search_.least(budget)
        assert least is not None
        bargain = search_.bargain(least[0], budget)
        if search_.affordable(least[1], least[0], budget) or bargain is None:
            continue
        limit, chosen = bargain
        assert least[0] < limit < search_.peak
        assert search_.affordable(chosen, limit, budget)
        below = limit - search_.base.alignment
        assert not search_.affordable(search_.solve(below), below, budget)
        found += 1
    assert found


def test_what_two_readers_want_at_other_rates_or_along_other_axes_is_taken_whole() -> None:
    """On the method itself: the random networks give the same bits without the comparison of rates."""

    def collected_need(*asked):
        ending = SimpleNamespace(_needs={}, _base=SimpleNamespace(end={"x": 3}), _last=5, _sources={})
        for each in asked:
            RegionGrower._need(ending, "x", *each)
        found = ending._needs["x"]
        assert list(ending._sources) == (["x"] if asked[0][0] is not None else [])
        return found if found is None else (found.axis, found.rate, found.end, found.begin)

    assert collected_need((1, 2, 10, 4)) == (1, 2, 10, 4)
    assert collected_need((1, 2, 10, 4), (1, 2, 12, 5)) == (1, 2, 12, 4)
    assert collected_need((1, 2, 10, 4), (1, 2, 9, 3)) == (1, 2, 10, 3)
    assert collected_need((1, 2, 10, 4), (1, 1, 10, 4)) is None
    assert collected_need((1, 2, 10, 4), (2, 2, 10, 4)) is None
    assert collected_need((None, 2, 10, 4)) is None
    assert collected_need((1, 2, 10, 4), (None, 2, 10, 4), (1, 2, 10, 4)) is None


def test_what_costs_too_much_time_or_program_is_not_affordable() -> None:
    search_ = searches(tile_networks.squeezed(False))[0]
    found = search_.least(Budget(10.0))
    assert found is not None
    limit, chosen = found
    share = search_.cost(chosen) / search_.time
    assert search_.affordable(chosen, limit, Budget(share * 1.01, small_program=False))
    assert not search_.affordable(chosen, limit, Budget(share * 0.99, small_program=False))
    assert not search_.affordable(chosen, search_.peak, Budget(10.0)), "a program that saves nothing must not grow"
    assert not search_.affordable(None, limit, Budget(10.0))


def test_a_limit_that_costs_more_than_it_may_is_refused() -> None:
    graph = tile_networks.squeezed(False)
    with pytest.raises(QnnError) as refused:
        scheduled(graph, "30%", slower=0.0)
    assert refused.value.code is Code.COMMON_MEM_ALLOC
    assert "the limit may cost 0.0%" in refused.value.rule
    enough = float(refused.value.hint.split("=")[1].split(",")[0])
    assert scheduled(graph, "30%", slower=enough).plan.rows == scheduled(graph, "30%", slower=None).plan.rows


def test_a_cost_without_a_limit_is_refused() -> None:
    assert ScratchLimit.if_any(None) is None
    assert ScratchLimit.if_any("25%", 0.1) == ScratchLimit(share=0.25, slower=0.1)
    assert ScratchLimit.of(ScratchLimit(bytes=7), 0.5) == ScratchLimit(bytes=7, slower=0.5)
    with pytest.raises(QnnError, match="there is no scratch limit"):
        ScratchLimit.if_any(None, 0.1)


def test_the_least_costs_no_more_than_it_may() -> None:
    graph = tile_networks.squeezed(False)
    whole = scheduled(graph).scratch_bytes
    bytes_ = [scheduled(graph, "least", slower).scratch_bytes for slower in (0.0, 0.2, 10.0)]
    assert whole >= bytes_[0] >= bytes_[1] >= bytes_[2]
    assert bytes_[1] < whole
    for slower, least in ((0.2, bytes_[1]), (10.0, bytes_[2])):
        assert scheduled(graph, least, slower).scratch_bytes <= least, "as a limit it costs no more than that"


@pytest.mark.parametrize("seed", range(40))
def test_every_row_is_computed_once_and_read_when_it_is_there(seed) -> None:
    graph = tile_networks.network(seed)
    if graph is None:
        return
    plain = scheduled(graph)
    try:
        split = scheduled(graph, int(plain.scratch_bytes * 0.6))
    except QnnError:
        return
    for region in split.plan.regions:
        done = [0] * len(region.steps)
        for tile in region.tiles:
            for entry in tile:
                assert entry.rows[0] == done[entry.step] < entry.rows[1]
                assert entry.source[0] < entry.source[1]
                done[entry.step] = entry.rows[1]
        first, times = region.repeated
        bodies = {tuple((e.step, e.rows[1] - e.rows[0]) for e in s) for s in region.tiles[first : first + times]}
        assert len(bodies) <= 1
    covered = [step for repeat in split.repeats for step in range(repeat.first, repeat.last + 1)]
    assert len(covered) == len(set(covered))


def test_tiles_are_as_high_as_there_are_threads() -> None:
    split = scheduled(tile_networks.squeezed(False), "30%", threads=3)
    (region,) = split.plan.regions
    first, _ = region.repeated
    assert all(entry.rows[1] - entry.rows[0] >= 3 for entry in region.tiles[first])


def gated():
    """A wide image from a narrow one, scaled by what its mean says."""
    rng = np.random.default_rng(0)
    graph = Graph("gated")
    image = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 32, 32, 16))
    plain = {"stride": [1, 1], "pad_amount": np.zeros((2, 2), np.uint32)}

    def weights(*dims):
        return graph.constant(graph.fresh("w"), rng.normal(0, 0.2, dims).astype(np.float32))

    (narrow,) = graph.emit("Conv2d", [image, weights(3, 3, 16, 8)], plain | {"pad_amount": np.ones((2, 2), np.uint32)})
    (wide,) = graph.emit("Conv2d", [narrow, weights(1, 1, 8, 96)], plain)
    (mean,) = graph.emit("ReduceMean", [wide], {"axes": [1, 2], "keep_dims": True})
    (gate,) = graph.emit("Conv2d", [mean, weights(1, 1, 96, 96)], plain)
    (scaled,) = graph.emit("ElementWiseMultiply", [wide, gate])
    (small,) = graph.emit("Conv2d", [scaled, weights(1, 1, 96, 4)], plain)
    result = graph.create_tensor("y", TensorType.APP_READ, small.dtype, small.dims)
    graph.add_node("end", "Relu", [small], [result])
    graph.finalize()
    return graph, wide


def test_what_a_mean_is_taken_of_is_computed_again_rather_than_kept() -> None:
    """The wide image need never be whole."""
    graph, wide = gated()
    whole = scheduled(graph)
    split = scheduled(graph, "20%")
    assert split.plan.rematerialized == (wide.name,)
    assert split.scratch_bytes <= whole.scratch_bytes // 5
    assert wide.nbytes > split.scratch_bytes


def test_attention_goes_by_the_rows_of_its_queries() -> None:
    rng = np.random.default_rng(0)
    graph = Graph("attention")
    tokens, heads, width = 48, 4, 16
    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, tokens, heads * width))

    def projected(name):
        weights = graph.constant(name, rng.normal(0, 0.2, (heads * width, heads * width)).astype(np.float32))
        (made,) = graph.emit("MatMul", [x, weights])
        (split,) = graph.emit("Reshape", [made], dims=[(1, tokens, heads, width)])
        return graph.emit("Transpose", [split], {"perm": [0, 2, 1, 3]})[0]

    q, k, v = (projected(name) for name in "qkv")
    (scores,) = graph.emit("MatMul", [q, k], {"transpose_in1": True})
    (shares,) = graph.emit("Softmax", [scores], {"axis": 3})
    (mixed,) = graph.emit("MatMul", [shares, v])
    (turned,) = graph.emit("Transpose", [mixed], {"perm": [0, 2, 1, 3]})
    (flat,) = graph.emit("Reshape", [turned], dims=[(1, tokens, heads * width)])
    y = graph.create_tensor("y", TensorType.APP_READ, DataType.FLOAT_32, (1, tokens, heads * width))
    graph.add_node("end", "ElementWiseAdd", [flat, x], [y])
    graph.finalize()
    whole, split = native.prepare(graph), native.prepare(graph, limit=ScratchLimit.of("50%"))
    assert split.program.scratch_bytes <= whole.program.scratch_bytes // 2
    assert any(op == "Softmax" for region in split.plan.regions for op, _ in region.steps)


class Unbounded(RegionGrower):
    """Stretches that grow whatever they have alive."""

    @property
    def _most(self) -> float:
        return 0.0

    @_most.setter
    def _most(self, bytes_: float) -> None:
        pass


class Everything(RegionSearch):
    """A search that looks at every region before it says that it needs too much."""

    def _regions(self, first: int, last: int, mode: int, limit: int) -> list[FusedRegion]:
        if (last, mode) not in self._growers:
            alive = self._bounds[last].alive
            bounds = LowerBounds(alive, [2**60] * len(alive))
            self._growers[last, mode] = Unbounded(self.base, last, mode, self._share, bounds)
        return self._growers[last, mode].regions(first, limit)


def cheapest_of_all(search: RegionSearch, limit: int) -> float | None:
    """Find the cost of the cheapest regions that keep to a limit, with every region tried; None if there are none."""
    best: list[float | None] = [0.0]
    for end, bytes_ in enumerate(search.base.live):
        costs = [best[end]] if bytes_ <= limit else []
        for first in range(end, -1, -1):
            if search._barriers[first]:
                break
            earlier = best[first]
            choice = None if earlier is None else search.cheapest(first, end, limit)
            if choice is not None and earlier is not None:
                costs.append(earlier + choice.cost)
        best.append(min((cost for cost in costs if cost is not None), default=None))
    return best[-1]


def two_ends() -> Graph:
    """A wide image becomes two narrow ones, of which the larger may lie over what the wide one was made of."""
    rng, graph = np.random.default_rng(0), Graph("two ends")
    plain = {"stride": [1, 1], "pad_amount": np.zeros((2, 2), np.uint32)}

    def convolved(tensor: Tensor, depth: int) -> Tensor:
        weights = rng.normal(0, 0.2, (1, 1, tensor.dims[3], depth)).astype(np.float32)
        return graph.emit("Conv2d", [tensor, graph.constant(graph.fresh("w"), weights)], plain)[0]

    x = graph.create_tensor("x", TensorType.APP_WRITE, DataType.FLOAT_32, (1, 32, 32, 4))
    wide = convolved(convolved(x, 16), 96)
    for number, end in enumerate([convolved(wide, 16), convolved(wide, 2)]):
        (mean,) = graph.emit("ReduceMean", [end], {"axes": [1, 2], "keep_dims": True})
        (scaled,) = graph.emit("ElementWiseMultiply", [end, mean])
        result = graph.create_tensor(f"y{number}", TensorType.APP_READ, scaled.dtype, scaled.dims)
        graph.add_node(f"end {number}", "Relu", [scaled], [result])
    graph.finalize()
    return graph


@pytest.mark.parametrize("seeds", [range(12), range(12, 24), range(24, 36), None], ids=str)
def test_what_the_search_leaves_out_would_not_have_been_cheaper(monkeypatch, seeds) -> None:
    solved = []
    solve = RegionSearch.solve
    twins: dict[RegionSearch, RegionSearch] = {}

    def compared(search: RegionSearch, limit: int) -> list[RegionChoice] | None:
        found = solve(search, limit)
        if search not in twins:
            twins[search] = Everything(search.base, search.kind)
        expected = cheapest_of_all(twins[search], limit)
        assert (found is None) == (expected is None)
        if found is not None:
            assert sum(choice.cost for choice in found) == pytest.approx(expected)
        solved.append(expected)
        return found

    monkeypatch.setattr(RegionSearch, "solve", compared)
    graphs = [tile_networks.network(seed) for seed in seeds] if seeds else [two_ends()]
    for graph in graphs:
        if graph is not None:
            scheduled(graph, "least", None, io_in_scratch=not seeds)
    assert None in solved
    assert any(solved)
