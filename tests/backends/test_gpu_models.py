"""Real models on the GPU backend: the answers of the CPU backend, in floats, in halves and in 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zoo

import isthmus
from isthmus import QnnError
from isthmus.tools.run import generated_inputs

pytest.importorskip("pyopencl", reason="the package pyopencl is not installed")

FLOATS = [key for key, model in zoo.MODELS.items() if model.numerics == "float"]
INTEGERS = [key for key, model in zoo.MODELS.items() if model.numerics == "int8"]
SMALL = ("dtln_1", "kws_fp32", "face_detection_short_range", "precise_vad")
"""Models that the longer questions are asked of."""


def opened(key: str, backend: str, **more: Any) -> isthmus.Session:
    model = zoo.MODELS[key]
    try:
        path = zoo.path(key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    constants = {name: np.array(value, np.int64) for name, value in model.constants.items()}
    try:
        return isthmus.Session(path, backend, dict(model.shapes) or None, constants=constants or None, **more)
    except QnnError as refusal:
        if model.tier == "core":
            raise
        pytest.skip(str(refusal))


def answers(key: str, backend: str, runs: int = 2, **more: Any) -> list[dict[str, np.ndarray]]:
    """What a model answers to the same inputs, run by run: state lasts in between."""
    with opened(key, backend, **more) as session:
        found = []
        for seed in range(runs):
            feeds = generated_inputs(session.inputs, skip={})
            for name, array in feeds.items():
                if array.dtype.kind == "f":
                    feeds[name] = np.roll(array, seed)
            found.append(session.run(feeds))
        return found


def difference(key: str, **more: Any) -> float:
    """The largest difference between the backends, as a part of the largest value."""
    worst = 0.0
    for one, other in zip(answers(key, "cpu"), answers(key, "gpu", **more), strict=True):
        for name, expected in one.items():
            assert np.isfinite(other[name]).all() or not np.isfinite(expected).all()
            scale = np.abs(expected.astype(np.float64)).max(initial=0)
            apart = np.abs(expected.astype(np.float64) - other[name].astype(np.float64)).max(initial=0)
            worst = max(worst, float(apart / max(scale, 1e-6)))
    return worst


@pytest.mark.parametrize("key", FLOATS)
def test_a_float_model_answers_as_on_the_cpu(key):
    assert difference(key) <= 1e-3


@pytest.mark.parametrize("key", SMALL)
def test_a_float_model_kept_in_halves_answers_nearly_as_on_the_cpu(key):
    assert difference(key, config={"precision_mode": "fp16"}) <= 2e-2


@pytest.mark.parametrize("key", INTEGERS)
def test_an_integer_model_answers_within_one_step(key):
    model = zoo.MODELS[key]
    for one, other in zip(answers(key, "cpu"), answers(key, "gpu"), strict=True):
        for name, expected in one.items():
            apart = np.abs(expected.astype(np.float64) - other[name].astype(np.float64)).max(initial=0)
            assert apart <= model.step * 1.001


@pytest.mark.parametrize("key", SMALL[:2])
def test_without_node_optimisations_there_are_more_launches_and_the_same_results(key):
    launches = {}
    for disabled in (False, True):
        with opened(key, "gpu", config={"disable_node_optimizations": disabled}) as session:
            launches[disabled] = len(session.graph.driver.program.launches)
    assert launches[True] > launches[False]
    assert difference(key, config={"disable_node_optimizations": True}) <= 1e-3


@pytest.mark.parametrize("key", SMALL[:2])
def test_without_memory_optimisations_there_is_more_scratch_and_the_same_results(key):
    scratch = {}
    for disabled in (False, True):
        with opened(key, "gpu", config={"disable_memory_optimizations": disabled}) as session:
            scratch[disabled] = session.info.memory.scratch_bytes
    assert scratch[True] > scratch[False]
    assert difference(key, config={"disable_memory_optimizations": True}) <= 1e-3


def test_a_session_says_what_it_copied_and_used_in_place():
    with opened("dtln_1", "gpu") as session:
        session.run()
        stats = session.graph_stats
        shares = "opencl shared" in stats.in_place_bytes
        assert stats.copied_bytes == (0 if shares else session.info.io_bytes)
        assert sum(stats.in_place_bytes.values()) == (session.info.io_bytes if shares else 0)
