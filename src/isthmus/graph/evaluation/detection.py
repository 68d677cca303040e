"""Reference computations whose results are indices, counts or constants derived from the input's shape."""

from __future__ import annotations

import numpy as np

from isthmus.graph.evaluation import Computation, Outputs, Params, Values, wide
from isthmus.graph.ops.detection import REGULAR
from isthmus.graph.tensor import Tensor


def rows_of(rows: np.ndarray, output: Tensor) -> np.ndarray:
    """Copy the rows that were found to an output of fixed size; the rest is -1."""
    out = np.full(output.dims, -1, np.int64)
    count = min(len(rows), len(out))
    out[:count] = rows[:count]
    return out


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union of one box with others; corners may be in any order."""
    low, high = np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])
    lows, highs = np.minimum(others[:, :2], others[:, 2:]), np.maximum(others[:, :2], others[:, 2:])
    shared = np.prod(np.maximum(np.minimum(high, highs) - np.maximum(low, lows), 0), 1)
    union = np.prod(high - low) + np.prod(highs - lows, 1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)


def _non_max_suppression(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Select boxes per batch and class, best first, that do not overlap a better one too much.

    Returns rows [batch, class, box], and their number.
    """
    boxes, scores = wide(values[0]), wide(values[1])
    max_per_class = params["max_boxes_selected"] or boxes.shape[1]
    selected: list[tuple[int, int, int]] = []
    for batch, class_ in np.ndindex(*scores.shape[:2]):
        order = np.argsort(-scores[batch, class_], kind="stable")
        rest = [int(i) for i in order if scores[batch, class_, i] > np.float32(params["score_threshold"])]
        chosen = 0
        while rest and chosen < max_per_class:
            best, *rest = rest
            selected.append((batch, class_, best))
            chosen += 1
            overlaps = _overlap(boxes[batch, best], boxes[batch, rest])
            rest = [i for i, overlap in zip(rest, overlaps, strict=True) if overlap <= params["iou_threshold"]]
    rows = rows_of(np.asarray(selected, np.int64).reshape(-1, 3), outputs[0])
    return [rows, np.asarray([min(len(selected), len(rows))])]


def _one_hot(values: Values, params: Params, outputs: Outputs) -> np.ndarray:
    depth = params["depth"]
    indices = values[0].astype(np.int64)
    indices = np.where((indices < 0) & params["from_end"], indices + depth, indices)
    hot = np.expand_dims(indices, -1) == np.arange(depth)
    return np.moveaxis(np.asarray(np.where(hot, params["on_value"], params["off_value"])), -1, params["axis"])


def _corners(encodings: np.ndarray, anchors: np.ndarray, params: Params) -> np.ndarray:
    """Decode boxes to corners [top, left, bottom, right], in double precision."""
    # Encodings and anchors are [y, x, height, width]; centers and sizes of encodings are relative to the anchors.
    sizes = anchors[:, 2:].astype(np.float64)
    scales = np.array([[params[f"{axis}_scale"] for axis in pair] for pair in ("yx", "hw")], np.float32).astype(float)
    middles = (encodings[:, :2] / scales[0] * sizes + anchors[:, :2]).astype(np.float32)
    halves = (0.5 * np.exp(encodings[:, 2:] / scales[1]) * sizes).astype(np.float32)
    return np.concatenate((middles - halves, middles + halves), 1)


def _choose(corners: np.ndarray, scores: np.ndarray, params: Params, most: int) -> list[int]:
    """Choose up to `most` boxes, best first, that do not overlap a better one too much."""
    order = np.argsort(-scores, kind="stable")
    rest = [int(i) for i in order if scores[i] >= np.float32(params["score_threshold"])]
    areas = np.prod(corners[:, 2:] - corners[:, :2], 1)
    chosen: list[int] = []
    while rest and len(chosen) < most:
        best, *rest = rest
        chosen.append(best)
        low, high = np.maximum(corners[best, :2], corners[rest, :2]), np.minimum(corners[best, 2:], corners[rest, 2:])
        shared = np.prod(np.maximum(high - low, np.float32(0)), 1)
        have_area = (areas[rest] > 0) & (areas[best] > 0)
        union = np.where(have_area, areas[best] + areas[rest] - shared, np.float32(1))
        overlaps = np.where(have_area, shared / union, 0) > np.float32(params["iou_threshold"])
        rest = [i for i, overlap in zip(rest, overlaps, strict=True) if not overlap]
    return chosen


