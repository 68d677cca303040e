"""Models in the older 8-bit format, whose weights have zero points, run in 8 bits with LiteRT's results.

The networks are those of MobileNet V1 and V2, quantized with 8 bits without sign, with random weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from frontends.tflite.build import Op, Subgraph, T, model, options
from frontends.tflite.runners import LiteRtRunner

import isthmus
from isthmus.backends.seam import native
from isthmus.frontends import load

RELU6 = 3


class Network:
    """A model under construction: operators on 8-bit images without sign."""

    def __init__(self, side: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.tensors = [T("u8", (1, side, side, 3), scale=1 / 128, zero=128, name="x")]
        self.operators: list[Op] = []

    def add_tensor(self, dims: Sequence[int], scale: float, zero: int) -> int:
        self.tensors.append(T("u8", dims, scale=scale, zero=zero, name=f"t{len(self.tensors)}"))
        return len(self.tensors) - 1

    def convolved(self, x: int, filters: int, kernel: int, stride: int, depthwise: bool = False, act: int = 0) -> int:
        _, height, width, channels = self.tensors[x].shape
        zero = int(self.rng.integers(80, 180))
        dims = (1, kernel, kernel, channels) if depthwise else (filters, kernel, kernel, channels)
        spread = 40 if depthwise else 30
        weights = np.clip(np.rint(self.rng.normal(zero, spread, dims)), 0, 255).astype(np.uint8)
        scale = 2.0 / spread / np.sqrt(np.prod(dims[1:3]) * (1 if depthwise else channels))
        unit = self.tensors[x].scale * scale
        bias = np.rint(self.rng.normal(0, 0.1, filters) / unit).astype(np.int32)
        self.tensors.append(T("u8", dims, data=weights, scale=scale, zero=zero))
        self.tensors.append(T("i32", (filters,), data=bias, scale=unit))
        out = (1, -(-height // stride), -(-width // stride), filters)
        y = self.add_tensor(out, 6 / 255 if act else 0.04, 0 if act else int(self.rng.integers(100, 150)))
        window: dict[str, Any] = {"strideW": stride, "strideH": stride, "dilationWFactor": 1, "dilationHFactor": 1}
        more = {"padding": 0} | ({"depthMultiplier": 1} if depthwise else {})
        kind = "DepthwiseConv2D" if depthwise else "Conv2D"
        how = options(kind, fusedActivationFunction=act, **window, **more)
        code = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
        self.operators.append(Op(code, [x, y - 2, y - 1], [y], how))
        return y

    def added(self, x: int, z: int) -> int:
        y = self.add_tensor(self.tensors[x].shape, 0.06, 128)
        self.operators.append(Op("ADD", [x, z], [y], options("Add")))
        return y

    def finished(self, x: int, classes: int) -> bytes:
        """End in a mean, a layer of classes and their probabilities."""
        _, height, _, channels = self.tensors[x].shape
        mean = self.add_tensor((1, 1, 1, channels), self.tensors[x].scale, self.tensors[x].zero)
        window = options("Pool2D", padding=1, strideW=1, strideH=1, filterWidth=height, filterHeight=height)
        self.operators.append(Op("AVERAGE_POOL_2D", [x], [mean], window))
        scores = self.convolved(mean, classes, 1, 1)
        self.tensors.append(T("i32", (2,), data=np.array([1, classes], np.int32)))
        flat = self.add_tensor((1, classes), self.tensors[scores].scale, self.tensors[scores].zero)
        self.operators.append(Op("RESHAPE", [scores, flat - 1], [flat]))
        self.tensors.append(T("u8", (1, classes), scale=1 / 256, zero=0, name="y"))
        self.operators.append(Op("SOFTMAX", [flat], [flat + 1], options("Softmax", beta=1.0)))
        # The features too: random weights make every class as likely as any other.
        return model(Subgraph(self.tensors, self.operators, [0], [flat + 1, x]))


def mobilenet_v1(side: int, seed: int = 0) -> bytes:
    """MobileNet V1 with a quarter of its channels."""
    network = Network(side, seed)
    x = network.convolved(0, 8, 3, 2, act=RELU6)
    for filters, stride in ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        x = network.convolved(x, network.tensors[x].shape[3], 3, stride, depthwise=True, act=RELU6)
        x = network.convolved(x, filters, 1, 1, act=RELU6)
    return network.finished(x, 101)


def mobilenet_v2(side: int, seed: int = 0) -> bytes:
    """Blocks of MobileNet V2: wider inside, with sums around them."""
    network = Network(side, seed)
    x = network.convolved(0, 16, 3, 2, act=RELU6)
    for filters, stride in ((8, 1), (12, 2), (12, 1), (16, 2), (16, 1)):
        before, channels = x, network.tensors[x].shape[3]
        x = network.convolved(x, 6 * channels, 1, 1, act=RELU6)
        x = network.convolved(x, 6 * channels, 3, stride, depthwise=True, act=RELU6)
        x = network.convolved(x, filters, 1, 1)
        if stride == 1 and filters == channels:
            x = network.added(x, before)
    return network.finished(x, 51)


@pytest.mark.parametrize("build", [mobilenet_v1, mobilenet_v2])
def test_weights_with_zero_points_give_litert_s_results_to_the_last_bit(build, tmp_path) -> None:
    content = build(64)
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    runner, rng = LiteRtRunner(content), np.random.default_rng(1)
    with isthmus.Session(path) as session:
        assert session.plan is not None
        assert session.plan.in_float == ()
        for _ in range(3):
            x = rng.integers(0, 256, (1, 64, 64, 3)).astype(np.uint8)
            classes, features = session.run({"x": x}).values()
            for ours, theirs in zip((classes, features), runner(x), strict=True):
                np.testing.assert_array_equal(ours, theirs)
            assert len(np.unique(features)) > 20


def test_models_with_zero_points_take_scratch_in_bytes_and_little_more_than_the_file(tmp_path) -> None:
    content = mobilenet_v1(128)
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    for threads in (1, 2):
        prepared = native.prepare(load(path), threads)
        assert prepared.plan is not None
        # An image of 64 x 64 with 8 channels, and the one of 16 that is made of it; the rest is work space.
        live = 64 * 64 * (8 + 16)
        assert live <= prepared.plan.bytes < 1.25 * live
        # On targets without a dot product of bytes weights are stored in 16 bits.
        assert prepared.program.constant_bytes < 2.5 * len(content)
