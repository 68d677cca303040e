"""Compositions of operations that select boxes: SelectBoxes, and gathers of what belongs to the boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.graph import DataType, Tensor
from isthmus.graph.ops.detection import REGULAR
from isthmus.prepare.compositions.composer import FLOAT, INTEGER, Composition, StepComposer

# The score of a box that cannot be selected.
_NONE = -3.0e38


def _gather_rows(c: StepComposer, rows: Tensor, indices: Tensor) -> Tensor:
    """Return the rows [batch, row, …] that indices [batch, row] name; an index behind the last row names zeros."""
    padded = c("Concat", rows, c.zeros((rows.dims[0], 1, *rows.dims[2:]), rows), axis=1)
    return c("GatherNd", padded, c.reshape(indices, *indices.dims, 1), batch_dims=1)


def _select(c: StepComposer, boxes: Tensor, scores: Tensor, room: int, **params: Any) -> list[Tensor]:
    """Return indices, scores and classes of the best boxes, `room` at most, and their number."""
    batch = boxes.dims[0]
    return c.all("SelectBoxes", boxes, scores, dims=[*[(batch, room)] * 3, (batch,)], **params)


def _multi_class_nms(c: StepComposer) -> list[Tensor]:
    room = c.outputs[0].dims[1]
    indices, scores, classes, counts = _select(c, c.real(0), c.real(1), room, **c.params)
    features = [_gather_rows(c, c.movable(index), indices) for index in range(2, len(c.outputs) - 2)]
    return [_gather_rows(c, c.movable(0), indices), scores, classes, counts, *features]


def _decode(c: StepComposer) -> Tensor:
    """Return the corners [top, left, bottom, right] of boxes that are encoded relative to anchors."""
    encodings, anchors, factors = c.real(1), c.real(2), np.asarray(c.params["delta_scaling_factors"], np.float32)
    centers, sizes = (c.slice(encodings, 2, first, first + 2) for first in (0, 2))
    origins, units = (c.slice(anchors, 1, first, first + 2) for first in (0, 2))
    centers = c("ElementWiseMultiply", c("ElementWiseDivide", centers, c.constant(factors[:2])), units)
    centers = c("ElementWiseAdd", centers, origins)
    sizes = c("ElementWiseExp", c("ElementWiseDivide", sizes, c.constant(factors[2:])))
    halves = c("ElementWiseMultiply", c("ElementWiseMultiply", sizes, units), c.constant([0.5]))
    corners = [c(op, centers, halves) for op in ("ElementWiseSubtract", "ElementWiseAdd")]
    return c("Concat", *corners, axis=2)


def _detection_output(c: StepComposer) -> list[Tensor]:
    """Decode boxes, and select the best ones of every class, or of all boxes by their best class alone."""
    params, room = c.params, c.outputs[0].dims[1]
    corners, scores = _decode(c), c.real(0)
    limits = {
        "iou_threshold": params["iou_threshold"],
        "score_threshold": params["confidence_threshold"],
        "nms_eta": params["nms_eta"],
        "limit": params["detection_limit"],
    }
    background = params["background_class_idx"]
    skipped = -1 if params["output_background"] else background
    if params["nms_type"] == REGULAR:
        indices, best, classes, counts = _select(c, corners, scores, room, skipped_class=skipped, **limits)
        return [best, _gather_rows(c, corners, indices), classes, counts]
    # NMS of type FAST compares boxes by their best class alone.
    if 0 <= background < scores.dims[2] and not (params["use_bg_in_nms"] or params["output_background"]):
        hidden = np.where(np.arange(scores.dims[2]) == background, np.float32(_NONE), np.float32(3.0e38))
        scores = c("ElementWiseMinimum", scores, c.constant(hidden))
    best = c("ReduceMax", scores, axes=[2], keep_dims=True)
    winners = c("Argmax", scores, axis=2, dtype=INTEGER)
    if skipped >= 0:
        is_skipped = c("ElementWiseEqual", winners, c.constant([skipped], INTEGER))
        best = c("ElementWiseSelect", c.reshape(is_skipped, *best.dims), c.constant([_NONE]), best)
    indices, best, _, counts = _select(c, corners, best, room, **limits)
    return [best, _gather_rows(c, corners, indices), _gather_rows(c, winners, indices), counts]


def _non_max_suppression(c: StepComposer) -> list[Tensor] | None:
    """Convert the operands and results to the types that an engine takes."""
    types = [t and t.dtype for t in (*c.step.inputs, *c.outputs)]
    if types[:3] == [FLOAT, FLOAT, INTEGER] and types[3:] in ([INTEGER], [DataType.UINT_32]):
        return None
    return c.all(c.step.op, c.real(0), c.real(1), dims=[c.outputs[0].dims], dtype=INTEGER, **c.params)


def _non_zero(c: StepComposer) -> list[Tensor] | None:
    """Compare with 0, so that an engine counts only booleans."""
    x = c.input(0)
    if x.dtype is DataType.BOOL_8 and c.outputs[0].dtype is INTEGER:
        return None
    return [c("NonZero", c.not_zero(x), dims=c.outputs[0].dims, dtype=INTEGER)]


COMPOSITIONS: dict[str, Composition] = {
    "MultiClassNms": _multi_class_nms,
    "DetectionOutput": _detection_output,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
}
