"""C structures of QNN's values: tensors of both versions with all quantization encodings, parameters, operations.

The names are those of QNN's headers, so that C listings and this code match. Sizes are those of 64-bit machines; tests
compare them with a compiler's sizes for our header.
"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    c_char_p,
    c_double,
    c_float,
    c_int8,
    c_int16,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from enum import IntEnum
from typing import Any

UNDEFINED = 0x7FFFFFFF
"""The undefined value of every QNN enumeration."""


class Definition(IntEnum):
    """QNN_DEFINITION_*: who defines the value that follows."""

    IMPL_GENERATED = 0
    DEFINED = 1
    UNDEFINED = UNDEFINED


class QuantizationEncoding(IntEnum):
    """QNN_QUANTIZATION_ENCODING_*."""

    SCALE_OFFSET = 0
    AXIS_SCALE_OFFSET = 1
    BW_SCALE_OFFSET = 2
    BW_AXIS_SCALE_OFFSET = 3
    BLOCK = 4
    BLOCKWISE_EXPANSION = 5
    VECTOR = 6
    UNDEFINED = UNDEFINED


class TensorKind(IntEnum):
    """QNN_TENSOR_TYPE_*: the six types that graphs use, and those that a client may update or omit."""

    APP_WRITE = 0
    APP_READ = 1
    APP_READWRITE = 2
    NATIVE = 3
    STATIC = 4
    NULL = 5
    UPDATEABLE_STATIC = 6
    UPDATEABLE_NATIVE = 7
    UPDATEABLE_APP_WRITE = 8
    UPDATEABLE_APP_READ = 9
    UPDATEABLE_APP_READWRITE = 10
    OPTIONAL_APP_WRITE = 11
    OPTIONAL_APP_READ = 12
    OPTIONAL_APP_READWRITE = 13
    UNDEFINED = UNDEFINED


class TensorMemType(IntEnum):
    """QNN_TENSORMEMTYPE_*."""

    RAW = 0
    MEMHANDLE = 1
    RETRIEVE_RAW = 2
    UNDEFINED = UNDEFINED


class ParamType(IntEnum):
    """QNN_PARAMTYPE_*."""

    SCALAR = 0
    TENSOR = 1


DATATYPE_SFIXED_POINT_4 = 0x0304
DATATYPE_UFIXED_POINT_4 = 0x0404
DATATYPE_STRING = 0x0608
"""Data types of parameters and packed weights that no tensor of a graph has here."""


class Version(ctypes.Structure):
    """Qnn_Version_t."""

    _fields_ = [("major", c_uint32), ("minor", c_uint32), ("patch", c_uint32)]

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class ScaleOffset(ctypes.Structure):
    """Qnn_ScaleOffset_t: real = (stored + offset) * scale."""

    _fields_ = [("scale", c_float), ("offset", c_int32)]


class AxisScaleOffset(ctypes.Structure):
    """Qnn_AxisScaleOffset_t."""

    _fields_ = [("axis", c_int32), ("numScaleOffsets", c_uint32), ("scaleOffset", POINTER(ScaleOffset))]


class BwScaleOffset(ctypes.Structure):
    """Qnn_BwScaleOffset_t: values with fewer bits than their type."""

    _fields_ = [("bitwidth", c_uint32), ("scale", c_float), ("offset", c_int32)]


class BwAxisScaleOffset(ctypes.Structure):
    """Qnn_BwAxisScaleOffset_t; null offsets mean that all are 0."""

    _fields_ = [
        ("bitwidth", c_uint32),
        ("axis", c_int32),
        ("numElements", c_uint32),
        ("scales", POINTER(c_float)),
        ("offsets", POINTER(c_int32)),
    ]


class BlockEncoding(ctypes.Structure):
    """Qnn_BlockEncoding_t: a block's size in every dimension, and a scale and offset for every block."""

    _fields_ = [("blockSize", POINTER(c_uint32)), ("scaleOffset", POINTER(ScaleOffset))]


class BlockScales(ctypes.Union):
    """The scales of blocks, in 8 or in 16 bits."""

    _fields_ = [("blocksScale8", POINTER(c_uint8)), ("blocksScale16", POINTER(c_uint16))]


class BlockwiseExpansion(ctypes.Structure):
    """Qnn_BlockwiseExpansion_t: a scale and offset per index of an axis, and an integer factor per block along it."""

    _anonymous_ = ("blocks",)
    _fields_ = [
        ("axis", c_int32),
        ("scaleOffsets", POINTER(ScaleOffset)),
        ("numBlocksPerAxis", c_uint32),
        ("blockScaleBitwidth", c_uint32),
        ("blockScaleStorageType", c_uint32),
        ("blocks", BlockScales),
    ]


class VectorEncoding(ctypes.Structure):
    """Qnn_VectorEncoding_t: weights that are looked up in a codebook."""

    _fields_ = [
        ("bwAxisScaleOffset", BwAxisScaleOffset),
        ("rowsPerBlock", c_uint32),
        ("columnsPerBlock", c_uint32),
        ("vectorDimension", c_uint8),
        ("vectorStride", c_uint8),
        ("indexBitwidth", c_uint8),
    ]


