"""Lowering of detection post-processing."""

from __future__ import annotations

import numpy as np

from isthmus.engine.native.lowering.emitter import Emitter, Lowering
from isthmus.engine.native.target import Target
from isthmus.graph import DataType
from isthmus.prepare.geometry.layout import operand
from isthmus.prepare.schedule import Step

_MAX_PLACES = 1 << 31
"""The kernel encodes a box and a class together in 32 bits."""


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
    boxes, classes, best, found = map(e.at, step.outputs)
    e.emit(
        "detection:post_process", encodings=e.at(encodings), scores=e.at(scores), anchors=e.at(anchors), boxes=boxes,
        classes=classes, best=best, found=found, work=e.work(), count=encodings.dims[1], columns=scores.dims[2],
        class_count=int(params["num_classes"]), kept=int(params["max_detections"]),
        per_box=int(params["max_classes_per_detection"]), per_class=int(params["detections_per_class"]),
        regular=int(params["use_regular_nms"]), **{name: float(np.float32(params[name])) for name in names},
    )  # fmt: skip


LOWERINGS: dict[str, Lowering] = {"DetectionPostProcess": Lowering(_emit, _work, refuses=_refuses)}