def _detection_post_process(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Compute as LiteRT does: boxes in double precision, the rest in float; the first of equal scores wins."""
    encodings, scores, anchors = (np.asarray(v, np.float32) for v in values)
    classes, max_detections = params["num_classes"], params["max_detections"]
    # A first column that is not one of the classes is the background's.
    scores = scores[0, :, scores.shape[2] - classes :]
    corners = _corners(encodings[0].astype(np.float64), anchors, params)
    results = [np.zeros(output.dims, np.float32) for output in outputs]
    # `rows` are pairs of a row of the outputs and its (box, class). Regular suppression chooses boxes for each class;
    # the fast one chooses by the best class only, and each box then has rows for its best classes.
    if params["use_regular_nms"]:
        most = min(params["detections_per_class"], max_detections)
        detections = [(box, k) for k in range(classes) for box in _choose(corners, scores[:, k], params, most)]
        detections = sorted(detections, key=lambda detection: -scores[detection])[:max_detections]
        rows = list(enumerate(detections))
        results[3][0] = len(detections)
    else:
        chosen = _choose(corners, scores.max(1), params, max_detections)
        width = params["max_classes_per_detection"]
        rows = [
            (row * width + k, (box, int(class_)))
            for row, box in enumerate(chosen)
            for k, class_ in enumerate(np.argsort(-scores[box], kind="stable")[: min(width, classes)])
        ]
        results[3][0] = len(chosen)
    for row, (box, class_) in rows:
        results[0][0, row], results[1][0, row], results[2][0, row] = corners[box], class_, scores[box, class_]
    return results


def _best_boxes(boxes: np.ndarray, scores: np.ndarray, params: Params) -> list[tuple[float, int]]:
    """Choose boxes of one class as pairs (score, box), best first."""
    # Boxes that overlap a chosen one too much are dropped; with soft_nms_sigma the scores of others decrease the more
    # they overlap it. The limit of overlaps shrinks by the factor nms_eta with each choice while it exceeds 1/2.
    scores = scores.astype(np.float32)
    limit, sigma, eta = (float(np.float32(params[name])) for name in ("iou_threshold", "soft_nms_sigma", "nms_eta"))
    rest = [int(i) for i in np.flatnonzero(scores >= np.float32(params["score_threshold"]))]
    chosen: list[tuple[float, int]] = []
    while rest:
        best = max(rest, key=lambda i: (scores[i], -i))
        rest.remove(best)
        chosen.append((float(scores[best]), best))
        overlaps = _overlap(boxes[best], boxes[rest])
        remaining = []
        for i, overlap in zip(rest, overlaps, strict=True):
            if sigma > 0:
                scores[i] *= np.float32(np.exp(-0.5 * overlap * overlap / sigma))
            if overlap <= limit and scores[i] >= np.float32(params["score_threshold"]):
                remaining.append(i)
        rest = remaining
        limit = limit * eta if limit > 0.5 else limit
    return chosen


def _select_boxes(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Choose boxes of each class, and of all classes the best, as many as fit."""
    boxes, scores = (np.asarray(value, np.float32).astype(np.float64) for value in values[:2])
    indices, best, classes, counts = (np.zeros(output.dims, np.float64) for output in outputs)
    indices[...] = boxes.shape[1]
    room = indices.shape[1] if params["limit"] < 0 else min(indices.shape[1], params["limit"])
    for batch in range(len(boxes)):
        candidates = [
            (-score, class_, order, box)
            for class_ in range(scores.shape[2])
            if class_ != params["skipped_class"]
            for order, (score, box) in enumerate(_best_boxes(boxes[batch], scores[batch, :, class_], params))
        ]
        for row, (score, class_, _, box) in enumerate(sorted(candidates)[:room]):
            indices[batch, row], best[batch, row], classes[batch, row] = box, -score, class_
        counts[batch] = min(len(candidates), room)
    return [indices, best, classes, counts]


_PLAIN_NMS = {"soft_nms_sigma": 0.0, "nms_eta": 1.0, "skipped_class": -1, "limit": -1}


def _take(values: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return the rows [batch, row, …] that indices [batch, row] name; an index behind the last row names zeros."""
    padded = np.concatenate([values, np.zeros_like(values[:, :1])], 1)
    return np.stack([rows[index] for rows, index in zip(padded, indices.astype(np.int64), strict=True)])


def _multi_class_nms(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    selected = _select_boxes(values, {**_PLAIN_NMS, **params}, [outputs[1], outputs[1], outputs[2], outputs[3]])
    return [_take(values[0], selected[0]), *selected[1:], *(_take(feature, selected[0]) for feature in values[2:])]


def _detection_output(values: Values, params: Params, outputs: Outputs) -> list[np.ndarray]:
    """Decode boxes relative to anchors, as DetectionPostProcess does, and choose the best."""
    scores, encodings, anchors = (np.asarray(v, np.float32) for v in values)
    factors = params["delta_scaling_factors"]
    decoding = dict(zip(("y_scale", "x_scale", "h_scale", "w_scale"), factors.tolist(), strict=True))
    corners = np.stack([_corners(batch.astype(np.float64), anchors, decoding) for batch in encodings])
    background = params["background_class_idx"]
    skipped = -1 if params["output_background"] else background
    chosen = {**_PLAIN_NMS, "score_threshold": params["confidence_threshold"], "limit": params["detection_limit"]}
    chosen |= {name: params[name] for name in ("iou_threshold", "nms_eta")}
    tensors = [outputs[0], outputs[0], outputs[2], outputs[3]]
    if params["nms_type"] == REGULAR:
        selected = _select_boxes([corners, scores], {**chosen, "skipped_class": skipped}, tensors)
        return [selected[1], _take(corners, selected[0]), *selected[2:]]
    # Boxes are compared by their best class alone.
    considered = scores.copy()
    if background >= 0 and not (params["use_bg_in_nms"] or params["output_background"]):
        considered[..., background] = -np.inf
    best, classes = considered.max(-1), considered.argmax(-1)
    best = np.where((classes == skipped) & (skipped >= 0), -np.inf, best)
    selected = _select_boxes([corners, best[..., None]], chosen, tensors)
    return [selected[1], _take(corners, selected[0]), _take(classes, selected[0]), selected[3]]


COMPUTATIONS: dict[str, Computation] = {
    "DetectionPostProcess": _detection_post_process,
    "DetectionOutput": _detection_output,
    "MultiClassNms": _multi_class_nms,
    "SelectBoxes": _select_boxes,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": lambda v, p, o: rows_of(np.argwhere(v[0]), o[0]),
    "OneHot": _one_hot,
    "ConstantOfShape": lambda v, p, o: np.full(o[0].dims, p["value"]),
    "Shape": lambda v, p, o: np.asarray(v[0].shape[p["start"] : p["end"]], np.int64),
}
