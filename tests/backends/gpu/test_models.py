"""Real models on the GPU backend: the answers of the CPU backend, in floats, in fp16 and in 8 bits.

`make test` runs three of them. `make test-long` runs the models that must work, and of the others those whose shapes
are least like theirs; with `ISTHMUS_GPU_MODELS=all` (`make test-gpu`), all there are. A first run builds their kernels,
which takes PoCL about five seconds of processor time for each model; later ones find them in the cache.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import pytest
from support import opencl_device as opencl_device
from support import stimuli, zoo
from support.oracles import Feeds
from support.suites import only

import isthmus
from isthmus import QnnError

ALL = os.environ.get("ISTHMUS_GPU_MODELS") == "all"
FURTHER = ("kws_fp32", "mixed_ops", "palm_detection_lite", "ppocr_det", "selfie_segmentation")
STEEP = ("pose_landmark_full", "ppocr_det", "selfie_segmentation_landscape")
"""Models whose outputs are off by a great deal where everything is kept in fp16."""
CHOSEN = {key: model for key, model in zoo.MODELS.items() if ALL or model.tier == "core"}
FLOATS = [key for key, model in zoo.MODELS.items() if model.numerics == "float" and (key in CHOSEN or key in FURTHER)]
HALVES = [key for key, model in zoo.MODELS.items() if (key in CHOSEN or key in STEEP) and model.numerics == "float"]
INTEGERS = [key for key, model in CHOSEN.items() if model.numerics == "int8"]
SMALL = ("dtln_1", "kws_fp32")
"""Models that further questions are asked of."""


def inputs(key: str) -> list[Feeds]:
    """Return what a model is asked: sounds, images, text, as its kind expects; twice if it has a state."""
    try:
        return stimuli.stimuli(key)[: 2 if zoo.MODELS[key].state or ALL else 1]
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))


def opened(key: str, backend: str, **more: Any) -> isthmus.Session:
    model = zoo.MODELS[key]
    constants = {name: inputs(key)[0][name] for name in model.constants}
    try:
        return isthmus.Session(zoo.path(key), backend, dict(model.shapes) or None, constants=constants or None, **more)
    except QnnError as refusal:
        if model.tier == "core":
            raise
        pytest.skip(str(refusal))


def answers(key: str, backend: str, **more: Any) -> list[dict[str, np.ndarray]]:
    """Return what a model answers, run by run: its state lasts in between."""
    fixed = zoo.MODELS[key].constants
    with opened(key, backend, **more) as session:
        return [
            session.run({name: array for name, array in feeds.items() if name not in fixed}) for feeds in inputs(key)
        ]


@cache
def expected(key: str) -> list[dict[str, np.ndarray]]:
    """The answers of the CPU backend."""
    return answers(key, "cpu")


def difference(key: str, **more: Any) -> float:
    """The largest difference between the backends, as a part of the largest value."""
    worst = 0.0
    for one, other in zip(expected(key), answers(key, "gpu", **more), strict=True):
        for name, right in one.items():
            assert np.isfinite(other[name]).all() or not np.isfinite(right).all()
            scale = np.abs(right.astype(np.float64)).max(initial=0)
            apart = np.abs(right.astype(np.float64) - other[name].astype(np.float64)).max(initial=0)
            worst = max(worst, float(apart / max(scale, 1e-6)))
    return worst


@pytest.mark.parametrize("key", only(SMALL, FLOATS))
def test_a_float_model_answers_as_on_the_cpu(key) -> None:
    assert difference(key) <= 1e-3


@pytest.mark.parametrize("key", only(SMALL, HALVES))
def test_a_float_model_kept_in_fp16_answers_nearly_as_on_the_cpu(key) -> None:
    assert difference(key, config={"precision_mode": "fp16"}) <= 2e-2


@pytest.mark.parametrize("key", only(("kws_qdq",), INTEGERS))
def test_an_integer_model_answers_within_one_step(key) -> None:
    model = zoo.MODELS[key]
    for one, other in zip(expected(key), answers(key, "gpu"), strict=True):
        for name, right in one.items():
            apart = np.abs(right.astype(np.float64) - other[name].astype(np.float64)).max(initial=0)
            assert apart <= model.step * 1.001


def test_without_node_optimisations_there_are_more_launches_and_the_same_results() -> None:
    key, launches = "dtln_1", {}
    for disabled in (False, True):
        with opened(key, "gpu", config={"disable_node_optimizations": disabled}) as session:
            launches[disabled] = len(session.graph.driver.program.launches)
    assert launches[True] > launches[False]
    assert difference(key, config={"disable_node_optimizations": True}) <= 1e-3


@pytest.mark.parametrize("key", SMALL)
def test_without_memory_optimisations_there_is_more_scratch_and_the_same_results(key) -> None:
    scratch = {}
    for disabled in (False, True):
        with opened(key, "gpu", config={"disable_memory_optimizations": disabled}) as session:
            scratch[disabled] = session.info.memory.scratch_bytes
    assert scratch[True] > scratch[False]
    assert difference(key, config={"disable_memory_optimizations": True}) <= 1e-3


def test_a_session_says_what_it_copied_and_used_in_place() -> None:
    with opened("dtln_1", "gpu") as session:
        session.run()
        stats = session.graph_stats
        shares = "opencl shared" in stats.in_place_bytes
        assert stats.copied_bytes == (0 if shares else session.info.io_bytes)
        assert sum(stats.in_place_bytes.values()) == (session.info.io_bytes if shares else 0)
