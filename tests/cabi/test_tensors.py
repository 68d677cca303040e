"""Tensors in C, read field by field."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from isthmus.cabi import types
from isthmus.cabi.tensors import TensorFields, tensor_fields


@pytest.mark.parametrize("version", [1, 2])
def test_of_an_absent_tensor_nothing_is_read_but_what_identifies_it(version: int) -> None:
    """What else is in its structure was never set: it points nowhere, and its numbers mean nothing."""
    name = b"absent"
    tensor = types.Tensor.from_buffer_copy(np.full(ctypes.sizeof(types.Tensor), 0xA5, np.uint8).tobytes())
    tensor.version = version
    tensor.v1.id, tensor.v1.name, tensor.v1.type, tensor.v1.dataType = 7, name, types.TensorKind.NULL, 0x232
    expected = TensorFields(
        id=7, name="absent", type=types.TensorKind.NULL, dtype=0x232, dims=(), encoding=None,
        mem_type=types.TensorMemType.RAW, data=0, nbytes=0, data_format=0,
    )  # fmt: skip
    assert tensor_fields(tensor) == expected
