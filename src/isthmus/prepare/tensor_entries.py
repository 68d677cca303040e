"""Entries of tensors in a schedule's header, and the section with their contents.

The section has the contents of constants and states and the scales of channels, each in its own width: 4-bit elements
are packed, a constant that was expanded from them is stored as its source, and floats that are all 16-bit numbers are
stored in 16 bits. Intermediate tensors and constants lose their names, which only reports show.

Entries are not trusted: `tensor_of` checks them. What is wrong raises a ValueError, or the error of `Tensor`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from isthmus.graph import DataType, Quantization, Tensor, TensorMemType, TensorType
from isthmus.graph.nibbles import pack, unpack
from isthmus.graph.tensor import MAX_BYTES
from isthmus.prepare.fp16 import Fp16Tensor, to_fp16
from isthmus.prepare.geometry.fixed_point import block_scales, expand, quantization_of
from isthmus.system.container import as_name, as_size
from isthmus.system.contents import GraphContents, StoredContents

# The bytes of a constant from which its transpose is looked for.
_LARGE = 4096
# How many numbers of a constant are looked at before all of them are.
_SAMPLE = 64
# The bound of quantization offsets, positive or negative.
_MAX_OFFSET = 1 << 32
# The types of tensors that a schedule may have.
_KINDS = (TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE, TensorType.NATIVE, TensorType.STATIC)
# The types of tensors that keep their names.
_NAMED = (TensorType.APP_WRITE, TensorType.APP_READ, TensorType.APP_READWRITE)
# The data types and types of tensors that may be stored as fp16.
_FP16_KINDS = ((DataType.FLOAT_32, TensorType.NATIVE), (DataType.FLOAT_32, TensorType.STATIC))
# The types of stored scales; the first if it holds all of them exactly.
_SCALES = ("<f4", "<f8")
# The types of stored offsets and factors; the first that holds all of them.
_WIDTHS = ("|i1", "<i2", "<i4", "<i8")
# The data types whose elements may use 4 bits.
_EIGHT_BITS = (DataType.SFIXED_POINT_8, DataType.UFIXED_POINT_8)
# The data types that 4-bit elements are expanded to.
_EXPANDED = (DataType.FLOAT_32, DataType.SFIXED_POINT_8)


# -- to entries -------------------------------------------------------------------------------------------------------


def tensor_fields(tensor: Tensor, contents: GraphContents) -> dict[str, Any]:
    """Return a tensor's entry in the header, without fields that have their defaults (see `tensor_of`)."""
    q, fields = tensor.quantization, dict[str, Any](dtype=tensor.dtype.name, dims=tensor.dims)
    if tensor.type is not TensorType.NATIVE:
        fields["type"] = tensor.type.name
    if tensor.type in _NAMED:
        fields |= {"name": tensor.name, "mem_type": tensor.mem_type.name}
    if isinstance(tensor, Fp16Tensor):
        fields["fp16"] = True
    if q is not None:
        fields |= _quantization_fields(q, tensor.dims, contents)
    if tensor.source is not None:
        fields["source"] = _source_fields(tensor, tensor.source, contents)
    elif tensor.is_four_bit and tensor.data is not None:
        fields |= _data_fields(tensor.data, contents, pack)
    elif isinstance(tensor, Fp16Tensor) and tensor.data is not None:
        fields |= _data_fields(to_fp16(tensor.data), contents)
    elif (half := _as_half(tensor)) is not None:
        fields |= {"half": True, **_data_fields(half, contents)}
    elif tensor.data is not None:
        fields |= _data_fields(tensor.data, contents)
    return fields


def _data_fields(
    data: np.ndarray, contents: GraphContents, encode: Callable[[np.ndarray], np.ndarray] = np.ascontiguousarray
) -> dict[str, Any]:
    """Return what an entry has of a tensor's contents, which may be stored with rows for columns."""
    # One graph may have the weights of a FullyConnected, and another one the same weights of a MatMul, which are their
    # transpose.
    rows = None if data.ndim < 2 or data.nbytes < _LARGE else data.reshape(-1, data.shape[-1])
    transposed = None if rows is None else lambda: encode(np.ascontiguousarray(rows.T))
    offset, is_transposed = contents.add_either(encode(data), transposed)
    return {"data": offset, "transposed": True} if is_transposed else {"data": offset}


def stored_bytes(tensor: Tensor) -> int:
    """Return the size in bytes of a constant of whole bytes in a binary."""
    return tensor.nbytes if _as_half(tensor) is None else tensor.nbytes // 2


