"""Lowering of detection: post-processing, selection of boxes, coordinates of what is not 0, regions of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

_FLOAT, _INTEGER = DataType.FLOAT_32, DataType.INT_32
# The most boxes, and the most rows of results, that the kernels take.
_MAX_BOXES = 1 << 24
# The kernel encodes a box and a class together in 32 bits.
_MAX_PLACES = 1 << 31


def _work(step: Step, target: Target, threads: int) -> int:
    """Return the size of the work space; the kernel's signature says what it holds."""
    count = operand(step, 0).dims[1]
    return 28 * count + 8 * (int(step.params["max_detections"]) + int(step.params["detections_per_class"]))


def _refuses(step: Step) -> str | None:
    for tensor in (*step.inputs, *step.outputs):
        if tensor is not None and tensor.dtype is not DataType.FLOAT_32:
            return f"{tensor.describe()} is not float32, which detections are computed in"
    count = operand(step, 0).dims[1] * int(step.params["num_classes"])
    return f"{count} boxes and classes are too many" if count >= _MAX_PLACES else None


def _emit(step: Step, e: Emitter) -> None:
    encodings, scores, anchors = (operand(step, i) for i in range(3))
    params = step.params
    names = ("score_threshold", "iou_threshold", "y_scale", "x_scale", "h_scale", "w_scale")
    boxes, classes, best, number = map(e.at, step.outputs)
    e.emit(
        "boxes:post_process", encodings=e.at(encodings), scores=e.at(scores), anchors=e.at(anchors), boxes=boxes,
        classes=classes, best=best, found=number, work=e.work(), count=encodings.dims[1], columns=scores.dims[2],
        class_count=int(params["num_classes"]), kept=int(params["max_detections"]),
        per_box=int(params["max_classes_per_detection"]), per_class=int(params["detections_per_class"]),
        regular=int(params["use_regular_nms"]), **{name: float(np.float32(params[name])) for name in names},
    )  # fmt: skip


def _box_work(step: Step, target: Target, threads: int) -> int:
    """Return the size of the work space: corners, a score and an index for each box."""
    return 24 * operand(step, 0).dims[1]


def _unlike(step: Step, inputs: Sequence[DataType], outputs: Sequence[DataType]) -> str | None:
    """Return which operand or result has a type that the kernel does not take, or None."""
    pairs = (*zip(step.inputs, inputs, strict=False), *zip(step.outputs, outputs, strict=False))
    for tensor, dtype in pairs:
        if tensor is not None and tensor.dtype is not dtype:
            return f"{tensor.describe()} must be {dtype.name}"
    return None


def _refuses_boxes(step: Step) -> str | None:
    """Refuse other types than float32 and INT_32, and more boxes than the kernels number."""
    boxes = operand(step, 0)
    if max(boxes.dims[1], step.outputs[0].elements) >= _MAX_BOXES:
        return f"{boxes.dims[1]} boxes are too many"
    results = [_INTEGER, _FLOAT, _INTEGER, _INTEGER] if step.op == "SelectBoxes" else [_INTEGER]
    if len(step.outputs) < 2 or step.outputs[-1].itemsize != 4:
        return "the number of boxes must be an integer of 32 bits"
    return _unlike(step, (_FLOAT, _FLOAT), results)


def _emit_select(step: Step, e: Emitter) -> None:
    boxes, scores, params = operand(step, 0), operand(step, 1), step.params
    indices, best, classes, number = step.outputs
    room, limit = indices.dims[1], int(params["limit"])
    if not indices.elements:
        return
    e.emit(
        "boxes:select", indices=e.at(indices), best=e.at(best), winners=e.at(classes), found=e.at(number),
        boxes=e.at(boxes), scores=e.at(scores), work=e.work(), batch=boxes.dims[0], classes=scores.dims[2],
        count=boxes.dims[1], room=room, score_threshold=_single(params["score_threshold"]),
        iou_threshold=_single(params["iou_threshold"]), kept=room if limit < 0 else min(room, limit),
        skipped=max(int(params["skipped_class"]), -1), sigma=_single(params["soft_nms_sigma"]),
        eta=_single(params["nms_eta"]),
    )  # fmt: skip


def _emit_suppress(step: Step, e: Emitter) -> None:
    boxes, scores, params = operand(step, 0), operand(step, 1), step.params
    rows, number = step.outputs
    if not scores.elements or not rows.elements:
        for tensor, byte in ((rows, 0xFF), (number, 0)):
            if tensor.elements:
                e.emit("movement:fill.1", destination=e.at(tensor), elements=tensor.nbytes, value=byte)
        return
    e.emit(
        "boxes:suppress", rows=e.at(rows), found=e.at(number), boxes=e.at(boxes), scores=e.at(scores), work=e.work(),
        batch=boxes.dims[0], classes=scores.dims[1], count=boxes.dims[1], room=rows.dims[0],
        score_threshold=float(params["score_threshold"]), iou_threshold=float(params["iou_threshold"]),
        most=int(params["max_boxes_selected"]) or boxes.dims[1],
    )  # fmt: skip


def _single(value: float) -> float:
    """Return a parameter as the nearest float32."""
    return float(np.float32(value))


def _emit_non_zero(step: Step, e: Emitter) -> None:
    x, output = operand(step, 0), step.outputs[0]
    if not output.elements:
        return
    if not x.elements:
        e.emit("movement:fill.1", destination=e.at(output), elements=output.nbytes, value=0xFF)
        return
    e.emit(
        "selection:non_zero", output=e.at(output), x=e.at(x), elements=x.elements, room=output.dims[0],
        dims=list(x.dims),
    )  # fmt: skip


def _emit_roi_align(step: Step, e: Emitter) -> None:
    x, regions, indices, output, params = *(operand(step, i) for i in range(3)), step.outputs[0], step.params
    batch, height, width, channels = x.dims
    ratio_y, ratio_x = (_single(ratio) for ratio in params["img_size_ratio"])
    e.emit(
        "resize:roi_align", output=e.at(output), x=e.at(x), regions=e.at(regions), indices=e.at(indices), batch=batch,
        height=height, width=width, channels=channels, count=output.dims[0], out_height=output.dims[1],
        out_width=output.dims[2], samples_y=int(params["num_samples_y"]), samples_x=int(params["num_samples_x"]),
        aligned=int(params["aligned"]), largest=int(params["largest_sample"]), ratio_y=ratio_y, ratio_x=ratio_x,
    )  # fmt: skip


LOWERINGS: dict[str, Lowering] = {
    "DetectionPostProcess": Lowering(_emit, _work, refuses=_refuses),
    "SelectBoxes": Lowering(_emit_select, _box_work, refuses=_refuses_boxes),
    "NonMaxSuppression": Lowering(_emit_suppress, _box_work, refuses=_refuses_boxes),
    "NonZero": Lowering(_emit_non_zero, refuses=lambda step: _unlike(step, (DataType.BOOL_8,), (_INTEGER,))),
    "RoiAlign": Lowering(
        _emit_roi_align,
        refuses=lambda step: _unlike(step, (_FLOAT, _FLOAT, _INTEGER), (_FLOAT,)),
    ),
}
