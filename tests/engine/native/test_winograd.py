"""Winograd's convolutions are near exact ones, whatever the shape, and chosen where they are estimated to be faster."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from support import architectures
from support.suites import only, sampled

import isthmus
from engine.native import harness
from engine.native.harness import make_step, static
from isthmus import qnn
from isthmus.engine.native.lowering.winograd import side_of, weight_transform
from isthmus.engine.native.target import TARGETS, Target
from isthmus.errors import Code, QnnError
from isthmus.graph import DataType
from isthmus.prepare.geometry.windows import window_of
from isthmus.prepare.schedule import Step

pytestmark = harness.ON_TARGETS
HALVES = (DataType.FLOAT_16, DataType.BFLOAT_16)
ERROR = {2: 2e-6, 4: 1e-5}
"""The largest error as a part of the largest result."""


def _step(dims: tuple[int, ...], filters: int, pads=((1, 1), (1, 1)), seed: int = 3, clamp=None) -> tuple[Step, list]:
    generator = np.random.default_rng(seed)
    weights = generator.standard_normal((3, 3, dims[3], filters)).astype(np.float32) / np.float32(3 * dims[3] ** 0.5)
    inputs = [generator.standard_normal(dims).astype(np.float32), static(weights)]
    inputs.append(static(generator.standard_normal(filters).astype(np.float32)))
    return make_step("Conv2d", inputs, {"stride": [1, 1], "pad_amount": [list(p) for p in pads]}, clamp=clamp)


def _exact(step: Step, image: np.ndarray) -> np.ndarray:
    """The convolution in float64."""
    weights, bias = (step.input(i).data.astype(np.float64) for i in (1, 2))
    out = step.outputs[0].dims
    window = window_of(step)
    padded = np.zeros((out[0], out[1] + 2, out[2] + 2, image.shape[3]))
    top, left = window.pad[1:]
    rows, columns = (min(image.shape[i], padded.shape[i] - pad) for i, pad in ((1, top), (2, left)))
    padded[:, top : top + rows, left : left + columns] = image[:, :rows, :columns]
    total = np.zeros(out) + bias
    for i in range(3):
        for j in range(3):
            total += padded[:, i : i + out[1], j : j + out[2]] @ weights[i, j]
    return total if step.clamp is None else np.clip(total, *step.clamp)


SHAPES = {
    "an image of whole squares": ((1, 8, 8, 16), 32, ((1, 1), (1, 1))),
    "squares across the edges, odd channels": ((2, 9, 7, 21), 37, ((1, 1), (1, 1))),
    "no zeros around": ((1, 10, 11, 19), 16, ((0, 0), (0, 0))),
    "uneven zeros": ((1, 6, 13, 16), 17, ((2, 0), (0, 3))),
    "smaller than a square": ((3, 1, 2, 33), 18, ((1, 1), (1, 1))),
    "more zeros than pixels": ((1, 2, 2, 16), 16, ((4, 4), (4, 4))),
    "deep enough to be summed in parts": ((1, 6, 6, 300), 20, ((1, 1), (1, 1))),
    "enough squares for many groups": ((1, 60, 60, 24), 24, ((1, 1), (1, 1))),
}


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("case", sampled(SHAPES, 3))
def test_squares_are_near_the_exact_convolution_and_touch_nothing_else(case: str, m: int) -> None:
    dims, filters, pads = SHAPES[case]
    step, arrays = _step(dims, filters, pads, clamp=(-1.0, 1.5))
    step.winograd = m
    expected = _exact(step, arrays[0])
    for target in harness.targets("avx2"):
        results = [
            harness.run(step, arrays, target, threads, guard)[0]
            for threads, guard in ((1, "after"), (2, "before"), (3, "after"), (8, "before"))
        ]
        for result in results:
            np.testing.assert_array_equal(result, results[0])
        assert np.abs(results[0] - expected).max() <= ERROR[m] * np.abs(expected).max()


@pytest.mark.parametrize("seed", only(range(4), range(40)))
def test_random_convolutions_by_squares_are_near_exact_ones(seed: int) -> None:
    generator = np.random.default_rng(seed)
    channels, filters = (int(generator.integers(16, 70)) for _ in range(2))
    pads = tuple((int(generator.integers(0, 3)), int(generator.integers(0, 3))) for _ in range(2))
    dims = (int(generator.integers(1, 3)), *(int(generator.integers(3, 20)) for _ in range(2)), channels)
    step, arrays = _step(dims, filters, pads, seed)
    expected = _exact(step, arrays[0])
    for step.winograd in (2, 4):
        for target in harness.targets("avx2", "neon"):
            [result] = harness.run(step, arrays, target, 1 + seed % 3, "after" if seed % 2 else "before")
            assert np.abs(result - expected).max() <= ERROR[step.winograd] * np.abs(expected).max(), target.name


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("case", sampled(SHAPES, 3))
def test_squares_of_16_bit_floats_have_the_bits_of_float32(case: str, m: int, dtype: DataType) -> None:
    dims, filters, pads = SHAPES[case]
    step, arrays = _step(dims, filters, pads, clamp=(-1.0, 1.5))
    numbers = [dtype.encode(array) for array in (arrays[0], step.input(1).data, step.input(2).data)]
    params = {"stride": [1, 1], "pad_amount": [list(p) for p in pads]}
    inputs = [harness.Operand(array, i > 0, dtype=dtype) for i, array in enumerate(numbers)]
    same = [harness.Operand(dtype.decode(array), i > 0) for i, array in enumerate(numbers)]
    half, half_arrays = make_step("Conv2d", inputs, params, [harness.Result(dtype=dtype)], clamp=(-1.0, 1.5))
    single, single_arrays = make_step("Conv2d", same, params, clamp=(-1.0, 1.5))
    half.winograd = single.winograd = m
    for target in harness.targets("avx2"):
        [expected] = harness.run(single, single_arrays, target)
        for threads, guard in ((1, "after"), (3, "before")):
            [result] = harness.run(half, half_arrays, target, threads, guard)
            np.testing.assert_array_equal(result, dtype.encode(expected), err_msg=target.name)


@pytest.mark.parametrize("dtype", HALVES)
def test_16_bit_floats_are_computed_by_squares_where_that_is_faster(dtype: DataType) -> None:
    for height, channels, filters, squares in ((56, 64, 64, True), (1, 512, 512, False), (56, 3, 64, False)):
        image, weights = np.zeros((1, height, height, channels)), np.zeros((3, 3, channels, filters))
        inputs = [
            harness.Operand(dtype.encode(image), dtype=dtype),
            harness.Operand(dtype.encode(weights), True, dtype=dtype),
        ]
        params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
        step, _ = make_step("Conv2d", inputs, params, [harness.Result(dtype=dtype)])
        assert bool(side_of(step, harness.host())) == squares


@pytest.mark.parametrize("m", [2, 4])
@pytest.mark.parametrize("channels", only((256,), (64, 256, 512)))
def test_errors_of_real_sizes_are_those_of_floats(channels: int, m: int) -> None:
    step, arrays = _step((1, 14, 14, channels), 64)
    step.winograd = m
    expected = _exact(step, np.maximum(arrays[0], 0))
    [result] = harness.run(step, [np.maximum(arrays[0], 0), *arrays[1:]])
    assert np.abs(result - expected).max() <= 5e-6 * np.abs(expected).max()


@pytest.mark.parametrize("m", [2, 4])
def test_the_transforms_are_those_of_a_convolution(m: int) -> None:
    # A filter of one tap moves the image: each product is a number times the image's transform.
    matrix = weight_transform(m)
    assert matrix.shape == (m + 2, 3)
    step, arrays = _step((1, 12, 12, 16), 16)
    step.winograd = m
    step.input(1).data[...] = 0
    step.input(1).data[0, 2] = np.eye(16, dtype=np.float32)
    step.input(2).data[...] = 0
    [result] = harness.run(step, arrays)
    moved = np.zeros_like(result)
    moved[:, 1:, :-1] = arrays[0][:, :-1, 1:]
    np.testing.assert_allclose(result, moved, rtol=0, atol=2e-5)


def _chosen(height: int, channels: int, filters: int, target: Target, **more) -> int:
    step, _ = _step((1, height, height, channels), filters)
    step.params.update(more)
    return side_of(step, target)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_choice_weighs_products_against_transforms_and_weights(target: Target) -> None:
    assert _chosen(56, 64, 64, target) == 4
    # Weights of four times the size cost more than products save.
    assert _chosen(7, 512, 512, target) != 4
    assert _chosen(1, 512, 512, target) == 0
    # Too few channels for a vector.
    assert _chosen(56, 3, 64, target) == 0
    assert _chosen(56, 64, 64, target, stride=np.array([2, 2])) == 0
    assert _chosen(56, 64, 64, target, dilation=np.array([2, 2])) == 0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Two convolutions that are faster by squares, and one that cannot be computed so."""
    layers = architectures.Layers()
    x = layers.conv(layers.input(1, 32, 30, 30), 32, 3, act="Relu")
    built = layers.finished("squares", layers.conv(layers.conv(x, 48, 3, 2), 32, 3))
    path = tmp_path_factory.mktemp("squares") / "model.onnx"
    onnx.save(built.model, path)
    return path


