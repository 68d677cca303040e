"""Products of byte matrices are exact."""

from __future__ import annotations

import numpy as np
import pytest

from engine.native.harness import ON_TARGETS, check, static

pytestmark = ON_TARGETS
RNG = np.random.default_rng(7)


def integers(*dims: int, dtype: type = np.int8) -> np.ndarray:
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, dims).astype(dtype)


@pytest.mark.parametrize("left", [np.int8, np.uint8])
@pytest.mark.parametrize("right", [np.int8, np.uint8])
def test_signs_and_zero_points(left: type, right: type) -> None:
    a, b = integers(5, 37, dtype=left), integers(37, 291, dtype=right)
    check("MatMulInteger", [a, b])
    check("MatMulInteger", [a, b, integers(1, dtype=left), static(integers(1, dtype=right))])
    check("MatMulInteger", [a, b, integers(5, dtype=left), integers(291, dtype=right)])


@pytest.mark.parametrize(("left", "right"), [((2, 3, 4, 5), (5, 6)), ((2, 1, 4, 5), (3, 5, 6)), ((4, 5), (2, 5, 6))])
def test_batches_broadcast(left: tuple, right: tuple) -> None:
    check("MatMulInteger", [integers(*left), integers(*right)])
