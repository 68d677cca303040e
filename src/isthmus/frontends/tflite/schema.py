"""The TFLite file format: field numbers of its tables, its enumerations, and the options of its operators."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

IDENTIFIER = b"TFL3"
VERSION = 3

# Fields of tables, by number.
ModelField = IntEnum(
    "ModelField", "VERSION OPERATOR_CODES SUBGRAPHS DESCRIPTION BUFFERS METADATA_BUFFER METADATA SIGNATURES", start=0
)
MetadataField = IntEnum("MetadataField", "NAME BUFFER", start=0)
"""Fields of a metadata entry: a name, and the number of the buffer with its contents."""
OperatorCodeField = IntEnum("OperatorCodeField", {"DEPRECATED_BUILTIN_CODE": 0, "CUSTOM_CODE": 1, "BUILTIN_CODE": 3})
SubgraphField = IntEnum("SubgraphField", "TENSORS INPUTS OUTPUTS OPERATORS NAME", start=0)

TensorField = IntEnum("TensorField", {
    "SHAPE": 0, "TYPE": 1, "BUFFER": 2, "NAME": 3, "QUANTIZATION": 4, "IS_VARIABLE": 5, "SPARSITY": 6,
    "SHAPE_SIGNATURE": 7, "EXTERNAL_BUFFER": 10,
})  # fmt: skip
OperatorField = IntEnum("OperatorField", {
    "OPCODE_INDEX": 0, "INPUTS": 1, "OUTPUTS": 2, "OPTIONS_TYPE": 3, "OPTIONS": 4, "CUSTOM_OPTIONS": 5,
    "LARGE_CUSTOM_OPTIONS_OFFSET": 9, "OPTIONS_2_TYPE": 11, "OPTIONS_2": 12,
})  # fmt: skip
BufferField = IntEnum("BufferField", "DATA OFFSET SIZE", start=0)
"""Fields of a buffer; offset and size locate bytes outside of the flatbuffer, in the same file."""
QuantizationField = IntEnum(
    "QuantizationField", {"SCALE": 2, "ZERO_POINT": 3, "DETAILS_TYPE": 4, "QUANTIZED_DIMENSION": 6}
)
SparsityField = IntEnum("SparsityField", "TRAVERSAL_ORDER BLOCK_MAP DIM_METADATA", start=0)
DimensionField = IntEnum("DimensionField", "FORMAT DENSE_SIZE SEGMENTS_TYPE SEGMENTS INDICES_TYPE INDICES", start=0)
"""Fields of one dimension of a sparse tensor."""
SPARSE_INDEX_TYPES: dict[int, type] = {1: np.int32, 2: np.uint16, 3: np.uint8}
"""Element types of a sparse dimension's index vectors, by union type."""
DENSE, SPARSE_CSR = 0, 1
"""Formats of a sparse tensor's stored dimensions."""


class ElementType(IntEnum):
    """TFLite's tensor types."""

    FLOAT32 = 0
    FLOAT16 = 1
    INT32 = 2
    UINT8 = 3
    INT64 = 4
    STRING = 5
    BOOL = 6
    INT16 = 7
    COMPLEX64 = 8
    INT8 = 9
    FLOAT64 = 10
    COMPLEX128 = 11
    UINT64 = 12
    RESOURCE = 13
    VARIANT = 14
    UINT32 = 15
    UINT16 = 16
    INT4 = 17
    BFLOAT16 = 18
    INT2 = 19
    UINT4 = 20
    FLOAT8_E4M3FN = 21
    FLOAT8_E5M2 = 22


_NAMED_AS_IN_NUMPY = (
    "FLOAT32", "FLOAT16", "INT32", "UINT8", "INT64", "BOOL", "INT16", "INT8", "FLOAT64", "UINT64", "UINT32", "UINT16",
)  # fmt: skip
NUMPY_TYPES: dict[ElementType, type] = {
    **{ElementType[name]: np.dtype(name.lower()).type for name in _NAMED_AS_IN_NUMPY},
    ElementType.INT4: np.int8,
}
"""The numpy type of each supported tensor type; INT4 is unpacked to a byte per element."""


class Padding(IntEnum):
    """Paddings of a window operator."""

    SAME = 0
    VALID = 1


class Activation(IntEnum):
    """Fused activation functions."""

    NONE = 0
    RELU = 1
    RELU_N1_TO_1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5


_OPERATORS = """
    ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
    FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION
    LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH
    CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER
    BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE
    BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM
    ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE
    TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK
    LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD
    RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N
    GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND HARD_SWISH IF WHILE
    NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM BATCH_MATMUL
    PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS HASHTABLE
    HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE ASSIGN_VARIABLE
    BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE RELU_0_TO_1
    UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR
    RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
    STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION
    STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE
    STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER
    STABLEHLO_REMAINDER STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER
    STABLEHLO_COMPARE STABLEHLO_CONVERT STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD
    STABLEHLO_IOTA STABLEHLO_DOT_GENERAL STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER
    STABLEHLO_TRANSPOSE DILATE STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT
    STABLEHLO_CBRT STABLEHLO_CASE
"""
OPERATORS: tuple[str, ...] = tuple(_OPERATORS.split())
"""The operators in the order of their numbers."""
CUSTOM = OPERATORS.index("CUSTOM")
EXTENDED = OPERATORS.index("PLACEHOLDER_FOR_GREATER_OP_CODES")
"""The 8-bit operator code that refers to the 32-bit one."""


@dataclass(frozen=True)
class Option:
    """An option: its field number, its kind (a scalar's, "text" or "i32[]") and its default."""

    field: int
    kind: str
    default: int | float | bool | str | None = 0


