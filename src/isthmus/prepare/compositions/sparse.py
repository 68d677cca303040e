"""Compositions of operations on sparse tensors, which are held dense.

Places are numbered along the sparse axes together. The number after the last place is that of a row that is not
specified; reading there gives 0, and what is written there is dropped.
"""

from __future__ import annotations

from math import prod

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.prepare.compositions.composer import INTEGER, Composition, StepComposer


def _places(c: StepComposer, indices: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the number of the place that each row of `indices` names; for a negative row, that after the last."""
    strides = np.append(np.cumprod(dims[:0:-1], dtype=np.int64)[::-1], 1)
    products = c("ElementWiseMultiply", indices, c.constant(strides, INTEGER))
    numbers = c("ReduceSum", products, axes=[1], keep_dims=True)
    lowest = c("ReduceMin", indices, axes=[1], keep_dims=True)
    outside = c("ElementWiseLess", lowest, c.constant([[0]], INTEGER))
    return c("ElementWiseSelect", outside, c.constant([[prod(dims)]], INTEGER), numbers)


def _create(c: StepComposer) -> list[Tensor]:
    """Scatter the values over zeros."""
    indices, values, output = c.whole(0), c.movable(1), c.outputs[0]
    sparse, dense = output.dims[: indices.dims[1]], output.dims[indices.dims[1] :]
    room = c.zeros((prod(sparse) + 1, *dense), values)
    filled = c("ScatterNd", room, _places(c, indices, sparse), values)
    return [c.reshape(c.slice(filled, 0, 0, prod(sparse)), *output.dims)]


def _find_places(c: StepComposer, axes: int, count: int) -> Tensor:
    """Return the coordinates along the first axes of up to `count` places that are not 0; other rows are -1."""
    x = c.not_zero(c.input(0))
    if axes < x.rank:
        numbers = c("Cast", x, dtype=INTEGER)
        x = c("Cast", c("ReduceMax", numbers, axes=list(range(axes, x.rank))), dtype=DataType.BOOL_8)
    return c("NonZero", x, dims=(count, axes), dtype=INTEGER)


def _indices(c: StepComposer) -> list[Tensor]:
    count, axes = c.outputs[0].dims
    return [_find_places(c, axes, count)]


def _values(c: StepComposer) -> list[Tensor]:
    """Gather the elements that are not 0, and for the remaining rows a row of zeros that is appended to the tensor."""
    x, output = c.movable(0), c.outputs[0]
    axes = x.rank + 1 - output.rank
    sparse, dense = x.dims[:axes], x.dims[axes:]
    rows = c("Concat", c.reshape(x, prod(sparse), *dense), c.zeros((1, *dense), x), axis=0)
    places = _places(c, _find_places(c, axes, output.dims[0]), sparse)
    return [c("GatherNd", rows, places)]


COMPOSITIONS: dict[str, Composition] = {
    "CreateSparse": _create,
    "GetSparseIndices": _indices,
    "GetSparseValues": _values,
    "SparseToDense": lambda c: [c.input(0)],
}
