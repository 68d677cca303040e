"""The elements of a DLC's static tensors. They are views of the file, except those stored in less than a byte each."""

from __future__ import annotations

import math

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.composed.encodings import BLOCKWISE_EXPANSION, LPBQ_BITS, narrow_bits, read_encoding
from isthmus.frontends.composed.entries import ComposedTensor, EncodingEntry
from isthmus.graph import DataType, Quantization
from isthmus.graph.nibbles import low_bits, unpack

FOUR_BITS: dict[int, DataType] = {
    0x0004: DataType.INT_8,
    0x0104: DataType.UINT_8,
    0x0304: DataType.SFIXED_POINT_8,
    0x0404: DataType.UFIXED_POINT_8,
}
"""QNN's 4-bit types, which store two elements per byte, and the 8-bit types that they are unpacked to."""

MAX_BYTES = 1 << 62
"""The limit of a tensor's size in bytes; no memory is that large."""
MAX_GROWTH = 2
"""The most bytes that one stored byte can become: two 4-bit elements become two bytes."""


def data_type(tensor: ComposedTensor) -> DataType | None:
    """Return the data type of a tensor in a graph, or None if that type is not supported."""
    if tensor.dtype in FOUR_BITS:
        return FOUR_BITS[tensor.dtype]
    is_defined = tensor.dtype in tuple(DataType) and tensor.dtype != DataType.UNDEFINED
    return DataType(tensor.dtype) if is_defined else None


def quantization(tensor: ComposedTensor, dtype: DataType, contents: np.ndarray | None = None) -> Quantization | None:
    """Return a fixed-point tensor's quantization; None for floats and integers, even if they have an encoding.

    `contents` are the elements of a constant.
    """
    encoding = tensor.encoding
    if encoding is None or not dtype.is_fixed_point or not len(encoding.scales):
        return None
    # Only constants are stored in fewer bits than their type has.
    bits = 0 if contents is None else 4 if tensor.dtype in FOUR_BITS else _bits(encoding, dtype)
    what = f"tensor '{tensor.name}'"
    return narrow_bits(read_encoding(encoding, what, tensor.dims, dtype, bits, contents is not None), contents)


class Copies:
    """A limit on what a graph copies out of a file. It stops a file in which many tensors name the same bytes."""

    def __init__(self) -> None:
        # The bytes that were copied, by the id of the object that holds the file's bytes.
        self._copied: dict[int, int] = {}

    def count(self, what: str, data: memoryview, nbytes: int) -> None:
        """Count a copy of `nbytes` bytes out of `data`, or refuse it.

        `what` names the tensor in the error. The limit is for the whole file, of which `data` is a view.
        """
        file_bytes = memoryview(data.obj).nbytes
        copied = self._copied.get(id(data.obj), 0) + nbytes
        if copied > MAX_GROWTH * file_bytes:
            rule = f"with it {copied:,} bytes are copied out of {file_bytes:,}: tensors overlap"
            raise QnnError(Code.COMMON_LOADING_BINARIES, what, rule, "The file is damaged.")
        self._copied[id(data.obj)] = copied


def check_size(tensor: ComposedTensor, dtype: DataType) -> None:
    """Refuse dimensions that exceed any memory. A dimension of 0 counts as 1 here."""
    if math.prod(max(dim, 1) for dim in tensor.dims) * dtype.itemsize > MAX_BYTES:
        rule = f"its dimensions {list(tensor.dims)} are those of no memory"
        raise QnnError(Code.TENSOR_INVALID_TENSOR_PARAM, f"tensor '{tensor.name}'", rule)


def elements(tensor: ComposedTensor, dtype: DataType, copies: Copies) -> np.ndarray:
    """Return the elements of a static tensor, read-only. They are copied only if the file packs or misaligns them."""
    check_size(tensor, dtype)
    data = memoryview(b"") if tensor.data is None else tensor.data
    packed = tensor.dtype in FOUR_BITS
    count = math.prod(tensor.dims)
    needed = -(-count // 2) if packed else count * dtype.itemsize
    if len(data) != needed:
        rule = f"{len(data)} bytes are stored for {list(tensor.dims)} of {dtype.name}, {needed} are needed"
        raise QnnError(Code.COMMON_LOADING_BINARIES, f"tensor '{tensor.name}'", rule, "The file is damaged.")
    # Some encodings use only the low bits of elements of 8 or 16 bits; the high bits are cleared.
    bits = 0 if tensor.encoding is None or packed else _bits(tensor.encoding, dtype)
    if packed or bits:
        copies.count(f"tensor '{tensor.name}'", data, count * dtype.itemsize)
    if packed:
        array = unpack(np.frombuffer(data, np.uint8), count, dtype.numpy).reshape(tensor.dims)
    else:
        array = np.frombuffer(data, dtype.numpy).reshape(tensor.dims)
        if not bits and not array.flags.aligned:
            copies.count(f"tensor '{tensor.name}'", data, len(data))
        array = low_bits(array, bits) if bits else np.require(array, requirements="A")
    array.flags.writeable = False
    return array


def _bits(encoding: EncodingEntry, dtype: DataType) -> int:
    """Return how many low bits of an element are used, or 0 if all of them are."""
    if encoding.kind == BLOCKWISE_EXPANSION:
        return LPBQ_BITS if dtype.itemsize == 1 else 0
    return encoding.bits if dtype.is_fixed_point and 0 < encoding.bits < 8 * dtype.itemsize else 0
