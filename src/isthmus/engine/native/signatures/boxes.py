"""Signatures of the kernels in `kernels.boxes`."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, WorkSpace, Write, flag, signed

_MAX_COUNT = 1 << 24
_BOXES = (
    ReadOperand("boxes", "batch * count * 16"),
    ReadOperand("scores", "batch * classes * count * 4"),
    # Corners of all boxes; a score and an index for each.
    WorkSpace("work", "count * 24"),
    *Number.each("batch classes count", 1, _MAX_COUNT),
    # Rows of the results.
    Number("room", 1, _MAX_COUNT),
    *Real.each("score_threshold iou_threshold"),
)
SUPPRESS = Signature(
    "boxes:suppress",
    (
        Write("rows", "room * 12"),
        Write("found", "4"),
        *_BOXES,
        # The most boxes of one class.
        Number("most", 1, _MAX_COUNT),
    ),
)
SELECT = Signature(
    "boxes:select",
    (
        *(Write(name, "batch * room * 4") for name in ("indices", "best", "winners")),
        Write("found", "batch * 4"),
        *_BOXES,
        # Boxes to keep, at most `room`, and the class that is left out (-1 for none).
        Number("kept", 0, _MAX_COUNT),
        signed("skipped", _MAX_COUNT),
        *Real.each("sigma eta"),
    ),
    rules=("kept <= room",),
)
POST_PROCESS = Signature(
    "boxes:post_process",
    (
        ReadOperand("encodings", "count * 16"),
        ReadOperand("scores", "count * columns * 4"),
        ReadOperand("anchors", "count * 16"),
        Write("boxes", "kept * per_box * 16"),
        *(Write(name, "kept * per_box * 4") for name in ("classes", "best")),
        Write("found", "4"),
        # Corners of all boxes; a score for each; lists of the boxes that remain and that are chosen; the best of all
        # classes so far.
        WorkSpace("work", "count * 28 + (kept + per_class) * 8"),
        # Boxes, scores per box, and how many of these, at the end, are class scores.
        *Number.each("count columns class_count", 1, _MAX_COUNT),
        # Boxes to keep, classes of each, and boxes per class.
        *Number.each("kept per_box per_class", 1, _MAX_COUNT),
        flag("regular"),
        *Real.each("score_threshold iou_threshold y_scale x_scale h_scale w_scale"),
    ),
    # A box and a class are encoded together in 32 bits.
    rules=("class_count <= columns", "count * class_count < 1 << 31"),
)
