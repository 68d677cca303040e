"""Operations whose number of results depends on the data. The declared output gives the most that fit.

Unused rows of NonZero and NonMaxSuppression are filled with -1 (the largest value of an unsigned type), those of the
other operations with 0. SelectBoxes, which several of them are composed of, gives the number of boxes as the index of
an unused row, so that one row of zeros behind the boxes is all that a following gather needs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from isthmus.graph.datatypes import INDICES, REALS, DataType
from isthmus.graph.operation import ISTHMUS, Call, Dims, Param, define, like, optional, options, required


def _non_max_suppression(call: Call) -> list[Dims]:
    """Check boxes [batch, boxes, 4] and scores [batch, classes, boxes]."""
    # The outputs are rows [batch, class, box] of the selected boxes, and their number.
    call.check_rank(0, 3)
    call.check_rank(1, 3)
    batch, boxes, _ = call.dims(0)
    call.check_dims(0, batch, boxes, 4)
    call.check_dims(1, batch, call.dims(1)[1], boxes)
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
    """Check boxes (centers and sizes relative to anchors), class scores and anchors; the batch must be 1."""
    # The outputs are the boxes' corners, their classes, their scores, and the number of detections.
    call.check_rank(0, 3)
    call.check_rank(1, 3)
    boxes, columns = call.dims(0)[1], call.dims(1)[2]
    call.check_dims(0, 1, boxes, 4)
    call.check_dims(1, 1, boxes, columns)
    call.check_dims(2, boxes, 4)
    detections, classes = call.number("max_detections", least=1), call.number("max_classes_per_detection", least=1)
    call.number("detections_per_class", least=1)
    if not boxes or not 1 <= call.number("num_classes") <= columns:
        call.refuse(f"num_classes {call.params['num_classes']} must be 1 to the {columns} scores of each of the boxes")
    if not all(call.params[name] for name in ("y_scale", "x_scale", "h_scale", "w_scale")):
        call.refuse("scales of boxes must not be 0")
    rows = detections * classes
    return [(1, rows, 4), (1, rows), (1, rows), (1,)]


def _check_selection(call: Call, scores: int, boxes: int) -> tuple[int, int, int]:
    """Check scores [batch, boxes, classes] and boxes [batch, boxes, 4] at these inputs.

    Return the batches, the boxes and the declared number of selected boxes, which out[0] has as its second dimension.
    """
    call.check_rank(scores, 3)
    batch, count, classes = call.dims(scores)
    call.check_dims(boxes, batch, count, 4)
    out = call.declared_dims()
    if not count or not classes or len(out) < 2 or not out[1]:
        call.refuse(f"boxes and scores {list(call.dims(scores))} cannot give {list(out)}")
    return batch, count, out[1]


def _select_boxes(call: Call) -> list[Dims]:
    """Check boxes and scores. The results are indices, scores and classes of the best boxes, and their number."""
    batch, _, room = _check_selection(call, 1, 0)
    return [(batch, room)] * 3 + [(batch,)]


def _multi_class_nms(call: Call) -> list[Dims]:
    """Check boxes [batch, boxes, 4], scores [batch, boxes, classes] and any features [batch, boxes, …]."""
    # The results are boxes, scores and classes, best first, their number, and the features of the selected boxes.
    batch, count, room = _check_selection(call, 1, 0)
    features = []
    for index in range(2, len(call.inputs)):
        dims = call.dims(index)
        if dims[:2] != (batch, count):
            call.refuse(f"in[{index}] {list(dims)} must begin with {[batch, count]}")
        features.append((batch, room, *dims[2:]))
    return [(batch, room, 4), (batch, room), (batch, room), (batch,), *features]


def _detection_output(call: Call) -> list[Dims]:
    """Check scores [batch, boxes, classes], encoded boxes [batch, boxes, 4] and anchors [boxes, 4]."""
    # The results are scores, corners and classes of the best boxes, and their number.
    batch, count, room = _check_selection(call, 0, 1)
    call.check_dims(2, count, 4)
    if (call.numbers("delta_scaling_factors", 4, least=-(2**31)) == 0).any():
        call.refuse("delta_scaling_factors must not be 0")
    call.number("nms_type", below=2)
    if not call.params["share_location"]:
        call.refuse("boxes of their own for each class (share_location 0) are not supported")
    return [(batch, room), (batch, room, 4), (batch, room), (batch,)]


def _feature_type(index: int) -> Callable[[Call], DataType]:
    """Return the type rule of the features that MultiClassNms selects: that of the features themselves."""
    return lambda call: call.tensor(index - 2).dtype


_COUNTS = (DataType.UINT_32, DataType.INT_32)
_NMS = (Param("iou_threshold", "f32"), optional("score_threshold", "f32", 0.0))
_MAX_FEATURES = 8
FAST, REGULAR = range(2)
"""Values of DetectionOutput's nms_type."""

OPERATIONS = (
    define(
        "NonMaxSuppression",
        _non_max_suppression,
        *_NMS,
        optional("max_boxes_selected", "u32", 0),
        inputs=2,
        outputs=(1, 2),
        types=(REALS, REALS),
        output_types={0: (DataType.INT_32, DataType.INT_64), 1: (*_COUNTS, DataType.INT_64)},
    ),
    define("NonZero", _non_zero, output_types={0: INDICES}),
    define(
        "DetectionPostProcess",
        _detection_post_process,
        *required("u32", "max_detections", "max_classes_per_detection", "num_classes"),
        *required("f32", "score_threshold", "iou_threshold", "y_scale", "x_scale", "h_scale", "w_scale"),
        optional("detections_per_class", "u32", 100),
        optional("use_regular_nms", "bool", False),
        inputs=3,
        outputs=(4, 4),
        types=[REALS] * 3,
        package=ISTHMUS,
    ),
    define(
        "MultiClassNms",
        _multi_class_nms,
        *_NMS,
        optional("soft_nms_sigma", "f32", 0.0),
        inputs=(2, 2 + _MAX_FEATURES),
        outputs=(4, 4 + _MAX_FEATURES),
        types=(REALS, REALS),
        output_types={
            **dict(enumerate((REALS, REALS, (DataType.INT_32,), _COUNTS))),
            **{index: _feature_type(index) for index in range(4, 4 + _MAX_FEATURES)},
        },
    ),
    define(
        "DetectionOutput",
        _detection_output,
        Param("delta_scaling_factors", "f32[]"),
        *required("f32", "confidence_threshold", "iou_threshold"),
        optional("nms_type", "u32", FAST),
        optional("background_class_idx", "i32", -1),
        *options("bool", use_bg_in_nms=False, output_background=False, share_location=True),
        optional("nms_eta", "f32", 1.0),
        optional("detection_limit", "i32", -1),
        inputs=3,
        outputs=(4, 4),
        types=[REALS] * 3,
        output_types=dict(enumerate((REALS, REALS, (DataType.INT_32,), _COUNTS))),
    ),
    define(
        "SelectBoxes",
        _select_boxes,
        *_NMS,
        *options("f32", soft_nms_sigma=0.0, nms_eta=1.0),
        *options("i32", skipped_class=-1, limit=-1),
        inputs=2,
        outputs=(4, 4),
        types=(REALS, REALS),
        output_types={0: DataType.INT_32, 1: like(1), 2: DataType.INT_32, 3: DataType.INT_32},
        package=ISTHMUS,
    ),
)
