"""Reference computations whose results are indices, counts or constants derived from the input's shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from isthmus.graph.evaluation import Computation, Values, wide
from isthmus.graph.tensor import Tensor

Params = dict[str, Any]
Outputs = Sequence[Tensor]


def _rows(found: np.ndarray, output: Tensor) -> np.ndarray:
    """Copy the rows that were found to an output of fixed size; the rest is -1."""
    out = np.full(output.dims, -1, np.int64)
    count = min(len(found), len(out))
    out[:count] = found[:count]
    return out


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of one box with others; corners may be in any order."""
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


def _corners(encodings: np.ndarray, anchors: np.ndarray, params: Params) -> np.ndarray:
    """Decode boxes from centers and sizes, vertical coordinates first, in double precision."""
    sizes = anchors[:, 2:].astype(np.float64)
    scales = np.array([[params[f"{axis}_scale"] for axis in pair] for pair in ("yx", "hw")], np.float32).astype(float)
    middles = (encodings[:, :2] / scales[0] * sizes + anchors[:, :2]).astype(np.float32)
    halves = (0.5 * np.exp(encodings[:, 2:] / scales[1]) * sizes).astype(np.float32)
    return np.concatenate((middles - halves, middles + halves), 1)


def _chosen(corners: np.ndarray, scores: np.ndarray, params: Params, most: int) -> list[int]:
    """Choose up to `most` boxes, best first, that do not overlap a better one too much."""
    order = np.argsort(-scores, kind="stable")
    left = [int(i) for i in order if scores[i] >= np.float32(params["score_threshold"])]
    areas = np.prod(corners[:, 2:] - corners[:, :2], 1)
    chosen: list[int] = []
    while left and len(chosen) < most:
        best, *left = left
        chosen.append(best)
        low, high = np.maximum(corners[best, :2], corners[left, :2]), np.minimum(corners[best, 2:], corners[left, 2:])
        shared = np.prod(np.maximum(high - low, np.float32(0)), 1)
        exists = (areas[left] > 0) & (areas[best] > 0)
        union = np.where(exists, areas[best] + areas[left] - shared, np.float32(1))
        near = np.where(exists, shared / union, 0) > np.float32(params["iou_threshold"])
        left = [i for i, beside in zip(left, near, strict=True) if not beside]
    return chosen


def _detection_post_process(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Compute as LiteRT does: boxes in double precision, the rest in float; the first of equal scores wins."""
    encodings, scores, anchors = (np.asarray(v, np.float32) for v in values)
    classes, kept = params["num_classes"], params["max_detections"]
    scores = scores[0, :, scores.shape[2] - classes :]
    corners = _corners(encodings[0].astype(np.float64), anchors, params)
    results = [np.zeros(output.dims, np.float32) for output in outputs]
    if params["use_regular_nms"]:
        most = min(params["detections_per_class"], kept)
        found = [(box, k) for k in range(classes) for box in _chosen(corners, scores[:, k], params, most)]
        found = sorted(found, key=lambda one: -scores[one])[:kept]
        rows = list(enumerate(found))
        results[3][0] = len(found)
    else:
        chosen = _chosen(corners, scores.max(1), params, kept)
        width = params["max_classes_per_detection"]
        rows = [
            (place * width + k, (box, int(class_)))
            for place, box in enumerate(chosen)
            for k, class_ in enumerate(np.argsort(-scores[box], kind="stable")[: min(width, classes)])
        ]
        results[3][0] = len(chosen)
    for place, (box, class_) in rows:
        results[0][0, place], results[1][0, place], results[2][0, place] = corners[box], class_, scores[box, class_]
    return results


COMPUTATIONS: dict[str, Computation] = {
    "DetectionPostProcess": _detection_post_process,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": lambda v, p, o: _rows(np.argwhere(v[0]), o[0]),
    "OneHot": _one_hot,
    "ConstantOfShape": lambda v, p, o: np.full(o[0].dims, p["value"]),
    "Shape": lambda v, p, o: np.asarray(v[0].shape[p["start"] : p["end"]], np.int64),
}
