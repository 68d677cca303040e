"""Real models give the answers of the runtimes people use today.

Full int8 models: at most one quantization step away, and 99.9 % of all elements the same. Float: within
1e-4 of the largest value of the reference. Models of the `core` tier must run; one of the `extra` tier may be
refused, which is skipped with the refusal as the reason, but never be wrong. Whatever opens has a plan of scratch that
is proved to be the smallest.

Each model is run on every target of this machine; in `make test`, small ones on the best one, and two of these on
the portable one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import compilation, oracles, stimuli, zoo
from support.oracles import Array, Feeds
from support.suites import MODELS, long, only

import isthmus
from isthmus.backends.seam import native
from isthmus.engine.native.program import Program
from isthmus.engine.native.target import TARGETS, by_name, host, portable, runnable
from isthmus.frontends import load
from isthmus.prepare.schedule import Plan

SAME_SHARE = 0.999
CORE = [model.key for model in zoo.CORE]

STATEFUL = ("okay_nabu", "alexa", "hey_jarvis", "hey_mycroft")

CODE_PATHS = [target.name for target in TARGETS if runnable(target)]
SHORT = [*((key, host().name) for key in MODELS), *((key, portable().name) for key in ("okay_nabu", "kws_fp32"))]
ANSWERED = [pair if pair in SHORT else long(*pair) for pair in product(zoo.MODELS, CODE_PATHS)]

ROUNDINGS = {"portable": 2}
"""The roundings of a multiply-add where it is not fused: the reference has half as many."""


@functools.cache
def available(key: str) -> tuple[zoo.Model, list[Feeds], list[Feeds]]:
    """A model with its stimuli and the reference's answers to them."""
    model = zoo.MODELS[key]
    try:
        feeds = stimuli.stimuli(key)
        oracle = oracles.reference(model)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    return model, feeds, [oracle.run(feed) for feed in feeds]


def open_session(model: zoo.Model, feed: Feeds, threads: int = 1) -> isthmus.Session:
    options: dict[str, Any] = {"shapes": dict(model.shapes) or None, "threads": threads}
    if model.constants:
        options["constants"] = {name: feed[name] for name in model.constants}
    try:
        return isthmus.Session(zoo.path(model.key), backend="cpu", **options)
    except isthmus.QnnError as refusal:
        if model.tier == "extra":
            pytest.skip(f"refused: {refusal}")
        raise


@pytest.fixture(scope="session", autouse=True)
def kernels(request: pytest.FixtureRequest) -> None:
    """The kernels of all models that this run asks for, compiled at once."""
    asked = [getattr(item, "callspec", None) for item in request.session.items if item.path == Path(__file__)]
    compilation.compile_for(
        program
        for key, path in sorted({(c.params["key"], c.params.get("path", host().name)) for c in asked if c is not None})
        for program in programs(key, path)
    )


def programs(key: str, path: str) -> Iterator[Program]:
    """Yield what a model runs on a code path, if it can be had and prepared; its tests say why otherwise."""
    model = zoo.MODELS[key]
    with suppress(zoo.Unavailable, isthmus.QnnError):
        constants = {name: stimuli.stimuli(key)[0][name] for name in model.constants}
        graph = load(zoo.path(key), dict(model.shapes) or None, constants or None)
        yield native.prepare(graph, target=by_name(path)).program


def run_all(session: isthmus.Session, model: zoo.Model, feeds: Sequence[Feeds]) -> list[Feeds]:
    """The answers to each feed in turn; what was bound as a constant is no input any more."""
    return [session.run({name: value for name, value in feed.items() if name not in model.constants}) for feed in feeds]


def stack(answers: Sequence[Feeds], name: str) -> Array:
    return np.stack([answer[name] for answer in answers])


def assert_within_a_step(ours: Array, reference: Array, step: float, name: str) -> None:
    steps = np.rint(np.abs(ours.astype(np.float64) - reference.astype(np.float64)) / step)
    same = float(np.mean(steps == 0))
    reported = f"{name}: up to {steps.max():.0f} steps apart, {100 * same:.2f} % of {steps.size} elements the same"
    assert steps.max() <= 1, reported
    assert same >= SAME_SHARE, reported