@dataclass(frozen=True)
class OptionsTable:
    """The options of some operators: the number of their union member, and the fields that are read."""

    union: int
    fields: dict[str, Option]
    second: bool = False
    """Whether the options are in the second options union, which newer operators use."""


def _options(union: int, **fields: tuple[Any, ...]) -> OptionsTable:
    """Describe options; each field is (field number, kind, default), with a default of 0 if it is omitted."""
    return OptionsTable(union, {name: Option(*field) for name, field in fields.items()})


def _row(first: int, kind: str, *names: str, default: float = 0) -> dict[str, tuple[Any, ...]]:
    """Describe fields with consecutive numbers from `first` on, of one kind."""
    return {name: (number, kind, default) for number, name in enumerate(names, first)}


_WINDOW: dict[str, tuple[Any, ...]] = {"padding": (0, "i8"), "stride_w": (1, "i32"), "stride_h": (2, "i32")}
_KEEP_DIMS = _options(27, keep_dims=(0, "bool", False))

OPTIONS: dict[str, OptionsTable] = {
    "CONV_2D": _options(1, **_WINDOW, activation=(3, "i8"), dilation_w=(4, "i32", 1), dilation_h=(5, "i32", 1)),
    "DEPTHWISE_CONV_2D": _options(
        2, **_WINDOW, activation=(4, "i8"), dilation_w=(5, "i32", 1), dilation_h=(6, "i32", 1)
    ),
    "AVERAGE_POOL_2D": _options(5, **_WINDOW, filter_w=(3, "i32"), filter_h=(4, "i32"), activation=(5, "i8")),
    "SVDF": _options(6, rank=(0, "i32"), activation=(1, "i8")),
    "FULLY_CONNECTED": _options(8, activation=(0, "i8"), weights_format=(1, "i8"), keep_num_dims=(2, "bool", False)),
    "SOFTMAX": _options(9, beta=(0, "f32", 0.0)),
    "CONCATENATION": _options(10, axis=(0, "i32"), activation=(1, "i8")),
    "ADD": _options(11, activation=(0, "i8")),
    "L2_NORMALIZATION": _options(12, activation=(0, "i8")),
    "LOCAL_RESPONSE_NORMALIZATION": _options(
        13, radius=(0, "i32"), bias=(1, "f32", 0.0), alpha=(2, "f32", 0.0), beta=(3, "f32", 0.0)
    ),
    "RESIZE_BILINEAR": _options(15, align_corners=(2, "bool", False), half_pixel_centers=(3, "bool", False)),
    "RESHAPE": _options(17, new_shape=(0, "i32[]", None)),
    "SPACE_TO_DEPTH": _options(19, block_size=(0, "i32")),
    "MUL": _options(21, activation=(0, "i8")),
    "GATHER": _options(23, axis=(0, "i32"), batch_dims=(1, "i32")),
    "SUB": _options(28, activation=(0, "i8")),
    "DIV": _options(29, activation=(0, "i8")),
    "SQUEEZE": _options(30, squeeze_dims=(0, "i32[]", None)),
    "STRIDED_SLICE": _options(
        32,
        **_row(0, "i32", "begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"),
        offset=(5, "bool", False),
    ),
    "SPLIT": _options(35, num_splits=(0, "i32")),
    "TRANSPOSE_CONV": _options(49, **_WINDOW, activation=(3, "i8")),
    "PACK": _options(59, axis=(1, "i32")),
    "ONE_HOT": _options(61, axis=(0, "i32")),
    "UNPACK": _options(64, num=(0, "i32"), axis=(1, "i32")),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _options(
        71,
        activation=(0, "i8"),
        **_row(1, "f32", "cell_clip", "proj_clip", default=0.0),
        time_major=(3, "bool", False),
        diagonal=(5, "bool", False),
    ),
    "RESIZE_NEAREST_NEIGHBOR": _options(74, align_corners=(0, "bool", False), half_pixel_centers=(1, "bool", False)),
    "LEAKY_RELU": _options(75, alpha=(0, "f32", 0.0)),
    "MIRROR_PAD": _options(77, mode=(0, "i8")),
    "SPLIT_V": _options(79, num_splits=(0, "i32")),
    "REVERSE_SEQUENCE": _options(87, seq_dim=(0, "i32"), batch_dim=(1, "i32")),
    "IF": _options(92, then_subgraph=(0, "i32"), else_subgraph=(1, "i32")),
    "WHILE": _options(93, cond_subgraph=(0, "i32"), body_subgraph=(1, "i32")),
    "DEPTH_TO_SPACE": _options(94, block_size=(0, "i32")),
    "BATCH_MATMUL": _options(101, adj_x=(0, "bool", False), adj_y=(1, "bool", False)),
    "CUMSUM": _options(102, exclusive=(0, "bool", False), reverse=(1, "bool", False)),
    "CALL_ONCE": _options(103, init_subgraph=(0, "i32")),
    "CONV_3D": _options(
        106,
        padding=(0, "i8"),
        **_row(1, "i32", "stride_d", "stride_w", "stride_h"),
        activation=(4, "i8"),
        **_row(5, "i32", "dilation_d", "dilation_w", "dilation_h", default=1),
    ),
    "VAR_HANDLE": _options(111, container=(0, "text", ""), shared_name=(1, "text", "")),
    "GELU": _options(116, approximate=(0, "bool", False)),
    "STABLEHLO_COMPOSITE": OptionsTable(21, {"subgraph": Option(1, "i32")}, second=True),
}
OPTIONS["MAX_POOL_2D"] = OPTIONS["L2_POOL_2D"] = OPTIONS["AVERAGE_POOL_2D"]
for _name in ("MEAN", "SUM", "REDUCE_PROD", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_ANY", "REDUCE_ALL"):
    OPTIONS[_name] = _KEEP_DIMS
