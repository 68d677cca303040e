"""Reference computations on sparse tensors that are held dense."""

from __future__ import annotations

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values
from isthmus.graph.evaluation.detection import rows_of


def _create(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Write each value to its place; a row with a negative index has none."""
    indices, elements = values[0].astype(np.int64), values[1]
    out = np.zeros(outputs[0].dims, elements.dtype)
    for index, element in zip(indices, elements, strict=True):
        if index.min() >= 0:
            out[tuple(index)] = element
    return out


def _list_specified(x: np.ndarray, axes: int) -> np.ndarray:
    """Return the coordinates along the first axes of everything that is not 0, in order."""
    return np.argwhere((x != 0).any(tuple(range(axes, x.ndim))))


def _values(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    """Return the specified elements in the order of their coordinates; the rest is 0."""
    x, out = values[0], np.zeros(outputs[0].dims, values[0].dtype)
    places = _list_specified(x, x.ndim + 1 - out.ndim)[: len(out)]
    out[: len(places)] = x[tuple(places.T)]
    return out


COMPUTATIONS: dict[str, Computation] = {
    "CreateSparse": _create,
    "GetSparseIndices": lambda v, p, o: rows_of(_list_specified(v[0], o[0].dims[1]), o[0]),
    "GetSparseValues": _values,
    "SparseToDense": lambda v, p, o: v[0],
}
