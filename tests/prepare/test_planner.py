"""A planner asks an engine for its facts, and one that gives its work spaces alone is planned for all the same."""

from __future__ import annotations

import pytest
from support import tile_networks
from support.plans import PlainEngine, plan_graph

from isthmus.errors import Code, QnnError
from isthmus.prepare import Planner, PlanOptions, Step
from isthmus.prepare.tiling import ScratchLimit
from isthmus.prepare.tiling.fit import schedule_within


def within(engine: PlainEngine, limit: str, **options: bool):
    planner = Planner(tile_networks.squeezed(False), PlanOptions(**options), engine)
    return schedule_within(planner, ScratchLimit.of(limit))


def test_an_engine_that_gives_its_work_spaces_alone_can_be_limited() -> None:
    whole = plan_graph(tile_networks.squeezed(False))
    split = within(PlainEngine(lambda step: 0), "50%")
    assert split.plan.regions
    assert split.scratch_bytes <= whole.scratch_bytes // 2


def test_a_step_that_the_engine_cannot_tile_is_in_no_region() -> None:
    class Whole(PlainEngine):
        def can_tile(self, step: Step, axis: int) -> bool:
            return step.op != "DepthWiseConv2d"

    def tiled(engine: PlainEngine) -> set[str]:
        return {op for region in within(engine, "least").plan.regions for op, _ in region.steps}

    assert "DepthWiseConv2d" in tiled(PlainEngine(lambda step: 0))
    assert "DepthWiseConv2d" not in tiled(Whole(lambda step: 0))


def test_a_graph_with_steps_that_the_engine_refuses_is_refused() -> None:
    class Refusing(PlainEngine):
        def refusal(self, step: Step) -> str | None:
            return "not here" if step.op == "DepthWiseConv2d" else None

    planner = Planner(tile_networks.squeezed(False), PlanOptions(), Refusing(lambda step: 0))
    for plan in (planner.schedule, lambda: schedule_within(planner, ScratchLimit.of("50%"))):
        with pytest.raises(QnnError, match=r"\(DepthWiseConv2d\): not here") as refused:
            plan()
        assert refused.value.code is Code.COMMON_NOT_SUPPORTED


def test_every_offset_is_a_multiple_of_the_engines_alignment() -> None:
    made = plan_graph(tile_networks.squeezed(False), lambda step: 100, alignment=512, io_in_scratch=True)
    assert {row.offset % 512 for row in made.plan.rows} == {0}
    assert {offset % 512 for offset in (*made.work, *made.io_offsets)} == {0}


def test_memory_that_is_never_used_again_cannot_be_limited() -> None:
    with pytest.raises(QnnError, match="cannot be limited") as refused:
        within(PlainEngine(lambda step: 0), "50%", reuse_memory=False)
    assert refused.value.code is Code.GRAPH_INVALID_ARGUMENT
