"""Softmax and the normalisations agree with their definitions in double precision."""

from __future__ import annotations

import numpy as np
import pytest

from engine.native.harness import ON_TARGETS, check, make_step, run, static
from isthmus.errors import QnnError

pytestmark = ON_TARGETS
RNG = np.random.default_rng(3)


def floats(*dims: int) -> np.ndarray:
    return (RNG.standard_normal(dims) * 3).astype(np.float32)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_along_any_axis(op: str, axis: int) -> None:
    check(op, [floats(5, 33, 141)], {"axis": axis, "beta": 0.7}, rtol=1e-5, atol=1e-6, in_place=[0])


def test_softmax_of_masked_and_of_large_values() -> None:
    x = floats(3, 50)
    x[0, :20] = -np.inf
    x[1] *= 1e4
    check("Softmax", [x], rtol=1e-5, atol=1e-7)
    check("Softmax", [x.T.copy()], {"axis": 0}, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("beta", [40.0, 0.01, -5.0])
def test_softmax_of_large_values_with_a_factor(op: str, axis: int, beta: float) -> None:
    x = floats(37, 41) * np.float32(20)
    check(op, [x], {"axis": axis, "beta": beta}, rtol=2e-5, atol=1e-6 if op == "Softmax" else 2e-3)


def test_layer_norm_over_the_last_axes() -> None:
    x = floats(3, 5, 47)
    scale, offset = floats(47), floats(47)
    check("LayerNorm", [x, static(scale), static(offset)], {"axes": (2,), "epsilon": 1e-5}, rtol=1e-5, atol=1e-5,
          in_place=[0])  # fmt: skip
    check("LayerNorm", [x, scale], {"axes": (2,), "epsilon": 1e-5}, rtol=1e-5, atol=1e-5)
    check("LayerNorm", [x], {"axes": (1, 2), "epsilon": 1e-5}, rtol=1e-5, atol=1e-5)
    check("LayerNorm", [x, floats(5, 47)], {"axes": (1, 2)}, rtol=1e-5, atol=1e-5)
    check("LayerNorm", [x], {"axes": (1,)}, rtol=1e-5, atol=1e-5)


def test_rms_norm() -> None:
    check("RmsNorm", [floats(7, 300), static(floats(300))], {"axes": (1,)}, rtol=1e-5, atol=1e-6)


def test_l2_norm() -> None:
    check("L2Norm", [floats(7, 30)], {"axis": 1}, rtol=1e-5, atol=1e-6)
    check("L2Norm", [floats(2, 7, 300)], {"axis": 1}, rtol=1e-5, atol=1e-6)
    check("L2Norm", [np.zeros((2, 7), np.float32)], {"axis": 1})


@pytest.mark.parametrize("region", [0, 1, 2])
@pytest.mark.parametrize(("mode", "variance"), [(0, True), (0, False), (1, True)])
def test_instance_norm(region: int, mode: int, variance: bool) -> None:
    params = {"region": region, "mode": mode, "normalize_variance": variance, "epsilon": 1e-5}
    check("InstanceNorm", [floats(2, 5, 6, 21), static(floats(21)), static(floats(21))], params, rtol=2e-5, atol=1e-5)


def test_group_norm() -> None:
    params = {"group": 3, "epsilon": 1e-5}
    check("GroupNorm", [floats(2, 5, 6, 21), static(floats(21)), static(floats(21))], params, rtol=1e-5, atol=1e-5)
    check("GroupNorm", [floats(2, 5, 6, 21)], params, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [1, 3, 20, 130])
def test_batchnorm_is_an_affine_map_of_each_channel(channels: int) -> None:
    x, scale, offset = floats(2, 7, 9, channels), floats(channels), floats(channels)
    check("Batchnorm", [x, static(scale), static(offset)], rtol=1e-5, atol=1e-5, in_place=[0])
    check("Batchnorm", [x, scale, offset], rtol=1e-5, atol=1e-5, clamp=(0, 6))
    check("Batchnorm", [x, static(scale)], rtol=1e-5, atol=1e-5)


def test_local_response_norm_across_channels() -> None:
    params = {"radius": 2, "alpha": 1e-2, "beta": 0.75, "bias": 1.0}
    check("Lrn", [floats(1, 3, 4, 17)], params, rtol=1e-5, atol=1e-6)
    step, arrays = make_step("Lrn", [floats(1, 3, 4, 17)], {**params, "region": 1})
    with pytest.raises(QnnError, match="across channels"):
        run(step, arrays)
