"""Operations whose number of results depends on the data. The declared output gives the most that fit.

Unused rows are filled with -1 (the largest value of an unsigned type), those of DetectionPostProcess with 0.

Functions of a `Call` are the rules of operations: they check the call and return the dimensions of its outputs.
"""

from __future__ import annotations

import numpy as np

from isthmus.graph.datatypes import INDICES, REALS, DataType
from isthmus.graph.operation import ISTHMUS, Call, Dims, Operation, Param, optional


def _non_max_suppression(call: Call) -> list[Dims]:
    """Check boxes [batch, boxes, 4] and scores [batch, classes, boxes].

    The outputs are rows [batch, class, box] of the selected boxes, and their number.
    """
    call.rank(0, 3)
    call.rank(1, 3)
    batch, boxes, _ = call.dims(0)
    call.shape(0, batch, boxes, 4)
    call.shape(1, batch, call.dims(1)[1], boxes)
    out = call.declared_dims()
    if len(out) != 2 or out[1] != 3:
        call.refuse(f"out[0] {list(out)} must be [max_selected_indices,3]")
    return [out, (1,)]


def _non_zero(call: Call) -> list[Dims]:
    """Check the declared number of rows; it is derived if the operand is a constant. Rows are coordinates."""
    tensor = call.tensor(0)
    if call.declared is None and tensor.is_static and tensor.data is not None:
        return [(int(np.count_nonzero(tensor.data)), tensor.rank)]
    out = call.declared_dims()
    if len(out) != 2 or out[1] != tensor.rank:
        call.refuse(f"out[0] {list(out)} must be [count,{tensor.rank}]")
    return [out]


def _detection_post_process(call: Call) -> list[Dims]:
    """Check boxes (centers and sizes relative to anchors), class scores and anchors; the batch must be 1.

    The outputs are the boxes' corners, their classes, their scores, and the number of detections.
    """
    call.rank(0, 3)
    call.rank(1, 3)
    boxes, columns = call.dims(0)[1], call.dims(1)[2]
    call.shape(0, 1, boxes, 4)
    call.shape(1, 1, boxes, columns)
    call.shape(2, boxes, 4)
    detections, classes = call.number("max_detections", least=1), call.number("max_classes_per_detection", least=1)
    call.number("detections_per_class", least=1)
    if not boxes or not 1 <= call.number("num_classes") <= columns:
        call.refuse(f"num_classes {call.params['num_classes']} must be 1 to the {columns} scores of each of the boxes")
    if not all(call.params[name] for name in ("y_scale", "x_scale", "h_scale", "w_scale")):
        call.refuse("scales of boxes must not be 0")
    rows = detections * classes
    return [(1, rows, 4), (1, rows), (1, rows), (1,)]


OPERATIONS = (
    Operation(
        "NonMaxSuppression", (2, 2), (1, 2),
        (Param("iou_threshold", "f32"), optional("score_threshold", "f32", 0.0),
         optional("max_boxes_selected", "u32", 0)),
        _non_max_suppression, {0: REALS, 1: REALS},
        {0: (DataType.INT_32, DataType.INT_64), 1: (DataType.UINT_32, DataType.INT_32, DataType.INT_64)},
    ),
    Operation("NonZero", (1, 1), (1, 1), (), _non_zero, output_types={0: INDICES}),
    Operation(
        "DetectionPostProcess", (3, 3), (4, 4),
        (Param("max_detections", "u32"), Param("max_classes_per_detection", "u32"), Param("num_classes", "u32"),
         Param("score_threshold", "f32"), Param("iou_threshold", "f32"), Param("y_scale", "f32"),
         Param("x_scale", "f32"), Param("h_scale", "f32"), Param("w_scale", "f32"),
         optional("detections_per_class", "u32", 100), optional("use_regular_nms", "bool", False)),
        _detection_post_process, dict.fromkeys(range(3), REALS), package=ISTHMUS,
    ),
)
