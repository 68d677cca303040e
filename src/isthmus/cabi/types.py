"""C structures of QNN's values: tensors of both versions with all quantization encodings, parameters, operations.

The names are those of QNN's headers, so that C listings and this code match. ``headers.txt`` declares their members;
sizes are those of 64-bit machines.
"""

from __future__ import annotations

from enum import IntEnum

from isthmus.cabi.notation import CStructure

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


class Version(CStructure, declares="Qnn_Version_t"):
    """Qnn_Version_t."""

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class ScaleOffset(CStructure, declares="Qnn_ScaleOffset_t"):
    """Qnn_ScaleOffset_t: real = (stored + offset) * scale."""


class AxisScaleOffset(CStructure, declares="Qnn_AxisScaleOffset_t"):
    """Qnn_AxisScaleOffset_t."""


class BwScaleOffset(CStructure, declares="Qnn_BwScaleOffset_t"):
    """Qnn_BwScaleOffset_t: values with fewer bits than their type."""


class BwAxisScaleOffset(CStructure, declares="Qnn_BwAxisScaleOffset_t"):
    """Qnn_BwAxisScaleOffset_t; null offsets mean that all are 0."""


class BlockEncoding(CStructure, declares="Qnn_BlockEncoding_t"):
    """Qnn_BlockEncoding_t: a block's size in every dimension, and a scale and offset for every block."""


class BlockwiseExpansion(CStructure, declares="Qnn_BlockwiseExpansion_t"):
    """Qnn_BlockwiseExpansion_t: a scale and offset per index of an axis, and an integer factor per block along it."""


class QuantizeParams(CStructure, declares="Qnn_QuantizeParams_t"):
    """Qnn_QuantizeParams_t."""


class ClientBuffer(CStructure, declares="Qnn_ClientBuffer_t"):
    """Qnn_ClientBuffer_t."""


class TensorV1(CStructure, declares="Qnn_TensorV1_t"):
    """Qnn_TensorV1_t."""


class TensorV2(CStructure, declares="Qnn_TensorV2_t"):
    """Qnn_TensorV2_t: the first version's fields, followed by more."""


class Tensor(CStructure, declares="Qnn_Tensor_t"):
    """Qnn_Tensor_t. The fields common to both versions can be read and written as `v1`."""


class TensorSetV1(CStructure, declares="Qnn_TensorSetV1_t"):
    """Qnn_TensorSetV1_t."""


class Scalar(CStructure, declares="Qnn_Scalar_t"):
    """Qnn_Scalar_t."""


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


class Param(CStructure, declares="Qnn_Param_t"):
    """Qnn_Param_t."""


class OpConfigV1(CStructure, declares="Qnn_OpConfigV1_t"):
    """Qnn_OpConfigV1_t."""


class OpConfig(CStructure, declares="Qnn_OpConfig_t"):
    """Qnn_OpConfig_t."""
