"""Every ONNX operator with its converter, assembled from one table per family."""

from __future__ import annotations

from isthmus.frontends.onnx import (
    constants,
    control,
    convolution,
    elementwise,
    indexing,
    linear,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    spectral,
)
from isthmus.frontends.onnx.node import Converter

CONVERTERS: dict[str, Converter] = {
    name: converter
    for family in (
        constants, control, convolution, elementwise, indexing, linear, movement, normalization, pooling, quantization,
        recurrent, reduction, resize, spectral,
    )
    for name, converter in family.CONVERTERS.items()
}  # fmt: skip
"""Converters by operator; those outside ONNX's own domain as "domain:operator"."""

KEEPS_CHANNELS = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", "Shape", "Size",
        *quantization.CONVERTERS,
    }
)  # fmt: skip
"""Operators that take fixed-point values even when they are quantized per channel."""

TAKES_FIXED_POINT = KEEPS_CHANNELS | {
    "Concat", "Split", "Slice", "Pad", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool",
}  # fmt: skip
"""Operators that take fixed-point values as they are; the others see the integers they are stored in."""
