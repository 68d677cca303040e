"""Products of floats with 8-bit weights: activations are rounded by their own range, sums are integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frontends.tflite.build import T, options, single
from support.suites import long

import isthmus
from engine.native import harness
from engine.native.harness import Result
from isthmus.engine.native.lower import lowering_of
from isthmus.engine.native.lowering.quantized_hybrid import HYBRID
from isthmus.graph import DataType, Quantization

pytestmark = harness.ON_TARGETS
OTHERS = ("avx512-vnni", "avx2", "neon-dot", "neon")


def rounded(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers that stand for each row's real values, and their scale."""
    low, high = np.minimum(rows.min(-1), 0), np.maximum(rows.max(-1), 0)
    span = (high - low).astype(np.float32)
    factor = np.where(span > 0, np.float32(255) / np.where(span > 0, span, 1), np.float32(1)).astype(np.float32)
    down, up = low * factor, high * factor
    place = np.where((-128 + down) + (127 + up) > 0, -128 - down, 127 - up)
    zero = np.rint(np.clip(place, -128, 127))
    stored = np.clip(np.rint(rows * factor[:, None]) + zero[:, None], -128, 127)
    return (stored - zero[:, None]).astype(np.int64), np.float32(1) / factor


def run(
    op: str, inputs: list[Any], params: dict[str, Any], dims: tuple[int, ...], expected: np.ndarray, clamp: Any = None
) -> None:
    step, arrays = harness.make_step(op, inputs, params, [Result(dims, DataType.FLOAT_32)], clamp)
    lowering = lowering_of(step)
    assert lowering is HYBRID
    for target in harness.targets(*OTHERS):
        [one] = harness.run(step, arrays, target, 1, "after", None, lowering)
        np.testing.assert_allclose(one, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max(), err_msg=target.name)
        [two] = harness.run(step, arrays, target, 2, "before", None, lowering)
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(("rows", "depth", "width"), [(1, 20, 60), (1, 257, 33), (5, 64, 64), (40, 19, 7), (3, 1, 1)])
@pytest.mark.parametrize("per_channel", [long(False), True])
def test_fully_connected_layers_round_each_row_by_its_range(
    rows: int, depth: int, width: int, per_channel: bool
) -> None:
    rng = np.random.default_rng(rows + depth)
    x = (rng.standard_normal((rows, depth)) * rng.uniform(0.1, 5, (rows, 1))).astype(np.float32)
    if rows > 2:
        x[0], x[1] = 0, np.abs(x[1])
    weights = rng.integers(-127, 128, (width, depth)).astype(np.int8)
    bias = rng.standard_normal(width).astype(np.float32)
    scales = rng.uniform(0.005, 0.02, width if per_channel else 1).astype(np.float32)
    quantization = (
        Quantization.per_channel(scales, np.zeros(width), 0) if per_channel else Quantization.per_tensor(scales[0])
    )
    whole, scale = rounded(x)
    expected = (whole @ weights.T.astype(np.int64)).astype(np.float32) * scale[:, None] * scales + bias
    constants = [harness.static(weights, quantization), harness.static(bias)]
    run("FullyConnected", [x, *constants], {}, (rows, width), expected)
    run("FullyConnected", [x, constants[0]], {}, (rows, width), np.maximum(expected - bias, 0), (0.0, np.inf))


@pytest.mark.parametrize(
    ("dims", "kernel", "filters", "pad", "group"),
    [
        ((1, 6, 7, 4), (3, 3), 9, ((1, 1), (1, 1)), 1), ((2, 5, 5, 3), (3, 2), 17, ((0, 1), (1, 0)), 1),
        ((1, 4, 9, 8), (1, 1), 40, ((0, 0), (0, 0)), 1), ((1, 6, 6, 6), (3, 3), 4, ((1, 1), (0, 0)), 2),
        ((3, 5, 6, 8), (2, 2), 20, ((0, 0), (0, 0)), 1), ((3, 5, 6, 8), (1, 1), 20, ((0, 0), (0, 0)), 1),
    ],
)  # fmt: skip
def test_convolutions_round_each_image_by_its_range(dims: Any, kernel: Any, filters: int, pad: Any, group: int) -> None:
    rng = np.random.default_rng(filters)
    x = (rng.standard_normal(dims) + 0.5).astype(np.float32)
    weights = rng.integers(-127, 128, (*kernel, dims[3] // group, filters)).astype(np.int8)
    scales = rng.uniform(0.005, 0.02, filters).astype(np.float32)
    # Where windows are single pixels, each pixel is rounded by itself.
    whole, scale = rounded(x.reshape((-1, dims[3]) if kernel == (1, 1) else (dims[0], -1)))
    scale = scale.reshape((*dims[:3], 1) if kernel == (1, 1) else (-1, 1, 1, 1))
    padded = np.pad(whole.reshape(dims), ((0, 0), *pad, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernel, (1, 2))
    depth, width = dims[3] // group, filters // group
    parts = [
        np.einsum("nhwcij,ijco->nhwo", windows[:, :, :, g * depth : (g + 1) * depth],
                  weights[..., g * width : (g + 1) * width].astype(np.int64))
        for g in range(group)
    ]  # fmt: skip
    expected = np.concatenate(parts, -1).astype(np.float32) * scale * scales
    params = {"stride": (1, 1), "dilation": (1, 1), "pad_amount": pad, "group": group}
    constant = harness.static(weights, Quantization.per_channel(scales, np.zeros(filters), 3))
    run("Conv2d", [x, constant], params, expected.shape, expected)


def layers() -> dict[str, tuple[bytes, tuple[int, ...]]]:
    """Files of one hybrid operator, and the shapes of their inputs."""
    rng = np.random.default_rng(0)
    bias = T("f32", [12], rng.standard_normal(12))
    dense = T("i8", [12, 70], rng.integers(-127, 128, (12, 70)), 0.01)
    made = options("FullyConnected", fusedActivationFunction=0, asymmetricQuantizeInputs=True)
    found = {"dense": (single("FULLY_CONNECTED", [T("f32", [4, 70]), dense, bias], [T("f32", [4, 12])], made), (4, 70))}
    for kernel, stride in ((1, 1), (1, 2), (3, 1), (3, 2)):
        shape, out = (1, 9, 9, 20), -(-9 // stride)
        stored = rng.integers(-127, 128, (12, kernel, kernel, 20))
        weights = T("i8", stored.shape, stored, rng.uniform(0.005, 0.02, 12), 0, 0)
        made = options(
            "Conv2D", padding=0, strideH=stride, strideW=stride, dilationHFactor=1, dilationWFactor=1,
            fusedActivationFunction=1,
        )  # fmt: skip
        content = single("CONV_2D", [T("f32", shape), weights, bias], [T("f32", (1, out, out, 12))], made)
        found[f"convolution of {kernel}x{kernel} by {stride}"] = content, shape
    return found


@pytest.mark.parametrize("layer", layers())
def test_a_hybrid_layer_agrees_with_litert(layer: str, tmp_path: Any) -> None:
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    content, shape = layers()[layer]
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (tmp_path / "hybrid.tflite").write_bytes(content)
    peer = interpreter.Interpreter(model_content=content, num_threads=1)
    peer.allocate_tensors()
    peer.set_tensor(peer.get_input_details()[0]["index"], x)
    peer.invoke()
    expected = peer.get_tensor(peer.get_output_details()[0]["index"])
    with isthmus.Session(tmp_path / "hybrid.tflite") as session:
        [got] = session.run({"t0": x}).values()
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
