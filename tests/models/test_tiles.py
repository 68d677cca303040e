"""Real models within limits on scratch: every output byte is that of the model without a limit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support import zoo
from support.suites import MODELS, only

from isthmus.backends.seam import native, planned
from isthmus.backends.seam.planned import plan
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.lowering.emitter import Emitter
from isthmus.engine.native.program import Program
from isthmus.engine.native.serialization import to_bytes
from isthmus.errors import Code, QnnError
from isthmus.frontends import load
from isthmus.memory import host
from isthmus.prepare import PlanOptions, inplace, layout, planner
from isthmus.prepare.schedule import Repeat, RowRange
from isthmus.prepare.tiling import ScratchLimit
from isthmus.prepare.tiling import step_table as base

LEFT = {
    "efficientnet_lite0": 0.12, "face_landmark": 0.23, "hand_landmark_lite": 0.15, "iris_landmark": 0.5,
    "palm_detection_full": 0.32, "pose_landmark_full": 0.28, "ppocr_det": 0.40, "ppocr_rec": 0.60,
}  # fmt: skip
"""What is left of the scratch of some models at the least; a little more than measured."""
LIMITS = {
    "efficientnet_lite0": "25%", "hand_landmark_full": "25%", "minilm_l3": "59%", "palm_detection_full": "50%",
    "pose_detection": "25%", "selfie_segmentation": "55%",
}  # fmt: skip
"""Other limits: what is about free, and what the least does not reach since it costs more."""
WHOLE = {
    "alexa", "dtln_1", "dtln_2", "hey_jarvis", "hey_mycroft", "nsnet2", "nsnet2_48k", "okay_nabu", "precise_vad",
    "silero_vad", "silero_vad_16k", "silero_vad_16k_op15", "silero_vad_16k_sequence", "silero_vad_half",
    "silero_vad_op18_ifless",
}  # fmt: skip
"""Models of sounds, of which nothing need be split."""


def _graph(key):
    model = zoo.MODELS[key]
    constants = {name: np.int64(value) for name, value in model.constants.items()}
    try:
        return load(zoo.path(key), model.shapes, constants)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


def _outputs(program: Program, seed: int) -> list[bytes]:
    pools = [host(max(size, 1), program.alignment) for size in (program.scratch_bytes, program.state_bytes)]
    io = [host(info.nbytes, 64) for info in (*program.inputs, *program.outputs)]
    executor = Executor(program, pools[0].window(), pools[1].window(), [buffer.window() for buffer in io])
    executor.reset()
    rng = np.random.default_rng(seed)
    for buffer, info in zip(io, program.inputs, strict=False):
        values = buffer.array[: info.nbytes].view(info.dtype.numpy)
        values[:] = rng.uniform(-1, 1, values.shape) if values.dtype.kind == "f" else rng.integers(0, 99, values.shape)
    for _ in range(2):
        executor.run()
    executor.close()
    return [buffer.array.tobytes() for buffer in io[len(program.inputs) :]]


@pytest.mark.parametrize("key", only((*MODELS, "face_detection_full_range_sparse"), zoo.MODELS))
def test_models_have_the_same_bits_within_a_limit(key) -> None:
    graph = _graph(key)
    whole = native.prepare(graph, options=PlanOptions(winograd=False))
    expected = _outputs(whole.program, 1)
    for limit in ("least", LIMITS[key]) if key in LIMITS else ("least",):
        split = native.prepare(graph, limit=ScratchLimit.of(limit))
        left = split.program.scratch_bytes / max(whole.program.scratch_bytes, 1)
        assert left <= (LEFT.get(key, 1.0) if limit == "least" else float(limit[:-1]) / 100)
        assert split.plan.regions or (key in WHOLE and split.program.scratch_bytes == whole.program.scratch_bytes)
        if split.plan.regions:
            assert _outputs(split.program, 1) == expected, f"within {limit}: {split.plan.regions}"
            grown = split.program.words.nbytes - whole.program.words.nbytes
            assert limit != "least" or grown <= 0.1 * (whole.program.scratch_bytes - split.program.scratch_bytes)


@pytest.mark.parametrize("key", ["kws_fp32", "kws_qdq"])
def test_inputs_and_outputs_in_scratch_fit_limits_of_all_sizes(key) -> None:
    graph = _graph(key)

    def scratch(limit: int | None) -> int:
        expected = None if limit is None else ScratchLimit.of(limit)
        return plan(graph, 1, 128, expected, PlanOptions(io_in_scratch=True)).schedule.scratch_bytes

    with pytest.raises(QnnError) as refused:
        scratch(128)
    assert refused.value.code is Code.COMMON_MEM_ALLOC
    needed, whole = int(refused.value.hint.split()[1].replace(",", "")), scratch(None)
    assert needed < whole, "tiles save nothing"
    for limit in (needed, (needed + whole) // 2, whole - 1, whole, whole + 1):
        assert scratch(limit) <= limit
    with pytest.raises(QnnError, match=f"{needed:,} bytes"):
        scratch(needed - 1)


@pytest.fixture
def without_tiles(monkeypatch):
    """Make everything fail that is part of tiling."""

    def fail(*arguments, **named):
        raise AssertionError("a model without a limit has nothing to do with tiles")

    for place, name in (
        (planned, "schedule_within"), (planner, "depth_first"), (layout, "move_together"), (inplace, "OverlayBlock"),
        (base, "row_map"), (base, "mean_map"), (Emitter, "begin_repeat"),
    ):  # fmt: skip
        monkeypatch.setattr(place, name, fail)
    # A step on a tile, and a repetition, cannot even be made.
    monkeypatch.setattr(RowRange, "__init__", fail)
    monkeypatch.setattr(Repeat, "__init__", fail)


@pytest.mark.parametrize("key", only(MODELS, (model.key for model in zoo.CORE)))
def test_without_a_limit_a_program_is_what_it_is_where_tiles_cannot_be(key, request) -> None:
    graph = _graph(key)
    after = native.prepare(graph)
    request.getfixturevalue("without_tiles")
    before = native.prepare(graph)
    assert not before.program.repeats
    assert to_bytes(before.program) == to_bytes(after.program)
    assert replace(before.plan, seconds=0) == replace(after.plan, seconds=0)
