"""Operators over axes and blocks of an image: reductions, sorting, running sums, resizing, space and depth.

Functions in `CONVERTERS` take an operator's context, emit operations, and return the results (see `Converter`).
"""

from __future__ import annotations

import numpy as np

from isthmus.frontends.tflite.elementwise import Converter
from isthmus.frontends.tflite.operator_context import OperatorContext
from isthmus.graph import DataType, Tensor


def _reduce(op: str) -> Converter:
    """Return a converter to a reduction over constant axes; without axes it is a copy."""

    def convert(site: OperatorContext) -> list[Tensor]:
        x = site.input(0)
        axes = site.axes(1, x.rank)
        if not axes:
            return site.finish(x)
        return [site.emit(op, [x], {"axes": axes, "keep_dims": bool(site.options["keep_dims"])})]

    return convert


def _reduce_bool(op: str) -> Converter:
    """Return a converter of "any" or "all" to the maximum or minimum of zeros and ones."""

    def convert(site: OperatorContext) -> list[Tensor]:
        x = site.input(0)
        axes = site.axes(1, x.rank)
        if x.dtype is not DataType.BOOL_8:
            site.refuse(f"input 0 must be BOOL_8, is {x.dtype.name}")
        if not axes:
            return site.finish(x)
        params = {"axes": axes, "keep_dims": bool(site.options["keep_dims"])}
        return [site.emit("Cast", [site.step(op, [site.cast(x, DataType.INT_32)], params)])]

    return convert


def _argument(op: str) -> Converter:
    """Return a converter to Argmax or Argmin along a constant axis."""

    def convert(site: OperatorContext) -> list[Tensor]:
        x = site.input(0)
        return [site.emit(op, [x], {"axis": site.axis(site.integer(1), x.rank)})]

    return convert


def _top_k(site: OperatorContext) -> list[Tensor]:
    site.output(1)
    k = site.integer(1)
    if k < 0:
        site.refuse(f"k must not be negative, is {k}")
    return site.emit_all("TopK", [site.input(0)], {"k": k})


def _cumsum(site: OperatorContext) -> list[Tensor]:
    x = site.input(0)
    params = {name: bool(site.options[name]) for name in ("exclusive", "reverse")}
    return [site.emit("CumulativeSum", [x], {"axis": site.axis(site.integer(1), x.rank), **params})]


def _resize(op: str) -> Converter:
    """Return a converter to a resize of images to a constant height and width."""

    def convert(site: OperatorContext) -> list[Tensor]:
        x, sizes = site.ranked(0, 4), site.integers(1)
        if len(sizes) != 2 or min(sizes) < 1:
            site.refuse(f"the new size {sizes} must be a height and a width")
        params = {name: bool(site.options[name]) for name in ("align_corners", "half_pixel_centers")}
        return [site.emit(op, [x], params, dims=(x.dims[0], *sizes, x.dims[3]))]

    return convert


def _depth_space(op: str) -> Converter:
    """Return a converter to DepthToSpace or SpaceToDepth."""

    def convert(site: OperatorContext) -> list[Tensor]:
        (block,) = site.positive("block_size")
        return [site.emit(op, [site.ranked(0, 4)], {"block_size": [block, block]})]

    return convert


def _batch_space(op: str, amounts: str) -> Converter:
    """Return a converter for blocks of one or two spatial axes; with one, a second axis of size 1 is added.

    `amounts` is the name of the parameter for what is padded before or cropped after.
    """

    def convert(site: OperatorContext) -> list[Tensor]:
        x = site.ranked(0, 3, 4)
        spatial = x.rank - 2
        block, edges = site.integers(1), np.asarray(site.integers(2), np.int64)
        if len(block) != spatial or edges.size != 2 * spatial or min(block) < 1 or edges.min() < 0:
            site.refuse(f"block {block} and edges {edges.tolist()} do not fit {spatial} spatial axes")
        if spatial == 2:
            return [site.emit(op, [x], {"block_size": block, amounts: edges.reshape(2, 2)})]
        image = site.reshape(x, (x.dims[0], x.dims[1], 1, x.dims[2]))
        params = {"block_size": [block[0], 1], amounts: [edges.tolist(), [0, 0]]}
        result = site.step(op, [image], params)
        return site.finish(result, (*result.dims[:2], result.dims[3]))

    return convert


CONVERTERS: dict[str, Converter] = {
    "ARG_MAX": _argument("Argmax"),
    "ARG_MIN": _argument("Argmin"),
    "BATCH_TO_SPACE_ND": _batch_space("BatchToSpace", "crops"),
    "CUMSUM": _cumsum,
    "DEPTH_TO_SPACE": _depth_space("DepthToSpace"),
    "MEAN": _reduce("ReduceMean"),
    "REDUCE_ALL": _reduce_bool("ReduceMin"),
    "REDUCE_ANY": _reduce_bool("ReduceMax"),
    "REDUCE_MAX": _reduce("ReduceMax"),
    "REDUCE_MIN": _reduce("ReduceMin"),
    "REDUCE_PROD": _reduce("ReduceProd"),
    "RESIZE_BILINEAR": _resize("ResizeBilinear"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("ResizeNearestNeighbor"),
    "SPACE_TO_BATCH_ND": _batch_space("SpaceToBatch", "pad_amount"),
    "SPACE_TO_DEPTH": _depth_space("SpaceToDepth"),
    "SUM": _reduce("ReduceSum"),
    "TOPK_V2": _top_k,
}
