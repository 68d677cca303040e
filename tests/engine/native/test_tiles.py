"""Steps computed tile by tile have the bits of whole steps, and touch nothing outside their memory.

``ISTHMUS_STRIP_NETWORKS=2000`` tries as many random networks; ``ISTHMUS_STRIP_SEED`` others.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
from support import tile_networks
from support.suites import only

from engine.native.harness import GuardedBuffer
from isthmus.backends.seam import native
from isthmus.backends.seam.native import CompiledGraph
from isthmus.engine.native import lower
from isthmus.engine.native.describe import describe
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import REPEAT, Program
from isthmus.engine.native.serialization import from_bytes, to_bytes
from isthmus.engine.native.target import host
from isthmus.errors import Code, QnnError
from isthmus.graph import Graph
from isthmus.memory import window
from isthmus.prepare import Planner, PlanOptions
from isthmus.prepare.tiling import ScratchLimit

NETWORKS = int(os.environ.get("ISTHMUS_STRIP_NETWORKS", "100"))
SEED = int(os.environ.get("ISTHMUS_STRIP_SEED", "0"))
AT_A_TIME = 20


class Guarded:
    """A program bound to memory between guard pages."""

    def __init__(self, program: Program) -> None:
        self.program = program
        sizes = [program.scratch_bytes, program.state_bytes]
        self._pools = [GuardedBuffer(-(-size // 64) * 64) if size else None for size in sizes]
        self.io = [GuardedBuffer(info.nbytes) for info in (*program.inputs, *program.outputs)]
        scratch, state = (None if pool is None else window(pool.bytes) for pool in self._pools)
        self.executor = Executor(program, scratch, state, [window(buffer.bytes) for buffer in self.io])
        self.executor.reset()

    def run(self, seed: int) -> list[bytes]:
        """All outputs for random inputs."""
        rng = np.random.default_rng(seed)
        for buffer, info in zip(self.io, self.program.inputs, strict=False):
            values = buffer.bytes.view(info.dtype.numpy)
            if values.dtype.kind == "f":
                values[:] = rng.uniform(-1, 1, values.shape)
            else:
                values[:] = rng.integers(-128, 128, values.shape)
        self.executor.run()
        return self.outputs()

    def outputs(self) -> list[bytes]:
        """All outputs as they are."""
        return [buffer.bytes.tobytes() for buffer in self.io[len(self.program.inputs) :]]

    def close(self) -> None:
        self.executor.close()


def prepared(graph: Graph, limit: object, threads: int = 1) -> CompiledGraph | None:
    """The graph within a limit; None where nothing fits it."""
    try:
        return native.prepare(graph, threads, limit=ScratchLimit.of(limit, 10.0 if limit == "least" else None))
    except QnnError as problem:
        if problem.code is not Code.COMMON_MEM_ALLOC:
            raise
        return None


@pytest.mark.parametrize("first", only((SEED,), range(SEED, SEED + NETWORKS, AT_A_TIME)))
@pytest.mark.parametrize("parts", [False, True])
def test_random_networks_by_tiles_have_the_same_bits(first, parts) -> None:
    split = 0
    for seed in range(first, first + AT_A_TIME):
        graph = tile_networks.network(seed, tile_networks.PARTS) if parts else tile_networks.network(seed)
        if graph is None:
            continue
        threads = 1 + seed // 2 % 3
        whole = native.prepare(graph, threads)
        expected = None
        for limit in ("least", int(whole.plan.bytes * 0.8), int(whole.plan.bytes * 0.5)):
            found = prepared(graph, limit, threads)
            if found is None or not found.plan.regions:
                continue
            split += 1
            assert found.plan.bytes <= (whole.plan.bytes if limit == "least" else limit)
            model = Guarded(found.program)
            expected = expected or _expected(whole.program)
            assert [model.run(0), model.run(1)] == expected, f"network {seed} within {limit}: {found.plan.regions}"
            model.close()
    assert split > AT_A_TIME // 2, "networks that are not split prove little"


def _expected(program: Program) -> list[list[bytes]]:
    model = Guarded(program)
    outputs = [model.run(0), model.run(1)]
    model.close()
    return outputs


@pytest.mark.parametrize("order", [(1, 0), (0, 1), (1, 1)])
def test_tiles_over_any_result_of_a_split_have_the_same_bits(order) -> None:
    graph = tile_networks.parted(order)
    whole = native.prepare(graph)
    split = prepared(graph, int(whole.plan.bytes * 0.8))
    assert split is not None
    assert split.plan.regions
    assert _expected(split.program) == _expected(whole.program)


@pytest.mark.parametrize(("width", "pads"), [(3, (0, 0)), (3, (1, 1)), (5, (0, 0)), (3, (2, 2))])
def test_columns_over_rows_of_another_length_have_the_same_bits(width, pads) -> None:
    graph = tile_networks.narrowed(width, pads)
    whole = native.prepare(graph)
    expected = _expected(whole.program)
    for limit in ("least", *(int(whole.plan.bytes * part) for part in (0.3, 0.25, 0.2, 0.18))):
        split = prepared(graph, limit)
        # The least is there; smaller limits may be refused, and whatever is made computes the same.
        assert split is not None or limit != "least"
        if split is not None:
            assert _expected(split.program) == expected, limit


@pytest.mark.parametrize("bytes_", [False, True])
@pytest.mark.parametrize(("size", "resized"), [((48, 6), (48, 12)), ((6, 48), (12, 48)), ((48, 6), (48, 9))])
def test_an_image_resized_in_one_direction_has_the_same_bits(size, resized, bytes_) -> None:
    graph = tile_networks.resized_in_one_direction(size, resized, bytes_)
    whole = native.prepare(graph)
    expected = _expected(whole.program)
    for part in (0.6, 0.4, 0.25):
        split = prepared(graph, int(whole.plan.bytes * part))
        assert split is not None
        assert any(op == "ResizeBilinear" for region in split.plan.regions for op, _ in region.steps)
        assert _expected(split.program) == expected, part


@pytest.mark.parametrize("bytes_", [False, True])
def test_a_repeated_tile_is_one_in_the_program(bytes_) -> None:
    graph = tile_networks.squeezed(bytes_)
    whole, split = native.prepare(graph), native.prepare(graph, limit=ScratchLimit.of("30%"))
    program = split.program
    (repeat,) = program.repeats
    assert program.kernels[program.table[repeat, 0]] == REPEAT
    assert "times=" in describe(program, repeat)
    assert len(program.table) < len(whole.program.table) * 6
    moved = [describe(program, index) for index in range(repeat + 1, len(program.table))]
    assert any("cursor 0+" in text for text in moved)
    model, expected = Guarded(from_bytes(to_bytes(program))), _expected(whole.program)
    assert [model.run(0), model.run(1)] == expected
    model.close()


def test_instructions_of_tiles_run_one_by_one_as_profiles_run_them() -> None:
    graph = tile_networks.squeezed(False)
    program = native.prepare(graph, limit=ScratchLimit.of("30%")).program
    (repeat,), expected = program.repeats, _expected(native.prepare(graph).program)
    model = Guarded(program)
    assert model.run(0) == expected[0]
    mean = len(program.table) - 1
    assert repeat < mean
    # The instructions of the repeated tile run only once: the mean lacks the other tiles until the next whole run.
    for index in range(len(program.table)):
        model.executor.step(index)
    assert model.outputs() != expected[0]
    assert model.run(0) == expected[0]
    model.close()


def test_the_constants_are_those_of_whole_steps() -> None:
    graph = tile_networks.squeezed(True)
    whole, split = native.prepare(graph), native.prepare(graph, limit=ScratchLimit.of("30%"))
    assert split.program.constant_bytes <= whole.program.constant_bytes + 256


def test_two_threads_compute_the_same_tiles() -> None:
    graph = tile_networks.squeezed(False)
    split = native.prepare(graph, 2, limit=ScratchLimit.of("30%"))
    assert split.plan.regions
    model = Guarded(split.program)
    assert [model.run(0), model.run(1)] == _expected(native.prepare(graph).program)
    model.close()


def test_tiles_too_narrow_for_a_tile_have_smaller_ones_with_the_same_bits() -> None:
    graph = tile_networks.narrowed(5, (0, 0))
    whole, split = native.prepare(graph), native.prepare(graph, limit=ScratchLimit.of("30%"))
    assert "depthwise:convolve.4x5s1" in whole.program.kernels
    assert "depthwise:convolve.2x5s1" in split.program.kernels
    assert _expected(split.program) == _expected(whole.program)


@pytest.mark.parametrize("bytes_", [False, True])
def test_instructions_of_one_step_share_the_words_in_which_they_are_alike(bytes_) -> None:
    graph = tile_networks.squeezed(bytes_)
    program = native.prepare(graph, limit=ScratchLimit.of("30%")).program
    assert program.varies
    said: dict[int, set[str]] = {}
    for index, (_, start, _) in enumerate(program.table.tolist()):
        said.setdefault(start, set()).add(describe(program, index))
    assert sum(len(texts) > 1 for texts in said.values()) > 2
    # One executor changes nothing that another one reads.
    models, expected = [Guarded(program), Guarded(program)], _expected(native.prepare(graph).program)
    before = program.words.copy()
    for _ in range(2):
        for seed, model in enumerate(models):
            assert model.run(seed) == expected[seed]
    assert (program.words == before).all()
    for model in models:
        model.close()


def test_an_aborted_run_leaves_nothing_for_the_next() -> None:
    graph = tile_networks.squeezed(True)
    expected = _expected(native.prepare(graph).program)
    program = native.prepare(graph, limit=ScratchLimit.of("30%")).program
    model = Guarded(program)
    for index in program.varies:
        model.executor.step(index)
    assert model.run(1) == expected[1]
    model.close()


def test_only_programs_in_tiles_have_short_tables_and_changing_words() -> None:
    program = native.prepare(tile_networks.squeezed(True)).program
    assert not program.varies
    assert program.table.dtype == np.int64
    split = native.prepare(tile_networks.squeezed(True), limit=ScratchLimit.of("30%")).program
    again = from_bytes(to_bytes(split))
    assert again.table.dtype == split.table.dtype == np.int32
    assert (again.table == split.table).all()


@pytest.mark.parametrize("bytes_", [False, True])
def test_the_effort_of_tiles_counts_the_rows_of_tiles(bytes_) -> None:
    engine = lower.NativeEngine(host())
    plan = Planner(tile_networks.squeezed(bytes_), PlanOptions(), engine).schedule()
    known = 0
    for step in plan.steps:
        effort = engine.effort(step, 1)
        if effort is None:
            continue
        known += 1
        rows = np.arange(step.outputs[0].dims[1] + 1)
        taken = effort(rows)
        assert taken[0] == 0
        assert (np.diff(taken) >= 0).all()
        # Whatever is cut in two takes no less than the whole.
        assert (taken[rows // 2] + taken[rows - rows // 2] >= taken * 0.999).all()
    assert known >= 2


def test_tiles_of_little_work_are_not_shared() -> None:
    graph = tile_networks.squeezed(False)
    whole, split = native.prepare(graph, 2), native.prepare(graph, 2, limit=ScratchLimit.of("30%"))
    shared, alone = (
        {label for label, shares in zip(program.labels, program.table[:, 2], strict=True) if shares == number}
        for program, number in ((whole.program, 2), (split.program, 1))
    )
    assert shared & alone
