"""Real models through the delegate give LiteRT's own answers, streams over their whole length; most nodes are taken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter
from models.test_models import assert_answers, available, programs
from support import compilation, oracles, stimuli, zoo
from support.oracles import Feeds
from support.suites import MODELS, only

from delegate.harness import LoggingDelegate
from isthmus.delegate import set_custom_allocation
from isthmus.engine.native.target import host

KEYS = [model.key for model in zoo.MODELS.values() if model.kind == "tflite"]
CORE = [model.key for model in zoo.CORE if model.kind == "tflite"]
DYNAMIC = ("precise_vad",)
"""Models with a loop, after which shapes are open: what comes behind it stays."""


@pytest.fixture(scope="module", autouse=True)
def kernels(request: pytest.FixtureRequest) -> None:
    """The kernels of all models that this run asks for, compiled at once."""
    asked = [getattr(item, "callspec", None) for item in request.session.items if item.path == Path(__file__)]
    keys = sorted({call.params["key"] for call in asked if call is not None})
    compilation.compile_for(program for key in keys for program in programs(key, host().name))


def opened(key: str, delegate: LoggingDelegate, threads: int = 1) -> Interpreter:
    """A model of the zoo in the stock interpreter, XNNPACK for what stays."""
    model = zoo.MODELS[key]
    with oracles.silenced():
        interpreter = Interpreter(str(zoo.path(key)), experimental_delegates=[delegate], num_threads=threads)
        for detail in interpreter.get_input_details():
            if detail["name"] in model.shapes:
                interpreter.resize_tensor_input(detail["index"], model.shapes[detail["name"]])
        interpreter.allocate_tensors()
    return interpreter


def answers(interpreter: Interpreter, feeds: Sequence[Feeds]) -> list[Feeds]:
    inputs = {detail["name"]: detail["index"] for detail in interpreter.get_input_details()}
    outputs = {detail["name"]: detail["index"] for detail in interpreter.get_output_details()}
    given = []
    for feed in feeds:
        for name, value in feed.items():
            interpreter.set_tensor(inputs[name], value)
        interpreter.invoke()
        given.append({name: interpreter.get_tensor(index) for name, index in outputs.items()})
    return given


@pytest.mark.parametrize("key", only(MODELS, KEYS))
def test_a_delegated_model_matches_litert(key: str, make) -> None:
    model, feeds, expected = available(key)
    delegate = make("CPU")
    interpreter = opened(key, delegate)
    assert_answers(model, answers(interpreter, feeds), expected, host().name)
    taken, nodes = (sum(each[index] for each in delegate.taken) for index in (0, 1))
    print(f"{key}: {taken} of {nodes} nodes delegated")
    assert delegate.stats.copied_bytes == 0, "the interpreter's own memory was used"
    if key not in DYNAMIC:
        assert taken / nodes >= 0.95
        assert delegate.taken[0][2] == 1, "one partition"
    else:
        assert "it runs other subgraphs" in delegate.delegations[0].staying.values()
    del interpreter


@pytest.mark.parametrize("key", only(MODELS, CORE))
@pytest.mark.parametrize("backend", ["HTP", "LPAI"])
def test_a_model_delegated_to_an_accelerator_matches_litert(key: str, backend: str, make) -> None:
    model, feeds, expected = available(key)
    delegate = make(backend)
    interpreter = opened(key, delegate)
    assert_answers(model, answers(interpreter, feeds), expected, host().name)
    assert delegate.stats.copied_bytes > 0, "memory of the interpreter's is copied there"
    del interpreter


@pytest.mark.parametrize("key", only(MODELS, ("okay_nabu", "dtln_1", "efficientnet_lite0")))
def test_a_model_in_shared_memory_matches_litert_without_a_copy(key: str, make) -> None:
    model, feeds, expected = available(key)
    delegate = make("HTP")
    interpreter = opened(key, delegate)
    memories = []
    for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        nbytes = int(np.prod(detail["shape"])) * np.dtype(detail["dtype"]).itemsize
        memories.append(delegate.alloc_custom_mem(nbytes))
        set_custom_allocation(interpreter, detail["index"], memories[-1])
    interpreter.allocate_tensors()
    assert_answers(model, answers(interpreter, feeds), expected, host().name)
    assert delegate.stats.copied_bytes == 0
    del interpreter
    for memory in memories:
        delegate.free_custom_mem(memory)


def test_several_threads_give_the_same_bits(make) -> None:
    _, feeds, _ = available("face_detection_short_range")
    one, two = (opened("face_detection_short_range", make("CPU"), threads) for threads in (1, 2))
    for alone, together in zip(answers(one, feeds), answers(two, feeds), strict=True):
        for name, value in alone.items():
            np.testing.assert_array_equal(value, together[name])
    del one, two


def test_a_model_given_as_bytes_is_delegated_as_well(make) -> None:
    key = "okay_nabu"
    try:
        content = zoo.path(key).read_bytes()
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    delegate = make("CPU")
    interpreter = Interpreter(model_content=content, experimental_delegates=[delegate])
    interpreter.allocate_tensors()
    feeds = stimuli.stimuli(key)[:20]
    assert delegate.taken[0][:2] == (61, 61)
    assert len(answers(interpreter, feeds)) == 20
    del interpreter