def _as_half(tensor: Tensor) -> np.ndarray | None:
    """Return the numbers of a FLOAT_32 constant in 16 bits if that keeps every bit of them, else None."""
    if tensor.type is not TensorType.STATIC or tensor.dtype is not DataType.FLOAT_32 or tensor.data is None:
        return None
    numbers = np.ascontiguousarray(tensor.data)
    # Most constants of 32 bits show it at once.
    for part in (numbers.reshape(-1)[:_SAMPLE], numbers):
        with np.errstate(all="ignore"):
            half = part.astype(np.float16)
        if not np.array_equal(half.astype(np.float32).view(np.uint32), part.view(np.uint32)):
            return None
    return half


def _quantization_fields(q: Quantization, dims: tuple[int, ...], contents: GraphContents) -> dict[str, Any]:
    """Return what a tensor's entry has of its quantization (see `_quantization`)."""
    if q.axis is None:
        fields = dict[str, Any](quantization=[q.scale, q.offset])
    else:
        scales = np.array(q.scales)
        single = np.float32(scales).astype(np.float64).tobytes() == scales.tobytes()
        kind = _SCALES[0] if single else _SCALES[1]
        offsets = _integers(q.offsets, contents) if any(q.offsets) else None
        fields = {"quantization": [contents.add(scales.astype(kind)), kind, offsets, q.axis]}
    if q.bits:
        fields["bits"] = q.bits
    if q.block and q.axis is not None:
        fields["block"] = min(q.block, dims[q.axis])
    if q.factors:
        fields["factors"] = _integers(q.factors, contents)
    return fields


def _source_fields(tensor: Tensor, source: Tensor, contents: GraphContents) -> dict[str, Any]:
    """Return the entry of the constant that another was expanded from, which has the same dimensions."""
    # The scales of blocks are not stored if they are the factors times the scales of the expanded constant.
    assert source.data is not None
    q = quantization_of(source)
    fields: dict[str, Any] = {"dtype": source.dtype.name, "bits": q.bits, **_data_fields(source.data, contents, pack)}
    channels = tensor.quantization
    if q.factors and channels is not None and block_scales(channels, q, source.dims) == q.scales:
        assert q.axis is not None
        block = min(q.block, source.dims[q.axis])
        return fields | {"axis": q.axis, "block": block, "factors": _integers(q.factors, contents)}
    return fields | _quantization_fields(q, source.dims, contents)


def _integers(values: tuple[int, ...], contents: GraphContents) -> list[Any]:
    """Return the place and the type of stored integers."""
    array = np.array(values, np.int64)
    kind = next(kind for kind in _WIDTHS if np.array_equal(array.astype(kind), array))
    return [contents.add(array.astype(kind)), kind]


# -- and back ----------------------------------------------------------------------------------------------------------


def tensor_of(number: int, fields: dict[str, Any], contents: StoredContents) -> Tensor:
    """Return the tensor of an entry in the header, with its data from the section; `Tensor` checks the rest."""
    kind, dtype = TensorType[fields.get("type", "NATIVE")], DataType[fields["dtype"]]
    if kind not in _KINDS:
        raise ValueError(f"a tensor of type {kind.name}")
    name = as_name(fields["name"]) if kind in _NAMED else str(number)
    dims = tuple(as_size(d, MAX_BYTES) for d in fields["dims"])
    fp16, half = fields.get("fp16", False), fields.get("half", False)
    if type(fp16) is not bool or (fp16 and (dtype, kind) not in _FP16_KINDS):
        raise ValueError(f"'{name}' cannot be stored as fp16")
    if type(half) is not bool or (half and (dtype, kind) != (DataType.FLOAT_32, TensorType.STATIC)):
        raise ValueError(f"'{name}' cannot have numbers of 16 bits")
    quantization = None if fields.get("quantization") is None else _quantization(fields, dims, contents)
    source = None
    data = None
    if fields.get("source") is not None:
        if kind is not TensorType.STATIC or dtype not in _EXPANDED:
            raise ValueError(f"'{name}' cannot be expanded from 4 bits")
        source = _source(name, fields["source"], dims, quantization, contents)
        data = expand(source, dtype)
    elif fields.get("data") is not None:
        four_bits = kind is TensorType.STATIC and quantization is not None and 0 < quantization.bits <= 4
        if four_bits and dtype in _EIGHT_BITS:
            data = _nibbles(contents, fields, dtype, dims)
        else:
            found = contents.array(fields["data"], np.float16 if fp16 or half else dtype.numpy, math.prod(dims))
            data = _in_order(found.astype(dtype.numpy, copy=False), fields, dims)
    tensor_class = Fp16Tensor if fp16 else Tensor
    mem_type = TensorMemType[fields.get("mem_type", "RAW")]
    return tensor_class(name, kind, dtype, dims, quantization, data, mem_type, source)


