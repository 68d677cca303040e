"""Detection: NonMaxSuppression, whose number of results depends on the data."""

from __future__ import annotations

import numpy as np

from isthmus.frontends.onnx.layout import OnnxValue
from isthmus.frontends.onnx.movement import join, slice_value
from isthmus.frontends.onnx.node import Converter, OnnxNode
from isthmus.graph import DataType


def _non_max_suppression(node: OnnxNode) -> OnnxValue:
    """Convert to QNN's operation: rows [batch, class, box], as many as can be selected; -1 follows the last one."""
    boxes, scores = node.value(0), node.value(1)
    node.need_all({2: boxes.dims[1] if boxes.rank == 3 else 0, 3: 0.0, 4: 0.0})
    most = int(node.number(2, 0))
    if boxes.rank != 3 or scores.rank != 3 or boxes.dims[2] != 4 or scores.dims[2] != boxes.dims[1]:
        node.refuse(f"boxes {list(boxes.dims)} and scores {list(scores.dims)} do not fit each other")
    per_class = min(max(most, 0), boxes.dims[1])
    rows = scores.dims[0] * scores.dims[1] * per_class
    if not rows:
        return node.literal(np.zeros((0, 3), np.int64))
    if node.attr("center_point_box", 0):
        boxes = _corners(node, boxes)
    lowest = float(np.finfo(np.float32).min)
    params = {
        "iou_threshold": float(node.number(3, 0.0)),
        "score_threshold": max(float(node.number(4, lowest)), lowest),
        "max_boxes_selected": per_class,
    }  # fmt: skip
    operands = [node.materialize(boxes), node.materialize(scores)]
    return node.rows(
        "NonMaxSuppression", operands, (0, 1), params, dims=[(rows, 3), (1,)],
        dtypes=[DataType.INT_64, DataType.INT_32], outputs=2,
    )  # fmt: skip


def _corners(node: OnnxNode, boxes: OnnxValue) -> OnnxValue:
    """Return boxes of centre and size as boxes of two corners. Both have x before y; the order does not matter."""
    centres, sizes = (slice_value(node, boxes, {2: (first, first + 2, 1)}) for first in (0, 2))
    halves = node.times(sizes, 0.5)
    corners = [node.elementwise(f"ElementWise{op}", centres, halves) for op in ("Subtract", "Add")]
    return join(node, corners, 2)


CONVERTERS: dict[str, Converter] = {"NonMaxSuppression": _non_max_suppression}
