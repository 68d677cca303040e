"""Conversion of TFLite_Detection_PostProcess, the custom operator that ends SSD models."""

from __future__ import annotations

from isthmus.frontends.tflite import flexbuffer
from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.graph import Tensor

# The operation's integer and real parameters, by the names of the file's options.
_INTEGERS = {
    "max_detections": "max_detections",
    "max_classes_per_detection": "max_classes_per_detection",
    "num_classes": "num_classes",
}
_REALS = {
    "nms_score_threshold": "score_threshold", "nms_iou_threshold": "iou_threshold", "y_scale": "y_scale",
    "x_scale": "x_scale", "h_scale": "h_scale", "w_scale": "w_scale",
}  # fmt: skip


def _post_process(node: OperatorContext) -> list[Tensor]:
    """Convert boxes, class scores and anchors to a DetectionPostProcess on reals."""
    try:
        options = flexbuffer.scalars(node.entry.custom_options)
    except ValueError as error:
        node.refuse(f"its options cannot be read: {error}")
    missing = [name for name in (*_INTEGERS, *_REALS) if name not in options]
    if missing:
        node.refuse(f"its options lack '{missing[0]}'")
    if len(node.outputs) != 4:
        node.refuse(f"it has {len(node.outputs)} outputs, not 4")
    params: dict[str, int | float | bool] = {ours: int(options[theirs]) for theirs, ours in _INTEGERS.items()}
    params |= {ours: float(options[theirs]) for theirs, ours in _REALS.items()}
    params["detections_per_class"] = int(options.get("detections_per_class", 100))
    params["use_regular_nms"] = bool(options.get("use_regular_nms", False))
    if min(v for v in params.values() if isinstance(v, int)) < 0:
        node.refuse("its options hold negative counts")
    inputs = [node.real(node.input(index)) for index in range(3)]
    return node.emit_all("DetectionPostProcess", inputs, params)


CONVERTERS: dict[str, Converter] = {"CUSTOM:TFLite_Detection_PostProcess": _post_process}
