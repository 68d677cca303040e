"""The contents of constant tensors: bytes of a buffer become arrays; packed and sparse ones are written out."""

from __future__ import annotations

import math

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.flatbuffer import Table
from isthmus.frontends.tflite.model import ModelFile, TensorEntry
from isthmus.frontends.tflite.schema import (
    DENSE,
    NUMPY_TYPES,
    SPARSE_CSR,
    SPARSE_INDEX_TYPES,
    DimensionField,
    ElementType,
    SparsityField,
)
from isthmus.frontends.unsupported import unsupported

MAX_SPARSE_EXPANSION = 1 << 30
"""The most elements a sparse tensor may have when it is written out."""


def contents(model: ModelFile, entry: TensorEntry) -> np.ndarray | None:
    """The array a tensor holds from the start, or None if it holds nothing."""
    what = f"tensor '{entry.name}'"
    data = model.buffer(entry.buffer)
    elements = math.prod(entry.shape)
    if not len(data) and elements:
        return None
    if entry.type not in NUMPY_TYPES:
        raise unsupported(what, f"constants of type {entry.type.name} are not supported")
    dtype = np.dtype(NUMPY_TYPES[entry.type])
    if entry.sparsity is not None:
        return _densify(what, entry, entry.sparsity, data, dtype)
    if entry.type is ElementType.INT4:
        _check_size(what, len(data), (elements + 1) // 2, entry)
        return _unpack_int4(np.frombuffer(data, np.uint8), elements).reshape(entry.shape)
    _check_size(what, len(data), elements * dtype.itemsize, entry)
    if entry.type is ElementType.BOOL:
        return (np.frombuffer(data, np.uint8) != 0).reshape(entry.shape)
    return np.frombuffer(data, dtype).reshape(entry.shape)


def _check_size(what: str, have: int, need: int, entry: TensorEntry) -> None:
    if have != need:
        raise QnnError(
            Code.COMMON_LOADING_BINARIES,
            what,
            f"its buffer has {have} bytes, {entry.type.name}{list(entry.shape)} takes {need}",
            "The file is damaged.",
        )


def _unpack_int4(packed: np.ndarray, elements: int) -> np.ndarray:
    """Two signed 4-bit values per byte, the low half first."""
    pairs = np.empty((packed.size, 2), np.int8)
    pairs[:, 0] = (packed << 4).astype(np.int8) >> 4
    pairs[:, 1] = packed.astype(np.int8) >> 4
    return pairs.reshape(-1)[:elements]


def _densify(what: str, entry: TensorEntry, sparsity: Table, data: memoryview, dtype: np.dtype) -> np.ndarray:
    """Write out a sparse tensor.

    The file stores a tensor whose dimensions were split into blocks and reordered; each of the resulting dimensions,
    outermost first, is dense or a list of present indices. Walking them one by one gives every stored value its index
    in each dimension.
    """

    def refuse(rule: str) -> QnnError:
        return QnnError(Code.COMMON_LOADING_BINARIES, what, rule, "The file is damaged.")

    if math.prod(entry.shape) > MAX_SPARSE_EXPANSION:
        raise refuse(f"its shape {list(entry.shape)} is too large to be written out")
    order = _integers(sparsity, SparsityField.TRAVERSAL_ORDER)
    block_map = _integers(sparsity, SparsityField.BLOCK_MAP)
    rank = len(entry.shape)
    levels = rank + len(block_map)
    dimensions = sparsity.tables(SparsityField.DIM_METADATA, f"sparse dimension of {what}, number")
    if sorted(order) != list(range(levels)) or len(dimensions) != levels or not levels:
        raise refuse(f"its sparse dimensions {order} do not fit its rank {rank} and {len(block_map)} blocks")
    if len(set(block_map)) != len(block_map) or any(not 0 <= b < rank for b in block_map):
        raise refuse(f"its block map {block_map} does not fit rank {rank}")
    if len(data) % dtype.itemsize:
        raise refuse(f"its buffer of {len(data)} bytes does not hold whole elements")
    values = np.frombuffer(data, dtype)
    # paths[k] is the index along level k of each entry reached so far.
    paths: list[np.ndarray] = []
    reached = 1
    for level in range(levels):
        table = dimensions[level]
        if table.integer(DimensionField.FORMAT, "i8") == DENSE:
            size = table.integer(DimensionField.DENSE_SIZE, "i32")
            if size < 0 or reached * size > max(values.size, 1):
                raise refuse(f"sparse dimension {level} of size {size} reaches more elements than are stored")
            counts = np.full(reached, size)
            indices = np.tile(np.arange(size), reached)
        elif table.integer(DimensionField.FORMAT, "i8") == SPARSE_CSR:
            segments = _index_vector(table, DimensionField.SEGMENTS_TYPE, DimensionField.SEGMENTS)
            indices = _index_vector(table, DimensionField.INDICES_TYPE, DimensionField.INDICES)
            counts = np.diff(segments)
            if segments.size != reached + 1 or segments[0] != 0 or segments[-1] != indices.size or (counts < 0).any():
                raise refuse(f"the segments of sparse dimension {level} are inconsistent")
        else:
            raise refuse(f"sparse dimension {level} has an unknown format")
        paths = [np.repeat(path, counts) for path in paths] + [indices]
        reached = indices.size
    if reached != values.size:
        raise refuse(f"{values.size} values are stored, its sparse dimensions reach {reached}")
    by_dimension = {dimension: paths[level] for level, dimension in enumerate(order)}
    index = [by_dimension[d] for d in range(rank)]
    for block, dimension in enumerate(block_map):
        level = order.index(rank + block)
        if dimensions[level].integer(DimensionField.FORMAT, "i8") != DENSE:
            raise refuse(f"block dimension {block} is not dense")
        block_size = dimensions[level].integer(DimensionField.DENSE_SIZE, "i32")
        index[dimension] = index[dimension] * block_size + by_dimension[rank + block]
    for axis, (positions, size) in enumerate(zip(index, entry.shape, strict=True)):
        if positions.size and (positions.min() < 0 or positions.max() >= size):
            raise refuse(f"a stored index lies outside dimension {axis} of size {size}")
    dense = np.zeros(entry.shape, dtype)
    dense[tuple(index)] = values
    return dense


def _integers(table: Table, field: int) -> list[int]:
    array = table.array(field, np.int32)
    return [] if array is None else [int(v) for v in array[:64]]


def _index_vector(table: Table, kind: int, field: int) -> np.ndarray:
    dtype = SPARSE_INDEX_TYPES.get(table.integer(kind, "u8"))
    vector = table.table(field, f"an index vector of {table.what}")
    array = None if dtype is None or vector is None else vector.array(0, dtype)
    if array is None:
        table.file.refuse(f"{table.what} lacks an index vector", table.start)
    return array.astype(np.int64)
