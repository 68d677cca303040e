"""Descriptions of a client's tensors (`Qnn_Tensor_t`), copied safely, with QNN's own numbers.

This module checks what every reader needs: a known version and format, and possible sizes. The reader decides which
data types, kinds of tensors and encodings it supports.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod

import numpy as np

from isthmus.cabi import types
from isthmus.cabi.client import pointer, read, read_array, text
from isthmus.errors import Code, QnnError

MAX_RANK = 8
MAX_SCALES = 1 << 24
"""Maximum number of scales of one encoding."""
# QNN_BLOCKWISE_EXPANSION_BITWIDTH_SCALE_STORAGE_16.
_FACTORS_IN_16_BITS = 1
# QNN_TENSOR_DATA_FORMAT_DENSE.
_DENSE = 0
_PAIR = np.dtype([("scale", np.float32), ("offset", np.int32)])
assert _PAIR.itemsize == ctypes.sizeof(types.ScaleOffset)


@dataclass(frozen=True)
class EncodingFields:
    """An encoding of reals as integers: one scale and offset, or one pair per index along an axis.

    - `bits`: How many low bits of an element are significant; 0 for all bits of its data type. Of BLOCKWISE_EXPANSION,
      the bits of a factor.
    - `kind`: QNN's number for the encoding. An encoding that is not read here has no scales.
    - `blocks`: The size of a block in each dimension (BLOCK, which has a pair for each block), or the number of blocks
      of a channel (BLOCKWISE_EXPANSION, which has a pair for each channel along the axis); otherwise empty.
    - `factors`: The factor of each block of BLOCKWISE_EXPANSION, channel by channel; otherwise empty.
    """

    scales: np.ndarray
    offsets: np.ndarray
    axis: int | None
    bits: int
    kind: int
    blocks: np.ndarray
    factors: np.ndarray


@dataclass(frozen=True)
class TensorFields:
    """A tensor's fields. For an absent input or output (NULL), only the id, name and types are read.

    - `type`, `dtype`, `mem_type`: QNN's numbers (`TensorKind`, Qnn_DataType_t, `TensorMemType`), which may be unknown
      ones.
    - `data`, `nbytes`: The address and size of its elements; 0 for a tensor without elements, or with a memory handle.
    - `data_format`: QNN_TENSOR_DATA_FORMAT_*.
    """

    id: int
    name: str
    type: int
    dtype: int
    dims: tuple[int, ...] = ()
    encoding: EncodingFields | None = None
    mem_type: int = types.TensorMemType.RAW
    data: int = 0
    nbytes: int = 0
    data_format: int = 0


def tensor_fields(tensor: types.Tensor) -> TensorFields:
    """Read a tensor's fields."""
    # Version 1 has the same fields as the first ones of version 2.
    fields = tensor.v2
    name = text(pointer(fields, "name")) or ""
    what = f"tensor '{name}'"
    if tensor.version not in (1, 2):
        rule = f"its version {tensor.version} is neither 1 nor 2"
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, rule)
    if fields.type == types.TensorKind.NULL:
        return TensorFields(fields.id, name, fields.type, fields.dataType)
    if fields.rank > MAX_RANK:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"its rank {fields.rank} is above {MAX_RANK}")
    dims = tuple(read_array(pointer(fields, "dimensions"), np.uint32, (fields.rank,)).tolist())
    dynamic = pointer(fields, "isDynamicDimensions") if tensor.version == 2 else 0
    if dynamic and fields.rank and read_array(dynamic, np.uint8, (fields.rank,)).any():
        raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, "it has dynamic dimensions")
    encoding = _encoding(what, fields.quantizeParams, dims)
    has_data = fields.memType != types.TensorMemType.MEMHANDLE
    return TensorFields(
        fields.id, name, fields.type, fields.dataType, dims, encoding, fields.memType,
        (fields.clientBuf.data or 0) if has_data else 0, fields.clientBuf.dataSize if has_data else 0,
        fields.dataFormat,
    )  # fmt: skip


