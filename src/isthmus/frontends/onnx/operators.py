"""The table of all ONNX operators, from one table per family. A converter takes a node and returns its results."""

from __future__ import annotations

from isthmus.frontends.onnx import (
    attention,
    constants,
    control,
    convolution,
    detection,
    elementwise,
    fused,
    indexing,
    linear,
    movement,
    nbits,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
    sampling,
    sequences,
    spectral,
)
from isthmus.frontends.onnx.node import Converter

CONVERTERS: dict[str, Converter] = {
    name: converter
    for family in (
        attention, constants, control, convolution, detection, elementwise, fused, indexing, linear, movement, nbits,
        normalization, pooling, quantization, recurrent, reduction, resize, sampling, sequences,
        spectral,
    )
    for name, converter in family.CONVERTERS.items()
}  # fmt: skip
"""Converters by operator; operators outside ONNX's own domain are "domain:operator"."""

KEEPS_CHANNELS = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Dropout", "Shape", "Size", "CastLike",
        *quantization.CONVERTERS,
    }
)  # fmt: skip
"""Operators that accept fixed-point values even if they are quantized per channel."""

TAKES_FIXED_POINT = KEEPS_CHANNELS | {
    "Concat", "Split", "Slice", "Pad", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "MaxPool",
}  # fmt: skip
"""Operators that accept fixed-point values; the others get the stored integers."""

TAKES_SEQUENCES = frozenset(
    {*sequences.CONVERTERS, "Identity", "If", "Loop", "OptionalHasElement", "OptionalGetElement"}
)
"""Operators that accept sequences; functions pass them on."""
