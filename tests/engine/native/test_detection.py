"""Kernels whose number of results depends on the data, regions of images, and random numbers."""

from __future__ import annotations

import numpy as np
import pytest

from engine.native.harness import ON_TARGETS, Result, check, make_step, run, targets
from isthmus.errors import QnnError
from isthmus.graph import DataType
from isthmus.graph.ops.sampling import MAX_SAMPLES

pytestmark = ON_TARGETS
RNG = np.random.default_rng(11)
I32, F32 = DataType.INT_32, DataType.FLOAT_32


def boxes(*dims: int) -> np.ndarray:
    """Boxes that overlap, with corners in any order, and two of them equal."""
    corners = RNG.uniform(0, 4, (*dims, 4)).astype(np.float32)
    corners[..., 1, :] = corners[..., 0, :]
    return corners


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("room", [3, 60])
def test_boxes_are_suppressed_by_better_ones_of_their_class(most: int, room: int) -> None:
    scores = RNG.integers(0, 20, (2, 3, 20)).astype(np.float32) / 20
    params = {"iou_threshold": 0.3, "score_threshold": 0.25, "max_boxes_selected": most}
    rows, found = check(
        "NonMaxSuppression", [boxes(2, 20), scores], params, [Result((room, 3), I32), Result((1,), I32)]
    )
    assert (rows[found[0] :] == -1).all()
    assert (rows[: found[0]] >= 0).all()


@pytest.mark.parametrize(
    "params",
    [
        {}, {"limit": 3}, {"limit": 0}, {"skipped_class": 1}, {"nms_eta": 0.7, "iou_threshold": 0.9},
        {"soft_nms_sigma": 0.5, "score_threshold": 0.2},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("room", [5, 50])
def test_the_best_boxes_of_all_classes_are_selected(params: dict, room: int) -> None:
    scores = RNG.integers(0, 40, (2, 12, 3)).astype(np.float32) / 40
    results = [Result((2, room)), Result((2, room)), Result((2, room)), Result((2,))]
    indices, best, _, found = check(
        "SelectBoxes", [boxes(2, 12), scores], {"iou_threshold": 0.4, "score_threshold": 0.3} | params, results
    )
    for batch in range(2):
        assert (indices[batch, found[batch] :] == 12).all()
        assert (np.diff(best[batch, : found[batch]]) <= 0).all()


@pytest.mark.parametrize("dims", [(7,), (3, 5), (2, 3, 4, 2)])
@pytest.mark.parametrize("room", [2, 48])
def test_coordinates_of_what_is_not_zero_come_in_order(dims: tuple[int, ...], room: int) -> None:
    x = RNG.random(dims) > 0.5
    (rows,) = check("NonZero", [x], {}, [Result((room, len(dims)), I32)])
    found = np.argwhere(x)[:room]
    np.testing.assert_array_equal(rows[: len(found)], found)
    assert (rows[len(found) :] == -1).all()


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("samples", [(0, 0), (2, 3)])
def test_regions_are_sampled_inside_and_outside_the_image(aligned: bool, largest: bool, samples: tuple) -> None:
    regions = np.array(
        [[0, 0, 7, 9], [1.3, 2.6, 5.1, 3.2], [-4, -3, 2, 1], [6, 8, 20, 30], [3, 3, 3, 3], [5, 4, 2, 1]], np.float32
    )
    params = {
        "img_size_ratio": [2.0, 1.0],
        "num_samples_y": samples[0],
        "num_samples_x": samples[1],
        "aligned": aligned,
        "largest_sample": largest,
    }
    images = RNG.standard_normal((3, 6, 8, 5)).astype(np.float32)
    index = np.array([0, 2, 1, 1, 0, 2], np.int32)
    check("RoiAlign", [images, regions, index], params, [Result((6, 3, 2, 5))], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", ["y", "x"])
def test_more_samples_than_a_forged_program_could_have_are_refused(axis: str) -> None:
    params = {"img_size_ratio": [1.0, 1.0], f"num_samples_{axis}": MAX_SAMPLES + 1}
    operands = [np.ones((1, 4, 4, 1), np.float32), np.ones((1, 4), np.float32), np.zeros(1, np.int32)]
    with pytest.raises(QnnError, match=f"num_samples_{axis} {MAX_SAMPLES + 1} must be at most {MAX_SAMPLES}"):
        make_step("RoiAlign", operands, params, [Result((1, 2, 2, 1))])


def test_a_region_of_an_image_that_is_not_there_is_reported() -> None:
    from engine.native.harness import bind

    step, arrays = make_step(
        "RoiAlign", [np.ones((2, 4, 4, 1), np.float32), np.ones((1, 4), np.float32), np.array([5], np.int32)],
        {"img_size_ratio": [1.0, 1.0]}, [Result((1, 2, 2, 1))],
    )  # fmt: skip
    machine = bind(step)
    machine.run_on(arrays)
    assert machine.fault


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike"])
def test_random_numbers_have_the_bits_of_the_reference_on_every_target(op: str) -> None:
    dims = np.array([100, 101], np.int32)
    for seed, execution in ((0.0, 0), (7.5, 3), (-1.0, 2**31 - 1)):
        operands = [dims, np.float32([seed]), np.int32([execution])]
        (numbers,) = check(op, operands, {}, [Result((100, 101), F32)], rtol=0, atol=0)
        mean, spread = (0.5, 1 / np.sqrt(12)) if op == "RandomUniformLike" else (0, 1)
        assert abs(numbers.mean() - mean) < 0.03
        assert abs(numbers.std() - spread) < 0.03


def test_philox_gives_the_numbers_that_its_authors_publish() -> None:
    from isthmus.graph.evaluation.random import random_bits

    assert [hex(bits) for bits in random_bits(0, 0, 0, 4)] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_the_normal_distribution_has_its_quantiles() -> None:
    from isthmus.graph.evaluation.random import normal

    numbers = np.sort(normal(1, 2, 3, 200_001))
    for quantile, value in ((0.001, -3.0902), (0.02, -2.0537), (0.25, -0.6745), (0.5, 0.0), (0.99, 2.3263)):
        assert abs(numbers[int(quantile * 200_000)] - value) < 0.06


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike"])
def test_seeds_streams_and_executions_give_different_numbers(op: str) -> None:
    def numbers(seed: float, stream: int, execution: int) -> bytes:
        operands = [np.array([40], np.int32), np.float32([seed]), np.int32([execution])]
        step, arrays = make_step(op, operands, {"random_stream": stream}, [Result((40,), F32)])
        return run(step, arrays, targets()[0])[0].tobytes()

    assert len({numbers(*key) for key in ((0.0, 0, 0), (1.0, 0, 0), (0.0, 1, 0), (0.0, 0, 1))}) == 4
