"""Real models convert, and their graphs compute what LiteRT computes."""

from pathlib import Path

import numpy as np
import pytest

from frontends.tflite.runners import GraphRunner, LiteRtRunner, random_input
from isthmus.frontends.tflite import load

MODELS = Path(__file__).parents[3] / ".models"
DATA = Path(__file__).parents[2] / "data"
COMPARED = (
    "okay_nabu",
    "dtln_1",
    "dtln_2",
    "precise_vad",
    "face_detection_short_range",
    "efficientnet_lite0",
    "face_detection_full_range_sparse",
    "iris_landmark",
)


def read(name: str) -> bytes:
    path = MODELS / f"{name}.tflite"
    if not path.exists():
        pytest.skip(f"{path.name} has not been fetched")
    return path.read_bytes()


@pytest.mark.parametrize("path", sorted(MODELS.glob("*.tflite")), ids=lambda path: path.stem)
def test_model_converts(path: Path) -> None:
    graph = load(path.read_bytes(), path.stem)
    assert graph.finalized


@pytest.mark.parametrize("name", COMPARED)
def test_model_computes_what_litert_computes(name: str) -> None:
    data = read(name)
    graph = load(data, name)
    rng = np.random.default_rng(0)
    inputs = [random_input(rng, t.dims, t.dtype.numpy) for t in graph.inputs]
    for result, reference in zip(GraphRunner(graph)(*inputs), LiteRtRunner(data)(*inputs), strict=True):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        difference = np.abs(result.astype(np.float64) - reference).max()
        assert difference <= (1e-4 * np.abs(reference).max() if reference.dtype.kind == "f" else 1)


def test_wake_word_is_detected_with_its_state_carried_over() -> None:
    spoken, expected = DATA / "okay_nabu_in_int8.npy", DATA / "okay_nabu_out_uint8_litert.npy"
    if not (spoken.exists() and expected.exists()):
        pytest.skip("the spoken phrase is not there")
    run = GraphRunner(load(read("okay_nabu"), "okay_nabu"))
    reference = np.load(expected).reshape(-1)
    frames = np.load(spoken)[: 3 * len(reference)].reshape(-1, 1, 3, 40)
    probabilities = np.asarray([run(frame)[0].item() for frame in frames])
    # A probability of more than 200 / 255: LiteRT detects the phrase.
    assert reference.max() > 200
    np.testing.assert_array_equal(probabilities, reference)


def test_loop_model_takes_a_batch_that_the_caller_chooses() -> None:
    data = read("precise_vad")
    graph = load(data, "vad", {"serving_default_net_input:0": (3, 29, 13)})
    assert graph.outputs[0].dims == (3, 1)
    x = np.random.default_rng(1).standard_normal((3, 29, 13)).astype(np.float32)
    one_by_one = LiteRtRunner(data)
    reference = np.concatenate([one_by_one(row[None])[0] for row in x])
    np.testing.assert_allclose(GraphRunner(graph)(x)[0], reference, atol=1e-4 * np.abs(reference).max())
