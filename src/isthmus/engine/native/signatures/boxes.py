"""Signatures of the kernels in `kernels.boxes`."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, WorkSpace, Write, signed

_MAX_COUNT = 1 << 24
_BOXES = (
    ReadOperand("boxes", "batch * count * 16"),
    ReadOperand("scores", "batch * classes * count * 4"),
    # Corners of all boxes; a score and an index for each.
    WorkSpace("work", "count * 24"),
    Number("batch", 1, _MAX_COUNT),
    Number("classes", 1, _MAX_COUNT),
    Number("count", 1, _MAX_COUNT),
    # Rows of the results.
    Number("room", 1, _MAX_COUNT),
    Real("score_threshold"),
    Real("iou_threshold"),
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
        Write("indices", "batch * room * 4"),
        Write("best", "batch * room * 4"),
        Write("winners", "batch * room * 4"),
        Write("found", "batch * 4"),
        *_BOXES,
        # Boxes to keep, at most `room`, and the class that is left out (-1 for none).
        Number("kept", 0, _MAX_COUNT),
        signed("skipped", _MAX_COUNT),
        Real("sigma"),
        Real("eta"),
    ),
    rules=("kept <= room",),
)
SIGNATURES = (SUPPRESS, SELECT)