class EncodingUnion(ctypes.Union):
    """One of the encodings; the last two are pointers."""

    _fields_ = [
        ("scaleOffsetEncoding", ScaleOffset),
        ("axisScaleOffsetEncoding", AxisScaleOffset),
        ("bwScaleOffsetEncoding", BwScaleOffset),
        ("bwAxisScaleOffsetEncoding", BwAxisScaleOffset),
        ("blockEncoding", BlockEncoding),
        ("blockwiseExpansion", POINTER(BlockwiseExpansion)),
        ("vectorEncoding", POINTER(VectorEncoding)),
    ]


class QuantizeParams(ctypes.Structure):
    """Qnn_QuantizeParams_t."""

    _anonymous_ = ("encoding",)
    _fields_ = [("encodingDefinition", c_uint32), ("quantizationEncoding", c_uint32), ("encoding", EncodingUnion)]


class ClientBuffer(ctypes.Structure):
    """Qnn_ClientBuffer_t."""

    _fields_ = [("data", c_void_p), ("dataSize", c_uint32)]


class TensorMemory(ctypes.Union):
    """The source of a tensor's elements: raw memory, registered memory, or a callback."""

    _fields_ = [("clientBuf", ClientBuffer), ("memHandle", c_void_p), ("retrieveRaw", c_void_p)]


# The fields that both versions of a tensor begin with.
_TENSOR_V1: list[Any] = [
    ("id", c_uint32),
    ("name", c_char_p),
    ("type", c_uint32),
    ("dataFormat", c_uint32),
    ("dataType", c_uint32),
    ("quantizeParams", QuantizeParams),
    ("rank", c_uint32),
    ("dimensions", POINTER(c_uint32)),
    ("memType", c_uint32),
    ("memory", TensorMemory),
]


class TensorV1(ctypes.Structure):
    """Qnn_TensorV1_t."""

    _anonymous_ = ("memory",)
    _fields_ = _TENSOR_V1


class SparseParams(ctypes.Structure):
    """Qnn_SparseParams_t, with its only layout."""

    _fields_ = [("type", c_uint32), ("numSpecifiedElements", c_uint32), ("numSparseDimensions", c_uint32)]


class TensorV2(ctypes.Structure):
    """Qnn_TensorV2_t: the first version's fields, followed by more."""

    _anonymous_ = ("memory",)
    _fields_ = [
        *_TENSOR_V1,
        ("isDynamicDimensions", POINTER(c_uint8)),
        ("sparseParams", SparseParams),
        ("isProduced", c_uint8),
    ]


class TensorUnion(ctypes.Union):
    """A tensor of one version or the other."""

    _fields_ = [("v1", TensorV1), ("v2", TensorV2)]


class Tensor(ctypes.Structure):
    """Qnn_Tensor_t. The fields common to both versions can be read and written as `v1`."""

    _anonymous_ = ("versions",)
    _fields_ = [("version", c_uint32), ("versions", TensorUnion)]


class TensorSetV1(ctypes.Structure):
    """Qnn_TensorSetV1_t."""

    _fields_ = [
        ("numInputs", c_uint32),
        ("inputs", POINTER(Tensor)),
        ("numOutputs", c_uint32),
        ("outputs", POINTER(Tensor)),
    ]


class TensorSet(ctypes.Structure):
    """Qnn_TensorSet_t."""

    _fields_ = [("version", c_uint32), ("v1", TensorSetV1)]


class ScalarUnion(ctypes.Union):
    """A value of one of the types."""

    _fields_ = [
        ("floatValue", c_float),
        ("doubleValue", c_double),
        ("uint64Value", c_uint64),
        ("int64Value", c_int64),
        ("uint32Value", c_uint32),
        ("int32Value", c_int32),
        ("uint16Value", c_uint16),
        ("int16Value", c_int16),
        ("uint8Value", c_uint8),
        ("int8Value", c_int8),
        ("bool8Value", c_uint8),
        ("stringValue", c_char_p),
    ]


class Scalar(ctypes.Structure):
    """Qnn_Scalar_t."""

    _anonymous_ = ("value",)
    _fields_ = [("dataType", c_uint32), ("value", ScalarUnion)]


SCALAR_FIELDS = {
    0x0008: "int8Value",
    0x0016: "int16Value",
    0x0032: "int32Value",
    0x0064: "int64Value",
    0x0108: "uint8Value",
    0x0116: "uint16Value",
    0x0132: "uint32Value",
    0x0164: "uint64Value",
    0x0232: "floatValue",
    0x0264: "doubleValue",
    0x0508: "bool8Value",
    DATATYPE_STRING: "stringValue",
}
"""The field of a scalar that holds a value of each data type."""


class ParamUnion(ctypes.Union):
    """A scalar or a tensor."""

    _fields_ = [("scalarParam", Scalar), ("tensorParam", Tensor)]


class Param(ctypes.Structure):
    """Qnn_Param_t."""

    _anonymous_ = ("parameter",)
    _fields_ = [("paramType", c_uint32), ("name", c_char_p), ("parameter", ParamUnion)]


class OpConfigV1(ctypes.Structure):
    """Qnn_OpConfigV1_t."""

    _fields_ = [
        ("name", c_char_p),
        ("packageName", c_char_p),
        ("typeName", c_char_p),
        ("numOfParams", c_uint32),
        ("params", POINTER(Param)),
        ("numOfInputs", c_uint32),
        ("inputTensors", POINTER(Tensor)),
        ("numOfOutputs", c_uint32),
        ("outputTensors", POINTER(Tensor)),
    ]


class OpConfig(ctypes.Structure):
    """Qnn_OpConfig_t."""

    _fields_ = [("version", c_uint32), ("v1", OpConfigV1)]
