"""Signatures of the kernel in `kernels.detection`."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, WorkSpace, Write, flag

_MAX_COUNT = 1 << 24

POST_PROCESS = Signature(
    "detection:post_process",
    (
        ReadOperand("encodings", "count * 16"),
        ReadOperand("scores", "count * columns * 4"),
        ReadOperand("anchors", "count * 16"),
        Write("boxes", "kept * per_box * 16"),
        Write("classes", "kept * per_box * 4"),
        Write("best", "kept * per_box * 4"),
        Write("found", "4"),
        # Corners of all boxes; a score, a mark and an index for each; and the best of all classes so far.
        WorkSpace("work", "count * 28 + (kept + per_class) * 8"),
        # Boxes, scores per box, and how many of these, at the end, are class scores.
        Number("count", 1, _MAX_COUNT),
        Number("columns", 1, _MAX_COUNT),
        Number("class_count", 1, _MAX_COUNT),
        # Boxes to keep, classes of each, and boxes per class.
        Number("kept", 1, _MAX_COUNT),
        Number("per_box", 1, _MAX_COUNT),
        Number("per_class", 1, _MAX_COUNT),
        flag("regular"),
        Real("score_threshold"),
        Real("iou_threshold"),
        Real("y_scale"),
        Real("x_scale"),
        Real("h_scale"),
        Real("w_scale"),
    ),
    # A box and a class are encoded together in 32 bits.
    rules=("class_count <= columns", "count * class_count < 1 << 31"),
)
SIGNATURES = (POST_PROCESS,)
