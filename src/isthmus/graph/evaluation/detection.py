"""Reference computations whose results are indices, counts or constants made from the input's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.graph.evaluation import Computation, Values, wide
from isthmus.graph.tensor import Tensor

Params = dict[str, Any]
Outputs = Sequence[Tensor]


def _rows(found: np.ndarray, output: Tensor) -> np.ndarray:
    """The found rows in an output with room for a fixed number; -1 where nothing was found."""
    out = np.full(output.dims, -1, np.int64)
    count = min(len(found), len(out))
    out[:count] = found[:count]
    return out


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with others, corners in any order."""
    low, high = np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])
    lows, highs = np.minimum(others[:, :2], others[:, 2:]), np.maximum(others[:, :2], others[:, 2:])
    shared = np.prod(np.maximum(np.minimum(high, highs) - np.maximum(low, lows), 0), 1)
    union = np.prod(high - low) + np.prod(highs - lows, 1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _non_max_suppression(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    boxes, scores = wide(values[0]), wide(values[1])
    most = params["max_boxes_selected"] or boxes.shape[1]
    found: list[tuple[int, int, int]] = []
    for batch, kind in np.ndindex(*scores.shape[:2]):
        order = np.argsort(-scores[batch, kind], kind="stable")
        left = [int(i) for i in order if scores[batch, kind, i] > params["score_threshold"]]
        chosen = 0
        while left and chosen < most:
            best, *left = left
            found.append((batch, kind, best))
            chosen += 1
            overlaps = _overlap(boxes[batch, best], boxes[batch, left])
            left = [i for i, overlap in zip(left, overlaps, strict=True) if overlap <= params["iou_threshold"]]
    rows = _rows(np.asarray(found, np.int64).reshape(-1, 3), outputs[0])
    return [rows, np.asarray([min(len(found), len(rows))])]


def _one_hot(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    depth = params["depth"]
    indices = values[0].astype(np.int64)
    indices = np.where((indices < 0) & params["from_end"], indices + depth, indices)
    hot = np.expand_dims(indices, -1) == np.arange(depth)
    return np.moveaxis(np.asarray(np.where(hot, params["on_value"], params["off_value"])), -1, params["axis"])


COMPUTATIONS: dict[str, Computation] = {
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": lambda v, p, o: _rows(np.argwhere(v[0]), o[0]),
    "OneHot": _one_hot,
    "ConstantOfShape": lambda v, p, o: np.full(o[0].dims, p["value"]),
    "Shape": lambda v, p, o: np.asarray(v[0].shape[p["start"] : p["end"]], np.int64),
}
