"""Signatures of the kernels in `kernels.resize`."""

from __future__ import annotations

from isthmus.engine.native.signatures.elementwise import FLOATS, SIZES
from isthmus.engine.native.words import Number, OffsetTable, ReadOperand, Real, Signature, Write, flag, flags
from isthmus.graph.ops.sampling import MAX_SAMPLES

# The largest side of an image that is sampled at float positions.
_EXACT = 1 << 24

BILINEAR = Signature(
    "resize:bilinear",
    (
        Write("output", "size * batch * height * width * channels"),
        ReadOperand("x", "(least, most)"),
        Number("batch", 1),
        Number("image_bytes"),
        *Number.each("height width channels", 1),
        # Byte offsets of the rows above and below each row of the result, and the weights of the latter.
        *OffsetTable.each("upper lower", "height"),
        ReadOperand("row_weights", "4 * height"),
        *OffsetTable.each("left right", "width"),
        ReadOperand("pixel_weights", "4 * width"),
    ),
    where={
        "least": "min(upper.least, lower.least) + min(left.least, right.least)",
        "most": "(batch - 1) * image_bytes + max(upper.most, lower.most) + max(left.most, right.most)"
        " + size * channels",
    },
    variants={**{kind: {"size": SIZES[kind]} for kind in FLOATS}, "s8": {"size": 1}, "u8": {"size": 1}},
)
ALONG_AXIS = Signature(
    "resize:along_axis",
    (
        Write("output", "4 * outer_count * count * inner"),
        ReadOperand("x", "4 * outer_count * size * inner"),
        *Number.each("outer_count size count inner taps", 1),
        OffsetTable("places", "count * taps"),
        ReadOperand("weights", "4 * count * taps"),
    ),
    rules=("0 <= places.least", "places.most < size"),
)
GRID_SAMPLE = Signature(
    "resize:grid_sample",
    (
        Write("output", "4 * batch * pixels * channels"),
        ReadOperand("x", "4 * batch * height * width * channels"),
        ReadOperand("grid", "8 * batch * pixels"),
        Number("batch", 1),
        *Number.each("height width", 1, _EXACT),
        *Number.each("channels pixels", 1),
        *flags("corners nearest"),
        Number("padding", 0, 2),
    ),
)
CROP_AND_RESIZE = Signature(
    "resize:crop_and_resize",
    (
        Write("output", "4 * count * out_height * out_width * channels"),
        ReadOperand("x", "4 * batch * height * width * channels"),
        ReadOperand("boxes", "16 * count"),
        ReadOperand("indices", "count * index_size"),
        *Number.each("count batch", 1),
        *Number.each("height width", 1, _EXACT),
        *Number.each("channels out_height out_width", 1),
        flag("nearest"),
        Real("outside"),
    ),
    variants={"i32": {"index_size": 4}, "i64": {"index_size": 8}},
)
ROI_ALIGN = Signature(
    "resize:roi_align",
    (
        Write("output", "count * out_height * out_width * channels * 4"),
        ReadOperand("x", "batch * height * width * channels * 4"),
        ReadOperand("regions", "count * 16"),
        ReadOperand("indices", "count * 4"),
        *Number.each("batch height width channels count out_height out_width", 1),
        # Samples of a pixel along each axis; 0 for as many as it covers pixels of the image.
        *Number.each("samples_y samples_x", 0, MAX_SAMPLES),
        *flags("aligned largest"),
        *Real.each("ratio_y ratio_x"),
    ),
)