def check_dense(what: str, data_format: int) -> None:
    """Refuse a tensor, `what`, whose elements are in a format of QNN's other than one after the other."""
    if data_format != _DENSE:
        rule = f"its data format {data_format} is not dense"
        raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, rule)


def _encoding(what: str, params: types.QuantizeParams, dims: tuple[int, ...]) -> EncodingFields | None:
    """Read a tensor's quantization; None if it is not defined. `what` is the tensor, for messages."""
    if params.encodingDefinition != types.Definition.DEFINED:
        return None
    kind = params.quantizationEncoding
    axis, bits = None, 0
    scales, offsets = np.empty(0, np.float32), np.empty(0, np.int32)
    blocks, factors = np.empty(0, np.uint32), np.empty(0, np.uint16)
    if kind in (types.QuantizationEncoding.SCALE_OFFSET, types.QuantizationEncoding.BW_SCALE_OFFSET):
        pair = params.scaleOffsetEncoding
        if kind == types.QuantizationEncoding.BW_SCALE_OFFSET:
            pair, bits = params.bwScaleOffsetEncoding, params.bwScaleOffsetEncoding.bitwidth
        scales, offsets = np.array([pair.scale], np.float32), np.array([pair.offset], np.int32)
    elif kind == types.QuantizationEncoding.AXIS_SCALE_OFFSET:
        by_axis = params.axisScaleOffsetEncoding
        axis = by_axis.axis
        pairs = read_array(pointer(by_axis, "scaleOffset"), _PAIR, _shape(what, by_axis.numScaleOffsets))
        scales, offsets = pairs["scale"], pairs["offset"]
    elif kind == types.QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
        by_axis = params.bwAxisScaleOffsetEncoding
        axis, bits, shape = by_axis.axis, by_axis.bitwidth, _shape(what, by_axis.numElements)
        scales, offsets = read_array(pointer(by_axis, "scales"), np.float32, shape), np.zeros(shape, np.int32)
        if pointer(by_axis, "offsets"):
            offsets = read_array(pointer(by_axis, "offsets"), np.int32, shape)
    elif kind == types.QuantizationEncoding.BLOCK:
        by_block = params.blockEncoding
        blocks = read_array(pointer(by_block, "blockSize"), np.uint32, (len(dims),))
        if not len(blocks) or not blocks.all():
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"blocks of {blocks.tolist()} elements are none")
        count = prod(-(-dim // size) for dim, size in zip(dims, blocks.tolist(), strict=True))
        pairs = read_array(pointer(by_block, "scaleOffset"), _PAIR, _shape(what, count))
        scales, offsets = pairs["scale"], pairs["offset"]
    elif kind == types.QuantizationEncoding.BLOCKWISE_EXPANSION:
        expansion = read(pointer(params, "blockwiseExpansion"), types.BlockwiseExpansion)
        axis, count, bits = expansion.axis, expansion.numBlocksPerAxis, expansion.blockScaleBitwidth
        if not 0 <= axis < len(dims):
            raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"axis {axis} is outside rank {len(dims)}")
        pairs = read_array(pointer(expansion, "scaleOffsets"), _PAIR, _shape(what, dims[axis]))
        scales, offsets, blocks = pairs["scale"], pairs["offset"], np.array([count], np.uint32)
        wide = expansion.blockScaleStorageType == _FACTORS_IN_16_BITS
        field, width = ("blocksScale16", np.uint16) if wide else ("blocksScale8", np.uint8)
        factors = read_array(pointer(expansion, field), width, _shape(what, dims[axis] * count)).astype(np.uint16)
    return EncodingFields(scales, offsets, axis, bits, kind, blocks, factors)


def _shape(what: str, count: int) -> tuple[int]:
    """Return the shape of an array of that many scales; refuse a count that cannot be right."""
    if count > MAX_SCALES:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"{count} scales are more than any tensor has")
    return (count,)
