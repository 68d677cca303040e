"""Detection post-processing: boxes are decoded from anchors, those that overlap a better one are dropped, and the best
are kept.

Results equal LiteRT's: boxes are decoded in double precision, everything else is computed in floats. Of equal scores
the first counts as better. One thread does all the work.
"""

from __future__ import annotations

import math

import numpy as np

from isthmus.engine.native.kernels.base import (
    copy_bytes,
    device,
    fill_bytes,
    kernel,
    load_f32,
    load_i32,
    store_f32,
    store_i32,
)
from isthmus.engine.native.signatures.detection import POST_PROCESS


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
def _overlap(corners, a, b):  # type: ignore[no-untyped-def]
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
    return both / (area + area_b - both)


@device
def _choose(corners, scores, marks, chosen, count, most, least, limit):
    """Write to `chosen` the indices of up to `most` boxes, best first, that overlap no better one; return their number.

    Scores are `least` or more, overlaps at most `limit`. `marks` has a word for each box: whether it can still be
    chosen.
    """
    for i in range(count):
        store_i32(marks, i, np.int32(1 if load_f32(scores, i) >= least else 0))
    number = 0
    while number < most:
        best = -1
        for i in range(count):
            if load_i32(marks, i) != 0 and (best < 0 or load_f32(scores, i) > load_f32(scores, best)):
                best = i
        if best < 0:
            break
        store_i32(chosen, number, np.int32(best))
        store_i32(marks, best, np.int32(0))
        number += 1
        for i in range(count):
            if load_i32(marks, i) != 0 and _overlap(corners, best, i) > limit:
                store_i32(marks, i, np.int32(0))
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
    copy_bytes(boxes + 16 * index, corners + 16 * box, 16)
    store_f32(classes, index, np.float32(class_))
    store_f32(best, index, score)


@device
def _by_boxes(
    results, all_scores, columns, classes, corners, scores, marks, chosen, count, kept, per_box, least, limit
):
    """Compare boxes by their best class, and write each kept box with its best classes; return the number kept.

    `corners`, `scores`, `marks` and `chosen` are work space, with an entry for each of `count` boxes.
    """
    for i in range(count):
        own = all_scores + 4 * columns * i
        store_f32(scores, i, load_f32(own, _next_class(own, classes, -1)))
    number = _choose(corners, scores, marks, chosen, count, kept, least, limit)
    for n in range(number):
        box = load_i32(chosen, n)
        own, class_ = all_scores + 4 * columns * box, -1
        for k in range(min(per_box, classes)):
            class_ = _next_class(own, classes, class_)
            _put(results, corners, n * per_box + k, box, class_, load_f32(own, class_))
    return number


@device
def _by_classes(
    results, all_scores, columns, classes, corners, scores, marks, chosen, best, count, kept, per_class, least, limit
):
    """Compare the boxes of each class, and write the best over all classes; return their number.

    `best` is work space for a sorted list of the best so far, each as box times classes plus class; their scores are
    behind it. The rest is as in `_by_boxes`.
    """
    values = best + 4 * (kept + per_class)
    number = 0
    for class_ in range(classes):
        column = all_scores + 4 * class_
        for i in range(count):
            store_f32(scores, i, load_f32(column, columns * i))
        for n in range(_choose(corners, scores, marks, chosen, count, min(per_class, kept), least, limit)):
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
    marks, chosen, listed = own_scores + 4 * count, own_scores + 8 * count, own_scores + 12 * count
    _decode(encodings, anchors, work, count, y_scale, x_scale, h_scale, w_scale)
    fill_bytes(boxes, 0, 16 * room)
    fill_bytes(classes, 0, 4 * room)
    fill_bytes(best, 0, 4 * room)
    results, all_scores = (boxes, classes, best), scores + 4 * (columns - class_count)
    if regular != 0:
        number = _by_classes(
            results, all_scores, columns, class_count, work, own_scores, marks, chosen, listed, count, kept, per_class,
            score_threshold, iou_threshold,
        )  # fmt: skip
    else:
        number = _by_boxes(
            results, all_scores, columns, class_count, work, own_scores, marks, chosen, count, kept, per_box,
            score_threshold, iou_threshold,
        )  # fmt: skip
    store_f32(found, 0, np.float32(number))
