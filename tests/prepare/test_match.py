"""What passes recognise: constants by the real numbers that they mean."""

import numpy as np
import pytest

from isthmus.graph import DataType, Quantization, Tensor, TensorType
from isthmus.prepare.rewrite import is_number, number


def constant(data, dtype, quantization=None):
    array = np.asarray(data, dtype.numpy)
    return Tensor("c", TensorType.STATIC, dtype, array.shape, quantization, array)


def test_a_fixed_point_constant_is_the_real_that_it_means() -> None:
    tensor = constant([7, 7], DataType.UFIXED_POINT_8, Quantization((0.5,), (-3,), None))
    assert number(tensor) == 2.0
    assert is_number(tensor, 2.0)


@pytest.mark.parametrize(
    ("data", "dtype", "found"),
    [
        ([3.0, 3.0], DataType.FLOAT_32, 3.0),
        ([3.0, 4.0], DataType.FLOAT_32, None),
        ([3, 3], DataType.INT_32, None),
        ([], DataType.FLOAT_32, None),
    ],
)
def test_only_one_real_that_is_repeated_is_a_number(data, dtype, found) -> None:
    assert number(constant(data, dtype)) == found
    assert number(None) is None
