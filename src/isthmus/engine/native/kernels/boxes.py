"""Selection of boxes by their scores: a box that overlaps a better one too much is dropped.

Of equal scores the box with the lower index counts as better. Overlaps are computed in double precision. Results of
detection post-processing equal LiteRT's: boxes are decoded in double precision, everything else is computed in floats.
One thread does all the work.
"""

from __future__ import annotations

import math

import numpy as np

from isthmus.engine.native.kernels import base
from isthmus.engine.native.kernels.base import device, kernel, load_f32, load_i32, store_f32, store_i32
from isthmus.engine.native.signatures.boxes import POST_PROCESS, SELECT, SUPPRESS


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
def _drop(overlap_of, corners, values, rest, number, best, limit, sigma, least):
    """Remove `best` from the remaining boxes, and those that overlap it too much; return the number of the others.

    `overlap_of` returns the overlap of two boxes. If `sigma` is positive, scores decrease with it, and a box whose
    score falls below `least` is removed too.
    """
    kept = 0
    for k in range(number):
        i = np.int64(load_i32(rest, k))
        if i == best:
            continue
        overlap = overlap_of(corners, best, i)
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
                number = _drop(_overlap, work, values, rest, number, best, iou_threshold, 0.0, score_threshold)
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
        first = 4 * room * image
        own_indices, best_scores, own_winners = indices + first, best + first, winners + first
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
                number = _drop(_overlap, work, values, rest, number, box, limit, sigma, score_threshold)
                limit = limit * eta if limit > 0.5 else limit
        store_i32(found, image, np.int32(filled))
        for i in range(filled, room):
            store_i32(own_indices, i, np.int32(count))
            store_f32(best_scores, i, np.float32(0))
            store_i32(own_winners, i, np.int32(0))


@device
def _decode(encodings, anchors, corners, count, y_scale, x_scale, h_scale, w_scale):
    """Write the corners of all boxes; encodings and anchors are centers and sizes, vertical coordinates first."""
    for i in range(4 * count):
        # Vertical or horizontal, and the first corner or the second.
        axis, side = i % 2, i // 2 % 2
        box = i // 4 * 4
        center_scale = y_scale if axis == 0 else x_scale
        size_scale = h_scale if axis == 0 else w_scale
        size = np.float64(load_f32(anchors, box + 2 + axis))
        center = np.float64(load_f32(encodings, box + axis)) / center_scale * size
        middle = np.float32(center + np.float64(load_f32(anchors, box + axis)))
        half = np.float32(0.5 * math.exp(np.float64(load_f32(encodings, box + 2 + axis)) / size_scale) * size)
        store_f32(corners, i, middle - half if side == 0 else middle + half)


@device
def _overlap_in_floats(corners, a, b):  # type: ignore[no-untyped-def]
    """Return the intersection of two boxes divided by their union."""
    a, b = corners + 16 * a, corners + 16 * b
    top, left, bottom, right = load_f32(a, 0), load_f32(a, 1), load_f32(a, 2), load_f32(a, 3)
    top_b, left_b, bottom_b, right_b = load_f32(b, 0), load_f32(b, 1), load_f32(b, 2), load_f32(b, 3)
    area, area_b = (bottom - top) * (right - left), (bottom_b - top_b) * (right_b - left_b)
    zero = np.float32(0)
    if area <= zero or area_b <= zero:
        return zero
    height = max(min(bottom, bottom_b) - max(top, top_b), zero)
    width = max(min(right, right_b) - max(left, left_b), zero)
    both = height * width
    overlap = both / (area + area_b - both)
    # That of infinite boxes may be no number; they stay.
    return overlap if overlap == overlap else zero


@device
def _choose(corners, scores, stride, values, rest, chosen, count, most, least, limit):
    """Write to `chosen` the indices of up to `most` boxes, best first, that overlap no better one; return their number.

    Scores, which are `stride` apart, are `least` or more, overlaps at most `limit`. `values` and `rest` are work space.
    """
    number, remaining = 0, _candidates(scores, stride, count, least, False, values, rest)
    while remaining > 0 and number < most:
        best = _best(values, rest, remaining)
        store_i32(chosen, number, np.int32(best))
        number += 1
        remaining = _drop(_overlap_in_floats, corners, values, rest, remaining, best, limit, 0.0, least)
    return number


