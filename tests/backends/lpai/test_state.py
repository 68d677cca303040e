"""State lives in persistent memory only: it survives garbage in scratch, starts over on reset, is each graph's own."""

from pathlib import Path

import numpy as np
import pytest
from support import zoo

from backends.lpai.harness import count, counter, ddr, ready, running
from isthmus import memory, qnn
from isthmus.qnn import lpai

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="module")
def spoken():
    """The features of the spoken phrase, three frames a step, and what LiteRT heard."""
    try:
        path = zoo.path("okay_nabu")
    except zoo.Unavailable as reason:
        pytest.skip(str(reason))
    features = np.load(DATA / "okay_nabu_in_int8.npy")
    answers = np.load(DATA / "okay_nabu_out_uint8_litert.npy").reshape(-1)
    return path, features[: len(answers) * 3].reshape(len(answers), 1, 3, 40), answers


@pytest.mark.parametrize("config", [None, {"lpai_backend": {"enable_hw_ver": "v4"}}])
def test_the_wake_word_is_detected_with_garbage_in_scratch_between_executions(spoken, config) -> None:
    path, frames, expected = spoken
    garbage = np.random.default_rng(7)
    with qnn.Backend("lpai", config) as backend:
        graph = backend.create_context().compose(path)
        scratch, _ = ready(backend, graph)
        answers = []
        for frame in frames:
            scratch.array[:] = garbage.integers(0, 256, scratch.nbytes, np.uint8)
            graph.inputs["serving_default_input_audio:0"][...] = frame
            graph.execute()
            answers.append(int(graph.outputs["StatefulPartitionedCall:0"][0, 0]))
        assert graph.stats.copied_bytes == 0
    assert np.array_equal(answers, expected)
    assert max(answers) / 255 > 0.95, "the phrase was spoken"


def test_the_wake_word_is_detected_when_scratch_is_replaced_before_every_execution(spoken) -> None:
    path, frames, expected = spoken
    with qnn.Backend("lpai") as backend:
        graph = backend.create_context().compose(path)
        scratch, _ = ready(backend, graph)
        buffers = [scratch, memory.host(scratch.nbytes, 128)]
        answers = []
        for step, frame in enumerate(frames):
            graph.set_config(lpai.SCRATCH_MEM, ddr(buffers[step % 2]))
            buffers[1 - step % 2].array[:] = 0xA5
            graph.inputs["serving_default_input_audio:0"][...] = frame
            graph.execute()
            answers.append(int(graph.outputs["StatefulPartitionedCall:0"][0, 0]))
    assert np.array_equal(answers, expected)


def test_reset_sets_the_initial_state() -> None:
    with running() as graph:
        assert [count(graph, 1), count(graph, 1)] == [4, 6]
        graph.reset()
        assert count(graph, 1) == 4
        graph.set_config(lpai.RESET_STATE, None)
        assert count(graph, 1) == 4


@pytest.mark.parametrize("contexts", [1, 2])
def test_two_graphs_have_two_states(contexts) -> None:
    with qnn.Backend("lpai") as backend:
        context = backend.create_context()
        graphs = [counter(context if contexts == 1 else backend.create_context(), name) for name in ("first", "second")]
        for graph in graphs:
            ready(backend, graph)
        assert [count(graphs[i], value) for i, value in ((0, 1), (1, 10), (0, 1), (1, 10))] == [4, 22, 6, 42]
        graphs[0].reset()
        assert [count(graph, 1) for graph in graphs] == [4, 44]


def test_state_changes_only_in_persistent_memory() -> None:
    with qnn.Backend("lpai") as backend:
        graph = counter(backend.create_context())
        _, persistent = ready(backend, graph)
        before = persistent.array.copy()
        count(graph, 1)
        assert not np.array_equal(persistent.array, before)
        persistent.array[:] = before
        assert count(graph, 1) == 4, "with the old bytes back, the old result"
