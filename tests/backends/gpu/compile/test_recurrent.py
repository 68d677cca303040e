"""Recurrent layers agree with the reference, whether units fill whole vectors or not."""

from __future__ import annotations

import numpy as np
import pytest

from backends.gpu.compile.checking import check
from isthmus.backends.gpu.compile.traits import FloatStorage

_generator = np.random.default_rng(17)
UNITS = [16, 13]
"""Two vectors; one and a part of another, and an odd number of terms."""


def _random(*dims: int) -> np.ndarray:
    return (_generator.standard_normal(dims) * 0.5).astype(np.float32)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("units", UNITS)
def test_a_gru_matches_the_reference(units: int, linear: bool) -> None:
    weights, recurrent = ([_random(units, n) for _ in range(3)] for n in (5, units))
    inputs = [_random(3, 2, 5), *weights, *recurrent, *(_random(units) for _ in range(6)), _random(1, 2, units)]
    declared = [(None, (3, 2, units)), (None, (1, 2, units))]
    check("Gru", inputs, {"linear_before_reset": linear}, statics=range(1, 13), declared=declared)


@pytest.mark.parametrize("precision", [FloatStorage.FP32, FloatStorage.FP16])
@pytest.mark.parametrize("units", UNITS)
def test_an_lstm_with_peepholes_and_limits_matches_the_reference(units: int, precision: FloatStorage) -> None:
    weights, recurrent = ([_random(units, n) for _ in range(4)] for n in (5, units))
    inputs = [
        _random(3, 2, 5), *weights[:3], *recurrent[:3], *(_random(units) for _ in range(3)), _random(2, units),
        _random(2, units), *[None] * 4, weights[3], recurrent[3], *(_random(units) for _ in range(4)),
    ]  # fmt: skip
    declared = [(None, (3, 2, units)), (None, (2, units)), (None, (2, units))]
    statics = [index for index in range(1, 22) if index not in (10, 11)]
    params = {"cell_clip_threshold": 0.4}
    check("Lstm", inputs, params, statics=statics, declared=declared, precisions=(precision,))