@device
def _next_class(scores, classes, before):  # type: ignore[no-untyped-def]
    """Return the class that follows the class `before` in the order of scores; -1 asks for the best."""
    best = -1
    for k in range(classes):
        later = (
            before < 0
            or load_f32(scores, k) < load_f32(scores, before)
            or (load_f32(scores, k) == load_f32(scores, before) and k > before)
        )
        if later and (best < 0 or load_f32(scores, k) > load_f32(scores, best)):
            best = k
    return max(best, 0)


@device
def _put(results, corners, index, box, class_, score):
    """Write a box with its class and score as the result with this index."""
    boxes, classes, best = results
    base.copy_bytes(boxes + 16 * index, corners + 16 * box, 16)
    store_f32(classes, index, np.float32(class_))
    store_f32(best, index, score)


@device
def _by_boxes(results, all_scores, columns, classes, corners, scores, rest, chosen, count, kept, per_box, least, limit):
    """Compare boxes by their best class, and write each kept box with its best classes; return the number kept.

    `corners` has the decoded boxes. `all_scores` has a row of `columns` scores for each, of which `classes` are read.
    `scores`, `rest` and `chosen` are work space, with an entry for each of `count` boxes.
    """
    for i in range(count):
        own = all_scores + 4 * columns * i
        store_f32(scores, i, load_f32(own, _next_class(own, classes, -1)))
    number = _choose(corners, scores, 1, scores, rest, chosen, count, kept, least, limit)
    for n in range(number):
        box = load_i32(chosen, n)
        own, class_ = all_scores + 4 * columns * box, -1
        for k in range(min(per_box, classes)):
            class_ = _next_class(own, classes, class_)
            _put(results, corners, n * per_box + k, box, class_, load_f32(own, class_))
    return number


@device
def _by_classes(
    results, all_scores, columns, classes, corners, scores, rest, chosen, best, count, kept, per_class, least, limit
):
    """Compare the boxes of each class, and write the best over all classes; return their number.

    `best` is work space for a sorted list of the best so far, each as box times classes plus class; their scores are
    behind it. The rest is as in `_by_boxes`.
    """
    values = best + 4 * (kept + per_class)
    number = 0
    for class_ in range(classes):
        column, most = all_scores + 4 * class_, min(per_class, kept)
        for n in range(_choose(corners, column, columns, scores, rest, chosen, count, most, least, limit)):
            box = load_i32(chosen, n)
            score, index = load_f32(scores, box), number
            while index > 0 and load_f32(values, index - 1) < score:
                store_f32(values, index, load_f32(values, index - 1))
                store_i32(best, index, load_i32(best, index - 1))
                index -= 1
            store_f32(values, index, score)
            store_i32(best, index, np.int32(box * classes + class_))
            number = min(number + 1, kept)
    for n in range(number):
        box = load_i32(best, n) // classes
        _put(results, corners, n, box, load_i32(best, n) - box * classes, load_f32(values, n))
    return number


@kernel(POST_PROCESS)
def post_process(
    encodings, scores, anchors, boxes, classes, best, found, work, count, columns, class_count, kept, per_box,
    per_class, regular, score_threshold: np.float32, iou_threshold: np.float32, y_scale, x_scale, h_scale, w_scale, tid,
):  # fmt: skip
    """Decode boxes, drop overlapping ones and write the best."""
    if tid != 0:
        return
    room = kept * per_box
    own_scores = work + 16 * count
    rest, chosen, listed = own_scores + 4 * count, own_scores + 8 * count, own_scores + 12 * count
    _decode(encodings, anchors, work, count, y_scale, x_scale, h_scale, w_scale)
    base.fill_bytes(boxes, 0, 16 * room)
    base.fill_bytes(classes, 0, 4 * room)
    base.fill_bytes(best, 0, 4 * room)
    results, all_scores = (boxes, classes, best), scores + 4 * (columns - class_count)
    if regular != 0:
        number = _by_classes(
            results, all_scores, columns, class_count, work, own_scores, rest, chosen, listed, count, kept, per_class,
            score_threshold, iou_threshold,
        )  # fmt: skip
    else:
        number = _by_boxes(
            results, all_scores, columns, class_count, work, own_scores, rest, chosen, count, kept, per_box,
            score_threshold, iou_threshold,
        )  # fmt: skip
    store_f32(found, 0, np.float32(number))