def assert_close(ours: Array, reference: Array, tolerance: float, name: str) -> None:
    if not np.issubdtype(reference.dtype, np.floating):
        np.testing.assert_array_equal(ours, reference, err_msg=name)
        return
    largest = float(np.abs(reference).max())
    difference = float(np.abs(ours.astype(np.float64) - reference).max())  # NaN fails the comparison below
    assert difference <= tolerance * largest, (
        f"{name}: {difference:.3g} apart, {difference / largest:.3g} of the largest value {largest:.3g}"
    )


def assert_answers(model: zoo.Model, given: Sequence[Feeds], expected: Sequence[Feeds], path: str) -> None:
    """Compare answers of a target with the reference's, by the rules of the model's numbers."""
    assert set(given[0]) == set(expected[0])
    for name in expected[0]:
        ours, reference = stack(given, name), stack(expected, name)
        assert ours.dtype == reference.dtype
        assert ours.shape == reference.shape
        if model.numerics == "int8":
            assert_within_a_step(ours, reference, model.step, name)
        else:
            assert_close(ours, reference, model.tolerance * ROUNDINGS.get(path, 1), name)


def assert_least_scratch(plan: Plan) -> None:
    assert plan.status == "optimal", "the plan is not proved"
    assert plan.bytes == plan.lower_bound
    assert plan.bytes <= plan.greedy_bytes


@pytest.mark.parametrize(("key", "path"), ANSWERED)
def test_answers_are_those_of_the_reference_runtime(key: str, path: str, take_code_path: Callable[[str], None]) -> None:
    take_code_path(path)
    model, feeds, expected = available(key)
    with open_session(model, feeds[0]) as session:
        assert_least_scratch(session.plan)
        answers = run_all(session, model, feeds)
    assert_answers(model, answers, expected, path)


@pytest.mark.parametrize("key", only(MODELS, CORE))
def test_inputs_and_outputs_are_views_with_the_files_own_names_shapes_and_types(key: str) -> None:
    model, feeds, expected = available(key)
    with open_session(model, feeds[0]) as session:
        assert {n: (v.shape, v.dtype) for n, v in session.inputs.items()} == {
            n: (v.shape, v.dtype) for n, v in feeds[0].items()
        }
        assert {n: (v.shape, v.dtype) for n, v in session.outputs.items()} == {
            n: (v.shape, v.dtype) for n, v in expected[0].items()
        }
        for name, value in feeds[0].items():
            session.inputs[name][...] = value
        session.run()
        in_place = {name: value.copy() for name, value in session.outputs.items()}
        session.reset()
        copied = session.run(feeds[0])
    for name, value in copied.items():
        np.testing.assert_array_equal(in_place[name], value)


@pytest.mark.parametrize("key", only(MODELS, CORE))
def test_two_threads_give_the_same_bits_as_one(key: str) -> None:
    model, feeds, _ = available(key)
    with open_session(model, feeds[0], threads=1) as one, open_session(model, feeds[0], threads=2) as two:
        for alone, together in zip(run_all(one, model, feeds), run_all(two, model, feeds), strict=True):
            for name in alone:
                np.testing.assert_array_equal(alone[name], together[name], err_msg=name)


@pytest.mark.parametrize("key", only(MODELS, STATEFUL))
def test_a_stream_repeated_after_reset_gives_the_same_answers(key: str) -> None:
    model, feeds, expected = available(key)
    with open_session(model, feeds[0]) as session:
        first = run_all(session, model, feeds)
        session.reset()
        again = run_all(session, model, feeds)
    for name in expected[0]:
        np.testing.assert_array_equal(stack(first, name), stack(again, name))
        assert len(np.unique(stack(first, name))) > 5, "the stimulus does not speak to the model"


def test_the_wake_word_gives_the_recorded_answers() -> None:
    """Even where LiteRT is not installed: its answers to the spoken phrase were kept."""
    model = zoo.MODELS["okay_nabu"]
    try:
        zoo.path(model.key)
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    frames = np.load(stimuli.DATA / "okay_nabu_in_int8.npy")
    recorded = np.load(stimuli.DATA / "okay_nabu_out_uint8_litert.npy")
    feeds: list[Feeds] = [
        {"serving_default_input_audio:0": frames[3 * step : 3 * step + 3][None]} for step in range(len(recorded))
    ]
    with open_session(model, feeds[0]) as session:
        answers = run_all(session, model, feeds)
    assert_within_a_step(stack(answers, "StatefulPartitionedCall:0").reshape(-1), recorded, model.step, "output")
