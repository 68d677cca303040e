"""Selection of boxes by their scores: a box that overlaps a better one too much is dropped.

Of equal scores the box with the lower index counts as better. Overlaps are computed in double precision. One thread
does all the work.
"""

from __future__ import annotations

import math

import numpy as np

from isthmus.engine.native.kernels.base import (
    device,
    kernel,
    load_f32,
    load_i32,
    store_f32,
    store_i32,
)
from isthmus.engine.native.signatures.boxes import SELECT, SUPPRESS


@device
def _order_corners(boxes, corners, count):  # type: ignore[no-untyped-def]
    """Copy boxes, with the lower coordinates of the two corners of each first."""
    for i in range(count):
        for axis in range(2):
            a, b = load_f32(boxes, 4 * i + axis), load_f32(boxes, 4 * i + 2 + axis)
            store_f32(corners, 4 * i + axis, min(a, b))
            store_f32(corners, 4 * i + 2 + axis, max(a, b))


@device
def _overlap(corners, a, b):  # type: ignore[no-untyped-def]
    """Return the intersection of two boxes divided by their union."""
    a, b = corners + 16 * a, corners + 16 * b
    shared, area, area_b = 1.0, 1.0, 1.0
    for axis in range(2):
        low, high = np.float64(load_f32(a, axis)), np.float64(load_f32(a, axis + 2))
        low_b, high_b = np.float64(load_f32(b, axis)), np.float64(load_f32(b, axis + 2))
        shared *= max(min(high, high_b) - max(low, low_b), 0.0)
        area *= high - low
        area_b *= high_b - low_b
    union = area + area_b - shared
    return shared / union if union > 0.0 else 0.0


@device
def _candidates(scores, stride, count, least, strict, values, rest):  # type: ignore[no-untyped-def]
    """Write to `rest` the boxes whose score reaches `least` (exceeds it if `strict`), to `values` all scores.

    Return their number.
    """
    number = 0
    for i in range(count):
        score = load_f32(scores, stride * i)
        store_f32(values, i, score)
        if score > least or (score == least and not strict):
            store_i32(rest, number, np.int32(i))
            number += 1
    return number


@device
def _best(values, rest, number):  # type: ignore[no-untyped-def]
    """Return the best of the remaining boxes, which are in the order of their indices."""
    best = load_i32(rest, 0)
    for k in range(1, number):
        i = load_i32(rest, k)
        if load_f32(values, i) > load_f32(values, best):
            best = i
    return np.int64(best)


@device
def _drop(corners, values, rest, number, best, limit, sigma, least):  # type: ignore[no-untyped-def]
    """Remove `best` from the remaining boxes, and those that overlap it too much; return the number of the others.

    If `sigma` is positive, scores decrease with the overlap, and a box whose score falls below `least` is removed too.
    """
    kept = 0
    for k in range(number):
        i = np.int64(load_i32(rest, k))
        if i == best:
            continue
        overlap = _overlap(corners, best, i)
        if sigma > 0.0:
            score = load_f32(values, i) * np.float32(math.exp(-0.5 * overlap * overlap / sigma))
            store_f32(values, i, score)
            if score < least:
                continue
        if overlap <= limit:
            store_i32(rest, kept, np.int32(i))
            kept += 1
    return kept


@kernel(SUPPRESS)
def suppress(
    rows, found, boxes, scores, work, batch, classes, count, room, score_threshold: np.float32, iou_threshold, most,
    tid, nt,
):  # fmt: skip
    """Write rows (batch, class, box) of the selected boxes and their number; other rows are -1."""
    if tid != 0:
        return
    values, rest = work + 16 * count, work + 20 * count
    row = 0
    for image in range(batch):
        _order_corners(boxes + 16 * count * image, work, count)
        for class_ in range(classes):
            own_scores = scores + 4 * count * (image * classes + class_)
            number = _candidates(own_scores, 1, count, score_threshold, True, values, rest)
            chosen = 0
            while number > 0 and chosen < most and row < room:
                best = _best(values, rest, number)
                store_i32(rows, 3 * row, np.int32(image))
                store_i32(rows, 3 * row + 1, np.int32(class_))
                store_i32(rows, 3 * row + 2, np.int32(best))
                row += 1
                chosen += 1
                number = _drop(work, values, rest, number, best, iou_threshold, 0.0, score_threshold)
    store_i32(found, 0, np.int32(row))
    for i in range(3 * row, 3 * room):
        store_i32(rows, i, np.int32(-1))


@device
def _insert(indices, best, winners, number, kept, box, score, class_):  # type: ignore[no-untyped-def]
    """Insert a box into a list that is sorted by score and has room for `kept`; return the new number of entries."""
    if kept == 0 or (number == kept and load_f32(best, kept - 1) >= score):
        return number
    at = min(number, kept - 1)
    while at > 0 and load_f32(best, at - 1) < score:
        store_f32(best, at, load_f32(best, at - 1))
        store_i32(indices, at, load_i32(indices, at - 1))
        store_i32(winners, at, load_i32(winners, at - 1))
        at -= 1
    store_f32(best, at, score)
    store_i32(indices, at, np.int32(box))
    store_i32(winners, at, np.int32(class_))
    return min(number + 1, kept)


@kernel(SELECT)
def select(
    indices, best, winners, found, boxes, scores, work, batch, classes, count, room, score_threshold: np.float32,
    iou_threshold, kept, skipped, sigma, eta, tid, nt,
):  # fmt: skip
    """Write index, score and class of the best boxes of all classes, and their number, for each batch.

    In other rows the index is the number of boxes, the rest is 0.
    """
    if tid != 0:
        return
    values, rest = work + 16 * count, work + 20 * count
    for image in range(batch):
        own_indices, best_scores, own_winners = (
            indices + 4 * room * image,
            best + 4 * room * image,
            winners + 4 * room * image,
        )
        _order_corners(boxes + 16 * count * image, work, count)
        filled = 0
        for class_ in range(classes):
            if class_ == skipped:
                continue
            own_scores = scores + 4 * (image * count * classes + class_)
            number = _candidates(own_scores, classes, count, score_threshold, False, values, rest)
            limit = iou_threshold
            while number > 0:
                box = _best(values, rest, number)
                score = load_f32(values, box)
                # Scores of a class only decrease, so nothing after one that does not fit can fit.
                if filled == kept and (filled == 0 or load_f32(best_scores, filled - 1) >= score):
                    break
                filled = _insert(own_indices, best_scores, own_winners, filled, kept, box, score, class_)
                number = _drop(work, values, rest, number, box, limit, sigma, score_threshold)
                limit = limit * eta if limit > 0.5 else limit
        store_i32(found, image, np.int32(filled))
        for i in range(filled, room):
            store_i32(own_indices, i, np.int32(count))
            store_f32(best_scores, i, np.float32(0))
            store_i32(own_winners, i, np.int32(0))