def _source(
    name: str, fields: dict[str, Any], dims: tuple[int, ...], channels: Quantization | None, contents: StoredContents
) -> Tensor:
    """Return the constant of 4-bit elements that another was expanded from, whose quantization is `channels`."""
    dtype = DataType[fields["dtype"]]
    if fields.get("quantization") is not None:
        quantization = _quantization(fields, dims, contents)
    else:
        # The scales of blocks follow from those of channels, which do not change within a block.
        axis = as_size(fields["axis"], len(dims) - 1)
        if channels is None or channels.axis == axis or not fields["factors"]:
            raise ValueError("blocks without scales")
        blocks = Quantization((1.0,), (0,), axis, block=_block(fields, dims, axis))
        count = math.prod(blocks.grid(dims))
        factors = _integer_array(contents, fields["factors"], count)
        blocks = replace(blocks, scales=(1.0,) * count, offsets=(0,) * count, factors=factors, bits=_bits(fields))
        quantization = replace(blocks, scales=block_scales(channels, blocks, dims))
    if dtype not in _EIGHT_BITS or not 0 < quantization.bits <= 4:
        raise ValueError("a source that does not have 4 bits")
    data = _nibbles(contents, fields, dtype, dims)
    return Tensor(name, TensorType.STATIC, dtype, dims, quantization, data)


def _nibbles(contents: StoredContents, fields: dict[str, Any], dtype: DataType, dims: tuple[int, ...]) -> np.ndarray:
    """Return an array of 4-bit elements, one to a byte."""
    count = math.prod(dims)
    found = unpack(contents.array(fields["data"], np.uint8, -(-count // 2)), count, dtype.numpy)
    return _in_order(found, fields, dims)


def _in_order(found: np.ndarray, fields: dict[str, Any], dims: tuple[int, ...]) -> np.ndarray:
    """Return stored elements in the order of a tensor with these dimensions (see `_data_fields`)."""
    if fields.get("transposed", False) is not True:
        return found.reshape(dims)
    return np.ascontiguousarray(found.reshape(dims[-1], math.prod(dims[:-1])).T).reshape(dims)


def _bits(fields: dict[str, Any]) -> int:
    """Return the number of bits of elements that are used; 0 if all are."""
    return as_size(fields.get("bits", 0), 64)


def _block(fields: dict[str, Any], dims: tuple[int, ...], axis: int) -> int:
    """Return the number of elements in a block along an axis; 0 if there are no blocks."""
    return as_size(fields.get("block", 0), dims[axis])


def _integer_array(contents: StoredContents, place: Any, count: int) -> tuple[int, ...]:
    """Return stored integers from their place and type (see `_integers`)."""
    offset, kind = place
    if kind not in _WIDTHS:
        raise ValueError(f"integers of type {kind!r}")
    return tuple(contents.array(offset, kind, count).tolist())


def _quantization(fields: dict[str, Any], dims: tuple[int, ...], contents: StoredContents) -> Quantization:
    """Return a quantization: of a tensor, by scale and offset; of channels or blocks, by arrays of both and an axis."""
    numbers, bits = fields["quantization"], _bits(fields)
    if len(numbers) == 2:
        found = Quantization((float(numbers[0]),), (int(numbers[1]),), bits=bits)
    else:
        scales, kind, offsets, axis = numbers
        if kind not in _SCALES:
            raise ValueError(f"scales of type {kind!r}")
        axis = as_size(axis, len(dims) - 1)
        block = _block(fields, dims, axis)
        count = math.prod(Quantization((1.0,), (0,), axis, block=block).grid(dims))
        # The scales are read first: the section has them all, so nothing below is larger than the file.
        stored = tuple(contents.array(scales, kind, count).tolist())
        zeros = (0,) * count if offsets is None else _integer_array(contents, offsets, count)
        factors = _integer_array(contents, fields["factors"], count) if fields.get("factors") else ()
        found = Quantization(stored, zeros, axis, bits, block, factors)
    if max(map(abs, found.offsets)) > _MAX_OFFSET:
        raise ValueError("a zero point is out of bounds")
    return found
