"""Real models within limits on scratch: every output byte is that of the model without a limit."""

from __future__ import annotations

import numpy as np
import pytest
import zoo

from isthmus.backends import native
from isthmus.engine.native.executor import Executor
from isthmus.engine.native.program import Program
from isthmus.errors import Code, QnnError
from isthmus.frontends import load
from isthmus.memory import host
from isthmus.prepare.strips import ScratchLimit

LEFT = {
    "efficientnet_lite0": 0.12, "face_landmark": 0.23, "hand_landmark_lite": 0.15, "palm_detection_full": 0.32,
    "pose_landmark_full": 0.28, "ppocr_det": 0.40,
}  # fmt: skip
"""What is left of the scratch of some models at the least; a little more than measured."""


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


@pytest.mark.parametrize("key", zoo.MODELS)
def test_models_have_the_same_bits_within_a_limit(key):
    graph = _graph(key)
    whole = native.prepare(graph)
    expected = _outputs(whole.program, 1)
    for limit in ("least", "50%") if key in LEFT else ("least",):
        try:
            split = native.prepare(graph, limit=ScratchLimit.of(limit))
        except QnnError as refused:
            if refused.code is Code.COMMON_MEM_ALLOC:
                continue
            raise
        left = split.program.scratch_bytes / max(whole.program.scratch_bytes, 1)
        assert left <= (LEFT.get(key, 1.0) if limit == "least" else 0.5)
        if split.plan.regions:
            assert _outputs(split.program, 1) == expected, f"within {limit}: {split.plan.regions}"
            grown = split.program.words.nbytes - whole.program.words.nbytes
            assert limit != "least" or grown <= 0.1 * (whole.program.scratch_bytes - split.program.scratch_bytes)
