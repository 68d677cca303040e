"""The recorder writes down what clients compose: whole, or a refusal; nothing is left out without a word."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from isthmus.errors import Code
from isthmus.graph import DataType, TensorType
from isthmus.qnn import interface
from isthmus.qnn.interface import types
from isthmus.qnn.recorder import MAX_SCALES, Recorder


class Client:
    """Composes one graph on a recorder."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        out = ctypes.c_void_p()
        assert interface.function(self.recorder.table, "graphCreate")(0x20, b"g", None, ctypes.byref(out)) == 0
        self.graph = out.value

    def create(self, tensor: types.Tensor) -> int:
        """Create a tensor; the answer."""
        create = interface.function(self.recorder.table, "tensorCreateGraphTensor")
        return int(create(self.graph, ctypes.byref(tensor)))


def tensor(rank: int = 2, version: int = 1) -> types.Tensor:
    made = types.Tensor()
    made.version = version
    made.v1.name, made.v1.type, made.v1.dataType = b"t", int(TensorType.NATIVE), int(DataType.SFIXED_POINT_8)
    made.v1.rank, made.v1.dimensions = rank, (ctypes.c_uint32 * rank)(*([3] * rank))
    made.v1.quantizeParams.encodingDefinition = types.UNDEFINED
    return made


def encoded(count: int, bits: int) -> types.Tensor:
    """A tensor with so many channels of its own scale and offset."""
    made = tensor()
    params = made.v1.quantizeParams
    params.encodingDefinition = types.Definition.DEFINED
    if bits:
        params.quantizationEncoding = types.QuantizationEncoding.BW_AXIS_SCALE_OFFSET
        scales, offsets = (ctypes.c_float * count)(*range(count)), (ctypes.c_int32 * count)(*range(count))
        params.bwAxisScaleOffsetEncoding = types.BwAxisScaleOffset(bits, 1, count, scales, offsets)
    else:
        params.quantizationEncoding = types.QuantizationEncoding.AXIS_SCALE_OFFSET
        pairs = np.zeros(count, [("scale", np.float32), ("offset", np.int32)])
        pairs["scale"], pairs["offset"] = np.arange(count), np.arange(count)
        held = (types.ScaleOffset * count).from_buffer_copy(pairs.tobytes())
        params.axisScaleOffsetEncoding = types.AxisScaleOffset(1, count, held)
    return made


@pytest.mark.parametrize("bits", [0, 4])
def test_as_many_channels_as_a_vocabulary_has_are_kept(bits: int) -> None:
    client, count = Client(), 100_000
    assert client.create(encoded(count, bits)) == 0
    encoding = client.recorder.graphs[0].tensors[0].encoding
    assert encoding is not None
    assert (encoding.axis, encoding.bits) == (1, bits)
    np.testing.assert_array_equal(encoding.scales, np.arange(count, dtype=np.float32))
    np.testing.assert_array_equal(encoding.offsets, np.arange(count))


def test_more_channels_than_any_tensor_has_are_refused() -> None:
    client, given = Client(), encoded(1, 0)
    given.v1.quantizeParams.axisScaleOffsetEncoding.numScaleOffsets = MAX_SCALES + 1
    assert client.create(given) == Code.COMMON_INVALID_ARGUMENT


def test_dynamic_dimensions_are_refused_and_fixed_ones_are_not() -> None:
    client = Client()
    for flags, answer in (((0, 0), 0), ((0, 1), Code.TENSOR_UNSUPPORTED_TENSOR_PARAM)):
        given = tensor(version=2)
        given.v2.isDynamicDimensions = (ctypes.c_uint8 * 2)(*flags)
        assert client.create(given) == answer
    assert client.recorder.problem is not None
    assert client.recorder.problem.rule == "it has dynamic dimensions"
    assert len(client.recorder.graphs[0].tensors) == 1


def test_what_lies_behind_a_tensor_of_the_first_version_is_not_read() -> None:
    client, given = Client(), tensor(version=1)
    offset = types.Tensor.versions.offset + types.TensorV2.isDynamicDimensions.offset
    ctypes.c_uint64.from_address(ctypes.addressof(given) + offset).value = 16
    assert client.create(given) == 0


def test_sparse_tensors_are_refused() -> None:
    client, given = Client(), tensor(version=2)
    given.v1.dataFormat = 3
    assert client.create(given) == Code.TENSOR_UNSUPPORTED_TENSOR_PARAM
