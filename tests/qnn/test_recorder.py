"""What a library tells of tensors is copied, or refused by name where it cannot be."""

import ctypes

import numpy as np
import pytest

from isthmus.cabi.tables import function
from isthmus.cabi.tensors import MAX_RANK, MAX_SCALES
from isthmus.cabi.types import (
    AxisScaleOffset,
    Definition,
    QuantizationEncoding,
    ScaleOffset,
    Tensor,
    TensorKind,
    TensorMemType,
)
from isthmus.errors import Code
from isthmus.frontends.composed.entries import ComposedTensor
from isthmus.graph import DataType
from isthmus.qnn.recorder import Recorder

DIMS = (ctypes.c_uint32 * 2)(2, 3)
BYTES = (ctypes.c_ubyte * 6)(*range(6))


def described(**fields) -> Tensor:
    """A tensor of bytes as C describes it."""
    tensor = Tensor()
    tensor.version = fields.pop("version", 2)
    reported = tensor.v2
    reported.name, reported.type, reported.dataType, reported.rank, reported.dimensions = (
        b"t",
        TensorKind.NATIVE,
        DataType.UINT_8,
        2,
        DIMS,
    )
    for name, value in fields.items():
        setattr(reported, name, value)
    return tensor


def record_tensor(tensor: Tensor) -> tuple[int, ComposedTensor | None, str]:
    """The answer to a tensor's creation, what was recorded of it, and why it was refused."""
    recorder, graph = Recorder(), ctypes.c_void_p()
    assert function(recorder.table, "graphCreate")(0x20, b"g", None, ctypes.byref(graph)) == 0
    error = function(recorder.table, "tensorCreateGraphTensor")(graph, ctypes.byref(tensor))
    tensors = recorder.graphs[0].tensors
    return error, tensors[0] if tensors else None, "" if recorder.problem is None else str(recorder.problem)


def along(axis: int, count: int, pairs: object) -> Tensor:
    """A tensor with scales along an axis."""
    tensor = described()
    tensor.v2.quantizeParams.encodingDefinition = Definition.DEFINED
    tensor.v2.quantizeParams.quantizationEncoding = QuantizationEncoding.AXIS_SCALE_OFFSET
    tensor.v2.quantizeParams.axisScaleOffsetEncoding = AxisScaleOffset(axis, count, pairs)
    return tensor


def test_a_tensor_is_reported_with_its_bytes() -> None:
    tensor = described(type=TensorKind.STATIC)
    tensor.v2.clientBuf.data, tensor.v2.clientBuf.dataSize = ctypes.addressof(BYTES), 6
    error, entry, _ = record_tensor(tensor)
    assert (error, entry.name, entry.type, entry.dims) == (0, "t", TensorKind.STATIC, (2, 3))
    assert entry.dtype == DataType.UINT_8
    assert bytes(entry.data) == bytes(range(6))
    scalar = record_tensor(described(rank=0, dimensions=None))[1]
    assert (scalar.dims, scalar.data) == ((), None)


def test_scales_are_copied_and_there_may_be_none() -> None:
    pairs = (ScaleOffset * 3)(ScaleOffset(0.5, 1), ScaleOffset(0.25, 2), ScaleOffset(2.0, -3))
    error, entry, _ = record_tensor(along(1, 3, pairs))
    assert (error, entry.encoding.axis, entry.encoding.kind) == (0, 1, QuantizationEncoding.AXIS_SCALE_OFFSET)
    np.testing.assert_array_equal(entry.encoding.scales, np.float32([0.5, 0.25, 2.0]))
    np.testing.assert_array_equal(entry.encoding.offsets, np.int32([1, 2, -3]))
    error, entry, _ = record_tensor(along(0, 0, None))
    assert (error, len(entry.encoding.scales), len(entry.encoding.offsets)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("tensor", "rule", "code"),
    [
        (along(1, 1, None), "a pointer is null", Code.TENSOR_INVALID_TENSOR_PARAM),
        (along(1, 1, ctypes.cast(64, ctypes.POINTER(ScaleOffset))), "are not memory", Code.TENSOR_INVALID_TENSOR_PARAM),
        (along(1, MAX_SCALES + 1, (ScaleOffset * 1)()), "more than any tensor has", Code.TENSOR_INVALID_TENSOR_PARAM),
        (described(version=3), "its version 3 is neither 1 nor 2", Code.TENSOR_INVALID_TENSOR_PARAM),
        (described(name=None), "it has no name", Code.COMMON_INVALID_ARGUMENT),
        (described(dimensions=None), "a pointer is null", Code.TENSOR_INVALID_TENSOR_PARAM),
        (described(rank=MAX_RANK + 1), f"its rank {MAX_RANK + 1} is above", Code.TENSOR_INVALID_TENSOR_PARAM),
        (described(dataFormat=1), "its data format 1 is not dense", Code.TENSOR_UNSUPPORTED_TENSOR_PARAM),
        (
            described(isDynamicDimensions=(ctypes.c_uint8 * 2)(0, 1)),
            "it has dynamic dimensions",
            Code.TENSOR_UNSUPPORTED_TENSOR_PARAM,
        ),
        (
            described(type=TensorKind.STATIC, memType=TensorMemType.MEMHANDLE),
            "a STATIC tensor needs its data",
            Code.TENSOR_INVALID_TENSOR_PARAM,
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(tensor, rule, code) -> None:
    error, entry, problem = record_tensor(tensor)
    assert (error, entry) == (code, None)
    assert rule in problem


def test_dimensions_that_are_all_fixed_are_not_dynamic() -> None:
    assert record_tensor(described(isDynamicDimensions=(ctypes.c_uint8 * 2)(0, 0)))[0] == 0
