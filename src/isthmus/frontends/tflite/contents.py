"""The contents of constant tensors: a buffer's bytes become arrays; packed and sparse tensors are expanded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from isthmus.errors import Code, QnnError
from isthmus.frontends.tflite.entries import TfliteSparsity, TfliteTensor
from isthmus.frontends.tflite.schema import DENSE, NUMPY_TYPES, SPARSE_CSR, ElementType
from isthmus.frontends.unsupported import unsupported
from isthmus.graph.nibbles import unpack

MAX_SPARSE_EXPANSION = 1 << 30
"""The most elements of a sparse tensor after expansion."""


def contents(
    entry: TfliteTensor, data: memoryview, sparsity: Callable[[], TfliteSparsity] | None = None
) -> np.ndarray | None:
    """Return the array that these bytes hold for a tensor, or None if there are none.

    `sparsity` returns how a sparse tensor is stored; it is called only if needed.
    """
    what = f"tensor '{entry.name}'"
    elements = math.prod(entry.shape)
    if not len(data) and elements:
        return None
    if entry.type not in NUMPY_TYPES:
        raise unsupported(what, f"constants of type {entry.type.name} are not supported")
    dtype = np.dtype(NUMPY_TYPES[entry.type])
    if sparsity is not None:
        return _densify(what, entry, sparsity(), data, dtype)
    if entry.type is ElementType.INT4:
        _check_size(what, len(data), (elements + 1) // 2, entry)
        return unpack(np.frombuffer(data, np.uint8), elements, dtype).reshape(entry.shape)
    _check_size(what, len(data), elements * dtype.itemsize, entry)
    if entry.type is ElementType.BOOL:
        return (np.frombuffer(data, np.uint8) != 0).reshape(entry.shape)
    return np.frombuffer(data, dtype).reshape(entry.shape)


def _check_size(what: str, have: int, need: int, entry: TfliteTensor) -> None:
    """Refuse a buffer whose size is not that of its tensor's elements."""
    if have != need:
        rule = f"its buffer has {have} bytes, {entry.type.name}{list(entry.shape)} takes {need}"
        raise QnnError(Code.COMMON_LOADING_BINARIES, what, rule, "The file is damaged.")


def _densify(what: str, entry: TfliteTensor, sparsity: TfliteSparsity, data: memoryview, dtype: np.dtype) -> np.ndarray:
    """Expand a sparse tensor."""
    # The file stores a tensor whose dimensions were split into blocks and reordered. Each of the resulting dimensions,
    # outermost first, is dense or a list of the indices that are present. Walking them one by one gives every stored
    # value its index in each dimension.

    def refuse(rule: str) -> QnnError:
        return QnnError(Code.COMMON_LOADING_BINARIES, what, rule, "The file is damaged.")

    if math.prod(entry.shape) > MAX_SPARSE_EXPANSION:
        raise refuse(f"its shape {list(entry.shape)} is too large to be written out")
    order, block_map, dimensions = list(sparsity.order), list(sparsity.block_map), sparsity.dimensions
    rank = len(entry.shape)
    levels = rank + len(block_map)
    if sorted(order) != list(range(levels)) or len(dimensions) != levels or not levels:
        raise refuse(f"its sparse dimensions {order} do not fit its rank {rank} and {len(block_map)} blocks")
    if len(set(block_map)) != len(block_map) or any(not 0 <= b < rank for b in block_map):
        raise refuse(f"its block map {block_map} does not fit rank {rank}")
    if len(data) % dtype.itemsize:
        raise refuse(f"its buffer of {len(data)} bytes does not hold whole elements")
    values = np.frombuffer(data, dtype)
    # A level is one of the stored dimensions. paths[k] is the index along level k of each entry found so far.
    paths: list[np.ndarray] = []
    entries = 1
    for level in range(levels):
        dimension = dimensions[level]
        if dimension.format == DENSE:
            size = dimension.size
            if size < 0 or entries * size > max(values.size, 1):
                raise refuse(f"sparse dimension {level} of size {size} reaches more elements than are stored")
            counts = np.full(entries, size)
            indices = np.tile(np.arange(size), entries)
        elif dimension.format == SPARSE_CSR and dimension.segments is not None and dimension.indices is not None:
            segments, indices = dimension.segments.astype(np.int64), dimension.indices.astype(np.int64)
            counts = np.diff(segments)
            if segments.size != entries + 1 or segments[0] != 0 or segments[-1] != indices.size or (counts < 0).any():
                raise refuse(f"the segments of sparse dimension {level} are inconsistent")
        else:
            raise refuse(f"sparse dimension {level} has an unknown format")
        paths = [np.repeat(path, counts) for path in paths] + [indices]
        entries = indices.size
    if entries != values.size:
        raise refuse(f"{values.size} values are stored, its sparse dimensions reach {entries}")
    by_dimension = {number: paths[level] for level, number in enumerate(order)}
    index = [by_dimension[d] for d in range(rank)]
    # A dimension that is split into blocks has an index of the block and one inside the block.
    for block, axis_of_block in enumerate(block_map):
        level = order.index(rank + block)
        if dimensions[level].format != DENSE:
            raise refuse(f"block dimension {block} is not dense")
        index[axis_of_block] = index[axis_of_block] * dimensions[level].size + by_dimension[rank + block]
    for axis, (positions, size) in enumerate(zip(index, entry.shape, strict=True)):
        if positions.size and (positions.min() < 0 or positions.max() >= size):
            raise refuse(f"a stored index is outside dimension {axis} of size {size}")
    dense = np.zeros(entry.shape, dtype)
    dense[tuple(index)] = values
    return dense
