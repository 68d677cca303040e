"""Random inputs suit what a model may do with them, and are the same every time."""

import numpy as np
import pytest

from isthmus.graph.random_arrays import random_array


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.float16, -1, 1), (np.float32, -1, 1), (np.float64, -1, 1),
        (np.int8, -128, 127), (np.uint8, 0, 255),
        (np.bool_, 0, 1), (np.int16, 0, 1), (np.uint32, 0, 1), (np.int64, 0, 1),
    ],
)  # fmt: skip
def test_elements_fill_the_range_of_their_type(dtype, low, high) -> None:
    array = random_array(np.random.default_rng(3), dtype, (200, 50))
    assert (array.dtype, array.shape) == (np.dtype(dtype), (200, 50))
    assert array.min() == pytest.approx(low, abs=0.01)
    assert array.max() == pytest.approx(high, abs=0.01)
    np.testing.assert_array_equal(array, random_array(np.random.default_rng(3), dtype, (200, 50)))


@pytest.mark.parametrize("dims", [(), (0, 3)])
def test_scalars_and_empty_arrays_are_arrays(dims) -> None:
    for dtype in (np.float32, np.uint8, np.int32):
        array = random_array(np.random.default_rng(3), dtype, dims)
        assert isinstance(array, np.ndarray)
        assert (array.dtype, array.shape) == (np.dtype(dtype), dims)
