"""Signatures of the kernel in `kernels.regions`."""

from __future__ import annotations

from isthmus.engine.native.words import Number, ReadOperand, Real, Signature, Write, flag

ROI_ALIGN = Signature(
    "regions:roi_align",
    (
        Write("output", "count * out_height * out_width * channels * 4"),
        ReadOperand("x", "batch * height * width * channels * 4"),
        ReadOperand("regions", "count * 16"),
        ReadOperand("indices", "count * 4"),
        Number("batch", 1),
        Number("height", 1),
        Number("width", 1),
        Number("channels", 1),
        Number("count", 1),
        Number("out_height", 1),
        Number("out_width", 1),
        # Samples of a pixel along each axis; 0 for as many as it covers pixels of the image.
        Number("samples_y", 0, 1 << 20),
        Number("samples_x", 0, 1 << 20),
        flag("aligned"),
        flag("largest"),
        Real("ratio_y"),
        Real("ratio_x"),
    ),
)
SIGNATURES = (ROI_ALIGN,)
