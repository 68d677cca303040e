"""Arrays in types of the package ml_dtypes are data of the tensors that they fit, and of no others."""

import ml_dtypes
import numpy as np
import pytest

from isthmus import QnnError
from isthmus.graph import DataType, Quantization, Tensor, TensorType

BFLOAT16 = np.array([1, -2.5, 1e30]).astype(ml_dtypes.bfloat16)
INT4 = np.array([-8, -1, 7]).astype(ml_dtypes.int4)
UINT4 = np.array([0, 8, 15]).astype(ml_dtypes.uint4)
FOUR_BITS = Quantization.per_tensor(0.5, 0)


def constant(dtype, data, quantization=None):
    return Tensor("c", TensorType.STATIC, dtype, data.shape, quantization, data)


def test_data_of_bfloat16_is_a_view_of_its_bits() -> None:
    tensor = constant(DataType.BFLOAT_16, BFLOAT16)
    assert tensor.data.dtype == np.uint16
    assert np.shares_memory(tensor.data, BFLOAT16)
    np.testing.assert_array_equal(tensor.dtype.decode(tensor.data), BFLOAT16.astype(np.float32))


@pytest.mark.parametrize(
    ("dtype", "data"), [(DataType.SFIXED_POINT_8, INT4), (DataType.UFIXED_POINT_8, UINT4)], ids=["int4", "uint4"]
)
def test_data_of_four_bits_has_an_element_in_a_byte(dtype, data) -> None:
    tensor = constant(dtype, data, Quantization((0.5,), (0,), bits=4))
    assert tensor.is_four_bit
    assert tensor.data.dtype == dtype.numpy
    np.testing.assert_array_equal(tensor.data, data.astype(dtype.numpy))


@pytest.mark.parametrize(
    ("dtype", "data"),
    [
        (DataType.FLOAT_16, BFLOAT16), (DataType.UINT_16, BFLOAT16), (DataType.UFIXED_POINT_16, BFLOAT16),
        (DataType.BFLOAT_16, BFLOAT16.astype(np.float16)), (DataType.BFLOAT_16, BFLOAT16.astype(np.float32)),
        (DataType.UFIXED_POINT_8, INT4), (DataType.SFIXED_POINT_8, UINT4), (DataType.INT_8, INT4),
        (DataType.SFIXED_POINT_8, np.zeros(3, ml_dtypes.int2)),
    ],
)  # fmt: skip
def test_data_of_another_type_is_refused(dtype, data) -> None:
    with pytest.raises(QnnError, match=f"its data is {data.dtype.name}"):
        constant(dtype, data, FOUR_BITS if dtype.is_fixed_point else None)


def test_types_of_numpy_and_ml_dtypes_have_a_data_type() -> None:
    assert DataType.of(ml_dtypes.bfloat16) is DataType.BFLOAT_16
    assert DataType.of(np.float16) is DataType.FLOAT_16
    assert DataType.fixed_point(ml_dtypes.int4) is DataType.SFIXED_POINT_8
    assert DataType.fixed_point(ml_dtypes.uint4) is DataType.UFIXED_POINT_8
    for other in (ml_dtypes.int4, ml_dtypes.float8_e5m2):
        with pytest.raises(QnnError, match="QNN has no such type"):
            DataType.of(other)


@pytest.mark.parametrize("dtype", [DataType.FLOAT_16, DataType.BFLOAT_16, DataType.FLOAT_32, DataType.FLOAT_64])
def test_limits_of_floats_are_those_of_their_packages(dtype) -> None:
    limits = ml_dtypes.finfo(ml_dtypes.bfloat16 if dtype.is_bits else dtype.numpy)
    assert dtype.largest == float(limits.max)
    assert dtype.roundoff == float(limits.eps) / 2