@dataclass
class Ran:
    """What a graph computed, and its kernels and scratch."""

    result: np.ndarray
    kernels: set[str]
    scratch: int


def _run(model: Path, content: np.ndarray | None = None, **configs) -> Ran:
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().compose(model)
        graph.set_config({qnn.GraphConfig[name.upper()]: value for name, value in configs.items()})
        graph.finalize()
        with closing(graph.allocate()) as memory:
            [image] = memory.inputs.values()
            image[...] = np.random.default_rng(1).standard_normal(image.shape) if content is None else content
            memory.binding.execute()
            [result] = memory.outputs.values()
            program = graph.driver.program
            return Ran(result.copy(), {name.partition(":")[0] for name in program.kernels}, program.scratch_bytes)


def test_results_are_the_same_for_all_numbers_of_threads(model) -> None:
    alone, several = _run(model), [_run(model, threads=threads) for threads in (2, 3, 8)]
    assert "winograd" in alone.kernels
    for ran in several:
        np.testing.assert_array_equal(ran.result, alone.result)


@pytest.mark.parametrize("number", [np.nan, np.inf, 3e38])
def test_a_number_that_no_sum_can_have_reaches_its_square_at_most(tmp_path, number) -> None:
    layers = architectures.Layers()
    built = layers.finished("square", layers.conv(layers.input(1, 64, 28, 28), 64, 3))
    onnx.save(built.model, tmp_path / "model.onnx")
    image = np.random.default_rng(1).standard_normal((1, 64, 28, 28)).astype(np.float32)
    image[0, 0, 10, 10] = number
    on, off = (_run(tmp_path / "model.onnx", image, winograd=winograd) for winograd in (True, False))
    assert "winograd" in on.kernels
    height, width = np.ogrid[:28, :28]
    far = np.maximum(abs(height - 10), abs(width - 10)) > 4
    results, expected = (np.moveaxis(ran.result.reshape(64, 28, 28), 0, -1)[far] for ran in (on, off))
    np.testing.assert_allclose(results, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_one_config_turns_it_off_until_the_graph_is_prepared(model) -> None:
    on, off = _run(model), _run(model, winograd=False)
    assert "winograd" not in off.kernels
    np.testing.assert_allclose(on.result, off.result, rtol=0, atol=1e-5 * np.abs(off.result).max())
    # The transforms are in scratch, and counted.
    assert on.scratch > off.scratch
    with qnn.Backend("cpu") as backend:
        graph = backend.create_context().compose(model)
        assert graph.get_property(qnn.GraphConfig.WINOGRAD) is True
        with pytest.raises(QnnError, match="must be True or False"):
            graph.set_config(qnn.GraphConfig.WINOGRAD, 1)
        graph.finalize()
        with pytest.raises(QnnError, match="its kernels are chosen") as refused:
            graph.set_config(qnn.GraphConfig.WINOGRAD, False)
        assert refused.value.code is Code.GRAPH_FINALIZED


def test_a_configuration_turns_it_off_for_all_graphs_that_do_not_turn_it_on(model, tmp_path) -> None:
    file = tmp_path / "cpu.json"
    file.write_text('{"cpu": {"winograd": false}}')
    off = _run(model, winograd=False)
    with isthmus.Session(model, config=file) as session:
        assert session.info.memory.scratch_bytes == off.scratch
    with qnn.Backend("cpu", file) as backend:
        graph = backend.create_context().compose(model)
        assert graph.get_property(qnn.GraphConfig.WINOGRAD) is False
        graph.set_config(qnn.GraphConfig.WINOGRAD, True)
        assert graph.info.memory.scratch_bytes > off.scratch
    with pytest.raises(QnnError, match=r"'cpu.winograd': must be true or false"):
        qnn.Backend("cpu", {"cpu": {"winograd": 0}})


def test_a_graph_with_a_limit_on_scratch_has_the_bits_of_one_without_squares(model) -> None:
    off = _run(model, winograd=False)
    for limit in ("100%", "60%", "least"):
        limited = _run(model, scratch_limit=limit)
        assert "winograd" not in limited.kernels
        np.testing.assert_array_equal(limited.result, off.result)


@pytest.mark.parametrize("name", ["htp", "lpai"])
def test_simulated_devices_compute_without_squares_on_every_machine(model, name) -> None:
    with qnn.Backend(name) as backend:
        graph = backend.create_context().compose(model)
        assert graph.get_property(qnn.GraphConfig.WINOGRAD) is False
        graph.set_config(qnn.GraphConfig.WINOGRAD, False)
        with pytest.raises(QnnError, match="without Winograd"):
            graph.set_config(qnn.GraphConfig.WINOGRAD, True)
        with isthmus.Session(model, backend=name) as session:
            [image] = session.inputs.values()
            image[...] = np.random.default_rng(1).standard_normal(image.shape)
            session.run()
            [result] = session.outputs.values()
            np.testing.assert_array_equal(result, _run(model, winograd=False).result)
