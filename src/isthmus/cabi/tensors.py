"""What a client's tensors say of themselves (`Qnn_Tensor_t`), copied with care, in QNN's own numbers.

Here is checked what every reader needs: a version and a form that are understood, and sizes that can be. Which data
types, kinds of tensors and encodings there may be is for the reader to say.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from isthmus.cabi.client import pointer, read_array, text
from isthmus.cabi.types import (
    Definition,
    QuantizationEncoding,
    QuantizeParams,
    ScaleOffset,
    Tensor,
    TensorKind,
    TensorMemType,
)
from isthmus.errors import Code, QnnError

MAX_RANK = 8
MAX_SCALES = 1 << 24
"""The most scales of one encoding."""
_DENSE = 0
_PAIR = np.dtype([("scale", np.float32), ("offset", np.int32)])
assert _PAIR.itemsize == ctypes.sizeof(ScaleOffset)


@dataclass(frozen=True)
class EncodingFields:
    """How stored integers mean reals: one scale and offset, or one of each an index along an axis.

    Parameters
    ----------
    bits
        How many low bits of an element count; 0 for all that its data type has.
    kind
        QNN's number for the form. Of one that is not read here there are no scales.
    """

    scales: np.ndarray
    offsets: np.ndarray
    axis: int | None
    bits: int
    kind: int


@dataclass(frozen=True)
class TensorFields:
    """A tensor. Of one that stands for an absent input or output (NULL) nothing is read but its name.

    Parameters
    ----------
    data, nbytes
        Where its elements are, and how many bytes of them; 0 for a tensor that has none, or a memory handle.
    """

    id: int
    name: str
    type: int
    dtype: int
    dims: tuple[int, ...] = ()
    encoding: EncodingFields | None = None
    mem_type: int = TensorMemType.RAW
    data: int = 0
    nbytes: int = 0


def tensor_fields(tensor: Tensor) -> TensorFields:
    """Read what a tensor says.

    Raises
    ------
    BadPointer
        If it points to what is not there.
    QnnError
        TENSOR_INVALID_TENSOR_PARAM or TENSOR_UNSUPPORTED_TENSOR_PARAM for what cannot be read.
    """
    fields = tensor.v2
    name = text(pointer(fields, "name")) or ""
    what = f"tensor '{name}'"
    if tensor.version not in (1, 2):
        rule = f"its version {tensor.version} is neither 1 nor 2"
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, rule)
    if fields.type == TensorKind.NULL:
        return TensorFields(fields.id, name, fields.type, fields.dataType)
    if fields.dataFormat != _DENSE:
        rule = f"its data format {fields.dataFormat} is not dense"
        raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, rule)
    if fields.rank > MAX_RANK:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"its rank {fields.rank} is above {MAX_RANK}")
    dims = tuple(read_array(pointer(fields, "dimensions"), np.uint32, (fields.rank,)).tolist())
    dynamic = pointer(fields, "isDynamicDimensions") if tensor.version == 2 else 0
    if dynamic and fields.rank and read_array(dynamic, np.uint8, (fields.rank,)).any():
        raise QnnError(Code.TENSOR_UNSUPPORTED_TENSOR_PARAM, what, "it has dynamic dimensions")
    encoding = _encoding(what, fields.quantizeParams)
    has_data = fields.memType != TensorMemType.MEMHANDLE
    return TensorFields(
        fields.id, name, fields.type, fields.dataType, dims, encoding, fields.memType,
        (fields.clientBuf.data or 0) if has_data else 0, fields.clientBuf.dataSize if has_data else 0,
    )  # fmt: skip


def _encoding(what: str, params: QuantizeParams) -> EncodingFields | None:
    if params.encodingDefinition != Definition.DEFINED:
        return None
    kind = params.quantizationEncoding
    axis, bits = None, 0
    scales, offsets = np.empty(0, np.float32), np.empty(0, np.int32)
    if kind in (QuantizationEncoding.SCALE_OFFSET, QuantizationEncoding.BW_SCALE_OFFSET):
        one = params.scaleOffsetEncoding
        if kind == QuantizationEncoding.BW_SCALE_OFFSET:
            one, bits = params.bwScaleOffsetEncoding, params.bwScaleOffsetEncoding.bitwidth
        scales, offsets = np.array([one.scale], np.float32), np.array([one.offset], np.int32)
    elif kind == QuantizationEncoding.AXIS_SCALE_OFFSET:
        along = params.axisScaleOffsetEncoding
        axis = along.axis
        pairs = read_array(pointer(along, "scaleOffset"), _PAIR, _count(what, along.numScaleOffsets))
        scales, offsets = pairs["scale"], pairs["offset"]
    elif kind == QuantizationEncoding.BW_AXIS_SCALE_OFFSET:
        along = params.bwAxisScaleOffsetEncoding
        axis, bits, count = along.axis, along.bitwidth, _count(what, along.numElements)
        scales, offsets = read_array(pointer(along, "scales"), np.float32, count), np.zeros(count, np.int32)
        if pointer(along, "offsets"):
            offsets = read_array(pointer(along, "offsets"), np.int32, count)
    return EncodingFields(scales, offsets, axis, bits, kind)


def _count(what: str, count: int) -> tuple[int]:
    if count > MAX_SCALES:
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, what, f"{count} scales are more than any tensor has")
    return (count,)
